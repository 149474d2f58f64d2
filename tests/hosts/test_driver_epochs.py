"""Epochs of a driver whose Spark is still on its way: here, then there; what is open here is closed in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from hosts.visits import JOB
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.driver import Host
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import EnvironmentProblem, JoineryError, RecordError, Superseded
from joinery_runtime.hosts import worker_builder
from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.driver_epochs import (
    SPARK_AFTER,
    WAIT_FOR_SPARK,
    DriverEpochs,
    cores_of,
    host_here,
    may_run_here,
    spark_starts_after,
)
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import parse_job
from joinery_runtime.sinks.kafka_producers import PRODUCERS, OwningProducer
from joinery_runtime.sinks.kafka_target import KafkaTarget
from joinery_runtime.sources.base import PartitionRef, Range
from joinery_runtime.state.memory import MemoryStore

DONE = EpochOutcome(ReadSummary(()), {})


def work(epoch: int) -> EpochWork:
    return EpochWork(1, EpochPlan(epoch, 1, (), {}), ())


class Scene:
    """A host here, and one of Spark's that is there once `spark_starts` was called. `seen` is what happened."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.here_raises: Exception | None = None
        self._released, self._fails = Event(), list[Exception]()
        self._start: BackgroundCall[Host] = BackgroundCall(self._spark, "spark")
        self.host = DriverEpochs(self._here, lambda: self._start, 0.0)
        self.host._starting()

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

    @contextmanager
    def _here(self) -> Iterator[Host]:
        self.seen.append("opened")
        yield Recorded("here", self, lambda: self.here_raises)
        self.seen.append("closed")


class Recorded:
    def __init__(self, name: str, scene: Scene, raises: Callable[[], Exception | None]) -> None:
        self._name, self._scene, self._raises = name, scene, raises

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


def test_nothing_is_opened_here_where_spark_is_first(scene: Scene) -> None:
    scene.spark_starts()
    scene.host.run(work(1))
    assert scene.seen == ["spark 1"]


def many(scene: Scene, first: int, stop: int, of: Callable[[int], EpochWork] = work) -> list[str]:
    """Where those epochs were run."""
    scene.seen.clear()
    for epoch in range(first, stop):
        scene.host.run(of(epoch))
    return [seen.split()[0] for seen in scene.seen]


def large(epoch: int) -> EpochWork:
    ranges = (Range(PartitionRef("clicks", "clicks", 0), 0, 10_001),)
    return EpochWork(1, EpochPlan(epoch, 1, ranges, {}), ())


def with_much_state(epoch: int) -> EpochWork:
    return replace(work(epoch), segments=(SegmentMeta("a", "left", 0, 1, 0, 1, 1, 33 << 20, 1, 1),))


@pytest.mark.parametrize("not_small", [large, with_much_state])
def test_many_small_epochs_in_a_row_come_back_and_one_that_is_not_goes_to_spark(
    scene: Scene, not_small: Callable[[int], EpochWork]
) -> None:
    scene.spark_starts()
    assert many(scene, 1, 60) == ["spark"] * 49 + ["opened"] + ["here"] * 10
    assert many(scene, 60, 61, not_small) == ["closed", "spark"]
    assert many(scene, 61, 112) == ["spark"] * 49 + ["opened"] + ["here"] * 2


def test_small_epochs_stay_when_there_were_many_before_spark_was_there(scene: Scene) -> None:
    assert many(scene, 1, 61) == ["opened"] + ["here"] * 60
    scene.spark_starts()
    assert many(scene, 61, 63) == ["here"] * 2


def test_spark_has_the_next_ones_too_after_another_attempt_took_over(scene: Scene) -> None:
    scene.spark_starts()
    many(scene, 1, 60)
    scene.here_raises = Superseded("another attempt took over")
    assert many(scene, 60, 61) == ["here", "closed", "spark"]
    assert many(scene, 61, 70) == ["spark"] * 9


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
    scene.here_raises = Superseded("another attempt took over")
    scene.spark_is_starting()
    assert scene.host.run(work(1)) is DONE
    assert scene.seen[-1] == "spark 1"


