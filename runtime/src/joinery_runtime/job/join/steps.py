"""Models of `spec.joins[]` and `spec.select[]`: what matches, for how long rows wait, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from joinery_runtime.job.model.base import ByteCount, Int, Model, PositiveDuration, Text, not_yet
from joinery_runtime.job.model.duration import format_duration, parse_duration


def _bound(value: Any) -> int:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error} (a bound is constant, it cannot depend on a column)") from error


Bound = Annotated[int, BeforeValidator(_bound), PlainSerializer(format_duration, when_used="json")]
Length = Annotated[PositiveDuration, Field(gt=0)]
JoinType = Literal["inner", "left", "right", "full"]

WINDOW_COLUMNS = ("window_start", "window_end")
"""What the rows of a window join carry after the user's columns (rule W4): int64 milliseconds."""


class Interval(Model):
    """`right.ts - of.ts` lies in [lower, upper], both ends included, in milliseconds; either may be negative. `of`
    names the input whose times the bounds are counted from: the first one, or any that a step before has joined."""

    of: Text
    lower: Bound
    upper: Bound


class Hopping(Model):
    """A window of `size` starts every `slide`; a row is in several when they overlap."""

    size: Length
    slide: Length


class Session(Model):
    """A window ends when neither side has had a row of the key for longer than `gap`."""

    gap: Length


class Window(Model):
    """Rows match when both are in the same window; exactly one of the three."""

    tumbling: Length | None = None
    hopping: Hopping | None = None
    session: Session | None = None


class AsOf(Model):
    """Each row takes the table's version that is valid at its time. Superseded versions are kept for
    `historyRetention`; rows wait for `grace` so that late versions are seen."""

    history_retention: Length
    grace: PositiveDuration = 0


class Limits(Model):
    """Caps on each side of the step, and what happens at one: `fail` stops the job before anything of the epoch is
    committed; `pause` reads no more of that side until its state has shrunk. A key with more rows than `hotKeyWarning`
    is warned about. `maxStateBytes` is a number of bytes, or text as 500M and 10Gi."""

    max_state_bytes: ByteCount | None = None
    max_records: Annotated[Int, Field(ge=1)] | None = None
    on_limit: Literal["fail", "pause"] = "fail"
    hot_key_warning: Annotated[Int, Field(ge=1)] = 100_000


@dataclass(frozen=True, slots=True)
class Reference:
    """`orders.amount` taken apart. A column name may itself hold dots, an input name never does."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


def parse_reference(text: str) -> Reference | None:
    """None when the text is not `input.column`."""
    input_name, dot, column = text.partition(".")
    return Reference(input_name, column) if dot and input_name and column else None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One equality of a step: `left` is a column of an input joined before, `right` one of the step's right input."""

    left: Reference
    right: Reference


StepKind = Literal["interval", "tumbling", "hopping", "session", "asOf"]


class JoinStep(Model):
    """Joins the first input, or what the step before made, with `right`. `keys` maps `<earlier>.column` to
    `right.column`; without keys, `broadcast` names the side that every shard gets whole."""

    right: Text
    type: JoinType = "inner"
    keys: dict[str, str]
    interval: Interval | None = None
    window: Window | None = None
    as_of: AsOf | None = None
    where: Text | None = None
    late_data: Literal["drop", "reopen"] = "drop"
    allowed_lateness: PositiveDuration = 0
    broadcast: Text | None = None
    co_partitioned: Annotated[Literal[False], not_yet("coPartitioned: true", True, todo="leave it out")] = False
    limits: Limits | None = None

    @property
    def kind(self) -> StepKind:
        """Which rule matches rows: `asOf`, `interval` or the kind of window."""
        if self.as_of is not None or self.window is None:
            return "asOf" if self.as_of is not None else "interval"
        if self.window.session is not None:
            return "session"
        return "hopping" if self.window.hopping is not None else "tumbling"

    @property
    def preserved(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side go out without a match too, padded with nulls (O1)."""
        return self.type in {"left", "full"}, self.type in {"right", "full"}


class SelectItem(Model):
    """One output column: `column` is `input.column`, or `expression` an SQL expression over such columns; without `as`
    a column keeps its name without the input's."""

    column: Text | None = None
    expression: Text | None = None
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = None


def key_pairs(step: JoinStep) -> tuple[KeyPair, ...]:
    """The step's keys as references, in order."""
    pairs = ((parse_reference(left), parse_reference(right)) for left, right in step.keys.items())
    return tuple(KeyPair(left, right) for left, right in pairs if left and right)


def output_prefixes(inputs: Sequence[str]) -> tuple[str, ...]:
    """What names the columns of each input where no `select` does (rule J10)."""
    return ("left", "right") if len(inputs) == 2 else tuple(inputs)
