"""What `joinery why` says about a record that was taken: whether the state still has it, and which record of another
input came nearest to meeting it. Each kind of step answers by its own rules (`StepOperator.retention`,
`JoinDescription.ms_out_of_reach`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.base import Join
from joinery_runtime.core.kinds.rows import PairFailures, Pairs, Selection, residual, same_keys
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.expression import ColumnRef
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SideSpec
from joinery_runtime.core.pipeline.spec import AcceptedRow, Pipeline, StepSpec
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.table.columns import (
    DELETED,
    HASH,
    JOINABLE,
    OFFSET,
    PARTITION,
    TS,
)
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.inspect.kinds.base import ALONE, EpochTimes, JoinDescription, Span, description_of
from joinery_runtime.inspect.why_records import FoundRecord, RecordPosition
from joinery_runtime.inspect.why_rows import InitialState, JoinedRows, MatchableRows
from joinery_runtime.job import format_time
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.wording import agreeing, counted

LATER_RULES = {"late": "t10", "expired": "a2", "closed": "s2"}
"""The rules in docs/semantics.md behind the reasons that other records, or the state, decide. T10 says for each kind of
step which rows are late."""

RULES = LATER_RULES | {
    "null_key": "j4",
    "filtered": "j4",
    "failed": "j1",
    "future": "t11",
    "history": "t12",
    "dead letter": "t8",
}

Reason = Callable[[RecordPosition, int], str | None]
"""Why a record of an epoch was dropped; None: it was taken."""


def rule_of(anchor: str) -> str:
    return f"docs/semantics.md#{anchor}"


def horizons_of(pipeline: Pipeline, plan: EpochPlan) -> Horizons:
    return plan.horizons or times.horizons(pipeline, plan.times, {})


def epoch_times_of(pipeline: Pipeline, plan: EpochPlan) -> EpochTimes:
    return EpochTimes.of(pipeline, plan.times, horizons_of(pipeline, plan))


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """How long a record stays in the state. `evicted_in` is the epoch in which it was gone (None: it is kept). `words`
    say why it goes."""

    evicted_in: int | None
    words: str
    rule: str

    def document(self) -> dict[str, Any]:
        return {
            "kept": self.evicted_in is None,
            "left": self.evicted_in,
            "when": self.words,
            "rule": rule_of(self.rule),
        }


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Joined rows of a record that a later step (2 is the second) keeps, and until when."""

    step: int
    rows: int
    words: str
    rule: str

    def document(self) -> dict[str, Any]:
        return {"step": self.step, "rows": self.rows, "when": self.words, "rule": rule_of(self.rule)}

    def line(self) -> str:
        rows = f"{counted(self.rows, 'joined row')} of it {agreeing(self.rows, 'are')}"
        return f"in step {self.step}, {rows} kept until {self.words} ({rule_of(self.rule)})"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The record of the key on the other side that came nearest to matching, or the joined row that did: `position` is
    that of its record of the `input`, None where that was not read again. `misses` is how many milliseconds the two
    are out of reach; 0: `words` say what else was in the way."""

    input: str
    position: RecordPosition | None
    ts: int
    misses: int
    words: str
    rule: str

    def document(self) -> dict[str, Any]:
        position: dict[str, Any] = {"topic": None, "partition": None, "offset": None}
        if self.position is not None:
            partition = self.position.partition
            position = {"topic": partition.topic, "partition": partition.partition, "offset": self.position.offset}
        return {
            "input": self.input,
            **position,
            "ts": self.ts,
            "misses": self.misses,
            "why": self.words,
            "rule": rule_of(self.rule),
        }

    def line(self) -> str:
        where = f"{self.input}{'' if self.position is None else f' {self.position}'}, event time {format_time(self.ts)}"
        return f"nearest: {where}: {self.words} ({rule_of(self.rule)})"


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of a record that was taken. If there is no `nearest` record, `no_nearest_reason` says why not."""

    retention: RetentionReport
    nearest: Nearest | None = None
    no_nearest_reason: str = ""

    def lines(self, epoch: int, *, unmatched: bool) -> Iterator[str]:
        """Yield the outcome in words; `epoch` is the record's own."""
        retention = self.retention
        if retention.evicted_in is None:
            yield f"kept until {retention.words} ({rule_of(retention.rule)})"
        else:
            eviction_text = (
                "never kept" if retention.evicted_in == epoch else f"left the state in epoch {retention.evicted_in}"
            )
            yield f"{eviction_text}: {retention.words} ({rule_of(retention.rule)})"
        if unmatched and self.nearest is not None:
            yield self.nearest.line()
        elif unmatched and self.no_nearest_reason:
            yield self.no_nearest_reason


