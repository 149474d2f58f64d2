"""Pairs of rows and padded rows: what every kernel does with the matches that it has found. At the end, the stored rows
of kinds whose rows replace each other.

A `Selection` is some rows of a batch. Two of the same length are pairs; one and None are padded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.grouping import rows_with_hashes
from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SideSpec
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import ARRIVAL, CLOSING, ORDER_COLUMNS, StateRun
from joinery_runtime.core.table.columns import FLAG_FIELD, JOINABLE, OFFSET, PARTITION, TS
from joinery_runtime.core.table.segment import Run, concat
from joinery_runtime.job.model.references import RANK_COLUMNS, WINDOW_COLUMNS, WINDOW_TIME

# Rows and bytes projected at once. They bound the memory for a key that matches very many rows.
PROJECTED_ROWS = 1 << 16
PROJECTED_BYTES = 16 << 20
# Looking hashes up in a run is cheaper than scanning its rows only if there are this many times fewer hashes.
_RATHER_LOOK_UP = 16


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows `index` (int64[n], any order, repeats allowed) of a side's batch."""

    batch: pa.RecordBatch
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def where(self, chosen: np.ndarray) -> Selection:
        """Return the chosen rows of the selection; `chosen` is bool[n] or positions."""
        return Selection(self.batch, self.index[chosen])

    def numbers(self, name: str) -> np.ndarray:
        """Return a numeric engine column of the selected rows."""
        return np.asarray(self.batch.column(name).to_numpy()[self.index])


@dataclass(frozen=True, slots=True)
class Pairs:
    """n pairs of a left and a right row, or n padded rows of one side (the other is None).

    `windows`, for window steps, are the starts and the ends (int64[n] each) of their windows, and of ranked rows their
    numbers. `totals` are further columns of ranked rows (n values each), by their names (R9).
    """

    left: Selection | None
    right: Selection | None
    windows: tuple[np.ndarray, ...] | None = None
    totals: Mapping[str, pa.Array] = field(default_factory=dict)

    @classmethod
    def of(cls, side: int, own: Selection, other: Selection | None) -> Pairs:
        return cls(own, other) if side == LEFT else cls(other, own)

    def side(self, side: int) -> Selection | None:
        return self.left if side == LEFT else self.right

    def __len__(self) -> int:
        first = self.left if self.left is not None else self.right
        return len(first) if first is not None else 0

    def where(self, chosen: np.ndarray) -> Pairs:
        left, right = (s.where(chosen) if s is not None else None for s in (self.left, self.right))
        windows = tuple(values[chosen] for values in self.windows) if self.windows is not None else None
        totals = {name: values.take(pa.array(np.arange(len(self))[chosen])) for name, values in self.totals.items()}
        return Pairs(left, right, windows, totals)


def cut_pairs(step: StepSpec, pairs: Pairs) -> Iterator[Pairs]:
    """Cut the pairs into pieces of at most PROJECTED_ROWS, whose stored columns take about PROJECTED_BYTES (a single
    pair may take more)."""
    return (pairs.where(piece) for piece in pieces(step, pairs))


