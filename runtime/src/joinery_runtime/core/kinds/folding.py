"""All aggregates of a job together: their columns in the state, folded from rows and merged, group by group (S7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates import Accumulator, AggregateCall, Groups, States, accumulator
from joinery_runtime.core.kinds.grouping import changes
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.core.table.columns import OFFSET, PARTITION

Names = tuple[str, ...]
_Named = tuple[AggregateCall, Accumulator]


def groups_of(number: np.ndarray) -> Groups:
    """One group for each distinct number; `number` is ascending."""
    return Groups(np.flatnonzero(changes(number)), len(number))


_ANY_ORDER = frozenset(
    {
        *("count", "count_col", "count_if", "count_distinct", "sum", "avg", "min", "max", "bool_and", "bool_or"),
        *("var_pop", "var_samp", "stddev_pop", "stddev_samp"),
        *("median", "percentile_cont", "percentile_disc", "approx_percentile"),
    }
)
"""The functions whose result does not depend on the order of rows."""


def in_defined_order(rows: pa.RecordBatch, aggregates: Sequence[AggregateCall]) -> pa.RecordBatch:
    """Return prepared rows of a step, in an order that does not depend on the shards that made them, as far as an
    aggregate asks for one: rows that one record has made share its place, and are in the order of the aggregated values
    (S8)."""
    ordered = [call.column for call in aggregates if call.function not in _ANY_ORDER]
    if not ordered:
        return rows
    names = dict.fromkeys([*ordered, *(call.column for call in aggregates if call.column)])
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


class Folding:
    """All aggregates of a job; equal ones share their columns."""

    def __init__(self, aggregates: Sequence[AggregateCall]) -> None:
        self._calls = [(call, accumulator(call)) for call in aggregates]
        self._columns: Mapping[Names, _Named] = {
            _names(aggregate): (call, aggregate) for call, aggregate in self._calls
        }

    @property
    def fields(self) -> list[pa.Field]:
        return [field for _, aggregate in self._columns.values() for field in aggregate.fields]

    @property
    def columns(self) -> list[str]:
        """The row columns that are aggregated."""
        return sorted({name for call, _ in self._columns.values() for name in call.columns})

    def fold(self, rows: pa.RecordBatch, times: np.ndarray, groups: Groups) -> pa.RecordBatch:
        """Accumulate groups of rows. `times` are their event times (int64[n])."""
        folded: list[pa.Array] = []
        for call, aggregate in self._columns.values():
            folded += aggregate.fold(call.values(rows), times, groups)
        return pa.record_batch(folded, schema=pa.schema(self.fields))

    def merge(self, states: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
        merged: list[pa.Array] = []
        for names, (_, aggregate) in self._columns.items():
            merged += aggregate.merge(_states(states, names), groups)
        return pa.record_batch(merged, schema=pa.schema(self.fields))

    def results(self, states: pa.RecordBatch) -> list[pa.Array]:
        """One result column per aggregate, in the job's order."""
        return [aggregate.result(_states(states, _names(aggregate))) for _, aggregate in self._calls]

    def find_misfits(self, states: pa.RecordBatch) -> Mapping[str, Mapping[int, str]]:
        """Why values do not fit, by the aggregate's name in the output and by row of the states."""
        misfits = (
            (call, aggregate.find_misfits(_states(states, _names(aggregate)))) for call, aggregate in self._calls
        )
        return {
            call.name: {row: misfit_text(call, reason) for row, reason in reasons.items()}
            for call, reasons in misfits
            if reasons
        }

    def first_lost(self, states: pa.RecordBatch) -> tuple[int, str] | None:
        """Return the first row of the states that has lost an aggregate's values because they are too many, and the
        reason."""
        for call, aggregate in self._columns.values():
            if call.limit is not None and states.column(aggregate.fields[0].name).null_count:
                row, reason = next(iter(aggregate.find_misfits(_states(states, _names(aggregate))).items()))
                return row, misfit_text(call, reason)
        return None


def misfit_text(call: AggregateCall, reason: str) -> str:
    """Say which aggregate does not fit, and why."""
    written = f"{call.function}({call.arguments})" if call.arguments else call.function
    return f"{written}, in the output as {call.name}: {reason}"


def _names(aggregate: Accumulator) -> Names:
    return tuple(field.name for field in aggregate.fields)


def _states(batch: pa.RecordBatch, names: Names) -> States:
    return tuple(batch.column(name) for name in names)


def with_order_columns(
    rows: pa.RecordBatch,
    groups: pa.RecordBatch,
    phase: int,
    start: np.ndarray,
    last: np.ndarray,
    *,
    retracted: bool = False,
) -> pa.RecordBatch:
    """Add ORDER_COLUMNS to the output rows of n sessions or windows, whose rows of the state are `groups`: by (`start`,
    place of the first record), a retraction before what replaces it, and the time of the last row. `start` and `last`
    are int64[n]."""
    zero = np.zeros(rows.num_rows, dtype=np.int64)
    partition, offset = (groups.column(name).to_numpy().astype(np.int64) for name in (PARTITION, OFFSET))
    order = [zero + phase, start, zero, partition, offset, zero + (0 if retracted else 1), zero, last]
    names = [*rows.schema.names, *ORDER_COLUMNS]
    return pa.RecordBatch.from_arrays([*rows.columns, *map(pa.array, order)], names=names)
