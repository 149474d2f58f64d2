"""Rows of inputs, rows of joins, and multisets of output rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

END = 2**63 - 1  # the watermark of an input that has ended (T7)

Values = Mapping[str, Any]
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One readable record: `ts` is its event time in milliseconds, `values` its columns by name. `deleted`: a table's
    row that says that its key is gone (A1)."""

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
    """A row of one input or of a join: a row per input that takes part, None where it is padded. `window` is there
    after a window join (W4)."""

    rows: Mapping[str, Row | None]
    window: Window | None = None

    @property
    def place(self) -> tuple[tuple[int, int] | None, ...]:
        """Partition and offset of each input's row, in the job's order: names the row in a job."""
        return tuple(None if row is None else (row.partition, row.offset) for row in self.rows.values())

    def time(self, name: str) -> int | None:
        """The input's event time in milliseconds; None where it is padded."""
        row = self.rows[name]
        return None if row is None else row.ts

    def values(self, name: str) -> Values:
        """The input's columns; NULLs where it is padded."""
        row = self.rows[name]
        return _Nulls() if row is None else row.values

    @property
    def by_input(self) -> Mapping[str, Values]:
        return {name: self.values(name) for name in self.rows}


def joined(left: Joined, right: Joined, window: Window | None = None) -> Joined:
    return Joined({**left.rows, **right.rows}, window)


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def multiset(rows: Iterable[Values]) -> Counter[tuple[tuple[str, Hashable], ...]]:
    """Rows counted by value, whatever the order of rows and columns; NaN is one value, -0.0 is 0.0."""
    return Counter(tuple(sorted((name, comparable(value)) for name, value in row.items())) for row in rows)


def differences(expected: Iterable[Values], actual: Iterable[Values], *, show: int = 5) -> str:
    """Empty if both are the same multiset, else how many rows are missing or too many and the first of them."""
    wanted, got = multiset(expected), multiset(actual)
    found = [("missing", wanted - got), ("unexpected", got - wanted)]
    texts = []
    for what, rows in found:
        examples = "".join(f"\n  {count} x {dict(row)}" for row, count in list(rows.items())[:show])
        texts += [f"{rows.total()} {what} row(s):{examples}"] if rows else []
    return "\n".join(texts)


def comparable(value: Any) -> Hashable:
    """Equal for values that are one: NaN and NaN, -0.0 and 0.0."""
    if isinstance(value, float):
        return "NaN" if is_nan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(comparable(item) for item in value)
    hashable: Hashable = value
    return hashable
