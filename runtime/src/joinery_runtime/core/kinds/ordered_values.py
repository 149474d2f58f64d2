"""Values of rows by an order of the rows of their key and window: ranks (R10), running totals and values of other rows
(R11). Array arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates import Accumulator, AggregateCall, Groups, States, accumulator
from joinery_runtime.core.pipeline.expression import Expression
from joinery_runtime.job.kinds.window_totals import RankOrder


@dataclass(frozen=True, slots=True)
class SortKey:
    """What rows are sorted by (R2)."""

    expression: Expression
    descending: bool
    nulls_first: bool

    @classmethod
    def of(cls, item: RankOrder, expression: Expression) -> SortKey:
        return cls(expression, item.direction == "desc", item.nulls_first)

    def ranks(self, values: pa.Array) -> np.ndarray:
        """int64[n]: numbers that are in the order of the values. Equal values have equal ones, NaN is the greatest."""
        if pa.types.is_null(values.type):  # the expression is NULL, which Arrow does not rank
            return np.zeros(len(values), dtype=np.int64)
        numbers = np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
        numbers = -numbers if self.descending else numbers
        outermost = -len(numbers) - 1 if self.nulls_first else len(numbers) + 1
        return np.where(values.is_null().to_numpy(zero_copy_only=False), outermost, numbers)


@dataclass(frozen=True, slots=True)
class OrderedValue:
    """A value of each row, as column `name`. `order` is what decides. `column` is what `lag`, `lead` and `first_value`
    read; `distance` is the offset of `lag` and `lead`, or the number of buckets of `ntile`. A running total is `call`,
    up to each row itself if `by_rows`, or else up to the last row that is equal in all of the order."""

    function: str
    name: str
    order: tuple[SortKey, ...]
    column: str | None = None
    distance: int = 1
    call: AggregateCall | None = None
    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class SortedRows:
    """m rows of keys and windows, sorted. `starts` (int64[k], ascending, beginning with 0) are the positions where the
    rows of a key and window begin; `begins` (bool[m]) are true where rows begin that are equal in all of the order."""

    starts: np.ndarray
    begins: np.ndarray

    @property
    def _sizes(self) -> np.ndarray:
        """int64[k]: how many rows each key and window has."""
        return np.diff(self.starts, append=len(self.begins))

    def _of_rows(self, values: np.ndarray) -> np.ndarray:
        """Spread one value for each key and window (int64[k]) over its rows (int64[m])."""
        return np.repeat(values, self._sizes)

    @property
    def _first(self) -> np.ndarray:
        """int64[m]: the position of the first row of each row's key and window."""
        return self._of_rows(self.starts)

    @property
    def _last(self) -> np.ndarray:
        return self._of_rows(self.starts + self._sizes - 1)

    @property
    def _numbers(self) -> np.ndarray:
        """int64[m]: the number of each row in its key and window, from 1 on."""
        return np.asarray(np.arange(len(self.begins)) - self._first + 1)

    @property
    def _first_equals(self) -> np.ndarray:
        """int64[m]: the position of the first row that is equal to each row in all of the order."""
        return np.asarray(np.flatnonzero(self.begins)[np.cumsum(self.begins) - 1])

    @property
    def _last_equals(self) -> np.ndarray:
        ends = np.append(np.flatnonzero(self.begins)[1:], len(self.begins)) - 1
        return np.asarray(ends[np.cumsum(self.begins) - 1])

    def ranks(self, function: str, buckets: int) -> pa.Array:
        """Return the rank of each row: double[m] of `percent_rank` and `cume_dist`, int64[m] of other functions."""
        numbers, sizes = self._numbers, self._of_rows(self._sizes)
        match function:
            case "rank":
                return pa.array(numbers[self._first_equals])
            case "dense_rank":
                before = self._of_rows(np.cumsum(self.begins)[self.starts] - 1)
                return pa.array(np.cumsum(self.begins) - before)
            case "row_number":
                return pa.array(numbers)
            case "percent_rank":
                return pa.array((numbers[self._first_equals] - 1) / np.maximum(sizes - 1, 1))
            case "cume_dist":
                return pa.array(numbers[self._last_equals] / sizes)
            case "ntile":
                # The first `size % buckets` buckets have one row more than the others, which may have none.
                small, larger = sizes // buckets, sizes % buckets
                before, in_larger = numbers - 1, larger * (small + 1)
                of_others = larger + (before - in_larger) // np.maximum(small, 1)
                return pa.array(np.where(before < in_larger, before // (small + 1), of_others) + 1)
        raise AssertionError(f"no rank is called {function}")

    def values_of_others(self, function: str, values: pa.Array, distance: int) -> pa.Array:
        """Return for each row the value (of `values`, one for each row) of another row; NULL if there is none."""
        positions = np.arange(len(self.begins))
        other = {"lag": positions - distance, "lead": positions + distance, "first_value": self._first}[function]
        is_outside = (other < self._first) | (other > self._last)
        return values.take(pa.array(np.where(is_outside, 0, other), mask=is_outside))

    def running_totals(
        self, call: AggregateCall, values: pa.Array | None, times: np.ndarray, *, by_rows: bool
    ) -> tuple[pa.Array, Mapping[int, str]]:
        """Return the total of `values` (one for each row; None: of a count) up to each row, and why it does not fit,
        by the row's position. `times` (int64[m]) are event times."""
        accumulated = accumulator(call)
        states = accumulated.fold(values, times, Groups(np.arange(len(self.begins)), len(self.begins)))
        states = self._up_to_each(accumulated, states)
        if not by_rows:
            states = tuple(column.take(pa.array(self._last_equals)) for column in states)
        return accumulated.result(states), accumulated.find_misfits(states)

    def _up_to_each(self, accumulated: Accumulator, states: States) -> States:
        """Merge the states of all rows of a key and window up to each row. Round n merges the state of up to 2^n rows
        with that of the rows before these, so there are log2(rows) rounds."""
        numbers, width = self._numbers, 1
        while (has_more := numbers > width).any():
            sizes = 1 + has_more
            ends = np.cumsum(sizes)
            merged = np.empty(int(ends[-1]), dtype=np.int64)
            merged[ends - 1] = np.arange(len(numbers))
            merged[ends[has_more] - 2] = np.flatnonzero(has_more) - width
            pairs = tuple(column.take(pa.array(merged)) for column in states)
            states = accumulated.merge(pairs, Groups(ends - sizes, len(merged)))
            width *= 2
        return states
