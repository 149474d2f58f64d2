"""Epochs of a driver whose Spark is still on its way: here, then there; what is open here is closed in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from hosts.visits import JOB
from joinery_runtime.connectors.kafka.producers import PRODUCERS, OwningProducer
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import EnvironmentProblem, JoineryError, RecordError, Superseded
from joinery_runtime.hosts import worker_builder
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.driver_epochs import DriverEpochs, local_host
from joinery_runtime.hosts.java_process import JavaStart
from joinery_runtime.hosts.placement import ALONE, WAIT_FOR_SPARK, EpochPlacement
from joinery_runtime.hosts.run import run_job
from joinery_runtime.hosts.worker_builder import TaskWiring
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore

DONE = EpochOutcome(ReadSummary(()), {})


def work(epoch: int) -> EpochWork:
    return EpochWork(1, EpochPlan(epoch, 1, (), {}), ())


class Scene:
    """A host here, and one of Spark's that is there once `spark_starts` was called. `seen` is what happened."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.here_raises: Callable[[], Exception | None] = lambda: None
        self._released, self._fails = Event(), list[Exception]()
        self._start: BackgroundCall[Host] = BackgroundCall(self._spark, "spark")
        self.host = DriverEpochs(self._here, self._start, 2)

    def spark_starts(self, fails: Exception | None = None) -> None:
        self.spark_is_starting(fails)
        self._start.join()

    def spark_is_starting(self, fails: Exception | None = None) -> None:
        self._fails += [fails] if fails is not None else []
        self._released.set()

    def _spark(self) -> Host:
        self._released.wait()
        for error in self._fails:
            raise error
        return Recorded("spark", self, lambda: None)

    def _raises_here(self) -> Exception | None:
        return self.here_raises()

    @contextmanager
    def _here(self) -> Iterator[Host]:
        self.seen.append("opened")
        yield Recorded("here", self, self._raises_here)
        self.seen.append("closed")


class Recorded:
    def __init__(self, name: str, scene: Scene, raises: Callable[[], Exception | None]) -> None:
        self._name, self._scene, self._raises = name, scene, raises
        self.cores, self.processes = 2, 3

    def run(self, work: EpochWork) -> EpochOutcome:
        self._scene.seen.append(f"{self._name} {work.plan.epoch}")
        error = self._raises()
        if error is not None:
            raise error
        return DONE


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.spark_starts()


def test_epochs_are_run_here_until_spark_is_there_and_then_nothing_is_open_here(scene: Scene) -> None:
    assert [scene.host.run(work(1)), scene.host.run(work(2))] == [DONE, DONE]
    scene.spark_starts()
    assert scene.host.run(work(3)) is DONE
    scene.host.close()
    assert scene.seen == ["opened", "here 1", "here 2", "closed", "spark 3"]


def test_one_process_has_the_rows_of_an_epoch_until_one_was_run_on_spark(scene: Scene) -> None:
    scene.host.run(work(1))
    assert scene.host.processes == 1
    scene.spark_starts()
    assert scene.host.processes == 1
    scene.host.run(work(2))
    assert scene.host.processes == 3


def test_nothing_is_opened_here_where_spark_is_first(scene: Scene) -> None:
    scene.spark_starts()
    scene.host.run(work(1))
    assert scene.seen == ["spark 1"]


def test_epochs_stay_on_spark_however_small_they_are(scene: Scene) -> None:
    scene.host.run(work(1))
    scene.spark_starts()
    for epoch in range(2, 102):
        scene.host.run(work(epoch))
    assert scene.seen == ["opened", "here 1", "closed", *(f"spark {epoch}" for epoch in range(2, 102))]


def test_the_drivers_segments_stay_until_an_epoch_on_spark_has_taken_them_over(scene: Scene) -> None:
    scene.host = DriverEpochs(scene._here, scene._start, 2, lambda: scene.seen.append("dropped"))
    scene.host.run(work(1))
    scene.spark_starts()
    scene.host.run(work(2))
    assert scene.seen == ["opened", "here 1", "closed", "spark 2", "dropped"]


def test_a_job_that_ends_before_closes_what_is_open(scene: Scene) -> None:
    scene.host.run(work(1))
    scene.host.close()
    assert scene.seen == ["opened", "here 1", "closed"]


def test_the_next_epoch_says_why_spark_does_not_start(scene: Scene) -> None:
    scene.host.run(work(1))
    scene.spark_starts(EnvironmentProblem("Spark needs Java"))
    for _ in range(2):
        with pytest.raises(EnvironmentProblem, match="Spark needs Java"):
            scene.host.run(work(2))


def test_what_another_attempt_took_over_spark_runs_again(scene: Scene) -> None:
    scene.here_raises = lambda: Superseded("another attempt took over")
    scene.spark_is_starting()
    assert scene.host.run(work(1)) is DONE
    assert scene.seen[-1] == "spark 1"


def test_errors_arrive_as_they_do_from_spark(scene: Scene) -> None:
    ours = RecordError("what happened")
    scene.here_raises = lambda: ours
    with pytest.raises(RecordError) as raised:
        scene.host.run(work(1))
    assert raised.value is ours
    scene.here_raises = lambda: ValueError("no such thing")
    with pytest.raises(JoineryError, match=r"Epoch 2 failed in the driver: ValueError: no such thing\. Nothing of it"):
        scene.host.run(work(2))


