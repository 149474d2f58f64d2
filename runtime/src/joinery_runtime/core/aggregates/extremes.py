"""The least and the greatest value of each group: strings by their code points, NaN greater than every number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups, Make, States
from joinery_runtime.core.aggregates.present import Present
from joinery_runtime.core.aggregates.wide import Wide


@dataclass(frozen=True, slots=True)
class Extreme:
    """`min`, or `max` where `greatest`: of any type but boolean and binary. The state is the value."""

    name: str
    type: pa.DataType
    greatest: bool

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, self.type),)

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        return (present.scatter(self._found(present.values, present.groups)),)

    def merge(self, states: States, groups: Groups) -> States:
        return self.fold(states[0], np.empty(0), groups)

    def result(self, states: States) -> pa.Array:
        return states[0]

    def _found(self, values: pa.Array, groups: Groups) -> pa.Array:
        kind = self.type
        if pa.types.is_floating(kind):
            # The sum makes one zero of two. NaN: fmin passes it over, maximum does not.
            least = np.maximum if self.greatest else np.fmin
            return pa.array(least.reduceat(values.to_numpy() + kind.to_pandas_dtype()(0), groups.starts))
        if pa.types.is_decimal(kind):
            return self._found_wide(Wide.of(values), groups).decimals(kind)
        if pa.types.is_string(kind):
            return self._found_text(values, groups)
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(self._reduce(values.view(whole).to_numpy(), groups)).view(kind)

    def _reduce(self, numbers: np.ndarray, groups: Groups) -> np.ndarray:
        least = np.maximum if self.greatest else np.minimum
        return least.reduceat(numbers, groups.starts)

    def _found_wide(self, values: Wide, groups: Groups) -> Wide:
        """By the upper words; where they are equal, by the lower ones."""
        high = self._reduce(values.high, groups)
        worst = np.uint64(0 if self.greatest else 2**64 - 1)
        among = values.high == np.repeat(high, groups.sizes)
        return Wide(high, self._reduce(np.where(among, values.low, worst), groups))

    def _found_text(self, values: pa.Array, groups: Groups) -> pa.Array:
        """Without threads Arrow gives groups in the order in which they begin."""
        table = pa.table({"group": groups.number, "value": values})
        found = table.group_by("group", use_threads=False).aggregate([("value", "max" if self.greatest else "min")])
        return found.column(1).combine_chunks()


FUNCTIONS: Mapping[str, Make] = {
    "min": lambda name, of: Extreme(name, of.type, greatest=False),
    "max": lambda name, of: Extreme(name, of.type, greatest=True),
}
