"""Requests as a client makes them, and how tests wait for what they lead to."""

import asyncio
import time
from collections.abc import Callable, Iterator

from tamis.message import StoredMessage
from tamis.net.aio import Peer
from tamis.wire import beans, properties, record
from tamis.wire.bodies import TopicRoute
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding
from tamis.wire.headers import CreateTopic, GetRoute, Header, PullMessage, SendMessage, ViewMessage

PATIENCE = 20.0  # seconds


class Refused(Exception):
    def __init__(self, request: int, answer: Command) -> None:
        super().__init__(f"request {request}: {answer.code} {answer.remark}")
        self.code = answer.code


def command(
    header: Header | None, code: int = 0, body: bytes = b"", encoding: Encoding = Encoding.JSON
) -> Command:
    code = code or (header.CODE if header is not None else 0)
    letters = code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    fields = header.to_fields(letters=letters) if header is not None else None
    return Command(code=code, fields=fields, body=body, encoding=encoding)


async def ask(peer: Peer, request: Command, timeout: float = PATIENCE) -> Command:
    """Raises Refused, ConnectionError or TimeoutError."""
    answer = await peer.ask(request, timeout)
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(request.code, answer)
    return answer


def send_request(
    topic: str,
    queue_id: int,
    body: bytes,
    more: dict[str, str] | None = None,
    *,
    encoding: Encoding = Encoding.JSON,
    queues: int = 4,
) -> Command:
    header = SendMessage(
        producer_group="load",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=properties.encode(more or {}),
    )
    return command(header, RequestCode.SEND_MESSAGE_V2, body, encoding)


def pull_request(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    hold: float = 0.0,
    commit: bool = False,
    expression: str | None = "*",
    expression_type: str = "TAG",
) -> Command:
    """Without an expression it is the group's."""
    flags = PullFlag.SUSPEND if hold else PullFlag(0)
    flags |= PullFlag.COMMIT_OFFSET if commit else PullFlag(0)
    flags |= PullFlag.SUBSCRIPTION if expression is not None else PullFlag(0)
    header = PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=flags,
        commit_offset=offset,
        suspend_timeout_millis=int(hold * 1000),
        subscription=expression,
        sub_version=0 if expression is not None else 1,
        expression_type=expression_type,
    )
    return command(header)


async def create_topic(peer: Peer, topic: str, queues: int) -> None:
    header = CreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    await ask(peer, command(header))


async def view(peer: Peer, message_id: str) -> StoredMessage:
    header = ViewMessage(offset=int(message_id[-16:], 16))
    return record.decode((await ask(peer, command(header))).body)


async def route(nameserver: Peer, topic: str) -> TopicRoute:
    header = GetRoute(topic=topic, accept_standard_json_only=True)
    return beans.decode(TopicRoute, (await ask(nameserver, command(header))).body)


def messages_of(body: bytes) -> Iterator[StoredMessage]:
    at = 0
    while at < len(body):
        yield record.decode(body, at)
        at += record.record_size(body, at)


async def until(
    condition: Callable[[], bool], state: Callable[[], object], patience: float = PATIENCE
) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {patience:g} s: {state()}"
        await asyncio.sleep(0.01)


async def close(peer: Peer) -> None:
    peer.close()
    await until(lambda: peer.is_closed, lambda: f"{peer} is open")
