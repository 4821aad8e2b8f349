"""Every exception Tamis raises on purpose.

    Error
    ├── ProtocolError
    │   ├── LocalProtocolError   we broke the rules: a bug of the caller
    │   └── RemoteProtocolError  the peer did: its connection is of no more use
    ├── ResponseError            a request was refused: .code .remark .retriable
    │   ├── TopicNotFound, NoPermission, GroupNotFound, ConsumerOffline, SystemBusy, ...
    │   └── AccessDenied         a NoPermission: of the broker's access control: .access_key
    ├── Unreachable              nobody answers at an address: also a ConnectionError
    ├── SendFailed               no attempt to send succeeded: .attempts .tried .cause
    ├── SubscriptionMismatch     members of a group want different messages
    ├── ClientClosed             a producer or consumer that is not running was used
    ├── InvalidMessage           a message that can't be sent: also a ValueError
    ├── FilterError
    │   ├── InvalidFilter        the text does not compile: .text .position .reason .hint
    │   │   ├── FilterSyntaxError    it is not an expression of the language
    │   │   └── FilterTypeError      it is, but RocketMQ (or strict mode) refuses its operands
    │   ├── FilterValueError     a message's value can't be compared; seen while evaluating
    │   └── CodeError            a filter in code can't be used: .name .reason
    ├── SandboxError             a filter in code broke a limit, or none can be enforced: .reason
    ├── StoreError
    │   └── CorruptRecord        .file .offset .reason
    │       └── UnreadableMessage    .topic .broker .queue_id .offset .message_id .reason
    ├── DataLoss                 messages to be read are gone: .queue .wanted .stop .first
    └── ConfigError              a setting out of its range
        └── InvalidName          of a topic or group

Facts are arguments; the sentence is built in `__str__`.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

__all__ = [
    "AccessDenied",
    "ClientClosed",
    "CodeError",
    "ConfigError",
    "ConsumerOffline",
    "CorruptRecord",
    "DataLoss",
    "Error",
    "FilterError",
    "FilterSyntaxError",
    "FilterTypeError",
    "FilterValueError",
    "GroupNotFound",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidName",
    "LocalProtocolError",
    "NoPermission",
    "NotFound",
    "ProtocolError",
    "RemoteProtocolError",
    "ResponseError",
    "SandboxError",
    "SendFailed",
    "ServerFault",
    "ServiceUnavailable",
    "StoreError",
    "SubscriptionMismatch",
    "SystemBusy",
    "TopicNotFound",
    "Unreachable",
    "UnreadableMessage",
    "place",
]


def place(text: str, position: int) -> str:
    """Where that is, for a person: the column, from 1, and the line if there are several."""
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    if "\n" not in text:
        return f"column {column}"
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {column}"


class Error(Exception):
    """The root: `except tamis.errors.Error` catches all of ours and nothing else."""


class ConfigError(Error):
    """A setting has a value it can't have."""


class InvalidName(ConfigError):
    """A topic or a group can't be called so."""

    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(what, name, reason)
        self.what = what
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        shown = self.name if len(self.name) <= 40 else self.name[:39] + "…"
        return f"{shown!r} can't be the name of a {self.what}: {self.reason}"


class ProtocolError(Error):
    """The rules of the wire were broken."""


class LocalProtocolError(ProtocolError):
    """By us: a command that can't be sent."""


class RemoteProtocolError(ProtocolError):
    """By the peer: bytes that are no frame, a header that can't be read."""


class ResponseError(Error):
    """A request was answered with a code other than success. A server raises it to answer so.

    `retriable`: another broker, or the same one later, may well say yes (RocketMQ's
    `retryResponseCodes`).
    """

    CODE: ClassVar[int | None] = None
    retriable: ClassVar[bool] = False

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    @staticmethod
    def of(code: int, remark: str | None, access_key: str | None = None) -> "ResponseError":
        """Of the class that stands for the code. `access_key` is the one the request had."""
        if remark and code in _OF_ACL and (found := _ACL_REMARK.search(remark)):
            refusal = _SECRET.sub(r"\1****", found[1].strip())
            return AccessDenied(code, refusal, access_key)
        return _BY_CODE.get(code, ResponseError)(code, remark or "no reason was given")

    def __str__(self) -> str:
        return f"{self.remark} (code {int(self.code)})"


class ServerFault(ResponseError):
    """Whatever went wrong at the server."""

    CODE = 1
    retriable = True


class SystemBusy(ResponseError):
    """It has too much to do. Sending at once again would make it worse: not retried by itself."""

    CODE = 2


