"""What tasks do with what they are given, and where a failure goes: to every peer, since Spark may rerun the task for
one of them only."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.engine.messages import EpochWork, PartitionRead, ReadSummary, ShardSummary, TaskFailure
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.read_report import ReadReport
from joinery_runtime.engine.tasks import Threads, WorkerProcesses, deal_ranges
from joinery_runtime.engine.worker import RowBlock
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts import spark_tasks
from joinery_runtime.hosts.spark_tasks import PeerTask, WorkerSetup, process_for

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
    monkeypatch.setattr(spark_tasks, "_processes", {"d": spark_tasks._Process(worker, Threads(), ExitStack())})
    work = EpochWork(1, EpochPlan(epoch=1, shards=3, ranges=tuple(SHARE), watermarks={}), ())
    monkeypatch.setattr(spark_tasks, "_local_directory", lambda: tmp_path)
    return PeerTask(WorkerSetup("d", lambda _: nullcontext(worker), 1), work, WorkerProcesses(3))


def test_every_peer_hears_of_it(task: PeerTask) -> None:
    yielded = list(task.read(0, [SHARE]))
    assert [peer for peer, sent in yielded if isinstance(sent, TaskFailure)] == [0, 1, 2]


Body = Callable[[Iterable[Any]], Iterator[Any]]
TASKS: list[tuple[Callable[[PeerTask], Body], list[Any]]] = [
    (lambda task: task.run_whole_epoch, [0, 0]),
    (lambda task: partial(task.read, 0), [SHARE, SHARE]),
    (lambda task: partial(task.stage, 0, 1), [(1, (0, "a block")), (1, TaskFailure(AWAY)), (1, (0, "another"))]),
]


@pytest.mark.parametrize(("body", "items"), TASKS, ids=["whole", "read", "step"])
def test_a_task_that_fails_takes_all_that_it_is_given(task: PeerTask, body: Any, items: list[Any]) -> None:
    """Else PySpark ends its process, with consumers and caches."""
    left = iter(items)
    assert any("the broker is away" in repr(result) for result in body(task)(left))
    assert list(left) == []


# --- rows that stay where they were read ------------------------------------------------------------------------------


class Reads:
    """Makes a row for each of four shards, and steps each shard to the rows that it got."""

    steps = 1

    def __init__(self) -> None:
        self.reads: list[object] = []

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Any]:
        for planned in ranges:
            self.reads.append(planned.partition.partition)
            for shard in range(4):
                yield shard, RowBlock(0, LEFT, pa.record_batch({"n": [planned.partition.partition * 10 + shard]}))
            yield 4, ReadReport(PartitionRead(planned.partition, records=4, rows=4), None)

    def step(self, work: EpochWork, number: int, shard: int, blocks: Iterable[Any], attempt: str) -> Iterator[Any]:
        numbers = [n for block in blocks for n in block.rows.column("n").to_pylist()]
        assert all(n % 10 == shard for n in numbers)
        yield 4, ShardSummary(number, shard, rows_in=len(numbers), rows_out=sum(numbers))

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        return ReadSummary(tuple(report.read for report in reports))


TWO = tuple(Range(PartitionRef("l", "t", partition), 0, 4) for partition in (0, 1))
SUMS = {0: 0 + 10, 1: 1 + 11, 2: 2 + 12, 3: 3 + 13}


def exchanged(worker: Any, patch: pytest.MonkeyPatch, readers: list[Path], steppers: list[Path]) -> dict[int, int]:
    """An epoch of two peers, each of which reads and steps in these executors' folders. Returns the sums by shard."""
    patch.setattr(spark_tasks, "_processes", {"d": spark_tasks._Process(worker, Threads(), ExitStack())})
    work = EpochWork(1, EpochPlan(epoch=1, shards=4, ranges=TWO, watermarks={}), ())
    task = PeerTask(WorkerSetup("d", lambda _: nullcontext(worker), 1), work, WorkerProcesses(2))
    sent = list[Any]()
    for peer, ranges in enumerate(deal_ranges(TWO, 2)):
        patch.setattr(spark_tasks, "_local_directory", lambda at=readers[peer]: at)
        sent += pickle.loads(pickle.dumps(list(task.read(peer, [ranges]))))
    for folder in {*readers} - {*steppers}:
        folder.rename(folder.with_name("elsewhere"))
    results = [
        result for peer in (0, 1) for _, result in task.stage(0, peer, [item for item in sent if item[0] == peer])
    ]
    (read,) = (result for result in results if isinstance(result, ReadSummary))
    assert sorted(part.partition.partition for part in read.partitions) == [0, 1]
    return {result.shard: result.rows_out for result in results if isinstance(result, ShardSummary)}


