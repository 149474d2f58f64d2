"""The interval join of one shard in one epoch (rules J1-J7, O1-O2, E1-E3), over sorted runs: every type of join.

No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.base import Join, lower_of, lowest_of_left
from joinery_runtime.core.kinds.rows import (
    PairFailures,
    Pairs,
    Selection,
    apply_filter,
    as_segment,
    confirm,
    cut_pairs,
    drop_late,
    project,
    split_joinable,
)
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES, SideSpec
from joinery_runtime.core.pipeline.spec import Distance, Emits, EventTime, Retention, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StateRun, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times, Watermark, clamp, earlier
from joinery_runtime.core.table.columns import OFFSET, PARTITION
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.core.table.sort import find_ranges, list_pairs
from joinery_runtime.job import Interval, JoinStep
from joinery_runtime.job.kinds.base import StepKind

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class IntervalJoin(Join):
    """Joins rows whose `right.ts - left.ts` is in [lower, upper]. `drop_late` False is `lateData: reopen` (J7).
    `lenient`: the job is a single inner interval step, whose lateness follows J6's first formula.

    A join on time only (J9) is also an interval join: its sides have no keys, and one of them goes to every shard. A
    row of a preserved side is flagged once it has matched. A semi or anti join flags left rows alone, and one that has
    matched leaves (E1)."""

    written_as: ClassVar[tuple[type[StepKind], ...]] = (Interval,)

    lower: int
    upper: int
    allowed_lateness: int = 0
    drop_late: bool = True
    lenient: bool = True
    late_to_dead_letters: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "retention", (self._retention(LEFT), self._retention(RIGHT)))

    @classmethod
    def of(cls, step: JoinStep, only: bool, /) -> Self:
        matching = cast(Interval, step.matching)
        return cls(
            matching.lower,
            matching.upper,
            step.allowed_lateness,
            step.late_data != "reopen",
            lenient=only and step.type in {"inner", "semi"},
            late_to_dead_letters=step.late_data == "dlq",
        )

    def flags_rows(self, side: int, emits: Emits, *, preserved: bool) -> bool:
        return preserved if emits == "pairs" else side == LEFT

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        return step.emits != "pairs"

    def partner_bounds(self, side: int) -> tuple[int, int]:
        """Return the (first, second) for which a row of `side` at ts matches the other side's in [ts + first, ts +
        second]."""
        return (self.lower, self.upper) if side == LEFT else (-self.upper, -self.lower)

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        """Close the rows behind the horizons, then take the arrivals: left first, then right (J2)."""
        epoch = _IntervalEpoch(self, step, work)
        yield from epoch.closings()
        yield from epoch.arrive(LEFT)
        yield from epoch.arrive(RIGHT)
        return StepResult(
            added=(epoch.added(LEFT), epoch.added(RIGHT)),
            flags=(epoch.flags(LEFT), epoch.flags(RIGHT)),
            dropped=(epoch.dropped(LEFT), epoch.dropped(RIGHT)),
            lookups=(epoch.lookups(LEFT), epoch.lookups(RIGHT)),
            matches=epoch.matches,
            failed=epoch.failures.count,
            filtered=epoch.failures.filtered,
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return arrived[1 - side] or (closing and step.sides[side].preserved)

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def bounds(self) -> tuple[int, int]:
        return self.lower, self.upper

    def accept_from(self, step: StepSpec, watermarks: Mapping[str, Watermark]) -> tuple[int | None, ...]:
        """See J6 and J7."""
        if not self.drop_late:
            return None, None
        left, right = step.sides
        own = (None if left.intake.chained else watermarks[left.time], watermarks[right.time])
        if not self.lenient:
            return earlier(own[LEFT], self.allowed_lateness), earlier(own[RIGHT], self.allowed_lateness)
        if own[LEFT] is None or own[RIGHT] is None:
            return None, None
        reach = max(self.upper, -self.lower)
        lowest = clamp(min(own[LEFT], own[RIGHT]) - reach - self.allowed_lateness)
        return lowest, lowest

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """J3: a row's earliest partner leaves at the other side's horizon."""
        return earlier(horizons[1 - side].current, self.partner_bounds(side)[0])

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        left, right = step.sides
        return {left.part: earlier(lows[right.time], self.upper), right.part: earlier(lows[left.time], -self.lower)}

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        left, right = step.sides
        out = lowest_of_left(step, lows, _may_go_out(left, horizons), distance)
        if step.emits != "pairs":
            return out
        return {**out, right.time: lower_of(lows[right.time], _may_go_out(right, horizons))}

    def _retention(self, side: int) -> Retention:
        """J3: rows stay until their latest partner cannot come any more."""
        return Retention(EventTime(), "j3", kept_for_ms=max(0, self.partner_bounds(side)[1] + self.allowed_lateness))

    def needs(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Return whether an epoch has to read the segment: rows that are not preserved leave without output."""
        return not self.expires(side, meta, horizon.previous if step.sides[side].preserved else horizon.current)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        assert horizon.current is not None, "asked when a horizon moves"
        return step.sides[side].preserved and meta.ts_min < horizon.current and self.needs(step, side, meta, horizon)

    def released_by(self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark]) -> set[str]:
        return set(step.sides[1 - side].inputs)


