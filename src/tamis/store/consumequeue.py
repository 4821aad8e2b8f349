"""Consume queues: for each queue of a topic, where its messages lie in the log, 20 bytes a message.

With extensions on, a code is the address of an extension unit, which has the real tags code, the
store time and a bitmap of the groups whose filter matched. RocketMQ 4.9's `ConsumeQueue` and
`ConsumeQueueExt`; both can be deleted and are made anew from the log.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..message import QueueOffset
from . import format
from ._walk import extension_end
from .files import Bytes, Files, Mapped
from .format import EXT_ADDRESS_MAX, EXT_BASE, EXT_HEAD, EXT_HEAD_SIZE, EXT_TAIL, UNIT, UNIT_SIZE
from .mapped import FileSequence

__all__ = ["ConsumeQueue", "Extension", "ExtensionUnit", "Stretch", "Units"]

Units = npt.NDArray[np.void]  # of format.UNIT
Ints = npt.NDArray[np.int64]


class Stretch(NamedTuple):
    """Units of one file, which is held by this: the address is good as long as this is."""

    file: Mapped
    at: int  # in the file
    address: int
    size: int  # in units

    @property
    def units(self) -> Units:
        return self.file.data[self.at : self.at + UNIT_SIZE * self.size].view(UNIT)

    def log_offset(self, number: int) -> int:
        """Where the record of a unit begins in the log."""
        offset: int = _INT8.unpack_from(self.file.data.data, self.at + UNIT_SIZE * number)[0]
        return offset


_INT8 = struct.Struct(">q")


class ConsumeQueue:
    """One writer, the dispatcher; readers see units up to `max_offset`."""

    def __init__(
        self,
        directory: Path,
        file_size: int,
        files: Files,
        extension: "Extension | None" = None,
        writable: bool = True,
    ) -> None:
        self.sequence = FileSequence(directory, file_size, files, writable)
        self.extension = extension
        self.min_offset = QueueOffset(self.sequence.start // UNIT_SIZE)
        # The size of its largest message, in bytes, which makes some of a select's work needless.
        self.largest = 0 if not self.sequence else 2**31  # anything, until it is measured
        self._reserved = 0  # bytes up to which units can be written

    def written(self) -> Iterator[tuple[int, Units]]:
        """The offset of the first unit and the units of each file, without the hole at its end."""
        for start, data in self.sequence.written():
            rest = -len(data) % UNIT_SIZE
            if rest:  # the hole begins in the middle of a unit
                data = np.concatenate((data, np.zeros(rest, dtype=np.uint8)))
            yield start // UNIT_SIZE, data.view(UNIT)

    def reserve(self, end: int) -> None:
        """Make sure that the units before queue offset `end` can be written: their files are there
        and the disk has room for them. Raises StoreError."""
        if end * UNIT_SIZE <= self._reserved:
            return
        begin, size = max(self._reserved, self.sequence.end), self.sequence.file_size
        ahead = min(max(begin, _LEAST_RESERVED), _MOST_RESERVED)
        wanted = max(end * UNIT_SIZE, begin)
        last = -(-wanted // size) * size  # a file more would be made for nothing
        wanted = min(-(-(wanted + ahead) // _LEAST_RESERVED) * _LEAST_RESERVED, last)
        self.sequence.reserve(begin, wanted)
        self._reserved = wanted

    def _grow(self, units: Units) -> None:
        sizes = units["size"]
        self.largest = max(self.largest, int(np.max(sizes, where=sizes != _BLANK, initial=0)))

    @property
    def max_offset(self) -> QueueOffset:
        return QueueOffset(self.sequence.end // UNIT_SIZE if self.sequence else 0)

    def units(self, offset: int, count: int) -> Units:
        """Up to `count` units from `offset`, of one file: a view of the mapped file."""
        data = self.sequence.view(offset * UNIT_SIZE, (offset + count) * UNIT_SIZE)
        return data.view(UNIT)

    def stretch(self, offset: int, end: int) -> "Stretch | None":
        """Units from `offset` on, for compiled loops: up to `end`, which is at most `max_offset`,
        and as many as are in one file; None if there is no such file."""
        found = self.sequence.find(offset * UNIT_SIZE)
        if found is None:
            return None
        file, start = found
        at = offset * UNIT_SIZE - start
        count = min(end - offset, (file.size - at) // UNIT_SIZE)
        return Stretch(file, at, file.address + at, count)

    def next_file(self, offset: int) -> QueueOffset:
        """The first offset of the file after the one `offset` belongs to."""
        units = self.sequence.file_size // UNIT_SIZE
        return QueueOffset(offset + units - offset % units)

    def append(self, offset: int, units: Units) -> None:
        """Units from `offset` on. Those that are there already are passed over."""
        end = self.max_offset
        if not self.sequence:
            # a queue whose first messages are gone from the log begins in the middle of a file
            end = QueueOffset(offset - offset % (self.sequence.file_size // UNIT_SIZE))
            self.sequence.end = end * UNIT_SIZE
            self.min_offset = QueueOffset(offset)
        if offset > end:
            self.sequence.append(_blank_units(offset - end).tobytes())
            end = QueueOffset(offset)
        new = units[end - offset :]
        if len(new):
            self._grow(new)
            self.sequence.append(new.tobytes())

    def correct_min_offset(self, log_start: int) -> None:
        """The first unit of the first file whose message is still in the log."""
        if self.min_offset >= self.sequence.start // UNIT_SIZE:
            known = self.units(self.min_offset, 1)
            if len(known) and known["offset"][0] >= log_start and known["size"][0] != _BLANK:
                return
        first = self.units(self.sequence.start // UNIT_SIZE, self.sequence.file_size // UNIT_SIZE)
        self.find_min_offset(first, log_start)

    def find_min_offset(self, first: Units, log_start: int) -> None:
        """As `correct_min_offset`, among the units of the first file."""
        found = np.flatnonzero((first["offset"] >= log_start) & (first["size"] != _BLANK))
        if len(found):
            self.min_offset = QueueOffset(self.sequence.start // UNIT_SIZE + int(found[0]))
            if self.extension is not None:
                code = int(first["code"][found[0]])
                if code <= EXT_ADDRESS_MAX:
                    self.extension.drop_before(code - EXT_BASE)

    def drop_before(self, log_start: int) -> None:
        """Files all of whose messages are gone from the log, never the last."""
        while len(self.sequence.starts) > 1:
            start = self.sequence.start
            last = self.units((start + self.sequence.file_size) // UNIT_SIZE - 1, 1)
            if not len(last) or int(last["offset"][0]) >= log_start:  # not full, or still needed
                break
            self.sequence.drop_first()

    def truncate(self, offset: int, *, begins_at_0: bool = False) -> None:
        """Nothing is left from queue offset `offset` on. `begins_at_0`: should nothing be left at
        all, the next unit is the first of the first file, which can stay."""
        self._reserved = 0
        if offset * UNIT_SIZE <= self.sequence.start and not (offset == 0 and begins_at_0):
            self.sequence.destroy()
            self.min_offset = QueueOffset(0)
        else:
            self.sequence.truncate(offset * UNIT_SIZE)

    def end_at(self, offset: int, *, begins_at_0: bool = False) -> None:
        """As `truncate`, where there is known to be nothing from `offset` on."""
        if offset * UNIT_SIZE <= self.sequence.start and not (offset == 0 and begins_at_0):
            self.truncate(offset)
        else:
            self.sequence.end = offset * UNIT_SIZE

    def flush(self) -> None:
        for sequence in self.sequences:
            sequence.flush()

    @property
    def sequences(self) -> list[FileSequence]:
        """Its own files, and its extension's."""
        extension = self.extension
        return [self.sequence] if extension is None else [self.sequence, extension.sequence]

    def close(self) -> None:
        self.sequence.close()
        if self.extension is not None:
            self.extension.close()


