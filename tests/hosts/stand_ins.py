"""What tasks of these tests run in executors: workers and writers that fail or wait on purpose. Must be importable
there (`e2e.spark_trace.TASK_CONF`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from e2e.spark_trace import first_time
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt, SinkWriter
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.engine.messages import EpochWork, PartitionRead, ReadSummary, ShardSummary
from joinery_runtime.engine.worker import Block, ReadReport, RowBlock

PATIENCE_S = 300
ROWS = pa.record_batch({"n": [1]})


@dataclass(frozen=True)
class FailingWorker:
    """A worker without data in which one step raises."""

    at: str
    error: Exception
    steps: int = 2

    def __call__(self, cache: Path) -> AbstractContextManager[FailingWorker]:
        return nullcontext(self)

    def _reach(self, step: str) -> None:
        if step == self.at:
            raise self.error

    def read(self, work: EpochWork, ranges: Sequence[Range], lane: int = 0) -> Iterator[tuple[int, Any]]:
        for planned in ranges:
            shards = work.plan.shards if work.plan.co_partitions else 1
            yield planned.partition.partition % shards, RowBlock(0, LEFT, ROWS)
            yield work.plan.shards, ReadReport(PartitionRead(planned.partition), None)
        self._reach("read")

    def step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[tuple[int, Any]]:
        """Every step hands its rows on to the shard before."""
        self._reach(f"step {number}")
        rows = [block for block in blocks if isinstance(block, RowBlock)]
        if number < self.steps - 1:
            yield from (((shard - 1) % work.plan.shards, RowBlock(number + 1, LEFT, ROWS)) for _ in rows)
        yield work.plan.shards, ShardSummary(number, shard, rows_out=len(rows))

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        self._reach("collect")
        return ReadSummary(tuple(report.read for report in reports))


LETTERS: Receipt = {"rows": 3}


@dataclass(frozen=True)
class HasDeadLetters(FailingWorker):
    """Each range has a dead letter."""

    def read(self, work: EpochWork, ranges: Sequence[Range], lane: int = 0) -> Iterator[tuple[int, Any]]:
        for shard, block in super().read(work, ranges, lane):
            yield shard, replace(block, dead=b"letters") if isinstance(block, ReadReport) else block

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        listed = list(reports)
        assert [report.dead for report in listed] == [b"letters"] * 3
        return replace(super().collect(work, listed, attempt), dead_letters=LETTERS)


@dataclass(frozen=True, kw_only=True)
class HasDeadLettersOnce(HasDeadLetters):
    """Each range of one epoch has a dead letter."""

    epoch: int

    def read(self, work: EpochWork, ranges: Sequence[Range], lane: int = 0) -> Iterator[tuple[int, Any]]:
        of_kind = HasDeadLetters if work.plan.epoch == self.epoch else FailingWorker
        return of_kind.read(self, work, ranges, lane)

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        of_kind = HasDeadLetters if work.plan.epoch == self.epoch else FailingWorker
        return of_kind.collect(self, work, reports, attempt)


@dataclass(frozen=True, kw_only=True)
class FailsOnce(FailingWorker):
    """The first step of shard 0 raises the error once, in the named epoch."""

    directory: Path
    epoch: int

    def step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[tuple[int, Any]]:
        if shard == 0 and work.plan.epoch == self.epoch and first_time(self.directory / "failed"):
            raise self.error
        return super().step(work, number, shard, blocks, attempt)


@dataclass(frozen=True, kw_only=True)
class EndsItsExecutor(FailingWorker):
    """The first step of shard 0 takes its executor with it, when its rows are there: in the first epoch, or in the
    named one."""

    directory: Path
    epoch: int | None = None

    def step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[tuple[int, Any]]:
        listed = list(blocks)
        is_named = self.epoch in (None, work.plan.epoch)
        if shard == 0 and is_named and first_time(self.directory / "ended"):
            _kill_executor()
            time.sleep(PATIENCE_S)  # the daemon ends this process too
        return super().step(work, number, shard, listed, attempt)


@dataclass(frozen=True, kw_only=True)
class NotesItsPlace(FailingWorker):
    """Leaves a file for each process that has built it, with the description of that task's job, and one for each place
    that has stepped a shard (not as a second attempt, which Spark makes elsewhere)."""

    directory: Path

    def __call__(self, cache: Path) -> AbstractContextManager[FailingWorker]:
        task = TaskContext.get()
        job = task.getLocalProperty("spark.job.description") if task else "no task"
        (self.directory / f"built@{os.getpid()}").write_text(job or "")
        return nullcontext(self)

    def step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[tuple[int, Any]]:
        task = TaskContext.get()
        if task is not None and not task.attemptNumber():
            (self.directory / f"shard {shard}@{os.getppid()}").touch()
        return super().step(work, number, shard, blocks, attempt)


@dataclass(frozen=True)
class NeverEnds(FailingWorker):
    """A worker that reads for ever, and says when it has begun."""

    begun: Path = Path()

    def read(self, work: EpochWork, ranges: Sequence[Range], lane: int = 0) -> Iterator[tuple[int, Any]]:
        self.begun.touch()
        while True:
            time.sleep(0.05)
        yield


@dataclass(frozen=True)
class FailsAfterwards:
    """The first attempt of every shard dies when everything is staged and written."""

    writer: SinkWriter
    directory: Path

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        receipt = self.writer.write(attempt, rows)
        if first_time(self.directory / f"{attempt.id.epoch}-{attempt.id.shard}"):
            raise OSError("the machine is on fire")
        return receipt


@dataclass(frozen=True)
class KillsItsExecutor:
    """The first attempt of shard 0 in an epoch takes its executor with it, when everything is staged and written."""

    writer: SinkWriter
    directory: Path

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        receipt = self.writer.write(attempt, rows)
        if attempt.id.shard == 0 and first_time(self.directory / f"{attempt.id.epoch}"):
            _kill_executor()
        return receipt


def _kill_executor() -> None:
    os.kill(_parent_of(os.getppid()), signal.SIGKILL)  # of the daemon that has forked this process


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@dataclass(frozen=True)
class WaitsForTheOther:
    """The first attempt of shard 0 in an epoch comes to an end only after a second one has begun to write."""

    writer: SinkWriter
    directory: Path

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        if attempt.id.shard == 0:
            second = self.directory / f"{attempt.id.epoch}-second"
            if first_time(self.directory / f"{attempt.id.epoch}-first"):
                _wait_for(second)
            else:
                second.touch()
        return self.writer.write(attempt, rows)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} never came")
        time.sleep(0.01)
