"""A cluster with a filter server, and a consumer that filters by a class, frame by frame."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

from tamis.code import CodeFilter, Context, load
from tamis.code.contract import Judge
from tamis.filterserver import FilterServer, FilterServerConfig
from tamis.net.aio import Peer, connect
from tamis.testing import LocalCluster
from tamis.wire import properties, record
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import CreateTopic, PullMessage, RegisterFilterClass, SendMessage

PATIENCE = 60.0  # seconds
EVEN = """
class Even:
    columns = ("body",)

    def match(self, message):
        return int(message.body) % 2 == 0
"""
RARE = """
import numpy as np

class Rare:
    properties = ("number:long",)

    def match_batch(self, batch):
        return batch.column("number").to_numpy(zero_copy_only=False) % 1000 == 999
"""
NONE = "class Nothing:\n    columns = ('tags',)\n    def match(self, message): return False\n"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


async def until(condition: Callable[[], Any], what: Callable[[], Any] = lambda: "") -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come about: {what()}"
        await asyncio.sleep(0.01)
    return value


@asynccontextmanager
async def serving(
    broker: str,
    *,
    make_judge: Callable[[CodeFilter, Context], Judge] | None = load,
    **settings: Any,
) -> AsyncIterator[FilterServer]:
    """A filter server in the test's loop, with filters in this process; None: in a sandbox."""
    settings = {"uploads": True, "register_seconds": 0.5} | settings
    server = FilterServer(FilterServerConfig(broker=broker, **settings), make_judge=make_judge)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def standing(
    *,
    queues: int = 1,
    make_judge: Callable[[CodeFilter, Context], Judge] | None = load,
    **settings: Any,
) -> AsyncIterator[tuple[LocalCluster, FilterServer, "Client"]]:
    """With the topic T, and the server registered."""
    async with (
        LocalCluster(log_file_size=2**22, index_slots=1000, index_entries=4000) as cluster,
        serving(cluster.broker, make_judge=make_judge, **settings) as server,
        Client.connected(cluster.broker, server.address) as client,
    ):
        await client.create_topic("T", queues)
        await until(lambda: server.registration.is_registered, lambda: server.registration.failure)
        yield cluster, server, client


class Client:
    """Talks to a broker and to a filter server."""

    def __init__(self, broker: Peer, server: Peer) -> None:
        self.broker = broker
        self.server = server

    @classmethod
    @asynccontextmanager
    async def connected(cls, broker: str, server: str) -> AsyncIterator["Client"]:
        peers = [await connect(broker), await connect(server)]
        try:
            yield cls(*peers)
        finally:
            for peer in peers:
                peer.close()

    async def create_topic(self, topic: str, queues: int) -> None:
        header = CreateTopic(
            topic=topic, default_topic="TBW102", read_queue_nums=queues,
            write_queue_nums=queues, perm=6, topic_filter_type="SINGLE_TAG",
        )  # fmt: skip
        await self._ask_broker(Command(code=header.CODE, fields=header.to_fields()))

    async def send(
        self, *bodies: bytes, topic: str = "T", queue_id: int = 0, flags: int = 0
    ) -> None:
        """Each has its number as a property too."""
        requests = []
        for number, body in enumerate(bodies):
            header = SendMessage(
                producer_group="p", topic=topic, default_topic="TBW102",
                default_topic_queue_nums=4, queue_id=queue_id, sys_flag=flags, born_timestamp=1,
                flag=0,
                properties=properties.encode({"number": str(number)}),
            )  # fmt: skip
            fields = header.to_fields(letters=True)
            requests.append(Command(code=RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))
        for start in range(0, len(requests), 500):
            await asyncio.gather(*map(self._ask_broker, requests[start : start + 500]))

    async def _ask_broker(self, request: Command) -> Command:
        answer = await self.broker.ask(request, PATIENCE)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def upload(
        self,
        text: str,
        name: str,
        *,
        group: str = "G",
        topic: str = "T",
        crc: int | None = None,
        secret: str | None = None,
        peer: Peer | None = None,
    ) -> Command:
        body = text.encode()
        header = RegisterFilterClass(
            consumer_group=group,
            topic=topic,
            class_name=name,
            class_crc=crc32(body) & 0x7FFFFFFF if crc is None else crc,
            tamis_secret=secret,
        )
        request = Command(code=header.CODE, fields=header.to_fields(), body=body)
        return await (peer or self.server).ask(request, PATIENCE)

    async def pull(
        self,
        offset: int,
        *,
        group: str = "G",
        topic: str = "T",
        queue_id: int = 0,
        most: int = 32,
        hold: float = 0.0,
        commit: int | None = None,
    ) -> "Answer":
        flags = PullFlag.CLASS_FILTER
        flags |= PullFlag.SUSPEND if hold else PullFlag(0)
        flags |= PullFlag.COMMIT_OFFSET if commit is not None else PullFlag(0)
        header = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=flags,
            commit_offset=commit or 0,
            suspend_timeout_millis=int(hold * 1000),
            sub_version=1,
        )
        request = Command(code=header.CODE, fields=header.to_fields())
        return Answer(await self.server.ask(request, PATIENCE))

    async def consume(self, offset: int = 0, **options: Any) -> "tuple[list[bytes], int]":
        """All there is, as a consumer does that goes where it is told; and up to where."""
        bodies = list[bytes]()
        while True:
            answer = await self.pull(offset, **options)
            assert answer.code in (0, 19, 20), (answer.code, answer.remark)
            bodies += answer.bodies
            assert answer.following >= offset
            offset = answer.following
            if answer.code == 19:
                return bodies, offset


class Answer:
    """Of a filter server to a pull."""

    def __init__(self, command: Command) -> None:
        self.code = command.code
        self.remark = command.remark or ""
        fields = command.fields or {}
        self.following = int(fields.get("nextBeginOffset", -1))
        self.min_offset = int(fields.get("minOffset", -1))
        self.max_offset = int(fields.get("maxOffset", -1))
        self.suggested = int(fields.get("suggestWhichBrokerId", -1))
        self.records = command.body
        messages = []
        at = 0
        while at < len(command.body):
            size = int.from_bytes(command.body[at : at + 4])
            messages.append(record.decode(command.body[at : at + size]))
            at += size
        self.messages = messages

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def offsets(self) -> list[int]:
        return [message.queue_offset for message in self.messages]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