class RecordOutcomes:
    """Works out what became of records. `batches` are the records that may have met each other, with their epochs;
    `epoch_times` is that of the epoch after the last plan. `dropped` says which records were not taken, `before` what
    was there before the first of the plans. `spans`, for kinds of steps that merge rows, is what the rows of the key
    had become after each epoch. `joined` has the rows that steps have handed on."""

    def __init__(
        self,
        pipeline: Pipeline,
        decoders: InputAccess,
        batches: Mapping[PartitionRef, Sequence[tuple[int, RawBatch]]],
        plans: Sequence[EpochPlan],
        epoch_times: EpochTimes,
        dropped: Reason,
        before: InitialState,
        spans: Mapping[int, Sequence[Span]],
        joined: JoinedRows,
    ) -> None:
        self._pipeline, self._plans, self._epoch_times, self._dropped = pipeline, plans, epoch_times, dropped
        self._before, self._spans, self._joined = before, spans, joined
        self._decoders, self._batches = decoders, batches
        self._read: dict[str, MatchableRows | None] = {}

    def of(self, record: FoundRecord) -> RecordOutcome | None:
        """Return the outcome of a record; None if the record is not a row that can match, which is never kept."""
        name = record.position.partition.input
        spec, rows = self._pipeline.input(name), self._rows_of_input(name)
        at = None if rows is None else rows.at(record.position)
        if rows is None or at is None:
            return None
        step, own = self._pipeline.steps[spec.step], Selection(rows.batch, np.array([at]))
        description = description_of(step)
        retention = (self._merged_retention if description.merges_rows else self._row_retention)(
            step, spec.side, record.epoch, own
        )
        nearest, no_nearest_reason = None, ""
        if isinstance(description, JoinDescription):
            nearest, no_nearest_reason = self._nearest_row(description, spec.side, own, record.epoch, retention)
            if spec.side == LEFT and step.emits != "pairs" and description.leaves_when_matched:
                retention = self._until_match(description, own, record.epoch, retention)
        return RecordOutcome(retention, nearest, no_nearest_reason)

    # --- the state ----------------------------------------------------------------------------------------------------

    def _row_retention(self, step: StepSpec, side: int, epoch: int, own: Selection) -> RetentionReport:
        """How long the one row `own` stays, which arrived in this epoch (0: before the first one)."""
        # For each input that the step reads itself: its side, its rows, and which of them have the row's key and were
        # taken. Empty for a join on time only, where all rows have the same key: such a step looks at each row alone.
        description, near = description_of(step), list[tuple[int, MatchableRows, np.ndarray]]()
        for other, spec in enumerate(step.sides):
            rows = None if step.broadcast or spec.intake.chained else self._rows_of_input(spec.time)
            if rows is not None:
                of_key = _numbers_of_key(step, own, rows)
                near.append((other, rows, of_key[self._taken_in(rows, of_key)]))
        for plan in self._plans:
            if plan.epoch < epoch:
                continue
            row = _accepted_row(side, own, near, max(plan.epoch, epoch + 1))
            epoch_times = epoch_times_of(self._pipeline, plan)
            if description.is_evicted(row, epoch_times):
                words = description.eviction_condition(row, epoch_times)
                return RetentionReport(plan.epoch, words, step.kind.retention[side].rule)
        return self._still_kept(step, side, _accepted_row(side, own, near, self._plans[-1].epoch + 1))

    def _until_match(
        self, description: JoinDescription[Join], own: Selection, epoch: int, retention: RetentionReport
    ) -> RetentionReport:
        """How long a left row of a semi or anti join stays that would stay for `retention`: it leaves with its first
        match (E1)."""
        step = description.step
        rows = self._rows_of_input(step.sides[RIGHT].time)
        if rows is None:
            return retention
        candidates = _numbers_of_key(step, own, rows)
        left, right = Selection(own.batch, np.repeat(own.index, len(candidates))), Selection(rows.batch, candidates)
        fits = description.ms_out_of_reach(left.numbers(TS), right.numbers(TS)) == 0
        fits &= same_keys(step, Pairs(left, right)) & residual(step, Pairs(left, right), PairFailures())
        met_in = []
        for at in candidates[fits].tolist():
            came = int(rows.epochs[at])
            met = self._drop_reason(rows, at) is None
            if came < epoch and met:
                other = self._row_retention(step, RIGHT, came, Selection(rows.batch, np.array([at])))
                met = other.evicted_in is None or other.evicted_in > epoch
            if met and (came <= epoch or retention.evicted_in is None or came < retention.evicted_in):
                met_in.append(max(came, epoch))
        return RetentionReport(min(met_in), "it has matched, which is all that counts", "e1") if met_in else retention

    def _merged_retention(self, step: StepSpec, side: int, epoch: int, own: Selection) -> RetentionReport:
        """How long a row stays that was merged into another one, such as a session: it leaves with that."""
        (ts,) = own.numbers(TS).tolist()
        description, last = description_of(step), ts
        for plan in self._plans:
            if plan.epoch < epoch:
                continue
            epoch_times = epoch_times_of(self._pipeline, plan)
            row = AcceptedRow(side, last, np.array([last]))
            words = description.eviction_condition(row, epoch_times)
            retention = RetentionReport(plan.epoch, words, step.kind.retention[side].rule)
            if plan.epoch > epoch and description.is_evicted(row, epoch_times):
                return retention
            if plan.epoch in self._spans:
                having = [span for span in self._spans[plan.epoch] if span.start <= ts <= span.last]
                span = min(having, key=lambda span: bool(span.ended), default=None)
                if span is None:
                    return retention
                if span.ended:
                    return RetentionReport(plan.epoch, span.ended, span.ended_by)
                last = span.last
        return self._still_kept(step, side, AcceptedRow(side, last, np.array([last])))

    def waiting(self, rows: Mapping[str, Sequence[int]]) -> list[WaitingRows]:
        """Return the joined rows that later steps keep; `rows` are their event times, by part of the state."""
        waiting_rows = []
        for part, times_of in sorted(rows.items()):
            step, side = self._pipeline.side(part)
            retention = self._still_kept(step, side, AcceptedRow(side, max(times_of), np.array([max(times_of)])))
            waiting_rows.append(WaitingRows(step.number + 1, len(times_of), retention.words, retention.rule))
        return waiting_rows

    def _still_kept(self, step: StepSpec, side: int, row: AcceptedRow) -> RetentionReport:
        """How long a row stays that is in the state after the last plan."""
        description = description_of(step)
        words = description.eviction_condition(row, self._epoch_times)
        if description.is_evicted(row, self._epoch_times):
            words = f"the next epoch: {words}"
        return RetentionReport(None, words, step.kind.retention[side].rule)

    def _taken_in(self, rows: MatchableRows, numbers: np.ndarray) -> np.ndarray:
        """Return bool[n]: which of these rows were not dropped."""
        return np.array([self._drop_reason(rows, at) is None for at in numbers.tolist()], dtype=bool)

    def _drop_reason(self, rows: MatchableRows, at: int) -> str | None:
        return self._dropped(rows.positions[at], int(rows.epochs[at])) if rows.positions else None

    # --- the other side -----------------------------------------------------------------------------------------------

    def _nearest_row(
        self, description: JoinDescription[Join], side: int, own: Selection, epoch: int, retention: RetentionReport
    ) -> tuple[Nearest | None, str]:
        step, kind = description.step, description.kind
        other, chained = step.sides[1 - side], step.sides[1 - side].intake.chained
        rows = self._joined.rows(other.part) if chained else self._rows_of_input(other.time)
        candidates = _numbers_of_key(step, own, rows) if rows is not None else np.zeros(0, dtype=np.int64)
        with_key = "" if step.broadcast else " with its key"
        if rows is None or not len(candidates):
            if chained:
                ask = f"ask for a record of {other.time}"
                return None, f"step {step.number} has handed on no row{with_key} that was kept: {ask}"
            or_kept = " or is kept from before" if self._before.stored is not None else ""
            return None, f"no record of {other.time}{with_key} was read{or_kept} that can match"
        other_rows = Selection(rows.batch, candidates)
        own_times, other_times = np.repeat(own.numbers(TS), len(candidates)), other_rows.numbers(TS)
        misses = description.ms_out_of_reach(*((own_times, other_times) if side == LEFT else (other_times, own_times)))
        pairs = Pairs.of(side, Selection(own.batch, np.repeat(own.index, len(candidates))), other_rows)
        true, accepted = residual(step, pairs, PairFailures()), self._taken_in(rows, candidates)
        if not (accepted | (misses == 0)).any():
            return None, f"all records of {other.time}{with_key} were dropped that can match"
        # Of a table's versions only the newest one in reach counts, whatever `where` says of it. A dropped row met
        # nothing: it is named only if it would have matched and nothing else would.
        refused = 0 if kind.right_is_table and side == LEFT else ~true
        rank = np.where(misses == 0, np.where(accepted, refused, 2), 0)
        order = np.lexsort(
            (-other_rows.numbers(OFFSET), np.abs(other_times - own_times), rank, misses, ~accepted & (misses > 0))
        )
        best = int(order[0])
        at = int(candidates[best])
        miss, ts, rule = int(misses[best]), int(other_times[best]), description.matches_by
        position = self._joined_of(other, rows, at) if chained else rows.positions[at]
        if miss:
            words = f"{format_duration(miss)} outside {description.reach_text}"
        else:
            words, rule = self._in_the_way(description, 1 - side, rows, at, epoch, retention, true=bool(true[best]))
        return Nearest(other.time, position, ts, miss, words, rule), ""

    def _in_the_way(
        self,
        description: JoinDescription[Join],
        side: int,
        rows: MatchableRows,
        at: int,
        epoch: int,
        retention: RetentionReport,
        *,
        true: bool,
    ) -> tuple[str, str]:
        """Return what, other than the event times, prevented the row `at` of a side from matching the record, which
        arrived in `epoch`, and by which rule. Asks in the engine's order (T3): a row that was dropped or is gone meets
        nothing."""
        came, rule = int(rows.epochs[at]), description.matches_by
        reason = self._drop_reason(rows, at)
        if reason is not None:
            return f"within reach, but it was dropped: {reason}", RULES[reason]
        if retention.evicted_in is not None and came >= retention.evicted_in and came > epoch:
            return f"within reach, but it came in epoch {came}, when the record was gone", retention.rule
        if came < epoch:
            other_retention = self._row_retention(description.step, side, came, Selection(rows.batch, np.array([at])))
            if other_retention.evicted_in is not None and other_retention.evicted_in <= epoch:
                eviction_text = (
                    "it was never kept"
                    if other_retention.evicted_in == came
                    else f"it left the state in epoch {other_retention.evicted_in}"
                )
                return (
                    f"within reach, but {eviction_text}, before the record came: {other_retention.words}",
                    other_retention.rule,
                )
        if DELETED in rows.batch.schema.names and rows.batch.column(DELETED)[at].as_py():
            return "within reach, and it deletes the key", rule
        if not true:
            return "within reach, but `where` is not true for the two", rule
        if description.step.filter is not None:
            return "they match; if no row is emitted, `filter` is not true for it", "j11"
        if description.step.emits == "unmatched":
            return f"they match, so the row of {description.step.sides[LEFT].time} is not emitted", ALONE
        if description.step.emits == "matched" and len(self._pipeline.steps) == 1:
            return f"they match, and the row of {description.step.sides[LEFT].time} is emitted once only", "e2"
        if len(self._pipeline.steps) > 1:
            return "they meet; the later steps have emitted nothing of it so far", rule
        return "within reach; no row of the two was emitted so far", rule

    def _joined_of(self, side: SideSpec, rows: MatchableRows, at: int) -> RecordPosition | None:
        """Return the record of a joined row whose time the bound counts from: of those of that time, the one that has
        most of the row's columns. None: it was read before the first of the plans."""
        records = self._rows_of_input(side.time)
        if records is None:
            return None
        own = {str(ColumnRef(side.time, name)): name for name in records.batch.schema.names}
        columns = [
            (rows.batch.column(name)[at], records.batch.column(own[name])) for name in side.intake.stored if name in own
        ]
        of_time = np.flatnonzero(records.batch.column(TS).to_numpy() == rows.batch.column(TS)[at].as_py())
        best = max(
            of_time.tolist(), key=lambda number: sum(column[number] == value for value, column in columns), default=None
        )
        return None if best is None else records.positions[best]

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows_of_input(self, name: str) -> MatchableRows | None:
        if name not in self._read:
            self._read[name] = self._prepare_rows(name)
        return self._read[name]

    def _prepare_rows(self, name: str) -> MatchableRows | None:
        intake, decoder = self._pipeline.intake(name), self._decoders.decoder(name, 0)
        batches, epochs, positions = list[pa.RecordBatch](), list[int](), list[RecordPosition]()
        plans = {plan.epoch: plan for plan in self._plans}
        for ref, raws in self._batches.items():
            for epoch, raw in raws if ref.input == name else ():
                decoded = decoder.decode_batch(raw)
                for rows in decoded.rows.combine_chunks().to_batches():
                    offsets = raw.offsets[decoded.index]
                    records = DecodedRecords(rows, plans[epoch].numbered(ref), offsets, decoded.deleted)
                    prepared = prepare(intake, records).rows
                    if JOINABLE in prepared.schema.names:
                        prepared = prepared.filter(prepared.column(JOINABLE))
                    batches.append(prepared)
                    at = prepared.column(OFFSET).to_pylist()
                    positions += [RecordPosition(ref, offset) for offset in at]
                    epochs += [epoch] * len(at)
        for stored_batch, stored_positions in self._before.rows(name):
            batches.append(stored_batch)
            positions += stored_positions
            epochs += [0] * len(stored_positions)
        if not positions:
            return None
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return MatchableRows(batch, np.array(epochs), positions)


