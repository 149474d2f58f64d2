"""`joinery why`: explains what became of the records of a key, and by which rule.

It runs the epochs of the log again with the records of the key alone, and then once without each of them. What is
emitted with a record and not without it is the record's effect. So every kind of step answers by its own rules,
including padded rows, sessions and chains (docs/decisions/0038).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import FILTERED_ROWS, Horizon
from joinery_runtime.core.pipeline.watermark import BRANCH_END, Watermark
from joinery_runtime.core.table.columns import HASH, OFFSET, PARTITION, TS
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.function_calls import calling_in_own_processes
from joinery_runtime.engine.job_state import stored_co_partitions
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.evidence import ReplayedEpoch, check_records, in_order
from joinery_runtime.inspect.kinds.base import ALONE, EpochTimes, JoinDescription, Span, description_of
from joinery_runtime.inspect.replay import Replay, Replayable, StoredState, replayable
from joinery_runtime.inspect.state_key import StepKey, keys_of
from joinery_runtime.inspect.state_show import KeyView, entries_of_key, may_have, show
from joinery_runtime.inspect.stored_state import NextEpoch, record_of
from joinery_runtime.inspect.why_outcomes import (
    LATER_RULES,
    RULES,
    RecordOutcome,
    RecordOutcomes,
    WaitingRows,
    epoch_times_of,
    horizons_of,
    rule_of,
)
from joinery_runtime.inspect.why_records import (
    CarefulInputs,
    ChosenRecords,
    FoundRecord,
    Gathering,
    RecordPosition,
    keys_by_input,
)
from joinery_runtime.inspect.why_rows import InitialState, JoinedRows, rows_above_floor
from joinery_runtime.job import Job, StreamJoin, format_time, time_value
from joinery_runtime.job.model.wording import agreeing, counted
from joinery_runtime.state.store import StateReader

MAX_EXPLAINED = 100
"""The most records explained per question: for each one, the epochs that it may touch are run again."""

MAX_JUDGED = 100
"""The same limit for records that were not asked for and may have been dropped."""

Rows = Mapping[int, Counter[str]]
"""Output rows as JSON, by epoch."""

Padded = Mapping[int, Mapping[str, str]]
"""The rule for each row that was emitted because it had no partner, padded or alone, by epoch and row."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What became of a record."""

    record: FoundRecord
    watermarks: Mapping[str, Watermark]  # those of its epoch
    reason: str | None  # why it was dropped; None: it was taken
    detail: str  # the reason in its dead letter
    produced: Rows  # rows that were emitted because of it
    prevented: Rows  # rows that would have been emitted without it
    padded: Padded = field(default_factory=dict)
    part_of: Rows = field(default_factory=dict)  # rows that it is part of, and that would have been emitted without it
    outcome: RecordOutcome | None = None  # None: it was dropped, or is of a kind that is never kept
    waiting: Sequence[WaitingRows] = ()  # its joined rows that later steps keep
    has_having: bool = False  # whether the rows of groups have to meet a condition (G7)
    failed_by: str = ""  # the rule by which what it would be part of has failed, where J1 is not that rule
    misfit: str = ""  # why its group's row is a dead letter (S7), if the row is one without the record as well
    uncomputed_by: str = ""  # the rule by which a column of a row that was emitted because of it failed, and is NULL

    @property
    def unmatched(self) -> bool:
        """Whether nothing but padded rows was emitted because of the record."""
        produced = {(epoch, row) for epoch, rows in self.produced.items() for row in rows}
        padded = all(row in self.padded.get(epoch, {}) for epoch, row in produced)
        return padded and not self.prevented and not self.part_of

    @property
    def has_no_row(self) -> bool:
        """Whether the record was taken, and no row was emitted or left out because of it."""
        return self.reason is None and not self.produced and not self.prevented and not self.part_of

    @property
    def is_kept(self) -> bool:
        return bool(self.waiting) or (self.outcome is not None and self.outcome.retention.evicted_in is None)

    @property
    def fails_having(self) -> bool:
        """Whether its group's row was not emitted because it does not meet `having`."""
        return self.has_having and self.has_no_row and not self.is_kept and not self.misfit

    def _padding_rule(self, epoch: int, row: Any) -> str | None:
        return self.padded.get(epoch, {}).get(json.dumps(row))

    @property
    def rule(self) -> str | None:
        return None if self.reason is None else rule_of(self.failed_by or RULES[self.reason])

    def document(self) -> dict[str, Any]:
        position, record = self.record.position, self.record
        nearest = self.outcome.nearest if self.outcome is not None and self.unmatched else None
        output_rows: list[dict[str, Any]] = []
        for epoch, row in _list_rows(self.produced):
            rule = self._padding_rule(epoch, row)
            label = "unmatched" if rule == ALONE else "padded"
            output_rows.append({"epoch": epoch, "row": row, **({} if rule is None else {label: rule_of(rule)})})
        return {
            "input": position.partition.input,
            "topic": position.partition.topic,
            "partition": position.partition.partition,
            "offset": position.offset,
            "ts": record.ts,
            "columns": record.columns,
            "epoch": record.epoch,
            "watermarks": {name: time_value(at) for name, at in self.watermarks.items()},
            "dropped": self.reason,
            "rule": self.rule,
            "detail": self.detail,
            "made": output_rows,
            "part_of": [{"epoch": epoch, "row": row} for epoch, row in _list_rows(self.part_of)],
            "prevented": [{"epoch": epoch, "row": row} for epoch, row in _list_rows(self.prevented)],
            "state": None if self.outcome is None else self.outcome.retention.document(),
            "waiting": [waiting_rows.document() for waiting_rows in self.waiting],
            "nearest": None if nearest is None else nearest.document(),
            "having": rule_of("g7") if self.fails_having else None,
            "misfit": self.misfit or None,
            "uncomputed": rule_of(self.uncomputed_by) if self.uncomputed_by else None,
        }

    def lines(self) -> Iterator[str]:
        record = self.record
        time = "" if record.ts is None else f", event time {format_time(record.ts)}"
        watermarks_text = ", ".join(
            f"{name} {'unknown' if at is None else format_time(at)}" for name, at in self.watermarks.items()
        )
        yield f"{record.position.partition.input} {record.position}{time}: {json.dumps(record.columns)}"
        yield f"  read in epoch {record.epoch} (watermarks: {watermarks_text})"
        if self.reason is not None:
            yield f"  dropped: {self.reason}{f', {self.detail}' if self.detail else ''} ({self.rule})"
        for epoch, row in _list_rows(self.produced):
            rule = self._padding_rule(epoch, row)
            words = "without a match" if rule == ALONE else "padded"
            padded = f", {words} ({rule_of(rule)})" if rule else ""
            yield f"  epoch {epoch} emitted because of it{padded}: {json.dumps(row)}"
        if self.uncomputed_by:
            yield f"  a column of that cannot be computed, and is NULL ({rule_of(self.uncomputed_by)})"
        for epoch, row in _list_rows(self.part_of):
            yield f"  part of what epoch {epoch} emitted, which is the same without it: {json.dumps(row)}"
        for epoch, row in _list_rows(self.prevented):
            yield f"  without it, epoch {epoch} would have emitted: {json.dumps(row)}"
        if self.has_no_row:
            cause = f"; `having` is not true for its group's row ({rule_of('g7')})" if self.fails_having else ""
            yield f"  taken; no row was emitted because of it{' so far' if self.is_kept else cause}"
        if self.misfit:
            yield f"  its group's row is a dead letter: {self.misfit} ({rule_of('s7')})"
        if self.outcome is not None:
            yield from (f"  {line}" for line in self.outcome.lines(record.epoch, unmatched=self.unmatched))
        yield from (f"  {waiting_rows.line()}" for waiting_rows in self.waiting)


