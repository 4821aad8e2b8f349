"""History on disks that fail, in files that are not as they were left, and under clocks that go
back: the file gives the old state or the new one, and nothing that was told is forgotten."""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from broker.recording import Clock, Connection, Recording, assert_same
from disks import replace_call

from tamis.broker import history as history_module
from tamis.broker.history import load_history
from tamis.broker.historyfile import NAME
from tamis.fate.filters import Filter

CALLS = ("open", "write", "fsync", "replace", "close")


class Killed(BaseException):
    """In place of a kill: nothing after it is done."""


@contextmanager
def failing(folder: Path, number: int, fail: Callable[[str], Any]) -> Iterator[list[str]]:
    """The system call of that number fails. The list has those that were made."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            real = getattr(os, name)

            def call(*args: Any, name: str = name, real: Any = real, **named: Any) -> Any:
                made.append(name)
                if len(made) - 1 == number:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    if name == "close":
                        real(*args)
                    return fail(name)
                if len(made) - 1 > number and fail is kill:
                    raise Killed  # nothing is done after it
                return real(*args, **named)

            replace_call(patch, folder, name, call)
        yield made


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def input_error(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def kill(name: str) -> None:
    raise Killed


@pytest.mark.parametrize("fail", [no_space, input_error])
@pytest.mark.parametrize("is_rewritten", [False, True], ids=["appended", "written anew"])
def test_whichever_call_fails_everything_is_saved_when_the_disk_is_well(
    tmp_path: Path, fail: Callable[[str], Any], is_rewritten: bool
) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        one = Recording(folder, number)
        one.steps(60)
        if number % 2:
            one.save()
            one.steps(60)
        one.recorder._is_to_be_rewritten = is_rewritten
        with failing(folder, number, fail) as made:
            try:
                one.save()
            except OSError:
                one.steps(5)
                made.clear()
                with pytest.raises(OSError, match=r"No space|Input/output"):  # again
                    one.save()
            if len(made) <= number:
                return  # there are no more calls
        size = one.recorder.path.stat().st_size if one.recorder.path.exists() else 0
        one.steps(30)
        one.save()
        one.check_saved()
        assert one.recorder.path.stat().st_size < size + 200_000
    raise AssertionError("there is always one more")


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["appended", "written anew"])
def test_after_a_kill_at_any_call_the_old_state_is_read_or_the_new(
    tmp_path: Path, is_rewritten: bool
) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        one = Recording(folder, number)
        one.steps(80)
        one.save()
        before = one.loaded().groups
        one.read("new", "V", 0, one.peers[0], 0, 5)
        one.recorder._is_to_be_rewritten = is_rewritten
        with failing(folder, number, kill) as made:
            try:
                one.save()
            except Killed:
                pass
            else:
                break
        after = one.loaded()
        assert not after.is_clean
        if ("new", "V") in after.groups and after.groups["new", "V"].queues:
            assert_same(one.held(), after.groups)
        else:
            after.groups.pop(("new", "V"), None)
            assert_same(before, after.groups)
        again = Recording(folder, number + 100, one.clock)  # and history goes on
        again.steps(20)
        again.save()
        again.check_saved()
        assert made
    else:
        raise AssertionError("there is always one more")


@pytest.mark.parametrize("seed", range(6))
def test_what_happened_at_random_is_read_again(tmp_path: Path, seed: int) -> None:
    clock = Clock()
    for _ in range(4):
        one = Recording(tmp_path, seed, clock)
        for _ in range(8):
            one.steps(40)
            one.recorder._is_to_be_rewritten = one.random.random() < 0.3
            one.save()
            one.check_saved()
        one.recorder.close()
        one.save()
        assert one.loaded().is_clean


def test_a_file_that_can_not_be_synced_does_not_grow_with_each_attempt(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    one.steps(50)
    one.save()
    size = one.recorder.path.stat().st_size
    one.steps(50)
    with pytest.MonkeyPatch.context() as patch:
        replace_call(patch, tmp_path, "fsync", input_error)
        for _ in range(20):
            with pytest.raises(OSError, match="Input/output"):
                one.save()
    assert one.recorder.path.stat().st_size == size
    one.save()
    one.check_saved()


def test_a_folder_that_could_not_be_synced_is_synced_later(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    one.steps(5)
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(synced) == 2:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        replace_call(patch, tmp_path, "fsync", sync)
        with pytest.raises(OSError, match="Input/output"):
            one.save()
        one.save()
    assert synced == [str(one.recorder.path), str(tmp_path)] * 2


def test_while_the_disk_is_full_what_is_kept_in_memory_is_bounded(tmp_path: Path) -> None:
    """One member reads here and there, another changes its mind, a third commits at random."""
    one = Recording(tmp_path, history_bytes=65_536)
    a, b, c = one.peers
    with pytest.MonkeyPatch.context() as patch:
        replace_call(patch, tmp_path, "write", no_space)
        for number in range(30_000):
            one.read("g", "T", 0, b if number % 2 else c, number % 50, number % 50 + 1)
            one.join("g", a, f"{'x' * 1000}{number}")
            one.recorder.committed("g", "U", 0, None, number % 97, c)
            one.recorder.committed(f"made-up-{number}", "U", 0, None, 1 + number, c)
            if number % 500 == 0:
                with pytest.raises(OSError, match="No space"):
                    one.save()
                assert sum(len(orjson.dumps(h.to_json())) for h in one.recorder.known()) < 2**20
                assert sum(map(len, one.recorder._lines)) < 2**19
    for _ in range(4):
        one.save()
    one.check_saved()
    assert one.recorder.path.stat().st_size < 2 * 65_536


def test_one_group_does_not_take_the_room_of_others(tmp_path: Path) -> None:
    one = Recording(tmp_path, history_bytes=65_536)
    a, b, c = one.peers
    one.join("quiet", a, "A")
    for number in range(5):
        one.read("quiet", "T", 0, b if number % 2 else c, 10 * number, 10 * number + 10)
    for number in range(20_000):
        one.read("loud", "T", 0, b if number % 2 else c, number % 50, number % 50 + 1)
        if number % 100 == 0:
            one.save()
    one.save()
    quiet = one.recorder.history("quiet", "T")
    assert quiet is not None
    assert len(quiet.queues[0]) == 5
    assert len(quiet.changes) == 1
    one.check_saved()


def test_a_queue_with_very_many_spans_keeps_the_newest(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    most = history_module.MOST_SPANS
    for number in range(3 * most):
        one.read("g", "T", 0, one.peers[number % 2], number, number + 1)
    history = one.recorder.history("g", "T")
    assert history is not None
    assert most // 2 <= len(history.queues[0]) <= most
    first = history.queues[0][0]
    assert history.queues[0][-1].end == 3 * most
    assert history.is_known_from(0) == first.start
    one.recorder._is_to_be_rewritten = True
    one.save()
    one.check_saved()
    assert one.loaded().groups["g", "T"].floors == history.floors


def test_a_member_that_changes_its_mind_for_ever_leaves_few_views(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    for number in range(5000):
        one.join("g", one.peers[0], "AB"[number % 2])
    history = one.recorder.history("g", "T")
    assert history is not None
    assert len(history.views) < 10
    assert list(history.views.values())[-1].filters.keys() == {Filter("TAG", "B")}


def test_a_view_of_very_many_filters_is_cut_short(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    for number in range(300):
        one.join("g", Connection(f"p{number}"), f"{number}-{'x' * 50_000}")  # type: ignore[arg-type]
    history = one.recorder.history("g", "T")
    assert history is not None
    last = max(history.views)
    assert 2 <= len(history.views[last].filters) <= 64
    assert sum(len(by.text) for by in history.views[last].filters) < 400_000


def test_a_topic_that_was_reset_can_be_deleted(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    one.read("g", "T", 0, one.peers[0], 0, 5)
    one.recorder.moved("g", "T", 0, 5, 0, "a tool", "a reset")
    one.recorder.topic_deleted("T")
    assert one.recorder.known() == []


def test_a_group_that_was_dropped_for_room_is_not_known_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MOST_TOPICS", 3)
    one = Recording(tmp_path)
    one.join("g", one.peers[0], "A")
    one.read("g", "T", 0, one.peers[0], 0, 5)
    for number in range(4):
        one.clock.seconds += 10
        one.read(f"other-{number}", "T", 0, one.peers[1], 0, 5)
    one.clock.seconds += 10
    one.read("g", "T", 0, one.peers[0], 5, 9)
    history = one.recorder.history("g", "T")
    assert history is not None
    assert history.since > one.recorder.since
    one.save()
    one.check_saved()
    one.recorder._is_to_be_rewritten = True
    one.save()
    one.check_saved()
    again = Recording(tmp_path, clock=one.clock)
    again.read("another", "T", 0, again.peers[1], 0, 5)
    another = again.recorder.history("another", "T")
    assert another is not None
    assert another.since > again.recorder.since


# What is in the file.


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\0" * 4096, "the first line does not say since when"),
        (b'{"t":"span","g":"g","o":"T","n":0}\n' * 3, "the first line does not say since when"),
        (b'{"t":"since"}\n', "the first line does not say since when"),
        (b'{"t":"since","time":"yesterday"}\n', "the first line does not say since when"),
        (b'[1]\n{"t":"since","time":5}\n', "the first line does not say since when"),
        (b'{"t":"since","time":5,"version":2}\n', "version 2"),
    ],
)
def test_a_file_that_is_not_ours_is_set_aside_and_history_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, why: str
) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    one = Recording(tmp_path)
    assert one.recorder.since == int(one.clock() * 1000)
    one.steps(50)
    one.save()
    one.check_saved()
    assert path.with_name(NAME + ".unread").read_bytes() == content
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    said = [line for line in said if NAME in line]
    assert len(said) == 1
    assert why in said[0]


def test_an_empty_file_is_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(b"")
    one = Recording(tmp_path)
    one.steps(50)
    one.save()
    one.check_saved()
    assert not any(NAME in record.getMessage() for record in caplog.records)


def test_lines_that_are_not_understood_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Recording(tmp_path)
    one.steps(50)
    one.save()
    path = one.recorder.path
    strange = [
        b'{"t":"span","g":"g","o":"T","n":"x","s":[]}',
        b'{"t":"group","h":{"group":1}}',
        b'{"t":"end","n":[],"e":1,"a":1}',
        b'{"t":"end","n":0,"e":{},"a":1}',
        b'{"t":"view","g":"g","o":"T","n":7,"v":[1,[[["a"],{}]]]}',
        b'{"t":"of tomorrow","g":"g","o":"T"}',
        b'{"no":"kind"}',
        b"\xff\xfe",
        b"null",
        b"\0" * 100,
    ]
    path.write_bytes(path.read_bytes() + b"\n".join(strange * 100) + b"\n")
    again = Recording(tmp_path)
    assert_same(one.held(), {k: h for k, h in again.held().items() if k in one.held()})
    said = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    assert len(said) <= 2, said


def test_an_end_that_was_cut_short_after_a_clean_stop_is_no_clean_stop(tmp_path: Path) -> None:
    """At every byte: if it is taken for a clean stop, all of it is there."""
    one = Recording(tmp_path)
    one.steps(200)
    one.save()
    whole = len(one.recorder.path.read_bytes())
    for peer in one.peers:  # all of it only gets further
        one.read("g", "T", 0, peer, 0, 1)
    one.save()
    one.steps(3)
    one.recorder.close()
    one.save()
    data = one.recorder.path.read_bytes()
    for size in range(whole, len(data)):
        one.recorder.path.write_bytes(data[:size])
        found = load_history(one.recorder.path)
        assert found is not None
        if found.is_clean:
            assert_same(one.held(), found.groups)
    one.recorder.path.write_bytes(data)
    assert one.loaded().is_clean


def test_after_a_clean_stop_a_kill_is_noticed_though_nothing_but_progress_came(
    tmp_path: Path,
) -> None:
    one = Recording(tmp_path)
    one.read("g", "T", 0, one.peers[0], 0, 5)
    one.recorder.close()
    one.save()
    again = Recording(tmp_path)
    again.read("g", "T", 0, again.peers[0], 5, 9)  # the span goes on; that is not saved yet
    again.recorder.snapshot()()
    assert not again.loaded().is_clean


def test_a_topic_that_comes_again_while_the_file_is_written_anew_is_kept(tmp_path: Path) -> None:
    """It is deleted and read again between the moment when lines are taken and that when the group
    is written: the new file has it, and the lines that follow delete it and make it again."""
    one = Recording(tmp_path)
    one.read("g", "T", 0, one.peers[0], 0, 5)
    one.save()
    progress = one.recorder._progress

    def meanwhile() -> Any:
        one.recorder.topic_deleted("T")
        one.read("g", "T", 0, one.peers[0], 0, 3)
        return progress()

    one.recorder._is_to_be_rewritten = True
    one.recorder._progress = meanwhile  # type: ignore[method-assign]
    one.recorder.snapshot()()
    one.recorder._progress = progress  # type: ignore[method-assign]
    one.save()
    one.check_saved()


def test_many_events_while_the_file_is_written_anew_are_read_once(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    one.read("g", "T", 0, one.peers[0], 0, 5)
    progress = one.recorder._progress

    def meanwhile() -> Any:
        for number in range(300):
            one.clock.seconds += 1
            one.recorder.moved("g", "T", 0, 5, number, "a tool", "an offset was set")
            one.join("g", one.peers[0], f"tag-{number}")
        return progress()

    one.recorder._is_to_be_rewritten = True
    one.recorder._progress = meanwhile  # type: ignore[method-assign]
    one.recorder.snapshot()()
    one.recorder._progress = progress  # type: ignore[method-assign]
    one.save()
    one.check_saved()


# Clocks, and other brokers.


def test_a_clock_that_goes_back_costs_nothing(tmp_path: Path) -> None:
    one = Recording(tmp_path)
    one.steps(100)
    one.save()
    held = one.held()
    clock = Clock()
    clock.seconds -= 86_400
    again = Recording(tmp_path, 7, clock)
    assert_same(held, again.held())
    for _ in range(20):
        clock.seconds -= 100
        again.steps(20)
        again.save()
        again.check_saved()


def test_a_reset_holds_after_a_restart_though_the_clock_went_back(tmp_path: Path) -> None:
    """Spans of before it are done with; those that follow are not, whatever their times."""
    one = Recording(tmp_path)
    one.read("g", "T", 0, one.peers[0], 0, 9)
    one.clock.seconds -= 100
    one.recorder.moved("g", "T", 0, 9, 0, "a tool", "a reset")
    one.save()
    again = Recording(tmp_path, clock=one.clock)
    assert again.held()["g", "T"].resets == one.held()["g", "T"].resets == {0: 1}


# Threads.


def test_nothing_is_lost_while_a_thread_saves(tmp_path: Path) -> None:
    one = Recording(tmp_path, history_bytes=2**20)
    stop = threading.Event()
    faults: list[BaseException] = []

    def save() -> None:
        number = 0
        while not stop.is_set():
            try:
                number += 1
                if number % 3:
                    one.recorder.flush()
                else:
                    one.recorder._rewrite(2**20)
            except BaseException as error:
                faults.append(error)
                return

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for number in range(40_000):
            one.step()
            if number % 1000 == 0:
                one.recorder.clean()
    finally:
        stop.set()
        thread.join()
    assert not faults
    one.recorder.flush()
    one.check_saved()
    assert not one.recorder._moved
