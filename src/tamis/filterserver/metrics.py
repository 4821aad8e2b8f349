"""What a filter server tells Prometheus, over HTTP. Read in the thread of the scrape."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
    """Listens from the start to `close`. Raises OSError.

    To be closed before the server; from another thread than the loop's, or it waits for a scrape.
    """

    def __init__(self, server: FilterServer) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(server))
        config = server.config
        self._server, self._thread = start_http_server(config.metrics_port, config.host, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
