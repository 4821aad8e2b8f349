"""Two members of one group subscribe to different tags, and lose messages to each other.

    .venv/bin/python examples/lost/run.py [--policy rocketmq|reject|isolate] [--without-spark]

The story of docs/lost-messages.md, on a cluster of its own: what the members get, what `tamis
explain` and `tamis doctor` say of the rest, an audit of all messages, a replay of the lost ones.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tamis.client import Admin, ConsumerConfig, Message, Producer, PushConsumer, ReceivedMessage
from tamis.errors import Error
from tamis.testing import LocalCluster

HERE = Path(__file__).parent
TOPIC, GROUP, QUEUES = "Payments", "billing", 4
PATIENCE = 60.0  # seconds


class Member:
    """One of the group; `got` is what its handler was given."""

    def __init__(self, nameserver: str, name: str, tags: str) -> None:
        self.name, self.tags = name, tags
        self.got: list[str] = []
        config = ConsumerConfig(start="first", instance_name=name)
        self.consumer = PushConsumer(nameserver, GROUP, self._handle, config=config)
        self.consumer.subscribe(TOPIC, tags=tags)

    async def _handle(self, message: ReceivedMessage) -> None:
        self.got.append(message.text)

    async def start(self) -> None:
        try:
            await self.consumer.start()
        except Error as error:
            print(f"{self.name} can't join: {error}")


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"this took too long: {what}")
        await asyncio.sleep(0.1)


async def caught_up(admin: Admin) -> None:
    """When the group has committed all there is: nothing is left to be consumed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        progress = [one for one in await admin.offsets(GROUP, TOPIC) if one.end]
        if progress and all(one.lag == 0 for one in progress):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the group does not get to the end: {progress}")
        await asyncio.sleep(0.2)


async def consume(nameserver: str, policy: str) -> list[str]:
    """Returns the payments that nobody got."""
    async with Admin(nameserver) as admin, Producer(nameserver) as producer:
        await admin.create_topic(TOPIC, queues=QUEUES)
        await admin.create_group(GROUP)
        await admin.set_group_policy(GROUP, policy)
        members = [Member(nameserver, "ann", "CARD"), Member(nameserver, "bob", "CASH")]
        for member in members:
            await member.start()
        await asyncio.sleep(3)  # until they have shared the queues
        sent = []
        for number in range(16):
            tag = "CARD" if number % 2 else "CASH"
            sent.append(f"{tag.lower()} {number}")
            await producer.send(Message(TOPIC, sent[-1], tags=tag, keys=f"payment-{number}"))
        await caught_up(admin)
        print(f"sent: {len(sent)} payments, half of them CARD, half CASH")
        for member in members:
            print(f"{member.name}, who wants {member.tags}, got {len(member.got)}")
            await member.consumer.close()
        got = {text for member in members for text in member.got}
        lost = [text for text in sent if text not in got]
        print(f"nobody got {len(lost)}; lag of the group: 0")
        return lost


async def consume_again(nameserver: str, wanted: set[str]) -> None:
    """With members that agree."""
    members = [Member(nameserver, name, "CARD || CASH") for name in ("ann", "bob")]
    for member in members:
        await member.start()
    await until(
        lambda: wanted <= {text for member in members for text in member.got},
        "what was lost comes again",
    )
    await asyncio.sleep(2)  # time for anything that would come twice
    again = [text for member in members for text in member.got]
    for member in members:
        await member.consumer.close()
    assert sorted(again) == sorted(wanted), again
    print(f"the members, who agree now, got the {len(wanted)} lost payments, each once")


def tamis(*arguments: str, expect: tuple[int, ...] = (0,)) -> None:
    print(f"\n$ tamis {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "tamis", *arguments], check=False)
    if done.returncode not in expect:
        raise SystemExit(f"tamis {arguments[0]} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", choices=["rocketmq", "reject", "isolate"], default="rocketmq")
    parser.add_argument("--without-spark", action="store_true", help="leave out audit and replay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalCluster() as cluster:
        os.environ["NAMESRV_ADDR"] = cluster.nameserver
        lost = asyncio.run(consume(cluster.nameserver, arguments.policy))
        if not lost:
            return
        tamis("explain", "--topic", TOPIC, "--key", f"payment-{lost[0].split()[1]}")
        tamis("doctor", expect=(0, 1))
        if arguments.without_spark:
            return
        for name in ("audit.toml", "replay.toml"):
            text = (HERE / name).read_text().replace("127.0.0.1:9876", cluster.nameserver)
            (Path(folder) / name).write_text(text)
        os.chdir(folder)
        tamis("pipeline", "run", "audit.toml")
        tamis("pipeline", "run", "replay.toml")
        print()
        asyncio.run(consume_again(cluster.nameserver, set(lost)))


if __name__ == "__main__":
    main()
