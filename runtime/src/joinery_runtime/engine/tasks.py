"""Shares out an epoch's work: to *peers*, the processes that run it, and to the threads of each peer.

A peer reads its share of the planned ranges and runs every step of its share of the shards. What it makes for its own
shards stays in its memory; the host carries what other peers' shards need. With one peer nothing is carried, and
`run_epoch` runs the whole epoch. With co-partitioned inputs no peer needs what another one reads, and `run_share` runs
all of a peer's part. In a small epoch each peer reads all ranges, and `read_own_rows` keeps the rows of its shards.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import Queue
from threading import Event
from typing import Generic, Protocol, TypeVar

from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary, ShardSummary
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.read_report import ReadReport, StepDeadLetters
from joinery_runtime.engine.worker import Block, Sent, Worker
from joinery_runtime.errors import JoineryError

MAX_THREADS = 8
"""The most threads of one process: already with two, Python's lock was held a quarter of the time."""

_MOST_READING_ALL = 8
"""The most peers that each read all ranges: each of them is one more reader for the brokers."""

_READY = 16  # items that may wait between the threads that make them and their reader; each has a bounded size

T = TypeVar("T")
Inbox = dict[int, deque[Block]]  # by shard


class TaskWorker(Protocol):
    """The interface of `Worker` for the code that runs its tasks. Several threads may call its methods at a time, each
    with a lane or shard of its own."""

    @property
    def steps(self) -> int: ...

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Sent]: ...

    def step(
        self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str
    ) -> Iterator[Sent]: ...

    def collect(
        self, work: EpochWork, reports: Iterable[ReadReport | StepDeadLetters], attempt: str
    ) -> ReadSummary: ...


class Threads:
    """`count` threads of a process; with one, everything runs in the caller's thread."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "joinery") if count > 1 else None

    def merge(self, parts: Sequence[Iterator[T]]) -> Generator[T, None, None]:
        """Yield the items of all parts as they come; each part runs in one thread. The first error ends all parts. It
        is raised only when none of them runs any more, because the next attempt may use what they used."""
        if self._pool is None or len(parts) < 2:
            for part in parts:
                yield from part
            return
        ready: Queue[_QueueItem[T]] = Queue(_READY)
        stopped = Event()
        running = [self._pool.submit(_run_part, part, ready, stopped) for part in parts]
        running_parts = len(parts)
        try:
            while running_parts:
                queued = ready.get()
                running_parts -= queued.ended
                if queued.error is not None:
                    raise queued.error
                yield from queued.items
        finally:
            stopped.set()
            while running_parts:
                running_parts -= ready.get().ended
            wait(running)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class _QueueItem(Generic[T]):
    """What a part handed over: an item, or its end with the error, if any."""

    items: tuple[T, ...] = ()
    ended: bool = False
    error: BaseException | None = None


def _run_part(part: Iterator[T], ready: Queue[_QueueItem[T]], stopped: Event) -> None:
    error: BaseException | None = None
    try:
        while not stopped.is_set():
            ready.put(_QueueItem((next(part),)))
    except StopIteration:
        pass
    except BaseException as raised:
        error = raised
    finally:
        if isinstance(part, Generator):
            part.close()
        ready.put(_QueueItem(ended=True, error=error))


# --- shares -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerProcesses:
    """`count` peers of a job, with `threads` threads each. With `co_partitions` they exchange no rows: each reads the
    partitions whose rows live in its own shards. 0: the inputs are not co-partitioned, or there are too many peers.
    With `reads_all`, each peer reads all ranges, and they exchange no rows before the first step."""

    count: int = 1
    threads: int = 1
    co_partitions: int = 0
    reads_all: bool = False

    def without_exchange(self, co_partitions: int, shards: int) -> WorkerProcesses:
        """Return the same peers with these `co_partitions`, if every peer can get whole shards and whole partitions;
        else with 0."""
        separable = self.count > 1 and bool(co_partitions) and math.gcd(co_partitions, shards) >= self.count
        return replace(self, co_partitions=co_partitions if separable else 0)

    def each_reading_all(self, shards: int) -> WorkerProcesses:
        """Return these peers, each of which reads all ranges. The same peers if there are too many for that, if they
        exchange nothing anyway, or if one of them has no shard: fewer peers would have other shards than in other
        epochs."""
        all_read = 1 < self.count <= min(shards, _MOST_READING_ALL) and not self.co_partitions
        return replace(self, reads_all=all_read)

    def owner(self, shard: int, shards: int) -> int:
        """Return the peer that owns a shard. The shard number `shards` stands for the reports of reading and of the
        steps."""
        if shard == shards:
            return 0
        groups = math.gcd(self.co_partitions, shards)  # `shards` itself if the inputs are not co-partitioned
        return (shard * groups // shards) * self.count // groups

    def reader(self, partition: int, shards: int) -> int:
        """Return the peer that owns the shards of a partition of co-partitioned inputs (see
        `core.table.partitioning`)."""
        groups = math.gcd(self.co_partitions, shards)
        return (partition % self.co_partitions * groups // self.co_partitions) * self.count // groups

    def shards_of(self, peer: int, shards: int) -> list[int]:
        return [shard for shard in range(shards) if self.owner(shard, shards) == peer]


def deal_ranges(ranges: Sequence[Range], most: int) -> list[list[Range]]:
    """Deal the ranges to at most `most` readers with about the same number of records each. As far as that allows, a
    partition goes to the same reader in every epoch, which has already fetched records of it."""
    readers: list[list[Range]] = [[] for _ in range(min(most, len(ranges)))]
    loads = [0] * len(readers)
    sizes = {r.partition: max(1, r.end_exclusive - r.start) for r in ranges}
    fair = max(math.ceil(sum(sizes.values()) / max(1, len(readers))), *sizes.values(), 0)
    # Large ranges first, by powers of two, so that small changes of size from epoch to epoch do not change the order.
    for planned in sorted(ranges, key=lambda r: (-sizes[r.partition].bit_length(), r.partition)):
        partition, size = planned.partition, sizes[planned.partition]
        reader = (zlib.crc32(f"{partition.input}/{partition.topic}".encode()) + partition.partition) % len(readers)
        if loads[reader] + size > fair:
            reader = loads.index(min(loads))
        readers[reader].append(planned)
        loads[reader] += size
    return readers


def ranges_by_peer(work: EpochWork, peers: WorkerProcesses) -> list[list[Range]]:
    """Return the ranges of each peer if the inputs are co-partitioned."""
    dealt: list[list[Range]] = [[] for _ in range(peers.count)]
    for planned in work.plan.ranges:
        dealt[peers.reader(planned.partition.partition, work.plan.shards)].append(planned)
    return dealt


# --- a peer's part ----------------------------------------------------------------------------------------------------


def run_epoch(worker: TaskWorker, work: EpochWork, attempt: str, threads: Threads) -> EpochOutcome:
    """Run all of an epoch in its only peer."""
    blocks = run_share(worker, work, work.plan.ranges, range(work.plan.shards), attempt, threads)
    reports = [block for block in blocks if isinstance(block, ReadReport | StepDeadLetters)]
    return make_outcome(worker.collect(work, reports, attempt), blocks, worker.steps, work.plan.shards)


def run_share(
    worker: TaskWorker,
    work: EpochWork,
    ranges: Sequence[Range],
    own: Collection[int],
    attempt: str,
    threads: Threads,
) -> Collection[Block]:
    """Read these ranges, run all steps of the peer's own shards, and return the reports. Raises JoineryError if a
    row belongs to another peer's shard, because that peer would never see it."""
    shards = work.plan.shards
    inbox = sorted_by_shard(read_ranges(worker, work, ranges, threads))
    for step in range(worker.steps):
        strange = inbox.keys() - {*own, shards}
        if strange:
            raise JoineryError(
                f"Epoch {work.plan.epoch}: rows of shards {sorted(strange)} were read by the peer of {sorted(own)}",
                facts=f"{shards} shards, inputs co-partitioned by {work.plan.co_partitions}",
                todo="Nothing of it was committed. Leave coPartitioned out, with new state, and report this",
            )
        inbox = sorted_by_shard(run_step(worker, work, step, own, inbox, attempt, threads))
    return inbox[shards]


