"""A second, slow opinion on what a join must give: semantics.md written down row by row in plain Python.

It shares no code with the core. It replays epochs (the plan's watermarks and the rows of each side) and says which
pairs every epoch must emit and how many rows it must call late; `WatermarkOracle` says which watermarks the plans must
hold; `multiset` and `differences` compare rows whatever their order.

    oracle = Oracle.of_job(job)
    for plan, rows in epoch_log:
        expected = oracle.epoch(plan["watermarks"], rows)
        ...  # expected.pairs, expected.late
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joinery_runtime.job import StreamJoin

END = 2**63 - 1  # the watermark of an input that has ended (T7)

Values = Mapping[str, Any]
Filter = Callable[[Values], bool | None]
Residual = Callable[[Values, Values], bool | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One readable record: `ts` is its event time in milliseconds, `values` its columns by name."""

    partition: int
    offset: int
    ts: int
    values: Values


@dataclass(frozen=True, slots=True)
class Pair:
    left: Row
    right: Row

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Left partition and offset, right partition and offset: names the pair in a job."""
        return self.left.partition, self.left.offset, self.right.partition, self.right.offset


@dataclass(frozen=True, slots=True)
class EpochExpectation:
    """What one epoch must do. `late` and `dropped` (by reason: null_key, filtered) count rows per input."""

    pairs: tuple[Pair, ...]
    late: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class Oracle:
    """An inner interval join (J1-J7), `right.ts - left.ts` in `interval`, both ends included, milliseconds.

    `inputs` are the names of the left and the right input, `keys` pairs of column names. `filters` are one-sided
    predicates by input, `residual` takes the values of a left and a right row; both count only when they are True.
    """

    interval: tuple[int, int]
    keys: Sequence[tuple[str, str]]
    inputs: tuple[str, str] = ("left", "right")
    allowed_lateness: int = 0
    reopen: bool = False
    filters: Mapping[str, Filter] = field(default_factory=dict)
    residual: Residual | None = None
    _kept: dict[str, dict[Hashable, list[Row]]] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = {name: defaultdict(list) for name in self.inputs}

    @classmethod
    def of_job(
        cls, job: StreamJoin, *, filters: Mapping[str, Filter] | None = None, residual: Residual | None = None
    ) -> Oracle:
        """The oracle of a job; its `where` must be given in Python, taken apart as the job's plan does."""
        return cls(
            interval=(job.interval.lower, job.interval.upper),
            keys=[(pair.left, pair.right) for pair in job.key_pairs],
            inputs=(job.left.name, job.right.name),
            allowed_lateness=job.step.allowed_lateness,
            reopen=job.step.late_data == "reopen",
            filters=filters or {},
            residual=residual,
        )

    def epoch(self, watermarks: Mapping[str, int | None], rows: Mapping[str, Iterable[Row]]) -> EpochExpectation:
        """Replays one epoch: `watermarks` are its plan's (None: not known yet), `rows` the readable ones per input."""
        left, right = self.inputs
        self._evict(watermarks)
        pairs: list[Pair] = []
        late = {left: 0, right: 0}
        dropped: dict[str, Counter[str]] = {left: Counter(), right: Counter()}
        for name in self.inputs:
            for row in sorted(rows.get(name, ()), key=lambda row: (row.partition, row.offset)):
                reason = self._reason_to_drop(name, row)
                if reason is not None:
                    dropped[name][reason] += 1
                elif self._is_late(row, watermarks):
                    late[name] += 1
                else:
                    pairs += self._matches(name, row)
                    if not self._past_deadline(name, row, watermarks):
                        self._kept[name][self._key(name, row)].append(row)
        return EpochExpectation(tuple(pairs), late, dropped)

    def kept(self, name: str) -> int:
        """How many rows of the input are kept now."""
        return sum(len(rows) for rows in self._kept[name].values())

    def _evict(self, watermarks: Mapping[str, int | None]) -> None:
        """T3: state is evicted first, against the plan's watermarks."""
        for name, by_key in self._kept.items():
            for key, rows in list(by_key.items()):
                by_key[key] = [row for row in rows if not self._past_deadline(name, row, watermarks)]
                if not by_key[key]:
                    del by_key[key]

    def _past_deadline(self, name: str, row: Row, watermarks: Mapping[str, int | None]) -> bool:
        """J3, and J5 for a row that arrives."""
        left, right = self.inputs
        lower, upper = self.interval
        if name == left:
            other, deadline = watermarks[right], row.ts + upper + self.allowed_lateness
        else:
            other, deadline = watermarks[left], row.ts - lower + self.allowed_lateness
        return other is not None and other > deadline

    def _is_late(self, row: Row, watermarks: Mapping[str, int | None]) -> bool:
        """J6; under `reopen` (J7) no row is dropped as late."""
        left, right = (watermarks[name] for name in self.inputs)
        if self.reopen or left is None or right is None:
            return False
        lower, upper = self.interval
        return row.ts + max(upper, -lower) + self.allowed_lateness < min(left, right)

    def _reason_to_drop(self, name: str, row: Row) -> str | None:
        """J4; NaN equals nothing (J1), so a row with NaN in its key goes the same way."""
        if any(value is None or _is_nan(value) for value in self._key(name, row)):
            return "null_key"
        keep = self.filters.get(name)
        return "filtered" if keep is not None and keep(row.values) is not True else None

    def _matches(self, name: str, row: Row) -> list[Pair]:
        """J1 and J2: the pairs of an arriving row with the rows of the other side that are kept."""
        left, right = self.inputs
        key = self._key(name, row)
        if name == left:
            candidates = [Pair(row, other) for other in self._kept[right].get(key, [])]
        else:
            candidates = [Pair(other, row) for other in self._kept[left].get(key, [])]
        return [pair for pair in candidates if self._fits(pair)]

    def _fits(self, pair: Pair) -> bool:
        lower, upper = self.interval
        if not lower <= pair.right.ts - pair.left.ts <= upper:
            return False
        return self.residual is None or self.residual(pair.left.values, pair.right.values) is True

    def _key(self, name: str, row: Row) -> tuple[Any, ...]:
        side = self.inputs.index(name)
        return tuple(row.values[columns[side]] for columns in self.keys)


