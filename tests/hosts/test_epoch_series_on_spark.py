"""Small epochs that share a Spark job, on real Spark: one process, and two executors. On a cluster:
tests/hosts/test_placement.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF
from hosts.stand_ins import PATIENCE_S, EndsItsExecutor, FailingWorker, FailsOnce, NotesItsPlace
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import SourceError, Superseded
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts.executors import executor_ids
from joinery_runtime.hosts.spark import SparkHost, start_context
from joinery_runtime.hosts.spark_security import is_local
from joinery_runtime.hosts.spark_tasks import WorkerSetup

pytestmark = [pytest.mark.services, pytest.mark.slow]

RANGES = tuple(Range(PartitionRef("l", "t", p), 0, 5) for p in range(3))


def work(epoch: int, *, small: bool = True) -> EpochWork:
    plan = EpochPlan(epoch, 2, RANGES, {"l": None, "r": None})
    return EpochWork(generation=1, plan=plan, segments=(), is_small=small)


@pytest.fixture(scope="module", params=["local[2]", "local-cluster[2,1,1024]"])
def context(request: pytest.FixtureRequest) -> Iterator[SparkContext]:
    context = start_context("series", {**TASK_CONF, "spark.executor.memory": "512m"}, request.param)
    if not is_local(request.param):
        _until(lambda: len(executor_ids(context)) == 2)
    yield context
    context.stop()


@pytest.fixture
def host_of(context: SparkContext) -> Iterator[Callable[[FailingWorker], SparkHost]]:
    hosts = list[SparkHost]()

    def host_of(worker: FailingWorker) -> SparkHost:
        setup = WorkerSetup(repr(worker), worker, worker.steps)
        hosts.append(SparkHost(context, setup, "orders", print, ("inner interval join",), has_series=True))
        return hosts[-1]

    yield host_of
    for host in hosts:
        host.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def jobs(context: SparkContext, group: str) -> int:
    return len(context.statusTracker().getJobIdsForGroup(group))


HostOf = Callable[[FailingWorker], SparkHost]
NEVER = ("never", RuntimeError(), 1)


def test_small_epochs_share_a_job_that_a_large_one_ends(context: SparkContext, host_of: HostOf) -> None:
    host = host_of(FailingWorker(*NEVER))
    outcomes = [host.run(work(epoch, small=epoch != 20)) for epoch in range(10, 30)]
    for outcome in outcomes:
        assert {task: summary.rows_out for task, summary in outcome.shards.items()} == {(0, 0): 3, (0, 1): 0}
        assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]
        assert outcome.runs_on == "spark"
    counts = {epoch: jobs(context, f"orders epoch {epoch}") for epoch in range(10, 30)}
    assert [epoch for epoch, count in counts.items() if count] == [10, 20, 21], "before a series, and the large one"
    assert jobs(context, "orders small epochs from 11") == 1
    assert jobs(context, "orders small epochs from 22") == 1
    (series,) = context.statusTracker().getActiveJobsIds()
    host.close()
    _until(lambda: not context.statusTracker().getActiveJobsIds())
    info = context.statusTracker().getJobInfo(series)
    assert info is not None
    assert info.status == "SUCCEEDED", "its tasks have returned"


def test_an_error_of_a_task_is_that_of_the_epoch(context: SparkContext, host_of: HostOf) -> None:
    """Errors of ours travel as results, so the tasks stay."""
    host = host_of(FailingWorker("collect", SourceError("the broker is away"), 1))
    for epoch in range(40, 44):
        with pytest.raises(SourceError, match="the broker is away"):
            host.run(work(epoch))
    assert jobs(context, "orders small epochs from 41") == 1


@pytest.mark.parametrize(
    ("error", "first"), [(RuntimeError("the machine is on fire"), 50), (Superseded("another attempt was quicker"), 90)]
)
def test_an_epoch_whose_task_fails_is_run_as_a_job(
    context: SparkContext, host_of: HostOf, tmp_path: Path, error: Exception, first: int
) -> None:
    host, epochs = host_of(FailsOnce("never", error, 1, epoch=first + 2, directory=tmp_path)), range(first, first + 5)
    for epoch in epochs:
        assert len(host.run(work(epoch)).shards) == 2
    assert [jobs(context, f"orders epoch {epoch}") for epoch in epochs] == [1, 0, 1, 1, 1]


def test_an_executor_that_is_killed_in_a_series_loses_nothing(
    context: SparkContext, host_of: HostOf, tmp_path: Path
) -> None:
    if is_local(context.master):
        pytest.skip("its executor is the driver's process")
    host = host_of(EndsItsExecutor(*NEVER, directory=tmp_path, epoch=62))
    for epoch in range(60, 65):
        assert {task: summary.rows_out for task, summary in host.run(work(epoch)).shards.items()} == {
            (0, 0): 3,
            (0, 1): 0,
        }
    assert [jobs(context, f"orders epoch {epoch}") for epoch in range(60, 65)] == [1, 0, 1, 1, 1]


def test_peers_of_a_series_stay_with_their_executors(context: SparkContext, host_of: HostOf, tmp_path: Path) -> None:
    host = host_of(NotesItsPlace(*NEVER, directory=tmp_path))
    for epoch in range(70, 76):
        host.run(work(epoch))
    locations = [path.name.rsplit("@", 1)[0] for path in tmp_path.glob("shard *")]
    assert sorted(locations) == ["shard 0", "shard 1"], "each at one place"
