"""What defines a kind of join step, or of the windows of an aggregate: its fields, its rules, its explanation, and what
its state depends on; and what `joinery explain` says about a step, with roughly how much state it will keep.

Each module here is one kind of step, and `aggregate.windows` has the kinds of windows; the model of its fields is the
kind. `STEP_KINDS` in `job.join.steps` and `WINDOW_KINDS` in `job.kinds.aggregate.model` list them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from joinery_runtime.job.model.base import Limits, format_bytes
from joinery_runtime.job.model.cel import Rule
from joinery_runtime.job.model.draft import Finding, JobDraft, Loc
from joinery_runtime.job.model.duration import format_duration, parse_duration
from joinery_runtime.job.model.wording import counted, listed

Rules = tuple[Callable[[JobDraft], Iterator[Finding]], ...]


@dataclass(slots=True)
class Chain:
    """How the steps before this one affect time. `lag` is how far the watermark of an input's time trails what arrives:
    by the input's own delay and the allowedLateness of the step that reads it, and after a step by what the step may
    still keep (rule N3). `distances` bounds `y.ts - x.ts` in joined rows (N2). `window_of` is the input whose time put
    the rows into windows, and `window_lag` how far the ends of windows trail (W5); None: rows are in no window."""

    lag: dict[str, int] = field(default_factory=dict)
    window_of: str | None = None
    window_lag: int = 0
    distances: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def keep_left(self, left: tuple[str, ...], origin: str, kept_ms: int) -> None:
        """Count that left rows are kept for so long after the time of the input `origin`."""
        for name in left:
            if (origin, name) in self.distances:
                self.lag[name] = max(self.lag[name], kept_ms - self.distances[origin, name][0])
        if self.window_of is not None and (origin, self.window_of) in self.distances:
            self.window_lag = max(self.window_lag, kept_ms - self.distances[origin, self.window_of][0])

    def add_bound(self, left: tuple[str, ...], origin: str, right: str, bound_ms: tuple[int, int]) -> None:
        """Count that the step bounds `right.ts - origin.ts`."""
        self.distances[right, right] = (0, 0)
        for name in left:
            if (name, origin) in self.distances:
                low, high = self.distances[name, origin]
                low, high = low + bound_ms[0], high + bound_ms[1]
                self.distances[name, right], self.distances[right, name] = (low, high), (-high, -low)


@dataclass(frozen=True, slots=True)
class StepWords:
    """A step as its explanation names it. `labels` are its sides, `times` the event time of each input;
    `only_inner`: the job is this one step, which is an inner or a semi join. `windows_of_step` is the number, from 1,
    of the step before that has put the rows into the windows of this one (W5)."""

    number: int
    left: tuple[str, ...]
    right: str
    times: Mapping[str, str]
    allowed_lateness: int
    late_data: str
    only_inner: bool
    windows_of_step: int | None = None

    @property
    def labels(self) -> tuple[str, str]:
        return " + ".join(self.left), self.right

    @property
    def dropped(self) -> str:
        """What happens to late rows, in words."""
        return "written to the dead letters and counted" if self.late_data == "dlq" else "dropped and counted"

    @property
    def lateness(self) -> str:
        return f"{format_duration(self.allowed_lateness)} [allowedLateness]"

    def time(self, name: str) -> str:
        return f"{name}.{self.times[name]}"

    def chained(self, name: str) -> bool:
        return self.number > 0 and name != self.right

    def watermark(self, name: str) -> str:
        """Return the name of an input's watermark. A later step sees the one that the step before hands on (rule
        N3)."""
        return f"wm({name} after step {self.number})" if self.chained(name) else f"wm({name})"

    def lower_watermark(self, origin: str | None = None) -> str:
        """Return the lower watermark of both sides; `origin` is the input whose time left rows have, by default the
        first."""
        return f"min({self.watermark(origin or self.left[0])}, {self.watermark(self.right)})"


class StepKind(ABC):
    """One kind of join step, with its durations."""

    field: ClassVar[str]
    """Of a step, as YAML names it."""
    form: ClassVar[str] = ""
    """Of `field`, the part that names the kind; empty: the field itself does."""
    why_last: ClassVar[str] = "the step does not say from which time on its rows come"
    """Why neither a step nor an aggregate can follow it; empty: both can (rule N3)."""
    without_keys: ClassVar[bool] = False
    """Whether it can do without keys (rule J9)."""
    bounds_right: ClassVar[bool] = True
    """Whether it bounds the time of the right row, so that later steps may count from that time (rule N2)."""
    counts: ClassVar[str] = "bounds count from"
    """What precedes the input that `counted_from` names, in messages."""
    never_late: ClassVar[str] = ""
    """Why no row is late; empty: rows may be."""
    what_is_final: ClassVar[str] = ""
    """What late rows cannot change, where it takes none back."""
    windowed: ClassVar[bool] = False
    """Whether rows have WINDOW_COLUMNS to put out."""
    adds_lateness: ClassVar[bool] = True
    """Whether `allowedLateness` counts."""
    shorter: ClassVar[str] = "make the windows shorter"
    """What makes its state smaller."""
    padding: ClassVar[str]
    """When unmatched rows are emitted, padded or (E3) alone."""
    matched: ClassVar[str] = ""
    """When the left rows with a match are emitted by a semi join (E2)."""

    fixed: ClassVar[Mapping[str, str]] = {}
    """Of the signature's durations, with their names for people: those that no edit may change while there is state."""
    widens: ClassVar[Mapping[str, tuple[str, int]]] = {}
    """Of the others: which way each is longer (1 or -1), so that rows that are gone would be missing."""

    rules: ClassVar[Rules] = ()
    """Cross-field rules of a StreamJoin that are this kind's only."""
    cel: ClassVar[Mapping[Any, tuple[Rule, ...]]] = {}
    """The rules that the API server can check, by model, or by model and field."""
    cel_of_step: ClassVar[tuple[Rule, ...]] = ()
    """The same over the fields of a step besides its own."""
    cel_of_job: ClassVar[tuple[Rule, ...]] = ()
    """The same over all of `spec`, such as the names of inputs."""
    schemas: ClassVar[Mapping[Any, dict[str, Any]]] = {}
    """What pydantic's JSON schema does not know, by model and field."""

    @classmethod
    def path(cls) -> tuple[str, ...]:
        """Say where a step names the kind, from the step on."""
        return (cls.field, cls.form) if cls.form else (cls.field,)

    @property
    def aligned(self) -> WindowKind | None:
        """The windows in which the step joins, if they end together."""
        return None

    @property
    def name(self) -> str:
        """The kind in signatures and in `JoinStep.kind`: `asOf`."""
        return self.form or self.field

    @property
    def title(self) -> str:
        """The kind in `<type> <title> join`: `as-of`."""
        return f"{self.name} window"

    @property
    def counted_from(self) -> str | None:
        """The input whose times the step's bounds count from; None: the first one."""
        return None

    @abstractmethod
    def durations(self) -> dict[str, Any]:
        """Return the durations on which the step's state depends, as in the signature, without allowedLateness."""

    @abstractmethod
    def keeps(self, chain: Chain, left: tuple[str, ...], right: str) -> tuple[int, int]:
        """Say how long the left and the right rows are kept in steady flow, in milliseconds of event time after their
        own. Updates `chain` to the times after the step."""

    @abstractmethod
    def bound(self, words: StepWords) -> tuple[str, str]:
        """Return what matches, as a line of the plan: its name, and its text."""

    @abstractmethod
    def kept_until(self, words: StepWords) -> tuple[str, str]:
        """Return per side what follows `rows are kept until`: `wm(payments) > ts + 1h [upper]`."""

    @abstractmethod
    def late(self, words: StepWords) -> str:
        """Return what follows `late rows:`: what happens to them, and when a row is late."""


