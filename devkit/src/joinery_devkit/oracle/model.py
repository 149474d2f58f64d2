"""A job as the oracle sees it: its steps as plain values, and what each step makes of two rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from joinery_devkit.oracle.rows import Joined, Values, is_nan
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.join.steps import JoinStep
from joinery_runtime.job.kinds.aggregate.model import AggregateWindow
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow, HoppingOfGroup, OwnWindow
from joinery_runtime.job.model.references import EXISTENCE, JoinType, Reference, parse_reference

Span = tuple[int, int]  # the start and the end of a window; the end is not in it
_HOUR, _DAY = 3_600_000, 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LEFT, RIGHT = 0, 1
FILTERED_ROWS = "filtered_rows"
FAILED = "failed"
_TIMES = ("window_start", "window_end")

ByInput = Mapping[str, Values]
Check = Callable[[ByInput], bool | None]
Filter = Callable[[Values], bool | None]
Residual = Callable[[Values, Values], bool | None]
KeyColumn = str | Callable[[Values], Any]
"""A column of an input, or what a computed key makes of the input's columns (J12)."""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """`right.ts` minus the time of the left row is in [lower, upper], in milliseconds."""

    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Windows [n * slide + offset, n * slide + offset + size), in milliseconds; tumbling if slide equals size. With
    `zone`, these are local times (W7)."""

    size: int
    slide: int
    offset: int = 0
    zone: str | None = None

    def spans(self, ts: int) -> list[Span]:
        """Return the windows that hold the time."""
        return hopping_spans(self.size, self.slide, self.offset, self.zone, ts)

    @property
    def longest(self) -> int:
        """How long a window is at most, which bounds the distance of times in it."""
        return Windows(self.size, self.slide, self.offset, zone=self.zone).longest


@dataclass(frozen=True, slots=True)
class SessionRule:
    gap: int


@dataclass(frozen=True, slots=True)
class AsOfRule:
    retention: int
    grace: int = 0


Rule = IntervalRule | WindowRule | SessionRule | AsOfRule


@dataclass(frozen=True, slots=True)
class Predicates:
    """A step's `where`, split into what the left side, the right side and only both together decide. Each takes columns
    by input (NULLs for a padded one), and holds only if it is True. `left_reads` are the inputs that `left` reads."""

    left: Check | None = None
    right: Check | None = None
    both: Check | None = None
    left_reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """One join step. `keys` are (an earlier input, its column, the right input's column). A left row has the time of
    `left_input`; None: the first input."""

    right: str
    rule: Rule
    keys: Sequence[tuple[str, KeyColumn, KeyColumn]]
    type: JoinType = "inner"
    allowed_lateness: int = 0
    reopen: bool = False
    left_input: str | None = None
    one_window: bool = False
    """Whether a step before has put left rows into a window each, in which this step joins them (W5)."""
    predicates: Predicates = field(default_factory=Predicates)
    keeps: Check | None = None
    """The condition on the rows that the step makes (J11)."""

    def filtered(self, rows: Iterable[Joined], dropped: Mapping[str, Counter[str]]) -> list[Joined]:
        """Return the rows that the step emits, of those that it makes; counts the others."""
        joined = list(rows)
        emitted = [row for row in joined if self.keeps is None or self.keeps(row.columns) is True]
        if len(emitted) < len(joined):
            dropped[self.right][FILTERED_ROWS] += len(joined) - len(emitted)
        return emitted

    def preserved(self, side: int) -> bool:
        return self.type in {"full", ("left", "right")[side]} or (self.type == "anti" and side == LEFT)

    @property
    def emits_right(self) -> bool:
        """Whether the step's rows have columns of the right input; semi and anti joins emit left rows alone (E1)."""
        return self.type not in EXISTENCE

    def key(self, side: int, row: Joined) -> tuple[Any, ...]:
        if side == LEFT:
            return tuple(_key_value(row.values(name), column) for name, column, _ in self.keys)
        return tuple(_key_value(row.values(self.right), column) for _, _, column in self.keys)

    def why_unjoinable(self, side: int, row: Joined) -> str | None:
        """Why a row cannot match (J4); None if it can. NaN equals nothing (J1), so a key with NaN counts as null."""
        if any(value is None or is_nan(value) for value in self.key(side, row)):
            return "null_key"
        check = (self.predicates.left, self.predicates.right)[side]
        return "filtered" if check is not None and check(row.by_input) is not True else None

    def fits(self, left: Joined, right: Joined) -> bool:
        """Whether two rows have equal keys and a true residual, whatever their times."""
        if self.key(LEFT, left) != self.key(RIGHT, right):
            return False
        both = self.predicates.both
        return both is None or both({**left.by_input, **right.by_input}) is True


def _key_value(values: Values, column: KeyColumn) -> Any:
    return values[column] if isinstance(column, str) else column(values)


@dataclass(frozen=True, slots=True)
class Projection:
    """One output column: an input's column, what `computed` makes of all inputs' columns, or the start (0) or end (1)
    of the `window`."""

    name: str
    input: str = ""
    column: str = ""
    computed: Callable[[ByInput], Any] | None = None
    window: int | None = None

    def of(self, row: Joined) -> Any:
        if self.window is not None:
            return None if row.window is None else row.window[self.window]
        if self.computed is not None:
            return self.computed(row.columns)
        return row.values(self.input)[self.column]


def output_row(row: Joined, columns: Sequence[Projection]) -> dict[str, Any]:
    """Return the row as it is emitted."""
    return {column.name: column.of(row) for column in columns}


def output_columns(job: StreamJoin, computed: Mapping[str, Callable[[ByInput], Any]] | None = None) -> list[Projection]:
    """Return the output columns (J10, W4). `computed` has the expressions of `select` in Python, by output name."""
    if job.select is None:
        windowed = any(step.window is not None for step in job.joins)
        times = [Projection(name, window=n) for n, name in enumerate(_TIMES) if windowed]
        absent = {step.right for step in job.joins if step.type in EXISTENCE}
        always, inputs = job.spec.prefixes == "always", [side for side in job.spec.inputs if side.name not in absent]
        prefixes = ("left", "right") if always and len(inputs) == 2 else [side.name for side in inputs]
        columns = [
            (prefix, side.name, name) for prefix, side in zip(prefixes, inputs, strict=True) for name in side.types
        ]
        having = Counter([*(name for *_, name in columns), *(time.name for time in times)])
        every = [
            Projection(f"{prefix}_{name}" if always or having[name] > 1 else name, side, name)
            for prefix, side, name in columns
        ]
        return [*every, *times]
    return [
        Projection(item.as_ or "", computed=(computed or {})[item.as_ or ""])
        if item.column is None
        else _selected(item.column, item.as_)
        for item in job.select
    ]


def steps_of(
    job: StreamJoin,
    predicates: Mapping[int, Predicates],
    keeps: Mapping[int, Check] | None = None,
    key_values: Mapping[str, Callable[[Values], Any]] | None = None,
) -> tuple[Step, ...]:
    """Return the job's steps; `predicates` and `keeps`, the filters of steps, are by the step's number, from 0. What
    the left side of a later step decides, and an earlier step can check, counts there too (J4). `key_values` has the
    computed keys in Python, by their texts, of which each begins with its input."""
    checked = {number: predicates.get(number, Predicates()) for number in range(len(job.joins))}
    for number, step in enumerate(job.joins):
        step_predicates = predicates.get(number, Predicates())
        if step_predicates.left is not None and step_predicates.left_reads and step.type in {"inner", "right", "semi"}:
            earliest = _earliest(job, number, step_predicates.left_reads)
            if earliest is not None:
                own, right = checked[earliest], job.joins[earliest].right
                if right not in step_predicates.left_reads:
                    checked[earliest] = replace(own, left=_both(own.left, step_predicates.left))
                elif step_predicates.left_reads == {right} and job.joins[earliest].as_of is None:
                    checked[earliest] = replace(own, right=_both(own.right, step_predicates.left))
                else:  # also what reads a table alone: it is about the version that was found (A1)
                    checked[earliest] = replace(own, both=_both(own.both, step_predicates.left))
    by_step = keeps or {}
    first_windows = next((n for n, step in enumerate(job.joins) if step.window is not None), len(job.joins))
    return tuple(
        replace(
            _step(step, checked[n], key_values or {}),
            keeps=by_step.get(n),
            one_window=n > first_windows and step.window is not None,
        )
        for n, step in enumerate(job.joins)
    )


def _earliest(job: StreamJoin, number: int, reads: frozenset[str]) -> int | None:
    earliest = None
    for earlier in range(number - 1, -1, -1):
        step = job.joins[earlier]
        if step.type in {"inner", "semi"}:
            earliest = earlier
        if step.right in reads or step.type in {"right", "full"}:
            return earliest
    return earliest


def _both(first: Check | None, other: Check | None) -> Check:
    checks = [check for check in (first, other) if check is not None]
    return lambda columns: all(check(columns) is True for check in checks)


def _step(step: JoinStep, predicates: Predicates, key_values: Mapping[str, Callable[[Values], Any]]) -> Step:
    def column(text: str) -> KeyColumn:
        return key_values.get(text, _reference(text).column)

    keys = [(_reference(left).input, column(left), column(right)) for left, right in step.keys.items()]
    return Step(
        right=step.right,
        rule=_rule(step),
        keys=tuple(keys),
        type=step.type,
        allowed_lateness=step.allowed_lateness,
        reopen=step.late_data == "reopen",
        left_input=step.matching.counted_from,
        predicates=predicates,
    )


def _rule(step: JoinStep) -> Rule:
    if step.interval is not None:
        return IntervalRule(step.interval.lower, step.interval.upper)
    if step.as_of is not None:
        return AsOfRule(step.as_of.history_retention, step.as_of.grace)
    assert step.window is not None, "a step has a bound on time (J8)"
    if step.window.session is not None:
        return SessionRule(step.window.session.gap)
    aligned = step.window.offset or 0, step.window.time_zone
    if step.window.hopping is not None:
        return WindowRule(step.window.hopping.size, step.window.hopping.slide, *aligned)
    assert step.window.tumbling is not None, "a window has one of three forms"
    return WindowRule(step.window.tumbling, step.window.tumbling, *aligned)


def _selected(column: str, name: str | None) -> Projection:
    if column in _TIMES:
        return Projection(name or column, window=_TIMES.index(column))
    source = _reference(column)
    return Projection(name or source.column, source.input, source.column)


def _reference(text: str) -> Reference:
    reference = parse_reference(text)
    assert reference is not None, f"{text!r} is <input>.<column>"
    return reference


# --- aligned windows, by trial (rules G1, G12 and W7) -----------------------------------------------------------------


def spans_of(window: AggregateWindow | OwnWindow, ts: int) -> list[Span]:
    """Return the windows of an aggregate that hold the time (G1)."""
    cumulative = window.cumulative
    if cumulative is None:
        form = window.form
        assert isinstance(form, AlignedWindow), "of aligned windows"
        every = form.slide if isinstance(form, HoppingOfGroup) else form.size
        return hopping_spans(form.size, every, form.offset, form.time_zone, ts)
    steps = range(cumulative.step, cumulative.size + 1, cumulative.step)
    if (zone := cumulative.time_zone) is not None:
        begins = _local_begins(cumulative.size, cumulative.size, cumulative.offset, ts)
        return _existing([(start, start + length) for start in begins for length in steps], zone, ts)
    start = ts - (ts - cumulative.offset) % cumulative.size
    return [(start, start + length) for length in steps if ts < start + length]


def hopping_spans(size: int, every: int, offset: int, zone: str | None, ts: int) -> list[Span]:
    """Return the windows that hold the time, of those that begin every so often. All in milliseconds."""
    if zone is not None:
        begins = _local_begins(size, every, offset, ts)
        return _existing(((start, start + size) for start in begins), zone, ts)
    last = ts - (ts - offset) % every
    return [(start, start + size) for start in range(last, ts - size, -every)]


def _local_begins(size: int, every: int, offset: int, ts: int) -> Iterator[int]:
    """Yield the local times at which windows begin up to two days around the time."""
    day = ts - ts % _DAY
    reach = range(day - size - 2 * _DAY + offset % _HOUR, day + 2 * _DAY, _HOUR)
    return (at for at in reach if (at - offset) % every == 0)


def _existing(spans: Iterable[Span], zone: str, ts: int) -> list[Span]:
    """Return the windows of a zone that hold the time (G12), of `spans` of local time. Of windows that end at one
    moment, the first one counts."""
    by_end: dict[int, Span] = {}
    for start, end in sorted(spans, key=lambda span: span[::-1]):
        moment = _first_at(zone, end)
        by_end.setdefault(moment, (_first_at(zone, start), moment))
    return [span for span in by_end.values() if span[0] <= ts < span[1]]


@lru_cache(maxsize=100_000)
def _first_at(zone: str, local: int) -> int:
    """Return the first moment at which the zone's clocks show the local time or a later one, by trial: minute by
    minute, as clocks have changed at full minutes since 1972."""
    moment = local - 15 * _HOUR  # clocks are at most 14 hours ahead of UTC
    while _shown(zone, moment) < local:
        moment += 60_000
    full = moment - moment % 60_000
    return full if _shown(zone, full) >= local else moment


def _shown(zone: str, moment: int) -> int:
    """Return what the zone's clocks show, in milliseconds since 1970 by these clocks."""
    local_time = (_EPOCH + timedelta(milliseconds=moment)).astimezone(ZoneInfo(zone))
    return round((local_time.replace(tzinfo=UTC) - _EPOCH) / timedelta(milliseconds=1))
