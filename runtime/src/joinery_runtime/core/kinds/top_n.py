"""Ranks the rows of one side: of each key and window, emits those that come first in an order (rules R1 to R11).

A row is kept in the pane (`Windows.pane`) that holds its event time. A window holds a pane as a whole or not at all.
So if a job emits n rows, a row that n others of its key and pane precede is never one of the first of a window, and the
state has at most n rows of each key and pane, however epochs were cut. No I/O, no clock, no randomness: the same work
gives the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall, Groups, accumulator
from joinery_runtime.core.kinds.aligned import ByWindows, LastEnd, Windows
from joinery_runtime.core.kinds.base import Ranking
from joinery_runtime.core.kinds.cells import Bounds, Numbers, concat_selections, cut_by_hash, cut_by_window, within
from joinery_runtime.core.kinds.folding import misfit_text
from joinery_runtime.core.kinds.grouping import changes, order_by_key
from joinery_runtime.core.kinds.ordered_values import OrderedValue, SortedRows, SortKey
from joinery_runtime.core.kinds.rows import (
    PairFailures,
    Pairs,
    ReplaceableRows,
    Selection,
    apply_filter,
    as_segment,
    cut_pairs,
    gather,
    project,
    tie_breakers,
)
from joinery_runtime.core.pipeline.expression import ColumnRef, Expression
from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.spec import Retention, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StepResult, StepRun, StepWork, UnfitRows
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.segment import Run, concat
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow
from joinery_runtime.job.kinds.ranking import RankingKind, TopN
from joinery_runtime.job.model.references import RANK_COLUMNS


@dataclass(frozen=True, slots=True)
class FirstRows(ByWindows, Ranking):
    """Emits the first `rows` rows of each key and window. A row of the state is one of the first of its key and pane; a
    flagged row is one that later rows have displaced, and has left.

    The horizon is `wm - allowedLateness`, with the watermark that the step before hands on (N3), or the input's own. A
    window is emitted, once, by the epoch whose horizon reaches its end."""

    written_as: ClassVar[tuple[type[RankingKind], ...]] = (TopN,)

    windows: Windows
    rows: int | None
    order: tuple[SortKey, ...]
    totals: tuple[AggregateCall, ...] = ()
    ordered: tuple[OrderedValue, ...] = ()
    computed: tuple[tuple[str, Expression], ...] = ()
    """The expressions whose values totals are of, by their texts."""
    allowed_lateness: int = 0
    late_to_dead_letters: bool = False
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept_for = self.windows.size + self.allowed_lateness
        retention = Retention(LastEnd(self.windows), "r4", kept_for_ms=kept_for, inclusive=True)
        object.__setattr__(self, "retention", (retention,))

    @classmethod
    def of(
        cls,
        ranking: RankingKind,
        expressions: tuple[Expression, ...],
        of_windows: AlignedWindow | None = None,
        totals: tuple[AggregateCall, ...] = (),
        /,
    ) -> Self:
        written = cast(TopN, ranking)
        by_path = dict(zip(written.expressions, expressions, strict=True))
        order = tuple(SortKey.of(item, by_path[path]) for path, item in written.order_by_path.items())
        calls = {call.name: call for call in totals}
        ordered = tuple(
            OrderedValue(
                total.function,
                total.as_,
                tuple(SortKey.of(item, by_path[path]) for path, item in own.items()) or order,
                total.value,
                total.buckets or total.offset or 1,
                calls.pop(total.as_, None),
                total.frame == "rows",
            )
            for total, own in written.ordered_totals
        )
        windows = Windows.of(written.form if of_windows is None else of_windows)
        return cls(
            replace(windows, of_windows=of_windows is not None),
            written.rows,
            order,
            tuple(calls.values()),
            ordered,
            tuple(
                {
                    total.expression: by_path[f"totals[{at}].expression"]
                    for at, total in enumerate(written.totals or ())
                    if total.expression is not None
                }.items()
            ),
            allowed_lateness=written.allowed_lateness,
            late_to_dead_letters=written.late_data == "dlq",
        )

    @property
    def calls(self) -> tuple[AggregateCall, ...]:
        """The totals over all rows of a window, and the running ones, which may not fit their types."""
        return (*self.totals, *(value.call for value in self.ordered if value.call is not None))

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        (side,), (state_runs,), (horizon,), (rows,) = step.sides, work.state_runs, work.horizons, work.arrivals
        since = None if horizon.previous is None else self.windows.open_from(horizon.previous)
        stored = ReplaceableRows(state_runs, since, side.segment_schema())
        output, late, added = _RankedOutput(step, self.calls), 0, None
        yield from self._close(step, stored, horizon, output, ordered=work.ordered)
        if horizon.current is not None:
            open_from = self.windows.open_from(horizon.current)
            stored.forget(open_from)
            if rows is not None:
                on_time = rows.filter(pa.array(rows.column(TS).to_numpy() >= open_from))
                late, rows = rows.num_rows - on_time.num_rows, on_time
        if rows is not None and rows.num_rows:
            added = self._add(step, as_segment(side, rows), stored, output.failures)
        return StepResult(
            added=(added,),
            flags=(stored.flags(),),
            finished=stored.finished(),
            dropped=({"late": late} if late else {},),
            lookups=(0 if rows is None else rows.num_rows,),
            failed=output.failures.count,
            filtered=output.failures.filtered,
            unfit=tuple(output.unfit),
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return closing or arrived[side]

    # --- ranking ------------------------------------------------------------------------------------------------------

    def _close(
        self, step: StepSpec, stored: ReplaceableRows, horizon: Horizon, output: _RankedOutput, *, ordered: bool
    ) -> Iterator[pa.RecordBatch]:
        """Emit the windows that the horizon closes."""
        closing = self.windows.closing(horizon)
        if closing is None:
            return

        def is_in_one(rows: pa.RecordBatch) -> np.ndarray:
            first, last = within(self.windows.numbers_of(rows.column(TS).to_numpy()), closing)
            return np.asarray(first <= last)

        (side,) = step.sides
        selections = [Selection(rows, np.flatnonzero(chosen)) for rows, chosen in stored.where(is_in_one)]
        for piece, _ in cut_by_hash((selections, [])):
            rows = concat_selections(side, piece)
            ranked = _RankedRows(self, side, rows)
            bounds = within(self.windows.numbers_of(rows.column(TS).to_numpy()), closing)
            for numbers in cut_by_window([bounds]):
                for pairs in cut_pairs(step, ranked.first_of_windows(bounds, numbers)):
                    yield project(step, output.emitted(pairs), output.failures, ordered=ordered, arrived=None)

    def _add(
        self, step: StepSpec, arrivals: pa.RecordBatch, stored: ReplaceableRows, failures: PairFailures
    ) -> Run | None:
        """Take in those arrivals that are among the first of their key and pane, and remove the rows that they
        displace."""
        (side,) = step.sides
        ts = arrivals.column(TS).to_numpy()
        times = int(self.windows.pane_starts(ts).min()), int(self.windows.pane_ends(ts).max()) - 1
        gathered = stored.with_hashes(np.unique(arrivals.column(HASH).to_numpy()), times)
        before = gathered.batch.num_rows
        ranked = _RankedRows(self, side, concat([gathered.batch, arrivals]))
        failures.count += int((ranked.failed >= before).sum())
        first = ranked.first_of_panes()
        stored.remove(gathered, ~first[:before])
        added = arrivals.filter(pa.array(first[before:]))
        return Run.sort(added) if added.num_rows else None


_MISFIT = "$misfit."
"""Begins the name of the column that says why a total does not fit."""


class _RankedOutput:
    """Decides which ranked rows are emitted. `failures` counts others, and `unfit` are those that need a total which
    does not fit its type (R9)."""

    def __init__(self, step: StepSpec, totals: Sequence[AggregateCall]) -> None:
        self._step, self._totals = step, totals
        self._in_condition = {ref.column for ref in step.filter.columns} if step.filter is not None else set()
        self._in_row = {output.step_column for output in step.output} | {
            ref.column for output in step.output if output.expression is not None for ref in output.expression.columns
        }
        self.failures, self.unfit = PairFailures(), list[UnfitRows]()

    def emitted(self, pairs: Pairs) -> Pairs:
        """Return the rows that are emitted. A row whose condition reads a total that does not fit is not: nobody can
        tell whether the row meets it."""
        undecided = self._misfits(pairs, self._in_condition)
        passed = apply_filter(self._step, pairs.where(~undecided), self.failures)
        unfit = self._misfits(passed, self._in_row)
        self._note(pairs.where(undecided))
        self._note(passed.where(unfit))
        return passed.where(~unfit)

    def _misfits(self, pairs: Pairs, names: Collection[str | None]) -> np.ndarray:
        """bool[n]: the rows for which a total of these names does not fit."""
        rows = np.zeros(len(pairs), dtype=bool)
        for call in self._totals:
            if call.name in names and _MISFIT + call.name in pairs.totals:
                rows |= pairs.totals[_MISFIT + call.name].is_valid().to_numpy(zero_copy_only=False)
        return rows

    def _note(self, pairs: Pairs) -> None:
        if not len(pairs):
            return
        (side,) = self._step.sides
        assert pairs.left is not None, "ranked rows are of one side"
        assert pairs.windows is not None, "ranked rows have windows"
        columns = {name: gather(side, pairs.left, name) for name in side.intake.stored if name not in RANK_COLUMNS}
        columns |= {name: pa.array(values) for name, values in zip(RANK_COLUMNS, pairs.windows, strict=True)}
        columns |= {name: values for name, values in pairs.totals.items() if not name.startswith(_MISFIT)}
        texts = [values.to_pylist() for name, values in pairs.totals.items() if name.startswith(_MISFIT)]
        reasons = ["; ".join(filter(None, of_row)) for of_row in zip(*texts, strict=True)]
        self.failures.count += len(pairs)
        self.unfit.append(UnfitRows(pa.record_batch(columns), side.intake.keys, reasons))


class _RankedRows:
    """Rows of a side with what decides their order. `failed` are the numbers of those for which some of it could not be
    computed, and is NULL."""

    def __init__(self, kind: FirstRows, side: SideSpec, rows: pa.RecordBatch) -> None:
        self._kind, self._side, self._rows = kind, side, rows
        everything = Selection(rows, np.arange(rows.num_rows))

        def column(ref: ColumnRef) -> pa.Array:
            return gather(side, everything, side.intake.name_of(ref))

        failed = set[int]()

        def evaluated(expression: Expression) -> pa.Array:
            values = expression.evaluate(column, rows.num_rows)
            failed.update(values.failed)
            return values.values

        def ranks_by(order: Sequence[SortKey]) -> list[np.ndarray]:
            return [key.ranks(evaluated(key.expression)) for key in order]

        self._hashes, self._ts = rows.column(HASH).to_numpy(), rows.column(TS).to_numpy()
        self._keys = [gather(side, everything, name) for name in side.intake.keys]
        self._tie_breakers = [self._ts, *tie_breakers(side, rows)]
        self._sorted_by = [*ranks_by(kind.order), *self._tie_breakers]
        self._ordered_by = {value.name: ranks_by(value.order) for value in kind.ordered}
        self._computed = {text: evaluated(expression) for text, expression in kind.computed}
        self.failed = np.array(sorted(failed), dtype=np.int64)

    def first_of_panes(self) -> np.ndarray:
        """bool[n]: the rows that are among the first of their key and pane; all, if there are values over all
        rows."""
        if self._kind.rows is None or self._kind.totals or self._kind.ordered:
            return np.ones(self._rows.num_rows, dtype=bool)
        panes = self._kind.windows.pane_starts(self._ts)
        order, numbers, _ = self._rank(np.arange(self._rows.num_rows), panes, self._sorted_by)
        first = np.zeros(len(order), dtype=bool)
        first[order] = numbers <= self._kind.rows
        return first

    def first_of_windows(self, bounds: Bounds, numbers: Numbers) -> Pairs:
        """Return the first rows of each key in each of the windows `numbers`, with the times of the window and the
        number of the row. `bounds` are the first and the last window of each row."""
        member, window = self._kind.windows.expand(within(bounds, numbers))
        order, row_numbers, starts = self._rank(member, window, self._sorted_by)
        totals = self.totals_of(member[order], Groups(starts, len(order))) if len(order) else {}
        for value in self._kind.ordered if len(order) else ():
            totals |= {name: values.take(pa.array(order)) for name, values in self.ordered(value, member, window)}
        chosen = np.ones(len(order), dtype=bool) if self._kind.rows is None else row_numbers <= self._kind.rows
        totals = {name: values.filter(pa.array(chosen)) for name, values in totals.items()}
        order, row_numbers = order[chosen], row_numbers[chosen]
        times = self._kind.windows.starts(window[order]), self._kind.windows.ends(window[order])
        in_years = (np.clip(time, EVENT_TIME_MIN, EVENT_TIME_MAX) for time in times)
        return Pairs(Selection(self._rows, member[order]), None, (*in_years, row_numbers), totals)

    def totals_of(self, member: np.ndarray, groups: Groups) -> dict[str, pa.Array]:
        """Return the value of each total for each of the rows `member` (int64[m]), which `groups` are made of. Of a
        total that does not fit its type for some of them, a further column has the reasons."""
        totals = dict[str, pa.Array]()
        for call in self._kind.totals:
            accumulated = accumulator(call)
            values = self._values(call.column, member) if call.column else None
            states = accumulated.fold(values, self._ts[member], groups)
            totals[call.name] = accumulated.result(states).take(pa.array(groups.number))
            if misfits := accumulated.find_misfits(states):
                reasons = [misfit_text(call, misfits[n]) if n in misfits else None for n in range(groups.count)]
                totals[_MISFIT + call.name] = pa.array(reasons, pa.string()).take(pa.array(groups.number))
        return totals

    def ordered(self, value: OrderedValue, member: np.ndarray, group: np.ndarray) -> Iterator[tuple[str, pa.Array]]:
        """Yield the column that has the value of each of the rows `member` (int64[m]) in its key and `group`
        (int64[m]), and for a running total that does not fit its type for some of them, one that has the reasons."""
        ordered_by = self._ordered_by[value.name]
        order, _, starts = self._rank(member, group, [*ordered_by, *self._tie_breakers])
        begins = np.zeros(len(order), dtype=bool)
        begins[starts] = True
        for numbers in ordered_by:
            begins |= changes(numbers[member][order])
        rows = SortedRows(starts, begins)
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        values = None if value.column is None else self._values(value.column, member[order])
        if value.call is not None:
            times = self._ts[member[order]]
            totals, misfits = rows.running_totals(value.call, values, times, by_rows=value.by_rows)
            yield value.name, totals.take(pa.array(position))
            if misfits:
                reasons = [misfit_text(value.call, misfits[n]) if n in misfits else None for n in position.tolist()]
                yield _MISFIT + value.name, pa.array(reasons, pa.string())
        elif values is not None:
            read = rows.values_of_others(value.function, values, value.distance)
            yield value.name, read.take(pa.array(position))
        else:
            yield value.name, rows.ranks(value.function, value.distance).take(pa.array(position))

    def _values(self, name: str, member: np.ndarray) -> pa.Array:
        """Return the values of a column, or of an expression that totals are of, of the rows `member` (int64[m])."""
        if name in self._computed:
            return self._computed[name].take(pa.array(member))
        return gather(self._side, Selection(self._rows, member), name)

    def _rank(
        self, member: np.ndarray, group: np.ndarray, ranks: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return an order (int64[m]) of the rows `member` (int64[m]) by key, `group` (int64[m]) and their `ranks`,
        int64[m]: the number of each in its key and group, from 1 on, in this order, and where keys and groups begin in
        it."""
        keys = [key.take(pa.array(member)) for key in self._keys]
        sorted_by = (values[member] for values in ranks)
        order, begins = order_by_key(self._hashes[member], keys, group, *sorted_by)
        starts = np.flatnonzero(begins | changes(group[order]))
        numbers = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order)))) + 1
        return order, numbers, starts
