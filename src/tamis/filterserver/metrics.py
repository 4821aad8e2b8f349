"""What a filter server tells Prometheus, over HTTP. Read in the thread of the scrape."""

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..net.http import HttpServer
from .server import FilterServer

__all__ = ["Exporter"]

_LABELS: Final = ["group", "topic", "class"]
_OF_CLASSES: Final = {
    "messages": "Messages the class was asked about.",
    "matched": "Of these, kept for the group.",
    "failed": "Of these, the class failed on.",
    "dead_letters": "Of these, sent to the group's dead letters.",
    "seconds": "Spent judging.",
    "conflicts": "Uploads of a source that was replaced, while another is held.",
    "replacements": "Sources that were replaced by another.",
}


class Exporter:
    """Listens from the start to `close`, with the filter server's TLS. Raises OSError.

    To be closed before the server; from another thread than the loop's, or it waits for a scrape.
    """

    def __init__(self, server: FilterServer) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(server))
        config = server.config
        self._server = HttpServer(
            *(config.host, config.metrics_port, make_wsgi_app(registry)),
            server.server.certificate,
        )
        self.port = self._server.port
        self.scheme = self._server.scheme

    def close(self) -> None:
        self._server.close()


class _Collector(Collector):
    def __init__(self, server: FilterServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        families = {
            name: CounterMetricFamily(f"tamis_code_filter_{name}", what, labels=_LABELS)
            for name, what in _OF_CLASSES.items()
        }
        restarts = CounterMetricFamily(
            "tamis_code_filter_restarts", "Of the class's process, after a breach.", labels=_LABELS
        )
        held = GaugeMetricFamily(
            "tamis_code_filter_held", "Queues that stand before a held message.", labels=_LABELS
        )
        for one in server.classes:
            key = [one.group, one.topic, one.identity.class_name]
            for name, family in families.items():
                family.add_metric(key, getattr(one.tally, name))
            restarts.add_metric(key, one.restarts)
            held.add_metric(key, len(one.held))
        yield from families.values()
        yield restarts
        yield held
        yield from self._lags()
        refused = CounterMetricFamily(
            "tamis_uploads_refused", "Uploads that were not taken.", labels=["reason"]
        )
        for reason, count in server.uploads.refused.copy().items():
            refused.add_metric([reason], count)
        yield refused
        yield CounterMetricFamily(
            "tamis_uploads_accepted", "Uploads that changed a class.", server.uploads.accepted
        )
        yield CounterMetricFamily(
            "tamis_upload_conflicts",
            "Uploads of replaced sources while others are held.",
            server.classes.conflicts,
        )
        for name, what, value in (
            ("classes", "Classes in force.", len(server.classes)),
            ("waiting_pulls", "Pulls that wait for messages.", server.puller.waiting),
            ("kept_bytes", "Read ahead, and not given out.", server.streams.memory.used),
            ("registered", "1 if the broker knows us.", int(server.registration.is_registered)),
        ):
            yield GaugeMetricFamily(f"tamis_filterserver_{name}", what, value)

    def _lags(self) -> Iterator[Metric]:
        """Yield the lags of groups that were counted lately."""
        matching = GaugeMetricFamily(
            "tamis_code_filter_matching_lag",
            "Messages that match and wait for the group.",
            labels=_LABELS,
        )
        age = GaugeMetricFamily(
            "tamis_code_filter_next_match_age_seconds",
            "Since the oldest of these was stored; 0 if none waits.",
            labels=_LABELS,
        )
        now = int(time.time() * 1000)
        for lag in self._server.lags.listed():
            key = [lag.group, lag.topic, lag.class_name]
            matching.add_metric(key, lag.matching)
            waited = 0 if lag.oldest is None else max(now - lag.oldest, 0)
            age.add_metric(key, waited / 1000)
        yield matching
        yield age
