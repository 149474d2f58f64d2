"""Runs the real driver, planner, worker and store in this process over a random history, and compares every epoch with
the oracle."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from core.cases import STAMP, Case, Epoch
from joinery_devkit.oracle import (
    ComposedOracle,
    DeduplicationOracle,
    EpochExpectation,
    Oracle,
    ProjectionOracle,
    Row,
    SessionOracle,
    WatermarkOracle,
    WindowOracle,
    differences,
    too_far_ahead,
)
from joinery_runtime.connectors.source import Bounds, StoredOffsets
from joinery_runtime.connectors.unions import UnionDecoder, branch_ref, branch_topic
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME
from joinery_runtime.core.table import compaction
from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.engine.assembly import identity, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.plan import EpochPlan, partition_id
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.read_report import ReadReport, StepDeadLetters
from joinery_runtime.engine.report import EpochReport
from joinery_runtime.engine.tasks import (
    LocalHost,
    Threads,
    WorkerProcesses,
    make_outcome,
    ranges_by_peer,
    read_own_rows,
    run_epoch,
    run_share,
    run_step,
    sorted_by_shard,
)
from joinery_runtime.engine.worker import Block, Sent, Worker, WorkerParts
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded, Decoder
from joinery_runtime.inspect.trace_environment import LocalCapture
from joinery_runtime.inspect.trace_steps import StepLog, TraceRecord
from joinery_runtime.job import Input, Job
from joinery_runtime.job.model.base import PLAIN_NUMBERS
from joinery_runtime.job.model.unions import UnionInput
from joinery_runtime.state.memory import MemoryStore

MEMORY = Path("/dev/shm")
MOST_FOLLOWING = 50  # epochs without rows; more of them never end


def merge_early(patch: pytest.MonkeyPatch) -> None:
    """Histories are short: with the real thresholds hardly any two segments would ever merge."""
    patch.setattr(compaction, "FAN_IN", 3)
    patch.setattr(compaction, "CHECKPOINT_FAN_IN", 2)


class RowLog(StepLog):
    """One input's records: pickled rows, so that every value goes through, NaN too. `topics`: each partition of the
    history is a topic of its own (U1), of a union a branch of its own (U3)."""

    def __init__(self, side: Input, partitions: Iterable[int], *, topics: bool = False) -> None:
        super().__init__(side)
        self._has_topics, self.topics = topics, ()
        self._is_union = isinstance(side, UnionInput)
        self.partitions = {self.numbered(partition): [] for partition in partitions}
        self.elsewhere: Collection[int] = ()
        self.rows: dict[tuple[int, int], Row] = {}

    def numbered(self, partition: int) -> PartitionRef:
        """The partition that has this number in the history."""
        topic, own = (f"{self.name}-{partition}", 0) if self._has_topics else (self.name, partition)
        if self._is_union:
            topic, own = branch_topic(_branch_name(self.name, partition), "topic"), 0
        return PartitionRef(self.name, topic, own)

    def number(self, ref: PartitionRef) -> int:
        """The partition's number in the history."""
        if self._is_union:
            return int(branch_ref(ref).input.rpartition("_")[2])
        return int(ref.topic.removeprefix(f"{self.name}-")) if self._has_topics else ref.partition

    def feed(self, rows: Iterable[Row]) -> None:
        for row in rows:
            records = self.partitions[self.numbered(row.partition)]
            assert row.offset == len(records), "rows of a partition come in order"
            value = pickle.dumps((row.values, row.deleted))
            records.append(TraceRecord(value, row.values.get(STAMP, -1), None, {}))
            self.rows[row.partition, row.offset] = row

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        return [
            replace(bound, is_assigned=self.number(bound.partition) not in self.elsewhere)
            for bound in super().bounds(stored)
        ]


@dataclass(frozen=True)
class RowDecoder:
    schema: pa.Schema
    table: bool
    prefix: str = ""  # of the names of columns

    def decode_batch(self, raw: RawBatch) -> Decoded:
        records = [pickle.loads(value) for value in raw.values.to_pylist()]
        named = [{self.prefix + name: value for name, value in values.items()} for values, _ in records]
        rows = pa.Table.from_pylist(named, schema=self.schema)
        deleted = np.array([flag for _, flag in records], dtype=bool) if self.table else None
        return Decoded(rows, np.arange(len(records), dtype=np.int64), [], deleted)