def test_rows_of_a_peers_own_shards_stay_in_its_executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = Reads()
    folders = [tmp_path / "a", tmp_path / "b"]
    assert exchanged(worker, monkeypatch, folders, folders) == SUMS
    assert sorted(worker.reads) == [0, 1], "each partition was read once"
    assert [len(list(folder.rglob("*.arrow"))) for folder in folders] == [1, 1]


def test_a_step_in_another_executor_reads_the_rows_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = Reads()
    assert exchanged(worker, monkeypatch, [tmp_path / "a", tmp_path / "b"], [tmp_path / "b"]) == SUMS
    assert sorted(worker.reads) == [0, 0, 1], "those of the executor that is gone, and no others"


# --- peers that each read all ranges ----------------------------------------------------------------------------------


class ReadsLetters(Reads):
    """Each range has a dead letter. Notes which shards have been stepped, and which letters have been collected."""

    def __init__(self) -> None:
        super().__init__()
        self.stepped: list[int] = []
        self.collected: list[bytes | None] = []

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Any]:
        for shard, block in super().read(work, ranges, lane):
            yield shard, replace(block, dead=b"letter") if isinstance(block, ReadReport) else block

    def step(self, work: EpochWork, number: int, shard: int, blocks: Iterable[Any], attempt: str) -> Iterator[Any]:
        self.stepped.append(shard)
        return super().step(work, number, shard, blocks, attempt)

    def collect(self, work: EpochWork, reports: Iterable[ReadReport], attempt: str) -> ReadSummary:
        listed = list(reports)
        self.collected += [report.dead for report in listed]
        return super().collect(work, listed, attempt)


def test_a_dead_letter_of_a_small_epoch_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that is written at least once has the rows of each step that has run."""
    worker: Any = ReadsLetters()
    monkeypatch.setattr(spark_tasks, "_processes", {"d": spark_tasks._Process(worker, Threads(), ExitStack())})
    work = EpochWork(1, EpochPlan(epoch=1, shards=4, ranges=TWO, watermarks={}), ())
    task = PeerTask(WorkerSetup("d", lambda _: nullcontext(worker), 1), work, WorkerProcesses(2, reads_all=True))
    results = [result for peer in (0, 1) for _, result in task.read_and_step(peer, [None])]
    assert not [result for result in results if isinstance(result, TaskFailure)]
    assert {result.shard: result.rows_out for result in results if isinstance(result, ShardSummary)} == SUMS
    assert sorted(worker.stepped) == [0, 1, 2, 3]
    assert worker.collected == [b"letter", b"letter"], "of both ranges, once"
    (read,) = (result for result in results if isinstance(result, ReadSummary))
    assert sorted(part.partition.partition for part in read.partitions) == [0, 1]


# --- one process, several jobs ----------------------------------------------------------------------------------------


def test_a_process_closes_the_worker_of_another_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """First the threads end, with the clients that they have opened."""
    log: list[str] = []
    threads_of_other_tests = set(threading.enumerate())
    monkeypatch.setattr(spark_tasks, "_processes", {})
    monkeypatch.setattr(spark_tasks, "_local_directory", lambda: tmp_path)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "set_threshold", lambda _: None)

    def setup_of(job: str) -> WorkerSetup:
        @contextmanager
        def build(cache: Path) -> Iterator[Any]:
            log.append(f"{job} opens {cache.name}")
            yield Reads()
            threads = {thread for thread in threading.enumerate() if thread.name.startswith("joinery_")}
            log.append(f"{job} closes, threads {sorted(thread.name for thread in threads - threads_of_other_tests)}")

        return WorkerSetup(job, build, 1)

    first = process_for(setup_of("first"), 2)
    list(first.threads.merge([iter("a"), iter("b")]))
    assert process_for(setup_of("first"), 2) is first
    wider = process_for(setup_of("first"), 3)
    assert (wider.worker, wider.threads.count) == (first.worker, 3)
    process_for(setup_of("second"), 1)
    assert log == ["first opens joinery-first", "first closes, threads []", "second opens joinery-second"]
