"""The frames recorded from RocketMQ, and what is declared to be in them."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tamis.wire import bodies, command, headers
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.frame import Frame, FrameReader
from tamis.wire.headers import Header

FOLDER = Path(__file__).parents[1] / "golden" / "frames"


class Golden(NamedTuple):
    name: str
    line: dict[str, Any]
    raw: bytes

    @property
    def frame(self) -> Frame:
        (only,) = FrameReader().feed(self.raw)
        return only

    @property
    def command(self) -> Command:
        return command.decode(self.frame)


@cache
def golden_frames() -> tuple[Golden, ...]:
    found = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            raw = base64.b64decode(line["frame"])
            found.append(Golden(f"{path.stem}-{line['seq']}-{line['code']}", line, raw))
    return tuple(found)


class Shape(NamedTuple):
    """Of a request and its answer: the header, and the body where it is JSON."""

    header: type[Header] | None = None
    letters: bool = False
    body: Any = None
    answer: type[Header] | None = None
    answer_body: Any = None


SHAPES = {
    RequestCode.PULL_MESSAGE: Shape(headers.PullMessage, answer=headers.PullMessageResponse),
    RequestCode.QUERY_MESSAGE: Shape(headers.QueryMessage, answer=headers.QueryMessageResponse),
    RequestCode.QUERY_CONSUMER_OFFSET: Shape(
        headers.QueryConsumerOffset, answer=headers.OffsetResponse
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Shape(headers.UpdateConsumerOffset),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Shape(headers.CreateTopic),
    RequestCode.GET_BROKER_RUNTIME_INFO: Shape(answer_body=bodies.KvTable),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Shape(
        headers.SearchOffset, answer=headers.OffsetResponse
    ),
    RequestCode.GET_MAX_OFFSET: Shape(headers.OfQueue, answer=headers.OffsetResponse),
    RequestCode.GET_MIN_OFFSET: Shape(headers.OfQueue, answer=headers.OffsetResponse),
    RequestCode.VIEW_MESSAGE_BY_ID: Shape(headers.ViewMessage),
    RequestCode.HEART_BEAT: Shape(body=bodies.Heartbeat),
    RequestCode.UNREGISTER_CLIENT: Shape(headers.UnregisterClient),
    RequestCode.CONSUMER_SEND_MSG_BACK: Shape(headers.SendMessageBack),
    RequestCode.END_TRANSACTION: Shape(headers.EndTransaction),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Shape(
        headers.OfConsumerGroup, answer_body=bodies.ConsumerIds
    ),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Shape(headers.OfConsumerGroup),
    RequestCode.CHECK_CLIENT_CONFIG: Shape(body=bodies.CheckClientConfig),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Shape(headers.GetRoute, answer_body=bodies.TopicRoute),
    RequestCode.GET_TOPIC_STATS_INFO: Shape(headers.OfTopic, answer_body=bodies.TopicStats),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Shape(
        headers.OfConsumerGroup, answer_body=bodies.ConsumerConnection
    ),
    RequestCode.SEND_MESSAGE_V2: Shape(
        headers.SendMessage, letters=True, answer=headers.SendMessageResponse
    ),
    RequestCode.SEND_BATCH_MESSAGE: Shape(
        headers.SendMessage, letters=True, answer=headers.SendMessageResponse
    ),
}
NO_REQUEST_CODE = 9999  # asked for on purpose, in errors.jsonl
