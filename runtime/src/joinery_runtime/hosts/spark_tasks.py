"""The part of a Spark task that runs in an executor's Python process: a peer's share of an epoch.

With one peer, its task runs the whole epoch. With co-partitioned inputs, a peer's task runs all of its part, and hands
its reports to the driver; dead letters need a task that collects them from all peers. In a small epoch, a peer's task
reads all ranges and runs the first step, and a task per further step follows; the first peer has the reports of all
ranges, so its last task collects. Otherwise a task reads, and a task per step follows; what they send each other goes
through Spark's shuffle as (peer, parcel) and (peer, (shard, report)) (`engine.exchange`). A task consumes all of its
input, even when it fails: PySpark ends a process that has not read its input to the end, and with it consumers,
connections and caches.
"""

from __future__ import annotations

import gc
import os
import pickle
import uuid
from base64 import b64decode, b64encode
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark import SparkFiles, TaskContext

from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.exchange import LocalParcel, LocalParcels, Parcel, open_parcels, pack_blocks
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary, ShardSummary, TaskFailure
from joinery_runtime.engine.read_report import ReadReport, StepDeadLetters
from joinery_runtime.engine.tasks import (
    Inbox,
    TaskWorker,
    Threads,
    WorkerProcesses,
    deal_ranges,
    ranges_by_peer,
    read_own_rows,
    read_ranges,
    run_epoch,
    run_share,
    run_step,
    sorted_by_shard,
)
from joinery_runtime.engine.worker import Sent
from joinery_runtime.errors import JoineryError, Superseded
from joinery_runtime.hosts.spark_jobs import WORK

WorkerFactory = Callable[[Path], AbstractContextManager[TaskWorker]]
Carried = tuple[int, Parcel | LocalParcel | Sent | TaskFailure]  # the receiving peer, and what it gets
Result = ShardSummary | ReadSummary
Report = ShardSummary | ReadReport


class LettersAfterSteps(JoineryError):
    """Several peers have made dead letters, and no stage follows that collects them."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How an executor process builds its worker. `digest` tells setups apart. `build` takes the cache directory, and
    the end of its context closes what the worker has opened. `steps` is the number of `TaskWorker.steps`.
    `collects_letters`: all peers may have dead letters after the last step, which a further stage collects.
    `routes_rows`: the last step writes rows that any shard has made. `reads_once`: no record may be read by several
    peers. `repeats_rows`: outputs are written at least once and dead letters are collected, so a second run of an epoch
    because of letters would write its rows again. Must pickle."""

    digest: str
    build: WorkerFactory
    steps: int
    collects_letters: bool = False
    routes_rows: bool = False
    reads_once: bool = False
    repeats_rows: bool = False

    @property
    def stages(self) -> int:
        """How many stages follow the reading stage."""
        return self.steps + self.collects_letters


