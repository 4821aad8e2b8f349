"""The connection to the broker that a filter server stands beside."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ..errors import ResponseError, Unreachable
from ..net.aio import Peer, connect
from ..security import INSECURE, Security
from ..wire.codes import Language, PullFlag, RequestCode, ResponseCode
from ..wire.command import Command
from ..wire.headers import Header, PullMessage, PullMessageResponse

__all__ = ["END", "FOUND", "MOVED", "BrokerLink", "Pulled"]

log = logging.getLogger(__name__)

GROUP: Final = "FILTERSRV_CONSUMER"  # RocketMQ's brokers have it from their start
FOUND: Final = int(ResponseCode.SUCCESS)
END: Final = int(ResponseCode.PULL_NOT_FOUND)
MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_PULLED: Final = (FOUND, END, MOVED, int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_MARGIN: Final = 10.0  # seconds a broker may take beyond the time it is asked to wait
_TIMEOUT: Final = 5.0
_PLAIN: Final = int(PullFlag.SUBSCRIPTION)
_SUSPEND: Final = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)


class Pulled(NamedTuple):
    """An answer of the broker: records as they lie in its log, or none, and where to go on."""

    code: int
    offset: int  # asked for
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""


class BrokerLink:
    """One connection, made when it is needed, and again after it is lost."""

    def __init__(self, address: str, security: Security = INSECURE) -> None:
        self.address = address
        self._security = security
        self.broker_name = ""  # as the broker says
        self.broker_id = 0
        self.losses = 0  # of connections: after one the broker may have lost its last messages
        self.on_change: Callable[[], None] = lambda: None  # connected, or lost
        self._peer: Peer | None = None
        self._connecting: asyncio.Task[Peer] | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        return self._peer is not None and not self._peer.is_closed

    @property
    def connected_peer(self) -> Peer | None:
        return self._peer if self.is_connected else None

    async def peer(self) -> Peer:
        """Raises Unreachable."""
        if self._peer is not None and not self._peer.is_closed:
            return self._peer
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        try:
            return await asyncio.shield(self._connecting)
        except (OSError, TimeoutError) as error:
            raise Unreachable("broker", self.address, str(error)) from None

    async def _connect(self) -> Peer:
        return await connect(self.address, on_close=self._lost, security=self._security)

    def _connected(self, task: "asyncio.Task[Peer]") -> None:
        self._connecting = None
        if task.cancelled() or task.exception() is not None:
            return
        self._peer = task.result()
        if self._is_closed:
            self._peer.close()
        self.on_change()

    def _lost(self, peer: Peer) -> None:
        self.losses += 1
        if peer is self._peer:
            self._peer = None
            self.on_change()

    async def ask(
        self,
        header: Header,
        timeout: float = _TIMEOUT,
        *,
        code: RequestCode | None = None,
        body: bytes = b"",
    ) -> Command:
        """`code`: if the header has none of its own. Raises ResponseError, Unreachable or
        TimeoutError."""
        peer = await self.peer()
        request = Command(
            code=header.CODE if code is None else code,
            fields=header.to_fields(),
            language=Language.PYTHON,
            body=body,
        )
        try:
            answer = await peer.ask(request, timeout)
        except TimeoutError:
            why = f"the broker at {self.address} did not answer in {timeout:g} s"
            raise TimeoutError(why) from None
        except ConnectionError as error:
            raise Unreachable("broker", self.address, str(error)) from None
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError.of(answer.code, answer.remark, self._security.access_key)
        return answer

    def tell(self, header: Header) -> bool:
        """Send one way; return whether there was a connection to do so."""
        if self._peer is None or self._peer.is_closed:
            return False
        self._peer.tell(
            Command(code=header.CODE, fields=header.to_fields(), language=Language.PYTHON)
        )
        return True

    async def pull(
        self, topic: str, queue_id: int, offset: int, most: int, hold: float = 0.0
    ) -> Pulled:
        """Whatever is there, waiting up to `hold` seconds for something. Raises ResponseError,
        Unreachable or TimeoutError."""
        return await self.post_pull(await self.peer(), topic, queue_id, offset, most, hold)

    def post_pull(
        self, peer: Peer, topic: str, queue_id: int, offset: int, most: int, hold: float = 0.0
    ) -> "asyncio.Future[Pulled]":
        """As `pull`; several posted in one turn of the loop travel together."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Pulled] = loop.create_future()

        def settle(answer: Command | Exception) -> None:
            if waiting.done():  # nobody waits any more
                return
            try:
                if isinstance(answer, Exception):
                    raise Unreachable("broker", self.address, str(answer)) from answer
                waiting.set_result(_read(offset, answer, self._security.access_key))
            except Exception as error:
                waiting.set_exception(error)

        began = time.monotonic()

        def expire() -> None:
            peer.doubt(began)
            if not waiting.done():
                why = f"the broker at {self.address} did not answer a pull"
                waiting.set_exception(TimeoutError(why))

        header = PullMessage(
            consumer_group=GROUP,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=_SUSPEND if hold > 0 else _PLAIN,
            suspend_timeout_millis=int(hold * 1000),
            subscription="*",
            expression_type="TAG",
        )
        request = Command(
            code=RequestCode.PULL_MESSAGE, fields=header.to_fields(), language=Language.PYTHON
        )
        timer = loop.call_later(hold + _MARGIN, expire)
        try:
            opaque = peer.post(request, settle)
        except ConnectionError as error:
            timer.cancel()
            raise Unreachable("broker", self.address, str(error)) from None

        def ended(_: object) -> None:
            timer.cancel()
            peer.forget(opaque)

        waiting.add_done_callback(ended)
        return waiting

    async def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._peer is not None:
            self._peer.close()


def _read(offset: int, answer: Command, access_key: str | None) -> Pulled:
    if answer.code not in _PULLED:
        raise ResponseError.of(answer.code, answer.remark, access_key)
    header = PullMessageResponse.from_fields(answer.fields)
    return Pulled(
        answer.code,
        offset,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        answer.body if answer.code == FOUND else b"",
    )
