"""Where tasks of an epoch run on a real cluster of two workers, and who takes part when an executor comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF
from hosts.stand_ins import PATIENCE_S, FailingWorker, NotesItsPlace
from joinery_devkit.spark_cluster import StandaloneCluster
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts.executors import ActiveExecutors, executor_ids, request_executors
from joinery_runtime.hosts.spark import SparkHost, start_context
from joinery_runtime.hosts.spark_internals import exchanged_rdd, placed_again_rdd, placed_rdd
from joinery_runtime.hosts.spark_jobs import JobNames
from joinery_runtime.hosts.spark_tasks import WorkerSetup

# Slow: the secret of a Spark that another test has started in this process would be the cluster's, which refuses it.
pytestmark = [pytest.mark.services, pytest.mark.slow]

WORK = EpochWork(
    generation=1,
    plan=EpochPlan(7, 2, tuple(Range(PartitionRef("l", "t", p), 0, 5) for p in range(3)), {"l": None, "r": None}),
    segments=(),
)


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    with StandaloneCluster(workers=2) as cluster:
        conf = {**TASK_CONF, "spark.executor.memory": "512m", "spark.authenticate.secret": cluster.secret}
        context = start_context("placement", conf, cluster.master_url)
        _until(lambda: len(executor_ids(context)) == 2)
        yield context
        context.stop()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_item_is_for_the_executor_of_its_number(context: SparkContext) -> None:
    executors = ActiveExecutors(context, lambda _: None, JobNames(context, "job", ())).locations()
    assert [name.split("_")[0] for name in executors] == ["executor"] * 2, "the driver runs no tasks"
    placed = placed_rdd(context, ["a", "b", "c"], executors)
    rdd, jvm = placed._jrdd.rdd(), context._jvm
    preferred = [jvm.scala.jdk.javaapi.CollectionConverters.asJava(rdd.preferredLocations(p)) for p in rdd.partitions()]
    assert [list(locations) for locations in preferred] == [[executors[0]], [executors[1]], [executors[0]]]
    assert placed.map(lambda item: item * 2).collect() == ["aa", "bb", "cc"]


@pytest.mark.parametrize("peers", [1, 3])
def test_a_task_behind_a_shuffle_is_for_the_executor_of_its_number(context: SparkContext, peers: int) -> None:
    executors = ActiveExecutors(context, lambda _: None, JobNames(context, "job", ())).locations()
    sent = context.parallelize([(n % peers, n) for n in range(3_000)], 2)
    placed = placed_again_rdd(exchanged_rdd(sent, peers), peers, executors)
    rdd, spark = placed._jrdd.rdd(), context._jsc.sc()
    preferred = [spark.getPreferredLocs(rdd, n).head().toString() for n in range(peers)]
    assert preferred == [executors[n % 2] for n in range(peers)]
    received = placed.mapPartitionsWithIndex(lambda peer, pairs: [(peer, sorted(n for _, n in pairs))]).collect()
    assert received == [(peer, list(range(peer, 3_000, peers))) for peer in range(peers)]


def test_peers_stay_with_their_executors(context: SparkContext, tmp_path: Path) -> None:
    """Their processes have the consumers of its ranges and the segments of its shards."""
    worker = NotesItsPlace("never", RuntimeError(), directory=tmp_path)
    host = SparkHost(context, WorkerSetup(str(tmp_path), worker, worker.steps), "job")
    for _ in range(6):
        host.run(WORK)
    locations = [path.name.rsplit("@", 1) for path in tmp_path.glob("shard *")]
    assert sorted(what for what, _ in locations) == ["shard 0", "shard 1"], "each at one place"
    assert len({location for _, location in locations}) == 2


def test_executors_go_and_come_while_spark_runs(context: SparkContext) -> None:
    first, _ = executor_ids(context)
    assert request_executors(context, 1) == 1
    _until(lambda: executor_ids(context) == [first])
    assert request_executors(context, 2) == 0
    _until(lambda: len(executor_ids(context)) == 2)
    assert executor_ids(context)[0] == first


def test_a_new_executor_builds_its_worker_beside_the_epochs(context: SparkContext, tmp_path: Path) -> None:
    first, _ = executor_ids(context)
    request_executors(context, 1)
    _until(lambda: executor_ids(context) == [first])
    worker = NotesItsPlace("never", RuntimeError(), directory=tmp_path)
    host = SparkHost(context, WorkerSetup(str(tmp_path), worker, worker.steps), "job")
    host.run(WORK)
    request_executors(context, 2)

    def both_took_part() -> bool:
        host.run(WORK)
        return len({path.name.rsplit("@", 1)[1] for path in tmp_path.glob("shard *")}) == 2

    _until(both_took_part)
    built = sorted(path.read_text() for path in tmp_path.glob("built@*"))
    assert built == ["job: build a worker", "job: epoch 7, join"], "the first one in an epoch, the second in none"


def test_small_epochs_share_a_job_with_tasks_of_other_machines(context: SparkContext) -> None:
    """They connect by TLS."""
    worker = FailingWorker("never", RuntimeError(), 1)
    host = SparkHost(context, WorkerSetup("series", worker, 1), "shared", has_series=True)
    with closing(host):
        for epoch in range(10, 20):
            plan = replace(WORK.plan, epoch=epoch)
            assert len(host.run(replace(WORK, plan=plan, is_small=True)).shards) == 2
    jobs = context.statusTracker().getJobIdsForGroup
    assert [len(jobs(f"shared epoch {epoch}")) for epoch in range(10, 20)] == [1] + [0] * 9
    assert len(jobs("shared small epochs from 11")) == 1