@dataclass(frozen=True, slots=True)
class PeerTask:
    """What all tasks of an epoch share. Pickles."""

    setup: WorkerSetup
    work: EpochWork
    peers: WorkerProcesses

    @property
    def is_one_stage(self) -> bool:
        """Whether each peer has one task in the epoch."""
        if self.peers.count == 1:
            return True
        if self.peers.co_partitions:
            return not self.setup.collects_letters
        return self.peers.reads_all and self.setup.stages == 1

    def run_stage(self, peer: int, partition: Iterable[object]) -> Iterator[object]:
        """Yield what the driver gets of a peer's task in an epoch of one stage."""
        if self.peers.count == 1:
            yield from self.run_whole_epoch(partition)
            return
        results = self.share(peer, partition) if self.peers.co_partitions else self.read_and_step(peer, partition)
        yield from (result for _, result in results)

    def run_whole_epoch(self, partition: Iterable[object]) -> Iterator[EpochOutcome | TaskFailure]:
        """Yield the task of an only peer: runs the whole epoch."""
        deque(partition, maxlen=0)
        try:
            process = process_for(self.setup, self.peers.threads)
            yield run_epoch(process.worker, self.work, _attempt_name(), process.threads)
        except Superseded:
            raise  # Spark retries the task, or takes the attempt that was quicker
        except JoineryError as error:
            yield TaskFailure(error)

    def read(self, peer: int, partition: Iterable[Sequence[Range]]) -> Iterator[Carried]:
        """Read a peer's ranges. Rows for its own shards stay in the executor."""
        shares = list(partition)
        try:
            process = process_for(self.setup, self.peers.threads)
            local = LocalParcels(
                _local_directory() / f"joinery-{self.setup.digest}-exchange", self.work, _attempt_name()
            )
            for ranges in shares:
                for receiver, item in self._read_packed(process, ranges):
                    yield receiver, local.put(item) if receiver == peer and isinstance(item, Parcel) else item
        except JoineryError as error:
            yield from self._broadcast_failure(error)

    def share(self, peer: int, partition: Iterable[object]) -> Iterator[Carried | tuple[int, Report]]:
        """Run a peer's part of an epoch with co-partitioned inputs. The reports go to the first peer, which collects;
        without a stage for that, they go to the driver."""
        deque(partition, maxlen=0)
        shards, ranges = self.work.plan.shards, ranges_by_peer(self.work, self.peers)[peer]
        try:
            process, own = process_for(self.setup, self.peers.threads), self.peers.shards_of(peer, shards)
            reports = run_share(process.worker, self.work, ranges, own, _attempt_name(), process.threads)
            if self.setup.collects_letters:
                yield from ((0, (shards, report)) for report in reports)
                return
            if any(isinstance(report, ReadReport | StepDeadLetters) and report.dead is not None for report in reports):
                raise self._letters_after_steps("dead letters of peers that exchange no rows")
            yield from ((0, report) for report in reports if isinstance(report, ReadReport | ShardSummary))
        except Superseded:
            raise
        except JoineryError as error:
            yield 0, TaskFailure(error)

    def read_and_step(self, peer: int, partition: Iterable[object]) -> Iterator[Carried | tuple[int, Result]]:
        """Read all ranges of an epoch, and run the first step of a peer's shards. If no stage follows, the peer that
        has the reports also ends the epoch."""
        deque(partition, maxlen=0)
        try:
            process = process_for(self.setup, self.peers.threads)
            inbox = sorted_by_shard(read_own_rows(process.worker, self.work, self.peers, peer, process.threads))
            yield from self._run_own_shards(process, 0, peer, inbox, _attempt_name())
        except Superseded:
            raise
        except JoineryError as error:
            yield from self._broadcast_failure(error)

    def stage(self, number: int, peer: int, carried: Iterable[Carried]) -> Iterator[Carried | tuple[int, Result]]:
        """Run a step of a peer's shards. In the last stage, the peer that gets the reports also ends the epoch."""
        try:
            attempt = _attempt_name()
            inbox: Inbox = defaultdict(deque)
            local: list[LocalParcel] = []
            for item in _receive_parcels(carried):
                if isinstance(item, LocalParcel):
                    local.append(item)
                else:
                    _deliver_item(inbox, item)
            process = process_for(self.setup, self.peers.threads)
            own_rows = open_parcels(local)
            for parcel in self._reread_own_rows(process, peer) if own_rows is None else own_rows:
                _deliver_item(inbox, parcel)
            yield from self._run_own_shards(process, number, peer, inbox, attempt)
        except Superseded:
            raise
        except JoineryError as error:
            yield from self._broadcast_failure(error)

    def _run_own_shards(
        self, process: _Process, number: int, peer: int, inbox: Inbox, attempt: str
    ) -> Iterator[Carried | tuple[int, Result]]:
        """Run a step of a peer's shards, and yield what the next stage or the driver gets."""
        own = self.peers.shards_of(peer, self.work.plan.shards) if number < self.setup.steps else []
        outgoing = run_step(process.worker, self.work, number, own, inbox, attempt, process.threads)
        if number < self.setup.stages - 1:
            yield from self._pack_parcels(outgoing)
            return
        reports = [report for _, report in outgoing]
        if number < self.setup.steps and any(isinstance(report, StepDeadLetters) for report in reports):
            raise self._letters_after_steps("rows that are too large for the output")
        yield from ((0, report) for report in reports if isinstance(report, ShardSummary))
        if peer == 0:
            collected = [report for report in reports if isinstance(report, ReadReport | StepDeadLetters)]
            yield 0, process.worker.collect(self.work, collected, attempt)

    def _reread_own_rows(self, process: _Process, peer: int) -> Iterator[Parcel]:
        """Read the rows that a peer's read task has left in another executor. That task has sent everything else."""
        ranges = deal_ranges(self.work.plan.ranges, self.peers.count)[peer]
        for receiver, item in self._read_packed(process, ranges):
            if receiver == peer and isinstance(item, Parcel):
                yield item

    def _read_packed(self, process: _Process, ranges: Sequence[Range]) -> Iterator[tuple[int, Parcel | Sent]]:
        return self._pack_parcels(read_ranges(process.worker, self.work, ranges, process.threads))

    def _pack_parcels(self, sent: Iterable[Sent]) -> Iterator[tuple[int, Parcel | Sent]]:
        shards = self.work.plan.shards
        return pack_blocks(sent, lambda shard: self.peers.owner(shard, shards))

    def _letters_after_steps(self, letters: str) -> LettersAfterSteps:
        return LettersAfterSteps(
            f"Epoch {self.work.plan.epoch} has {letters}",
            todo="It is run again with one stage more, which collects them",
        )

    def _broadcast_failure(self, error: JoineryError) -> Iterator[Carried]:
        """Send the error to all peers: Spark may have rerun this task for one of them only, with the others done."""
        yield from ((peer, TaskFailure(error)) for peer in range(self.peers.count))


