"""How many messages of some ranges a filter matches: our brokers count, others can not."""

import time

from client.targets import Cluster, in_loop
from client.test_lag import filled

from tamis.client.config import ClientConfig
from tamis.client.matches import count_matches
from tamis.client.session import Session
from tamis.wire.bodies import MessageQueue


@in_loop
async def test_matches_in_a_range_are_counted_by_our_brokers_only(cluster: Cluster) -> None:
    topic = await filled(cluster)
    session = Session("test", cluster.nameserver, ClientConfig())
    await session.start()
    try:
        route = await session.routes.get(topic)
        queue = MessageQueue(topic, route.brokers[0].broker_name, 0)
        deadline = time.monotonic() + 20
        by_tag = await count_matches(session, {queue: (5, 15)}, "b", "TAG", deadline)
        by_sql = await count_matches(session, {queue: (5, 15)}, "n > 10", "SQL92", deadline)
        assert (by_tag, by_sql) == ((5, 4) if cluster.target == "tamis" else (None, None))
        assert await count_matches(session, {}, "b", "TAG", deadline) == 0
        late = time.monotonic()
        assert await count_matches(session, {queue: (5, 15)}, "b", "TAG", late) is None
    finally:
        await session.close()