class WindowKind(ABC):
    """One kind of window, with its durations (milliseconds of event time)."""

    field: ClassVar[str]
    """Of `window`, as YAML names it."""
    columns: ClassVar[tuple[str, ...]]
    """The columns that its rows have beside groups and aggregates, in the order of the output."""
    identity: ClassVar[tuple[str, ...]]
    """Those of `columns` that tell the rows of a group apart, whatever becomes of the window."""
    renames: ClassVar[bool] = False
    """Whether the key of a row can change while its window takes rows."""
    needs_groups: ClassVar[bool] = False
    """Whether all rows together would be in a window that may never end."""
    rows: ClassVar[str]
    """What a row of the state is, in words: `sessions`."""
    shorter: ClassVar[str]
    """What makes its state smaller."""
    reaches: ClassVar[str] = ">"
    """How the watermark compares with `end_text` when a window is emitted."""
    fixed: ClassVar[Mapping[str, str]] = {}
    """Of `durations`, with their names for people: those that no edit may change while there is state."""
    cel: ClassVar[Mapping[Any, tuple[Rule, ...]]] = {}
    """The rules that the API server can check, by model, or by model and field."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        """Yield what is wrong with the window's fields. `data` is what YAML has at the path `at`."""
        yield from ()

    @abstractmethod
    def durations(self) -> dict[str, Any]:
        """Return the durations on which the state depends, as in the signature."""

    @property
    @abstractmethod
    def closes_after(self) -> int:
        """How far the watermark is above a row's event time when its window ends, if no other row extends it."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what the window is, as lines of the plan: names and texts."""

    @property
    @abstractmethod
    def end_text(self) -> str:
        """When a window ends, to follow `wm(orders)` and `reaches`: `last + 30s [gap]`."""

    @abstractmethod
    def late_text(self, watermark: str, late: str) -> str:
        """Say when a row is late that nothing takes back, to follow `dropped and counted when`. `late` is the
        allowedLateness in words."""


