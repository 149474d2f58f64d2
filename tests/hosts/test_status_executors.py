"""Spark, watched beside the loop: executors, tasks that end, and a job that waits for executors in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from threading import Event
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from joinery_devkit.spark_cluster import StandaloneCluster
from joinery_runtime.hosts.spark import start_context, stop_context
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.hosts.status.executors import (
    PATIENCE_S,
    STOP_PATIENCE_S,
    ExecutorSample,
    SparkWatch,
    Starvation,
    run_watch,
    sample_executors,
)

WAIT_S = 240.0


@pytest.mark.parametrize(
    "sample",
    [
        ExecutorSample(None, (1,)),
        ExecutorSample(1, (1,)),
        ExecutorSample(1),
        ExecutorSample(0, scales_to_zero=True),
    ],
    ids=["tasks run in the driver", "an executor runs", "an executor waits for work", "none is kept without work"],
)
def test_a_job_that_can_run_or_need_not_is_not_hungry(sample: ExecutorSample) -> None:
    starvation = Starvation()
    assert starvation.warning(sample, 0) is starvation.warning(sample, 10 * PATIENCE_S) is None


def test_missing_executors_are_told_after_a_while_and_then_now_and_again() -> None:
    starvation, starved = Starvation(), ExecutorSample(0, (1,))
    warned_at = [at for at in range(0, 200, 5) if starvation.warning(starved, at)]
    assert warned_at == [60, 120, 180]
    warning = starvation.warning(starved, 245)
    assert warning is not None
    assert str(warning).startswith("No executor has run for 245 s: Spark has asked")


def test_an_executor_ends_the_wait() -> None:
    starvation, starved = Starvation(), ExecutorSample(0, (1,))
    assert starvation.warning(starved, 0) is None
    assert starvation.warning(ExecutorSample(1, (1,)), 59) is None
    assert starvation.warning(starved, 60) is None
    assert starvation.seconds(starved, 100) == 40


# --- on a real Spark --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare() -> Iterator[SparkContext]:
    """A cluster without workers."""
    with StandaloneCluster(workers=0) as cluster:
        context = start_context(
            "no executors",
            {"spark.driver.host": "127.0.0.1", "spark.authenticate.secret": cluster.secret},
            cluster.master_url,
        )
        yield context
        stop_context(context)


class Scene:
    def __init__(self, context: SparkContext) -> None:
        self.context, self.stop, self.said = context, Event(), list[str]()
        self.board = Board("job", ["orders"], Liveness(600))
        self.watch = SparkWatch(context, self.board, self.stop, self.said.append)
        self.error: Exception | None = None
        self._epoch = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.context.parallelize([1], 1).collect()
        except Exception as error:
            self.error = error

    def __enter__(self) -> Scene:
        self._epoch.start()
        self.until(lambda: sample_executors(self.context).jobs)
        return self

    def __exit__(self, *_: object) -> None:
        self.context.cancelAllJobs()
        self._epoch.join(WAIT_S)

    @staticmethod
    def until(holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.services
@pytest.mark.slow
def test_a_job_without_executors_is_told_and_a_stop_ends_it(bare: SparkContext) -> None:
    with Scene(bare) as scene:
        scene.watch.poll(1_000)
        assert (scene.board.snapshot.executors, scene.said) == (0, [])
        scene.watch.poll(1_000 + PATIENCE_S)
        assert scene.board.snapshot.error == scene.said[0]
        assert "No executor has run for 60 s" in scene.said[0]
        assert not scene.watch.gave_up
        scene.stop.set()
        scene.watch.poll(1_000 + PATIENCE_S + STOP_PATIENCE_S)
        assert scene.watch.gave_up
        scene._epoch.join(WAIT_S)
        assert scene.error is not None
        assert "cancelled" in str(scene.error)


@pytest.mark.services
@pytest.mark.slow
def test_an_executor_runs_a_task_before_there_are_records(bare: SparkContext) -> None:
    scene, ran = Scene(bare), Event()
    scene.watch.begin_trial(ran.set)
    scene.watch.poll(1_000)
    waits_for = scene.board.snapshot.waits_for
    assert waits_for is not None
    assert waits_for.error.system == "executors"
    assert not scene.board.snapshot.workers_ran
    assert not ran.is_set()


class FakeSpark:
    """The part of a context that the watch looks at."""

    master = "k8s://here"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, executors: int | None = 1, **conf: str) -> None:
        self.executors, self.jobs, self.cancelled = executors, list[int](), 0
        self._conf = {f"spark.dynamicAllocation.{name}": value for name, value in conf.items()}
        self.log = ""
        module = "joinery_runtime.hosts.status.executors"
        monkeypatch.setattr(f"{module}.count_executors", lambda _: self.executors)
        monkeypatch.setattr(f"{module}.record_log_errors", lambda *_: self._take_log)

    def _take_log(self) -> str:
        text, self.log = self.log, ""
        return text

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self._conf

    def statusTracker(self) -> FakeSpark:  # noqa: N802 - Spark's name
        return self

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return self.jobs

    def getJobInfo(self, job: int) -> SimpleNamespace:  # noqa: N802 - Spark's name
        return SimpleNamespace(stageIds=[job])

    def getStageInfo(self, stage: int) -> SimpleNamespace:  # noqa: N802 - Spark's name
        return SimpleNamespace(numCompletedTasks=stage)

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        self.cancelled += 1


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (ConnectionError("closed"), "the driver's Java process is gone"),
        (TimeoutError("timed out"), "TimeoutError: timed out"),
        (EOFError(), "EOFError: "),
        (PySparkRuntimeError("no worker"), "PySparkRuntimeError: no worker"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_task_that_failed_is_tried_again_until_one_runs(
    monkeypatch: pytest.MonkeyPatch, error: Exception, facts: str
) -> None:
    scene, tries = Scene(FakeSpark(monkeypatch)), list[int]()  # type: ignore[arg-type]

    def fail_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise error

    scene.watch.begin_trial(fail_once)
    for _ in range(2):
        scene.watch.poll(0)
        assert scene.watch._trial is not None
        scene.watch._trial.join(WAIT_S)
    assert str(scene.board.snapshot.error) == f"An executor cannot run a task: {facts}"
    assert not scene.board.snapshot.workers_ran
    scene.watch.poll(0)
    assert scene.board.snapshot.workers_ran
    scene.watch.poll(0)
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("conf", "waits"),
    [
        ({}, True),
        ({"enabled": "false", "minExecutors": "0"}, True),
        ({"enabled": "true", "minExecutors": "1"}, True),
        ({"enabled": "true"}, False),
        ({"enabled": "true", "minExecutors": "0"}, False),
    ],
)
def test_a_job_without_work_waits_for_executors_that_spark_keeps(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], waits: bool
) -> None:
    scene, tried = Scene(FakeSpark(monkeypatch, 0, **conf)), Event()  # type: ignore[arg-type]
    scene.watch.begin_trial(tried.set)
    scene.watch.poll(0)
    scene.watch.poll(PATIENCE_S)
    assert (scene.board.snapshot.starved is not None, bool(scene.said)) == (waits, waits)
    assert tried.wait(0 if waits else 30) != waits, "the task makes Spark ask for an executor"


def rejected(number: int, message: str) -> str:
    """What Kubernetes' client for Java says when the API server rejects the pod of this executor."""
    return (
        "Failure executing: POST at: https://10.0.0.1/api/v1/namespaces/shop/pods. Message: pods "
        f'"orders-exec-{number}" is forbidden: {message}. Received status: Status(apiVersion=v1, code=403).\n'
    )


