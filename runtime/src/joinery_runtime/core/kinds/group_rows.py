"""Makes the output rows of an aggregate's windows or sessions (G4, S6), with `having` (G7) and expressions (G11), and
finds the rows with a value that does not fit (S7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.folding import Folding
from joinery_runtime.core.kinds.grouping import with_one_zero
from joinery_runtime.core.kinds.rows import PairFailures, filter_mask
from joinery_runtime.core.pipeline.expression import ColumnRef
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import UnfitRows
from joinery_runtime.job.model.references import RETRACTED, WINDOW_COLUMNS, WINDOW_START, WINDOW_TIME

Values = Mapping[str, pa.Array]
"""The columns of a step, by name: groups, columns of the window, aggregates."""


class GroupOutput:
    """Makes output rows from rows of the state. `failures` counts those that are not emitted, or not whole. `unfit` are
    those with a value that the row needs and that does not fit. Where rows are only appended, they are not emitted. A
    row of a changelog is emitted with NULL in place of the value, because it has to replace the row before."""

    def __init__(self, step: StepSpec, aggregates: Sequence[AggregateCall]) -> None:
        self._step, self._folding = step, Folding(aggregates)
        self._keys = step.sides[0].intake.keys
        self._names = [call.name for call in aggregates]
        self._in_condition = {ref.column for ref in step.filter.columns} if step.filter is not None else set()
        self._in_row = {output.step_column for output in step.output} | {
            ref.column for output in step.output if output.expression is not None for ref in output.expression.columns
        }
        self.failures, self.unfit = PairFailures(), list[UnfitRows]()

    def group_values(self, states: pa.RecordBatch) -> Values:
        """Return the groups of rows of the state. A row of the state has the zero of one of its records, and epochs and
        shards decide which one."""
        return {name: with_one_zero(states.column(name)) for name in self._keys}

    def aggregate_values(self, states: pa.RecordBatch) -> Values:
        """Return the aggregates of rows of the state."""
        return dict(zip(self._names, self._folding.results(states), strict=True))

    def are_emitted(self, values: Values, states: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the rows that are emitted. `values` are those of n rows of the state."""
        return self._judge(values, self._folding.find_misfits(states), states.num_rows, None)[0]

    def make_rows(
        self, values: Values, states: pa.RecordBatch, *, retracted: bool = False
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the output rows of n rows of the state, and bool[n]: which of them are emitted. Rows that are taken
        back (`retracted`) were judged and counted when they were emitted."""
        passes = fits = np.ones(states.num_rows, dtype=bool)
        if not retracted:
            misfits = self._folding.find_misfits(states)
            passes, unfit = self._judge(values, misfits, states.num_rows, self.failures)
            if unfit.any():
                self.failures.count += int(unfit.sum())
                names = [name for name in values if name not in _NOT_SHOWN]
                rows = pa.record_batch([values[name].filter(pa.array(unfit)) for name in names], names=names)
                reasons = tuple(
                    "; ".join(by_row[number] for by_row in misfits.values() if number in by_row)
                    for number in np.flatnonzero(unfit).tolist()
                )
                self.unfit.append(UnfitRows(rows, self._keys, reasons))
            fits = passes & ~unfit
        columns = self._columns(values, fits & (not retracted))
        return pa.record_batch(columns, schema=self._step.output_schema()), passes

    def lost_values(self, states: pa.RecordBatch, starts: np.ndarray) -> UnfitRows | None:
        """Return the first of n new rows of the state that has lost values. `starts` (int64[n]) are the first times of
        their panes or sessions."""
        first = self._folding.first_lost(states)
        if first is None:
            return None
        row, reason = first
        groups = self.group_values(states.slice(row, 1))
        return UnfitRows(
            pa.record_batch({**groups, WINDOW_START: pa.array(starts[row : row + 1])}), self._keys, (reason,)
        )

    def _judge(
        self, values: Values, misfits: Mapping[str, Mapping[int, str]], count: int, failures: PairFailures | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return bool[n] twice: the rows that are emitted, and those that do not fit. `failures` counts rows of which
        the condition is not true."""
        undecided, unfit = (self._rows_with(misfits, names, count) for names in (self._in_condition, self._in_row))
        passes = ~undecided
        if self._step.filter is not None:
            judged = {name: value.filter(pa.array(passes)) for name, value in values.items()}
            passes[passes] = filter_mask(self._step.filter, lambda ref: judged[ref.column], int(passes.sum()), failures)
        unfit = undecided | (unfit & passes)
        return passes if self._step.changelog_key is not None else passes & ~unfit, unfit

    @staticmethod
    def _rows_with(misfits: Mapping[str, Mapping[int, str]], names: Collection[str | None], count: int) -> np.ndarray:
        """bool[n]: the rows in which an aggregate of these names does not fit."""
        rows = np.zeros(count, dtype=bool)
        for name in misfits.keys() & names:
            rows[list(misfits[name])] = True
        return rows

    def _columns(self, values: Values, counted: np.ndarray) -> list[pa.Array]:
        """Return the columns of `step.output_schema()`. An expression that cannot be computed for a row is NULL there
        (G11), and `failures` counts the row if `counted` (bool[n]) does."""

        def column(ref: ColumnRef) -> pa.Array:
            value = values[ref.column]
            return value.cast(self._step.window_times) if ref.column in WINDOW_COLUMNS else value

        columns, failed = list[pa.Array](), set[int]()
        for output in self._step.output:
            if output.expression is None:
                columns.append(values[output.step_column or ""].cast(output.type))
                continue
            evaluated = output.expression.evaluate(column, len(counted))
            failed |= evaluated.failed.keys()
            columns.append(evaluated.values.cast(output.type))
        self.failures.count += int(counted[sorted(failed)].sum())
        return columns


_NOT_SHOWN = {RETRACTED, WINDOW_TIME}
