"""Where the failure of a read task goes: to every partition, since Spark may rerun the task for one of them only."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from joinery_runtime.engine.messages import EpochWork, TaskFailure
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import Worker
from joinery_runtime.errors import SourceError
from joinery_runtime.hosts import spark
from joinery_runtime.hosts.spark import WorkerSetup


class Unreadable:
    def read(self, work: EpochWork, ranges: object) -> object:
        yield 0, "a block that is there already"
        raise SourceError("the broker is away")


def test_every_partition_hears_of_it(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark, "_worker", lambda _: cast(Worker, Unreadable()))
    work = EpochWork(1, EpochPlan(epoch=1, shards=3, ranges=(), watermarks={}), ())
    yielded = list(spark._read(WorkerSetup("d", lambda _: cast(Worker, None), 1), work, [[]]))
    failures = [partition for partition, block in yielded if isinstance(block, TaskFailure)]
    assert failures == [0, 1, 2, 3]
