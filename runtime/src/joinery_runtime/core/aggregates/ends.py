"""The first and the last value of each group, by event time and then by arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates.base import Groups, Make, Present, States


@dataclass(frozen=True, slots=True)
class End:
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


FUNCTIONS: Mapping[str, Make] = {
    "first": lambda name, call: End(name, call.type, last=False),
    "last": lambda name, call: End(name, call.type, last=True),
}
