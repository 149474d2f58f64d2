"""Compares the expected rows of an epoch with the rows found, one by one: which are missing, which are extra, and which
differ only in some columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle
from joinery_runtime.inspect.evidence import Lines, ReplayedEpoch
from joinery_runtime.job import Job
from joinery_runtime.job.model.outputs import ONLY_OUTPUT

SHOWN = 20
"""How many differences are listed; all are counted."""

DifferenceKind = Literal["missing", "extra", "different"]


@dataclass(frozen=True, slots=True)
class Difference:
    """An expected row and the row found in its place, each by column name. None: there is no such row."""

    epoch: int | None  # None: the output does not say which epoch a row belongs to
    output: str
    kind: DifferenceKind
    expected: Mapping[str, Any] | None
    actual: Mapping[str, Any] | None
    origin: str  # the records that make the expected row: the one that arrived last, then its partner
    found_at: str = ""  # the record, or the data file, of the found row; "": it has no place

    def line(self) -> str:
        heading = ", ".join(
            part for part in ("" if self.epoch is None else f"epoch {self.epoch}", self.output, self.origin) if part
        )
        rows = [("expected", self.expected), (f"found{f' at {self.found_at}' if self.found_at else ''}", self.actual)]
        shown = ", ".join(f"{name} {json.dumps(row)}" for name, row in rows if row is not None)
        columns = []
        if self.expected is not None and self.actual is not None:
            for name, value in self.expected.items():
                if isinstance(value, dict | list) and _is_text_of(self.actual.get(name), value):
                    columns.append(name)
        if not columns:
            return f"{heading}: {self.kind}; {shown}"
        return (
            f"{heading}: {self.kind}; {shown}; {', '.join(columns)} found as text has the expected JSON: earlier "
            "releases wrote aggregates of json columns so"
        )

    def document(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch, "output": self.output, "what": self.kind, "expected": self.expected,
            "found": self.actual, "place": self.origin, "found_at": self.found_at,
        }  # fmt: skip


@dataclass(slots=True)
class RowComparison:
    epochs: int = 0
    rows: int = 0  # expected rows
    dead: int = 0  # expected dead letters
    counted: Counter[str] = field(default_factory=Counter)  # all differences, by `DifferenceKind`
    differences: list[Difference] = field(default_factory=list)  # the first SHOWN

    def output(
        self,
        job: Job,
        replayed: ReplayedEpoch,
        actual: Lines,
        columns: Sequence[str] | None = None,
        style: JsonStyle = PLAIN,
        name: str = ONLY_OUTPUT,
    ) -> None:
        """Compare the rows that the `replayed` epoch has for the output of this `name` with those `actual`, which are
        written in this `style`. Compares only `columns`, if given."""
        expected = replayed.output_lines(columns, style)
        self.rows += expected.total()
        sides = [side.time for side in compile_job(job).last.sides]
        self._compare_lines(replayed.epoch, name, expected, actual, lambda: replayed.origins(sides, columns, style))

    def dead_letters(self, replayed: ReplayedEpoch, actual: Lines) -> None:
        """Do the same for the epoch's dead letters."""
        expected = replayed.dead_letter_lines()
        self.dead += expected.total()
        self._compare_lines(replayed.epoch, "dead letters", expected, actual, dict)

    def document(self) -> dict[str, Any]:
        counts = {kind: self.counted[kind] for kind in ("missing", "extra", "different")}
        return {
            "rows": self.rows, "dead_letters": self.dead, **counts,
            "differences": [difference.document() for difference in self.differences],
        }  # fmt: skip

    def counts(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.counted.items()))

    def lines(self) -> Iterator[str]:
        yield from (difference.line() for difference in self.differences)
        if self.counted.total() > len(self.differences):
            yield f"{self.counted.total() - len(self.differences):,} more"

    def _compare_lines(self, epoch: int, output: str, expected: Lines, actual: Lines, find_origins: Any) -> None:
        missing, extra = expected - actual, actual - expected
        if not missing and not extra:
            return
        # Another program may have written the same row with different white space.
        lost, surplus = _normalize_rows(missing), _normalize_rows(extra)
        missing, extra = lost - surplus, surplus - lost
        at = find_origins()
        unpaired: list[Mapping[str, Any]] = [json.loads(row) for row in extra.elements()]
        for row in missing.elements():
            lost_row = json.loads(row)
            like = most_like(lost_row, unpaired)
            self._note_difference(
                epoch, output, lost_row, None if like is None else unpaired.pop(like), at.get(row, "")
            )
        for other in unpaired:
            self._note_difference(epoch, output, None, other, "")

    def _note_difference(
        self,
        epoch: int,
        output: str,
        expected: Mapping[str, Any] | None,
        actual: Mapping[str, Any] | None,
        origin: str,
    ) -> None:
        kind: DifferenceKind = "extra" if expected is None else "missing" if actual is None else "different"
        self.counted[kind] += 1
        self.show(Difference(epoch, output, kind, expected, actual, origin))

    def show(self, difference: Difference) -> None:
        """List the difference if there is room; it is counted elsewhere."""
        if len(self.differences) < SHOWN:
            self.differences.append(difference)


def _is_text_of(text: object, value: object) -> bool:
    try:
        return isinstance(text, str) and json.loads(text) == value
    except ValueError:
        return False


def _normalize_rows(rows: Lines) -> Lines:
    """Return rows in one spelling of JSON, so that equal rows are equal bytes."""
    normalized: Lines = Counter()
    for line, count in rows.items():
        try:
            normalized[json.dumps(json.loads(line)).encode()] += count
        except ValueError:
            normalized[json.dumps({"not JSON": line.decode(errors="replace")}).encode()] += count
    return normalized


def most_like(row: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the row that has the most columns in common with `row`, at least half of them. Looks only at
    the first thousand rows, because the result only decides how a difference is reported."""
    best, most = None, (len(row) + 1) // 2
    for at, other in enumerate(candidates[:1000]):
        equal_columns = sum(other.get(name, _NOTHING) == value for name, value in row.items())
        if equal_columns >= most and (best is None or equal_columns > most):
            best, most = at, equal_columns
    return best


_NOTHING = object()