class WatermarkOracle:
    """T1, T5 and T7, from every event time read so far. Times and delays are milliseconds; partitions are any names.

    Per epoch: `watermarks`, then `saw` with the epoch's rows (T3), dropped and late ones included, then `settle`.
    """

    def __init__(self, delays: Mapping[str, int], partitions: Mapping[str, Iterable[Hashable]] | None = None) -> None:
        self._delays = dict(delays)
        self._times: dict[str, dict[Hashable, list[int]]] = {name: {} for name in delays}
        self._given: dict[str, int | None] = dict.fromkeys(delays)
        for name, known in (partitions or {}).items():
            for partition in known:
                self.saw(name, partition, [])

    def saw(self, name: str, partition: Hashable, times: Iterable[int]) -> None:
        """An epoch read the partition; `times` are the event times of its readable rows, if there were any."""
        self._times[name].setdefault(partition, []).extend(times)

    def settle(self, idle: Mapping[str, Collection[Hashable]] | None = None) -> None:
        """Once `saw` has been told an epoch's rows: what they imply, with the partitions that were idle in that epoch,
        is not taken back by a partition that is new or not idle any more."""
        for name, given in self._given.items():
            self._given[name] = _highest(given, self._implied(name, (idle or {}).get(name, ())))

    def watermarks(
        self, idle: Mapping[str, Collection[Hashable]] | None = None, ended: Collection[str] = ()
    ) -> dict[str, int | None]:
        """The next plan's watermarks, given its idle partitions and the inputs that have been read to their end."""
        idle = idle or {}
        own = {name: self._own(name, idle.get(name, ()), name in ended) for name in self._times}
        quiet = {name for name in own if own[name] != END and self._all_idle(name, idle.get(name, ()))}
        speaking = [watermark for name, watermark in own.items() if name not in quiet and watermark != END]
        lowest = min((w for w in speaking if w is not None), default=None)
        if None in speaking:
            lowest = None
        for name, watermark in own.items():
            self._given[name] = _highest(watermark, lowest) if name in quiet else watermark
        return dict(self._given)

    def _own(self, name: str, idle: Collection[Hashable], ended: bool) -> int | None:
        if ended:
            return END
        return _highest(self._given[name], self._implied(name, idle))

    def _implied(self, name: str, idle: Collection[Hashable]) -> int | None:
        """T1; nothing is known while a partition that is not idle has shown no row."""
        times = [seen for partition, seen in self._times[name].items() if partition not in idle]
        if not times or not all(times):
            return None
        return min(max(seen) - self._delays[name] for seen in times)

    def _all_idle(self, name: str, idle: Collection[Hashable]) -> bool:
        known = self._times[name]
        return bool(known) and all(partition in idle for partition in known)


def _highest(a: int | None, b: int | None) -> int | None:
    known = [w for w in (a, b) if w is not None]
    return max(known) if known else None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def output_row(pair: Pair, columns: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
    """A pair as an output row; `columns` are (output name, 0 for left or 1 for right, input column)."""
    rows = (pair.left, pair.right)
    return {name: rows[side].values[column] for name, side, column in columns}


def output_columns(job: StreamJoin) -> list[tuple[str, int, str]]:
    """What `output_row` needs to know of a job's output."""
    return [(c.name, int(c.source.input == job.right.name), c.source.column) for c in job.output_columns]


def multiset(rows: Iterable[Values]) -> Counter[tuple[tuple[str, Hashable], ...]]:
    """Rows counted by value, whatever the order of rows and columns; NaN is one value, -0.0 is 0.0."""
    return Counter(tuple(sorted((name, _comparable(value)) for name, value in row.items())) for row in rows)


def differences(expected: Iterable[Values], actual: Iterable[Values], *, show: int = 5) -> str:
    """Empty if both are the same multiset, else how many rows are missing or too many and the first of them."""
    wanted, got = multiset(expected), multiset(actual)
    found = [("missing", wanted - got), ("unexpected", got - wanted)]
    return "\n".join(_described(what, rows, show) for what, rows in found if rows)


def _described(what: str, rows: Counter[tuple[tuple[str, Hashable], ...]], show: int) -> str:
    examples = "".join(f"\n  {count} x {dict(row)}" for row, count in list(rows.items())[:show])
    return f"{rows.total()} {what} row(s):{examples}"


def _comparable(value: Any) -> Hashable:
    if isinstance(value, float):
        return "NaN" if _is_nan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(_comparable(item) for item in value)
    hashable: Hashable = value
    return hashable
