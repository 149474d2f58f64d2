"""The rows in which sessions are kept: open ones, and marks of those that reached the cap (S2).

`$ts` is the event time of a session's last row, so that segments expire by it; `$partition` and `$offset` are the place
of its first row. `$start` is the event time of the first row. `$emitted`: what the row says has gone out. `$forced`: it
is a mark. After them come the group columns, then the accumulators of the aggregates (empty in marks).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from joinery_runtime.core.aggregates import Accumulator, accumulator
from joinery_runtime.core.columns import ENGINE_FIELDS, MARK_FIELD, SESSION_FIELDS
from joinery_runtime.core.spec import Aggregate, Intake


def accumulators(aggregates: Sequence[Aggregate]) -> dict[tuple[str, ...], tuple[Aggregate, Accumulator]]:
    """What is accumulated, by the names of its columns: equal aggregates share them."""
    found = ((aggregate, accumulator(aggregate)) for aggregate in aggregates)
    return {tuple(field.name for field in each.fields): (aggregate, each) for aggregate, each in found}


def state_schema(intake: Intake, aggregates: Sequence[Aggregate]) -> pa.Schema:
    groups = [intake.schema.field(name) for name in intake.keys]
    added = [field for _, each in accumulators(aggregates).values() for field in each.fields]
    return pa.schema([*ENGINE_FIELDS, MARK_FIELD, *SESSION_FIELDS, *groups, *added])
