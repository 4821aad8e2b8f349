"""Plain SENDs, many at a time: what came in one piece is read, stored and answered by three
compiled loops, with nothing done for each message in Python.

Plain is what nearly every SEND is: `SEND_MESSAGE_V2` with a JSON header, one message, to a topic
that is there, neither delayed nor in a transaction nor a retry. What a loop does not know for
certain to be one ends the piece there, and goes the usual way (`handlers.send`), which also has all
errors. Records and answers are the same, byte for byte: tests/broker/test_sends.py.
"""

import logging
from collections.abc import Callable
from typing import Final, cast

import numpy as np
import orjson

from ..acl import Access, Known
from ..errors import StoreError
from ..filter.engines.tiers import is_plain
from ..message import Host
from ..net.aio import Peer
from ..store._batch import Part, Share, encode_block
from ..store._walk import Rows
from ..store.commitlog import Block, Queue
from ..wire.bodies import TopicFilterType
from ..wire.codes import RequestCode
from ..wire.command import Command, encode
from ._send_loops import Bytes, scan_sends, write_answers
from ._send_signatures import MOST_CONTENT, MOST_SPANS, prepare_secret
from .config import BrokerConfig, Settings
from .intake import Intake
from .stats import Stats
from .topics import NO_SENDING, Topics

__all__ = ["Sends"]

log = logging.getLogger(__name__)

_MOST_ROWS: Final = 1024  # messages taken together
_MOST_SHARES: Final = 256
_PROPERTIES_ROOM: Final = 2**19  # bytes
_CODE_TEXT: Final = b"%d" % RequestCode.SEND_MESSAGE_V2
_COUNT, _BYTES = int(Share.COUNT), int(Share.BYTES)
_NEAR: Final = 512  # bytes it is looked for in, to tell other requests apart at no cost

_Signed = tuple[Bytes, Rows, Rows]  # access key, secret, room for fields
_NO_SECRET: Final[Rows] = np.zeros(0, dtype=np.int64)
_UNSIGNED: Final[_Signed] = (
    np.zeros(0, dtype=np.uint8),
    _NO_SECRET,
    np.zeros((0, 5), dtype=np.int64),
)


