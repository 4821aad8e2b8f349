"""REGISTER_MESSAGE_FILTER_CLASS: who may upload a filter, which one, and what they are told.

Every upload that changes something, and every refusal, is one line of the audit log: who, for
which group and topic, which class and checksum. Nothing of a source is executed or parsed here.
"""

import asyncio
import hmac
import ipaddress
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NoReturn
from zlib import crc32

from ..errors import CodeError, ResponseError, SandboxError
from ..net.aio import Peer
from ..net.server import Answer, Request, Result
from ..wire.codes import ResponseCode
from ..wire.headers import RegisterFilterClass
from .classes import Classes, Identity, Key
from .config import FilterServerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..code import Judge

__all__ = ["MakeJudge", "Uploads"]

log = logging.getLogger("tamis.filterserver.audit")

# From a source (its name is `<upload>:Class`), for a group and topic. Raises CodeError or
# SandboxError.
MakeJudge = Callable[[str, str, str, str], Awaitable["Judge"]]

_AT_ONCE: Final = 4  # sources that are compiled at the same time
_MOST_REMEMBERED: Final = 1000
_REMEMBER_FAILURE: Final = 30.0  # seconds in which a source that failed is not tried again
_LONGEST_NAME: Final = 255
_MOST_LINES: Final = 20  # of the audit log in a second, about refusals
_NAME: Final = re.compile(r"(?:[^\W\d]\w*\.)*([^\W\d]\w*)")  # Java's have a package
# What Java has at the start of a line. Each looks at one line only, or a source of a megabyte could
# be made such that it takes hours.
_JAVA: Final = re.compile(
    r"^[ \t]*(?:package[ \t]+[\w.]+[ \t]*;|import[ \t]+(?:static[ \t]+)?[\w.*]+[ \t]*;"
    r"|(?:public|final|abstract)[ \t]+[^\n:=(]*\bclass\b|class[ \t]+\w+[^:({\n]*\{)",
    re.MULTILINE,
)
_PYTHON: Final = re.compile(r"^class[ \t]+\w+[ \t]*(?:\([^)\n]*\))?[ \t]*:", re.MULTILINE)


