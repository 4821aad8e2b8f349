"""The lines `tamis send` reads: JSON objects, or plain bodies, to messages.

What a line does not say, the options do. A line that can't become a message raises InvalidMessage,
which says what is wrong with it; nothing is sent from here.
"""

import base64
import binascii
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidMessage

if TYPE_CHECKING:
    from ..message import Message

__all__ = ["Line", "LineParser"]

# Fields that `tamis consume` prints and `tamis send` ignores: where a message was is not where it
# goes.
_PLACE: Final = frozenset(
    [
        *("topic", "broker", "queue", "offset", "message_id", "offset_message_id", "status"),
        *("born", "stored", "reconsume_times", "system"),
    ]
)


@dataclass(slots=True)
class Line:
    """A message, the number of its input line (0 for the command line's), and the sharding key."""

    number: int
    message: "Message"
    key: str | None


class LineParser:
    """Makes messages of lines; the options fill in what a line does not say."""

    def __init__(self, topic: str, options: dict[str, Any]) -> None:
        self._topic = topic
        self.is_text: bool = options["text"]
        self._key: str | None = options["sharding_key"]
        self._tags: str | None = options["tags"]
        self._keys: tuple[str, ...] = options["keys"]
        self._delay_level: int = options["delay_level"]
        self._properties = dict(_pair(text) for text in options["pairs"])

    def line(self, number: int, line: bytes) -> Line:
        """Returns the message of a line. Raises InvalidMessage."""
        from ..message import Message

        body = line if number == 0 or self.is_text else b""
        made = Message(
            self._topic,
            body,
            tags=self._tags,
            keys=self._keys,
            properties=self._properties,
            delay_level=self._delay_level,
        )
        if number == 0 or self.is_text:
            return Line(number, made, self._key)
        said = _object(line)
        topic = _taken(said, "topic", str, None)
        if self._topic == "-" and topic is None:
            raise InvalidMessage('it has no "topic"')
        keys = _taken(said, "keys", (str, list), list(self._keys))
        if isinstance(keys, list) and not all(isinstance(one, str) for one in keys):
            raise InvalidMessage(f'"keys" is {json.dumps(keys)}: each is text')
        properties = _taken(said, "properties", dict, {})
        key = _taken(said, "key", (str, int), self._key)
        made = replace(
            made,
            topic=topic if self._topic == "-" else self._topic,
            body=_body(said),
            tags=_taken(said, "tags", str, self._tags),
            keys=keys,
            properties={
                **self._properties,
                **{name: _value(name, value) for name, value in properties.items()},
            },
            delay_level=_taken(said, "delay_level", int, self._delay_level),
            flag=_taken(said, "flag", int, 0),
        )
        if unknown := sorted(set(said) - _PLACE):
            raise InvalidMessage(f"{', '.join(map(json.dumps, unknown))}: there is no such field")
        return Line(number, made, None if key is None else str(key))


def _checked(text: str) -> str:
    """Returns the text. Raises InvalidMessage if UTF-8 can't encode it, though JSON can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{json.dumps(text)} has half a surrogate pair in it") from None
    return text


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
        _checked(json.dumps(said, ensure_ascii=False))
    except ValueError as error:  # no JSON, or no UTF-8
        raise InvalidMessage(f"it is no JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage("it is nested too deeply") from None
    if not isinstance(said, dict):
        raise InvalidMessage('it is no object: write {"body": ...}')
    return said


def _body(said: dict[str, Any]) -> bytes:
    text = _taken(said, "body", str, None)
    coded = _taken(said, "body_base64", str, None)
    if (text is None) == (coded is None):
        raise InvalidMessage('it needs "body", which is text, or "body_base64"')
    if coded is None:
        return _checked(str(text)).encode()
    try:
        return base64.b64decode(coded, validate=True)
    except binascii.Error as error:
        raise InvalidMessage(f'"body_base64": {error}') from None


def _taken(said: dict[str, Any], name: str, kind: Any, default: Any) -> Any:
    """Takes a field out of the object; null counts as missing."""
    value = said.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {str: "text", int: "a whole number", dict: "an object"}.get(kind, "text, or else")
        raise InvalidMessage(f'"{name}" is {json.dumps(value)}: it is {wanted}')
    return value


def _value(name: str, value: object) -> str:
    """Returns a property's value as text; a number or a boolean stays as it is written."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise InvalidMessage(f"property {name} is {json.dumps(value)}: it is text")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--property")
    return name, value