@dataclass
class RowInputs:
    job: Job
    logs: Mapping[str, RowLog]

    def reader(self, name: str, lane: int) -> RowLog:
        return self.logs[name]

    def decoder(self, name: str, lane: int) -> Decoder:
        side = self.job.input(name)
        if isinstance(side, UnionInput):
            return UnionDecoder(side, lambda part: RowDecoder(arrow_schema(part.columns), False, f"{part.name}_"))
        return RowDecoder(arrow_schema(side.columns), side.table is not None)


@dataclass
class Told:
    """Partitions that an epoch calls idle."""

    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """The epochs say what is idle."""

    def idle(self) -> dict[str, Collection[str]]:
        return dict(self.partitions)

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int:
        return 0


@dataclass(frozen=True)
class Result:
    """One epoch, as the engine ran it and as the oracle says. By input, `dead` counts dead letters, `future` the rows
    that are too far ahead."""

    plan: EpochPlan
    report: EpochReport
    rows: Sequence[Mapping[str, Any]]
    dead: Counter[str]
    expected: EpochExpectation
    job: Job
    pipeline: Pipeline
    future: Counter[str]


@dataclass
class PeersHost:
    """Peers as on Spark. Those of co-partitioned inputs each read their own partitions and see no row of another one;
    others each read everything (small epochs), and exchange what a step makes. What they report is pickled. `apart` and
    `reading_all` count the epochs that were run so; the others are run by one of them."""

    workers: Sequence[Worker]
    apart: int = 0
    reading_all: int = 0
    attempts: int = 0
    cores: int | None = None
    processes: int = 1

    def run(self, work: EpochWork) -> EpochOutcome:
        shards, self.attempts = work.plan.shards, self.attempts + 1
        peers = WorkerProcesses(len(self.workers))
        if not work.judges_inputs:
            peers = peers.without_exchange(work.plan.co_partitions, shards)
        peers = peers.each_reading_all(shards)
        if peers.co_partitions:
            return self._run_apart(work, peers)
        if peers.reads_all:
            return self._run_reading_all(work, peers)
        return run_epoch(self.workers[0], work, f"whole-{self.attempts}", Threads())

    def _run_reading_all(self, work: EpochWork, peers: WorkerProcesses) -> EpochOutcome:
        shards, workers = work.plan.shards, self.workers[: peers.count]
        self.reading_all += 1
        inboxes = [
            sorted_by_shard(read_own_rows(worker, work, peers, peer, Threads())) for peer, worker in enumerate(workers)
        ]
        for step in range(workers[0].steps):
            sent: list[list[Sent]] = [[] for _ in workers]
            for peer, worker in enumerate(workers):
                attempt, own = f"peer-{peer}-{self.attempts}", peers.shards_of(peer, shards)
                for shard, block in run_step(worker, work, step, own, inboxes[peer], attempt, Threads()):
                    sent[peers.owner(shard, shards)].append((shard, block))
            inboxes = list(map(sorted_by_shard, sent))
        return self._collected(work, pickle.loads(pickle.dumps(list(inboxes[0][shards]))))

    def _run_apart(self, work: EpochWork, peers: WorkerProcesses) -> EpochOutcome:
        shards = work.plan.shards
        self.apart += 1
        blocks: list[Block] = []
        for peer, (worker, ranges) in enumerate(zip(self.workers, ranges_by_peer(work, peers), strict=True)):
            attempt = f"peer-{peer}-{self.attempts}"
            share_blocks = run_share(worker, work, ranges, peers.shards_of(peer, shards), attempt, Threads())
            blocks += pickle.loads(pickle.dumps(list(share_blocks)))
        return self._collected(work, blocks)

    def _collected(self, work: EpochWork, blocks: Sequence[Block]) -> EpochOutcome:
        reports = [block for block in blocks if isinstance(block, ReadReport | StepDeadLetters)]
        read = self.workers[0].collect(work, reports, f"collect-{self.attempts}")
        return make_outcome(read, blocks, self.workers[0].steps, work.plan.shards)


BRANCHES = 6  # of each union: more than any history has partitions


def _branch_name(union: str, partition: int) -> str:
    return f"{union}_{partition}"


