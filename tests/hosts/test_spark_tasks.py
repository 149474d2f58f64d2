"""What tasks do with what they are given, and where a failure goes: to every peer, since Spark may rerun the task for
one of them only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joinery_runtime.engine.messages import EpochWork, TaskFailure
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.tasks import Peers, Threads
from joinery_runtime.errors import SourceError
from joinery_runtime.hosts import spark_tasks
from joinery_runtime.hosts.spark_tasks import PeerTask, WorkerSetup
from joinery_runtime.sources.base import PartitionRef, Range

SHARE = [Range(PartitionRef("l", "t", 0), 0, 5)]
AWAY = SourceError("the broker is away")


class Unreadable:
    steps = 1

    def read(self, work: EpochWork, ranges: object, lane: int) -> object:
        yield 0, "a block that is there already"
        raise AWAY


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PeerTask:
    worker: Any = Unreadable()
    monkeypatch.setattr(spark_tasks, "_processes", {"d": spark_tasks._Process(worker, Threads())})
    work = EpochWork(1, EpochPlan(epoch=1, shards=3, ranges=tuple(SHARE), watermarks={}), ())
    return PeerTask(WorkerSetup("d", lambda _: worker, 1), work, Peers(3))


def test_every_peer_hears_of_it(task: PeerTask) -> None:
    yielded = list(task.read([SHARE]))
    assert [peer for peer, sent in yielded if isinstance(sent, TaskFailure)] == [0, 1, 2]


Body = Callable[[Iterable[Any]], Iterator[Any]]
TASKS: list[tuple[Callable[[PeerTask], Body], list[Any]]] = [
    (lambda task: task.whole, [0, 0]),
    (lambda task: task.read, [SHARE, SHARE]),
    (lambda task: partial(task.stage, 0, 1), [(1, (0, "a block")), (1, TaskFailure(AWAY)), (1, (0, "another"))]),
]


@pytest.mark.parametrize(("body", "given"), TASKS, ids=["whole", "read", "step"])
def test_a_task_that_fails_takes_all_that_it_is_given(task: PeerTask, body: Any, given: list[Any]) -> None:
    """Else PySpark ends its process, with consumers and caches."""
    left = iter(given)
    assert any("the broker is away" in repr(result) for result in body(task)(left))
    assert list(left) == []
