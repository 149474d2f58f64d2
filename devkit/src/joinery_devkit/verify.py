"""Judges a finished or stopped run of an inner interval join from outside: records, epoch log, output.

It shares nothing with the engine except the job's model. `expectation` gives the rows that must be there, the
watermarks of every plan are computed again from the records, and each row of the output is accounted for.

    verdict = verify(records, log, output, job)
    print(verdict)
    sys.exit(not verdict.ok)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joinery_devkit.expectation import Expectation, Log, Values, expect, read
from joinery_devkit.topics import Record, milliseconds
from joinery_devkit.verify_plan import (
    CheckResult,
    dead_letter_problems,
    dead_letters_exactly_once,
    named,
    range_problems,
    watermark_problems,
)
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import ColumnType, StreamJoin


@dataclass(frozen=True, slots=True)
class JoinVerdict(CheckResult):
    """The verdict. `pairs` and `dropped` (by reason) are what the rules demand. `dead_letters` counts unusable records
    that were read, `unread` records in no epoch. `problems` are sentences with samples; none if all is well.
    """

    pairs: int
    missing: int
    extra: int
    duplicates: int
    dropped: Mapping[str, int]
    dead_letters: int
    unread: int
    epochs: int
    problems: tuple[str, ...]

    def good_news(self) -> str:
        drops = "".join(f", {count:,} {reason.replace('_', ' ')}" for reason, count in sorted(self.dropped.items()))
        return (
            f"{self.pairs:,} joined rows, each exactly once{drops}, {self.dead_letters:,} dead letters "
            f"accounted for; the watermarks of {self.epochs:,} epochs follow from the records"
        )


def verify(
    records: Mapping[str, Iterable[Record]],
    log: Log,
    output: Iterable[Mapping[str, Any]],
    job: StreamJoin,
    *,
    dead_letters: Iterable[Mapping[str, Any]] | None = None,
    complete: bool = True,
) -> JoinVerdict:
    """Judge a run of `job`, whose inputs are JSON in Kafka and whose watermarks hold when idle.

    `records` are all records per input, `log` the whole epoch log as `joinery state epochs` prints it, `output` and
    `dead_letters` rows of the two outputs by column name (None: dead letters are not judged). `complete` says that the
    job was to read everything. `where`, if there is one, is taken as DuckDB reads it.
    """
    reading = read(records, log, job)
    expectation = expect(reading, log, job)
    rows = Counter(expectation.rows)
    got = Counter(_output_row(row, job) for row in output)
    missing, surplus = rows - got, got - rows
    duplicates = Counter({row: count for row, count in surplus.items() if row in rows})
    extra = surplus - duplicates
    names = [column.name for column in job.output_columns]
    problems = [
        *range_problems(log),
        *watermark_problems(reading, log, job),
        *named("joined rows are missing", missing, names),
        *named("joined rows should not be there", extra, names),
        *named("joined rows came more than once", duplicates, names),
        *_count_problems(expectation, log),
        *dead_letter_problems(reading, dead_letters, exactly_once=dead_letters_exactly_once(job)),
    ]
    if complete and reading.unread:
        problems.append(f"{reading.unread:,} records were never read")
    dropped: Counter[str] = Counter()
    for inputs in expectation.dropped.values():
        for counts in inputs.values():
            dropped.update(counts)
    return JoinVerdict(
        pairs=len(expectation.rows),
        missing=missing.total(),
        extra=extra.total(),
        duplicates=duplicates.total(),
        dropped=dict(dropped),
        dead_letters=len(reading.dead),
        unread=reading.unread,
        epochs=len(log),
        problems=tuple(problems),
    )


# --- output ----------------------------------------------------------------------------------------------------------


def _output_row(row: Mapping[str, Any], job: StreamJoin) -> Values:
    try:
        return tuple(
            milliseconds(row[column.name])
            if column.type == ColumnType("timestamp") and row[column.name] is not None
            else row[column.name]
            for column in job.output_columns
        )
    except KeyError as error:
        raise JoineryError(f"the output has no column {error}", facts=f"a row is {dict(row)}") from error


def _count_problems(expectation: Expectation, log: Log) -> Iterator[str]:
    """Check the log's own counts, epoch by epoch (T10, J2)."""
    for entry in log:
        epoch, result = entry["epoch"], entry["result"]
        pairs = expectation.pairs.get(epoch, 0)
        if result["rows_out"] != pairs:
            yield f"epoch {epoch}: the log counts {result['rows_out']} joined rows, there are {pairs}"
        dropped = expectation.dropped.get(epoch, {})
        if result["dropped"] != dropped:
            yield f"epoch {epoch}: the log counts as dropped {result['dropped']}, it is {dropped}"
