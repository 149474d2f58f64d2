"""Which executors take part in an epoch."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from joinery_runtime.hosts import executors
from joinery_runtime.hosts.executors import ActiveExecutors
from joinery_runtime.hosts.spark_jobs import JobNames


class Cluster:
    """Executors of two cores each, the oldest first; a test says when one has built its worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *running: str) -> None:
        self.running = list(running)
        self.built: dict[str, Event] = {}
        monkeypatch.setattr(executors, "_list_members", lambda _: [(name, f"host-{name}") for name in self.running])
        monkeypatch.setattr(ActiveExecutors, "_prepare_executor", self._prepare)
        context: Any = self
        self._part = ActiveExecutors(context, lambda _: None, JobNames(context, "job", ()))

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        return 2 * len(self.running)

    def _prepare(self, name: str, host: str) -> None:
        assert host == f"host-{name}"
        self.built.setdefault(name, Event()).wait()
        if name == "broken":
            raise ConnectionError

    def ready(self, name: str) -> None:
        """The executor has built its worker, or failed to."""
        self.built.setdefault(name, Event()).set()
        self._part._warming[name].join()

    def part(self) -> list[str]:
        """Of the next epoch."""
        return [location.removeprefix("executor_host-").split("_")[0] for location in self._part.locations()]

    @property
    def cores(self) -> int:
        return self._part.cores


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch, "1", "2")


def test_all_that_are_there_at_the_start_take_part(cluster: Cluster) -> None:
    assert (cluster.part(), cluster.cores) == (["1", "2"], 4)


def test_a_new_one_takes_part_when_it_has_built_its_worker(cluster: Cluster) -> None:
    cluster.part()
    cluster.running.append("3")
    assert [cluster.part() for _ in range(3)] == [["1", "2"]] * 3, "epochs go on without it"
    assert cluster.cores == 4
    cluster.ready("3")
    assert (cluster.part(), cluster.cores) == (["1", "2", "3"], 6)


def test_one_that_ends_takes_no_part(cluster: Cluster) -> None:
    cluster.part()
    cluster.running.remove("1")
    assert (cluster.part(), cluster.cores) == (["2"], 2)


def test_one_that_has_failed_takes_part_and_the_epoch_says_why(cluster: Cluster) -> None:
    cluster.part()
    cluster.running.append("broken")
    cluster.part()
    cluster.ready("broken")
    assert cluster.part() == ["1", "2", "broken"]


def test_where_none_is_left_that_is_ready_new_ones_take_part_at_once(cluster: Cluster) -> None:
    cluster.part()
    cluster.running[:] = ["3", "4"]
    assert cluster.part() == ["3", "4"]


def test_one_that_ends_while_it_builds_is_forgotten(cluster: Cluster) -> None:
    cluster.part()
    cluster.running.append("3")
    cluster.part()
    cluster.running.remove("3")
    assert cluster.part() == ["1", "2"]
    cluster.built["3"].set()
    assert cluster.part() == ["1", "2"]


def test_before_one_has_come_nothing_has_a_place(cluster: Cluster) -> None:
    cluster.running.clear()
    assert cluster.part() == []
    cluster.running.append("1")
    assert cluster.part() == ["1"]
