"""Where the failure of a read task goes: to every peer, since Spark may rerun the task for one of them only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joinery_runtime.engine.messages import EpochWork, TaskFailure
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.tasks import Peers, Threads
from joinery_runtime.errors import SourceError
from joinery_runtime.hosts import spark_tasks
from joinery_runtime.hosts.spark_tasks import PeerTask, WorkerSetup
from joinery_runtime.sources.base import PartitionRef, Range


class Unreadable:
    def read(self, work: EpochWork, ranges: object, lane: int) -> object:
        yield 0, "a block that is there already"
        raise SourceError("the broker is away")


def test_every_peer_hears_of_it(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(spark_tasks, "_local_directory", lambda: tmp_path)
    worker: Any = Unreadable()
    monkeypatch.setattr(spark_tasks, "_processes", {"d": spark_tasks._Process(worker, Threads())})
    work = EpochWork(1, EpochPlan(epoch=1, shards=3, ranges=(), watermarks={}), ())
    task = PeerTask(WorkerSetup("d", lambda _: worker, 1), work, Peers(3))
    yielded = list(task.read([[Range(PartitionRef("l", "t", 0), 0, 5)]]))
    assert [peer for peer, sent in yielded if isinstance(sent, TaskFailure)] == [0, 1, 2]
