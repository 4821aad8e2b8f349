"""Makes sure that no request waits for a compiler.

numba compiles a loop when it is first called, which takes seconds, and keeps it for later ones;
even then loading all of them takes some tenths of a second. Once a process, before its first broker
serves, messages are sent through one that is thrown away and that nobody else can reach
(`compile_loops`). On a machine where nothing is compiled yet that would take half a minute: there
the broker serves at once, by loops in plain Python, while another process compiles them
(`prepare_loops`).
"""

import asyncio
import logging
import os
import socket
import tempfile
from dataclasses import replace
from typing import Final

from ..errors import ConfigError, Error
from ..filter.engines import tiers, warming
from ..net.aio import connect_pair
from ..wire import beans, command, record
from ..wire import headers as h
from ..wire.bodies import ConsumerData, Heartbeat, Subscription
from ..wire.codes import PullFlag, RequestCode
from ..wire.command import Command
from .config import BrokerConfig

__all__ = ["compile_loops", "prepare_loops"]

log = logging.getLogger(__name__)

_COMPILING: Final = 120.0  # seconds, at the most, on a slow machine
# Read here and not by `cli`, for a broker of a test has no other way to be told; as numba's own
# settings are. plain: never compile. wait: compile before serving.
_CHOICE: Final = "TAMIS_LOOPS"
_begun = False


async def prepare_loops() -> None:
    """Load what is compiled; if that is not everything, begin to compile it, and go on without.
    Does nothing but once a process."""
    choice = os.environ.get(_CHOICE, "")
    if choice not in ("", "plain", "wait"):
        raise ConfigError(f"{_CHOICE}={choice}: it is plain, wait or not set")
    if _begun or tiers.is_plain():
        return
    if choice == "plain":
        log.warning("loops are not compiled, for %s is plain: all will be slow", _CHOICE)
        tiers.run_plain()
    elif await asyncio.to_thread(warming.is_warm):
        await compile_loops()
    elif choice == "wait":
        log.info("loading loops; those that are not compiled yet are compiled first")
        await compile_loops()
    else:
        log.warning(
            "first start on this machine: compiling loops in the background, for about 40 s, once; "
            "until then messages take longer (`tamis warm` compiles beforehand)"
        )
        warming.begin(_tell)


def _tell() -> None:
    log.info("loops are compiled: messages are served at full speed")


async def compile_loops() -> None:
    """Compile or load what a broker runs. Does nothing but once a process."""
    global _begun
    if _begun:
        return
    _begun = True
    quiet = logging.getLogger("tamis.broker")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="tamis-") as root:
            await _try_out(root)
    except (OSError, Error) as error:
        log.warning("the first messages will be slow: %s", error)
    finally:
        quiet.setLevel(level)


async def _try_out(root: str) -> None:
    from .broker import Broker  # which asks for this before it starts

    config = BrokerConfig(
        port=0,
        flush="async",  # it is thrown away
        bitmaps=True,
        log_file_size=2**16,
        queue_file_size=2000,
        extension_file_size=2**16,
        index_slots=64,
        index_entries=256,
    )
    server = Broker(config, root)
    # It has no port: the system might give it that of a broker which is about to be started again,
    # and its clients would be told that messages are stored which are thrown away.
    await server.start(listens=False)
    try:
        ours, its = socket.socketpair()
        await server.server.adopt(its)
        peer = await connect_pair(ours)

        async def ask(code: int, header: h.Header | None, body: bytes = b"") -> None:
            letters = code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
            fields = header.to_fields(letters=letters) if header is not None else None
            await peer.ask(Command(code=code, fields=fields, body=body), _COMPILING)

        sql = "a > 1 AND b = 'x'"
        one = Subscription(topic="T", expression=sql, expression_type="SQL92")
        tagged = Subscription(topic="T", expression="t", tags=["t"])
        groups = [
            ConsumerData(group="g", subscriptions=[one]),
            ConsumerData(group="t", subscriptions=[tagged]),
        ]
        beat = Heartbeat(client_id="c", producers=[], consumers=groups)
        await ask(RequestCode.HEART_BEAT, None, beans.encode(beat))
        send = h.SendMessage(
            producer_group="p",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="TAGS\x01t\x02KEYS\x01k\x02a\x012\x02b\x01x",
        )
        await ask(RequestCode.SEND_MESSAGE, send, b"1")
        # in one piece: several at once go another way
        fields = send.to_fields(letters=True)
        several = Command(code=RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"1")
        peer.write(8 * command.encode(several))
        batch = record.batch_item(b"1", b"a\x012")
        await ask(RequestCode.SEND_BATCH_MESSAGE, replace(send, batch=True), batch)
        for kind, expression in (("TAG", "*"), ("TAG", "t"), ("SQL92", sql)):
            pull = h.PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=0,
                max_msg_nums=32,
                sys_flag=PullFlag.SUBSCRIPTION | PullFlag.SUSPEND,
                suspend_timeout_millis=1000,
                subscription=expression,
                expression_type=kind,
            )
            await ask(RequestCode.PULL_MESSAGE, pull)
        registered = replace(pull, sys_flag=0, subscription=None)
        await ask(RequestCode.PULL_MESSAGE, registered)
        await ask(RequestCode.GET_MATCHING_LAG, h.GetMatchingLag())
        query = h.QueryMessage(
            topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=2**62
        )
        await ask(RequestCode.QUERY_MESSAGE, query)
        peer.close()
    finally:
        await server.close()
