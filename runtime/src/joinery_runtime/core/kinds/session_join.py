"""The join over session windows of one shard in one epoch (rules W1-W4). Both sides' rows form the sessions together.

First the sessions that the horizon closes are emitted from the state, and their rows are flagged. Then arrivals are
judged together with the sessions still open, and kept (T3). Only keys that may have something to close or to drop are
looked at. No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.base import Join, lower_of_both
from joinery_runtime.core.kinds.cells import Members, Sides, WindowOutput, concat_selections, cut_by_hash
from joinery_runtime.core.kinds.grouping import (
    changes,
    distinguish_keys,
    gaps,
    number_groups,
    rows_with_hashes,
)
from joinery_runtime.core.kinds.rows import Selection, gather, run_to_add, split_joinable
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES
from joinery_runtime.core.pipeline.spec import AcceptedRow, Emits, Retention, RowTime, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StateRun, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times, Watermark, earlier
from joinery_runtime.core.table.columns import HASH, OFFSET, PARTITION, TS
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.core.table.sort import sort_order
from joinery_runtime.job import JoinStep, Session
from joinery_runtime.job.kinds.base import StepKind

Accepted = tuple[Run | None, Mapping[str, int]]  # what is kept, and how many rows were dropped by reason


@dataclass(frozen=True, slots=True)
class SessionEnd(RowTime):
    """The end of the session decides: the last row and the gap. The session may grow for ever."""

    by_event_time: ClassVar[bool] = False

    gap: int

    def time_of(self, row: AcceptedRow) -> int | None:
        return self.last_row(row) + self.gap

    def last_row(self, row: AcceptedRow) -> int:
        """Return the event time of the last row in the session of the row."""
        after = row.times[np.searchsorted(row.times, row.ts) :]
        ends = np.flatnonzero(np.diff(after) > self.gap)
        return int(after[ends[0] if len(ends) else -1])

    def event_time_at(self, time: int) -> int:
        return cast(int, earlier(time, self.gap))


@dataclass(frozen=True, slots=True)
class SessionWindowJoin(Join):
    """Joins rows in sessions that both sides form together, per key: consecutive rows are <= gap apart (W1, S1).

    The horizon is `C = min wm - allowedLateness`, one number for both sides. A session is closed when `last + gap < C`.
    A row is flagged once it is emitted."""

    written_as: ClassVar[tuple[type[StepKind], ...]] = (Session,)
    judges_late_records: ClassVar[bool] = True
    late_rule: ClassVar[str] = "sessions that end before {} are closed"

    gap: int
    allowed_lateness: int = 0
    late_to_dead_letters: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "retention", (Retention(SessionEnd(self.gap), "w2"),) * 2)

    @classmethod
    def of(cls, step: JoinStep, _only: bool, /) -> Self:
        return cls(cast(Session, step.matching).gap, step.allowed_lateness, step.late_data == "dlq")

    def flags_rows(self, side: int, emits: Emits, *, preserved: bool) -> bool:
        return True

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        return True

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        epoch = _SessionJoinEpoch(self, step, work)
        yield from epoch.close()
        left, right = yield from epoch.arrive()
        return StepResult(
            added=(left[0], right[0]),
            flags=(epoch.flags(LEFT), epoch.flags(RIGHT)),
            finished=epoch.finished(),
            dropped=(left[1], right[1]),
            lookups=(epoch.out.lookups[LEFT], epoch.out.lookups[RIGHT]),
            matches=epoch.out.matches,
            failed=epoch.out.failures.count,
            filtered=epoch.out.failures.filtered,
            late=epoch.late if self.late_to_dead_letters else (),
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """Return the present horizon: a session that an earlier row would have extended may be closed."""
        return horizons[side].current

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        return lower_of_both(step, lows)

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """W2: from this time on, a session of the record alone would be open."""
        return self.open_from(horizons[step.sides[side].part].current)

    def open_from(self, horizon: int | None) -> int | None:
        """Return the event time before which a session's last row means that it is closed. None: no session is."""
        return earlier(horizon, self.gap)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        return meta.ts_min < cast(int, self.open_from(horizon.current))


# --- the join of one shard in one epoch -------------------------------------------------------------------------------


