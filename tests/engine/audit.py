"""What must be true of a simulated world at every moment, checked against oracles that share no code with the engine.

The auditor replays the epoch log row by row (`joinery_devkit.oracle`): the plans' ranges say which records an epoch
read, their watermarks what it had to do with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from core.table.reference_keyhash import reference_hash
from engine.sim_sink import SimSink
from engine.sim_store import Committed
from engine.simulation import World
from joinery_devkit.oracle import EpochExpectation, Oracle, Row, SessionOracle, SessionShape, WatermarkOracle
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME
from joinery_runtime.engine.job_state import HORIZONS
from joinery_runtime.job import Job, SessionWindow, StreamJoin
from joinery_runtime.state.store import EpochRecord, JobRecord

Watermark = int | None


class Auditor:
    """Call `check` after every step; it raises AssertionError that names what is wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._oracle = oracle_of(world.job)
        self._watermarks = WatermarkOracle({side.name: side.watermark.delay for side in world.job.inputs})
        self._tables = {side.name for side in world.job.inputs if side.table is not None}
        self._log: list[EpochRecord] = []
        self._output: list[list[str]] = []
        self._dead_letters: list[list[str]] = []
        self._generation = 0
        self._live: set[str] = set()
        self._rows: Counter[tuple[int | None, ...]] = Counter()
        self._floors: dict[str, int] = {}
        self._dead: Counter[tuple[str, int, int]] = Counter()
        self.ends: dict[tuple[str, int], int] = {}
        self.late = self.taken_back = self.retired = 0  # rows, rows, segments
        self.follow_ups = 0  # epochs that read nothing

    @property
    def epochs(self) -> int:
        return len(self._log)

    @property
    def pairs(self) -> int:
        """Output rows with all their inputs."""
        return sum(count for row, count in self._rows.items() if None not in row)

    @property
    def padded(self) -> int:
        return self._rows.total() - self.pairs

    def check(self) -> None:
        record = self._world.store.record(self._world.job.name)
        if record is None:
            return
        assert record.generation >= self._generation, "the generation went back"
        commits = self._world.store.journal.commits
        for entry in self._world.store.epochs(self._world.job.name, after=len(self._log)):
            assert len(commits) > len(self._log), "the log has the epoch of a commit that failed"
            self._replay(entry, commits[len(self._log)])
            self._log.append(entry)
            self._output.append(names(entry.result, "output"))
            self._dead_letters.append(names(entry.result, "dead_letters"))
        self._generation = record.generation
        self._check_record(record)
        self._check_table()
        self._check_topics(record)
        self._check_files(self._world.output, self._output)
        self._check_files(self._world.dead, self._dead_letters)

    # --- one new epoch ------------------------------------------------------------------------------------------------

    def _replay(self, entry: EpochRecord, committed: Committed) -> None:
        plan = entry.plan
        assert entry.epoch == plan["epoch"] == len(self._log) + 1, "epochs are not consecutive"
        assert committed.generation == committed.newest, "a driver that was fenced committed"
        planned = self._world.store.journal.plans[entry.epoch]
        assert all(plan == stored for stored in planned), "the plan is not the one that was stored first"
        assert planned, "the plan was not stored before it was run"
        self.retired += len(committed.commit.deletes)
        self._live = (self._live - set(committed.commit.deletes)) | set(committed.commit.upserts)
        self._check_attempts(entry)
        rows = self._read(plan["ranges"])
        self._check_reached(plan)
        self._check_watermarks(plan, rows)
        self._check_horizons(plan)
        expected = self._expected(plan, rows)
        self._rows.update(tuple(row.values()) for row in expected.rows)
        assert entry.result["rows_out"] == len(expected.rows), f"epoch {entry.epoch} counted other rows than it must"
        for reason, expected_drops in (("late", expected.late), ("closed", closed(expected))):
            dropped = {name: entry.result["dropped"].get(name, {}).get(reason, 0) for name in self._world.topics}
            assert dropped == expected_drops, f"epoch {entry.epoch} judged other rows {reason}"
        self.late += sum(expected.late.values())
        self.taken_back += sum(row.get("retracted", False) for row in expected.rows)

    def _check_attempts(self, entry: EpochRecord) -> None:
        """Nothing of older drivers becomes live or visible, and no shard is there twice."""
        attempts = names(entry.result, "output")
        assert all(attempt.startswith(f"{entry.generation}-{entry.epoch}-") for attempt in attempts)
        shards = [attempt.split("-")[2] for attempt in attempts]
        assert len(set(shards)) == len(shards), "two attempts of one shard were named"

    def _read(self, ranges: list[list[Any]]) -> dict[str, list[Row]]:
        """The records of the ranges; a range goes on where the one before ended."""
        rows: dict[str, list[Row]] = {name: [] for name in self._world.topics}
        for name, _, partition, start, end in ranges:
            assert self.ends.get((name, partition), start) == start, "ranges have a gap or overlap"
            assert start <= end, "an offset went back"
            self.ends[name, partition] = end
            self._watermarks.saw(name, f"{name}/{partition}", [])
            for offset in range(start, end):
                rows[name] += self._row(name, partition, offset)
        return rows

    def _row(self, name: str, partition: int, offset: int) -> list[Row]:
        value = self._world.topics[name].partitions[partition][offset]
        if value is None:
            return []
        try:
            values = json.loads(value)
        except ValueError:
            self._dead[name, partition, offset] += 1
            return []
        return [Row(partition, offset, values["ts"], values)]

    def _check_watermarks(self, plan: Mapping[str, Any], rows: Mapping[str, list[Row]]) -> None:
        before = self._log[-1].plan["watermarks"] if self._log else dict.fromkeys(rows)
        for name in rows:
            assert not _went_back(before[name], plan["watermarks"][name]), "a watermark went back"
        implied = self._watermarks.watermarks(plan["idle"], plan["ended"])
        assert plan["watermarks"] == implied, "the watermarks are not what the records imply"
        for name, listed in rows.items():
            for row in listed:
                self._watermarks.saw(name, f"{name}/{row.partition}", [row.ts])
        self._watermarks.settle(plan["idle"])

    def _check_reached(self, plan: Mapping[str, Any]) -> None:
        """A4. The ends that a plan sees are not known here, only that they were not later than those of now. A plan
        that was made smaller may have reached no time."""
        for name, at in plan.get("reached", {}).items():
            partitions = enumerate(self._world.topics[name].partitions)
            unread = [f"{name}/{p}" for p, records in partitions if self.ends.get((name, p), 0) < len(records)]
            if name not in self._tables:  # is judged by what was unread before the epoch
                unread += [f"{name}/{p}" for _, _, p, start, end in self._ranges_of(plan, name) if start < end]
            times = {self._watermarks.reached(name, [one]) for one in unread}
            assert at in (BEGIN_OF_TIME, *times) or self._asked(plan, name, at), "an input has reached another time"
        for name in self._world.topics.keys() - self._tables if self._tables else ():
            at = plan.get("reached", {}).get(name, END_OF_TIME)
            _, requested_time = self._oracle.asked_from(plan["watermarks"], name)
            assert at <= requested_time, "rows that wait ask for versions that go (A2)"

    def _asked(self, plan: Mapping[str, Any], name: str, at: int) -> bool:
        """Whether rows of the stream wait that may ask for versions of this time."""
        waited, requested_time = self._oracle.asked_from(plan["watermarks"], name)
        return name not in self._tables and waited < at <= requested_time

    def _ranges_of(self, plan: Mapping[str, Any], name: str) -> list[list[Any]]:
        return [planned for planned in plan["ranges"] if planned[0] == name]

    def _expected(self, plan: Mapping[str, Any], rows: Mapping[str, list[Row]]) -> EpochExpectation:
        if isinstance(self._oracle, SessionOracle):
            return self._oracle.epoch(plan["watermarks"], rows)
        return self._oracle.epoch(plan["watermarks"], rows, plan.get("reached", {}))

    def _check_horizons(self, plan: Mapping[str, Any]) -> None:
        """Each part is closed on from where the epoch before has closed it, and no epoch is run for nothing."""
        for part, (before, now) in plan["horizons"].items():
            assert before == self._floors.get(part), "a horizon does not go on where the last epoch ended"
            assert not _went_back(before, now), "a horizon went back"
        moved = {part: now for part, (before, now) in plan["horizons"].items() if before != now}
        if not (plan["ranges"] or plan["checkpoint"]):
            ended = self._log[-1].plan["ended"] if self._log else []
            ends = {*plan["ended"]} - {*ended}  # are committed, also if nothing waits for them (T7)
            assert moved or ends, "an epoch was run that has nothing to do"
            self.follow_ups += 1
        self._floors |= moved

    # --- what is there now --------------------------------------------------------------------------------------------

    def _check_record(self, record: JobRecord) -> None:
        assert record.epoch == len(self._log), "an epoch is committed and not in the log"
        assert {segment.key for segment in record.segments} == self._live, "segments are live that no commit named"
        documents = {name: json.loads(data) for name, data in record.offsets.items()}
        floors = documents.pop(HORIZONS, {"horizons": {}})["horizons"]
        assert floors == self._floors, "the horizons are not those of the epoch log"
        stored = {(n, p): o for n, document in documents.items() for _, p, o in document["positions"]}
        assert stored == self.ends, "the offsets are not those of the epoch log"
        if record.plan is not None:
            assert record.plan["epoch"] == record.epoch + 1, "the pending plan is not the next epoch's"

    def _check_table(self) -> None:
        assert Counter(self._world.output.table) == self._rows, "the output is not every row exactly once"
        dead = Counter((name, partition, offset) for name, _, partition, offset, *_ in self._world.dead.table)
        assert dead == self._dead, "the dead letters are not every bad record exactly once"

    def _check_topics(self, record: JobRecord) -> None:
        """Rows appear in a topic before the commit, a shard's all at once: what is committed is there, once, and what
        else is there is of the pending epoch."""
        pending = record.plan is not None and record.plan["epoch"] == record.epoch + 1
        for visible, committed in self._topics():
            assert visible >= committed, "committed rows are not in the topic"
            assert max(visible.values(), default=1) == 1, "the topic has a row twice"
            assert pending or visible == committed, "the topic has rows that nobody planned"

    def _topics(self) -> list[tuple[Counter[Any], Counter[Any]]]:
        """Per topic, the rows that a reader gets and those that were committed."""
        if not self._world.output.with_topic:
            return []
        output, dead = self._world.output.topic.visible, self._world.dead.topic.visible
        counts = Counter((name, partition, offset) for name, _, partition, offset, *_ in dead)
        return [(Counter(output), Counter(self._rows)), (counts, Counter(self._dead))]

    def _check_files(self, sink: SimSink, named: list[list[str]]) -> None:
        """Files appear after the commit: those of all epochs but the last are there, and none that nobody named."""
        assert sink.files.keys() <= {name for epoch in named for name in epoch}, "a file appeared that no commit named"
        assert sink.files.keys() >= {name for epoch in named[:-1] for name in epoch}, (
            "committed rows were not published"
        )

    # --- at certain moments -------------------------------------------------------------------------------------------

    def check_swept(self) -> None:
        """Right after a recovery that nothing interrupted: what earlier drivers left behind is gone."""
        journal = self._world.store.journal
        assert len(journal.staged) == len(self._live) + journal.swept, "staged segments were left behind"
        for sink in (self._world.output, self._world.dead):
            assert not sink.staged, "rows were left in the staging table"
            assert not sink.partial, "unfinished files were left behind"

    def check_complete(self) -> None:
        """At the end of all inputs: every record was read, and all output is published."""
        ends = {(n, p): len(v) for n, topic in self._world.topics.items() for p, v in enumerate(topic.partitions)}
        assert self.ends == ends, "records were not read"
        assert self._world.store.epochs(self._world.job.name) == self._log, "the epoch log was rewritten"
        owed = [row for epoch in deepcopy(self._oracle).end() for row in epoch.rows]
        assert not owed, "rows were not closed at the end"
        for visible, committed in self._topics():
            assert visible == committed, "the topic does not hold what was committed"
        for sink in (self._world.output, self._world.dead):
            published = Counter(row for rows in sink.files.values() for row in rows)
            assert published == Counter(sink.table), "the files do not hold what the table holds"


def oracle_of(job: Job) -> Oracle | SessionOracle:
    match job:
        case StreamJoin():
            return Oracle.of_job(job)
        case SessionWindow():
            return SessionOracle(SessionShape(job, reference_hash))
        case _:
            raise TypeError(job.kind)


def closed(expected: EpochExpectation) -> dict[str, int]:
    """Rows in sessions that had reached the cap (S2), by input."""
    return {name: reasons.get("closed", 0) for name, reasons in expected.dropped.items()}


def names(result: Mapping[str, Any], kind: str) -> list[str]:
    return [receipt["attempt"] for receipt in result[kind]]


def _went_back(before: Watermark, after: Watermark) -> bool:
    return before is not None and (after is None or after < before)