class Uploads:
    """Takes uploads; `upload` is the handler."""

    def __init__(
        self,
        config: FilterServerConfig,
        classes: Classes,
        make_judge: MakeJudge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._classes = classes
        self._make_judge = make_judge
        self._clock = clock
        self._compiling = asyncio.Semaphore(_AT_ONCE)
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}  # and how many want it
        self._new: set[Key] = set()  # that have no class yet, and get one if it can be loaded
        self._failures: OrderedDict[tuple[Key, Identity], tuple[float, str]] = OrderedDict()
        self._said: OrderedDict[tuple[str, ...], None] = OrderedDict()  # once is enough
        self._second = self._lines = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()  # by reason
        self.isolation_failure = ""  # why sources can't be taken: set by the server's probe

    def upload(self, header: RegisterFilterClass, request: Request) -> Result:
        key = (header.topic, header.consumer_group)
        self._check_allowed(header, request)
        identity, text = self._check_source(header, request)
        active = self._classes.get(key)
        if active is not None and (active.identity == identity or not header.class_crc):
            active.hold_by(request.peer, self._clock())
            return Answer()
        return self._upload(key, identity, text, header, request)

    # Whether it is allowed.

    def _check_allowed(self, header: RegisterFilterClass, request: Request) -> None:
        config, host = self._config, request.peer.host
        if not config.uploads:
            why = "this filter server takes no uploads; who runs it can switch them on (--uploads)"
            self._refuse("off", header, request, why, ResponseCode.NO_PERMISSION)
        if config.uploads == "loopback" and not _is_loopback(host):
            why = f"this filter server takes uploads from its own machine only, not from {host}"
            self._refuse("not loopback", header, request, why, ResponseCode.NO_PERMISSION)
        if config.secret is not None and not hmac.compare_digest(
            (header.tamis_secret or "").encode(), config.secret.encode()
        ):
            wrong = "the wrong one was given" if header.tamis_secret else "none was given"
            why = f"uploads to this filter server need its secret, and {wrong}"
            self._refuse("secret", header, request, why, ResponseCode.NO_PERMISSION)
        if self.isolation_failure:
            why = f"this filter server can't isolate filters: {self.isolation_failure}"
            self._refuse("isolation", header, request, why, ResponseCode.NO_PERMISSION)

    def _check_source(self, header: RegisterFilterClass, request: Request) -> tuple[Identity, str]:
        body = request.body
        for what, name in (("group", header.consumer_group), ("topic", header.topic)):
            if not name or len(name) > _LONGEST_NAME:
                why = f"a {what} of {len(name)} characters: it takes 1 to {_LONGEST_NAME}"
                self._refuse("name", header, request, why)
            if not name.isprintable():  # it is written into logs
                why = f"the {what} {name!r:.60} has characters that can't be printed"
                self._refuse("name", header, request, why)
        named = _NAME.fullmatch(header.class_name[: _LONGEST_NAME + 1])
        if named is None or len(header.class_name) > _LONGEST_NAME:
            why = f"{header.class_name!r:.60} is not the name of a class"
            self._refuse("name", header, request, why)
        if len(body) > self._config.max_source_size:
            why = (
                f"a source of {len(body)} bytes: this filter server takes up to"
                f" {self._config.max_source_size}"
            )
            self._refuse("size", header, request, why)
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            self._refuse("source", header, request, f"the source is not UTF-8: {error}")
        crc = crc32(body) & 0x7FFFFFFF
        if header.class_crc not in (0, crc):
            why = f"the source has the checksum {crc}, not {header.class_crc} as was said"
            self._refuse("source", header, request, why)
        if not text.strip():
            self._refuse("source", header, request, "the source is empty")
        if _JAVA.search(text) and not _PYTHON.search(text):
            why = (
                f"class {header.class_name}: this is Java, and this filter server runs Python:"
                " upload a class with match(self, message) -> bool"
            )
            self._refuse("java", header, request, why)
        return Identity(named[1], crc), text

    # Taking it.

    async def _upload(
        self, key: Key, identity: Identity, text: str, header: RegisterFilterClass, request: Request
    ) -> Answer:
        async with self._exclusively(key):
            active = self._classes.get(key)
            if active is not None and active.identity == identity:
                active.hold_by(request.peer, self._clock())
                return Answer()
            self._classes.release(key, request.peer)
            holder = self._classes.conflict(key, identity)
            if holder is not None:
                assert active is not None
                return self._conflict(header, request, active.identity, holder)
            known = self._failures.get((key, identity))
            if known is not None and self._clock() < known[0]:
                self._refuse("code", header, request, known[1])
            if not self._classes.has_room(key, len(self._new)):
                why = f"this filter server has {len(self._classes)} classes, and takes no more"
                self._refuse("full", header, request, why, ResponseCode.SYSTEM_BUSY)
            if active is None:
                self._new.add(key)
            try:
                async with self._compiling:
                    judge = await self._make_judge(identity.class_name, text, key[1], key[0])
            except (CodeError, SandboxError, OSError) as error:  # no process, no descriptor, ...
                self._remember_failure(key, identity, error)
                kept = "" if active is None else "; the class before it stays in force"
                self._refuse("code", header, request, f"{error}{kept}")
            finally:
                self._new.discard(key)
            self._classes.put(key, identity, judge, text, request.peer)
        self.accepted += 1
        self._failures.pop((key, identity), None)
        log.info(
            "upload from %s: group %s, topic %s, class %s, crc %d, %d bytes: %s",
            *_facts(header, request, identity.crc),
            "accepted"
            if active is None
            else f"replaces crc {active.identity.crc} of {active.uploader}",
        )
        return Answer()

    def _conflict(
        self, header: RegisterFilterClass, request: Request, active: Identity, holder: str
    ) -> Answer:
        why = (
            f"group {header.consumer_group}, topic {header.topic}: not taken, for the members of"
            f" the group differ: class {active.class_name} with crc {active.crc} is in force and"
            f" {holder} holds it; give all members the same source"
        )
        if self._is_first("conflict", str(request.peer), *_names(header)):
            log.warning(
                "upload from %s: group %s, topic %s, class %s, crc %d, %d bytes: conflict: %s",
                *(*_facts(header, request), why),
            )
        return Answer(remark=why)

    def _remember_failure(self, key: Key, identity: Identity, error: Exception) -> None:
        seconds = max(_REMEMBER_FAILURE, getattr(error, "retry_after", 0.0))
        self._failures[key, identity] = (self._clock() + seconds, str(error))
        if len(self._failures) > _MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def _refuse(
        self,
        kind: str,
        header: RegisterFilterClass,
        request: Request,
        why: str,
        code: int = ResponseCode.SYSTEM_ERROR,
    ) -> NoReturn:
        self.refused[kind] += 1
        if self._is_first(kind, request.peer.host, *_names(header), why):
            log.warning(
                "upload from %s: group %s, topic %s, class %s, crc %d, %d bytes: refused: %s",
                *(*_facts(header, request), why),
            )
        raise ResponseError(code, why)

    def _is_first(self, *facts: str) -> bool:
        """Whether this was not said before, for clients upload every half minute; nor too much
        else in this second, for anybody can make up names."""
        if facts in self._said:
            self._said.move_to_end(facts)
            return False
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > _MOST_LINES:
            return False
        self._said[facts] = None
        if len(self._said) > _MOST_REMEMBERED:
            self._said.popitem(last=False)
        return True

    @asynccontextmanager
    async def _exclusively(self, key: Key) -> "AsyncIterator[None]":
        """One upload for a topic and group at a time."""
        lock, wanted = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, wanted + 1)
        try:
            async with lock:
                yield
        finally:
            lock, wanted = self._locks[key]
            if wanted == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, wanted - 1)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _names(header: RegisterFilterClass) -> tuple[str, str, str]:
    return header.consumer_group[:100], header.topic[:100], header.class_name[:100]


def _facts(
    header: RegisterFilterClass, request: Request, crc: int | None = None
) -> tuple[Peer, str, str, str, int, int]:
    crc = header.class_crc if crc is None else crc
    group, topic, name = (_printable(part) for part in _names(header))
    return request.peer, group, topic, name, crc, len(request.body)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