def _may_go_out(side: SideSpec, horizons: Horizons) -> Watermark:
    """Return the lowest event time of a kept row that this epoch or a later one may still emit. A preserved row is
    emitted when it is closed."""
    horizon = horizons[side.part]
    return horizon.previous if side.preserved else horizon.current


# --- the join of one shard in one epoch -------------------------------------------------------------------------------


@dataclass(slots=True)
class _JoinableRows:
    """Rows that can match. `matched_before` (bool[n]) had matched before this epoch; `matched_now` (bool[n]) match in
    it (None: the side needs no flags). `state_run` is the run of the state that holds the rows (None: arrivals)."""

    run: Run
    matched_before: np.ndarray | None
    matched_now: np.ndarray | None
    state_run: StateRun | None = None

    def settled(self, *, arriving: bool) -> np.ndarray:
        """bool[n]: of left rows of a semi or anti join, those that need no further partner. Rows that arrive, which
        meet all kept runs at once, have none so far."""
        if arriving:
            return np.zeros(len(self.run), dtype=bool)
        before, now = self.matched_before, _matched_now(self)
        return now.copy() if before is None else before | now

    @classmethod
    def of_segment(cls, state_run: StateRun) -> _JoinableRows:
        return cls(
            state_run.run,
            state_run.flagged,
            np.zeros(len(state_run.run), dtype=bool) if state_run.flagged is not None else None,
            state_run,
        )

    @classmethod
    def of_arrivals(cls, rows: pa.RecordBatch, *, flags: bool) -> _JoinableRows:
        run = Run.sort(rows)
        return cls(run, None, np.zeros(len(run), dtype=bool) if flags else None)


class _FirstPartners:
    """For each left row (n), its first partner so far, by (partition, offset) of the right row: the number of its batch
    in `_batches` (-1: none), and its row there."""

    def __init__(self, left_rows: _JoinableRows) -> None:
        count = len(left_rows.run)
        self._batch = left_rows.run.batch
        self._batches: list[pa.RecordBatch] = []
        self._batch_number, self._row = np.full(count, -1), np.zeros(count, dtype=np.int64)
        self._partition, self._offset = np.full(count, _LAST), np.full(count, _LAST)

    def note(self, matches: Pairs) -> None:
        assert matches.left is not None, "matches have a left row"
        assert matches.right is not None, "matches have a right row"
        left, partition, offset = matches.left.index, matches.right.numbers(PARTITION), matches.right.numbers(OFFSET)
        order = np.lexsort((offset, partition, left))
        order = order[np.diff(left[order], prepend=-1) != 0]  # the first partner of each left row
        left, partition, offset = left[order], partition[order], offset[order]
        same_partition = partition == self._partition[left]
        better = (partition < self._partition[left]) | (same_partition & (offset < self._offset[left]))
        chosen = left[better]
        if not self._batches or self._batches[-1] is not matches.right.batch:
            self._batches.append(matches.right.batch)
        self._partition[chosen], self._offset[chosen] = partition[better], offset[better]
        self._batch_number[chosen], self._row[chosen] = len(self._batches) - 1, matches.right.index[order][better]

    def pairs(self) -> Iterator[Pairs]:
        """Yield the left rows that have a partner, with the first one."""
        for number, batch in enumerate(self._batches):
            left = np.flatnonzero(self._batch_number == number)
            yield Pairs(Selection(self._batch, left), Selection(batch, self._row[left]))


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """One side's arrivals: rows that can match, rows that cannot (preserved sides only), and the number of late
    rows."""

    joinable: _JoinableRows | None
    unjoinable: pa.RecordBatch | None
    late: int