def pieces(step: StepSpec, pairs: Pairs) -> Iterator[np.ndarray]:
    """Yield the positions of each piece of `cut_pairs`."""
    for first in range(0, len(pairs), PROJECTED_ROWS):
        piece = np.arange(first, min(first + PROJECTED_ROWS, len(pairs)))
        piece_pairs = pairs.where(piece)
        size = np.cumsum(
            sum((_row_bytes(s, piece_pairs.side(i)) for i, s in enumerate(step.sides)), np.zeros(len(piece_pairs)))
        )
        edges = np.flatnonzero(np.diff(size // PROJECTED_BYTES)) + 1
        yield from np.split(piece, edges)


def rows_at_once(batches: Iterable[pa.RecordBatch]) -> int:
    """How many rows of the widest of these batches make up PROJECTED_BYTES, at most PROJECTED_ROWS."""
    widths = [batch.nbytes // batch.num_rows for batch in batches if batch.num_rows]
    return max(1, min(PROJECTED_ROWS, PROJECTED_BYTES // max([1, *map(int, widths)])))


def _row_bytes(side: SideSpec, rows: Selection | None) -> np.ndarray:
    """Return the bytes that each row's stored columns take (a single zero for a padded side)."""
    if rows is None:
        return np.zeros(1)
    columns = [rows.batch.column(name) for name in side.intake.stored]
    texts = [c for c in columns if pa.types.is_string(c.type) or pa.types.is_binary(c.type)]
    fixed = sum(c.type.bit_width for c in columns if c not in texts) / 8
    size = np.full(len(rows), fixed)
    for column in texts:
        buffer = column.buffers()[1]
        if buffer is not None and len(column):
            # The array's offsets give the lengths, so the cost depends on the selection and not on the whole column.
            edges = np.frombuffer(buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
            size += edges[rows.index + 1].astype(np.int64) - edges[rows.index]
    return size


def gather(side: SideSpec, rows: Selection, name: str) -> pa.Array:
    """Return a user column of these rows. An event time that is not stored is taken from `$ts`, in its own type."""
    batch, intake = rows.batch, side.intake
    if name == intake.event_time and name not in intake.stored:
        return batch.column(TS).take(pa.array(rows.index)).cast(intake.schema.field(name).type)
    return batch.column(name).take(pa.array(rows.index))


def tie_breakers(side: SideSpec, rows: pa.RecordBatch) -> Sequence[np.ndarray]:
    """Return what orders rows of one event time (int64[n] each): the place of the record, or the values of a joined
    row, whose records may have arrived in any order (D1)."""
    if not side.intake.chained:
        return [rows.column(name).to_numpy() for name in (PARTITION, OFFSET)]
    values = rows.select(list(side.intake.stored))
    rank = np.empty(rows.num_rows, dtype=np.int64)
    rank[pc.sort_indices(values, sort_keys=[(name, "ascending") for name in values.schema.names]).to_numpy()] = (
        np.arange(rows.num_rows)
    )
    return [rank]


@dataclass(slots=True)
class PairFailures:
    """The number of pairs or padded rows so far for which a condition or a column could not be computed (`count`), or
    that the step's filter left out (`filtered`)."""

    count: int = 0
    filtered: int = 0


def confirm(step: StepSpec, pairs: Pairs, failures: PairFailures) -> np.ndarray:
    """bool[n]: the pairs whose keys really are equal (hashes may collide) and whose residual predicate is true (J1)."""
    equal = same_keys(step, pairs)
    if step.residual is None or not equal.any():
        return equal
    candidates = np.flatnonzero(equal)
    equal[candidates] = residual(step, pairs.where(candidates), failures)
    return equal


def same_keys(step: StepSpec, pairs: Pairs) -> np.ndarray:
    """bool[n]: the pairs with equal keys; all of them where the step has no keys (J9)."""
    assert pairs.left is not None, "only pairs have keys to compare"
    assert pairs.right is not None, "only pairs have keys to compare"
    left, right = step.sides
    equal = [
        pc.equal(gather(left, pairs.left, a), gather(right, pairs.right, b))
        for a, b in zip(left.intake.keys, right.intake.keys, strict=True)
    ]
    if not equal:
        return np.ones(len(pairs), dtype=bool)
    return np.array(pc.fill_null(reduce(pc.and_, equal), False).to_numpy(zero_copy_only=False))


def residual(step: StepSpec, pairs: Pairs, failures: PairFailures) -> np.ndarray:
    """bool[n]: the pairs for which the residual predicate is true: neither NULL nor failed."""
    if step.residual is None:
        return np.ones(len(pairs), dtype=bool)
    mask = step.residual.mask(lambda ref: resolve(step, pairs, ref), len(pairs))
    failures.count += len(mask.failed)
    return np.array(mask.values.to_numpy(zero_copy_only=False))


def resolve(step: StepSpec, pairs: Pairs, ref: ColumnRef) -> pa.Array:
    """Return an input's column for the pairs, NULL where its side is padded; without an input, a column of their
    windows, or one of an aggregate's rows."""
    if not ref.input and ref.column in RANK_COLUMNS:
        kind = step.window_times if ref.column in WINDOW_COLUMNS else pa.int64()
        return _window_column(step, pairs, ref.column, kind)
    if not ref.input and ref.column in pairs.totals:
        return pairs.totals[ref.column]
    side, name = step.locate_column(ref)
    return _column(step, pairs, side, name)


def project(
    step: StepSpec, pairs: Pairs, failures: PairFailures, *, ordered: bool, arrived: int | None
) -> pa.RecordBatch:
    """Make the output rows of these pairs, in `step.output_schema()`; if `ordered`, with ORDER_COLUMNS after it. A
    column that cannot be computed is NULL. `arrived` is the side whose row arrived last (None: a closing puts the rows
    out)."""
    computed = {
        c.name: c.expression.evaluate(lambda ref: resolve(step, pairs, ref), len(pairs))
        for c in step.output
        if c.expression is not None
    }
    failures.count += len({row for evaluated in computed.values() for row in evaluated.failed})
    columns = []
    for output in step.output:
        if output.name in computed:
            columns.append(computed[output.name].values.cast(output.type))
        elif output.step_column is None:
            columns.append(_column(step, pairs, output.side, output.column))
        elif output.step_column in pairs.totals:
            columns.append(pairs.totals[output.step_column].cast(output.type))
        else:
            columns.append(_window_column(step, pairs, output.step_column, output.type))
    rows = pa.record_batch(columns, schema=step.output_schema())
    return _with_order_columns(rows, pairs, arrived) if ordered else rows


def apply_filter(step: StepSpec, pairs: Pairs, failures: PairFailures) -> Pairs:
    """Return the pairs and padded rows for which the step's filter is true (J11)."""
    if step.filter is None:
        return pairs
    return pairs.where(filter_mask(step.filter, lambda ref: resolve(step, pairs, ref), len(pairs), failures))


def filter_mask(
    condition: Expression, columns: Callable[[ColumnRef], pa.Array], count: int, failures: PairFailures | None
) -> np.ndarray:
    """bool[count]: the rows for which a step's condition is true (J11, G7). `failures` counts the other rows (None:
    they are not emitted in any case)."""
    mask = condition.mask(columns, count)
    passes = np.array(mask.values.to_numpy(zero_copy_only=False))
    if failures is not None:
        failures.count += len(mask.failed)
        failures.filtered += count - int(passes.sum()) - len(mask.failed)
    return passes


def _window_column(step: StepSpec, pairs: Pairs, name: str, kind: pa.DataType) -> pa.Array:
    """One of RANK_COLUMNS of the pairs, or WINDOW_TIME, as values of this type."""
    if pairs.windows is not None and name == WINDOW_TIME:
        times = pa.array(pairs.windows[RANK_COLUMNS.index(WINDOW_COLUMNS[1])] - 1)
    elif pairs.windows is not None:
        times = pa.array(pairs.windows[RANK_COLUMNS.index(name)])
    else:  # of a step before
        times = _column(step, pairs, LEFT, name)
    if pa.types.is_timestamp(kind):  # a window reaches further than its rows
        lowest, highest = (pa.scalar(time, pa.int64()) for time in (EVENT_TIME_MIN, EVENT_TIME_MAX))
        times = pc.max_element_wise(lowest, pc.min_element_wise(highest, times, skip_nulls=False), skip_nulls=False)
    return times.cast(kind)


def _column(step: StepSpec, pairs: Pairs, side: int, name: str) -> pa.Array:
    rows, spec = pairs.side(side), step.sides[side]
    if rows is None:
        return pa.nulls(len(pairs), spec.intake.schema.field(name).type)
    return gather(spec, rows, name)


# --- the order of a trace's rows --------------------------------------------------------------------------------------


def _with_order_columns(rows: pa.RecordBatch, pairs: Pairs, arrived: int | None) -> pa.RecordBatch:
    """Add ORDER_COLUMNS. In matches and rows padded at once the row of side `arrived` arrived last; of a closing
    (None), a pair takes its left row's place."""
    count = len(pairs)
    phase, ts, side = ARRIVAL, np.zeros(count, dtype=np.int64), arrived
    if side is None:
        side = LEFT if pairs.left is not None else RIGHT
        closed = pairs.side(side)
        assert closed is not None, "there is a row on one side at least"
        phase, ts = CLOSING, closed.numbers(TS)
    window = pairs.windows[0] if pairs.windows is not None else np.zeros(count, dtype=np.int64)
    partition_offsets = [
        *_partition_and_offset(pairs.side(side), count),
        *_partition_and_offset(pairs.side(1 - side), count),
    ]
    order = [np.full(count, phase), ts, np.full(count, side), *partition_offsets, window]
    arrays = [*rows.columns, *(pa.array(values.astype(np.int64)) for values in order)]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, *ORDER_COLUMNS])


def _partition_and_offset(rows: Selection | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    if rows is None:
        return np.full(count, -1), np.full(count, -1)
    return rows.numbers(PARTITION), rows.numbers(OFFSET)


# --- rows that arrive -------------------------------------------------------------------------------------------------


def drop_late(rows: pa.RecordBatch | None, accept_from: int | None) -> tuple[pa.RecordBatch | None, int]:
    """Return the rows that are not late (None: no rows), and the number of late ones. `accept_from` is the side's in
    `StepWork`."""
    if rows is None or accept_from is None:
        return rows, 0
    accepted = rows.column(TS).to_numpy() >= accept_from
    late = len(accepted) - int(accepted.sum())
    if late == len(accepted):
        return None, late
    return (rows.filter(pa.array(accepted)) if late else rows), late


def split_joinable(side: SideSpec, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Split rows into those that can match and those that cannot (J4); only preserved sides have the latter."""
    if not side.preserved:
        return rows, rows.slice(0, 0)
    joinable = rows.column(JOINABLE)
    return rows.filter(joinable), rows.filter(pc.invert(joinable))


def as_segment(side: SideSpec, rows: pa.RecordBatch, flagged: np.ndarray | None = None) -> pa.RecordBatch:
    """Return prepared rows that can match, with the columns of the side's segments. `flagged` is bool[n] (None: no row
    is)."""
    flags = pa.array(flagged if flagged is not None else np.zeros(rows.num_rows, dtype=bool))
    schema = side.segment_schema()
    columns = [flags if field == FLAG_FIELD else rows.column(field.name) for field in schema]
    return pa.record_batch(columns, schema=schema)


def run_to_add(side: SideSpec, rows: pa.RecordBatch) -> Run | None:
    """Return prepared rows that can match, as a sorted run of the side's segments without flagged rows. None: no
    rows."""
    return Run.sort(as_segment(side, rows)) if rows.num_rows else None


# --- stored rows that replace each other: a replaced one is flagged, and has left the state ---------------------------


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """n live rows in one `batch`. `run` and `row` (int64[n] each) say where each is stored."""

    batch: pa.RecordBatch
    run: np.ndarray
    row: np.ndarray


class ReplaceableRows:
    """The live rows of a shard. Those before `since` were evicted in an earlier epoch (None: none was). The event time
    of a row is that in `$ts`."""

    def __init__(self, state_runs: Sequence[StateRun], since: int | None, schema: pa.Schema) -> None:
        self._state_runs, self._schema = state_runs, schema
        self._live = [~run.flags for run in state_runs]
        self._removed = [np.zeros(len(run.flags), dtype=bool) for run in state_runs]
        self.forget(since)

    def forget(self, before: int | None) -> None:
        """Drop the rows before this time."""
        if before is not None:
            self._live = [live & (run.run.ts >= before) for run, live in self._runs()]

    def where(self, chosen: Callable[[pa.RecordBatch], np.ndarray]) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Yield batches of n rows with bool[n]: which of them are live and chosen."""
        for run, live in self._runs():
            yield run.run.batch, live & chosen(run.run.batch)

    def with_hashes(self, hashes: np.ndarray, times: tuple[int, int] | None = None) -> GatheredRows:
        """Return the rows of keys with these hashes (uint64, sorted, distinct), from the first to the last of the
        times."""
        rows, batches = list[np.ndarray](), list[pa.RecordBatch]()
        for state_run, live in self._runs():
            run = state_run.run
            chosen = live if times is None else live & (run.ts >= times[0]) & (run.ts <= times[1])
            if len(hashes) * _RATHER_LOOK_UP < len(run):
                numbers = rows_with_hashes(run.hash, hashes)
                numbers = numbers[chosen[numbers]]
            else:
                numbers = np.flatnonzero(chosen)
                nearest = np.minimum(np.searchsorted(hashes, run.hash[numbers]), len(hashes) - 1)
                numbers = numbers[hashes[nearest] == run.hash[numbers]]
            rows.append(numbers)
            if len(numbers):
                batches.append(run.batch.take(pa.array(numbers)))
        batch = concat(batches) if batches else pa.RecordBatch.from_pylist([], schema=self._schema)
        run_numbers = np.repeat(np.arange(len(rows)), [len(numbers) for numbers in rows])
        return GatheredRows(batch, run_numbers, np.concatenate([np.empty(0, dtype=np.int64), *rows]))

    def remove(self, gathered: GatheredRows, chosen: np.ndarray) -> None:
        """Remove the chosen ones (bool[n])."""
        for number in range(len(self._state_runs)):
            rows = gathered.row[chosen & (gathered.run == number)]
            self._removed[number][rows] = True
            self._live[number][rows] = False

    def flags(self) -> dict[str, np.ndarray]:
        """By segment, the numbers of the rows removed in this epoch."""
        runs = zip(self._state_runs, self._removed, strict=True)
        return {run.segment: run.first + np.flatnonzero(removed) for run, removed in runs if removed.any()}

    def finished(self) -> frozenset[str]:
        return frozenset(run.segment for run, live in self._runs() if not live.any())

    def _runs(self) -> list[tuple[StateRun, np.ndarray]]:
        return list(zip(self._state_runs, self._live, strict=True))
