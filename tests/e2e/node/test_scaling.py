"""A second executor pays: what two warm executors read for the CPU that they get, beside what one reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from e2e.node import probe
from e2e.node.cluster_job import ClusterJob
from e2e.node.conftest import MakeJob
from e2e.node.works import Backlog
from joinery_devkit.time_limit import TOOK

# How far the backlog reaches depends on how fast the machine is, so `make e2e` does not run it:
# pytest tests/e2e/node/test_scaling.py -m node
pytestmark = [pytest.mark.node, pytest.mark.soak, pytest.mark.timeout(1800)]

PAIRS = 8_000_000
EPOCH = 150_000  # records
WARM_EPOCHS = {1: 5, 2: 20}
"""Executors compile Spark's code in their first epochs, and that of the exchange once there are two."""
MEASURED = 1_500_000  # records
LIMIT = "200m"  # CPU of an executor
STEEPER = 1.2
"""Two executors against one, measured 1.43 twice (docs/decisions/0100). While a new executor compiles Spark's code, or
with an exchange that is encrypted in Java, a record costs twice the CPU, and the second executor gives nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some epochs of warm executors: records per second, and microseconds of all executors' CPU per record."""

    executors: int
    rate: float
    java: float
    python: float

    @property
    def slope(self) -> float:
        """By how many records the backlog shrinks while each executor gets a second of CPU. The clock would tell what
        others do on the machine."""
        return self.executors * 1e6 / (self.java + self.python)

    def __str__(self) -> str:
        cost = f"{self.java:.2f} us of Java's CPU a record, {self.python:.2f} of Python's"
        return f"{self.slope:,.0f} records per executor's second of CPU, {self.rate:,.0f} per second; {cost}"


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Iterator[ClusterJob]:
    job = make_job("backlog", Backlog)
    yield job
    job.log.close()


def test_a_second_executor_makes_the_backlog_shrink_faster(
    job: ClusterJob, record_property: Callable[[str, object], None]
) -> None:
    assert isinstance(job.work, Backlog)
    job.work.fill(PAIRS)
    executor = {**job.manifest["spec"]["spark"]["executor"], "instances": 1}
    job.apply_spark(executor=executor, conf={"spark.kubernetes.executor.limit.cores": LIMIT})
    job.apply(trigger={"maxRecordsPerEpoch": EPOCH}, shards=8)
    one = _measure(job, 1)
    job.kubectl("scale", f"{job.kind}/{job.name}", "--replicas=2", "-n", job.namespace)
    two = _measure(job, 2)
    assert job.behind() > EPOCH, "or the last epochs were small"
    record_property(TOOK, f"one executor: {one}; two executors: {two}")
    assert two.slope > STEEPER * one.slope
    job.delete()


def _measure(job: ClusterJob, executors: int) -> Window:
    job.wait("executors run tasks", lambda: [cpu.python > 0 for cpu in _cpu_by_pod(job)] == [True] * executors)
    job.wait_for_more_epochs(WARM_EPOCHS[executors])
    assert job.behind() > MEASURED + EPOCH, "the backlog is too short for this machine; raise PAIRS"
    first, cpu_before = job.log.committed(), _cpu_by_pod(job)
    goal = job.log.read() + MEASURED
    job.wait("a window is read", lambda: job.log.read() >= goal)
    last, cpu_after = job.log.committed(), _cpu_by_pod(job)
    records, milliseconds = _between(job, first, last)
    java, python = (
        (sum(getattr(cpu, kind) for cpu in cpu_after) - sum(getattr(cpu, kind) for cpu in cpu_before)) / records * 1e6
        for kind in ("java", "python")
    )
    return Window(executors, records / milliseconds * 1000, java, python)


def _cpu_by_pod(job: ClusterJob) -> list[probe.Cpu]:
    return [probe.cpu_of(job, pod["metadata"]["name"]) for pod in job.running("executor")]


def _between(job: ClusterJob, first: int, last: int) -> tuple[int, int]:
    """How many records the epochs after `first` up to `last` have read, and how many milliseconds they took."""
    entries, commits = job.log.entries(), job.log.commits()
    at = {entry["epoch"]: commit for entry, commit in zip(entries, commits, strict=True)}
    ranges = [
        (start, end)
        for entry in entries
        if first < entry["epoch"] <= last
        for _, _, _, start, end in entry["plan"]["ranges"]
    ]
    return sum(end - start for start, end in ranges), at[last] - at[first]
