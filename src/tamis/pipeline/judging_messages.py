"""Messages as they are judged: those of one queue, by columns, taken from batches of a source."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

__all__ = ["Messages", "Numbers", "QueueName", "queue_parts"]

Numbers = npt.NDArray[np.int64]
QueueName = tuple[str, str, int]  # topic, broker, queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of one queue, in the order of their offsets; columns of Arrow and NumPy."""

    queue: QueueName
    offsets: Numbers
    stored: Numbers  # milliseconds since 1970
    tags: pa.Array  # null for none
    tags_codes: Numbers
    property_strings: pa.Array
    message_ids: pa.Array
    log_offsets: Numbers | None = None

    def __len__(self) -> int:
        return len(self.offsets)


def queue_parts(batch: pa.RecordBatch) -> "list[tuple[npt.NDArray[np.int64], Messages]]":
    """Return the messages of each queue in a batch of a source's rows, with their rows' numbers."""
    topics = pc.dictionary_encode(batch.column("topic"))
    brokers = pc.dictionary_encode(pc.fill_null(batch.column("broker"), ""))
    queue_ids = batch.column("queue_id").to_numpy()
    offsets = batch.column("offset").to_numpy()
    width = int(queue_ids.max()) + 1  # queues are numbered from 0, and few
    numbers = topics.indices.to_numpy().astype(np.int64) * len(brokers.dictionary)
    numbers = (numbers + brokers.indices.to_numpy()) * width + queue_ids
    parts = []
    for number in np.flatnonzero(np.bincount(numbers)):
        place, queue_id = divmod(int(number), width)
        topic, broker = divmod(place, len(brokers.dictionary))
        rows = np.flatnonzero(numbers == number)
        if np.any(np.diff(offsets[rows]) < 0):
            rows = rows[np.argsort(offsets[rows], kind="stable")]
        is_whole = len(rows) == len(offsets) and (len(rows) < 2 or np.all(np.diff(rows) > 0))
        own = batch if is_whole else batch.take(pa.array(rows))
        name = topics.dictionary[topic].as_py(), brokers.dictionary[broker].as_py(), int(queue_id)
        parts.append((rows, _messages(name, own)))
    return parts


def _messages(name: QueueName, batch: pa.RecordBatch) -> Messages:
    def column(wanted: str) -> Any:
        return batch.column(wanted)

    stored = column("store_timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    has_log_offset = "log_offset" in batch.schema.names
    return Messages(
        queue=name,
        offsets=column("offset").to_numpy(),
        stored=stored.to_numpy(zero_copy_only=False),
        tags=column("tags"),
        tags_codes=column("tags_code").to_numpy(zero_copy_only=False),
        property_strings=column("property_string"),
        message_ids=column("message_id"),
        log_offsets=column("log_offset").to_numpy() if has_log_offset else None,
    )