def make_outcome(read: ReadSummary, reports: Iterable[object], steps: int, shards: int) -> EpochOutcome:
    """Make the outcome of the read summary and the shard summaries among the reports."""
    summaries = [((report.step, report.shard), report) for report in reports if isinstance(report, ShardSummary)]
    return EpochOutcome(read, choose_attempts(summaries, steps, shards))


def read_ranges(
    worker: TaskWorker, work: EpochWork, ranges: Sequence[Range], threads: Threads
) -> Generator[Sent, None, None]:
    dealt = deal_ranges(ranges, threads.count)
    yield from threads.merge([worker.read(work, share, lane) for lane, share in enumerate(dealt)])


def read_own_rows(
    worker: TaskWorker, work: EpochWork, peers: WorkerProcesses, peer: int, threads: Threads
) -> Generator[Sent, None, None]:
    """Read all ranges, and keep what a peer's own shards get. The peer that owns the reports keeps those of all
    ranges, so that it can collect the dead letters."""
    shards = work.plan.shards
    for shard, block in read_ranges(worker, work, work.plan.ranges, threads):
        if peers.owner(shard, shards) == peer:
            yield shard, block


def run_step(
    worker: TaskWorker,
    work: EpochWork,
    step: int,
    shards: Iterable[int],
    inbox: Inbox,
    attempt: str,
    threads: Threads,
) -> Generator[Sent, None, None]:
    """Run a step of these shards, each on its blocks of the inbox, which it empties. Passes reports on unchanged."""
    steps = [worker.step(work, step, shard, _drain_blocks(inbox[shard]), attempt) for shard in shards]
    yield from threads.merge(steps)
    yield from ((work.plan.shards, report) for report in _drain_blocks(inbox[work.plan.shards]))


def _drain_blocks(blocks: deque[Block]) -> Iterator[Block]:
    """Yield the blocks and remove each, so that a block that a step has taken takes no memory here too."""
    while blocks:
        yield blocks.popleft()


def sorted_by_shard(sent: Iterable[Sent]) -> Inbox:
    inbox: Inbox = defaultdict(deque)
    for shard, block in sent:
        inbox[shard].append(block)
    return inbox


class LocalHost:
    """Runs all tasks of an epoch in this process: for epochs that the driver runs, traces, and tests of the engine.

    Implements `engine.driver.Host` with one worker. Attempts are numbered, so runs are repeatable. Without `threads`
    everything runs in the caller's thread, and an epoch has all of the job's shards."""

    def __init__(self, worker: Worker, threads: int | None = None) -> None:
        self._worker, self._threads = worker, Threads(threads or 1)
        self.cores, self.processes = threads, 1
        self._attempts = 0

    def run(self, work: EpochWork) -> EpochOutcome:
        self._attempts += 1
        return run_epoch(self._worker, work, f"local{self._attempts}", self._threads)

    def close(self) -> None:
        """End the host's threads."""
        self._threads.close()
