"""Filter servers that do what a sound one would not: forget, refuse, fail, hang up, stay silent.

It speaks the real protocol (301 to the broker, 302 and 11 to clients) and filters by a function of
the test, so that what a client makes of its answers can be seen without a sandbox.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from broker.asking import ask, close, command
from client.targets import Cluster

from tamis.message import StoredMessage
from tamis.net.aio import Peer, connect
from tamis.net.server import Answer, Request, Result, Route, Server
from tamis.wire import beans, record
from tamis.wire.bodies import TopicRoute
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import (
    GetRoute,
    PullMessage,
    PullMessageResponse,
    RegisterFilterClass,
    RegisterFilterServer,
)

__all__ = ["StubServer", "named", "stubs"]

Key = tuple[str, str]  # topic, group

_FOUND = int(ResponseCode.SUCCESS)
_NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY


class StubServer:
    """`answer_upload` and `answer_pull` may answer in place of it: None for what is usual."""

    def __init__(self, cluster: Cluster, match: Callable[[StoredMessage], bool]) -> None:
        self.match = match
        self.address = ""
        self.uploads: list[tuple[RegisterFilterClass, bytes]] = []
        self.pulls: list[PullMessage] = []
        self.others: list[int] = []  # codes of requests it was not made for
        self.classes: dict[Key, int] = {}
        self.answer_upload: Callable[[], Answer | None] = lambda: None
        self.answer_pull: Callable[[PullMessage], Answer | None] = lambda header: None
        self.is_silent = False
        self._cluster = cluster
        self._broker: Peer | None = None
        self._registered: Peer | None = None
        self._server: Server | None = None
        self._port = 0

    async def start(self) -> None:
        """On the port it had before, if it had one."""
        self._server = Server(
            {
                RequestCode.REGISTER_MESSAGE_FILTER_CLASS: Route(RegisterFilterClass, self._upload),
                RequestCode.PULL_MESSAGE: Route(PullMessage, self._pull),
                RequestCode.HEART_BEAT: Route(None, self._other),
                RequestCode.UNREGISTER_CLIENT: Route(None, self._other),
            }
        )
        self._port = await self._server.start("127.0.0.1", self._port)
        self.address = f"127.0.0.1:{self._port}"
        self._broker = await connect(self._cluster.broker)

    async def register(self) -> None:
        """The broker names it when it next speaks to the name server: see `named`."""
        self._registered = await connect(self._cluster.broker)
        await ask(self._registered, command(RegisterFilterServer(filter_server_addr=self.address)))

    async def leave(self) -> None:
        """The broker forgets it at once."""
        if self._registered is not None:
            await close(self._registered)
            self._registered = None

    async def stop(self) -> None:
        """It forgets its classes, as a process that ends."""
        if self._server is not None:
            for peer in list(self._server.peers):
                peer.abort()
            await self._server.close()
            self._server = None
        self.classes.clear()
        if self._broker is not None:
            await close(self._broker)
            self._broker = None

    def hang_up(self) -> None:
        assert self._server is not None
        for peer in list(self._server.peers):
            peer.abort()

    def _other(self, header: None, request: Request) -> Answer:
        self.others.append(request.command.code)
        return Answer()

    def _upload(self, header: RegisterFilterClass, request: Request) -> Answer | None:
        self.uploads.append((header, request.body))
        if self.is_silent:
            return None
        answer = self.answer_upload()
        if answer is None or answer.code == _FOUND:
            self.classes[header.topic, header.consumer_group] = header.class_crc
        return answer or Answer()

    def _pull(self, header: PullMessage, request: Request) -> Result:
        self.pulls.append(header)
        if self.is_silent:
            return None
        if (header.topic, header.consumer_group) not in self.classes:
            # Apache's words
            return Answer(code=1, remark="Find Filter class failed, has not registered")
        answer = self.answer_pull(header)
        if answer is not None:
            return answer
        return self._filtered(header)

    async def _filtered(self, header: PullMessage) -> Answer:
        assert self._broker is not None
        fields = PullMessage(
            consumer_group="FILTERSRV_CONSUMER",
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            max_msg_nums=header.max_msg_nums,
            sys_flag=int(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION),
            suspend_timeout_millis=500,
            subscription="*",
            expression_type="TAG",
        ).to_fields()
        request = Command(code=RequestCode.PULL_MESSAGE, fields=fields)
        answer = await self._broker.ask(request, 20)
        head = PullMessageResponse.from_fields(answer.fields or {})
        if answer.code != _FOUND:
            return Answer(head, code=answer.code, remark=answer.remark)
        kept = b"".join(one for one in _records(answer.body) if self.match(record.decode(one)))
        return Answer(head, kept) if kept else Answer(head, code=_NO_MATCH)


def _records(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = record.record_size(body, at)
        yield body[at : at + size]
        at += size


@asynccontextmanager
async def stubs(
    cluster: Cluster, count: int, match: Callable[[StoredMessage], bool]
) -> AsyncIterator[list[StubServer]]:
    """So many, registered with the broker."""
    made = [StubServer(cluster, match) for _ in range(count)]
    try:
        for one in made:
            await one.start()
            await one.register()
        yield made
    finally:
        for one in made:
            await one.leave()
            await one.stop()


async def named(cluster: Cluster, topic: str, *addresses: str) -> None:
    """Wait until the route of a topic names just these filter servers. The broker is made to speak
    to the name server by the making of another topic."""
    nameserver = await connect(cluster.nameserver)
    request = command(GetRoute(topic=topic, accept_standard_json_only=True))
    seen: object = None
    deadline = asyncio.get_running_loop().time() + 20
    while seen != sorted(addresses):
        assert asyncio.get_running_loop().time() < deadline, f"{seen}, not {addresses}"
        await cluster.create_topic("Other", queues=1)
        route = beans.decode(TopicRoute, (await nameserver.ask(request, 20)).body)
        seen = sorted(route.filter_servers.get(cluster.broker, []))
    await close(nameserver)