@dataclass(frozen=True, slots=True)
class OneStageTask:
    """The tasks of all epochs that have one stage. What differs from epoch to epoch comes as a property of the Spark
    job. Pickles."""

    setup: WorkerSetup

    @staticmethod
    def text_of(task: PeerTask) -> str:
        """Return the property for an epoch."""
        differing = (task.work, task.peers, task.setup.collects_letters)
        return b64encode(pickle.dumps(differing, pickle.HIGHEST_PROTOCOL)).decode("ascii")

    def run(self, peer: int, partition: Iterable[object]) -> Iterator[object]:
        """Run the task of a peer in the epoch that the property has."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(WORK)
        assert text is not None, "the driver has set it"
        work, peers, collects_letters = pickle.loads(b64decode(text))
        setup = replace(self.setup, collects_letters=collects_letters)
        return PeerTask(setup, work, peers).run_stage(peer, partition)


def _deliver_item(inbox: Inbox, item: Parcel | Sent) -> None:
    for shard, block in item.blocks() if isinstance(item, Parcel) else [item]:
        inbox[shard].append(block)


def _receive_parcels(carried: Iterable[Carried]) -> Iterator[Parcel | LocalParcel | Sent]:
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
    """What outlives a task. Spark reuses processes, so consumers, connections and mapped segments stay open."""

    worker: TaskWorker
    threads: Threads
    stack: ExitStack  # closes what the worker has opened

    def close(self) -> None:
        """End the threads, then close what the worker has opened. No task may be running."""
        self.threads.close()
        self.stack.close()


_processes: dict[str, _Process] = {}


def process_for(setup: WorkerSetup, threads: int) -> _Process:
    """Return this process, with the setup's worker and this number of threads. Closes the worker of another setup
    first, of which no task is running: Spark gives a process one task at a time."""
    process = _processes.get(setup.digest)
    if process is None:
        while _processes:
            _processes.popitem()[1].close()
        stack = ExitStack()
        worker = stack.enter_context(setup.build(_local_directory() / f"joinery-{setup.digest}"))
        # A call of the Kafka client returns thousands of records, an object each, which die together. Collecting
        # garbage as often as by default doubled its cost.
        gc.set_threshold(200_000)
        # PySpark collects garbage after every task, which would take 50 ms for everything that was imported.
        gc.freeze()
        process = _Process(worker, Threads(threads), stack)
    elif process.threads.count != threads:
        process.threads.close()
        process = replace(process, threads=Threads(threads))
    _processes[setup.digest] = process
    return process


def _local_directory() -> Path:
    """Return a directory that this process may write to. An executor's own folder is its working directory, which is
    read-only in a pod with a read-only root file system; its local directories are not."""
    own, local = Path(SparkFiles.getRootDirectory()), os.environ.get("SPARK_LOCAL_DIRS", "")
    return Path(local.split(",")[0]) if local and not own.is_absolute() else own


def _attempt_name() -> str:
    """Return a name that is unique for ever: the same task may run twice, at the same time (speculation) or as a
    zombie."""
    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else 0}-{uuid.uuid4().hex[:12]}"
