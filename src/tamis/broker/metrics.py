"""What a broker tells Prometheus, over HTTP.

Everything is read in the thread of the scrape, from tables that the broker's loop goes on changing:
a number may be a moment younger than the one before it. Nothing here makes the loop wait.
"""

import threading
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .. import __version__
from ..net.http import HttpServer
from .broker import Broker
from .codelag import CodeLag
from .lag import TotalLag, totals

__all__ = ["Exporter"]


class Exporter:
    """Listens from the start to `close`, on the broker's `bind` and `metrics_port`, with the
    broker's TLS. Raises OSError.

    To be closed before the broker; from another thread than the loop's, or it waits for a scrape.
    """

    def __init__(self, broker: Broker) -> None:
        config = broker.settings.config
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._collector = _BrokerCollector(broker)
        registry.register(self._collector)
        self._server = HttpServer(
            *(config.bind, config.metrics_port, make_wsgi_app(registry)),
            broker.server.certificate,
        )
        self.port = self._server.port
        self.scheme = self._server.scheme

    def close(self) -> None:
        self._server.close()
        self._collector.close()


class _BrokerCollector(Collector):
    """One scrape at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scraping = threading.Lock()
        self._is_closed = False

    def describe(self) -> Iterable[Metric]:
        return ()  # else there would be a scrape at registration

    def collect(self) -> Iterable[Metric]:
        with self._scraping:
            return [] if self._is_closed else list(self._collect())

    def close(self) -> None:
        with self._scraping:
            self._is_closed = True

    def _collect(self) -> Iterator[Metric]:
        config = self._broker.settings.config
        info = {"version": __version__, "name": config.name, "cluster": config.cluster}
        yield InfoMetricFamily("tamis_broker", "Which broker this is.", value=info)
        yield from self._traffic()
        yield from self._state()
        yield from self._verdicts()
        yield from self._lags()
        for name, what, latency in (
            ("dispatch", "queueing what was stored", self._broker.queueing.latency),
            ("flush", "a flush", self._broker.flush_latency),
        ):
            buckets = [(_bound(b), n) for b, n in latency.buckets()]
            yield HistogramMetricFamily(
                f"tamis_{name}_seconds", f"How long {what} took.", buckets, latency.sum
            )

    def _traffic(self) -> Iterator[Metric]:
        stats = self._broker.stats
        puts = {(topic,): count for topic, count in stats.puts.copy().items()}
        for way, counts, labels in (
            ("in", puts, ["topic"]),
            ("out", stats.gets.copy(), ["topic", "group"]),
        ):
            messages = CounterMetricFamily(f"tamis_messages_{way}", _WAYS[way], labels=labels)
            size = CounterMetricFamily(f"tamis_bytes_{way}", "Their bytes.", labels=labels)
            for key, count in counts.items():
                messages.add_metric(key, count.messages)
                size.add_metric(key, count.bytes)
            yield messages
            yield size
        back = CounterMetricFamily(
            "tamis_messages_back", "Sent back by consumers, to retry.", labels=["topic", "group"]
        )
        for key, count in stats.backs.copy().items():
            back.add_metric(key, count.messages)
        yield back
        yield CounterMetricFamily("tamis_put_failures", "Messages not stored.", stats.failed)

    def _state(self) -> Iterator[Metric]:
        broker, store = self._broker, self._broker.store
        end = store.log.end
        for name, what, value in (
            ("held_pulls", "Pulls that wait for a message.", broker.holds.count),
            ("connections", "Of clients.", len(broker.server.peers)),
            ("tasks", "Requests and chores under way.", broker.tasks),
            ("log_bytes", "Of the commit log, from its first file on.", end - store.log.start),
            ("undispatched_bytes", "In the log and not yet in queues.", end - store.dispatched),
            ("connection_bytes", "Kept for connections.", broker.server.buffers.total),
        ):
            yield GaugeMetricFamily(f"tamis_{name}", what, value)
        unsaved = GaugeMetricFamily(
            "tamis_unsaved_tables", "1 while a table can't be saved, else 0.", labels=["table"]
        )
        failures = CounterMetricFamily(
            "tamis_save_failures", "Attempts to save a table that failed.", labels=["table"]
        )
        for table, (is_failing, count) in broker.saver.failures().items():
            unsaved.add_metric([table], int(is_failing))
            failures.add_metric([table], count)
        yield unsaved
        yield failures
        yield from self._defence()

    def _defence(self) -> Iterator[Metric]:
        """What went wrong or was refused."""
        broker, server = self._broker, self._broker.server
        for name, what in (
            ("restarts", "Background tasks that failed and were started again."),
            ("failures", "Failures of background tasks, or of a step of theirs."),
        ):
            family = CounterMetricFamily(f"tamis_task_{name}", what, labels=["task"])
            for tasks in (broker.background, server.background):
                for task, count in getattr(tasks, name).copy().items():
                    family.add_metric([task], count)
            yield family
        conflicts, tending = broker.conflicts, broker.tending
        yield GaugeMetricFamily(
            "tamis_groups_disagreeing",
            "Groups whose members subscribe differently now.",
            len(conflicts.disagreeing),
        )
        yield GaugeMetricFamily(
            "tamis_groups_divided",
            "Groups whose members are each served by their own subscription now.",
            len(conflicts.divisions),
        )
        for name, what, value in (
            ("subscription_conflicts",
             "Times that members of a group came to subscribe differently.", conflicts.conflicts),
            ("heartbeats_rejected", "Members refused because they disagree.", conflicts.refusals),
            ("lanes_given_up", "Subscriptions without members that were no longer held.",
             tending.given_up),
            ("lane_messages_given_up", "Messages such a subscription matched and had not consumed.",
             tending.messages_given_up),
            ("connections_refused", "Connections closed at once, for there are enough.",
             server.refused),
            ("connections_paused", "Not read from for a while: they held too much memory.",
             server.buffers.paused),
            ("connections_closed", "Closed: they held too much memory.", server.buffers.closed),
            ("creations_refused", "Topics and groups not created by using them.",
             broker.quotas.refused),
        ):  # fmt: skip
            yield CounterMetricFamily(f"tamis_{name}", what, value)
        tls = server.handshakes
        for name, what, value in (
            ("handshakes", "Completed.", tls.completed if tls is not None else 0),
            ("handshakes_failed", "Not completed; or TLS failed afterwards.",
             tls.failed if tls is not None else 0),
            ("plain_refused", "Connections closed: they do not speak TLS.",
             tls.refused if tls is not None else 0),
        ):  # fmt: skip
            yield CounterMetricFamily(f"tamis_tls_{name}", what, value)

    def _verdicts(self) -> Iterator[Metric]:
        families = {
            name: CounterMetricFamily(f"tamis_filter_{name}", what, labels=["group", "topic"])
            for name, what in _VERDICTS.items()
        }
        for key, tally in self._broker.verdicts.tallies.copy().items():
            for name, family in families.items():
                family.add_metric(key, getattr(tally, name))
        yield from families.values()

    def _lags(self) -> Iterator[Metric]:
        """Yield the lags. A group whose filter the broker does not know has no matching lag, nor
        has one, for a scrape or a few, with more to count than a scrape has time for. Of a filter
        in code it is what a filter server counted."""
        labels = ["group", "topic"]
        lag = GaugeMetricFamily(
            "tamis_group_lag", "Messages after those the group has committed.", labels=labels
        )
        matching = GaugeMetricFamily(
            "tamis_group_matching_lag", "Of these, those its filter matches.", labels=labels
        )
        age = GaugeMetricFamily(
            "tamis_group_next_match_age_seconds",
            "Since the oldest of these was stored; 0 if none waits.",
            labels=labels,
        )
        now = int(self._broker.now() * 1000)
        rows = self._broker.lags.count(self._broker.readers.listed(), _COUNTING)
        code = {
            (row.group, row.topic): row.filter.text
            for row in rows
            if row.filter is not None and row.filter.kind == "CODE" and not row.lane
        }
        for key, total in totals(rows).items():
            lag.add_metric(key, total.lag)
            counted: TotalLag | CodeLag | None = total
            if key in code:
                counted = self._broker.code_lags.get(*key, code[key])
            if counted is not None and counted.matching is not None:
                matching.add_metric(key, counted.matching)
                waited = 0 if counted.oldest is None else max(now - counted.oldest, 0)
                age.add_metric(key, waited / 1000)
        yield lag
        yield matching
        yield age


_COUNTING = 2.0  # seconds of counting in one scrape; what is left is counted in the next
_WAYS = {"in": "Messages stored.", "out": "Messages given to groups."}
_VERDICTS = {
    "evaluated": "Messages the group's filter was asked about.",
    "matched": "Of these, delivered.",
    "filtered": "Of these, not wanted.",
    "failed": "Of these, the filter could not tell; they are not delivered.",
}


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)