def united(job: Job) -> Job:
    """The job with a union in the place of each input that is no table. Each branch has other names of columns, of
    which it makes those of the union."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    inputs, unions = list[Any](), list[Any]()
    for side in document["spec"]["inputs"]:
        if "table" in side:
            inputs.append(side)
            continue
        names = [_branch_name(side["name"], number) for number in range(BRANCHES)]
        columns = [column["name"] for column in side["schema"]]
        own = {key: value for key, value in side.items() if key != "where"}
        for name in names:
            schema = [{**column, "name": f"{name}_{column['name']}"} for column in side["schema"]]
            inputs.append({**own, "name": name, "schema": schema, "eventTime": f"{name}_{side['eventTime']}"})
        branches = [
            {"input": name, "select": [{"column": f"{name}_{column}", "as": column} for column in columns]}
            for name in names
        ]
        unions.append({"name": side["name"], "branches": branches, "where": side.get("where")})
    document["spec"] = {**document["spec"], "inputs": inputs, "unions": unions}
    return type(job).model_validate(document, context=PLAIN_NUMBERS)


class Engine:
    """A job between epochs: its store and its inputs outlive its drivers."""

    def __init__(
        self,
        case: Case,
        cache: Path,
        hasher: KeyHash,
        threads: int = 1,
        peers: int = 1,
        *,
        topics: bool = False,
        unions: bool = False,
    ) -> None:
        self._united = united if unions else lambda job: job
        self._job, self._hasher, self._cache, self._peers = self._united(case.job.job), hasher, cache, peers
        self._store, self._told, self._output = MemoryStore(), Told(), LocalCapture()
        self._dead = LocalCapture()
        self.logs = {side.name: RowLog(side, case.partitions[side.name], topics=topics) for side in self._job.inputs}
        self._threads = threads
        self._shards, self._now_ms, self._last, self._crash = 1, 0, False, False
        self._wall_ms: int | None = None
        self._pipeline = compile_job(self._job)
        self.start()

    @property
    def idle(self) -> Mapping[str, Collection[str]]:
        return self._told.idle()

    @property
    def ended(self) -> list[str]:
        """By what is committed now."""
        positions = {name: state.positions for name, state in self.driver.state.inputs.items()}
        return [
            name
            for name, log in self.logs.items()
            if log.final and all(positions[name].get(ref) == len(log.partitions[ref]) for ref in log.refs())
        ]

    def start(self) -> None:
        who = identity(self._job, self._pipeline, lambda _: None)
        settings = replace(plan_settings(self._job, who), shards=self._shards, budget=Budget(2**62, 2**62))
        self._planner = Planner(settings, self.logs, input_clocks(self._job), self._told)
        inputs = RowInputs(self._job, self.logs)
        workers = [
            Worker(
                WorkerParts(
                    self._job.name, self._pipeline, inputs, self._store, self._output, self._dead,
                    self._cache / str(peer), hasher=self._hasher,
                )
            )
            for peer in range(self._peers)
        ]  # fmt: skip
        self.host = LocalHost(workers[0], self._threads) if self._peers == 1 else PeersHost(workers)
        parts = DriverParts(self._store, self._planner, self.host, self._output, self._dead)
        self.driver = Driver(who, self._pipeline, parts, now_ms=lambda: self._now_ms, wall_ms=lambda: self._wall_ms)
        self.driver.recover()

    def prepare(self, epoch: Epoch) -> None:
        """What the epoch's plan is to find. No partition that is elsewhere is idle (T4)."""
        for name, log in self.logs.items():
            log.elsewhere = epoch.elsewhere.get(name, ())
            log.partitions |= {log.numbered(partition): [] for partition in epoch.added.get(name, ())}
        for name, rows in epoch.rows.items():
            self.logs[name].feed(rows)
        for name in epoch.final:
            self.logs[name].end(name)
        self._told.partitions = {
            name: [partition_id(log.numbered(p)) for p in epoch.idle[name] if p not in log.elsewhere]
            for name, log in self.logs.items()
            if name in epoch.idle
        }
        self._wall_ms = epoch.clock
        self._shards, self._last, self._crash = epoch.shards, not epoch.followed, epoch.crash
        if epoch.checkpoint:
            self._now_ms += self._job.spec.state_store.checkpoint_interval
        if epoch.job is not None:
            self._job = self._united(epoch.job.job)
            self._pipeline = compile_job(self._job)
        if epoch.restart or epoch.job is not None:
            self.start()
        self._planner.rescale(self._shards)

    def run(self, *, always: bool) -> tuple[EpochPlan, EpochReport, list[dict[str, Any]], Counter[str]] | None:
        plan = self.driver.plan(always=always)
        if plan is None:
            return None
        if self._crash:
            self.driver.run(plan)
            _rows(self._output), _rows(self._dead)
            self._wall_ms = None
            self.start()
            assert self.driver.plan() == plan, "a plan is replayed as it stands"
        report = self.driver.commit(plan, self.driver.run(plan), last=self._last)
        written = _rows(self._dead)
        # Rows of an aggregate that do not fit have no place (S7).
        unfit = Counter(row["input"] for row in written if row["topic"] is None)
        dead = [row for row in written if row["topic"] is not None]
        letters = {(row["input"], row["topic"], row["partition"], row["offset"]) for row in dead}
        assert len(letters) == len(dead), "a record is two dead letters"
        assert all(row["reason"].startswith(("late: ", "future: ")) for row in dead)
        union_of = {part.name: side.name for side in self._job.inputs for part in side.parts}
        return plan, report, _rows(self._output), Counter(union_of[name] for name, *_ in letters) + unfit

    def read_by(self, plan: EpochPlan) -> tuple[dict[str, list[Row]], Counter[str]]:
        """The rows that count, and how many are too far ahead (T11), by input."""
        rows_by_input: dict[str, list[Row]] = {name: [] for name in self.logs}
        future: Counter[str] = Counter()
        for planned in plan.ranges:
            name = planned.partition.input
            number = self.logs[name].number(planned.partition)
            rows = [self.logs[name].rows[number, offset] for offset in range(planned.start, planned.end_exclusive)]
            stamps = [row.values.get(STAMP, -1) for row in rows]
            most = self._job.input(name).watermark.max_future
            ahead = too_far_ahead([row.ts for row in rows], stamps, most, plan.clock)
            rows_by_input[name] += [row for position, row in enumerate(rows) if position not in ahead]
            future[name] += len(ahead)
        return rows_by_input, future