@dataclass(frozen=True, slots=True)
class Answer:
    job: str
    epochs: tuple[int, int]  # the first and the last epoch that were run again
    records: Sequence[Explained]
    key_view: KeyView | None  # what the state still has of the key; None: the record has no key
    omitted: int = 0  # records of the key that are not explained
    savepoint: str = ""  # with whose state the first epoch began; "": it began with an empty state
    unjudged: int = 0  # other records of the key that count as taken, though they may have been dropped

    def document(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "epochs": list(self.epochs),
            "savepoint": self.savepoint or None,
            "records": [explained.document() for explained in self.records],
            "left_out": self.omitted,
            "unjudged": self.unjudged,
            "kept": None if self.key_view is None else self.key_view.document(),
        }

    def lines(self) -> Iterator[str]:
        first, last = self.epochs
        begins = f", from savepoint {self.savepoint} on" if self.savepoint else ""
        yield f"job {self.job}, epochs {first} to {last}{begins}: {counted(len(self.records), 'record')}"
        for explained in self.records:
            yield from explained.lines()
        if self.omitted:
            yield f"{self.omitted} newer records of the key are not explained: ask for one with --record"
        if self.unjudged:
            other_records = f"{counted(self.unjudged, 'other record')} {agreeing(self.unjudged, 'are')}"
            yield f"{other_records} counted as taken above, dropped or not: there are too many to judge each"
        if self.key_view is not None:
            yield from self.key_view.lines()