def _numbers_of_key(step: StepSpec, own: Selection, rows: MatchableRows) -> np.ndarray:
    """Return the numbers of the rows that have the key of the one row `own`; without keys, of all rows."""
    if step.broadcast:
        return np.arange(len(rows))
    return np.flatnonzero(rows.batch.column(HASH).to_numpy() == own.numbers(HASH)[0])


def _accepted_row(
    side: int, own: Selection, near: Sequence[tuple[int, MatchableRows, np.ndarray]], before: int
) -> AcceptedRow:
    """Return the row, together with the rows of its key that had arrived before an epoch."""
    (ts,) = own.numbers(TS).tolist()
    own_version, times, newer = _version_order(own)[0], [np.array([ts])], list[int]()
    for other, rows, of_key in near:
        arrived = Selection(rows.batch, of_key[rows.epochs[of_key] < before])
        times.append(arrived.numbers(TS))
        if other == side:
            newer += [version[0] for version in _version_order(arrived) if version > own_version]
    return AcceptedRow(side, ts, np.sort(np.concatenate(times)), min(newer, default=None))


def _version_order(rows: Selection) -> list[tuple[int, int, int]]:
    """Return the order of versions of a key (A1)."""
    return list(zip(*(rows.numbers(name).tolist() for name in (TS, OFFSET, PARTITION)), strict=True))