def _rows(sink: LocalCapture) -> list[dict[str, Any]]:
    return [row for table in sink.take() for row in table.to_pylist()]


class Check:
    """An engine and the oracles beside it."""

    def __init__(self, case: Case, engine: Engine) -> None:
        self._case, self._engine, self._job = case, engine, case.job
        self._pipeline = compile_job(case.job.job)
        self._oracle = case.job.oracle()
        delays = {side.name: side.watermark.delay for side in case.job.job.inputs}
        partition_ids = {name: [self._id(name, p) for p in partitions] for name, partitions in case.partitions.items()}
        self._marks = WatermarkOracle(delays, partition_ids)
        self._tables = {side.name for side in case.job.job.inputs if side.table is not None}
        self._ends: dict[PartitionRef, int] = {}
        self._tables_read: set[str] = set()
        self._behind: set[str] = set()

    def history(self) -> Iterator[Result]:
        for epoch in self._case.epochs:
            self._engine.prepare(epoch)
            for name, new in epoch.added.items():
                for partition in new:
                    self._marks.saw(name, self._id(name, partition), [])
            if epoch.job is not None:
                epoch.job.edit(self._oracle, self._job)
                self._job, self._pipeline = epoch.job, compile_job(epoch.job.job)
                self._marks.edit({side.name: side.watermark.delay for side in self._job.job.inputs})
            yield from self._epoch(always=True)
            if epoch.followed:
                yield from self._following()
                self._check_nothing_waits()

    def _id(self, name: str, partition: int) -> str:
        return partition_id(self._engine.logs[name].numbered(partition))

    def _following(self) -> Iterator[Result]:
        for _ in range(MOST_FOLLOWING):
            if not (following := list(self._epoch(always=False))):
                return
            yield from following
        raise AssertionError("epochs without rows go on for ever")

    def _check_nothing_waits(self) -> None:
        """T3: what can go out has gone out."""
        marks, oracle = deepcopy((self._marks, self._oracle))
        for _ in range(oracle.depth):
            watermarks = marks.watermarks(self._engine.idle, self._engine.ended)
            expected = _expected(oracle, watermarks, {}, self._reached(self._ends))
            assert not expected.rows, "rows wait for the next epoch with rows"

    def _epoch(self, *, always: bool) -> Iterator[Result]:
        ran = self._engine.run(always=always)
        if ran is not None:
            plan, report, rows, dead = ran
            read, future = self._engine.read_by(plan)
            self._check_reached(plan)
            self._check_watermarks(plan, read)
            expected = _expected(self._oracle, plan.watermarks, read, plan.reached)
            yield Result(plan, report, rows, dead, expected, self._job.job, self._pipeline, future)

    def _check_reached(self, plan: EpochPlan) -> None:
        """A4: up to which times inputs of a join with a table were read that are behind. Rows that wait may ask for
        versions from before the stream's (A2); what is known of the first of them is a time that is not later."""
        read = {planned.partition: planned.end_exclusive for planned in plan.ranges}
        ends = {**self._ends, **read}
        reached = self._reached(ends)
        for name in self._engine.logs if self._tables else ():
            at, most = plan.reached.get(name, END_OF_TIME), reached.get(name, END_OF_TIME)
            if name in self._tables:
                assert at == most, "a table has reached another time than its records say"
            else:
                waited, requested_time = self._oracle.asked_from(plan.watermarks, name)
                assert at <= min(most, requested_time), "versions go that rows will ask for (A2)"
                assert at == most or at > waited, "versions stay that no row will ask for"
        self._behind = {name for name in self._streams() if self._unread(name, ends)}
        self._ends, self._tables_read = ends, self._tables_read | {*plan.tables_read}

    def _reached(self, ends: Mapping[PartitionRef, int]) -> dict[str, int]:
        """In an epoch that reads on to these ends: a table by what it leaves, a stream by what the one before left."""
        unread = {name: self._unread(name, ends) for name in self._tables}
        unread |= {name: self._unread(name, self._ends) for name in self._behind}
        times = {name: self._marks.reached(name, some) for name, some in unread.items() if some}
        return {name: BEGIN_OF_TIME if at is None else at for name, at in times.items()}

    def _streams(self) -> Collection[str]:
        """The streams of a table that was first read to its end."""
        return self._engine.logs.keys() - self._tables if self._tables and self._tables <= self._tables_read else ()

    def _unread(self, name: str, ends: Mapping[PartitionRef, int]) -> list[str]:
        records = self._engine.logs[name].partitions
        return [partition_id(ref) for ref, listed in records.items() if ends.get(ref, 0) < len(listed)]

    def _check_watermarks(self, plan: EpochPlan, read: Mapping[str, Sequence[Row]]) -> None:
        assert dict(plan.watermarks) == self._marks.watermarks(plan.idle, plan.ended)
        for name, rows in read.items():
            for row in rows:
                self._marks.saw(name, self._id(name, row.partition), [row.ts])
        self._marks.settle(plan.idle)