class ServiceUnavailable(ResponseError):
    """It is stopping, or its disk is full."""

    CODE = 14
    retriable = True


class NoPermission(ResponseError):
    """The topic, the broker or the group forbids it."""

    CODE = 16
    retriable = True


class AccessDenied(NoPermission):
    """The broker's access control refuses what this key, or no key at all, asked for.

    `refusal` is its own sentence. 4.9's brokers answer so with the code of a fault, with the
    exception's name in the remark; trying again does not help.
    """

    retriable = False

    def __init__(self, code: int, refusal: str, access_key: str | None = None) -> None:
        super().__init__(code, refusal)
        self.args = (code, refusal, access_key)
        self.refusal = refusal
        self.access_key = access_key
        self.remark = self._explained()

    def _explained(self) -> str:
        who = "no access key was used" if self.access_key is None else f"key {self.access_key}"
        return f"access denied: {self.refusal} ({who}): {self._advice()}"

    def _advice(self) -> str:
        said, key = self.refusal.lower(), self.access_key
        if key is None:
            return (
                "set access_key and secret_key, TAMIS_ACCESS_KEY and TAMIS_SECRET_KEY or a profile"
            )
        if "signature" in said:
            return "the secret key is not the one that the broker has for it"
        if "no acl config" in said or "no plainaccessresource" in said:
            return "the broker does not know it: check the spelling, or have it added there"
        if "admin permission" in said:
            return "have it made an admin of the broker, or use a key that is one"
        return "who runs the broker can allow it, in its plain_acl.yml"


class TopicNotFound(ResponseError):
    """No broker, or not this one, has the topic."""

    CODE = 17
    retriable = True


class NotFound(ResponseError):
    """There is no such message, offset or key."""

    CODE = 22


class GroupNotFound(ResponseError):
    """The broker does not know the group, and may not make it."""

    CODE = 26


class ConsumerOffline(ResponseError):
    """No member of the group is connected."""

    CODE = 206


_OF_ACL: Final = (1, 16)  # 4.9 answers with a fault, others with the lack of a permission
# After the exception, 4.9 says where it was raised.
_ACL_REMARK: Final = re.compile(
    r"\bAclException: (.*?)(?:, org\.apache\.rocketmq\.[\w.$<>]+\([^()]*\))?$", re.DOTALL
)
_SECRET: Final = re.compile(r"(secretKey=)\S+")  # 4.9 quotes one that it finds too short
_BY_CODE: Final = {one.CODE: one for one in ResponseError.__subclasses__()}


class Unreachable(Error, ConnectionError):
    """Nobody could be talked to at any of the addresses."""

    def __init__(self, what: str, address: str, reason: str) -> None:
        super().__init__(what, address, reason)
        self.what = what
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"the {self.what} at {self.address} can't be reached: {self.reason}"


class SendFailed(Error):
    """All attempts failed; `cause` is what the last one met, `tried` the brokers."""

    def __init__(self, topic: str, tried: Sequence[str], seconds: float, cause: Exception) -> None:
        super().__init__(topic, tried, seconds, cause)
        self.topic = topic
        self.tried = tuple(tried)
        self.seconds = seconds
        self.cause = cause
        self.results: list[Any] = []  # of a batch: a SendResult each, None for those not sent

    @property
    def attempts(self) -> int:
        return len(self.tried)

    def __str__(self) -> str:
        why = str(self.cause) or type(self.cause).__name__
        if not self.tried:
            return f"topic {self.topic}: not sent: {why}"
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        where = ", ".join(dict.fromkeys(self.tried))
        return (
            f"topic {self.topic}: not sent, tried {times} in {self.seconds:.1f} s ({where}): {why}"
        )


class SubscriptionMismatch(Error):
    """Another member of the group holds another filter for the topic: messages would be lost."""

    def __init__(self, group: str, topic: str, ours: str, theirs: str, member: str) -> None:
        super().__init__(group, topic, ours, theirs, member)
        self.group = group
        self.topic = topic
        self.ours = ours
        self.theirs = theirs
        self.member = member

    def __str__(self) -> str:
        return (
            f"group {self.group}: this member subscribes to {self.topic} with {self.ours}, member"
            f" {self.member} with {self.theirs}: give all members of a group the same"
            " subscriptions, or messages are lost; RocketMQ's brokers keep one of them for both"
        )


class ClientClosed(Error):
    """It was not started, or it is closed."""

    def __init__(self, what: str, *, started: bool) -> None:
        super().__init__(what, started)
        self.what = what
        self.started = started

    def __str__(self) -> str:
        if self.started:
            return f"the {self.what} is closed: make a new one"
        return f"the {self.what} is not started: use `with` or `async with`, or its start() first"