class _SessionRun:
    """A run of the state. `emitted` (bool[n]): which of its rows have been emitted, in this epoch or before."""

    def __init__(self, state_run: StateRun) -> None:
        self.state_run = state_run
        self.emitted = state_run.flags.copy()

    def open_rows(self, hashes: np.ndarray) -> Selection:
        """Return the rows with these hashes (sorted, distinct) that have not been emitted."""
        run = self.state_run.run
        rows = rows_with_hashes(run.hash, hashes)
        return Selection(run.batch, rows[~self.emitted[rows]])


class _SessionJoinEpoch:
    """One epoch's work on sessions. Those whose last row is before `_open_from` are closed (None: none is). `late`: see
    `StepResult`."""

    def __init__(self, kind: SessionWindowJoin, step: StepSpec, work: StepWork) -> None:
        self._step, self._work, self._gap = step, work, kind.gap
        # Sessions close by the lower of the two watermarks, so both sides have the same horizon.
        self._open_from = kind.open_from(work.horizons[LEFT].current)
        self._state = [[_SessionRun(state_run) for state_run in work.state_runs[side]] for side in SIDES]
        self.out = WindowOutput(step, ordered=work.ordered)
        self.late: tuple[np.ndarray, ...] = ()

    def flags(self, side: int) -> dict[str, np.ndarray]:
        """Return the rows emitted in this epoch: by segment, their row numbers in it."""
        newly = [
            (state.state_run, np.flatnonzero(state.emitted & ~state.state_run.flags)) for state in self._state[side]
        ]
        return {state_run.segment: state_run.first + rows for state_run, rows in newly if len(rows)}

    def finished(self) -> frozenset[str]:
        return frozenset(
            state.state_run.segment for side in SIDES for state in self._state[side] if state.emitted.all()
        )

    def _open_rows(self, hashes: np.ndarray) -> Sides:
        """Return the rows with these hashes that have not been emitted: a selection for each kept run."""
        left, right = ([state.open_rows(hashes) for state in self._state[side]] for side in SIDES)
        return left, right

    # --- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> Iterator[pa.RecordBatch]:
        """Emit the sessions whose last row is too far behind the horizon."""
        if self._open_from is None:
            return
        runs = [(state.state_run.run, state.emitted) for side in SIDES for state in self._state[side]]
        hashes = _distinct([run.hash[(run.ts < self._open_from) & ~emitted] for run, emitted in runs])
        for piece in cut_by_hash(self._open_rows(hashes)):
            rows = [(side, selection) for side in SIDES for selection in piece[side]]
            if not any(len(selection) for _, selection in rows):
                continue
            sessions = form(self._step, rows, self._gap)
            of_left, of_right = np.split(sessions.number, [sum(len(selection) for selection in piece[LEFT])])
            closed = sessions.last < self._open_from
            left = self._leave(LEFT, piece[LEFT], of_left, sessions, closed)
            right = self._leave(RIGHT, piece[RIGHT], of_right, sessions, closed)
            yield from self.out.close((left, right))

    def _leave(
        self, side: int, rows: Sequence[Selection], number: np.ndarray, sessions: GapSessions, closed: np.ndarray
    ) -> Members:
        """Take out the rows of a side that are in a closed session: they count as emitted from now on."""
        leaving = [
            chosen.where(closed[session_numbers])
            for chosen, session_numbers in zip(rows, _by_selection(number, rows), strict=True)
        ]
        for state, chosen in zip(self._state[side], leaving, strict=True):
            state.emitted[chosen.index] = True
        batch, cell = concat_selections(self._step.sides[side], leaving), number[closed[number]]
        return Members(Selection(batch, np.arange(len(cell))), cell, sessions.first[cell], sessions.last[cell])

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def arrive(self) -> Generator[pa.RecordBatch, None, tuple[Accepted, Accepted]]:
        split = list[tuple[pa.RecordBatch, pa.RecordBatch]]()
        for spec, rows in zip(self._step.sides, self._work.arrivals, strict=True):
            no_rows = pa.RecordBatch.from_pylist([], schema=spec.intake.prepared_schema())
            split.append(split_joinable(spec, no_rows if rows is None else rows))
        late = self._late([joinable for joinable, _ in split])
        unjoinable_late = [self._before_open(unjoinable) for _, unjoinable in split]
        self.late = tuple(
            np.concatenate(
                [_partition_offsets(joinable, late[side]), _partition_offsets(unjoinable, unjoinable_late[side])]
            )
            for side, (joinable, unjoinable) in enumerate(split)
        )
        left = yield from self._take(LEFT, *split[LEFT], late[LEFT], unjoinable_late[LEFT])
        right = yield from self._take(RIGHT, *split[RIGHT], late[RIGHT], unjoinable_late[RIGHT])
        return left, right

    def _take(
        self,
        side: int,
        joinable: pa.RecordBatch,
        unjoinable: pa.RecordBatch,
        late: np.ndarray,
        unjoinable_late: np.ndarray,
    ) -> Generator[pa.RecordBatch, None, Accepted]:
        # Rows that cannot match are emitted at once (O2), each in a session of its own.
        padded = Selection(unjoinable, np.flatnonzero(~unjoinable_late))
        ts = padded.numbers(TS)
        yield from self.out.pad_arrivals(side, padded, ts, ts)
        count = int(late.sum()) + int(unjoinable_late.sum())
        added = run_to_add(self._step.sides[side], joinable.filter(pa.array(~late)))
        return added, {"late": count} if count else {}

    def _before_open(self, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the rows whose session would be closed if it ended with them."""
        ts = rows.column(TS).to_numpy()
        return np.zeros(len(ts), dtype=bool) if self._open_from is None else np.asarray(ts < self._open_from)

    def _late(self, joinable: Sequence[pa.RecordBatch]) -> list[np.ndarray]:
        """Per side, bool[n]: the arrivals whose session, formed by arrivals and open rows, is closed (W2). Such a
        session holds arrivals only."""
        if self._open_from is None:
            return [np.zeros(rows.num_rows, dtype=bool) for rows in joinable]
        late = [self._before_open(rows) for rows in joinable]
        hashes = [rows.column(HASH).to_numpy() for rows in joinable]
        suspect_hashes = _distinct([hashes[side][late[side]] for side in SIDES])
        if not len(suspect_hashes):
            return late
        arrived = [Selection(joinable[side], np.flatnonzero(np.isin(hashes[side], suspect_hashes))) for side in SIDES]
        open_rows = self._open_rows(suspect_hashes)
        open_sides = [(side, rows) for side in SIDES for rows in open_rows[side]]
        sessions = form(self._step, [*((side, arrived[side]) for side in SIDES), *open_sides], self._gap)
        closed = _by_selection((sessions.last < self._open_from)[sessions.number], arrived)
        for side in SIDES:
            late[side][arrived[side].index] = closed[side]
        return late


def _partition_offsets(rows: pa.RecordBatch, chosen: np.ndarray) -> np.ndarray:
    """Partition and offset (int64[k, 2]) of the chosen rows."""
    columns = [rows.column(name).to_numpy()[chosen].astype(np.int64) for name in (PARTITION, OFFSET)]
    return np.stack(columns, axis=1)


def _distinct(hashes: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))


def _by_selection(values: np.ndarray, rows: Sequence[Selection]) -> list[np.ndarray]:
    """Split values, given in the order of the selections, by selection. Values beyond the last one are ignored."""
    ends = np.cumsum([len(chosen) for chosen in rows], dtype=np.int64)
    return np.split(values, ends)[: len(rows)]


# --- sessions ---------------------------------------------------------------------------------------------------------

SideRows = tuple[int, Selection]  # rows of a side


@dataclass(frozen=True, slots=True)
class GapSessions:
    """Sessions of rows. `number` (int64[n]) is the session of each row; `first` and `last` (int64[m]) are the event
    times of each session's first and last row."""

    number: np.ndarray
    first: np.ndarray
    last: np.ndarray


def form(step: StepSpec, rows: Sequence[SideRows], gap: int) -> GapSessions:
    """Form sessions of all these rows (at least one selection). `number` follows the order of the selections."""
    hashes = np.concatenate([chosen.numbers(HASH) for _, chosen in rows])
    times = np.concatenate([chosen.numbers(TS) for _, chosen in rows])
    left, right = step.sides[LEFT].intake, step.sides[RIGHT].intake
    columns = []
    for names in zip(left.keys, right.keys, strict=True):
        types = {intake.schema.field(name).type for intake, name in zip((left, right), names, strict=True)}
        kind = pa.int64() if len(types) > 1 else types.pop()  # int32 on one side and int64 on the other (V2)
        columns.append(pa.concat_arrays([gather(step.sides[i], chosen, names[i]).cast(kind) for i, chosen in rows]))
    keys = distinguish_keys(hashes, columns)
    order = sort_order(hashes, keys, times)
    begins = changes(hashes[order]) | changes(keys[order]) | gaps(times[order], gap)
    ends = np.roll(begins, -1)
    return GapSessions(number_groups(order, begins), times[order][begins], times[order][ends])
