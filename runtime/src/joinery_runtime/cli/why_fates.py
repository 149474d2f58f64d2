"""What `joinery why` says of a record that was taken: whether the state still has it, and which record of another input
came nearest to meeting it. A kind of step answers for its own rules (`Kind.has_left`, `Join.misses`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.cli.why_records import FoundRecord, Place
from joinery_runtime.core.kinds.base import Join
from joinery_runtime.core.kinds.rows import PairFailures, Pairs, Selection, residual
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.describe import Outlook, TakenRow
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.table.columns import DELETED, HASH, JOINABLE, OFFSET, PARTITION, TS
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.job import format_time
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.sources.base import PartitionRef, RawBatch


def rule_of(anchor: str) -> str:
    return f"docs/semantics.md#{anchor}"


def horizons_of(pipeline: Pipeline, plan: EpochPlan) -> Horizons:
    return plan.horizons or times.horizons(pipeline, plan.times, {})


@dataclass(frozen=True, slots=True)
class Stay:
    """`left` is the epoch in which a record was gone from the state, None: it is kept. `words` say by what."""

    left: int | None
    words: str
    rule: str

    def document(self) -> dict[str, Any]:
        return {"kept": self.left is None, "left": self.left, "when": self.words, "rule": rule_of(self.rule)}


@dataclass(frozen=True, slots=True)
class Nearest:
    """The record of the key on the other side that came nearest to matching. `misses` is by how many milliseconds the
    two are out of reach; 0: `words` say what else was in the way."""

    place: Place
    ts: int
    misses: int
    words: str
    rule: str

    def document(self) -> dict[str, Any]:
        of = self.place.partition
        place = {"input": of.input, "topic": of.topic, "partition": of.partition, "offset": self.place.offset}
        return {**place, "ts": self.ts, "misses": self.misses, "why": self.words, "rule": rule_of(self.rule)}

    def line(self) -> str:
        where = f"{self.place.partition.input} {self.place}, event time {format_time(self.ts)}"
        return f"nearest: {where}: {self.words} ({rule_of(self.rule)})"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record that was taken. `alone` says, where there is no `nearest` record, why not."""

    stay: Stay
    nearest: Nearest | None = None
    alone: str = ""

    def lines(self, epoch: int, *, unmatched: bool) -> Iterator[str]:
        """`epoch` is the record's own."""
        stay = self.stay
        if stay.left is None:
            yield f"kept until {stay.words} ({rule_of(stay.rule)})"
        else:
            gone = "never kept" if stay.left == epoch else f"left the state in epoch {stay.left}"
            yield f"{gone}: {stay.words} ({rule_of(stay.rule)})"
        if unmatched and self.nearest is not None:
            yield self.nearest.line()
        elif unmatched and self.alone:
            yield self.alone


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an input that can match, with the epoch (int64[n]) and the place of each."""

    batch: pa.RecordBatch
    epochs: np.ndarray
    places: Sequence[Place]

    def at(self, place: Place) -> int | None:
        return self.places.index(place) if place in self.places else None

    def __len__(self) -> int:
        return len(self.places)


class Fates:
    """`batches` are the records that may have met each other, with their epochs, `outlook` that of the epoch after the
    last plan. `dropped` are the reasons of records that are known not to have been taken."""

    def __init__(
        self,
        pipeline: Pipeline,
        decoders: InputAccess,
        batches: Mapping[PartitionRef, Sequence[tuple[int, RawBatch]]],
        plans: Sequence[EpochPlan],
        outlook: Outlook,
        dropped: Mapping[Place, str],
    ) -> None:
        self._pipeline, self._plans, self._outlook, self._dropped = pipeline, plans, outlook, dropped
        self._decoders, self._batches = decoders, batches
        self._read: dict[str, _Rows | None] = {}

    def of(self, record: FoundRecord) -> Fate | None:
        """None: the record is no row that can match, so it was never to stay."""
        name = record.place.partition.input
        spec, rows = self._pipeline.input(name), self._rows(name)
        at = None if rows is None else rows.at(record.place)
        if rows is None or at is None:
            return None
        step, own = self._pipeline.steps[spec.step], Selection(rows.batch, np.array([at]))
        stay = self._stay(step, spec.side, record, own, rows)
        nearest, alone = None, ""
        if isinstance(step.kind, Join):
            nearest, alone = self._nearest(step, step.kind, spec.side, own, stay)
        return Fate(stay, nearest, alone)

    # --- the state ----------------------------------------------------------------------------------------------------

    def _stay(self, step: StepSpec, side: int, record: FoundRecord, own: Selection, rows: _Rows) -> Stay:
        part, kind = step.sides[side].part, step.kind
        rule = kind.leaves_by(side)
        near = self._of_key(step, own)
        for plan in self._plans:
            if plan.epoch < record.epoch:
                continue
            row = _taken(side, own, near, max(plan.epoch, record.epoch + 1))
            horizons = horizons_of(self._pipeline, plan)
            if kind.has_left(step, row, horizons[part].current):
                return Stay(plan.epoch, kind.leaves_when(step, row, Outlook(plan.watermarks, horizons)), rule)
        row = _taken(side, own, near, self._plans[-1].epoch + 1)
        words = kind.leaves_when(step, row, self._outlook)
        if kind.has_left(step, row, self._outlook.horizon(part)):
            words = f"the next epoch: {words}"
        return Stay(None, words, rule)

    def _of_key(self, step: StepSpec, own: Selection) -> Sequence[tuple[int, _Rows, np.ndarray]]:
        """Per input that the step reads itself: its side, its rows, and which of them have the key of the row. None
        where all rows are of one key: what joins on time only looks at a row alone."""
        found = []
        for other, spec in enumerate(step.sides):
            rows = None if step.broadcast or spec.intake.chained else self._rows(spec.time)
            if rows is not None:
                found.append((other, rows, _same(step, own, rows)))
        return found

    # --- the other side -----------------------------------------------------------------------------------------------

    def _nearest(self, step: StepSpec, kind: Join, side: int, own: Selection, stay: Stay) -> tuple[Nearest | None, str]:
        other = step.sides[1 - side]
        if other.intake.chained:
            return None, f"what it may meet are the rows of step {step.number}: ask for a record of {other.time}"
        rows = self._rows(other.time)
        found = _same(step, own, rows) if rows is not None else np.zeros(0, dtype=np.int64)
        if rows is None or not len(found):
            with_key = "" if step.broadcast else " with its key"
            return None, f"no record of {other.time}{with_key} was read that can match"
        there = Selection(rows.batch, found)
        mine, theirs = np.repeat(own.numbers(TS), len(found)), there.numbers(TS)
        misses = kind.misses(*((mine, theirs) if side == LEFT else (theirs, mine)))
        pairs = Pairs.of(side, Selection(own.batch, np.repeat(own.index, len(found))), there)
        true = residual(step, pairs, PairFailures())
        # Of versions only the newest one that is in reach counts, whatever `where` says of it.
        refused = np.zeros(len(found), dtype=bool) if kind.right_is_table and side == LEFT else ~true
        order = np.lexsort((-there.numbers(OFFSET), np.abs(theirs - mine), refused & (misses == 0), misses))
        best = int(order[0])
        at = int(found[best])
        miss, place, ts = int(misses[best]), rows.places[at], int(theirs[best])
        if miss:
            words = f"{format_duration(miss)} outside {kind.reach_text}"
        else:
            words = self._in_the_way(rows, at, bool(true[best]), stay)
        return Nearest(place, ts, miss, words, kind.matches_by), ""

    def _in_the_way(self, rows: _Rows, at: int, true: bool, stay: Stay) -> str:
        """What else than the times may part two records of one key."""
        place = rows.places[at]
        if DELETED in rows.batch.schema.names and rows.batch.column(DELETED)[at].as_py():
            return "within reach, and it deletes the key"
        if not true:
            return "within reach, but `where` is not true for the two"
        if place in self._dropped:
            return f"within reach, but it was dropped: {self._dropped[place]}"
        if stay.left is not None and int(rows.epochs[at]) >= stay.left:
            return f"within reach, but it came in epoch {int(rows.epochs[at])}, when the record was gone"
        if len(self._pipeline.steps) > 1:
            return "they meet; the steps that follow have put out nothing of it so far"
        return "within reach; nothing of the two has gone out so far"

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows(self, name: str) -> _Rows | None:
        if name not in self._read:
            self._read[name] = self._prepared(name)
        return self._read[name]

    def _prepared(self, name: str) -> _Rows | None:
        intake, decoder = self._pipeline.intake(name), self._decoders.decoder(name, 0)
        batches, epochs, places = list[pa.RecordBatch](), list[int](), list[Place]()
        for ref, raws in self._batches.items():
            for epoch, raw in raws if ref.input == name else ():
                decoded = decoder.decode_batch(raw)
                for rows in decoded.rows.combine_chunks().to_batches():
                    offsets = raw.offsets[decoded.index]
                    records = DecodedRecords(rows, ref.partition, offsets, decoded.deleted)
                    prepared = prepare(intake, records).rows
                    if JOINABLE in prepared.schema.names:
                        prepared = prepared.filter(prepared.column(JOINABLE))
                    batches.append(prepared)
                    there = prepared.column(OFFSET).to_pylist()
                    places += [Place(ref, offset) for offset in there]
                    epochs += [epoch] * len(there)
        if not places:
            return None
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return _Rows(batch, np.array(epochs), places)


def _same(step: StepSpec, own: Selection, rows: _Rows) -> np.ndarray:
    """The numbers of the rows that have the key of the one row `own`; without keys, of all."""
    if step.broadcast:
        return np.arange(len(rows))
    return np.flatnonzero(rows.batch.column(HASH).to_numpy() == own.numbers(HASH)[0])


def _taken(side: int, own: Selection, near: Sequence[tuple[int, _Rows, np.ndarray]], before: int) -> TakenRow:
    """The row among those of its key that had come before an epoch."""
    (ts,) = own.numbers(TS).tolist()
    place, times, newer = _order(own)[0], [np.array([ts])], list[int]()
    for other, rows, of_key in near:
        there = Selection(rows.batch, of_key[rows.epochs[of_key] < before])
        times.append(there.numbers(TS))
        if other == side:
            newer += [each[0] for each in _order(there) if each > place]
    return TakenRow(side, ts, np.sort(np.concatenate(times)), min(newer, default=None))


def _order(rows: Selection) -> list[tuple[int, int, int]]:
    """How versions of a key follow each other (A1)."""
    return list(zip(*(rows.numbers(name).tolist() for name in (TS, OFFSET, PARTITION)), strict=True))
