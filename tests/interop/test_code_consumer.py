"""Our consumer through Apache's filter server 4.2.0, with a class in Java."""

import secrets
from pathlib import Path

from interop.cluster import our_cluster
from interop.filterserver import ApacheFilterServer

from tamis.client import ConsumerConfig, Message
from tamis.client.blocking import Admin, Consumer, Producer

JAVA = """package tamis.filters;

import org.apache.rocketmq.common.filter.FilterContext;
import org.apache.rocketmq.common.filter.MessageFilter;
import org.apache.rocketmq.common.message.MessageExt;

public class Odd implements MessageFilter {
    @Override
    public boolean match(MessageExt message, FilterContext context) {
        return Integer.parseInt(new String(message.getBody())) % 2 == 1;
    }
}
"""


def test_a_class_in_java_filters_for_our_consumer(tmp_path: Path) -> None:
    topic, group = f"Topic-{secrets.token_hex(3)}", f"Group-{secrets.token_hex(3)}"
    with (
        our_cluster(tmp_path / "store") as ours,
        ApacheFilterServer(tmp_path / "filtersrv", ours.broker, ours.nameserver) as server,
    ):
        with Admin(ours.nameserver) as admin, Producer(ours.nameserver) as producer:
            admin.create_topic(topic, queues=2)
            for n in range(100):
                producer.send(Message(topic, f"{n}"))
        consumer = Consumer(ours.nameserver, group, config=ConsumerConfig(start="first"))
        consumer.subscribe(topic, code=("tamis.filters.Odd", JAVA))
        found: list[int] = []
        with consumer:
            while len(found) < 50:
                some = consumer.getmany(timeout=20)
                assert some, f"{found}\n{consumer.code_status}\n{server.log()[-3000:]}"
                found += [int(one.text) for one in some]
            status = consumer.code_status[topic]
        assert sorted(found) == [*range(1, 100, 2)]
        assert (status.is_here, status.seen) == (False, 0)
        assert [one.address for one in status.servers if one.has_class] == [server.address]
