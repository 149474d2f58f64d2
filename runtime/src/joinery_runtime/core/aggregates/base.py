"""What an aggregate of sessions is to the kernel: columns in the state, and three vectorised functions over groups.

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

NaN is one value that is greater than every number, and -0.0 is 0.0, as in Postgres and Spark. A sum that leaves its
type is an error also where later rows would bring it back: what is in the state has to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of a session (S7): `function` of `column` of type `type` (None: it counts rows), in the output as
    `name`. `limit`: `count_distinct` is exact up to so many values; None: it is a sketch."""

    function: str
    name: str
    column: str = ""
    type: pa.DataType | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Groups:
    """n rows in m groups, m > 0, none empty: `starts` (int64[m], ascending, the first is 0) are the positions where
    each group begins; rows of a group are consecutive and in order of (event time, arrival)."""

    starts: np.ndarray
    rows: int

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> np.ndarray:
        """int64[m]."""
        return np.diff(self.starts, append=self.rows)

    @property
    def number(self) -> np.ndarray:
        """int64[n]: the group of each row."""
        return np.repeat(np.arange(self.count), self.sizes)


class GroupError(Exception):
    """An aggregate that has no value: `group` is its number among the groups that were given, `facts` and `todo` are
    for the user."""

    def __init__(self, group: int, facts: str, todo: str) -> None:
        self.group, self.facts, self.todo = group, facts, todo
        super().__init__(group, facts, todo)


States = tuple[pa.Array, ...]  # one array for each of an accumulator's fields, a value per group


class Accumulator(Protocol):
    """One aggregate's mergeable state (S7). No I/O, no clock, no randomness. `fold` and `merge` raise GroupError."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of the state; names start with `$` and say function and column, so that equal aggregates share them
        and the order of aggregates does not matter: `$sum(amount)`, `$avg(amount).count`."""
        ...

    @property
    def result_type(self) -> pa.DataType: ...

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        """The states of groups of rows: `values` is the aggregate's column (None for `count`), NULLs are skipped;
        `times` are event times in milliseconds, int64[n]."""
        ...

    def merge(self, states: States, groups: Groups) -> States:
        """One state for each group of states, which are given in order of arrival: of two `first` or `last` values
        with one time, that of the earlier state arrived earlier."""
        ...

    def result(self, states: States) -> pa.Array:
        """What goes out for each state, of type `result_type`; NULL where no value was seen, but 0 for counts."""
        ...


Make = Callable[[str, AggregateCall], Accumulator]  # from the name of its columns and what the job asks for