def explain_records(
    job: Job,
    store: StateReader,
    inputs: InputAccess,
    key: Sequence[str],
    at: tuple[str, int, int] | None,
    last: int | None = None,
) -> Answer:
    """Explain the records of a key, or one record. `key` are COLUMN=VALUE texts, or else `at` is the place of the
    record (topic, partition, offset). Ignores epochs after `last`. Raises JoineryError if the epochs cannot be run
    again, or if no record is found."""
    pipeline = compile_job(job)
    course = replayable(job, store, last=last, pipeline=pipeline)
    plans = [EpochPlan.from_json(entry.plan) for entry in course.entries]
    deadly = sum(plan.is_deadly(entry.generation) for entry, plan in zip(course.entries, plans, strict=True))
    inputs = CarefulInputs(inputs) if deadly else inputs
    with calling_in_own_processes(deadly) if deadly else nullcontext():
        texts, record_only = list(key), False
        if at is not None:
            at = (topic_in_plans(at[0], plans), *at[1:])
            texts, record_only = _key_at(Gathering(job, pipeline, inputs, {}, at, record_only=True), plans, at)
        steps = _keys_by_step(job, pipeline, texts, stored_co_partitions(course.record)) if texts else []
        names = [side.name for side in job.inputs]
        gathered = Gathering(job, pipeline, inputs, keys_by_input(pipeline, steps, names), at, record_only=record_only)
        for entry, plan in zip(course.entries, plans, strict=True):
            check_records(entry, gathered.take(plan))
        matching_records = [record for record in gathered.records if at is None or record.position.address == at]
        if not matching_records:
            raise JoineryError(
                f"Epochs {plans[0].epoch} to {plans[-1].epoch} of job {job.name} read no record with {' '.join(texts)}",
                todo="Write the values as they are in the records; `joinery state epochs` shows what was read",
            )
        stored = _initial_state(course, store, pipeline, steps)
        chosen = ChosenRecords(inputs, gathered.batches)
        comparison = _Comparison(job, pipeline, plans, chosen, stored, gathered.future, steps)
        explained = [comparison.of(record) for record in matching_records[:MAX_EXPLAINED]]
        epoch_times = (
            NextEpoch.of(pipeline, record_of(job, store)).epoch_times
            if last is None
            else epoch_times_of(pipeline, plans[-1])  # what the epoch has closed where the answer ends
        )
        before, spans, joined_rows = InitialState(pipeline, stored), comparison.spans, comparison.joined_rows
        outcomes = RecordOutcomes(
            pipeline, inputs, gathered.batches, plans, epoch_times, comparison.reason, before, spans, joined_rows
        )
        explained = [_with_outcome(explanation, outcomes, comparison.waiting_times) for explanation in explained]
        key_view = show(job, store, texts, pipeline=pipeline).without_left_rows() if steps and last is None else None
        epochs = (plans[0].epoch, plans[-1].epoch)
        omitted = len(matching_records) - len(explained)
        return Answer(job.name, epochs, explained, key_view, omitted, course.savepoint, comparison.unjudged)


def _is_regrouped(job: Job) -> bool:
    """Whether the last step groups the rows of the step before it by a key of its own."""
    return isinstance(job, StreamJoin) and len(job.behind_joins) > (0 if job.joins else 1)


def _keys_by_step(job: Job, pipeline: Pipeline, texts: Sequence[str], co_partitions: int) -> list[StepKey]:
    """Return the keys of which all records are needed. A group holds rows of many keys of the joins before it, so
    records of one of these alone would not make the rows that were emitted."""
    keys = keys_of(job, pipeline, texts, None, co_partitions)
    if not _is_regrouped(job):
        return keys
    if isinstance(job, StreamJoin) and len(job.behind_joins) > 1:
        raise JoineryError(
            f"--key {' '.join(texts)} names no records",
            facts=f"steps {len(job.joins) + 1} to {len(pipeline.steps)} of job {job.name} have keys of their own, so "
            "records of any key may be in a row",
            todo="Ask for one record with --record; `joinery state show` shows what is stored of a group",
        )
    of_groups = [key for key in keys if key.step == pipeline.last.number]
    if not of_groups:
        raise JoineryError(
            f"--key {' '.join(texts)} names no group",
            facts=f"the last step of job {job.name} groups by {', '.join(pipeline.last.sides[0].intake.keys)}",
            todo="Give the columns of a group, or ask for one record with --record",
        )
    return of_groups