def _expected(
    oracle: Oracle | ComposedOracle | SessionOracle | WindowOracle | ProjectionOracle | DeduplicationOracle,
    watermarks: Mapping[str, int | None],
    rows: Mapping[str, Sequence[Row]],
    reached: Mapping[str, int],
) -> EpochExpectation:
    if isinstance(oracle, Oracle | ComposedOracle):
        return oracle.epoch(watermarks, rows, reached)
    return oracle.epoch(watermarks, rows)


def run(case: Case, hasher: KeyHash = key_hash) -> list[Result]:
    """The whole history, nothing compared but the watermarks."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as cache:
        engine = Engine(case, Path(cache), hasher)
        return list(Check(case, engine).history())


def check_against_oracle(
    case: Case,
    hasher: KeyHash = key_hash,
    threads: int = 1,
    peers: int = 1,
    *,
    topics: bool = False,
    unions: bool = False,
) -> list[Result]:
    """Every epoch: the watermarks, rows and drops that the oracle says; nothing is left for another epoch to emit."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as cache:
        engine = Engine(case, Path(cache), hasher, threads, peers, topics=topics, unions=unions)
        results = []
        for result in Check(case, engine).history():
            _compare(result)
            results.append(result)
        return results


def _compare(result: Result) -> None:
    difference = differences(result.expected.rows, result.rows)
    assert not difference, f"epoch {result.plan.epoch}, {result.plan.watermarks}: {difference}"
    expected_drops = dropped(result.expected, result.future)
    assert _counts(result.report.dropped) == expected_drops, f"drops of epoch {result.plan.epoch}"
    unfit = Counter({result.pipeline.last.sides[0].time: result.expected.unfit})
    letters = _late_letters(result.pipeline, result.expected) + result.future + unfit
    assert result.dead == Counter(result.report.dead) == letters


def _late_letters(pipeline: Pipeline, expected: EpochExpectation) -> Counter[str]:
    """By input: late records where they go to the dead letters."""
    kinds = {name: pipeline.steps[pipeline.input(name).step].kind for name in expected.late}
    return Counter({name: count for name, count in expected.late.items() if kinds[name].late_to_dead_letters})


def dropped(expected: EpochExpectation, future: Mapping[str, int]) -> dict[str, dict[str, int]]:
    of_records = {name: Counter(late=count, future=future[name]) for name, count in expected.late.items()}
    return _counts({name: of_records[name] + Counter(counts) for name, counts in expected.dropped.items()})


def _counts(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Without zeros and empty inputs."""
    nonzero = {name: {reason: n for reason, n in reasons.items() if n} for name, reasons in counts.items()}
    return {name: reasons for name, reasons in nonzero.items() if reasons}


def few_hashes(count: int) -> KeyHash:
    """The real hash, folded onto `count` values that lie far apart."""

    def folded(columns: Sequence[pa.Array]) -> np.ndarray:
        return (key_hash(columns) % np.uint64(count)) * np.uint64(2**64 // (count + 1))

    return folded