def part_behind(field: str, number: int) -> str:
    """Return the part of the state that holds rows of the step `field` behind so many steps: `aggregate`,
    `aggregate.2`."""
    return field if number == 0 else f"{field}.{number + 1}"


def plus(ms: int) -> str:
    return f"{'-' if ms < 0 else '+'} {format_duration(abs(ms))}"


def milliseconds(raw: Any) -> int | None:
    """Return the milliseconds; None if the text is not a duration, which another rule reports."""
    try:
        return parse_duration(raw)
    except ValueError:
        return None


RATE = 1_000  # the rows per second and input that the state estimate assumes

# The bytes that the engine adds to a stored row: key hash, event time, partition, offset.
ENGINE_ROW_BYTES = 8 + 8 + 4 + 8
COMPUTED_BYTES = 20  # of a computed column, whose type is not known here

# Arrow's widths. Those of text, and of binary and JSON, are guesses: 16 and 32 bytes of content, and a 4-byte offset.
BYTES = {
    "boolean": 1,
    "int32": 4,
    "int64": 8,
    "float": 4,
    "double": 8,
    "string": 20,
    "binary": 36,
    "decimal": 16,
    "date": 4,
    "timestamp": 8,
    "json": 36,
}


@dataclass(frozen=True, slots=True)
class SidePlan:
    """How long rows of one side wait. `rows_of` names their input, or the inputs whose joined rows they are.
    `kept_for_ms` is event time after the row's own, in steady flow. `rows` and `bytes` are the expected state at RATE
    rows per second, uncompressed. If the side `holds` sessions, that is the most: each row is a session of its own."""

    part: str
    rows_of: str
    kept_until: str
    kept_for_ms: int
    row_bytes: int
    holds: str = "rows"

    @property
    def rows(self) -> int:
        return self.kept_for_ms * RATE // 1000

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: `title` says what it is, `lines` are (name, text) in order, `shorter` is what makes its state
    smaller. `right` is the input that a join reads beside what comes from before."""

    title: str
    lines: tuple[tuple[str, str], ...]
    sides: tuple[SidePlan, ...]
    shorter: str
    right: str | None = None


def limits_text(limits: Limits, subject: str) -> str:
    """Return the limits in words; `subject` is what the caps are on."""
    sizes = [format_bytes(limits.max_state_bytes)] if limits.max_state_bytes else []
    sizes += [counted(limits.max_records, "row")] if limits.max_records else []
    read = "of that side is read" if subject == "a side" else "is read"
    then = "the job fails" if limits.on_limit == "fail" else f"no more {read} until it has shrunk"
    cap = f"{subject} holds at most {listed(sizes)}, else {then}; " if sizes else ""
    return f"{cap}a key with more than {counted(limits.hot_key_warning, 'row')} is warned about"
