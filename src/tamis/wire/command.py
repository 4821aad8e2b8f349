"""A command: one request or answer, in either encoding of its header.

The JSON one is standard JSON here; what Java's fastjson adds to JSON is found in bodies only, see
`fastjson`. Other clients write numbers and booleans where Java writes strings:
fields are strings to us, whatever they were.
"""

import reprlib
import struct
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ..errors import LocalProtocolError, RemoteProtocolError
from ..java import decode_utf8
from .codes import VERSION, CommandFlag, Language
from .frame import Encoding, Frame, frame

__all__ = ["Command", "Fields", "decode", "encode"]

Fields = dict[str, str]
_MOST_FIELDS: Final = 4096  # of a header: RocketMQ's have up to 20
_RESPONSE, _ONEWAY = int(CommandFlag.RESPONSE), int(CommandFlag.ONEWAY)  # plain: they are hot


@dataclass(slots=True, kw_only=True)
class Command:
    """`fields` are the header's own (`extFields`); None and empty are told apart as Java does."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: Fields | None = None
    body: bytes = b""
    remark: str | None = None
    language: Language = Language.JAVA
    version: int = VERSION
    encoding: Encoding = Encoding.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & _ONEWAY)


def decode(raw: Frame) -> Command:
    """Raises RemoteProtocolError."""
    if raw.encoding is Encoding.JSON:
        return _decode_json(raw.header, raw.body)
    return _decode_binary(raw.header, raw.body)


def encode(command: Command, opaque: int | None = None) -> bytes:
    """The whole frame, with another `opaque` if one is given. Raises LocalProtocolError for what
    its header can't hold."""
    opaque = command.opaque if opaque is None else opaque
    try:
        if command.encoding is Encoding.JSON:
            header = orjson.dumps(_to_json(command, opaque))
        else:
            header = _encode_binary(command, opaque)
    except (struct.error, TypeError, ValueError) as error:
        raise LocalProtocolError(f"a header that can't be written: {error}") from None
    return frame(command.encoding, header, command.body)


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        found = orjson.loads(header)
        fields = found.get("extFields")
        if fields is not None:
            if len(fields) > _MOST_FIELDS:
                raise ValueError(f"{len(fields)} fields: it takes up to {_MOST_FIELDS}")
            for value in fields.values():
                if type(value) is not str:
                    fields = _as_strings(fields)
                    break
        return Command(
            code=_int(found["code"]),
            opaque=_int(found.get("opaque", 0)),
            flag=_int(found.get("flag", 0)),
            fields=fields,
            body=body,
            remark=_text_of(found.get("remark")),
            language=_LANGUAGES.get(found.get("language"), Language.OTHER),
            version=_int(found.get("version", 0)),
        )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"a JSON header that can't be read: {error!r}") from None


def _int(value: object) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise ValueError(f"{reprlib.repr(value)} for a number of 32 bits")
    return value


def _as_strings(fields: dict[str, Any]) -> Fields:
    made = Fields()
    for name, value in fields.items():
        if (text := _text_of(value)) is not None:
            made[name] = text
    return made


def _text_of(value: Any) -> str | None:
    """A string; of any other value, its JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _to_json(command: Command, opaque: int) -> dict[str, object]:
    made: dict[str, object] = {"code": command.code}
    if command.fields is not None:
        made["extFields"] = command.fields
    made["flag"] = command.flag
    made["language"] = command.language.name
    made["opaque"] = opaque
    if command.remark is not None:
        made["remark"] = command.remark
    made["serializeTypeCurrentRPC"] = "JSON"
    made["version"] = command.version
    return made


_LANGUAGES: Final[dict[object, Language]] = {  # fastjson takes an enum's number too
    key: language for language in Language for key in (language.name, int(language))
}

_FIXED: Final = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of remark
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _text(header, at, remark_size)
        (fields_size,) = _INT.unpack_from(header, at)
        at += 4
        if not 0 <= fields_size <= len(header) - at:
            raise ValueError(f"{fields_size} bytes of fields in a header of {len(header)}")
        fields: Fields | None = {} if fields_size else None
        end, count = at + fields_size, 0
        while fields is not None and at < end:
            count += 1
            if count > _MOST_FIELDS:
                raise ValueError(f"more than {_MOST_FIELDS} fields")
            (name_size,) = _SHORT.unpack_from(header, at)
            name, at = _text(header, at + 2, name_size)
            (value_size,) = _INT.unpack_from(header, at)
            value, at = _text(header, at + 4, value_size)
            if name is not None and value is not None:
                fields[name] = value
        if at > end:
            raise ValueError("fields that are longer than they say")
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"a binary header that can't be read: {error}") from None
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        fields=fields,
        body=body,
        remark=remark,
        language=_LANGUAGES.get(language, Language.OTHER),
        version=version,
        encoding=Encoding.ROCKETMQ,
    )


def _text(header: bytes, at: int, size: int) -> tuple[str | None, int]:
    """Of no bytes: None, as Java has it."""
    end = at + size
    if not at <= end <= len(header):
        raise ValueError(f"{size} bytes of text in a header of {len(header)}")
    return (decode_utf8(header[at:end]) if size else None), end


def _encode_binary(command: Command, opaque: int) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    fields = bytearray()
    for name, value in (command.fields or {}).items():
        name_, value_ = name.encode(), value.encode()
        fields += _SHORT.pack(len(name_)) + name_ + _INT.pack(len(value_)) + value_
    return b"".join(
        (
            _FIXED.pack(
                command.code,
                command.language,
                command.version,
                opaque,
                command.flag,
                len(remark),
            ),
            remark,
            _INT.pack(len(fields)),
            fields,
        )
    )
