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
    expand_ranges,
    gaps,
    number_groups,
)
from joinery_runtime.core.kinds.rows import Selection, gather, run_to_add, split_joinable
from joinery_runtime.core.pipeline.retention import AcceptedRow, Retention, RowTime
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES
from joinery_runtime.core.pipeline.spec import Emits, StepSpec
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
        """A session that an earlier row would have extended may be closed."""
        return horizons[side].current

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        return lower_of_both(step, lows)

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """W2: from this time on, a session of the record alone would be open."""
        return self.open_from(horizons[step.sides[side].part].current)

    def open_from(self, horizon: int | None) -> int | None:
        """The event time before which a session's last row means that it is closed. None: no session is."""
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
        """Returns the rows with these hashes (sorted, distinct) that have not been emitted."""
        run = self.state_run.run
        first, stop = (np.searchsorted(run.hash, hashes, side=side) for side in ("left", "right"))
        rows = expand_ranges(first, stop)[1]
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
        """Returns the rows emitted in this epoch: by segment, their row numbers in it."""
        newly = [
            (state.state_run, np.flatnonzero(state.emitted & ~state.state_run.flags)) for state in self._state[side]
        ]
        return {state_run.segment: state_run.first + rows for state_run, rows in newly if len(rows)}

    def finished(self) -> frozenset[str]:
        return frozenset(
            state.state_run.segment for side in SIDES for state in self._state[side] if state.emitted.all()
        )

    def _open_rows(self, hashes: np.ndarray) -> Sides:
        """Returns the rows with these hashes that have not been emitted: a selection for each kept run."""
        left, right = ([state.open_rows(hashes) for state in self._state[side]] for side in SIDES)
        return left, right

    # --- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> Iterator[pa.RecordBatch]:
        """Emits the sessions whose last row is too far behind the horizon."""
        if self._open_from is None:
            return
        runs = [(state.state_run.run, state.emitted) for side in SIDES for state in self._state[side]]
        hashes = _distinct([run.hash[(run.ts < self._open_from) & ~emitted] for run, emitted in runs])
        for piece in cut_by_hash(self._open_rows(hashes)):
            if any(len(rows) for side in SIDES for rows in piece[side]):
                yield from self._close_piece(piece, self._open_from)

    def _close_piece(self, piece: Sides, open_from: int) -> Iterator[pa.RecordBatch]:
        sessions = form(self._step, [(side, rows) for side in SIDES for rows in piece[side]], self._gap)
        of_left, of_right = np.split(sessions.number, [sum(len(rows) for rows in piece[LEFT])])
        closed = sessions.last < open_from
        left = self._leave(LEFT, piece[LEFT], of_left, sessions, closed)
        right = self._leave(RIGHT, piece[RIGHT], of_right, sessions, closed)
        return self.out.close((left, right))

    def _leave(
        self, side: int, rows: Sequence[Selection], number: np.ndarray, sessions: GapSessions, closed: np.ndarray
    ) -> Members:
        """Takes out the rows of a side that are in a closed session: they count as emitted from now on."""
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
        split = [self._split(side) for side in SIDES]
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

    def _split(self, side: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Splits a side's arrivals into those that can match and those that cannot."""
        spec, rows = self._step.sides[side], self._work.arrivals[side]
        if rows is None:
            rows = pa.RecordBatch.from_pylist([], schema=spec.intake.prepared_schema())
        return split_joinable(spec, rows)

    def _take(
        self,
        side: int,
        joinable: pa.RecordBatch,
        unjoinable: pa.RecordBatch,
        late: np.ndarray,
        unjoinable_late: np.ndarray,
    ) -> Generator[pa.RecordBatch, None, Accepted]:
        yield from self._pad(side, unjoinable, np.flatnonzero(~unjoinable_late))
        count = int(late.sum()) + int(unjoinable_late.sum())
        added = run_to_add(self._step.sides[side], joinable.filter(pa.array(~late)))
        return added, {"late": count} if count else {}

    def _pad(self, side: int, unjoinable: pa.RecordBatch, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Emits at once the rows that cannot match (O2), each in a session of its own."""
        chosen = Selection(unjoinable, rows)
        ts = chosen.numbers(TS)
        return self.out.pad_arrivals(side, chosen, ts, ts)

    def _before_open(self, rows: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the rows whose session would be closed if it ended with them."""
        ts = rows.column(TS).to_numpy()
        return np.zeros(len(ts), dtype=bool) if self._open_from is None else np.asarray(ts < self._open_from)

    def _late(self, joinable: Sequence[pa.RecordBatch]) -> list[np.ndarray]:
        """Per side, bool[n]: the arrivals whose session, formed by arrivals and open rows, is closed (W2). Such a
        session holds arrivals only."""
        late = [self._before_open(rows) for rows in joinable]
        hashes = [rows.column(HASH).to_numpy() for rows in joinable]
        suspect_hashes = _distinct([hashes[side][late[side]] for side in SIDES])
        if not len(suspect_hashes):
            return late
        arrived = [Selection(joinable[side], np.flatnonzero(np.isin(hashes[side], suspect_hashes))) for side in SIDES]
        closed = self._find_closed_arrivals(arrived, self._open_rows(suspect_hashes))
        for side in SIDES:
            late[side][arrived[side].index] = closed[side]
        return late

    def _find_closed_arrivals(self, arrived: Sequence[Selection], open_rows: Sides) -> list[np.ndarray]:
        """Per side, bool[n]: which arrivals are in a closed session."""
        selections = [(side, arrived[side]) for side in SIDES]
        sessions = form(self._step, [*selections, *((s, rows) for s in SIDES for rows in open_rows[s])], self._gap)
        closed = (sessions.last < cast(int, self._open_from))[sessions.number]
        return _by_selection(closed, arrived)


def _partition_offsets(rows: pa.RecordBatch, chosen: np.ndarray) -> np.ndarray:
    """Partition and offset (int64[k, 2]) of the chosen rows."""
    columns = [rows.column(name).to_numpy()[chosen].astype(np.int64) for name in (PARTITION, OFFSET)]
    return np.stack(columns, axis=1)


def _distinct(hashes: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))


def _by_selection(values: np.ndarray, rows: Sequence[Selection]) -> list[np.ndarray]:
    """Splits values, given in the order of the selections, by selection. Values beyond the last one are ignored."""
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
    """Forms sessions of all these rows (at least one selection). `number` follows the order of the selections."""
    hashes = np.concatenate([chosen.numbers(HASH) for _, chosen in rows])
    times = np.concatenate([chosen.numbers(TS) for _, chosen in rows])
    keys = distinguish_keys(hashes, _key_columns(step, rows))
    order = sort_order(hashes, keys, times)
    begins = changes(hashes[order]) | changes(keys[order]) | gaps(times[order], gap)
    ends = np.roll(begins, -1)
    return GapSessions(number_groups(order, begins), times[order][begins], times[order][ends])


def _key_columns(step: StepSpec, rows: Sequence[SideRows]) -> list[pa.Array]:
    """The key columns of all rows. Where the sides have int32 and int64, both become int64 (V2)."""
    left, right = step.sides[LEFT].intake, step.sides[RIGHT].intake
    columns = []
    for names in zip(left.keys, right.keys, strict=True):
        types = {intake.schema.field(name).type for intake, name in zip((left, right), names, strict=True)}
        kind = pa.int64() if len(types) > 1 else types.pop()
        columns.append(pa.concat_arrays([gather(step.sides[i], chosen, names[i]).cast(kind) for i, chosen in rows]))
    return columns
