"""A job that is rescaled while it runs: the file that says so, and what is asked of planner and Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Scaling
from joinery_runtime.hosts.scale import Rescaler, ScaleFile
from joinery_runtime.job.crd import SCALE_FILE, Scale
from joinery_runtime.job.model.pods import Autoscale, SparkSpec
from joinery_runtime.job.model.resource import JobSpec


class Planner:
    shards = 8

    def rescale(self, shards: int) -> None:
        self.shards = shards


class Cluster:
    """Spark, as far as executors go: those that are asked for run at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, executors: int) -> None:
        self.master, self.executors, self.requests = "k8s://here", executors, 0
        self.had_tasks_ended = list[bool]()  # at each request
        self._tasks_ended = False
        monkeypatch.setattr(
            "joinery_runtime.hosts.executors.executor_ids", lambda _: [str(n) for n in range(self.executors)]
        )
        monkeypatch.setattr("joinery_runtime.hosts.executors.request_executors", self.request)

    def request(self, _: object, count: int) -> None:
        self.executors, self.requests = count, self.requests + 1
        self.had_tasks_ended.append(self._tasks_ended)
        self._tasks_ended = False

    def end_tasks(self) -> None:
        self._tasks_ended = True

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.executor.instances": str(self.executors)}


class Follower:
    """A job whose file says what a test writes; a second passes between two polls."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        text: str = "",
        cluster: Cluster | None = None,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.now, self.said = folder / "scale", 0.0, list[str]()
        self.scaled: list[Scaling] = []
        self.planner: Any = Planner()
        monkeypatch.setenv(SCALE_FILE, str(self.path))
        self.path.write_text(text)
        nothing: Any = lambda *_: None  # noqa: E731
        listener = JobListener(nothing, nothing, nothing, warned=self.said.append, scaled=self.scaled.append)
        job: Any = JobSpec.model_construct(spark=SparkSpec.model_validate({"executor": {"cores": 2}}), **(spec or {}))
        context: Any = cluster
        end_tasks = cluster.end_tasks if cluster is not None else lambda: None
        rescaler = Rescaler(job, self.planner, lambda: context, listener, end_tasks, lambda: self.now)
        self.listener = rescaler.as_listener()

    def poll(self, text: str | None = None, **backlog: int) -> int:
        if text is not None:
            self.path.write_text(text)
        self.now += 1
        driver: Any = SimpleNamespace(backlog=backlog, paused={"paused": "over its limit"})
        self.listener.polled(driver)
        return int(self.planner.shards)

    def epoch(self, records: int) -> None:
        report: Any = SimpleNamespace(rows_in={"a": records})
        self.listener.committed(CommittedEpoch(report, 1.0))


def test_shards_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Follower(tmp_path, monkeypatch, '{"shards": 4, "instances": 2}')
    assert (job.planner.shards, job.said) == (4, [])
    assert job.poll() == 4
    assert job.poll('{"shards": 16, "instances": 2}') == 16
    assert job.said == ["Rescaled: 16 shards instead of 4"]
    assert job.poll() == 16


@pytest.mark.parametrize("text", ['{"shards": 0}', '{"shards": 5000}', "nonsense", '{"instances": 0}'])
def test_what_cannot_be_used_is_said_once_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    job = Follower(tmp_path, monkeypatch, '{"shards": 4}')
    assert job.poll(text) == job.poll() == 4
    (warning,) = job.said
    assert "asks for no usable scale" in warning
    assert job.poll('{"shards": 5}') == 5


def test_a_file_that_is_empty_or_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Follower(tmp_path, monkeypatch)
    assert job.poll() == 8
    job.path.unlink()
    assert (job.poll(), job.said) == (8, [])


def test_without_a_file_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCALE_FILE, raising=False)
    assert ScaleFile(pytest.fail, Scale()).read() == Scale()


def test_executors_follow_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 2)
    job = Follower(tmp_path, monkeypatch, '{"shards": 4, "instances": 2}', cluster)
    job.poll()
    assert job.poll('{"shards": 4, "instances": 5}') == 4
    assert cluster.executors == 5
    assert job.poll('{"shards": 6, "instances": 1}') == 6
    assert cluster.executors == 1
    assert [scaling.reason for scaling in job.scaled] == [
        "5 executors instead of 2",
        "6 shards instead of 4, 1 executors instead of 5",
    ]
    assert cluster.had_tasks_ended == [False, False, True], "only executors that end must have no task"


def test_an_executor_that_comes_after_fewer_were_asked_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, 3)
    job = Follower(tmp_path, monkeypatch, '{"instances": 3}', cluster)
    job.poll()
    job.poll('{"instances": 1}')
    cluster.executors = 2
    job.poll()
    assert cluster.executors == 1
    requests = cluster.requests
    job.poll()
    assert cluster.requests == requests


AUTO = '{"shards": 8, "autoscale": {"minInstances": 1, "maxInstances": 6, "upAfter": "10s", "downAfter": "1m"}}'


def test_an_autoscaled_job_follows_its_load_and_shards_its_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, 1)
    job = Follower(tmp_path, monkeypatch, AUTO, cluster)
    for number in range(13):  # the window, and until arrivals and cost are known
        job.poll(a=20_000 + 1_000 * number, paused=10**9)
        job.epoch(10_000)
    assert (cluster.executors, job.planner.shards) == (2, 8)
    while cluster.executors < 6:  # nothing more is read, which is not the executors' fault
        job.poll(a=10**7)
    assert job.planner.shards == 24
    for _ in range(100):
        job.poll(a=0)
    assert (cluster.executors, job.planner.shards) == (1, 8)
    assert "records/s arrive" in job.scaled[0].reason
    assert {scaling.cause for scaling in job.scaled} == {"load"}
    job.poll(AUTO.replace('"shards": 8', '"shards": 16'), a=0)
    assert (job.scaled[-1].cause, job.scaled[-1].reason) == ("asked", "16 shards instead of 8")
    assert [scaling.executors for scaling in job.scaled][-1] == 1


def test_the_bounds_of_an_autoscaled_job_change_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 2)
    job = Follower(tmp_path, monkeypatch, AUTO, cluster)
    job.poll()
    job.poll(AUTO.replace('"minInstances": 1', '"minInstances": 4'))
    assert cluster.executors == 4
    job.poll('{"shards": 8, "instances": 3}')
    assert cluster.executors == 3
    assert [scaling.cause for scaling in job.scaled] == ["bounds", "asked"]


def test_without_an_operator_the_jobs_own_autoscaling_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 3)
    job = Follower(tmp_path, monkeypatch, "", cluster, {"autoscale": Autoscale(min_instances=5, max_instances=6)})
    job.poll()
    assert cluster.executors == 5
