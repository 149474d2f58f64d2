"""Counts of rows and of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups, Make, States


@dataclass(frozen=True, slots=True)
class Count:
    """`count` counts all rows; `count_col` counts the rows in which a column has a value."""

    name: str

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.int64()),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        if values is None or not values.null_count:
            return (pa.array(groups.sizes),)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        return (pa.array(np.add.reduceat(valid, groups.starts, dtype=np.int64)),)

    def merge(self, states: States, groups: Groups) -> States:
        return (pa.array(np.add.reduceat(states[0].to_numpy(), groups.starts)),)

    def result(self, states: States) -> pa.Array:
        return states[0]


FUNCTIONS: Mapping[str, Make] = {"count": lambda name, _: Count(name), "count_col": lambda name, _: Count(name)}