def _initial_state(
    course: Replayable, store: StateReader, pipeline: Pipeline, keys: Sequence[StepKey]
) -> StoredState | None:
    """Return the part of the first epoch's state that rows of the key may meet. In a step whose key was not asked for,
    and if there is no key at all, that is everything."""
    key_steps = {key.step for key in keys}

    def may_meet_key(meta: SegmentMeta) -> bool:
        step, _ = pipeline.side(meta.part)
        return step.number not in key_steps or any(may_have(pipeline.steps[key.step], key, meta) for key in keys)

    return course.initial_state(store, may_meet_key)


def topic_in_plans(topic: str, plans: Sequence[EpochPlan]) -> str:
    """Return a topic's name in plans: for a file its full path, for a branch of a union with the branch's name before
    it."""
    topics = {planned.partition.topic for plan in plans for planned in plan.ranges}
    ends = [name for name in topics if name.endswith((f"/{topic}", f"{BRANCH_END}{topic}"))]
    return ends[0] if topic not in topics and len(ends) == 1 else topic


def _key_at(gathering: Gathering, plans: Sequence[EpochPlan], at: tuple[str, int, int]) -> tuple[list[str], bool]:
    """Return the key of the record at a place as COLUMN=VALUE texts, none if it has no key or cannot be decoded; and
    whether no other record matters to it. Raises JoineryError if no epoch has read it."""
    job, (topic, partition, offset) = gathering.job, at
    for plan in plans:
        ranges = [
            planned
            for planned in plan.ranges
            if (planned.partition.topic, planned.partition.partition) == (topic, partition)
            and planned.start <= offset < planned.end_exclusive
        ]
        gathering.take(replace(plan, ranges=tuple(ranges)))
    if not gathering.records:
        raise JoineryError(
            f"No epoch of job {job.name} has read {topic}:{partition}={offset}",
            facts=f"of epochs {plans[0].epoch} to {plans[-1].epoch}",
            todo="Give TOPIC:PARTITION=OFFSET; of a file, its path, 0, and the byte at which the record begins",
        )
    record = gathering.records[0]
    name, key = record.position.partition.input, record.key
    if _is_regrouped(job):
        texts = []  # all records may be in the rows of the record's group
    elif not isinstance(job, StreamJoin) or not job.joins:
        texts = [column if value is None else f"{column}={value}" for column, value in key.items()]
    else:
        texts = [] if None in key.values() else [f"{name}.{column}={value}" for column, value in key.items()]
    # If the record's input joins on time only, all other records may meet it.
    needs_no_others = gathering.pipeline.last.kind.stateless or (bool(key) and not _is_regrouped(job))
    return texts, not texts and (record.columns is None or needs_no_others)


def _with_outcome(
    explained: Explained, outcomes: RecordOutcomes, waiting_times: Mapping[RecordPosition, Mapping[str, Sequence[int]]]
) -> Explained:
    """Add how long the record and its joined rows stay in the state, unless it was dropped."""
    if explained.reason:
        return explained
    waiting = outcomes.waiting(waiting_times[explained.record.position])
    return replace(explained, outcome=outcomes.of(explained.record), waiting=waiting)


# --- what each record did ---------------------------------------------------------------------------------------------


_JoinedRows = Counter[tuple[str, int, int, int, int]]
"""Joined rows by part of the state, event time, hash, and the place of the record that arrived last."""


