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

NaN is one value, greater than every number, and -0.0 is 0.0, as in Postgres and Spark. A sum that overflows its type is
an error even if later rows would bring it back into range, because the state has to hold it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of a session (S7): `function` over `column` of type `type` (None: it counts rows), called `name` in
    the output. `limit`: the most values that an exact `count_distinct` takes; None: it is a sketch."""

    function: str
    name: str
    column: str = ""
    type: pa.DataType | None = None
    limit: int | None = None


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
        """Spreads k values, one per group that has any, over all groups: NULL for the others."""
        if len(self.group_numbers) == self.group_count:
            return values
        at = np.zeros(self.group_count, dtype=np.int64)
        at[self.group_numbers] = np.arange(len(self.group_numbers))
        absent = np.ones(self.group_count, dtype=bool)
        absent[self.group_numbers] = False
        return values.take(pa.array(at, mask=absent))


class GroupError(Exception):
    """Raised when an aggregate has no value. `group` is the number of the group among those given. `facts` and `todo`
    are for the user."""

    def __init__(self, group: int, facts: str, todo: str) -> None:
        self.group, self.facts, self.todo = group, facts, todo
        super().__init__(group, facts, todo)


States = tuple[pa.Array, ...]  # one array per field of an accumulator, with one value per group


class Accumulator(Protocol):
    """One aggregate's mergeable state (S7). No I/O, no clock, no randomness. `fold` and `merge` raise GroupError."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns of the state. Names begin with `$` and give function and column (`$sum(amount)`,
        `$avg(amount).count`), so that equal aggregates share columns and their order does not matter."""
        ...

    @property
    def result_type(self) -> pa.DataType: ...

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        """Computes the states of groups of rows. `values` is the aggregate's column (None for `count`); NULLs are
        skipped. `times` are event times in milliseconds (int64[n])."""
        ...

    def merge(self, states: States, groups: Groups) -> States:
        """Merges each group of states into one. States of a group are in order of arrival: of two `first` or `last`
        values with the same time, the one in the earlier state arrived earlier."""
        ...

    def result(self, states: States) -> pa.Array:
        """The output value of each state, of type `result_type`. Without any value it is NULL, or 0 for counts."""
        ...


@dataclass(frozen=True, slots=True)
class ValueAccumulator(ABC):
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
