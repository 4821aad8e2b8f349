"""Our shares against those of RocketMQ's own strategies, asked live: any names, any numbers."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interop.cluster import JVM, LOGBACK
from interop.javaclient import LINES
from interop.oracle import Oracle, _classpath

from tamis.client import assign
from tamis.client.assign import STRATEGIES, Strategy
from tamis.errors import ConfigError
from tamis.wire.bodies import MessageQueue


class Allocator(Oracle):
    """Its strategies as a co-process; the lists are sorted there."""

    def __init__(self, line: str) -> None:
        classpath = _classpath(f"broker-{line}")
        self._directory = tempfile.TemporaryDirectory(prefix="tamis-assign-")
        home = Path(self._directory.name)
        (home / "logback.xml").write_text(LOGBACK.replace("{level}", "WARN"))
        places = [f"-Duser.home={home}", f"-Dlogback.configurationFile={home}/logback.xml"]
        charset = "-Dfile.encoding=UTF-8"  # 4.9 hashes names by the platform's
        command = [*JVM, *places, charset, "-cp", classpath, "tamis.interop.AssignOracle"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
        )

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._directory.cleanup()

    def allocate(
        self,
        strategy: str,
        queues: Sequence[MessageQueue],
        members: Sequence[str],
        me: str,
        **settings: list[str],
    ) -> list[MessageQueue] | str:
        """The share, or the name of what it threw."""
        rows = [[queue.topic, queue.broker_name, queue.queue_id] for queue in queues]
        request = {"strategy": strategy, "queues": rows, "members": members, "me": me, **settings}
        answer = json.loads(self._ask(json.dumps(request)))
        if "error" in answer:
            return str(answer["error"])
        return [MessageQueue(*row) for row in answer["queues"]]


@pytest.fixture(scope="module", params=LINES)
def java(request: pytest.FixtureRequest) -> Iterator[Allocator]:
    with Allocator(request.param) as allocator:
        yield allocator


# Around the surrogates, pairs of them, and half of one, which Java hashes as a question mark.
CHARACTERS = "aB1.-@#\x00é中\ue000～😀😁𝒳\ud800"
names = st.one_of(st.text(CHARACTERS, min_size=1, max_size=6), st.text(min_size=1, max_size=20))
brokers = st.one_of(names, st.from_regex(r"\A@?(r|s|～|😀)?@?[ab]?@?@?\Z"))
queues = st.lists(
    st.builds(
        MessageQueue, st.sampled_from(["t", "%RETRY%g", "～", "😀"]), brokers, st.integers(0, 120)
    ),
    unique=True,
    min_size=1,
    max_size=40,
)
addresses = st.builds("10.0.0.{}@{}".format, st.integers(1, 30), st.integers(1, 9))
members = st.lists(st.one_of(names, addresses), min_size=1, max_size=15)
rooms = st.sampled_from(["r", "s", "～", "😀", "r\ue000"])


@st.composite
def groups(draw: st.DrawFn, among: bool = False) -> tuple[list[str], str]:
    """The members, some of them perhaps twice, and one of them or (if not `among`) a stranger."""
    everyone = draw(members)
    if draw(st.booleans()):
        everyone += draw(st.lists(st.sampled_from(everyone), max_size=4))
    one_of_them = st.sampled_from(everyone)
    me = draw(one_of_them if among else st.one_of(one_of_them, one_of_them, names))
    return draw(st.permutations(everyone)), me


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=200)
@given(queues=queues, group=groups())
def test_a_share_is_the_one_java_computes(
    java: Allocator, name: str, queues: list[MessageQueue], group: tuple[list[str], str]
) -> None:
    assert assign.assign(STRATEGIES[name], queues, *group) == java.allocate(name, queues, *group)


@settings(max_examples=200)
@given(queues=queues, group=groups(), chosen=st.sets(st.one_of(rooms, st.just(""))))
def test_a_share_by_machine_room_is_the_one_java_computes(
    java: Allocator, queues: list[MessageQueue], group: tuple[list[str], str], chosen: set[str]
) -> None:
    ours = assign.assign(assign.machine_room(chosen), queues, *group)
    assert ours == java.allocate("MACHINE_ROOM", queues, *group, rooms=list(chosen))


def nearby(
    inner: Strategy,
    queues: Sequence[MessageQueue],
    queue_rooms: Sequence[str],
    members: Sequence[str],
    member_rooms: Sequence[str],
) -> Strategy:
    """Rooms beside what is in them, as the request has them; of a repetition the last counts."""
    of_queues = dict(zip(queues, queue_rooms, strict=True))
    of_members = dict(zip(members, member_rooms, strict=True))
    return assign.machine_room_nearby(inner, of_queues.__getitem__, of_members.__getitem__)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=200)
@given(data=st.data(), queues=queues, group=groups())
def test_a_share_of_what_is_nearby_is_the_one_java_computes(
    java: Allocator,
    name: str,
    data: st.DataObject,
    queues: list[MessageQueue],
    group: tuple[list[str], str],
) -> None:
    members, me = group
    here = data.draw(st.lists(rooms, min_size=len(queues), max_size=len(queues)))
    there = data.draw(st.lists(rooms, min_size=len(members), max_size=len(members)))
    strategy = nearby(STRATEGIES[name], queues, here, members, there)
    theirs = java.allocate(
        f"MACHINE_ROOM_NEARBY-{name}", queues, members, me, queue_rooms=here, member_rooms=there
    )
    assert assign.assign(strategy, queues, members, me) == theirs


@pytest.mark.parametrize(("queue_room", "member_room"), [("", "r"), ("r", "")])
def test_what_is_in_no_room_is_refused_as_by_java(
    java: Allocator, queue_room: str, member_room: str
) -> None:
    queues, members = [MessageQueue("t", "b", 0)], ["a"]
    strategy = nearby(assign.average, queues, [queue_room], members, [member_room])
    with pytest.raises(ConfigError, match="no machine room"):
        assign.assign(strategy, queues, members, "a")
    theirs = java.allocate(
        "MACHINE_ROOM_NEARBY-AVG",
        queues,
        members,
        "a",
        queue_rooms=[queue_room],
        member_rooms=[member_room],
    )
    assert theirs == "IllegalArgumentException"


@settings(max_examples=100)
@given(queues=queues, chosen=queues, group=groups(among=True))
def test_a_fixed_share_is_the_one_java_gives(
    java: Allocator,
    queues: list[MessageQueue],
    chosen: list[MessageQueue],
    group: tuple[list[str], str],
) -> None:
    fixed = [[queue.topic, queue.broker_name, queue.queue_id] for queue in chosen]
    ours = assign.assign(assign.fixed(chosen), queues, *group)
    assert ours == java.allocate("CONFIG", queues, *group, fixed=fixed)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_empty_list_is_an_error_there_and_no_share_here(java: Allocator, name: str) -> None:
    queue = MessageQueue("t", "b", 0)
    for queues, members in ([], ["a"]), ([queue], []):
        assert java.allocate(name, queues, members, "a") == "IllegalArgumentException"
        assert assign.assign(STRATEGIES[name], queues, members, "a") == []