class _IntervalEpoch:
    """The state and the arrivals of one epoch, by side, with the matches found so far."""

    def __init__(self, kind: IntervalJoin, step: StepSpec, work: StepWork) -> None:
        self._kind, self._step, self._work = kind, step, work
        self._stored = tuple(
            [_JoinableRows.of_segment(state_run) for state_run in work.state_runs[side]] for side in SIDES
        )
        self._new = tuple(_arrivals(step.sides[side], work, side) for side in SIDES)
        self.matches = 0
        self.failures = PairFailures()

    # --- what is emitted ----------------------------------------------------------------------------------------------

    def closings(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of preserved sides that leave without ever having matched (O1)."""
        for side in SIDES:
            if not self._step.sides[side].preserved:
                continue
            for rows in self._stored[side]:
                assert rows.matched_before is not None, "rows of preserved sides have flags"
                leaves = self._work.horizons[side].passes(rows.run.ts)
                unmatched = np.flatnonzero(leaves & ~rows.matched_before)
                yield from self._pad_rows(side, Selection(rows.run.batch, unmatched), None)

    def arrive(self, side: int) -> Iterator[pa.RecordBatch]:
        """Yield the matches of one side's arrivals with the other side's rows, then the rows padded at once (O2)."""
        new = self._new[side]
        if new.joinable is not None:
            earlier = self._new[LEFT].joinable
            other_runs = [*self._stored[1 - side], *([earlier] if side == RIGHT and earlier is not None else [])]
            if self._step.emits == "pairs":
                for other in other_runs:
                    for matches in self._probe(side, new.joinable, other):
                        yield self._rows(matches, side)
            else:
                yield from self._find_matched(side, new.joinable, other_runs)
        if not self._step.sides[side].preserved:
            return
        if new.unjoinable is not None:
            rows = Selection(new.unjoinable, np.arange(new.unjoinable.num_rows))
            yield from self._pad_rows(side, rows, side)
        if new.joinable is not None:
            unmatched = ~self._may_match_later(side) & ~_matched_now(new.joinable)
            yield from self._pad_rows(side, Selection(new.joinable.run.batch, np.flatnonzero(unmatched)), side)

    def _find_matched(
        self, side: int, new: _JoinableRows, other_runs: Sequence[_JoinableRows]
    ) -> Iterator[pa.RecordBatch]:
        """Note the left rows that have matched now. A semi join yields each with its first partner in J2's order,
        which alone decides the row's place in a trace (E2)."""
        rows_by_run = [(new, other_runs)] if side == LEFT else [(other, [new]) for other in other_runs]
        for left_rows, right_runs in rows_by_run:
            first = _FirstPartners(left_rows)
            for right_rows in right_runs:
                own, other = (left_rows, right_rows) if side == LEFT else (right_rows, left_rows)
                for matches in self._probe(side, own, other):
                    first.note(matches)
            if self._step.emits == "matched":
                for pairs in first.pairs():
                    for piece in cut_pairs(self._step, pairs):
                        yield self._rows(piece, side)

    def _probe(self, side: int, new: _JoinableRows, other: _JoinableRows) -> Iterator[Pairs]:
        """Yield the matches of new rows with a run of the other side."""
        left_rows = new if side == LEFT else other
        settled = None if self._step.emits == "pairs" else left_rows.settled(arriving=side == LEFT)
        for candidates in self._find_candidates(side, new, other):
            for piece in cut_pairs(self._step, candidates):
                assert piece.left is not None, "candidates have a left row"
                needed = piece if settled is None else piece.where(~settled[piece.left.index])
                matches = needed.where(confirm(self._step, needed, self.failures))
                self._note_matches(side, new, matches)
                self._note_matches(1 - side, other, matches)
                self.matches += len(matches)
                if len(matches):
                    yield matches

    def _pad_rows(self, side: int, rows: Selection, arrived: int | None) -> Iterator[pa.RecordBatch]:
        for chunk in cut_pairs(self._step, Pairs.of(side, rows, None)):
            yield self._rows(chunk, arrived)

    def _rows(self, pairs: Pairs, arrived: int | None) -> pa.RecordBatch:
        emitted = apply_filter(self._step, pairs, self.failures)
        return project(self._step, emitted, self.failures, ordered=self._work.ordered, arrived=arrived)

    def _note_matches(self, side: int, rows: _JoinableRows, pairs: Pairs) -> None:
        selected = pairs.side(side)
        if rows.matched_now is not None and selected is not None:
            rows.matched_now[selected.index] = True

    # --- candidates ---------------------------------------------------------------------------------------------------

    def _find_candidates(self, side: int, new: _JoinableRows, other: _JoinableRows) -> Iterator[Pairs]:
        """Yield pairs whose hashes and times fit, with rows that the other side still keeps."""
        if self._step.sides[side].broadcast:
            # Only runs of the broadcast side are sorted by time alone, so rows of the other side are looked up in them.
            # Only those that are not evicted and near enough to a few new rows in time are.
            first, last = self._kind.partner_bounds(side)
            ts, since = other.run.ts, self._work.horizons[1 - side].current
            near = (ts >= new.run.ts.min() + first) & (ts <= new.run.ts.max() + last)
            probes = np.flatnonzero(near if since is None else near & (ts >= since))
            yield from self._candidates(1 - side, other.run, probes, new.run, None)
        else:
            keep_from = self._work.horizons[1 - side].current
            # In a join on time only, the hashes of the two sides are unrelated.
            probes = np.arange(len(new.run)) if self._step.broadcast else other.run.filter.may_contain(new.run.hash)
            yield from self._candidates(side, new.run, probes, other.run, keep_from)

    def _candidates(
        self, side: int, run: Run, probes: np.ndarray, other: Run, keep_from: int | None
    ) -> Iterator[Pairs]:
        lower, upper = self._kind.partner_bounds(side)
        ts = run.ts[probes]
        first, last = ts + lower, ts + upper
        if keep_from is not None:
            first = np.maximum(first, keep_from)
        hashes = np.zeros(len(probes), dtype=np.uint64) if self._step.broadcast else run.hash[probes]
        for probe, row in list_pairs(find_ranges(other.hash, other.ts, hashes, first, last)):
            yield Pairs.of(side, Selection(run.batch, probes[probe]), Selection(other.batch, row))

    # --- what stays ---------------------------------------------------------------------------------------------------

    def _may_match_later(self, side: int) -> np.ndarray:
        """bool[n]: which of the arrivals that can match may match a future row (J3, J5)."""
        new, since = self._new[side].joinable, self._work.horizons[side].current
        assert new is not None, "only rows that are there are kept"
        return np.ones(len(new.run), dtype=bool) if since is None else new.run.ts >= since

    def added(self, side: int) -> Run | None:
        new, spec = self._new[side].joinable, self._step.sides[side]
        if new is None:
            return None
        waits = self._may_match_later(side)
        if self._step.emits != "pairs":
            waits &= ~_matched_now(new)
        batch = as_segment(spec, new.run.batch, _matched_now(new))
        added = Run.view(batch if waits.all() else batch.filter(pa.array(waits)))
        return added if len(added) else None

    def flags(self, side: int) -> dict[str, np.ndarray]:
        numbers_by_segment = {}
        for rows in self._stored[side]:
            if rows.state_run is None or rows.matched_now is None or rows.matched_before is None:
                continue
            newly_matched = np.flatnonzero(rows.matched_now & ~rows.matched_before)
            if len(newly_matched):
                numbers_by_segment[rows.state_run.segment] = rows.state_run.first + newly_matched
        return numbers_by_segment

    def dropped(self, side: int) -> dict[str, int]:
        late = self._new[side].late
        return {"late": late} if late else {}

    def lookups(self, side: int) -> int:
        new = self._new[side].joinable
        return len(new.run) if new is not None else 0


def _matched_now(rows: _JoinableRows) -> np.ndarray:
    return rows.matched_now if rows.matched_now is not None else np.zeros(len(rows.run), dtype=bool)


def _arrivals(side: SideSpec, work: StepWork, number: int) -> _Arrivals:
    rows, late = drop_late(work.arrivals[number], work.accept_from[number])
    if rows is None:
        return _Arrivals(None, None, late)
    can, cannot = split_joinable(side, rows)
    joinable = _JoinableRows.of_arrivals(can, flags=side.flags) if can.num_rows else None
    return _Arrivals(joinable, cannot if cannot.num_rows else None, late)
