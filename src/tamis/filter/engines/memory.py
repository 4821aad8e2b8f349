"""Loads from raw addresses, for compiled loops over bytes that lie in someone else's buffer.

numba has no unaligned word load and no way to ask "where are the separators in these 64 bytes", so
these few intrinsics emit LLVM directly. Nothing here checks bounds: each caller compares with the
end of its buffer first. `compiled` is numba's decorator with a type; code is cached on disk, so a
machine compiles once, and `tiers` says what runs until then.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from .plain import in_python
from .tiers import watch

__all__ = [
    "Address",
    "Int",
    "Word",
    "compiled",
    "find64",
    "in_python",
    "inlined",
    "load1",
    "load8",
    "lowest_bit",
    "store8",
    "strtod",
]

P = ParamSpec("P")
R = TypeVar("R")

# What compiled code computes with: 64-bit integers that wrap. Python's types have no word for it.
Int = Any  # signed; lengths, keys, small numbers
Address = Any  # signed
Word = Any  # unsigned: eight bytes of text, or 64 flags


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    result: Callable[P, R] = watch(njit(cache=True, nogil=True, error_model="numpy")(function))
    return result


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for what is too hot to be called: it becomes part of its caller."""
    result: Callable[P, R] = watch(
        njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    )
    return result


def _emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    result: Callable[..., Any] = intrinsic(function)
    return result


_I8, _I64 = ir.IntType(8), ir.IntType(64)
_BLOCK = ir.VectorType(_I8, 64)


@_emitted
def load1(typing: Any, address: Any) -> Any:
    """The byte at an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I8.as_pointer())
        return builder.zext(builder.load(pointer, align=1), _I64)

    return types.int64(types.int64), emit


@_emitted
def load8(typing: Any, address: Any) -> Any:
    """Eight bytes as a word, the first one lowest (numba runs on little-endian machines only)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()), align=1)

    return types.uint64(types.int64), emit


@_emitted
def store8(typing: Any, address: Any, value: Any) -> Any:
    """Writes an int64 at an address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _I64.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@_emitted
def find64(typing: Any, address: Any, byte: Any) -> Any:
    """Bit i is set where byte i of the 64 at `address` equals `byte`: two AVX2 compares, not 64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = builder.load(builder.inttoptr(args[0], _BLOCK.as_pointer()), align=1)
        undefined = ir.Constant(_BLOCK, ir.Undefined)
        wanted = builder.insert_element(
            undefined, builder.trunc(args[1], _I8), ir.Constant(ir.IntType(32), 0)
        )
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        wanted = builder.shuffle_vector(wanted, undefined, everywhere)
        return builder.bitcast(builder.icmp_unsigned("==", block, wanted), _I64)

    return types.uint64(types.int64, types.int64), emit


@_emitted
def lowest_bit(typing: Any, word: Any) -> Any:
    """The number of the lowest bit set; the word must not be 0."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


# C's own, for the few decimals too long for exact arithmetic: (text, 0) -> double.
strtod: Any = types.ExternalFunction("strtod", types.float64(types.int64, types.int64))
