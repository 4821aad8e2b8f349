"""CRC-32 of bytes at an address, for compiled loops: zlib's, to the bit.

Eight bytes at a time by tables: 2 GB/s. Where the processor multiplies without carry (`pclmul`)
sixteen at a time, after Intel's "Fast CRC computation for generic polynomials using PCLMULQDQ":
what is read so far is folded into sixteen bytes that have the same remainder. That is 7 GB/s for a
record of 300 bytes, and a third of a pull's compiled part less.
"""

from collections.abc import Callable
from ctypes import string_at
from typing import Any
from zlib import crc32

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

from ..filter.engines.memory import (
    Address,
    Int,
    Word,
    compiled,
    in_python,
    inlined,
    load1,
    load8,
)

__all__ = ["crc_of"]

_numba: Any = numba  # half of it has no types
_build: Any = cgutils


def _tables() -> npt.NDArray[np.uint32]:
    """Table k is what a byte does k bytes later."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):  # what crc32 makes of a byte, without its start and end values
        tables[0, byte] = crc32(bytes((byte ^ 0xFF,))) ^ 0xFFFFFFFF ^ 0x00FFFFFF
    for k in range(1, 8):
        previous = tables[k - 1]
        tables[k] = (previous >> 8) ^ tables[0][previous & 0xFF]
    return tables


_CRC = _tables()


def _can_fold() -> bool:
    """Whether code is compiled for this very processor, and that has what it takes."""
    if _numba.config.CPU_NAME or _numba.config.CPU_FEATURES:
        return False
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know the processor
        return False
    return bool(features.get("pclmul") and features.get("sse2"))


_FOLDS = _can_fold()

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PAIR = ir.VectorType(_I64, 2)
_KEYS = (0x1751997D0, 0x0CCAA009E)  # x^160 and x^96 modulo the polynomial, bits reversed


def _emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    result: Callable[..., Any] = intrinsic(function)
    return result


@_emitted
def _fold(typing: Any, at: Any, blocks: Any, crc: Any) -> Any:
    """Two words that have the remainder of `blocks` times sixteen bytes, at least one."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at, blocks, crc = args
        kind = ir.FunctionType(_PAIR, (_PAIR, _PAIR, _I8))
        multiply = _build.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")
        keys = ir.Constant(_PAIR, _KEYS)

        def block(number: Any) -> Any:
            address = builder.add(at, builder.shl(number, ir.Constant(_I64, 4)))
            return builder.load(builder.inttoptr(address, _PAIR.as_pointer()), align=1)

        begin = builder.insert_element(ir.Constant(_PAIR, (0, 0)), crc, ir.Constant(_I32, 0))
        state = _build.alloca_once(builder, _PAIR)
        builder.store(builder.xor(block(ir.Constant(_I64, 0)), begin), state)
        with _build.for_range(builder, blocks, ir.Constant(_I64, 1), _I64) as loop:
            before = builder.load(state)
            low = builder.call(multiply, (before, keys, ir.Constant(_I8, 0x00)))
            high = builder.call(multiply, (before, keys, ir.Constant(_I8, 0x11)))
            builder.store(builder.xor(builder.xor(low, high), block(loop.index)), state)
        after = builder.load(state)
        halves = [builder.extract_element(after, ir.Constant(_I32, half)) for half in (0, 1)]
        return context.make_tuple(builder, signature.return_type, halves)

    types = _numba.types
    return types.UniTuple(types.uint64, 2)(types.int64, types.int64, types.uint64), emit


@inlined
def _eight(word: Word) -> Word:
    """What eight bytes do, xored with what was before."""
    low_byte = np.uint64(0xFF)
    return (
        _CRC[7, word & low_byte]
        ^ _CRC[6, (word >> np.uint64(8)) & low_byte]
        ^ _CRC[5, (word >> np.uint64(16)) & low_byte]
        ^ _CRC[4, (word >> np.uint64(24)) & low_byte]
        ^ _CRC[3, (word >> np.uint64(32)) & low_byte]
        ^ _CRC[2, (word >> np.uint64(40)) & low_byte]
        ^ _CRC[1, (word >> np.uint64(48)) & low_byte]
        ^ _CRC[0, word >> np.uint64(56)]
    )


@inlined
def _folded(at: Address, blocks: Int, crc: Word) -> Word:
    low, high = _fold(at, blocks, np.uint64(crc))
    return _eight(high ^ np.uint64(_eight(low)))


@inlined
def _not_folded(at: Address, blocks: Int, crc: Word) -> Word:
    for block in range(at, at + 16 * blocks, 16):
        crc = _eight(load8(block) ^ np.uint64(crc))
        crc = _eight(load8(block + 8) ^ np.uint64(crc))
    return crc


_sixteens = _folded if _FOLDS else _not_folded


@compiled
def crc_of(at: Address, length: Int) -> Int:
    crc = np.uint32(0xFFFFFFFF)
    end = at + length
    if length >= 32:
        crc = _sixteens(at, length >> 4, crc)
        at += length >> 4 << 4
    while at + 8 <= end:
        crc = _eight(load8(at) ^ np.uint64(crc))
        at += 8
    while at < end:
        crc = np.uint32(crc >> np.uint32(8)) ^ _CRC[0, (np.int64(crc) ^ load1(at)) & 0xFF]
        at += 1
    return np.int64(crc) ^ 0xFFFFFFFF


@in_python(crc_of)
def _crc_by_zlib(at: Address, length: Int) -> Int:
    return crc32(string_at(at, length))