class InvalidMessage(Error, ValueError):
    """A message RocketMQ would not take."""


class FilterError(Error):
    """A filter could not be compiled or could not give an answer."""


class InvalidFilter(FilterError):
    """The text does not compile. `position` is an index into `text`, from 0."""

    def __init__(self, text: str, position: int, reason: str, hint: str | None = None) -> None:
        super().__init__(text, position, reason, hint)
        self.text = text
        self.position = position
        self.reason = reason
        self.hint = hint

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    @property
    def column(self) -> int:
        """Counted from 1 within its line, as editors do."""
        return self.position - (self.text.rfind("\n", 0, self.position) + 1) + 1

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place(self.text, self.position)}: {self.reason}{hint}"

    def picture(self) -> str:
        """The line of text concerned, and under it a mark at the column."""
        line = self.text.split("\n")[self.line - 1]
        indent = "".join("\t" if c == "\t" else " " for c in line[: self.column - 1])
        return f"{line}\n{indent}^"


class FilterSyntaxError(InvalidFilter):
    """The text is not an expression of the language."""


class FilterTypeError(InvalidFilter):
    """The expression reads well but its operands can't go together."""


class FilterValueError(FilterError):
    """A value met in a message can't be compared as the expression asks.

    For RocketMQ such a message does not match, whatever the rest of the expression says, unless a
    short circuit kept it from being looked at. `java_class` is what its engine throws.
    """

    def __init__(self, value: object, wanted: str, java_class: str = "RuntimeException") -> None:
        super().__init__(value, wanted, java_class)
        self.value = value
        self.wanted = wanted
        self.java_class = java_class

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 60:
            shown = shown[:57] + "…" + shown[-1]
        return f"{shown} can't be read as {self.wanted}"


class CodeError(FilterError):
    """A filter in code can't be used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"code {self.name}: {self.reason}"


class SandboxError(Error):
    """A filter in code broke a limit, or limits can't be enforced here."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds until it is worth asking again."""
        super().__init__(reason, retry_after)
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.reason


class StoreError(Error):
    """The files of a store are not as they should be, or could not be written."""


class CorruptRecord(StoreError):
    """What lies at `offset` of `file` is no whole, sound record."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        where = f"{self.file}, " if self.file else ""
        return f"{where}offset {self.offset}: {self.reason}"


class UnreadableMessage(CorruptRecord):
    """A message that a consumer was given can't be read.

    Its record is damaged (then `message_id` is None), or its body does not decompress or would be
    larger than the consumer allows. `offset` is its offset in the queue.
    """

    def __init__(
        self,
        topic: str,
        broker: str | None,
        queue_id: int,
        offset: int,
        reason: str,
        message_id: str | None = None,
    ) -> None:
        where = f"topic {topic}, queue {queue_id} of {broker or 'a store'}"
        super().__init__(where, offset, reason)
        self.args = (topic, broker, queue_id, offset, reason, message_id)
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.message_id = message_id

    def __str__(self) -> str:
        shown = f" (message {self.message_id})" if self.message_id else ""
        return f"{self.file}, offset {self.offset}{shown}: {self.reason}"


class DataLoss(Error):
    """Messages of a queue from offset `wanted` up to `stop` were to be read and are not there.

    What is left begins at `first`; None if it ends before them. `holder` is who had them, `waited`
    the seconds in which they could have come.
    """

    def __init__(
        self,
        queue: str,
        wanted: int,
        stop: int,
        first: int | None,
        holder: str = "broker",
        waited: float | None = None,
    ) -> None:
        super().__init__(queue, wanted, stop, first, holder, waited)
        self.queue = queue
        self.wanted = wanted
        self.stop = stop
        self.first = first
        self.holder = holder
        self.waited = waited

    def __str__(self) -> str:
        is_one = self.stop - self.wanted == 1
        gone = (
            f"offset {self.wanted} is"
            if is_one
            else f"offsets {self.wanted} to {self.stop - 1} are"
        )
        where = "it ends before" if self.first is None else f"it begins at {self.first}"
        instead = "set failOnDataLoss to false to go on with what is left"
        if self.waited is not None:
            late = f"it ends before, and did not grow within {self.waited:g} s"
            return (
                f"{self.queue}: {gone} gone from the {self.holder} ({late}): raise dataTimeout if"
                f" it is only late, or {instead}"
            )
        return f"{self.queue}: {gone} gone from the {self.holder} ({where}): {instead}"
