"""What is kept of sessions: those of one group with what is still to come for each, and how many there are in all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.cli.common import time_text
from joinery_runtime.cli.state_next import NextEpoch
from joinery_runtime.cli.state_rows import Segments, Wanted, flags, marked_in, marks_among
from joinery_runtime.core.kinds.session.state import Folding
from joinery_runtime.core.pipeline.spec import COMPLETE, SESSIONS, SessionWindow, StepSpec
from joinery_runtime.core.table.columns import EMITTED, FORCED, MARK, START, TS
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import SegmentMeta, concat
from joinery_runtime.sinks.encode import rows_to_json


@dataclass(frozen=True, slots=True)
class Course:
    """What comes of a job's sessions, by the event time of their last row. Times are milliseconds."""

    after: NextEpoch
    rule: SessionWindow
    input: str

    @classmethod
    def of(cls, after: NextEpoch) -> Course:
        step = after.pipeline.last
        assert isinstance(step.rule, SessionWindow), "a job of sessions has this one step"
        return cls(after, step.rule, step.sides[0].time)

    def goes_out_above(self, last: int) -> int:
        """The watermark above which a session goes out, unless it grows (S4, S5)."""
        return last + self.rule.gap + (self.rule.allowed_lateness if self.rule.drop_late else 0)

    def forgotten_above(self, last: int) -> int:
        return last + self.rule.gap + self.rule.allowed_lateness

    def is_kept(self, last: np.ndarray) -> np.ndarray:
        """Whether epochs that are committed have left it there: rows of whole segments stay stored for longer."""
        return _not_before(last, self.after.horizons[SESSIONS].before)

    def has_gone_out(self, last: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        return np.asarray(emitted | ~_not_before(last, self.after.horizons[COMPLETE].before))

    def goes_out_next(self, last: np.ndarray) -> np.ndarray:
        """Whether the next epoch finds it complete."""
        return ~_not_before(last, self.after.horizons[COMPLETE].now)

    def goes_next(self, last: np.ndarray) -> np.ndarray:
        return ~_not_before(last, self.after.horizons[SESSIONS].now)


def _not_before(last: np.ndarray, horizon: int | None) -> np.ndarray:
    return np.ones(len(last), dtype=bool) if horizon is None else last >= horizon


# --- of one group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptSession:
    """An open session, or the mark of one that reached the cap (`capped`). `due`: it goes out with the next epoch;
    `goes`: the next epoch forgets it."""

    course: Course
    start: int
    last: int
    session_id: int
    capped: bool
    emitted: bool
    due: bool
    goes: bool
    aggregates: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        window = {"window_start": self.start, "window_end": self.last, "session_id": self.session_id}
        until = {"until_input": self.course.input, "until": self.course.forgotten_above(self.last)}
        facts = {"input": self.course.input, **window, "capped": self.capped, "emitted": self.emitted, **until}
        if self.capped:
            return facts
        out = None if self.emitted else self.course.goes_out_above(self.last)
        return {**facts, "goes_out": out, "aggregates": dict(self.aggregates)}

    def line(self) -> str:
        place = f"{time_text(self.start)} to {time_text(self.last)}, id {self.session_id}"
        if self.capped:
            return f"mark of a session that reached maxDuration, {place}: {self._dropping()}"
        values = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.aggregates.items())
        return f"session {place}: {values}{'; ' if values else ''}{self._coming()}"

    def _dropping(self) -> str:
        if self.goes:
            return "it went out; forgotten with the next epoch"
        return f"it went out; rows inside it are dropped until {self._above(self.course.forgotten_above(self.last))}"

    def _coming(self) -> str:
        out, forgotten = self.course.goes_out_above(self.last), self.course.forgotten_above(self.last)
        gone = "forgotten with the next epoch" if self.goes else f"forgotten when {self._above(forgotten)}"
        if self.emitted:
            return f"has gone out; {gone}"
        if self.due:
            return f"goes out with the next epoch; {gone}"
        if out == forgotten:
            return f"goes out, and is forgotten, when {self._above(out)}, unless it grows"
        return f"goes out when {self._above(out)}, unless it grows; {gone}"

    def _above(self, ts: int) -> str:
        now = self.course.after.watermarks[self.course.input]
        return f"the watermark of {self.course.input} ({time_text(now)}) is above {time_text(ts)}"


def kept_sessions(
    after: NextEpoch, wanted: Wanted, live: Sequence[SegmentMeta], segments: Segments
) -> list[KeptSession]:
    """Those of the wanted group in these segments, in order of time."""
    marks = marks_among(live, segments)
    found = [
        _of_group(wanted, segments[meta.key], marked_in(marks, meta.key)) for meta in live if meta.part == SESSIONS
    ]
    if not found:
        return []
    rows = concat(found)
    course, last = Course.of(after), rows.column(TS).to_numpy()
    rows = rows.filter(pa.array(course.is_kept(last)))
    rows = rows.take(pc.sort_indices(pa.table([rows.column(START)], names=[START]), [(START, "ascending")]))
    return list(_sessions(course, wanted, rows))


def _of_group(wanted: Wanted, run: Any, replaced: np.ndarray) -> pa.RecordBatch:
    """The rows of the group that no later row has replaced; two groups may have one hash."""
    numbers = wanted.rows_in(run)
    rows = run.batch.take(pa.array(numbers))
    there = ~(flags(rows, MARK) | np.isin(numbers, replaced))
    (values,) = wanted.key.values
    for name, value in zip(wanted.step.sides[0].intake.keys, values, strict=True):
        there &= _same(rows.column(name), value[0])
    return rows.filter(pa.array(there))


def _same(held: pa.Array, value: pa.Scalar) -> np.ndarray:
    """bool[n]: in groups NULL is a value like others, and so is NaN."""
    if not value.is_valid:
        equal = held.is_null()
    elif pa.types.is_floating(value.type) and math.isnan(value.as_py()):
        equal = pc.is_nan(held).fill_null(False)
    else:
        equal = pc.equal(held, value).fill_null(False)
    return np.asarray(equal.to_numpy(zero_copy_only=False))


def _sessions(course: Course, wanted: Wanted, rows: pa.RecordBatch) -> Iterator[KeptSession]:
    last, forced = rows.column(TS).to_numpy(), flags(rows, FORCED)
    groups = [rows.column(name) for name in wanted.step.sides[0].intake.keys]
    columns = {
        "start": rows.column(START).to_pylist(),
        "last": last.tolist(),
        "session_id": key_hash([*groups, rows.column(START)]).tolist(),
        "capped": forced.tolist(),
        "emitted": (forced | course.has_gone_out(last, flags(rows, EMITTED))).tolist(),
        "due": course.goes_out_next(last).tolist(),
        "goes": course.goes_next(last).tolist(),
        "aggregates": _results(wanted.step, rows, forced),
    }
    for values in zip(*columns.values(), strict=True):
        yield KeptSession(course, **dict(zip(columns, values, strict=True)))


def _results(step: StepSpec, rows: pa.RecordBatch, forced: np.ndarray) -> list[dict[str, Any]]:
    """What each session's aggregates are by now, as in the output; marks have none."""
    assert isinstance(step.rule, SessionWindow), "a job of sessions has this one step"
    of = step.rule.aggregates
    found: list[dict[str, Any]] = [{} for _ in forced]
    numbers = np.flatnonzero(~forced)
    if of and len(numbers):
        results = pa.table(Folding(of).results(rows.take(pa.array(numbers))), names=[each.name for each in of])
        for number, text in zip(numbers.tolist(), rows_to_json(results), strict=True):
            found[number] = json.loads(text)
    return found