class _Comparison:
    """Compares what the epochs yield with all of the records and without one of them. `future` are records that are too
    far ahead, with the reason; `keys` is the key, by step.

    `spans`, for kinds of steps that merge rows, is what the rows of the key had become after each epoch. `joined_rows`
    has the joined rows of the key. `waiting_times` has, for each record that was asked for, the event times of its
    rows that later steps keep at the end, by part of the state. `unjudged` is how many records count as taken, though
    they may have been dropped."""

    def __init__(
        self,
        job: Job,
        pipeline: Pipeline,
        plans: Sequence[EpochPlan],
        chosen: ChosenRecords,
        stored: StoredState | None,
        future: Mapping[RecordPosition, str],
        keys: Sequence[StepKey],
    ) -> None:
        self.spans: dict[int, Sequence[Span]] = {}
        self.waiting_times: dict[RecordPosition, Mapping[str, Sequence[int]]] = {}
        self.joined_rows = JoinedRows(pipeline, {key.step: key.hash for key in keys})
        self._keys = keys
        # By which rule something cannot be computed; T10 lists those of jobs that have several.
        is_aggregate = len(pipeline.steps) == 1 and description_of(pipeline.last).merges_rows
        has_joins_only = all(len(step.sides) > 1 for step in pipeline.steps)
        self._failure_rule = RULES["failed"] if has_joins_only else "g11" if is_aggregate else "t10"
        self._job, self._pipeline, self._stored, self._future = job, pipeline, stored, future
        # Records that are too far ahead were already found, among all records of the ranges.
        self._plans = {plan.epoch: replace(plan, max_future={}) for plan in plans}
        self._chosen = replace(chosen, without=frozenset(future))
        self._reasons: dict[RecordPosition, str | None] = {}
        self.unjudged = self._judged = 0
        self._with, self._kept_joined_rows = self._run_epochs(self._chosen, self._note_epoch)

    def of(self, record: FoundRecord) -> Explained:
        position, watermarks = record.position, self._plans[record.epoch].watermarks
        if position in self._future:
            return Explained(record, watermarks, "future", self._future[position], {}, {})
        without, kept_rows = self._run_without(position)
        reason, detail = self._drop_reason(position, record.epoch, without)
        self._reasons[position] = reason
        failed_by = misfit = uncomputed_by = ""
        misfits = _misfits(self._with) - _misfits(without)
        rows_with, rows_without = _rows_by_epoch(self._with), _rows_by_epoch(without)
        produced, prevented = _additional_rows(rows_with, rows_without), _additional_rows(rows_without, rows_with)
        of_groups = len(self._pipeline.last.sides) == 1
        if reason == "failed" and of_groups and produced and not misfits:
            reason, self._reasons[position], uncomputed_by = None, None, self._failure_rule
        elif reason == "failed":
            failed_by, detail = ("s7", min(misfits)) if misfits else (self._failure_rule, detail)
        elif reason is None and misfits:
            misfit = min(misfits)
        waiting_times: dict[str, list[int]] = {}
        for part, ts, *_ in (self._kept_joined_rows - kept_rows).elements():
            waiting_times.setdefault(part, []).append(ts)
        self.waiting_times[position] = waiting_times
        part_of = {} if reason is not None else _additional_rows(self._rows_with(record), produced)
        description, padded = description_of(self._pipeline.last), dict[int, Mapping[str, str]]()
        if isinstance(description, JoinDescription) and (rules := description.unmatched_by) is not None:
            padded = {epoch: self._with[epoch].unmatched_rows(rules) for epoch in produced}
        return Explained(
            record,
            watermarks,
            reason,
            detail,
            produced,
            prevented,
            padded,
            part_of,
            has_having=of_groups and self._pipeline.last.filter is not None,
            failed_by=failed_by,
            misfit=misfit,
            uncomputed_by=uncomputed_by,
        )

    def reason(self, position: RecordPosition, epoch: int) -> str | None:
        """Why a record of an epoch was dropped, if other records or the state decided that. Beyond MAX_JUDGED records,
        the rest count as taken."""
        if position in self._future:
            return "future"
        if position not in self._reasons:
            name, judged = position.partition.input, None
            counters = {(name, rule) for rule in LATER_RULES}
            dropped = epoch in self._with and not counters.isdisjoint(self._with[epoch].drop_counts)
            if dropped and self._judged >= MAX_JUDGED:
                self.unjudged += 1
            elif dropped:
                self._judged += 1
                judged, _ = self._drop_reason(position, epoch, self._run_without(position)[0])
            self._reasons[position] = judged
        return self._reasons[position]

    def _rows_with(self, record: FoundRecord) -> Rows:
        """Return the rows that the record is part of: sessions by their time, joined rows by the places of their
        records. Empty for an input of a step before the last one, whose places the rows do not have."""
        spec, step = self._pipeline.input(record.position.partition.input), self._pipeline.last
        if spec.step != step.number or record.ts is None:
            return {}
        later = {number: epoch for number, epoch in self._with.items() if number >= record.epoch}
        if description_of(step).merges_rows:
            return {number: epoch.sessions_around(record.ts) for number, epoch in later.items()}
        partition, read_in = record.position.partition, self._with.get(record.epoch)
        numbered = partition.partition if read_in is None else read_in.plan.numbered(partition)
        return {number: epoch.rows_with(spec.side, numbered, record.position.offset) for number, epoch in later.items()}

    def _run_without(self, position: RecordPosition) -> tuple[dict[int, ReplayedEpoch], _JoinedRows]:
        return self._run_epochs(replace(self._chosen, without=self._chosen.without | {position}))

    def _run_epochs(
        self, chosen: ChosenRecords, note: Callable[[EpochPlan, Replay], None] | None = None
    ) -> tuple[dict[int, ReplayedEpoch], _JoinedRows]:
        """Run the epochs. Returns what they yield, and the joined rows that later steps keep at the end."""
        replayed: dict[int, ReplayedEpoch] = {}
        with tempfile.TemporaryDirectory(prefix="joinery-why-") as cache:
            replay = Replay(self._job, chosen, Path(cache), self._stored, self._pipeline)
            for epoch, plan in self._plans.items():
                if chosen.holds(plan) or replay.closes(plan):
                    replayed[epoch] = replay.run(plan)
                    if note is not None:
                        note(plan, replay)
            chained = {
                side.part: (step, at)
                for step in self._pipeline.steps
                for at, side in enumerate(step.sides)
                if side.intake.chained and len(step.sides) > 1
            }
            joined: _JoinedRows = Counter()
            for meta, run in replay.live_runs(lambda meta: meta.part in chained):
                rows = rows_above_floor(*chained[meta.part], run.batch, replay.floors.get(meta.part))
                columns = (rows.column(name).to_pylist() for name in (TS, HASH, PARTITION, OFFSET))
                joined.update((meta.part, *row) for row in zip(*columns, strict=True))
            return replayed, joined

    def _note_epoch(self, plan: EpochPlan, replay: Replay) -> None:
        self.joined_rows.note(replay.live_runs)
        for key in self._keys:
            step = self._pipeline.steps[key.step]
            description = description_of(step)
            if description.merges_rows:
                floors = replay.floors
                closed = {
                    part: Horizon(floors.get(part), floors.get(part)) for part in horizons_of(self._pipeline, plan)
                }
                segments = replay.live_runs(partial(may_have, step, key))
                entries = entries_of_key(step, key, segments, EpochTimes.of(self._pipeline, plan.times, closed))
                self.spans[plan.epoch] = description.spans_of(entries)

    def _drop_reason(
        self, position: RecordPosition, epoch: int, without: Mapping[int, ReplayedEpoch]
    ) -> tuple[str | None, str]:
        """Which counter of rule T10 the record has increased, and what its dead letter says."""
        letters = [row for table in self._with[epoch].dead for row in table.to_pylist()]
        detail = [
            row["reason"] for row in letters if (row["topic"], row["partition"], row["offset"]) == position.address
        ]
        moved = self._with[epoch].drop_counts - (without[epoch].drop_counts if epoch in without else Counter())
        name = position.partition.input
        reasons = sorted(reason for input_name, reason in moved if input_name == name and reason != FILTERED_ROWS)
        if not reasons and _count_failed(self._with, name) > _count_failed(without, name):
            reasons = ["failed"]  # its expression failed with a partner that arrived later
        if reasons:
            return reasons[0], "".join(detail[:1])
        return ("dead letter", detail[0]) if detail else (None, "")


def _count_failed(epochs: Mapping[int, ReplayedEpoch], name: str) -> int:
    return sum(epoch.drop_counts[name, "failed"] for epoch in epochs.values())


def _misfits(epochs: Mapping[int, ReplayedEpoch]) -> Counter[str]:
    """Count the reasons of rows of groups that do not fit (S7): dead letters without a topic."""
    letters = (row for epoch in epochs.values() for table in epoch.dead for row in table.to_pylist())
    return Counter(letter["reason"].removeprefix("failed: ") for letter in letters if letter["topic"] is None)


def _rows_by_epoch(epochs: Mapping[int, ReplayedEpoch]) -> Rows:
    return {number: in_order(epoch.rows) for number, epoch in epochs.items()}


def _additional_rows(rows: Rows, than: Rows) -> Rows:
    surplus = {epoch: count - than.get(epoch, Counter()) for epoch, count in rows.items()}
    return {epoch: count for epoch, count in surplus.items() if count}


def _list_rows(rows: Rows) -> Iterator[tuple[int, Any]]:
    for epoch, counts in sorted(rows.items()):
        yield from ((epoch, json.loads(row)) for row in counts.elements())
