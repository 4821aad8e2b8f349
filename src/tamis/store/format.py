"""Layouts and sizes of the store's files, RocketMQ 4.9's. Records are in `wire.record`."""

from typing import Final

import numpy as np

__all__ = [
    "BLANK_SIZE",
    "EXT_ADDRESS_MAX",
    "EXT_BASE",
    "EXT_HEAD",
    "UNIT",
    "UNIT_SIZE",
]

BLANK_SIZE: Final = 8  # size and magic of the filler at the end of a log file

# A consume queue's unit: where a message lies, its size, its tags code (or, for the delay topic,
# when to deliver it; or, with extensions, the address of an extension unit).
UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
UNIT_SIZE: Final = 20
UNIT_BLANK_SIZE: Final = 0x7FFFFFFF  # the size in units that fill a gap before the first message

# An extension unit: its size, the real tags code, the store time, the bitmap's size, the bitmap.
EXT_HEAD: Final = np.dtype(
    [("size", ">i2"), ("code", ">i8"), ("stored", ">i8"), ("bitmap_size", ">i2")]
)
EXT_HEAD_SIZE: Final = 20
EXT_BASE: Final = -(2**63)  # added to an offset it makes an address
EXT_ADDRESS_MAX: Final = -(2**31) - 1  # a code up to this is an address; tags codes are 32-bit
EXT_TAIL: Final = 4  # left free at the end of an extension file for its end mark

CHECKPOINT_SIZE: Final = 4096
