"""The rows in which sessions are kept: open ones, and marks of those that reached the cap (S2).

`$ts` is the event time of a session's last row, so that segments expire by it; `$partition` and `$offset` are the place
of its first row. `$start` is the event time of the first row. `$emitted`: what the row says has gone out. `$forced`: it
is a mark. After them come the group columns, then the accumulators of the aggregates (empty in marks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import Accumulator, GroupError, Groups, States, accumulator
from joinery_runtime.core.pipeline.spec import Aggregate, Intake
from joinery_runtime.core.table.columns import ENGINE_FIELDS, MARK_FIELD, SESSION_FIELDS

Names = tuple[str, ...]
_Named = tuple[Aggregate, Accumulator]


def state_schema(intake: Intake, aggregates: Sequence[Aggregate]) -> pa.Schema:
    groups = [intake.schema.field(name) for name in intake.keys]
    return pa.schema([*ENGINE_FIELDS, MARK_FIELD, *SESSION_FIELDS, *groups, *Folding(aggregates).fields])


class Folding:
    """All aggregates of a job; equal ones share their columns. Methods raise GroupError, whose facts say which
    aggregate it is."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self._each = [(of, accumulator(of)) for of in aggregates]
        self._columns: Mapping[Names, _Named] = {_names(found): (of, found) for of, found in self._each}

    @property
    def fields(self) -> list[pa.Field]:
        return [field for _, found in self._columns.values() for field in found.fields]

    @property
    def columns(self) -> list[str]:
        """The columns of rows that are aggregated."""
        return sorted({of.column for of, _ in self._columns.values() if of.column})

    def fold(self, rows: pa.RecordBatch, times: np.ndarray, groups: Groups) -> pa.RecordBatch:
        """The accumulators of groups of rows; `times` are event times, int64[n]."""
        made: list[pa.Array] = []
        for of, found in self._columns.values():
            with _telling(of):
                made += found.fold(rows.column(of.column) if of.column else None, times, groups)
        return pa.record_batch(made, schema=pa.schema(self.fields))

    def merge(self, states: pa.RecordBatch, groups: Groups) -> pa.RecordBatch:
        made: list[pa.Array] = []
        for names, (of, found) in self._columns.items():
            with _telling(of):
                made += found.merge(_states(states, names), groups)
        return pa.record_batch(made, schema=pa.schema(self.fields))

    def results(self, states: pa.RecordBatch) -> list[pa.Array]:
        """A column per aggregate, in the job's order."""
        return [found.result(_states(states, _names(found))) for _, found in self._each]


@contextmanager
def _telling(of: Aggregate) -> Iterator[None]:
    try:
        yield
    except GroupError as error:
        call = f"{of.function}({of.column})" if of.column else of.function
        raise GroupError(error.group, f"{call}, in the output as {of.name}: {error.facts}", error.todo) from None


def _names(of: Accumulator) -> Names:
    return tuple(field.name for field in of.fields)


def _states(batch: pa.RecordBatch, names: Names) -> States:
    return tuple(batch.column(name) for name in names)