def test_what_the_api_server_says_of_executors_that_it_rejects_is_told_while_none_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = FakeSpark(monkeypatch, 0)
    scene = Scene(spark)  # type: ignore[arg-type]

    def told(now: float) -> str:
        scene.watch.poll(now)
        return str(scene.board.snapshot.starved and scene.board.snapshot.starved.error)

    quota = "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1"
    assert "none has come" in told(0)
    spark.log = rejected(1, quota) + "\n" + rejected(2, quota)
    text = told(5)
    assert f"Kubernetes rejects the pods of executors: forbidden: {quota}. " in text
    assert told(10) == text, "nothing has ended it"
    spark.log = rejected(3, 'violates PodSecurity "restricted:latest": hostPort (v1.34)')
    assert "hostPort (v1.34). Look at" in told(15)
    told(PATIENCE_S)
    assert "hostPort" in scene.said[-1]
    spark.executors = 1
    scene.watch.poll(PATIENCE_S + 5)
    assert scene.board.snapshot.starved is None
    spark.executors = 0
    assert "none has come" in told(PATIENCE_S + 10)


def test_a_job_whose_executors_scale_to_zero_waits_for_them_once_work_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = FakeSpark(monkeypatch, 0, enabled="true")
    scene = Scene(spark)  # type: ignore[arg-type]
    spark.jobs = [7]
    scene.watch.poll(0)
    assert scene.board.snapshot.starved is None, "Spark has only just asked for one"
    scene.watch.poll(PATIENCE_S)
    assert scene.board.snapshot.starved is not None
    spark.executors = 1
    scene.watch.poll(PATIENCE_S + 5)
    assert scene.board.snapshot.starved is None