def test_without_spark_all_epochs_are_run_here(scene: Scene) -> None:
    host = DriverEpochs(scene._here, None, 2)
    scene.spark_starts()
    assert [host.run(work(1)), host.run(work(2))] == [DONE, DONE]
    host.close()
    assert scene.seen == ["opened", "here 1", "here 2", "closed"]


def test_without_spark_what_another_attempt_took_over_is_tried_again_here(scene: Scene) -> None:
    host, raised = DriverEpochs(scene._here, None, 2), [Superseded("another attempt took over")] * 3
    scene.here_raises = lambda: raised.pop() if raised else None
    assert host.run(work(1)) is DONE
    assert scene.seen == ["opened", *["here 1"] * 4]
    raised += [Superseded("another attempt took over")] * 4
    with pytest.raises(Superseded):
        host.run(work(2))


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local-cluster[2,3,1024]", 6)]
)
def test_the_driver_has_as_many_threads_as_its_spark_has_cores(master: str, cores: int) -> None:
    assert EpochPlacement.of({}, master).cores == cores
    assert EpochPlacement.of({}, "local[*,4]").cores == EpochPlacement.of({}, "local[*]").cores >= 1


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*,4]", True), ("local-cluster[2,1,1024]", True), ("spark://there:7077", False), ("k8s://there", False)],
)
def test_only_a_spark_on_this_machine_is_started_meanwhile(
    master: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    assert EpochPlacement.of({}, master) == EpochPlacement(master, begins_in_driver=here, uses_spark=True)
    monkeypatch.setenv(WAIT_FOR_SPARK, "1")
    assert not EpochPlacement.of({}, master).begins_in_driver
    assert EpochPlacement.of({}, master, local=True) == EpochPlacement(ALONE, begins_in_driver=True, uses_spark=False)


def test_all_epochs_run_on_a_spark_that_has_started() -> None:
    started = EpochPlacement.of({"spark.master": "local[2]"}, None, started_on="local[3]")
    assert started == EpochPlacement("local[3]", begins_in_driver=False, uses_spark=True)


class Closing:
    """A reader, or a producer."""

    def __init__(self, closed: list[str], name: str) -> None:
        self._closed, self._name = closed, name

    def close(self) -> None:
        self._closed.append(self._name)


def test_the_driver_lets_go_of_readers_and_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    target = KafkaTarget("out", "broker:9092")
    monkeypatch.setattr(worker_builder, "reader_for", lambda _: Closing(closed, "reader"))
    tasks = TaskWiring.of(parse_job(JOB, "job.yaml"))
    with worker_builder.local_worker(tasks, MemoryStore(), None, tmp_path) as worker:
        worker._parts.inputs.reader("clicks", 0)
    assert closed == ["reader"]
    with local_host(tasks, MemoryStore(), None, 2, tmp_path):
        PRODUCERS.put(target, "visits", cast(OwningProducer, Closing(closed, "producer")))
    assert closed == ["reader", "producer"]
    assert PRODUCERS.take(target, "visits") is None


def run_visits(tmp_path: Path, *, local: bool) -> list[str]:
    """Where its epochs ran."""
    (tmp_path / "clicks.jsonl").write_text('{"user": "a", "ts": "2026-01-01T00:00:00Z"}\n')
    text = JOB.replace("clicks.jsonl", str(tmp_path / "clicks.jsonl")).replace("path: out", f"path: {tmp_path / 'out'}")
    job, ran = parse_job(text + "  stateStore: {memory: {}}\n", "job.yaml"), list[str]()
    hears = JobListener(
        lambda _: None, lambda epoch: ran.append(epoch.report.runs_on), lambda error, _: pytest.fail(str(error))
    )
    run_job(job, hears, Event(), master=None if local else "local[2,4]", warn=lambda _: None, local=local)
    return ran


def written(tmp_path: Path) -> str:
    return "".join(part.read_text() for part in (tmp_path / "out").glob("epoch-*"))


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_sparks_start_begins_with_the_job_and_ends_with_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    began, given_up = Event(), Event()

    def start(name: str, conf: dict[str, str], master: str | None, java: JavaStart, warn: object) -> None:
        began.set()
        assert given_up.wait(60)
        raise EnvironmentProblem("The start of Spark was given up")

    monkeypatch.setattr("joinery_runtime.hosts.spark.start_context", start)
    monkeypatch.setattr(JavaStart, "give_up", lambda _: given_up.set())
    assert set(run_visits(tmp_path, local=False)) == {"driver"}
    assert began.is_set()
    assert '"user":"a"' in written(tmp_path)


@pytest.mark.usefixtures("without_java")
def test_without_java_a_job_is_rejected_with_the_way_without_spark(tmp_path: Path) -> None:
    todo = "Install Java 17 or newer; or run the job in this process, without Spark: joinery run --local"
    with pytest.raises(EnvironmentProblem, match=f"Spark needs Java: no java on PATH, JAVA_HOME is not set. {todo}"):
        run_visits(tmp_path, local=False)
    assert not written(tmp_path)


@pytest.mark.usefixtures("without_java")
def test_a_local_run_needs_no_java(tmp_path: Path) -> None:
    assert set(run_visits(tmp_path, local=True)) == {"driver"}
    assert '"user":"a"' in written(tmp_path)
