"""The part of a Spark task that runs in an executor's Python process: a peer's share of an epoch.

Where there is one peer, its task is the whole epoch. Where inputs are co-partitioned, a peer's task is all of its part,
and only reports go on. Else a task reads, and a task per step follows; what they send each other goes through Spark's
shuffle as (peer, (shard, block)). A task takes all that it is given, also when it
fails: PySpark ends a process that has not read its input to the end, and with it consumers, connections and caches.
"""

from __future__ import annotations

import gc
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext

from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ShardSummary, TaskFailure
from joinery_runtime.engine.read_report import LateRecords, ReadReport
from joinery_runtime.engine.tasks import (
    Peers,
    TaskWorker,
    Threads,
    read_ranges,
    run_epoch,
    run_share,
    run_step,
    sorted_by_shard,
)
from joinery_runtime.engine.worker import Sent
from joinery_runtime.errors import JoineryError, Superseded
from joinery_runtime.garbage import collect_rarely
from joinery_runtime.sources.base import Range

WorkerFactory = Callable[[Path], TaskWorker]
Carried = tuple[int, Any]  # to which peer: what was sent, or a TaskFailure


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How an executor process builds its worker: `digest` tells setups apart, `build` gets the cache directory; `steps`
    is how many joins follow each other; `finds_late_records`: one of them finds dead letters, which are collected
    from all peers after the last one. Must pickle."""

    digest: str
    build: WorkerFactory
    steps: int
    finds_late_records: bool = False

    @property
    def stages(self) -> int:
        """How many stages follow that of reading."""
        return self.steps + self.finds_late_records


@dataclass(frozen=True, slots=True)
class PeerTask:
    """What all tasks of an epoch know. Pickles."""

    setup: WorkerSetup
    work: EpochWork
    peers: Peers

    def whole(self, given: Iterable[object]) -> Iterator[EpochOutcome | TaskFailure]:
        """The only peer's task."""
        deque(given, maxlen=0)
        try:
            process = process_for(self.setup, self.peers.threads)
            yield run_epoch(process.worker, self.work, _attempt(), process.threads)
        except Superseded:
            raise  # Spark tries the task again, or takes the attempt that was quicker
        except JoineryError as error:
            yield TaskFailure(error)

    def read(self, given: Iterable[Sequence[Range]]) -> Iterator[Carried]:
        shares = list(given)
        try:
            process = process_for(self.setup, self.peers.threads)
            for ranges in shares:
                yield from self._carried(read_ranges(process.worker, self.work, ranges, process.threads))
        except JoineryError as error:
            yield from self._to_everybody(error)

    def share(self, peer: int, given: Iterable[Sequence[Range]]) -> Iterator[Carried]:
        """A peer's part of an epoch with co-partitioned inputs; its reports go to the first peer, which collects."""
        shards, shares = self.work.plan.shards, list(given)
        try:
            process, own = process_for(self.setup, self.peers.threads), self.peers.shards_of(peer, shards)
            ranges = [planned for share in shares for planned in share]
            made = run_share(process.worker, self.work, ranges, own, _attempt(), process.threads)
            yield from ((0, (shards, report)) for report in made)
        except Superseded:
            raise
        except JoineryError as error:
            yield 0, TaskFailure(error)

    def stage(self, number: int, peer: int, carried: Iterable[Carried]) -> Iterator[Carried]:
        """A step of a peer's shards; in the last stage, who gets the reports also ends the epoch."""
        try:
            yield from self._stage(number, peer, carried)
        except Superseded:
            raise
        except JoineryError as error:
            yield from self._to_everybody(error)

    def _stage(self, number: int, peer: int, carried: Iterable[Carried]) -> Iterator[Carried]:
        work, shards, attempt = self.work, self.work.plan.shards, _attempt()
        inbox = sorted_by_shard(_received(carried))
        process = process_for(self.setup, self.peers.threads)
        own = self.peers.shards_of(peer, shards) if number < self.setup.steps else []
        made = run_step(process.worker, work, number, own, inbox, attempt, process.threads)
        if number < self.setup.stages - 1:
            yield from self._carried(made)
            return
        reports = [report for _, report in made]
        yield from ((0, report) for report in reports if isinstance(report, ShardSummary))
        if peer == 0:
            collected = [report for report in reports if isinstance(report, ReadReport | LateRecords)]
            yield 0, process.worker.collect(work, collected, attempt)

    def _carried(self, sent: Iterable[Sent]) -> Iterator[Carried]:
        shards = self.work.plan.shards
        yield from ((self.peers.owner(shard, shards), (shard, block)) for shard, block in sent)

    def _to_everybody(self, error: JoineryError) -> Iterator[Carried]:
        """Spark may have run this task again for one of them only, with the others done already."""
        yield from ((peer, TaskFailure(error)) for peer in range(self.peers.count))


def _received(carried: Iterable[Carried]) -> Iterator[Sent]:
    failures: list[TaskFailure] = []
    for _, sent in carried:
        if isinstance(sent, TaskFailure):
            failures.append(sent)
        elif not failures:
            yield sent
    if failures:
        raise failures[0].error


# --- this process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Process:
    """What lives from task to task. Spark reuses processes, so consumers, connections and mapped segments live on."""

    worker: TaskWorker
    threads: Threads


_processes: dict[str, _Process] = {}


def process_for(setup: WorkerSetup, threads: int) -> _Process:
    """This process, with the setup's worker and so many threads."""
    known = _processes.get(setup.digest)
    if known is None:
        _processes.clear()
        worker = setup.build(_local_directory() / f"joinery-{setup.digest}")
        # A client's call gives thousands of records, an object each, which die together: that doubled the cost.
        collect_rarely()
        # PySpark collects after every task, which would take 50 ms to go over all that was imported.
        gc.freeze()
        known = _Process(worker, Threads(threads))
    elif known.threads.count != threads:
        known.threads.close()
        known = _Process(known.worker, Threads(threads))
    _processes[setup.digest] = known
    return known


def _local_directory() -> Path:
    """Where this process may write. An executor's own folder is its working directory, which is read-only in a pod with
    a read-only root; its local directories are not."""
    own, local = Path(SparkFiles.getRootDirectory()), os.environ.get("SPARK_LOCAL_DIRS", "")
    return Path(local.split(",")[0]) if local and not own.is_absolute() else own


def _attempt() -> str:
    """Unique for ever: the same task may run twice, also at once (speculation), also as a zombie."""
    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else 0}-{uuid.uuid4().hex[:12]}"
