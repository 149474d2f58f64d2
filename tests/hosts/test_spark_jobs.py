"""What Spark calls the jobs and stages of one process. On two executors: tests/hosts/test_spark_ui.py."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF
from hosts.stand_ins import PATIENCE_S, FailingWorker, NeverEnds
from hosts.test_spark_progress import JOB
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts.spark import SparkHost, start_context
from joinery_runtime.hosts.spark_jobs import WORK, JobNames, collect_rdd, restore_names
from joinery_runtime.hosts.spark_tasks import WorkerSetup
from joinery_runtime.hosts.wiring import step_titles
from joinery_runtime.job import job_from


def work(epoch: int) -> EpochWork:
    ranges = (Range(PartitionRef("l", "t", 0), 0, 5),)
    return EpochWork(generation=1, plan=EpochPlan(epoch, 2, ranges, {"l": None, "r": None}), segments=())


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    context = start_context("names", TASK_CONF, "local[2]")
    yield context
    context.stop()


def stage_names(context: SparkContext, group: str) -> list[str]:
    tracker = context.statusTracker()
    infos = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job)) is not None]
    stages = [tracker.getStageInfo(stage) for info in infos for stage in info.stageIds]
    return [stage.name for stage in stages if stage is not None]


def test_the_steps_of_a_job_in_words() -> None:
    assert step_titles(job_from(JOB)) == ("inner interval join",)
    two = copy.deepcopy(JOB)
    two["spec"]["inputs"].append({**two["spec"]["inputs"][0], "name": "rates"})
    interval = {"of": "orders", "lower": "-10ms", "upper": "10ms"}
    two["spec"]["joins"].append(
        {"right": "rates", "type": "left", "keys": {"orders.k": "rates.k"}, "interval": interval}
    )
    assert step_titles(job_from(two)) == ("step 1, inner interval join", "step 2, left interval join")


@pytest.mark.parametrize(
    ("steps", "described"),
    [
        (("inner interval join",), "orders: epoch 8, join"),
        (("step 1, inner interval join", "step 2, left interval join"), "orders: epoch 8, join"),
        (("sessions of clicks",), "orders: epoch 8, sessions"),
    ],
)
def test_an_epochs_description_says_what_its_steps_do(steps: tuple[str, ...], described: str) -> None:
    groups: list[tuple[str, str]] = []
    context: Any = SimpleNamespace(setJobGroup=lambda *names: groups.append(names), setLocalProperty=lambda *_: None)
    JobNames(context, "orders", steps).name_epoch(8)
    assert groups == [("orders epoch 8", described)]


@pytest.mark.services
@pytest.mark.slow
class TestOnSpark:
    def test_the_only_stage_names_all_that_it_does(self, context: SparkContext) -> None:
        worker = FailingWorker("never", RuntimeError(), steps=1)
        host = SparkHost(context, WorkerSetup("names", worker, 1), "orders", steps=("inner interval join",))
        host.warm()
        host.run(work(8))
        host.run(work(9))
        assert stage_names(context, "orders epoch 8") == ["orders: read, inner interval join, collect"]
        assert stage_names(context, "orders epoch 9") == ["orders: read, inner interval join, collect"]
        assert stage_names(context, "orders build workers") == ["orders: build workers"]

    def test_whoever_cancels_the_group_of_an_epoch_ends_the_epoch(self, context: SparkContext, tmp_path: Path) -> None:
        worker = NeverEnds("never", RuntimeError(), steps=1, begun=tmp_path / "begun")
        host = SparkHost(context, WorkerSetup("never ends", worker, 1), "orders")

        def cancel() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not worker.begun.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            context.cancelJobGroup("orders epoch 10")

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        with pytest.raises(JoineryError, match=r"(?s)Spark gave up on epoch 10.*orders epoch 10.*Nothing of it was"):
            host.run(work(10))
        cancelling.join()

    def test_names_of_before_return_and_those_of_jobs_in_between_do_not_stay(self, context: SparkContext) -> None:
        with restore_names(context):
            before = {"spark.jobGroup.id": "before", "callSite.short": "a cell", "spark.scheduler.pool": "a pool"}
            nothing: Any = None
            for name, value in {**before, "spark.job.description": nothing}.items():
                context.setLocalProperty(name, value)
            with restore_names(context):
                worker = FailingWorker("never", RuntimeError(), steps=1)
                SparkHost(context, WorkerSetup("names", worker, 1), "orders").run(work(11))
                context.setLocalProperty("spark.scheduler.pool", "another")
            assert {name: context.getLocalProperty(name) for name in before} == before
            assert context.getLocalProperty("spark.job.description") is None

    def test_epochs_of_one_stage_share_what_spark_has_of_them(self, context: SparkContext) -> None:
        """Each gets its own work, as a property that other jobs of the thread do not have."""
        worker = FailingWorker("never", RuntimeError(), steps=1)
        host: Any = SparkHost(context, WorkerSetup("names", worker, 1), "orders")
        nothing: Any = None
        context.setLocalProperty(WORK, nothing)
        with restore_names(context):
            outcomes = [
                host.run(work(12)),
                host.run(replace(work(13), plan=EpochPlan(13, 4, work(13).plan.ranges, {}))),
            ]
            assert [len(outcome.shards) for outcome in outcomes] == [2, 4]
            _, job = host._one_stage
            assert context.getLocalProperty(WORK) is not None
            host.run(work(14))
            assert host._one_stage[1] is job, "Spark keeps the RDDs"
        assert context.getLocalProperty(WORK) is None

    @pytest.mark.parametrize("unfit", ["work is large", "events are logged"])
    def test_work_that_is_no_property_comes_with_the_stage(
        self, context: SparkContext, unfit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = FailingWorker("never", RuntimeError(), steps=1)
        host: Any = SparkHost(context, WorkerSetup("names", worker, 1), "orders")
        with restore_names(context):
            host.run(work(15))
            assert context.getLocalProperty(WORK) is not None
            if unfit == "work is large":
                monkeypatch.setattr("joinery_runtime.hosts.spark._MOST_IN_PROPERTY", 10)
            else:  # the log would hold the names of the state's segments twice for each epoch
                monkeypatch.setattr("joinery_runtime.hosts.spark.logs_events", lambda _: True)
                host._keeps_jobs = None
            assert len(host.run(work(16)).shards) == 2
            assert context.getLocalProperty(WORK) is None

    def test_what_is_collected_is_in_the_order_of_the_partitions(self, context: SparkContext) -> None:
        assert collect_rdd(context.parallelize(range(10), 3).map(str), 3) == [str(n) for n in range(10)]
        assert collect_rdd(context.parallelize([], 1), 1) == []
