"""Brokers that answer what ours would not: a real one, behind a relay that changes its answers.

With `damaging`, answers to pulls hold damaged records, as those of a broker with a bad disk do. All
of it is threads, for tests that are coroutines and for those that are not.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from tamis.net.blocking import connect
from tamis.testing import LocalCluster, LocalNameServer
from tamis.wire import beans
from tamis.wire.bodies import Registration, TopicConfig, TopicTable
from tamis.wire.command import Command
from tamis.wire.headers import RegisterBroker
from tamis.wire.record import MAGIC

__all__ = ["DAMAGES", "MARK", "Change", "Damage", "damaging", "relaying"]

MARK = b"<damaged>"  # in a body: its record is to be damaged
_MAGIC = struct.pack(">I", MAGIC)

Change = Callable[[bytearray], None]  # of an answer's frame, without the length before it
Damage = Callable[[bytearray, int], None]  # of a frame, the record at a place


def _flip(offset: int) -> Damage:
    def flip(frame: bytearray, at: int) -> None:
        frame[at + offset] ^= 1

    return flip


def _negative_body(frame: bytearray, at: int) -> None:
    frame[at + 84 : at + 88] = struct.pack(">i", -5)


DAMAGES: dict[str, Damage] = {
    "magic": _flip(5),
    "size, too large": _flip(2),
    "size, by one": _flip(3),
    "body length": _flip(86),
    "negative body length": _negative_body,
}


@contextmanager
def damaging(cluster: LocalCluster, damage: Damage, *topics: str) -> Iterator[str]:
    """As `relaying`: records of messages with `MARK` in their bodies are damaged."""

    def change(frame: bytearray) -> None:
        at = frame.find(MARK)
        while at >= 0:
            damage(frame, frame.rfind(_MAGIC, 0, at) - 4)
            at = frame.find(MARK, at + 1)

    with relaying(cluster, change, *topics) as address:
        yield address


@contextmanager
def relaying(cluster: LocalCluster, change: Change, *topics: str) -> Iterator[str]:
    """The address of a name server that has the relay for the broker of these topics, which are of
    one queue."""
    with ExitStack() as stack:
        named = stack.enter_context(LocalNameServer())
        relay = stack.enter_context(_relay(cluster.broker, change))
        header = RegisterBroker(
            broker_name="broker-a",
            broker_addr=relay,
            cluster_name="DefaultCluster",
            broker_id=0,
            ha_server_addr=relay,
        )
        table = TopicTable(
            topics={one: TopicConfig(name=one, read_queues=1, write_queues=1) for one in topics}
        )
        body = beans.encode(Registration(table=table, filter_servers=[]))
        peer = connect(named.nameserver, 5.0)
        stack.callback(peer.close)
        answer = peer.ask(Command(code=header.CODE, fields=header.to_fields(), body=body), 5.0)
        assert answer.code == 0, answer
        yield named.nameserver


@contextmanager
def _relay(broker: str, change: Change) -> Iterator[str]:
    host, _, port = broker.partition(":")
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def start(work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        threads.append(thread)
        thread.start()

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            sockets.extend((client, server))
            start(_pass_on, client, server, None)
            start(_pass_on, server, client, change)

    start(accept)
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for one in sockets:
            one.close()
        for thread in threads:
            thread.join(5)


def _pass_on(source: socket.socket, target: socket.socket, change: Change | None) -> None:
    """Frames, until either end is closed."""
    try:
        with source.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = bytearray(stream.read(*struct.unpack(">i", head)))
                if change is not None:
                    change(frame)
                target.sendall(head + frame)
    except OSError:
        pass
    finally:
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
