"""The interface between session aggregates and the kernel: columns in the state, and three functions over groups.

| function | takes | gives |
|---|---|---|
| `count` | no column | int64 |
| `count_col`, `count_distinct` | every type | int64 |
| `sum` | int32, int64 | int64 |
| | float, double | double |
| | decimal(p, s) | decimal(38, s) |
| `avg` | int32, int64, float, double | double |
| | decimal(p, s) | decimal(P, S): P = min(38, p + 4), S = min(s + 4, P) |
| `min`, `max` | every type but boolean and binary | the same |
| `first`, `last` | every type | the same |
| `min_by`, `max_by` | every type, by every type but boolean and binary | the same |
| `var_pop`, `var_samp`, `stddev_pop`, `stddev_samp` | numbers | double |
| `approx_percentile`, `percentile_cont`, `percentile_disc`, `median` | numbers | double |
| `bool_and`, `bool_or` | boolean | boolean |
| `count_if` | boolean | int64 |
| `array_agg` | every type | string, which is a JSON array |
| `string_agg` | string | string |

NaN is one value, greater than every number, and -0.0 is 0.0, as in Postgres and Spark. Nothing overflows a state:
whether a value fits its type is asked of the result alone, so that the order of rows does not matter
(docs/decisions/0126-a-value-that-does-not-fit-is-a-dead-letter.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.job.kinds.session.sessions import arguments_text


def condition_column(condition: str) -> str:
    """Return the name of the column that says which rows meet a condition of aggregates."""
    return f"$where({condition})"


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of a session (S7): `function` over `column` of type `type` (None: it counts rows), called `name` in
    the output. `limit`: the most values that the state lists; None: it lists none, or is a sketch. `by`, of type
    `by_type`, is the second column of `min_by` and `max_by`; `share` is a percentile's, `separator` that of a
    `string_agg`. `condition` is the text of a condition that rows must meet, whose value `condition_column` has; empty
    for none."""

    function: str
    name: str
    column: str = ""
    type: pa.DataType | None = None
    limit: int | None = None
    by: str = ""
    by_type: pa.DataType | None = None
    share: Fraction = Fraction(1, 2)
    separator: str | None = None
    condition: str | None = None

    @property
    def condition_column(self) -> str:
        return condition_column(self.condition) if self.condition is not None else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the aggregate reads."""
        return tuple(name for name in (self.column, self.by, self.condition_column) if name)

    @property
    def arguments(self) -> str:
        """What the columns of the state are named after, beside the function: `Aggregate.arguments`."""
        return arguments_text([name for name in (self.column, self.by) if name], self.condition)

    def values(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return what `fold` takes of these rows: None for a count of all rows; of two columns a struct, NULL if either
        is. Rows that do not meet the condition are NULL."""
        condition = rows.column(self.condition_column) if self.condition is not None else None
        if not self.column:
            return None if condition is None else pc.if_else(condition, condition, None)
        value = rows.column(self.column)
        if not self.by:
            return value if condition is None else pc.if_else(condition, value, pa.scalar(None, value.type))
        by = rows.column(self.by)
        absent = pc.or_(value.is_null(), by.is_null())
        if condition is not None:
            absent = pc.or_(absent, pc.invert(condition.fill_null(False)))
        return pa.StructArray.from_arrays([value, by], ["value", "by"], mask=absent)


@dataclass(frozen=True, slots=True)
class Groups:
    """n rows in m > 0 groups, none of them empty. `starts` (int64[m], ascending, beginning with 0) are the positions
    where groups begin. Rows of a group are consecutive and in order of (event time, arrival)."""

    starts: np.ndarray
    rows: int

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> np.ndarray:
        """int64[m]: the number of rows of each group."""
        return np.diff(self.starts, append=self.rows)

    @property
    def number(self) -> np.ndarray:
        """int64[n]: the group of each row."""
        return np.repeat(np.arange(self.count), self.sizes)


@dataclass(frozen=True, slots=True)
class Present:
    """The n values that are not NULL, and the k groups that have one. `groups` gives where each begins among `values`.
    `rows` (int64[n] or slice) gives the values' positions among all rows. `group_numbers` (int64[k]) gives the number
    of each of the k among all `group_count` groups."""

    values: pa.Array
    rows: np.ndarray | slice
    groups: Groups
    group_numbers: np.ndarray
    group_count: int

    @classmethod
    def of(cls, values: pa.Array, groups: Groups) -> Present:
        if not values.null_count:
            return cls(values, slice(None), groups, np.arange(groups.count), groups.count)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.add.reduceat(valid, groups.starts, dtype=np.int64)
        group_numbers = np.flatnonzero(sizes)
        starts = np.cumsum(sizes[group_numbers]) - sizes[group_numbers]
        non_null = values.drop_null()
        return cls(non_null, np.flatnonzero(valid), Groups(starts, len(non_null)), group_numbers, groups.count)

    def scatter(self, values: pa.Array) -> pa.Array:
        """Spread k values, one per group that has any, over all groups: NULL for the others."""
        if len(self.group_numbers) == self.group_count:
            return values
        at = np.zeros(self.group_count, dtype=np.int64)
        at[self.group_numbers] = np.arange(len(self.group_numbers))
        absent = np.ones(self.group_count, dtype=bool)
        absent[self.group_numbers] = False
        return values.take(pa.array(at, mask=absent))


States = tuple[pa.Array, ...]  # one array per field of an accumulator, with one value per group


class Accumulator(Protocol):
    """One aggregate's mergeable state (S7). No I/O, no clock, no randomness. `fold` and `merge` never fail."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of the state. Names begin with `$` and give function and column (`$sum(amount)`,
        `$avg(amount).count`), so that equal aggregates share columns and their order does not matter."""
        ...

    @property
    def result_type(self) -> pa.DataType: ...

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        """Compute the states of groups of rows. `values` is what `AggregateCall.values` gives; NULLs are skipped.
        `times` are event times in milliseconds (int64[n])."""
        ...

    def merge(self, states: States, groups: Groups) -> States:
        """Merge each group of states into one. States of a group are in order of arrival: of two `first` or `last`
        values with the same time, the one in the earlier state arrived earlier."""
        ...

    def result(self, states: States) -> pa.Array:
        """Return the output value of each state, of type `result_type`. Without any value it is NULL, or 0 for counts;
        if it does not fit, it is NULL."""
        ...

    def find_misfits(self, states: States) -> Mapping[int, str]:
        """Why the values of some states do not fit their type or the aggregate's `limit`, by the state's number."""
        return {}


@dataclass(frozen=True, slots=True)
class ValueAccumulator(Accumulator, ABC):
    """An Accumulator whose state is its result: it merges states just as it folds values."""

    name: str
    type: pa.DataType

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, self.type),)

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    @abstractmethod
    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        """As `Accumulator.fold`; `times` must not matter."""

    def merge(self, states: States, groups: Groups) -> States:
        return self.fold(states[0], np.empty(0), groups)

    def result(self, states: States) -> pa.Array:
        return states[0]


Make = Callable[[str, AggregateCall], Accumulator]  # from the name of its columns and the job's aggregate
