"""The rows of an epoch as they are expected and as they are found, compared one by one: what is missing, what is extra,
and which rows only differ in some columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from joinery_runtime.core.compile import compile_job
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.hosts.replay import ReplayedEpoch
from joinery_runtime.job import Job
from joinery_runtime.job.model.outputs import Timestamps
from joinery_runtime.sinks.encode import rows_to_json

SHOWN = 20
"""Differences that are listed; all are counted."""

What = Literal["missing", "extra", "different"]
Rows = Counter[bytes]
"""Lines of JSON, and how often each is there."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`expected` and `found` are rows by column name (None: there is none); `place` says which records make the
    expected row: input, partition and offset of the one that came last, then of its partner."""

    epoch: int
    output: str
    what: What
    expected: Mapping[str, Any] | None
    found: Mapping[str, Any] | None
    place: str

    def line(self) -> str:
        of = f"epoch {self.epoch}, {self.output}{f', {self.place}' if self.place else ''}"
        rows = [("expected", self.expected), ("found", self.found)]
        return f"{of}: {self.what}; " + ", ".join(f"{name} {json.dumps(row)}" for name, row in rows if row is not None)


@dataclass(slots=True)
class RowComparison:
    """`rows` and `dead` are how many rows and dead letters were expected of `epochs` epochs, `counted` differences by
    kind."""

    epochs: int = 0
    rows: int = 0
    dead: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def output(
        self,
        job: Job,
        replayed: ReplayedEpoch,
        found: Rows,
        columns: Sequence[str] | None = None,
        timestamps: Timestamps = "epochMillis",
    ) -> None:
        """Output rows: those of the epoch as it was `replayed`, against those that are `found`, which have timestamps
        so. `columns`: only these are compared."""
        expected = output_rows(replayed, columns, timestamps)
        self.epochs += 1
        self.rows += expected.total()
        self._compare(replayed.epoch, "output", expected, found, lambda: _places(job, replayed, columns, timestamps))

    def dead_letters(self, replayed: ReplayedEpoch, found: Rows) -> None:
        """The same of its dead letters."""
        expected = json_lines(replayed.dead)
        self.dead += expected.total()
        self._compare(replayed.epoch, "dead letters", expected, found, dict)

    def document(self) -> dict[str, Any]:
        counts = {what: self.counted[what] for what in ("missing", "extra", "different")}
        return {
            "rows": self.rows, "dead_letters": self.dead, **counts,
            "differences": [asdict(each) for each in self.differences],
        }  # fmt: skip

    def counts(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.counted.items()))

    def lines(self) -> Iterator[str]:
        yield from (each.line() for each in self.differences)
        if self.counted.total() > len(self.differences):
            yield f"{self.counted.total() - len(self.differences):,} more"

    def _compare(self, epoch: int, output: str, expected: Rows, found: Rows, places: Any) -> None:
        missing, extra = expected - found, found - expected
        if not missing and not extra:
            return
        # Another program may have written the same row with other blanks.
        lost, surplus = _parsed(missing), _parsed(extra)
        missing, extra = lost - surplus, surplus - lost
        at = places()
        unpaired = list(extra.elements())
        for row in missing.elements():
            other = _most_like(json.loads(row), unpaired)
            if other is not None:
                unpaired.remove(other)
            self._note(epoch, output, row, other, at.get(row, ""))
        for row in unpaired:
            self._note(epoch, output, None, row, "")

    def _note(self, epoch: int, output: str, expected: bytes | None, found: bytes | None, place: str) -> None:
        what: What = "extra" if expected is None else "missing" if found is None else "different"
        self.counted[what] += 1
        if len(self.differences) < SHOWN:
            rows = [None if each is None else json.loads(each) for each in (expected, found)]
            self.differences.append(Difference(epoch, output, what, rows[0], rows[1], place))


def output_rows(
    replayed: ReplayedEpoch, columns: Sequence[str] | None = None, timestamps: Timestamps = "epochMillis"
) -> Rows:
    """The rows that the epoch put out, as lines of JSON with these columns (None: all)."""
    return json_lines([_visible(table, columns) for table in replayed.rows], timestamps)


def json_lines(tables: Sequence[pa.Table], timestamps: Timestamps = "epochMillis") -> Rows:
    return Counter(line for table in tables for line in rows_to_json(table, timestamps))


def _visible(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    return table.drop_columns(list(ORDER_COLUMNS)) if columns is None else table.select(list(columns))


def _parsed(rows: Rows) -> Rows:
    """The same rows, each written in one way. What is no JSON stays as it is."""
    found: Rows = Counter()
    for line, count in rows.items():
        try:
            found[json.dumps(json.loads(line)).encode()] += count
        except ValueError:
            found[json.dumps({"not JSON": line.decode(errors="replace")}).encode()] += count
    return found


def _most_like(row: Mapping[str, Any], others: Sequence[bytes]) -> bytes | None:
    """The row that has most columns in common with it, at least half of them; of the first ones, since all that is
    decided by it is what a difference is called."""
    best, most = None, (len(row) + 1) // 2
    for other in others[:1000]:
        parsed = json.loads(other)
        same = sum(parsed.get(name, _NOTHING) == value for name, value in row.items())
        if same >= most and (best is None or same > most):
            best, most = other, same
    return best


_NOTHING = object()


def _places(
    job: Job, replayed: ReplayedEpoch, columns: Sequence[str] | None, timestamps: Timestamps
) -> dict[bytes, str]:
    """By output row: the records that make it."""
    sides = [side.time for side in compile_job(job).last.sides]
    found = {}
    for table in replayed.rows:
        rows = rows_to_json(_visible(table, columns), timestamps)
        for line, at in zip(rows, table.select(list(ORDER_COLUMNS)).to_pylist(), strict=True):
            side = at["$order_side"]
            place = f"{sides[side]} {at['$order_partition']}/{at['$order_offset']}"
            if len(sides) > 1 and at["$partner_offset"] >= 0:
                place += f" with {sides[1 - side]} {at['$partner_partition']}/{at['$partner_offset']}"
            found[json.dumps(json.loads(line)).encode()] = place
    return found