def test_errors_arrive_as_they_do_from_spark(scene: Scene) -> None:
    scene.here_raises = ours = RecordError("what happened")
    with pytest.raises(RecordError) as raised:
        scene.host.run(work(1))
    assert raised.value is ours
    scene.here_raises = ValueError("no such thing")
    with pytest.raises(JoineryError, match=r"Epoch 2 failed in the driver: ValueError: no such thing\. Nothing of it"):
        scene.host.run(work(2))


def test_spark_starts_once_large_epochs_have_kept_the_driver_busy() -> None:
    seen, now = list[str](), 0.0

    class Takes:
        def run(self, work: EpochWork) -> EpochOutcome:
            nonlocal now
            now += 3.0
            seen.append("here")
            return DONE

    class OnSpark:
        def run(self, work: EpochWork) -> EpochOutcome:
            seen.append("spark")
            return DONE

    def start() -> BackgroundCall[Host]:
        seen.append("started")
        started = BackgroundCall[Host](OnSpark, "spark")
        started.join()
        return started

    host = DriverEpochs(lambda: nullcontext(Takes()), start, 5.0, lambda: now)
    for epoch in range(1, 20):
        host.run(work(epoch))  # small ones: however many, they need no Spark
    assert seen == ["here"] * 19
    seen.clear()
    for epoch in range(20, 24):
        host.run(large(epoch))
    assert seen == ["here", "here", "started", "spark", "spark"]


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local-cluster[2,3,1024]", 6)]
)
def test_the_driver_has_as_many_threads_as_its_spark_has_cores(master: str, cores: int) -> None:
    assert cores_of(master) == cores
    assert cores_of("local[*,4]") == cores_of("local[*]") >= 1


def test_cores_that_one_process_cannot_use_are_sparks_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPARK_AFTER, raising=False)
    assert spark_starts_after("local[8]") > spark_starts_after("local[9]") == 0
    monkeypatch.setenv(SPARK_AFTER, "0.5")
    assert spark_starts_after("local[9]") == 0.5
    monkeypatch.setenv(SPARK_AFTER, "soon")
    with pytest.raises(EnvironmentProblem, match="JOINERY_SPARK_AFTER holds no number: it is 'soon'"):
        spark_starts_after("local[2]")


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*,4]", True), ("local-cluster[2,1,1024]", True), ("spark://there:7077", False), ("k8s://there", False)],
)
def test_only_a_spark_on_this_machine_is_started_meanwhile(
    master: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    assert may_run_here(master) is here
    monkeypatch.setenv(WAIT_FOR_SPARK, "1")
    assert not may_run_here(master)


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
    with worker_builder.worker_here(parse_job(JOB, "job.yaml"), MemoryStore(), None, tmp_path) as worker:
        worker._parts.inputs.reader("clicks", 0)
    assert closed == ["reader"]
    with host_here(parse_job(JOB, "job.yaml"), MemoryStore(), None, 2):
        PRODUCERS.put(target, "visits", cast(OwningProducer, Closing(closed, "producer")))
    assert closed == ["reader", "producer"]
    assert PRODUCERS.take(target, "visits") is None


def run_visits(tmp_path: Path) -> None:
    (tmp_path / "clicks.jsonl").write_text('{"user": "a", "ts": "2026-01-01T00:00:00Z"}\n')
    text = JOB.replace("clicks.jsonl", str(tmp_path / "clicks.jsonl")).replace("path: out", f"path: {tmp_path / 'out'}")
    job = parse_job(text + "  stateStore: {memory: {}}\n", "job.yaml")
    hears = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))
    run_job(job, hears, Event(), master="local[2,4]", warn=lambda _: None)


def test_a_short_job_starts_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    monkeypatch.delenv(SPARK_AFTER, raising=False)
    monkeypatch.setattr("joinery_runtime.hosts.spark.start_context", lambda *_: pytest.fail("Spark was started"))
    run_visits(tmp_path)
    assert '"user":"a"' in "".join(part.read_text() for part in (tmp_path / "out").glob("epoch-*"))


def test_a_short_job_says_too_that_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT_FOR_SPARK, raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentProblem, match="Spark needs Java: no java on PATH"):
        run_visits(tmp_path)
    assert not list((tmp_path / "out").glob("epoch-*"))
