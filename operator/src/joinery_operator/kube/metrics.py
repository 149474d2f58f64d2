"""The operator's metrics about itself, for Prometheus. Each process has a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class Metrics:
    """Counters and gauges by name, which all parts of the process share."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.reconciles = self._counter("reconciles", "Reconciles of a job, by how they ended", "kind", "outcome")
        self.reconcile_seconds = Histogram(
            "joinery_operator_reconcile_seconds",
            "How long a reconcile of a job took, its API calls included",
            ("kind",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue_depth = self._gauge("queue_depth", "Jobs that wait for a worker")
        self.api_calls = self._counter("api_calls", "Calls of the API server, without watches", "verb", "kind", "code")
        self.api_seconds = Histogram(
            "joinery_operator_api_call_seconds",
            "How long they took",
            ("verb",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.jobs = self._gauge("jobs", "Jobs by kind and phase", "kind", "phase")
        self.objects = self._gauge("cached_objects", "Objects in the operator's cache", "kind")
        self.poll_failures = self._counter("driver_poll_failures", "Drivers that gave no usable answer")
        self.watch_events = self._counter("watch_events", "Events that the watches delivered", "kind")
        self.watch_time = self._gauge("watch_last_event_timestamp_seconds", "When a watch last delivered", "kind")
        self.missed = self._counter("watch_missed", "Changes that an audit found before a watch reported them", "kind")
        self.excluded = self._gauge(
            "namespace_left_out", "1 for a watched namespace where the operator has no permissions", "namespace"
        )
        self.audit_failures = self._counter("audit_failures", "Audits that could not be made")

    def set_jobs(self, by_kind_and_phase: Mapping[tuple[str, str], int]) -> None:
        """Replaces all numbers of jobs, so that a phase without jobs has none."""
        self.jobs.clear()
        for (kind, phase), number in by_kind_and_phase.items():
            self.jobs.labels(kind, phase).set(number)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"joinery_operator_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"joinery_operator_{name}", help_text, labels, registry=self.registry)
