"""One connection's side of the protocol, without its socket: bytes in, commands out, and back.

Either side may ask; answers come in any order and are told apart by `opaque`, which each side
counts for itself. An answer nobody waits for (any more) is dropped, as RocketMQ does.
"""

from . import command as commands
from .codes import CommandFlag
from .command import Command
from .frame import MAX_FRAME, FrameReader

__all__ = ["Connection"]

_RESPONSE = int(CommandFlag.RESPONSE)  # plain: an IntFlag takes a microsecond to be asked


class Connection:
    """Not for several threads. After a RemoteProtocolError it is of no more use."""

    def __init__(self, max_frame: int = MAX_FRAME, max_header: int = MAX_FRAME) -> None:
        self._frames = FrameReader(max_frame, max_header)
        self._last_opaque = 0
        self._outstanding: set[int] = set()

    def join(self, data: bytes) -> bytes:
        """See `FrameReader.join`."""
        return self._frames.join(data)

    def receive(self, data: bytes) -> list[Command]:
        """Requests, and answers to what was asked. Raises RemoteProtocolError."""
        found = [commands.decode(frame) for frame in self._frames.feed(data)]
        if not self._outstanding:
            return [one for one in found if not one.flag & _RESPONSE]
        return [one for one in found if not one.is_response or self.settle(one.opaque)]

    def ask(self, request: Command) -> tuple[int, bytes]:
        """The `opaque` of its answer, if it is not one-way, and what to send.

        Raises LocalProtocolError.
        """
        opaque = self._last_opaque = (self._last_opaque + 1) % 2**31
        data = commands.encode(request, opaque)
        if not request.is_oneway:
            self._outstanding.add(opaque)
        return opaque, data

    def settle(self, opaque: int) -> bool:
        """No answer is waited for any more; gives whether one was."""
        was = opaque in self._outstanding
        self._outstanding.discard(opaque)
        return was

    @property
    def pending(self) -> int:
        """Bytes kept of a frame that is not whole yet."""
        return self._frames.pending

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)
