"""The operator's metrics about itself, for Prometheus. Each process has a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from joinery_operator.decision import Manifest

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


_JOB = ("job_kind", "job_namespace", "job_name")
"""Prometheus has its own meaning for `namespace` and `job`."""
_CONDITION = {"True": 1, "False": 0}


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
        self.healthy = self._gauge("healthy", "1 while this operator works, 0 for a replica that stands by")
        self.jobs = self._gauge("jobs", "Jobs by kind and phase", "kind", "phase")
        condition = "1 while the job's condition of this type is True, 0 while it is False"
        self.job_conditions = self._gauge("job_condition", condition, *_JOB, "type")
        attempts = "The number of the job's newest driver pod, which every further one raises by one"
        self.job_attempts = self._gauge("job_attempts", attempts, *_JOB)
        self.job_failures = self._gauge("job_failures", "Driver pods in a row that failed", *_JOB)
        interruptions = "Driver pods in a row that others ended"
        self.job_interruptions = self._gauge("job_interruptions", interruptions, *_JOB)
        self.objects = self._gauge("cached_objects", "Objects in the operator's cache", "kind")
        self.leader = self._gauge("leader", "1 for the replica that works, 0 for one that stands by")
        self.poll_failures = self._counter("driver_poll_failures", "Drivers that gave no usable answer")
        self.watch_events = self._counter("watch_events", "Events that the watches delivered", "kind")
        self.watch_time = self._gauge("watch_last_event_timestamp_seconds", "When a watch last delivered", "kind")
        self.missed = self._counter("watch_missed", "Changes that an audit found before a watch reported them", "kind")
        self.excluded = self._gauge(
            "namespace_left_out", "1 for a watched namespace where the operator has no permissions", "namespace"
        )
        self.audit_failures = self._counter("audit_failures", "Audits that could not be made")

    def set_jobs(self, jobs: Iterable[Manifest], blue_greens: Iterable[Manifest] = ()) -> None:
        """Replace what is told of jobs, so that a job that was deleted leaves no samples. A BlueGreenJob has
        conditions alone: its jobs have the rest."""
        for gauge in (
            self.jobs,
            self.job_conditions,
            self.job_attempts,
            self.job_failures,
            self.job_interruptions,
        ):
            gauge.clear()
        for job in jobs:
            kind, metadata, status = job["kind"], job["metadata"], job.get("status") or {}
            labels = (kind, metadata["namespace"], metadata["name"])
            self.jobs.labels(kind, status.get("phase") or "New").inc()
            self._set_conditions(job)
            if driver := status.get("driver"):
                self.job_attempts.labels(*labels).set(driver["number"])
                self.job_failures.labels(*labels).set(driver.get("failures", 0))
                self.job_interruptions.labels(*labels).set(driver.get("interruptions", 0))

        for blue_green in blue_greens:
            self._set_conditions(blue_green)

    def _set_conditions(self, resource: Manifest) -> None:
        metadata = resource["metadata"]
        for condition in (resource.get("status") or {}).get("conditions") or ():
            if condition["status"] in _CONDITION:
                labels = (resource["kind"], metadata["namespace"], metadata["name"], condition["type"])
                self.job_conditions.labels(*labels).set(_CONDITION[condition["status"]])

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"joinery_operator_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"joinery_operator_{name}", help_text, labels, registry=self.registry)
