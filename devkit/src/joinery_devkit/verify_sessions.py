"""Judges a run of a SessionWindow that has read all of a bounded input, by brute force over its records.

After the end of the input the table holds every session once, and the sessions then follow from the records: the rows
of a group in order of time, cut where the distance exceeds the gap (S1). The epoch log only tells which rows came too
late. The check rejects cases that brute force cannot decide: sessions that reach `maxDuration`, and rows that arrive
after the allowed lateness near other rows.

    verdict = verify_sessions(records, log, table, job, dead_letters=dead)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joinery_devkit import oracle
from joinery_devkit.expectation import Log, ReadableRecord, Reading, Values, read
from joinery_devkit.oracle.sessions import Identify, Output
from joinery_devkit.topics import Record
from joinery_devkit.verify_plan import (
    CheckResult,
    dead_letter_problems,
    dead_letters_exactly_once,
    named,
    range_problems,
    watermark_problems,
)
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import SessionWindow

# A sketch may be off by five standard errors, and in small sessions by one; a float may be off in its last digits.
_OFF, _OFF_BY = 0.08, 1
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class SessionVerdict(CheckResult):
    """The verdict. `sessions` and `late` are what the rules demand, `rows` what was read; `problems` are sentences with
    samples; none if all is well."""

    sessions: int
    rows: int
    late: int
    dead_letters: int
    epochs: int
    problems: tuple[str, ...]

    def good_news(self) -> str:
        return (
            f"{self.sessions:,} sessions of {self.rows - self.late:,} rows, each as brute force finds it, "
            f"{self.late:,} late, {self.dead_letters:,} dead letters accounted for; the watermarks of "
            f"{self.epochs:,} epochs follow from the records"
        )


def verify_sessions(
    records: Mapping[str, Iterable[Record]],
    log: Log,
    table: Iterable[Mapping[str, Any]],
    job: SessionWindow,
    *,
    dead_letters: Iterable[Mapping[str, Any]],
    identify: Identify | None = None,
) -> SessionVerdict:
    """Judge a run. `records` are all records of the input, by its name; `log` is the whole epoch log as `joinery state
    epochs` prints it; `table` and `dead_letters` are rows of the two outputs by column name. `identify` computes a
    `session_id` (None: ids are not judged). The job has to emit retractions if it reopens, and must have no `compute`
    and no `where`. Raises JoineryError if brute force cannot say what is right."""
    _only_what_is_known(job)
    reading = read(records, log, job)
    accepted, late = _select_rows(reading, log, job)
    expected = _expected_sessions(accepted, job, identify)
    table_rows = list(table)
    got = Counter(_key_of(row, job) for row in table_rows)
    keys = [*job.sessions.group_by, "window_start", "window_end"]
    late_problems = []  # of the log's own counts, epoch by epoch (T10)
    for entry in log:
        count, counted = late[entry["epoch"]], entry["result"]["dropped"]
        right_counts = {job.spec.input.name: {"late": count}} if count else {}
        if counted != right_counts:
            late_problems.append(f"epoch {entry['epoch']}: the log counts as dropped {counted}, it is {right_counts}")
    problems = [
        *range_problems(log),
        *watermark_problems(reading, log, job),
        *named("sessions are missing", Counter(expected.keys() - got.keys()), keys),
        *named("sessions should not be there", Counter(got.keys() - expected.keys()), keys),
        *named("sessions are there more than once", Counter({k: n - 1 for k, n in got.items() if n > 1}), keys),
        *_find_wrong_values(table_rows, expected, job, identify is not None),
        *late_problems,
        *dead_letter_problems(reading, dead_letters, exactly_once=dead_letters_exactly_once(job)),
    ]
    if reading.unread:
        problems.append(f"{reading.unread:,} records were never read")
    rows = len(accepted) + late.total()
    return SessionVerdict(len(expected), rows, late.total(), len(reading.dead), len(log), tuple(problems))


def _only_what_is_known(job: SessionWindow) -> None:
    sessions = job.sessions
    final = job.spec.late_data != "reopen" or job.spec.emit_retractions
    filters = sessions.where is not None or any(aggregate.where is not None for aggregate in sessions.aggregates)
    unknown = [
        *(["it computes columns or filters rows"] if sessions.compute or filters else []),
        *(["it leaves out sessions by a condition (having)"] if sessions.having is not None else []),
        *(["ids that were replaced stay in its table: it emits no retractions"] if not final else []),
    ]
    if unknown:
        raise JoineryError(f"job {job.name} cannot be judged by brute force", facts="; ".join(unknown))


# --- which rows count -------------------------------------------------------------------------------------------------


def _select_rows(reading: Reading, log: Log, job: SessionWindow) -> tuple[list[ReadableRecord], Counter[int]]:
    """Return the rows that belong to sessions, and how many came too late, by epoch (S4, S5)."""
    name, lateness, gap = job.spec.input.name, job.spec.allowed_lateness, job.sessions.gap
    watermarks = {entry["epoch"]: entry["plan"]["watermarks"][name] for entry in log}

    def behind(row: ReadableRecord, by_ms: int) -> bool:
        watermark = watermarks[row.epoch]
        return watermark is not None and row.ts < watermark - by_ms

    late = [row for row in reading.rows[name] if behind(row, lateness)]
    if job.spec.late_data == "reopen":
        _refuse_near_ones(late, reading.rows[name], job)
        late = [row for row in late if behind(row, lateness + gap)]
    dropped = {id(row) for row in late}
    return [row for row in reading.rows[name] if id(row) not in dropped], Counter(row.epoch for row in late)


def _refuse_near_ones(doubtful: Sequence[ReadableRecord], rows: Sequence[ReadableRecord], job: SessionWindow) -> None:
    times: dict[Values, list[int]] = defaultdict(list)
    for row in rows:
        times[_group_of(row, job)].append(row.ts)
    for row in doubtful:
        near = sum(abs(ts - row.ts) <= job.sessions.gap for ts in times[_group_of(row, job)])
        if near > 1:
            facts = f"{row.columns} came after the lateness that is allowed and is near another row"
            raise JoineryError(f"job {job.name} cannot be judged by brute force", facts=facts)


# --- what they make ---------------------------------------------------------------------------------------------------


def _group_of(row: ReadableRecord, job: SessionWindow) -> Values:
    return tuple(row.columns[name] for name in job.sessions.group_by)


def _expected_sessions(
    rows: Iterable[ReadableRecord], job: SessionWindow, identify: Identify | None
) -> Mapping[Values, Output]:
    """Every session by `_key_of`. Raises JoineryError if one reaches the cap."""
    arrived = (oracle.Row(row.partition, 0, row.ts, dict(row.columns)) for row in rows)
    shape = oracle.SessionShape(job, identify or (lambda _: 0))
    sessions = {_key_of(session, job): session for session in oracle.sessions_at_once(shape, arrived)}
    for key, session in sessions.items():
        if session["window_end"] - session["window_start"] >= job.spec.max_duration:
            raise JoineryError(f"job {job.name} cannot be judged by brute force", facts=f"{key} reaches maxDuration")
    return sessions


# --- what is there ----------------------------------------------------------------------------------------------------


def _key_of(row: Mapping[str, Any], job: SessionWindow) -> Values:
    return (*(row[name] for name in job.sessions.group_by), row["window_start"], row["window_end"])


def _find_wrong_values(
    table: Iterable[Mapping[str, Any]], expected: Mapping[Values, Output], job: SessionWindow, identified: bool
) -> Iterator[str]:
    """Yield sentences about sessions that have the right group and times, but wrong values."""
    named_columns = [*(["session_id"] if identified else []), *(aggregate.as_ for aggregate in job.sessions.aggregates)]
    sketches = {aggregate.as_ for aggregate in job.sessions.aggregates if aggregate.method == "hll"}
    for column in named_columns:
        wrong: Counter[Values] = Counter()
        for row in table:
            key = _key_of(row, job)
            if key not in expected:
                continue
            value, right_value = row[column], expected[key][column]
            if column in sketches:
                is_right = abs(value - right_value) <= _OFF_BY + _OFF * right_value
            elif isinstance(right_value, float):
                is_right = isinstance(value, float) and math.isclose(value, right_value, rel_tol=_ROUNDING)
            else:
                is_right = value == right_value
            if not is_right:
                wrong[*key, value, right_value] += 1
        names = [*job.sessions.group_by, "window_start", "window_end", "there", "expected"]
        yield from named(f"sessions have a wrong {column}", wrong, names)
