"""The least and the greatest value of each group, the first and the last one by event time and then by arrival, and the
value beside the least or greatest one of another column. Of booleans, `bool_and` is the least and `bool_or` the
greatest.

Strings compare by code points; NaN is greater than every number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates.base import Accumulator, Groups, Make, Present, States, ValueAccumulator
from joinery_runtime.core.aggregates.exact import Wide
from joinery_runtime.core.aggregates.lists import as_integers, unify_zeros


@dataclass(frozen=True, slots=True)
class Extreme(ValueAccumulator):
    """`min`, or `max` if `greatest`, for any type but boolean and binary."""

    greatest: bool

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        return (present.scatter(self._extremes(present.values, present.groups)),)

    def _extremes(self, values: pa.Array, groups: Groups) -> pa.Array:
        kind = self.type
        if pa.types.is_floating(kind):
            # Adding 0 turns -0.0 into 0.0. fmin skips NaN, maximum does not.
            least = np.maximum if self.greatest else np.fmin
            return pa.array(least.reduceat(values.to_numpy() + kind.to_pandas_dtype()(0), groups.starts))
        if pa.types.is_decimal(kind):
            # The upper words decide, and the lower ones where those are equal.
            wide = Wide.of(values)
            high = self._reduce(wide.high, groups)
            worst = np.uint64(0 if self.greatest else 2**64 - 1)
            among = wide.high == np.repeat(high, groups.sizes)
            return Wide(high, self._reduce(np.where(among, wide.low, worst), groups)).decimals(kind)
        if pa.types.is_string(kind):
            # Without threads, Arrow returns groups in the order in which they begin.
            grouped = pa.table({"group": groups.number, "value": values}).group_by("group", use_threads=False)
            extremes = grouped.aggregate([("value", "max" if self.greatest else "min")])
            return extremes.column(1).combine_chunks()
        return pa.array(self._reduce(as_integers(values), groups)).view(kind)

    def _reduce(self, numbers: np.ndarray, groups: Groups) -> np.ndarray:
        least = np.maximum if self.greatest else np.minimum
        return least.reduceat(numbers, groups.starts)


@dataclass(frozen=True, slots=True)
class End(Accumulator):
    """`first` or `last`, for any type. The state is the value and its event time."""

    name: str
    type: pa.DataType
    last: bool

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, self.type), pa.field(f"{self.name}.time", pa.int64()))

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        starts = present.groups.starts
        at = starts + present.groups.sizes - 1 if self.last else starts
        return self._states(present, times[present.rows], at)

    def merge(self, states: States, groups: Groups) -> States:
        present = Present.of(states[0], groups)
        times, starts = states[1].drop_null().to_numpy(), present.groups.starts
        best = (np.maximum if self.last else np.minimum).reduceat(times, starts)
        tied = np.flatnonzero(times == np.repeat(best, present.groups.sizes))
        stops = starts + present.groups.sizes
        at = np.searchsorted(tied, stops) - 1 if self.last else np.searchsorted(tied, starts)
        return self._states(present, times, tied[at])

    def result(self, states: States) -> pa.Array:
        return states[0]

    @staticmethod
    def _states(present: Present, times: np.ndarray, at: np.ndarray) -> States:
        return present.scatter(present.values.take(pa.array(at))), present.scatter(pa.array(times[at]))


@dataclass(frozen=True, slots=True)
class Truth(ValueAccumulator):
    """`bool_or` if `one` is enough, else `bool_and`."""

    one: bool

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        reduce = np.logical_or if self.one else np.logical_and
        booleans = present.values.to_numpy(zero_copy_only=False)
        return (present.scatter(pa.array(reduce.reduceat(booleans, present.groups.starts), pa.bool_())),)


@dataclass(frozen=True, slots=True)
class Companion(Accumulator):
    """The value, of type `type`, of the row whose other column, of type `by_type`, is least, or `greatest`. Of several
    such rows it is the first by event time, then by arrival. Rows with a NULL in either column are skipped. The state
    is both values and the event time."""

    name: str
    type: pa.DataType
    by_type: pa.DataType
    greatest: bool

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (
            pa.field(self.name, self.type),
            pa.field(f"{self.name}.by", self.by_type),
            pa.field(f"{self.name}.time", pa.int64()),
        )

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        value, by = present.values.flatten()
        return self._best(present, value, by, times[present.rows])

    def merge(self, states: States, groups: Groups) -> States:
        value, by, time = states
        present = Present.of(value, groups)
        return self._best(present, present.values, by.drop_null(), time.drop_null().to_numpy())

    def result(self, states: States) -> pa.Array:
        return states[0]

    def _best(self, present: Present, values: pa.Array, by: pa.Array, times: np.ndarray) -> States:
        """Return the states of the groups, from rows or states in order of arrival."""
        if not len(values):
            return tuple(present.scatter(pa.array([], field.type)) for field in self.fields)
        if pa.types.is_floating(by.type) or pa.types.is_decimal(by.type) or pa.types.is_string(by.type):
            numbers = pc.rank(unify_zeros(by), tiebreaker="dense").to_numpy().astype(np.int64)
        else:  # whole numbers and times need no sorting
            numbers = as_integers(by)
        starts, sizes = present.groups.starts, present.groups.sizes
        best = (np.maximum if self.greatest else np.minimum).reduceat(numbers, starts)
        is_best = numbers == np.repeat(best, sizes)
        earliest = np.minimum.reduceat(np.where(is_best, times, np.iinfo(np.int64).max), starts)
        candidates = np.flatnonzero(is_best & (times == np.repeat(earliest, sizes)))
        at = candidates[np.searchsorted(candidates, starts)]
        index = pa.array(at)
        return tuple(present.scatter(column) for column in (values.take(index), by.take(index), pa.array(times[at])))


FUNCTIONS: Mapping[str, Make] = {
    "min": lambda name, call: Extreme(name, call.type, greatest=False),
    "max": lambda name, call: Extreme(name, call.type, greatest=True),
    "first": lambda name, call: End(name, call.type, last=False),
    "last": lambda name, call: End(name, call.type, last=True),
    "bool_and": lambda name, call: Truth(name, call.type, one=False),
    "bool_or": lambda name, call: Truth(name, call.type, one=True),
    "min_by": lambda name, call: Companion(name, call.type, call.by_type, greatest=False),
    "max_by": lambda name, call: Companion(name, call.type, call.by_type, greatest=True),
}
