"""The compiled loops as plain Python: what a new machine runs while it compiles them.

A loop's source is Python already. What it takes from the compiled world is put in its place: loads
from addresses by ctypes, C's functions, integers that wrap, arrays whose items are Python's
numbers. So a loop and its twin are one text, and `tests/filter/test_plain_loops.py` holds them to
the same results. A twin is some hundred times slower, and holds the interpreter lock.

`in_python` gives a loop a twin written by hand, where the loop goes byte by byte and Python has one
call for all of them.
"""

import ctypes
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np

__all__ = ["in_python", "plain_twin"]

_LOW_64: Final = 2**64 - 1
_twins: dict[Any, Callable[..., Any]] = {}  # by the loop's own function
_by_hand: dict[Any, Callable[..., Any]] = {}


def in_python(loop: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function to be what `loop` is while it is not compiled."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        _by_hand[_source(loop)] = function
        return function

    return declare


def plain_twin(loop: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes and returns what `loop` does, and needs no compiler."""
    run = _twin(_source(loop))

    def call(*args: Any) -> Any:
        given = [Array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        with np.errstate(all="ignore"):  # numbers are meant to wrap
            return _as_python(run(*given))

    return call


def _source(loop: Any) -> Any:
    return getattr(loop, "py_func", loop)


def _twin(function: Any) -> Callable[..., Any]:
    if function in _by_hand:
        return _by_hand[function]
    if function not in _twins:
        names: dict[str, Any] = {"__builtins__": __builtins__}
        _twins[function] = FunctionType(function.__code__, names, function.__name__)
        for name in _globals_of(function.__code__):
            if name in function.__globals__:
                names[name] = _translated(function.__globals__[name])
    return _twins[function]


def _globals_of(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_globals_of, inner))


def _translated(value: Any) -> Any:
    """What stands for a loop's global in its twin."""
    if value is np:
        return _NUMPY
    if isinstance(value, np.ndarray):
        return Array(value)
    if hasattr(value, "py_func"):  # another loop
        return _twin(value.py_func)
    name = getattr(value, "_name", None) or getattr(value, "symbol", None)
    return _EMITTED.get(name, value) if isinstance(name, str) else value


def _as_python(value: Any) -> Any:
    """Results are what compiled code returns: Python's own numbers."""
    if isinstance(value, tuple):
        return tuple(map(_as_python, value))
    return value.item() if isinstance(value, np.generic) else value


class Array:
    """An array whose items are Python's numbers, and that keeps the low bits of what is set."""

    __slots__ = ("_bits", "_items", "_signed", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        # Of booleans, read-only and strided arrays too; not of one without items in it.
        self._items = memoryview(array) if array.size else array
        self._signed = array.dtype.kind == "i"
        self._bits = 8 * array.dtype.itemsize

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.tolist())

    def __getitem__(self, key: Any) -> Any:
        if key.__class__ is slice:
            return Array(self.array[key])
        try:
            return self._items[key]
        except NotImplementedError:  # a row of several
            return Array(self.array[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        try:
            self._items[key] = value
        except (ValueError, TypeError, OverflowError):
            self.array[key] = self._wrapped(int(value))

    def _wrapped(self, value: int) -> int:
        value &= (1 << self._bits) - 1
        return value - (1 << self._bits) if self._signed and value >> (self._bits - 1) else value

    def __add__(self, other: "Array") -> "Array":
        return Array(self.array + other.array)

    def copy(self) -> "Array":
        return Array(self.array.copy())

    @property
    def shape(self) -> Any:
        return self.array.shape

    @property
    def ctypes(self) -> Any:
        return self.array.ctypes


class _Wrapping:
    """One of NumPy's integer types, in a loop: the low bits of whatever it is made from. All but
    unsigned words are Python's integers, which go further than a loop ever lets them."""

    def __init__(self, kind: Any) -> None:
        self.dtype = np.dtype(kind)  # so that it can be named where an array is made
        self._bits = 8 * self.dtype.itemsize
        self._signed = self.dtype.kind == "i"
        self._kind = kind if kind is np.uint64 else int

    def __call__(self, value: Any = 0) -> Any:
        low = int(value) & ((1 << self._bits) - 1)
        if self._signed and low >> (self._bits - 1):
            low -= 1 << self._bits
        return self._kind(low)


class _Numpy(ModuleType):
    """NumPy as loops see it."""

    inf, float64, uint8, bool_ = np.inf, np.float64, np.uint8, np.bool_
    int32, int64, uint32, uint64 = map(_Wrapping, (np.int32, np.int64, np.uint32, np.uint64))

    @staticmethod
    def empty(shape: Any, dtype: Any) -> Array:
        return Array(np.empty(shape, dtype=dtype))

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> Array:
        return Array(np.zeros(shape, dtype=dtype))

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> Array:
        return Array(np.full(shape, value, dtype=dtype))

    @staticmethod
    def searchsorted(array: Array, value: Any, side: Any) -> int:
        return int(np.searchsorted(array.array, value, side=side))


_NUMPY = _Numpy("numpy")


# What loops call that is not Python: the intrinsics of `memory`, and C.


def _load1(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


def _load8(address: int) -> Any:
    return np.uint64(int.from_bytes(ctypes.string_at(address, 8), "little"))


def _store8(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(address).value = int(value) & _LOW_64


def _find64(address: int, byte: int) -> Any:
    block, found = ctypes.string_at(address, 64), 0
    at = block.find(byte)
    while at >= 0:
        found |= 1 << at
        at = block.find(byte, at + 1)
    return np.uint64(found)


def _lowest_bit(word: Any) -> int:
    number = int(word)
    return (number & -number).bit_length() - 1


def _memcmp(left: int, right: int, size: int) -> int:
    a, b = ctypes.string_at(left, size), ctypes.string_at(right, size)
    return (a > b) - (a < b)


def _strtod(text: int, _: int) -> float:
    return float(_c.strtod(text, None))


_c = ctypes.CDLL(None)
_c.strtod.restype = ctypes.c_double
_c.strtod.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

_EMITTED: Final[dict[str, Callable[..., Any]]] = {
    "load1": _load1,
    "load8": _load8,
    "store8": _store8,
    "find64": _find64,
    "lowest_bit": _lowest_bit,
    "_emit_prefetch": lambda address: None,
    "strtod": _strtod,
    "memcpy": ctypes.memmove,
    "memcmp": _memcmp,
}