_BLANK = format.UNIT_BLANK_SIZE
_LEAST_RESERVED, _MOST_RESERVED = 4096, 65_536  # bytes at once: a queue may have few messages


def _blank_units(count: int) -> Units:
    units = np.zeros(count, dtype=UNIT)
    units["size"] = _BLANK
    return units


class ExtensionUnit(NamedTuple):
    code: int
    stored: int
    bitmap: bytes | None


class Extension:
    """Units of variable size; a short -1 ends a file that has no room for the next."""

    def __init__(
        self, directory: Path, file_size: int, files: Files, writable: bool = True
    ) -> None:
        self.sequence = FileSequence(directory, file_size, files, writable)

    def append(self, codes: Ints, stored: Ints, bitmaps: Bytes | None) -> Ints:
        """Gives the address of each unit. `bitmaps` has a row a unit."""
        width = 0 if bitmaps is None else bitmaps.shape[1]
        size = EXT_HEAD_SIZE + width
        units = np.zeros(
            len(codes), dtype=np.dtype([("head", EXT_HEAD), ("bitmap", np.uint8, (width,))])
        )
        head = units["head"]
        head["size"], head["code"], head["stored"], head["bitmap_size"] = size, codes, stored, width
        if bitmaps is not None:
            units["bitmap"] = bitmaps
        addresses = np.empty(len(codes), dtype=np.int64)
        done = 0
        while done < len(units):
            room = self.sequence.room() or self.sequence.file_size
            fitting = max((room - EXT_TAIL) // size, 0)
            if fitting == 0:
                self.sequence.append(b"\xff\xff" + bytes(room - 2))
                continue
            part = units[done : done + fitting]
            at = self.sequence.append(part.tobytes())
            addresses[done : done + len(part)] = at + np.arange(len(part)) * size + EXT_BASE
            done += len(part)
        return addresses

    def unit(self, address: int) -> ExtensionUnit | None:
        """None if there is none at that address."""
        if address > EXT_ADDRESS_MAX:
            return None
        data = self.sequence.view(address - EXT_BASE)
        if len(data) < EXT_HEAD_SIZE:
            return None
        head = data[:EXT_HEAD_SIZE].view(EXT_HEAD)[0]
        width = int(head["bitmap_size"])
        if head["size"] < 1:
            return None
        bitmap = data[EXT_HEAD_SIZE : EXT_HEAD_SIZE + width].tobytes() if width > 0 else None
        return ExtensionUnit(int(head["code"]), int(head["stored"]), bitmap)

    def recover(self) -> None:
        """Finds the end: walks all units, by their size, and clears what follows the last."""
        end = self.sequence.start
        for start, file in self.sequence.files():
            mapped = file.mapped()
            at = extension_end(mapped.address, self.sequence.file_size)
            end = start + at
        self.sequence.truncate(end)

    def truncate_after(self, address: int) -> None:
        """Nothing is left after the unit at `address`."""
        unit = self.unit(address)
        if unit is not None:
            size = EXT_HEAD_SIZE + len(unit.bitmap or b"")
            self.sequence.truncate(address - EXT_BASE + size)

    def drop_before(self, offset: int) -> None:
        while len(self.sequence.starts) > 1:
            if self.sequence.start + self.sequence.file_size >= offset:
                break
            self.sequence.drop_first()

    def close(self) -> None:
        self.sequence.close()
