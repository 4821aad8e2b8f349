"""What `tamis consume` prints of a message: JSON, its body, or what a template says."""

import base64
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidMessage

if TYPE_CHECKING:
    from ..client import ReceivedMessage

__all__ = ["shower"]


def shower(form: str) -> "Callable[[ReceivedMessage], bytes]":
    if form == "json":
        return _json_line
    if form == "text":
        return lambda message: message.body + b"\n"
    parts = list(_parts(form))
    return lambda message: b"".join(
        part if isinstance(part, bytes) else part(message) for part in parts
    )


def _json_line(message: "ReceivedMessage") -> bytes:
    fields: dict[str, Any] = {"topic": message.topic}
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    if message.tags:
        fields["tags"] = message.tags
    if message.keys:
        fields["keys"] = message.keys
    if message.flag:
        fields["flag"] = message.flag
    fields |= {
        "properties": _own(message),
        "system": {n: v for n, v in message.properties.items() if not _is_own(n, v)},
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "born": message.born_timestamp,
        "stored": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
    }
    return json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def _own(message: "ReceivedMessage") -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if _is_own(name, value)}


def _is_own(name: str, value: str) -> bool:
    """The sender's, not RocketMQ's; a blank one could not be sent again."""
    return bool(value.strip()) and _can_be_sent(name)


@lru_cache(1024)
def _can_be_sent(name: str) -> bool:
    from ..message import Message

    try:
        Message("", b"", properties={name: "x"})
    except InvalidMessage:
        return False
    return True


_DIRECTIVES: "Final[dict[str, Callable[[ReceivedMessage], str | bytes]]]" = {
    "t": lambda message: message.topic,
    "B": lambda message: message.queue.broker_name,
    "q": lambda message: str(message.queue.queue_id),
    "o": lambda message: str(message.offset),
    "i": lambda message: message.message_id,
    "T": lambda message: message.tags or "",
    "k": lambda message: " ".join(message.keys),
    "b": lambda message: message.body,
    "p": lambda message: json.dumps(_own(message), ensure_ascii=False),
    "r": lambda message: str(message.reconsume_times),
    "s": lambda message: _time(message.store_timestamp),
    "%": lambda message: "%",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def _parts(form: str) -> "Iterable[bytes | Callable[[ReceivedMessage], bytes]]":
    """Raises click.BadParameter."""
    if "%" not in form:
        raise click.BadParameter(
            f"'{form}' is none of json and text, and no template: there is no % in it",
            param_hint="--format",
        )
    at = 0
    while at < len(form):
        one, following = form[at], form[at + 1 : at + 2]
        if one == "\\" and following in _ESCAPES:
            yield _ESCAPES[following].encode()
            at += 2
        elif one != "%":
            yield one.encode()
            at += 1
        elif following == "{" and (end := form.find("}", at)) > 0:
            yield _property(form[at + 2 : end])
            at = end + 1
        elif following in _DIRECTIVES:
            yield _encoded(_DIRECTIVES[following])
            at += 2
        else:
            why = f"there is no %{following}"
            if following == "{":
                why = f"{form[at:]} has no }}"
            elif not following:
                why = "a % at its end: write %% for a percent sign"
            raise click.BadParameter(why, param_hint="--format")


def _property(name: str) -> "Callable[[ReceivedMessage], bytes]":
    return lambda message: message.properties.get(name, "").encode()


def _encoded(
    shown: "Callable[[ReceivedMessage], str | bytes]",
) -> "Callable[[ReceivedMessage], bytes]":
    def encode(message: "ReceivedMessage") -> bytes:
        text = shown(message)
        return text if isinstance(text, bytes) else text.encode(errors="surrogatepass")

    return encode


def _time(milliseconds: int) -> str:
    """As --from takes it."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat("T", "milliseconds")
