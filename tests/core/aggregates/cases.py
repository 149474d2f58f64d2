"""Random rows for aggregates: of several groups, that arrive in several epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from joinery_runtime.core.aggregates import Accumulator, Groups, States


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda n: _scaled(n, scale))


def _scaled(number: int, scale: int) -> Decimal:
    with localcontext(prec=100):
        return Decimal(number).scaleb(-scale)


def _floats(width: int) -> st.SearchStrategy[float]:
    large = 2.0**100 if width == 32 else 1e250  # sums stay finite
    return st.floats(-large, large, width=width) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5])


SPECIAL = st.sampled_from([float("nan"), float("inf"), float("-inf")])
INT32, INT64, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
SHORT, LONG = pa.decimal128(9, 2), pa.decimal128(34, 10)
STRING, BINARY, BOOLEAN, DATE, TIMESTAMP = pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.timestamp("ms", "UTC")

NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    INT64: st.integers(-(2**57), 2**57) | st.integers(-3, 3),
    FLOAT: _floats(32),
    DOUBLE: _floats(64),
    SHORT: decimals(9, 2) | decimals(2, 2),
    LONG: decimals(34, 10) | decimals(2, 10),
}
ORDERED = NUMBERS | {
    INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    FLOAT: _floats(32) | SPECIAL,
    DOUBLE: _floats(64) | SPECIAL,
    LONG: decimals(34, 10) | decimals(2, 10) | st.integers(2**64 - 2, 2**64 + 2).map(lambda n: _scaled(n, 10)),
    STRING: st.text(max_size=20) | st.sampled_from(["", "a", "a\0", "\uffff", "\U0001f600"]),
    DATE: st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    TIMESTAMP: st.integers(-(10**12), 10**13).map(
        lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    ),
}
ALL = ORDERED | {BINARY: st.binary(max_size=9), BOOLEAN: st.booleans()}


@dataclass(frozen=True)
class Row:
    group: int
    epoch: int
    time: int
    value: Any


@dataclass(frozen=True)
class Rows:
    """Rows by (group, epoch, time), which is by group and arrival; every group has a row."""

    kind: pa.DataType
    rows: Sequence[Row]

    def folded(self, accumulator: Accumulator, *, epochs: bool) -> tuple[States, np.ndarray]:
        """Their states, and the group of each: one of each group, or of each of its epochs. `kind` null: no column."""
        cell_of = (lambda row: (row.group, row.epoch)) if epochs else (lambda row: (row.group, 0))
        rows = sorted(self.rows, key=lambda row: (cell_of(row), row.time))
        cells = [cell_of(row) for row in rows]
        starts = [n for n, cell in enumerate(cells) if n == 0 or cell != cells[n - 1]]
        # A slice, as segments and filtered batches give them.
        values = None if pa.types.is_null(self.kind) else pa.array([None, *(row.value for row in rows)], self.kind)[1:]
        times = np.array([row.time for row in rows])
        states = accumulator.fold(values, times, Groups(np.array(starts), len(rows)))
        return states, np.array([cells[start][0] for start in starts])

    def values(self) -> list[list[Any]]:
        """Of each group, its values in order of event time and arrival."""
        values_by_group: list[list[Any]] = [[] for _ in range(self.rows[-1].group + 1)]
        for row in sorted(self.rows, key=lambda row: row.time):
            if row.value is not None:
                values_by_group[row.group].append(row.value)
        return values_by_group


@st.composite
def rows(draw: st.DrawFn, kind: pa.DataType, values: st.SearchStrategy[Any], longest: int = 12) -> Rows:
    one = st.tuples(st.integers(0, 3), st.integers(0, 5), st.none() | values | values)
    groups = draw(st.lists(st.lists(one, min_size=1, max_size=longest), min_size=1, max_size=5))
    drawn_rows = [Row(n, *fields) for n, group in enumerate(groups) for fields in group]
    return Rows(kind, sorted(drawn_rows, key=lambda row: (row.group, row.epoch, row.time)))


def merged(draw: st.DrawFn, accumulator: Accumulator, states: States, group: np.ndarray) -> States:
    """One state for each group, merged in random steps of neighbours."""
    while (np.diff(group) == 0).any():
        starts = [n for n in range(len(group)) if n == 0 or group[n] != group[n - 1] or draw(st.booleans())]
        states = accumulator.merge(states, Groups(np.array(starts), len(group)))
        group = group[starts]
    return states
