"""A history, then live: every row once across the seam, wherever the job starts again, and none skipped silently."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.connectors import inputs as factory
from joinery_runtime.connectors.history import is_file_of_history
from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.core.pipeline.prepare import Prepared
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.messages import EpochOutcome, ReadSummary
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.engine.plan import EpochPlan, InputState, partition_id
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.read_report import ReadCounter
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.job import Input
from stores import STORE

UNTIL, DELAY, IDLE_MS = 100, 5, 1_000


@dataclass
class Topic(UnsharedSource):
    """The event times of a topic's records by partition, planner and reader in one; `begin` is the earliest offset that
    is still there, `unassigned` are partitions that another member of the group has."""

    partitions: list[list[int]]
    begin: int = 0
    unassigned: set[int] = field(default_factory=set)
    final: bool = False
    stop: int | None = None
    starts: dict[PartitionRef, int] = field(default_factory=dict)

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        assert not any(map(is_file_of_history, stored.offsets)), "a topic knows nothing of files"
        bounds = []
        for number, records in enumerate(self.partitions):
            ref = PartitionRef("in", "live", number)
            start = stored.offsets[ref] if ref in stored.offsets else self.starts.setdefault(ref, self.begin)
            assert start >= self.begin, "records are gone that were to be read"
            assigned = number not in self.unassigned
            bounds.append(
                Bounds(ref, start, len(records), self.final, is_assigned=assigned, stop=self.stop, topic_id="id")
            )
        return bounds

    def forget_starts(self) -> None:
        self.starts = {}

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for bound in planned:
            times = self.partitions[bound.partition.partition][bound.start : bound.end_exclusive]
            values = pa.array([json.dumps({"ts": at, "id": f"live-{at}"}).encode() for at in times], pa.binary())
            yield RawBatch(bound.partition, np.arange(bound.start, bound.end_exclusive), values)

    def close(self) -> None:
        """Nothing is open."""


class Job:
    """One input with a history, and what is committed of it; `restart` goes on with that."""

    def __init__(
        self, folder: Path, topic: Topic, *, format_: str = "json", records: int = 1_000, once: bool = False
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.topic, self.records, self.once = folder, topic, records, once
        history = {"path": str(folder), "format": format_, "until": UNTIL}
        schema = [{"name": "ts", "type": "int64"}, {"name": "id", "type": "string"}]
        kafka = {"bootstrapServers": "k", "topic": "live"}
        data = {"name": "in", "kafka": kafka, "history": history, "format": "json", "schema": schema, "eventTime": "ts"}
        self.model = Input.model_validate(data)
        self.state, self.number, self.now_ms = InputState(), 0, 0
        self.skipped = 0
        self.clocks = {"in": InputClock(delay_ms=DELAY)}
        self.restart()

    def restart(self) -> None:
        self.state = InputState.from_bytes("in", self.state.to_bytes())
        self.topic.starts = {}
        with pytest.MonkeyPatch.context() as patch:
            for half in ("KafkaPlanner", "KafkaReader"):
                patch.setattr(factory, half, lambda *_, **__: self.topic)
            source, self.reader = planner_for(self.model, "job", STORE, once=self.once), reader_for(self.model)
        settings = PlanSettings(1, Budget(self.records, 64 << 20), 3_600_000, "f")
        self.planner = Planner(settings, {"in": source}, self.clocks, IdleClock({"in": IDLE_MS}), once=self.once)
        self.decoder = decoder_for(self.model)

    def add(self, name: str, *times: int) -> None:
        rows = [{"ts": at, "id": f"{name}-{at}"} for at in times]
        if name.endswith(".parquet"):
            schema = pa.schema([("ts", pa.int64()), ("id", pa.string())])
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), self.folder / name)
        else:
            (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def plan(self, passed_ms: int = 100) -> EpochPlan | None:
        self.now_ms += passed_ms
        result = self.planner.plan(JobState(Pipeline((), ()), {"in": self.state}, epoch=self.number), self.now_ms)
        self.status = result.status
        return None if result.plan is None else EpochPlan.from_json(result.plan.to_json())

    def commit(self, plan: EpochPlan) -> list[str]:
        """The ids of the rows that count; checks that all others are counted as skipped."""
        ids: list[str] = []
        highest: dict[str, int | None] = {}
        reads = []
        for planned in plan.ranges:
            counter = ReadCounter(planned)
            for raw in self.reader.read(planned):
                decoded = self.decoder.decode_batch(raw)
                assert not decoded.bad
                times = decoded.rows["ts"].to_pylist()
                counter.add(raw, decoded, Prepared(_batch(decoded.rows), *_span(times)), None)
                ids += decoded.rows["id"].to_pylist()
            read = counter.report().read
            assert read.rows + read.dropped.get("history", 0) == read.records
            self.skipped += read.dropped.get("history", 0)
            reads.append(read)
            if read.highest is not None:
                highest[partition_id(planned.partition)] = read.highest
        self.planner.learn(plan, EpochOutcome(ReadSummary(tuple(reads)), {}), {"in": self.state})
        self.state = self.state.after(plan, "in", highest, self.clocks["in"])
        self.number += 1
        return ids

    def read(self, *, restarts: bool = False) -> list[str]:
        ids: list[str] = []
        while (plan := self.plan()) is not None:
            ids += self.commit(plan)
            if restarts:
                self.restart()
        return ids

    @property
    def stored(self) -> set[str]:
        return {Path(ref.topic).name for ref in self.state.positions}


def _batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _span(times: Sequence[int]) -> tuple[int | None, int | None]:
    return min(times, default=None), max(times, default=None)


def parts(plan: EpochPlan | None) -> set[str]:
    assert plan is not None
    return {Path(ref.topic).name for ref in plan.partitions}


# --- the seam ---------------------------------------------------------------------------------------------------------


def test_files_come_first_and_then_the_topic_each_up_to_its_side_of_the_time(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[90, 99, 100, 105], [101]]))
    job.add("1.jsonl", 10, 99, 100, 120)
    job.add("2.jsonl", 50)
    first = job.plan()
    assert parts(first) == {"1.jsonl", "2.jsonl"}
    assert sorted(job.commit(first)) == ["1.jsonl-10", "1.jsonl-99", "2.jsonl-50"]
    seam = job.plan()
    assert parts(seam) == {"live"}
    assert sorted(job.commit(seam)) == ["live-100", "live-101", "live-105"]
    assert job.skipped == 4
    assert job.plan() is None


def test_a_history_of_parquet_may_go_once_it_has_been_read(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100]]), format_="parquet")
    job.add("1.parquet", *range(0, 90))
    assert len(job.read()) == 91
    (tmp_path / "in" / "1.parquet").unlink()
    (tmp_path / "in").rmdir()
    job.restart()
    assert job.read() == []
    job.topic.partitions[0] += [99, 110]
    assert job.read() == ["live-110"], "what is late for the history stays out, for ever"
    assert job.stored == {"live"}


def test_no_record_of_the_topic_is_late_because_of_the_files(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100], [103]]))
    job.add("1.jsonl", 10, 99, 100, 100_000)
    job.commit(job.plan())
    seam = job.plan()
    assert seam.watermarks["in"] == UNTIL - 1 - DELAY
    job.commit(seam)
    assert job.plan() is None
    assert job.state.progress.watermark == 100 - DELAY


def test_while_files_are_read_the_topic_neither_holds_the_watermark_nor_is_idle(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[], [100]]), records=2)
    job.add("1.jsonl", *range(10, 90, 10))
    reached = []
    for _ in range(5):
        plan = job.plan(passed_ms=IDLE_MS)
        assert plan.idle == {}
        job.commit(plan)
        reached.append(job.state.progress.watermark)
    assert reached == sorted(reached)
    assert reached[-1] == 80 - DELAY


def test_a_file_that_has_been_read_holds_no_watermark_back(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[]]), records=4)
    job.add("1.jsonl", 10)
    job.add("2.jsonl", *range(20, 80, 10))
    while "1.jsonl" in parts(plan := job.plan()) or not job.number:
        job.commit(plan)
    assert plan.watermarks["in"] > 10


@pytest.mark.parametrize("times", [[10], []])
def test_the_input_does_not_end_with_its_history(tmp_path, times: list[int]) -> None:
    job = Job(tmp_path / "in", Topic([[]]))
    job.add("1.jsonl", *times)
    assert len(job.read()) == len(times)
    assert not job.state.progress.ended
    assert not job.status.finished
    bounded = Job(tmp_path / "bounded", Topic([[100]], final=True))
    bounded.add("1.jsonl", 10)
    assert bounded.read() == ["1.jsonl-10", "live-100"]
    assert bounded.status.finished


def test_retention_may_take_what_nobody_needs_while_files_are_read(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[5, 6, 100]]), records=1)
    job.add("1.jsonl", 10, 20)
    job.commit(job.plan())
    job.topic.begin = 2
    assert job.read() == ["1.jsonl-20", "live-100"]
    assert job.skipped == 0


def test_no_partition_has_to_be_ours_for_the_history_to_end(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100], [101]], unassigned={0, 1}))
    job.add("1.jsonl", 10)
    assert job.read() == ["1.jsonl-10"]
    job.restart()
    assert job.read() == []
    job.topic.unassigned = {0}
    assert job.read(restarts=True) == ["live-101"]
    job.topic.unassigned = set()
    assert job.read(restarts=True) == ["live-100"]


def test_a_topic_that_is_gone_does_not_bring_the_history_back(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100]]))
    job.add("1.jsonl", 10)
    job.read()
    job.state = replace(job.state, positions={})
    job.topic.partitions = []
    job.restart()
    assert job.plan() is None


def test_a_run_once_reads_both_and_the_next_one_goes_on(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100]]), once=True)
    job.add("1.jsonl", 10)
    plan = job.plan()
    job.topic.partitions[0] += [101]
    assert job.commit(plan) == ["1.jsonl-10"]
    assert not job.status.finished
    assert job.read() == ["live-100"]
    assert job.status.finished
    job.restart()
    assert job.read() == ["live-101"]


def test_where_the_topic_stops_is_stored_before_it_is_read(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100]], stop=7), records=1)
    job.add("1.jsonl", 10, 20)
    job.commit(job.plan())
    assert job.state.stops == {PartitionRef("in", "live", 0): 7}


def test_what_is_skipped_takes_no_more_epochs_than_what_is_read(tmp_path) -> None:
    """The first epoch learns how close in time the records are; skipped ones tell, too."""
    job = Job(tmp_path / "in", Topic([[number // 2_000 for number in range(60_000)]]), records=100_000)
    job.add("1.jsonl", 10)
    job.read()
    assert job.skipped == 60_000
    assert job.number == 3


def test_other_files_than_before_stop_the_job(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[100]]), records=1)
    job.add("1.jsonl", 10, 20)
    job.commit(job.plan())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jsonl").write_text('{"ts": 10}')
    history = job.model.history.model_copy(update={"path": str(tmp_path / "other")})
    job.model = job.model.model_copy(update={"history": history})
    job.restart()
    with pytest.raises(SourceError, match="has other files than before") as raised:
        job.plan()
    assert str(tmp_path / "in" / "1.jsonl") in raised.value.facts


def test_files_that_are_not_there_lead_to_the_history(tmp_path) -> None:
    for missing in ("typo", "typo/*.jsonl"):
        job = Job(tmp_path / "in", Topic([[100]]))
        path = str(tmp_path / missing)
        job.model = job.model.model_copy(update={"history": job.model.history.model_copy(update={"path": path})})
        job.restart()
        with pytest.raises(SourceError) as raised:
            job.plan()
        assert path in raised.value.summary
        assert raised.value.todo == "Check history.path in the job"


def test_times_that_are_none_are_for_the_dead_letters(tmp_path) -> None:
    job = Job(tmp_path / "in", Topic([[]]))
    raw = RawBatch(
        PartitionRef("in", "live", 0),
        np.arange(3),
        pa.array([b'{"id": "a"}', b'{"ts": -999999999999999, "id": "b"}', b'{"ts": 99, "id": "c"}'], pa.binary()),
    )
    decoded = job.decoder.decode_batch(raw)
    assert decoded.rows["id"].to_pylist() == ["a", "b"]
    assert decoded.index.tolist() == [0, 1]
    assert decoded.dropped == {"history": 1}


def test_a_table_may_have_a_snapshot_before_its_changes(tmp_path) -> None:
    """Of change events only those from the time on, deletions among them."""
    columns = [{"name": "k", "type": "string"}, {"name": "ts", "type": "int64", "from": "envelope", "path": "ts_ms"}]
    data = {"name": "in", "format": "debezium-json", "schema": columns, "eventTime": "ts", "table": {"key": ["k"]}}
    history = {"path": str(tmp_path), "format": "json", "until": UNTIL}
    model = Input.model_validate({**data, "kafka": {"bootstrapServers": "k", "topic": "live"}, "history": history})
    decoder = decoder_for(model)

    def decoded(topic: str, *records: dict[str, Any]) -> tuple[list[Any], list[bool], Mapping[str, int]]:
        values = pa.array([json.dumps(record).encode() for record in records], pa.binary())
        raw = RawBatch(PartitionRef("in", topic, 0), np.arange(len(records)), values)
        result = decoder.decode_batch(raw)
        assert not result.bad
        assert result.deleted is not None
        return result.rows.to_pylist(), result.deleted.tolist(), result.dropped

    snapshot = decoded(str(tmp_path / "1.jsonl"), {"k": "a", "ts": 90}, {"k": "b", "ts": 100})
    assert snapshot == ([{"k": "a", "ts": 90}], [False], {"history": 1})
    changes = [
        {"op": "c", "before": None, "after": {"k": "a"}, "ts_ms": 90},
        {"op": "d", "before": {"k": "a"}, "after": None, "ts_ms": 100},
        {"op": "u", "before": None, "after": {"k": "b"}, "ts_ms": 101},
    ]
    assert decoded("live", *changes) == ([{"k": "a", "ts": 100}, {"k": "b", "ts": 101}], [True, False], {"history": 1})


def test_an_event_of_the_files_that_is_left_out_goes_no_further_than_their_end(tmp_path) -> None:
    columns = [{"name": "k", "type": "string"}, {"name": "ts", "type": "int64", "from": "envelope", "path": "ts_ms"}]
    data = {"name": "in", "format": "debezium-json", "schema": columns, "eventTime": "ts", "debezium": {"ops": ["c"]}}
    history = {"path": str(tmp_path), "format": "debezium-json", "until": UNTIL}
    model = Input.model_validate({**data, "kafka": {"bootstrapServers": "k", "topic": "live"}, "history": history})
    events = [{"op": "u", "after": {"k": "a"}, "ts_ms": at} for at in (90, 500)]
    values = pa.array([json.dumps(event).encode() for event in events], pa.binary())
    for topic, times in ((str(tmp_path / "1.jsonl"), [90, UNTIL - 1]), ("live", [90, 500])):
        decoded = decoder_for(model).decode_batch(RawBatch(PartitionRef("in", topic, 0), np.arange(2), values))
        assert decoded.left_out is not None
        assert decoded.left_out.times.tolist() == times


def test_what_else_a_kafka_record_has_is_a_field_of_the_files(tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text("source;ts\nold;10\n")
    columns = [{"name": "ts", "type": "int64"}, {"name": "source", "type": "string", "from": "headers.source"}]
    csv = {"path": str(folder), "format": "csv", "until": UNTIL, "csv": {"separator": ";"}}
    data = {"name": "in", "format": "json", "schema": columns, "eventTime": "ts", "history": csv}
    model = Input.model_validate({**data, "kafka": {"bootstrapServers": "k", "topic": "live"}})
    (raw,) = reader_for(model).read(Range(PartitionRef("in", str(folder / "1.csv"), 0), 10, 17))
    assert decoder_for(model).decode_batch(raw).rows.to_pylist() == [{"ts": 10, "source": "old"}]
    live = replace(raw, partition=PartitionRef("in", "live", 0), values=pa.array([b'{"ts": 100}'], pa.binary()))
    live = replace(live, headers={"source": pa.array([b"new"], pa.binary())})
    assert decoder_for(model).decode_batch(live).rows.to_pylist() == [{"ts": 100, "source": "new"}]


# --- any cut, any restart ---------------------------------------------------------------------------------------------

event_times = st.lists(st.integers(90, 110), max_size=12)


@settings(max_examples=examples(200), deadline=None)
@given(
    data=st.data(),
    files=st.lists(event_times, min_size=1, max_size=3),
    topic=st.lists(event_times, min_size=1, max_size=3),
)
def test_each_row_comes_once_wherever_epochs_end_and_drivers_die(data, files, topic) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live = Topic([[] for _ in topic])
        job = Job(Path(folder) / "in", live, records=data.draw(st.integers(1, 6)))
        for number, file in enumerate(files):
            job.add(f"{number}.jsonl", *file)
        ids: list[str] = []
        ended, unread = False, [list(records) for records in topic]
        while True:
            for number, records in enumerate(unread):
                count = data.draw(st.integers(0, len(records)))
                live.partitions[number] += records[:count]
                del records[:count]
            live.unassigned = data.draw(st.sets(st.integers(0, len(topic) - 1))) if any(unread) else set()
            plan = job.plan()
            if plan is None:
                if not any(unread) and not live.unassigned:
                    break
                continue
            reads_topic = "live" in parts(plan)
            assert not (reads_topic and any(map(is_file_of_history, plan.partitions)))
            assert ended <= reads_topic or not plan.ranges, "no file is read after the seam"
            ended |= reads_topic
            if data.draw(st.booleans()):
                job.restart()  # before anything of the plan is committed: it is replayed
            ids += job.commit(plan)
            if data.draw(st.booleans()):
                job.restart()
    expected = [f"{number}.jsonl-{at}" for number, file in enumerate(files) for at in file if at < UNTIL]
    expected += [f"live-{at}" for records in topic for at in records if at >= UNTIL]
    assert Counter(ids) == Counter(expected)
    assert len(ids) + job.skipped == sum(map(len, files)) + sum(map(len, topic))
