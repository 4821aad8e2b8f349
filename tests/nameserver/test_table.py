"""The route table alone, with times and connections made up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.nameserver.table import Announcement, RouteTable, TopicFlag
from tamis.wire.bodies import DataVersion, Perm, QueueData
from tamis.wire.headers import OfBroker, RegisterBroker, RegisterBrokerResponse

RW = Perm.READ | Perm.WRITE


def broker(
    name: str = "a", address: str = "h:1", broker_id: int = 0, cluster: str = "c"
) -> RegisterBroker:
    return RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        broker_id=broker_id,
        ha_server_addr=f"{address}-ha",
    )


def said(
    *topics: str,
    name: str = "a",
    version: int = 1,
    filter_servers: list[str] | None = None,
    digest: bytes = b"",
    **changes: Any,
) -> Announcement:
    fields: dict[str, Any] = {"read_queues": 4, "write_queues": 4, "perm": RW, **changes}
    queue = QueueData(broker_name=name, **fields)
    return Announcement(
        digest=digest,
        version=DataVersion(timestamp=1, counter=version),
        queues=dict.fromkeys(topics, queue),
        filter_servers=filter_servers,
    )


def register(
    table: RouteTable,
    who: RegisterBroker,
    what: Announcement,
    connection: object = "wire",
    now: float = 0,
) -> RegisterBrokerResponse:
    return table.register(who, what, connection=connection, now=now)


def addresses(table: RouteTable, topic: str) -> dict[str, dict[int, str]] | None:
    route = table.route(topic)
    return route and {one.broker_name: one.addresses for one in route.brokers}


def test_an_empty_table_knows_nothing() -> None:
    table = RouteTable()
    assert table.route("T") is None
    assert table.topics() == table.topics("c") == []
    assert table.system_topics() == ([], None)
    assert table.cluster_info().brokers == table.cluster_info().clusters == {}
    assert table.version("h:1") is None
    assert table.wipe_write_perm("a") == table.add_write_perm("a") == 0
    table.unregister(broker())
    table.drop_connection("wire")
    table.touch("h:1", 1)
    table.delete_topic("T")
    table.delete_topic("T", "c")
    assert table.drop_silent(now=1e9, seconds=1) == []


def test_a_registered_topic_is_routed_to_its_broker() -> None:
    table = RouteTable()
    register(table, broker(), said("T", sys_flag=1))
    route = table.route("T")
    assert route is not None
    (queue,) = route.queues
    assert queue == QueueData(broker_name="a", read_queues=4, write_queues=4, perm=RW, sys_flag=1)
    (found,) = route.brokers
    assert (found.cluster, found.broker_name, found.addresses) == ("c", "a", {0: "h:1"})
    assert route.filter_servers == {}
    assert route.order_topic_conf is None


def test_a_topic_of_two_brokers_is_routed_to_both() -> None:
    table = RouteTable()
    register(table, broker(), said("T", "A"))
    register(table, broker("b", "h:2"), said("T", "B", name="b"))
    assert addresses(table, "T") == {"a": {0: "h:1"}, "b": {0: "h:2"}}
    assert addresses(table, "B") == {"b": {0: "h:2"}}
    assert sorted(table.topics()) == ["A", "B", "T"]
    info = table.cluster_info()
    assert info.clusters == {"c": ["a", "b"]}
    assert info.brokers["b"].addresses == {0: "h:2"}


def test_topics_a_registration_does_not_name_are_kept() -> None:
    table = RouteTable()
    register(table, broker(), said("T", "U"))
    register(table, broker(), said("T", version=2, read_queues=8))
    assert sorted(table.topics()) == ["T", "U"]
    route = table.route("T")
    assert route is not None
    assert route.queues[0].read_queues == 8


def test_topics_are_not_looked_at_while_the_data_version_is_the_same() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker(), said("U"))
    assert table.topics() == ["T"]
    register(table, broker(), said("U", version=2))
    assert table.topics() == ["T", "U"]


def test_an_address_that_takes_an_id_over_has_its_topics_filed() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker(address="h:9"), said("U"))
    assert addresses(table, "U") == {"a": {0: "h:9"}}


def test_a_slave_brings_no_topics_but_is_in_the_route() -> None:
    table = RouteTable()
    register(table, broker(address="h:2", broker_id=1), said("T"))
    assert table.route("T") is None
    register(table, broker(), said("T"))
    assert addresses(table, "T") == {"a": {0: "h:1", 1: "h:2"}}


def test_a_slave_is_told_of_its_master_and_a_master_of_nobody() -> None:
    table = RouteTable()
    slave = broker(address="h:2", broker_id=1)
    assert register(table, slave, said()) == RegisterBrokerResponse()
    assert register(table, broker(), said()) == RegisterBrokerResponse()
    told = RegisterBrokerResponse(master_addr="h:1", ha_server_addr="h:1-ha")
    assert register(table, slave, said()) == told
    assert table.refresh(slave, b"", connection="wire", now=1) == told


def test_a_slave_that_becomes_master_leaves_its_old_id() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker(address="h:2", broker_id=1), said("T"))
    table.unregister(broker())
    register(table, broker(address="h:2", broker_id=0), said("T", version=1))
    assert addresses(table, "T") == {"a": {0: "h:2"}}


def test_topics_stay_while_a_slave_is_there_and_go_with_the_last() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker(address="h:2", broker_id=1), said("T"))
    table.unregister(broker())
    assert addresses(table, "T") == {"a": {1: "h:2"}}
    table.unregister(broker(address="h:2", broker_id=1))
    assert table.route("T") is None
    assert table.topics() == []
    assert table.cluster_info().clusters == {}


def test_a_broker_that_leaves_late_does_not_drop_its_successor() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker(address="h:9"), said("T"))
    table.unregister(broker())
    assert addresses(table, "T") == {"a": {0: "h:9"}}


def test_an_address_has_one_broker_name() -> None:
    table = RouteTable()
    register(table, broker("old"), said("T", name="old"))
    register(table, broker("new"), said("U", name="new"))
    assert table.route("T") is None
    assert list(table.cluster_info().brokers) == ["new"]


def test_a_closed_connection_takes_all_its_brokers_at_once() -> None:
    table = RouteTable()
    register(table, broker(), said("T"), "one")
    register(table, broker("b", "h:2"), said("T", name="b"), "one")
    register(table, broker("d", "h:3"), said("T", name="d"), "two")
    table.drop_connection("one")
    assert addresses(table, "T") == {"d": {0: "h:3"}}
    table.drop_connection("one")
    assert addresses(table, "T") == {"d": {0: "h:3"}}


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_closed_connection_leaves_a_broker_that_came_by_another_since(is_repeated: bool) -> None:
    table = RouteTable()
    register(table, broker(), said("T"), "old")
    if is_repeated:
        assert table.refresh(broker(), b"", connection="new", now=1) is not None
    else:
        register(table, broker(), said("T"), "new")
    table.drop_connection("old")
    assert addresses(table, "T") == {"a": {0: "h:1"}}
    table.drop_connection("new")
    assert table.route("T") is None


def test_silent_brokers_go_and_those_heard_of_stay() -> None:
    table = RouteTable()
    for number in range(4):
        name = f"b{number}"
        register(table, broker(name, f"h:{number}"), said("T", name=name), number, now=0)
    register(table, broker("b0", "h:0"), said("T", name="b0", version=2), 0, now=100)
    assert table.refresh(broker("b1", "h:1"), b"", connection=1, now=100) is not None
    table.touch("h:2", 100)
    assert table.drop_silent(now=120, seconds=120) == []
    assert table.drop_silent(now=120.5, seconds=120) == [3]
    assert addresses(table, "T") == {f"b{n}": {0: f"h:{n}"} for n in range(3)}
    assert table.drop_silent(now=221, seconds=120) == [0, 1, 2]
    assert table.route("T") is None


@pytest.mark.parametrize(
    ("who", "digest"),
    [
        (broker(), b"other"),
        (broker(address="h:2"), b"same"),
        (broker("b"), b"same"),
        (broker(broker_id=1), b"same"),
        (broker(cluster="d"), b"same"),
    ],
)
def test_only_the_same_words_of_the_same_broker_are_a_repetition(
    who: RegisterBroker, digest: bytes
) -> None:
    table = RouteTable()
    register(table, broker(), said("T", digest=b"same"))
    assert table.refresh(broker(), b"same", connection="wire", now=1) is not None
    assert table.refresh(who, digest, connection="wire", now=1) is None


def test_a_broker_whose_id_was_taken_is_not_refreshed() -> None:
    table = RouteTable()
    register(table, broker(), said("T", digest=b"x"))
    register(table, broker(address="h:9"), said("T", digest=b"x"))
    assert table.refresh(broker(), b"x", connection="wire", now=1) is None
    table.unregister(broker(address="h:9"))
    assert table.refresh(broker(), b"x", connection="wire", now=1) is None


def test_the_data_version_is_that_of_the_last_registration() -> None:
    table = RouteTable()
    register(table, broker(), said(version=3))
    assert table.version("h:1") == DataVersion(timestamp=1, counter=3)
    register(table, broker(), said(version=4))
    assert table.version("h:1") == DataVersion(timestamp=1, counter=4)
    table.unregister(broker())
    assert table.version("h:1") is None


def test_write_permission_is_wiped_until_added_or_told_anew() -> None:
    table = RouteTable()
    register(table, broker(), said("T", "U", perm=RW | Perm.INHERIT))
    register(table, broker("b", "h:2"), said("T", name="b"))

    def perms() -> dict[str, Perm]:
        route = table.route("T")
        assert route is not None
        return {queue.broker_name: queue.perm for queue in route.queues}

    assert table.wipe_write_perm("a") == 2
    assert perms() == {"a": Perm.READ | Perm.INHERIT, "b": RW}
    register(table, broker(), said("T", perm=RW | Perm.INHERIT))
    assert perms()["a"] == Perm.READ | Perm.INHERIT, "the same data version changes nothing"
    register(table, broker(), said("T", perm=RW | Perm.INHERIT, version=2))
    assert perms()["a"] == RW | Perm.INHERIT
    assert table.add_write_perm("a") == 2
    assert perms() == {"a": RW, "b": RW}


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    register(table, broker(), said("T", "U"))
    register(table, broker("b", "h:2", cluster="d"), said("T", "U", name="b"))
    table.delete_topic("T", "d")
    table.delete_topic("T", "no such cluster")
    assert addresses(table, "T") == {"a": {0: "h:1"}}
    table.delete_topic("U")
    assert table.topics() == ["T"]
    assert table.topics("d") == []
    assert table.topics("c") == ["T"]


def test_filter_servers_are_replaced_removed_or_left() -> None:
    table = RouteTable()

    def servers() -> dict[str, list[str]]:
        route = table.route("T")
        assert route is not None
        return route.filter_servers

    register(table, broker(), said("T", filter_servers=["f:1", "f:2"]))
    assert servers() == {"h:1": ["f:1", "f:2"]}
    register(table, broker(), said("T", filter_servers=None))
    assert servers() == {"h:1": ["f:1", "f:2"]}
    register(table, broker(), said("T", filter_servers=[]))
    assert servers() == {}


def test_system_topics_are_clusters_and_brokers_with_one_to_ask() -> None:
    table = RouteTable()
    register(table, broker(), said("T"))
    register(table, broker("b", "h:2", cluster="d"), said("T", name="b"))
    topics, address = table.system_topics()
    assert sorted(topics) == ["a", "b", "c", "d"]
    assert address == "h:1"


def test_unit_topics_are_found_by_their_flags() -> None:
    table = RouteTable()
    for version, flags in enumerate((0, 1, 2, 3)):
        register(table, broker(), said(f"T{flags}", version=version, sys_flag=flags))
    unit, sub = TopicFlag.UNIT, TopicFlag.UNIT_SUB
    assert table.unit_topics(unit) == ["T1", "T3"]
    assert table.unit_topics(sub) == ["T2", "T3"]
    assert table.unit_topics(sub, lacks=unit) == ["T2"]


# Any course of events, against the tables of `RouteInfoManager` written plainly.

NAMES = st.sampled_from(["a", "b", "d"])
# An address belongs to a broker name: that is where we differ from RocketMQ on purpose.
BROKERS = st.builds(
    lambda name, port, broker_id, cluster: broker(name, f"{name}:{port}", broker_id, cluster),
    NAMES,
    st.integers(1, 2),
    st.integers(0, 1),
    st.sampled_from(["c", "e"]),
)
TOPICS = st.sampled_from(["T", "U", "V"])
EVENTS = st.one_of(
    st.tuples(
        st.just("register"),
        BROKERS,
        st.frozensets(TOPICS),
        st.integers(1, 3),
        st.sampled_from(["x", "y"]),
    ),
    st.tuples(st.just("unregister"), BROKERS),
    st.tuples(st.just("closed"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("delete"), TOPICS),
)


class Plain:
    def __init__(self) -> None:
        self.topics: dict[str, set[str]] = {}
        self.addresses: dict[str, dict[int, str]] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[str, tuple[int, str, str]] = {}  # version, connection, broker name

    def register(
        self, who: RegisterBroker, topics: frozenset[str], version: int, connection: str
    ) -> None:
        name, address = who.broker_name, who.broker_addr
        self.clusters.setdefault(who.cluster_name, set()).add(name)
        known = self.addresses.setdefault(name, {})
        for other in list(known):
            if known[other] == address and other != who.broker_id:
                del known[other]
        is_first = who.broker_id not in known
        known[who.broker_id] = address
        is_changed = address not in self.live or self.live[address][0] != version
        if who.broker_id == 0 and (is_first or is_changed):
            for topic in topics:
                self.topics.setdefault(topic, set()).add(name)
        self.live[address] = (version, connection, name)

    def drop(self, address: str) -> None:
        if address not in self.live:
            return
        _, _, name = self.live.pop(address)
        known = self.addresses.get(name)
        if known is None:
            return
        for broker_id in [i for i, at in known.items() if at == address]:
            del known[broker_id]
        if not known:
            del self.addresses[name]
            for table in self.clusters, self.topics:
                for key in list(table):
                    table[key].discard(name)
                    if not table[key]:
                        del table[key]


@given(st.lists(EVENTS, max_size=30))
def test_any_course_of_events_leaves_what_plain_tables_would(events: list[Any]) -> None:
    table, plain = RouteTable(), Plain()
    for event in events:
        match event:
            case "register", who, topics, version, connection:
                what = said(*topics, name=who.broker_name, version=version)
                register(table, who, what, connection)
                plain.register(who, topics, version, connection)
            case "unregister", who:
                table.unregister(OfBroker.from_fields(who.to_fields()))
                plain.drop(who.broker_addr)
            case "closed", connection:
                table.drop_connection(connection)
                for address in [a for a, live in plain.live.items() if live[1] == connection]:
                    plain.drop(address)
            case "delete", topic:
                table.delete_topic(topic)
                plain.topics.pop(topic, None)
        info = table.cluster_info()
        assert {name: one.addresses for name, one in info.brokers.items()} == plain.addresses
        assert {name: set(members) for name, members in info.clusters.items()} == plain.clusters
        assert set(table.topics()) == set(plain.topics)
        for topic, names in plain.topics.items():
            assert addresses(table, topic) == {name: plain.addresses[name] for name in names}
        for address, (version, _, _) in plain.live.items():
            assert table.version(address) == DataVersion(timestamp=1, counter=version)
