"""Reads a queue for a lane: by its filter, on its side of a cut-over, without what others get."""

from dataclasses import replace

from ..store.commitlog import Queue
from ..store.files import Bytes
from ..store.select import Limits, Selection, Status
from ..store.store import Store
from ..wire import record
from .lanes import Division, Lane

__all__ = ["moved", "read"]


def read(
    store: Store, division: Division, lane: Lane, queue: Queue, offset: int, limits: Limits
) -> Selection:
    """As `Store.select`, for one lane. A member that has to go back is told so by the status of an
    offset beyond the end. Raises InvalidFilter."""
    topic, queue_id = queue
    end, wanted = None, None
    if topic != division.retry_topic:
        own = lane.filters[topic]
        wanted = own.wanted
        change = division.cutovers.get(topic)
        if change is not None:
            cut = change.cut(queue_id)
            if own == change.old and offset >= cut:
                return _at_end(store, queue, offset)
            if own == change.old:
                end = cut
            elif own == change.new and offset < cut:
                if not change.is_handed:
                    return _passed(store, queue, offset, cut)
                wanted, end = change.old.wanted, cut
            elif own == change.new and offset == cut and _is_beyond(store, queue, offset):
                return _at_end(store, queue, offset)
        for band in lane.bands.get(queue, ()):
            if band.leftover is None and band.start <= offset < band.end:
                return _passed(store, queue, offset, band.end)
            if offset < band.start and band.leftover is None:
                end = band.start if end is None else min(end, band.start)
    if end is not None:
        limits = replace(limits, units=min(limits.units, end - offset))
    found = store.select(topic, queue_id, offset, limits, wanted)
    if found.records and division.is_checked(lane, queue):
        found = _checked(division, lane, queue, found)
    return found


def _checked(division: Division, lane: Lane, queue: Queue, found: Selection) -> Selection:
    kept = list[Bytes]()
    for one in found.records:
        message = record.decode(memoryview(one.data))
        if division.gives(lane, queue, message.queue_offset, message.properties):
            kept.append(one)
    status = Status.FOUND if kept else Status.NO_MATCHED_MESSAGE
    return found._replace(status=status, records=kept)


def _bounds(store: Store, queue: Queue) -> tuple[int, int]:
    found = store.find_queue(*queue)
    return (found.min_offset, found.max_offset) if found is not None else (0, 0)


def _is_beyond(store: Store, queue: Queue, offset: int) -> bool:
    return offset > _bounds(store, queue)[1]


def _at_end(store: Store, queue: Queue, offset: int) -> Selection:
    """Answer as if the queue ended there."""
    status = Status.OFFSET_OVERFLOW_ONE
    return Selection(status, [], offset, *_bounds(store, queue))  # type: ignore[arg-type]


def _passed(store: Store, queue: Queue, offset: int, end: int) -> Selection:
    """Nothing up to `end`, where the lane goes on."""
    low, high = _bounds(store, queue)
    if end > high:  # a cut that is not reached yet
        status = Status.OFFSET_OVERFLOW_ONE if offset >= high else Status.NO_MATCHED_MESSAGE
        return Selection(status, [], max(offset, high), low, high)  # type: ignore[arg-type]
    return Selection(Status.NO_MATCHED_MESSAGE, [], end, low, high)  # type: ignore[arg-type]


def moved(store: Store, queue: Queue, offset: int) -> Selection:
    """Tells a member to go back to `offset`."""
    status = Status.OFFSET_OVERFLOW_BADLY
    return Selection(status, [], offset, *_bounds(store, queue))  # type: ignore[arg-type]
