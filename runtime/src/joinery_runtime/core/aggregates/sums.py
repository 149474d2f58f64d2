"""Sums: exact ones of whole numbers, compensated ones of doubles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.aggregates import compensated, wide
from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, GroupError, Groups, Make, States
from joinery_runtime.core.aggregates.present import Present

_STUCK = (
    "What is planned runs as it was planned: give it up with `joinery state reset --drop-planned`, or start anew with "
    "upgrade.mode: stateless"
)
TODO = {
    "int64": f"Sum a decimal: compute CAST(... AS DECIMAL(38, 0)) and aggregate that. {_STUCK}",
    "decimal": f"Keep such values out with `where`, or compute smaller ones. {_STUCK}",
}


@dataclass(frozen=True, slots=True)
class WholeSum:
    """The exact sum of int32 or int64 values, in `type` int64 or decimal(38, 0), or of decimals of one scale, in
    decimal(38, scale). One that does not fit raises GroupError."""

    name: str
    type: pa.DataType

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, self.type),)

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        whole = present.values if pa.types.is_decimal(present.values.type) else present.values.cast(pa.int64())
        sums, lost = wide.total(whole, present.groups)
        decimal = pa.types.is_decimal(self.type)
        misfits = np.flatnonzero(lost | ~(sums.decimal if decimal else sums.narrow))
        if len(misfits):
            kind = "decimal" if decimal else "int64"
            facts = f"the sum does not fit {'the 38 digits of a decimal' if decimal else kind}"
            raise GroupError(int(present.which[misfits[0]]), facts, TODO[kind])
        return (present.scatter(sums.decimals(self.type) if decimal else pa.array(sums.low.view(np.int64))),)

    def merge(self, states: States, groups: Groups) -> States:
        return self.fold(states[0], np.empty(0), groups)

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class DoubleSum:
    """The sum of float or double values as a double, compensated: the nearest one unless nearly all cancels out. The
    state is the sum and its rest."""

    name: str

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.float64()), pa.field(f"{self.name}.rest", pa.float64()))

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        return self._total(present, np.zeros(len(present.values)))

    def merge(self, states: States, groups: Groups) -> States:
        present = Present.of(states[0], groups)
        return self._total(present, states[1].drop_null().to_numpy())

    def result(self, states: States) -> pa.Array:
        return states[0]

    @staticmethod
    def _total(present: Present, rests: np.ndarray) -> States:
        doubles = present.values.cast(pa.float64()).to_numpy()
        sums, left = compensated.total((doubles, rests), present.groups)
        return present.scatter(pa.array(sums)), present.scatter(pa.array(left))


def _sum(name: str, of: AggregateCall) -> Accumulator:
    kind: pa.DataType = of.type
    if pa.types.is_floating(kind):
        return DoubleSum(name)
    return WholeSum(name, pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) else pa.int64())


FUNCTIONS: Mapping[str, Make] = {"sum": _sum}