class Sends:
    """`born_host` gives a peer's address as records hold it; `refuse` the answer to one of its
    requests, by opaque, whose message could not be made safe. With `access`, only what is signed
    and allowed is taken: what is not is refused the usual way."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        topics: Topics,
        stats: Stats,
        id_prefix: str,
        born_host: Callable[[Peer], Host],
        refuse: Callable[[Peer, int, StoreError], bytes],
        access: Access | None = None,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._topics = topics
        self._stats = stats
        self._id_prefix = id_prefix
        self._store_v6 = 12 if len(id_prefix) > 16 else 0  # more bytes in a record
        self._born_host = born_host
        self._refuse = refuse
        self._access = access
        self._spans: Rows = np.zeros((MOST_SPANS if access is not None else 0, 5), dtype=np.int64)
        self._content: Bytes = np.zeros(MOST_CONTENT, dtype=np.uint8)
        self._rows: Rows = np.zeros((_MOST_ROWS, len(Part)), dtype=np.int64)
        self._shares: Rows = np.zeros((_MOST_SHARES, len(Share)), dtype=np.int64)
        self._properties: Bytes = np.empty(_PROPERTIES_ROOM, dtype=np.uint8)
        self._config: BrokerConfig | None = None  # that what follows is made of
        self._cluster: Bytes
        self._answer: tuple[Bytes, Rows]  # its unchanging parts and their bounds
        self._answers: Bytes = np.empty(2**16, dtype=np.uint8)
        if not is_plain():
            self._warm_up()

    def take(self, peer: Peer, data: bytes) -> int:
        """Stores plain SENDs that `data` begins with, and answers them when they are safe; gives
        how many bytes they are. The rest is for others."""
        if is_plain():  # one by one is faster than a loop that is not compiled
            return 0
        if self._settings.config is not self._config:
            self._prepare(self._settings.config)
        if data.find(_CODE_TEXT, 0, _NEAR) < 0 or not peer.host or not self._is_writable:
            return 0
        known: Known | None = None
        if self._access is not None:
            known = self._access.known(peer)
            if known is None:  # the usual way gets to know it
                return 0
        at, size = 0, len(data)
        source = np.frombuffer(data, dtype=np.uint8)
        while at < size:
            to = self._take(peer, data, source, at, known)
            if to == at:
                break
            at = to
        return at

    def _take(self, peer: Peer, data: bytes, source: Bytes, at: int, known: Known | None) -> int:
        config = self._settings.config
        host = self._born_host(peer)
        fixed = 91 + (12 if host.is_v6 else 0) + self._store_v6
        rows, shares = self._rows, self._shares
        key, secret, spans = self._signed_by(known)
        count, end, share_count, size, largest = scan_sends(
            *(source, at, self._cluster, config.max_message_size, fixed),
            *(self._properties, rows, shares),
            key,
            secret,
            spans,
            self._content,
        )
        if not count or self._intake.backlog + count > config.send_backlog:
            return at
        rows, shares = rows[:count], shares[:share_count]
        found = shares.tolist()
        queues = self._queues(data, found, known)
        if queues is None:
            return at
        block = Block(source, self._properties, rows, shares, queues, host, size, largest)
        try:
            edges = self._intake.append_block(block)
        except StoreError:
            return at  # the usual way meets it again, and answers each
        except Exception:
            log.exception("%s: %d messages were not stored together", peer, count)
            return at
        if edges is None:
            return at
        answers = self._answer_all(rows, shares, edges)
        if not self._intake.is_sync:
            self._count(queues, found)
            if answers:
                peer.write(answers)
            return int(end)
        opaques = rows[rows[:, Part.IS_ONEWAY] == 0, Part.OPAQUE].tolist()

        def finish(error: StoreError | None) -> bytes:
            if error is not None:
                return b"".join([self._refuse(peer, opaque, error) for opaque in opaques])
            self._count(queues, found)
            return answers

        self._intake.tell_when_synced(count, peer, finish)
        return int(end)

    def _count(self, queues: list[Queue], shares: list[list[int]]) -> None:
        topics: dict[str, tuple[int, int]] = {}
        for (topic, _), share in zip(queues, shares, strict=True):
            messages, size = topics.get(topic, (0, 0))
            topics[topic] = messages + share[_COUNT], size + share[_BYTES]
        for topic, (messages, size) in topics.items():
            self._stats.put(topic, messages, size)

    def _signed_by(self, known: Known | None) -> _Signed:
        """The access key, the secret and room for fields, as the loops want them: none for whom
        nothing is asked of."""
        if known is None or known.is_white or known.account is None:
            return _UNSIGNED
        if known.memo is None:
            account = known.account
            key = _bytes(account.access_key.encode()).copy()
            is_free = known.is_account_white
            secret = _NO_SECRET if is_free else prepare_secret(account.signer.secret)
            known.memo = key, secret, self._spans
        return cast(_Signed, known.memo)

    def _queues(
        self, data: bytes, found: list[list[int]], known: Known | None
    ) -> list[Queue] | None:
        """Of each share; None if there is one that needs a closer look (`Sender._check`)."""
        queues = list[Queue]()
        for at, size, queue_id, *_ in found:
            name = data[at : at + size].decode()
            topic = self._topics.get(name)
            if (
                topic is None
                or name in NO_SENDING
                or topic.filter_type is not TopicFilterType.SINGLE_TAG
                or queue_id >= max(topic.write_queues, topic.read_queues)
                or (known is not None and not known.may_send(name))
            ):
                return None
            queues.append((name, queue_id))
        return queues

    def _answer_all(self, rows: Rows, shares: Rows, edges: Rows) -> bytes:
        parts, bounds = self._answer
        room = len(rows) * (8 + len(parts) + 16 + 20 + 20 + 11)
        if len(self._answers) < room:
            self._answers = np.empty(room, dtype=np.uint8)
        size = write_answers(rows, shares, edges, parts, bounds, self._answers)
        return self._answers[:size].tobytes()

    def _prepare(self, config: BrokerConfig) -> None:
        """What the loops need of the configuration."""
        self._config = config
        self._is_writable = config.is_writable
        self._cluster = _bytes(f"CLUSTER\x01{config.cluster}".encode())
        trace = "true" if config.trace else "false"
        region = orjson.dumps(config.region).decode()
        parts = [
            '{"code":0,"extFields":{"queueId":"',
            f'","TRACE_ON":"{trace}","MSG_REGION":{region},"msgId":"{self._id_prefix}',
            '","queueOffset":"',
            '"},"flag":1,"language":"JAVA","opaque":',
            ',"serializeTypeCurrentRPC":"JSON","version":401}',
        ]
        sizes = [0, *(len(part.encode()) for part in parts)]
        self._answer = _bytes("".join(parts).encode()), np.cumsum(sizes, dtype=np.int64)

    def _warm_up(self) -> None:
        """The loops are compiled, or loaded, before there is someone waiting."""
        self._prepare(self._settings.config)
        self._config = None
        fields = dict.fromkeys("abcdefgh", "0")
        sample = encode(Command(code=RequestCode.SEND_MESSAGE_V2, fields=fields))
        source = _bytes(sample)
        fixed, rows, shares = 91, self._rows, self._shares
        key, secret, spans = _UNSIGNED
        scan_sends(
            *(source, 0, self._cluster, 0, fixed, self._properties, rows, shares),
            key,
            secret,
            spans,
            self._content,
        )
        prepare_secret(b"")
        out, edges = np.empty(2**10, dtype=np.uint8), np.zeros(2, dtype=np.int64)
        head = _bytes(bytes(88))
        encode_block(source, self._properties, rows[:1], shares[:1], head, 0, 0, out, edges)
        self._answer_all(rows[:1], shares[:1], edges)


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)