def test_a_stop_gives_up_an_epoch_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees `gave_up` takes the next error for that of the epoch."""
    spark, go_on = FakeSpark(monkeypatch, 0, enabled="true"), Event()
    scene = Scene(spark)  # type: ignore[arg-type]
    scene.watch.begin_trial(lambda: bool(go_on.wait(WAIT_S)) and None)
    scene.watch.poll(0)
    scene.stop.set()
    spark.jobs = [1]  # the trial's
    for now in (5, 5 + STOP_PATIENCE_S):
        scene.watch.poll(now)
    assert (scene.watch.gave_up, spark.cancelled) == (False, 0)
    spark.jobs = [1, 2]
    scene.watch.poll(10 + STOP_PATIENCE_S)
    assert (scene.watch.gave_up, spark.cancelled) == (True, 1)
    go_on.set()


def test_a_stop_while_no_job_runs_gives_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch, 0)
    scene = Scene(spark)  # type: ignore[arg-type]
    scene.stop.set()
    for now in (0, STOP_PATIENCE_S):
        scene.watch.poll(now)
    assert (scene.watch.gave_up, spark.cancelled) == (False, 0)


def test_a_new_host_has_to_show_that_its_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(FakeSpark(monkeypatch))  # type: ignore[arg-type]
    scene.board.note_workers(ran=True)
    scene.watch.begin_trial(None)
    scene.watch.poll(0)
    assert (scene.watch._trial, scene.board.snapshot.workers_ran) == (None, False)


def test_tasks_that_end_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch)
    scene = Scene(spark)  # type: ignore[arg-type]
    for done in (3, 9):
        spark.jobs = [done]
        scene.watch.poll(0)
        assert scene.board.snapshot.tasks == done


@pytest.mark.services
@pytest.mark.slow
def test_the_watch_looks_from_a_thread_of_its_own_until_it_is_closed(bare: SparkContext) -> None:
    scene = Scene(bare)
    with run_watch(scene.watch):
        Scene.until(lambda: scene.board.snapshot.executors == 0)
    assert "joinery-spark-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_java_process_that_is_gone_ends_the_watch_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(FakeSpark):
        def statusTracker(self) -> FakeSpark:  # noqa: N802 - Spark's name
            raise ConnectionRefusedError(111, "Connection refused")

    scene = Scene(Gone(monkeypatch))  # type: ignore[arg-type]
    scene.watch.run(Event())
    assert scene.board.snapshot.executors == 0
