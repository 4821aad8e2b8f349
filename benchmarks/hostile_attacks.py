"""The attacks of `hostile.py`, in one table.

    python hostile_attacks.py NAME BROKER NAMESERVER --seconds S --scale X --seed N --report FILE

An attack runs in a process of its own, at a lower priority (nice 10): in earnest it would have a
machine of its own, and here there may be two cores for all. It goes to loopback only, does a
bounded number of things, ends by itself when its time is over, and writes what it did as JSON. It
prints a line when it begins.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hostile_histories as histories
import hostile_moves as moves
from hostile_moves import Target
from hostile_server import Disk

__all__ = ["ATTACKS", "Attack"]


@dataclass(frozen=True)
class Attack:
    """`settings`, `descriptors`, `file_size` and `disk` are those of the server it goes to.

    `tls`: it takes TLS as well as plain connections.

    `may_refuse`: the well-behaved client may be refused too, since nobody can be served. `kills`:
    the server is killed in the middle of it. `must_not_start`: it has to refuse to start.
    """

    name: str
    about: str
    run: Callable[[Target], None]
    settings: dict[str, object] = field(default_factory=dict)
    descriptors: int | None = None
    file_size: int | None = None
    disk: Disk | None = None
    may_refuse: bool = False
    kills: bool = False
    must_not_start: bool = False
    tls: bool = False

    @property
    def needs_own_server(self) -> bool:
        return bool(self.settings or self.descriptors or self.file_size or self.kills or self.tls)


_SMALL_FILES: dict[str, object] = {
    "log_file_size": 2**20,
    "queue_file_size": 6000,
    "index_slots": 100,
    "index_entries": 2000,
    "clean_ratio": 1.0,  # nothing that is acknowledged is removed to make room
    "full_ratio": 1.0,  # only the disk itself refuses
}

ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("idle", "Nobody attacks: what the machine does by itself.", moves.nothing),
        Attack("new-topics", "One-way sends, each to a new topic.", moves.new_topics),
        Attack(
            "new-topics-1024", "The same at 1,024 descriptors.", moves.new_topics, descriptors=1024
        ),
        Attack(
            "every-queue",
            "Sends to 1,024 queues of one topic and to 2,000 new topics, at 1,024 descriptors.",
            moves.every_queue,
            descriptors=1024,
        ),
        Attack(
            "many-topics", "80,000 topics with long names are created by a tool.", moves.many_topics
        ),
        Attack("topic-changes", "One topic is changed 100,000 times.", moves.topic_changes),
        Attack("odd-names", "Topics, groups and clients named like paths.", moves.odd_names),
        Attack("big-heartbeat", "Heartbeats with 100,000 new groups each.", moves.big_heartbeat),
        Attack(
            "new-groups", "100,000 heartbeats, each of a new group and client.", moves.new_groups
        ),
        Attack("made-up-offsets", "A million offsets of made-up groups.", moves.made_up_offsets),
        Attack("many-locks", "Each request locks 100,000 queues.", moves.many_locks),
        Attack(
            "long-filters",
            "Heartbeats with 8 new SQL filters of 59,000 characters.",
            moves.long_filters,
        ),
        Attack(
            "filters-in-pulls",
            "Each pull has a new SQL filter of that size.",
            moves.filters_in_pulls,
        ),
        Attack(
            "long-tags", "Held pulls and heartbeats with 8,000 to 50,000 tags.", moves.long_tags
        ),
        Attack("filters-to-check", "The same in CHECK_CLIENT_CONFIG.", moves.filters_to_check),
        Attack("queue-listing", "QUERY_CONSUME_QUEUE of 200,000 messages.", moves.queue_listing),
        Attack("statistics", "All statistics of a topic of 10,000 queues.", moves.statistics),
        Attack("questions", "400,000 pipelined questions of tools.", moves.pipelined_questions),
        Attack(
            "changing-filters",
            "Members that change their filters with each heartbeat, and read.",
            histories.changing_filters,
        ),
        Attack(
            "torn-readings",
            "Two connections read and commit here and there, in turns.",
            histories.torn_readings,
        ),
        Attack(
            "questions-of-fates",
            "History, fates, lags and rules of everything, and broken ones.",
            histories.questions_of_fates,
        ),
        Attack("held-pulls", "100 connections with 1,000 held pulls each.", moves.held_pulls),
        Attack(
            "slow-readers",
            "400 connections ask for 16 MiB each and do not read.",
            moves.slow_readers,
        ),
        Attack(
            "partial-frames", "300 connections send 4 to 16 MiB of a frame.", moves.partial_frames
        ),
        Attack("idle-connections", "10,000 connections that say nothing.", moves.idle_connections),
        Attack(
            "open-handshakes",
            "10,000 TLS handshakes, some cut short, that are left open.",
            moves.open_handshakes,
            tls=True,
        ),
        Attack(
            "mutated-frames",
            "Recorded frames of RocketMQ with random changes.",
            moves.mutated_frames,
        ),
        Attack(
            "bombs", "Messages of 1 MB that inflate to 1 GB, read by `tamis consume`.", moves.bombs
        ),
        Attack(
            "nameserver-bombs",
            "Registrations: large, compressed, many; many keys.",
            moves.nameserver_bombs,
        ),
        Attack(
            "odd-settings", "Settings that break answers or block the flush.", moves.odd_settings
        ),
        Attack(
            "kill", "Kill -9 in the middle of 64 sends in flight.", moves.busy_sends, kills=True
        ),
        Attack(
            "full-disk",
            "Sends until a disk of 32 MiB is full.",
            moves.fill_disk,
            settings=_SMALL_FILES,
            disk=Disk(mebibytes=32, inodes=20_000),
            may_refuse=True,
        ),
        Attack(
            "no-inodes",
            "Sends until a disk has no inode left.",
            moves.use_inodes,
            settings=_SMALL_FILES,
            disk=Disk(mebibytes=256, inodes=800),
            may_refuse=True,
        ),
        Attack(
            "file-size-limit",
            "A limit of file sizes below that of a queue's file: the server must not start.",
            moves.nothing,
            settings={"log_file_size": 2**20, "index_slots": 100, "index_entries": 400},
            file_size=3 * 2**20,
            must_not_start=True,
        ),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("broker")
    parser.add_argument("nameserver")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, required=True)
    given = parser.parse_args()
    for address in (given.broker, given.nameserver):
        if not address.startswith("127."):
            parser.error(f"{address}: attacks go to loopback only")
    os.nice(10)
    print("under way", flush=True)
    target = Target(given.broker, given.nameserver, given.seconds, given.scale, given.seed)
    try:
        ATTACKS[given.name].run(target)
    except OSError as error:  # a server that is gone, or refuses: the row tells
        target.done.notes.append(f"ended early: {error!r}")
    given.report.write_text(json.dumps(vars(target.done)))


if __name__ == "__main__":
    main()
