"""Rows of inputs, rows of joins, and multisets of output rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joinery_runtime.job.model.references import WINDOW_COLUMNS

END = 2**63 - 1  # the watermark of an input that has ended (T7)

Values = Mapping[str, Any]
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One readable record: `ts` is its event time in milliseconds, `values` its columns by name. `deleted`: a row of a
    table that deletes its key (A1)."""

    partition: int
    offset: int
    ts: int
    values: Values
    deleted: bool = False


class _Nulls(dict[str, Any]):
    """The columns of an absent row."""

    def __missing__(self, column: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Joined:
    """A row of one input or of a join: a row per input that takes part, None if padded. `window` is set behind a window
    step (W4, W5)."""

    rows: Mapping[str, Row | None]
    window: Window | None = None

    @property
    def positions(self) -> tuple[tuple[int, int] | None, ...]:
        """Partition and offset of each input's row, in the job's order, which identify the row within a job."""
        return tuple(None if row is None else (row.partition, row.offset) for row in self.rows.values())

    def time(self, name: str) -> int | None:
        """Return the input's event time in milliseconds; None if it is padded."""
        row = self.rows[name]
        return None if row is None else row.ts

    def values(self, name: str) -> Values:
        """Return the input's columns; NULLs if it is padded."""
        row = self.rows[name]
        return _Nulls() if row is None else row.values

    @property
    def by_input(self) -> Mapping[str, Values]:
        return {name: self.values(name) for name in self.rows}

    @property
    def columns(self) -> Mapping[str, Values]:
        """What a condition or an expression behind the step may read: the columns by input, and without an input the
        times of the window, NULL without one (W4)."""
        return {**self.by_input, "": dict(zip(WINDOW_COLUMNS, self.window or (None, None), strict=True))}


Forget = Callable[[int, Joined], Joined]
"""What remains of a row that a side of a step keeps when the job is edited: columns that were not stored until then are
NULL (M2)."""


def joined(left: Joined, right: Joined, window: Window | None = None) -> Joined:
    """Return the row of both, in the window in which they met; if a step has none, in that of the left row."""
    return Joined({**left.rows, **right.rows}, window or left.window)


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


Selection = Mapping[str, Callable[[Values], Any]]
"""The columns that are emitted of a row, by their names: a function raises OverflowError where an expression fails."""


def selected(selection: Selection, row: Values) -> tuple[dict[str, Any], bool]:
    """Return what is emitted of an aggregate's row (G11), and whether an expression failed, which is NULL then."""
    columns, failed = dict[str, Any](), False
    for name, compute in selection.items():
        try:
            columns[name] = compute(row)
        except OverflowError:
            columns[name], failed = None, True
    return columns, failed


def multiset(rows: Iterable[Values]) -> Counter[tuple[tuple[str, Hashable], ...]]:
    """Count rows by value, in any order of rows and columns; NaN is one value, -0.0 is 0.0."""
    return Counter(tuple(sorted((name, comparable(value)) for name, value in row.items())) for row in rows)


def differences(expected: Iterable[Values], actual: Iterable[Values], *, show: int = 5) -> str:
    """How many rows are missing or unexpected, and the first of them; empty if both are the same multiset."""
    expected_counts, actual_counts = multiset(expected), multiset(actual)
    deviations = [("missing", expected_counts - actual_counts), ("unexpected", actual_counts - expected_counts)]
    texts = []
    for deviation, rows in deviations:
        examples = "".join(f"\n  {count} x {dict(row)}" for row, count in list(rows.items())[:show])
        texts += [f"{rows.total()} {deviation} row(s):{examples}"] if rows else []
    return "\n".join(texts)


def comparable(value: Any) -> Hashable:
    """Return a value to compare, which is equal for NaN and NaN, and for -0.0 and 0.0."""
    if isinstance(value, float):
        return "NaN" if is_nan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(comparable(item) for item in value)
    hashable: Hashable = value
    return hashable
