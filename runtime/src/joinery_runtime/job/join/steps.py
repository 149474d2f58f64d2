"""Models of `spec.joins[]` and `spec.select[]`: what matches, for how long rows wait, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from joinery_runtime.job.kinds.as_of import AsOf
from joinery_runtime.job.kinds.base import StepKind
from joinery_runtime.job.kinds.interval import Interval
from joinery_runtime.job.kinds.window import Window
from joinery_runtime.job.model.base import Limits, Model, PositiveDuration, Text, not_yet
from joinery_runtime.job.model.references import KeyPair, parse_reference

JoinType = Literal["inner", "left", "right", "full"]

STEP_KINDS: tuple[type[StepKind], ...] = (Interval, *Window.kinds, AsOf)
FIELDS: tuple[str, ...] = tuple(dict.fromkeys(kind.field for kind in STEP_KINDS))
"""The fields of a step that name its kind."""


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
    late_data: Literal["drop", "reopen", "dlq"] = "drop"
    allowed_lateness: PositiveDuration = 0
    broadcast: Text | None = None
    co_partitioned: Annotated[Literal[False], not_yet("coPartitioned: true", True, todo="leave it out")] = False
    limits: Limits | None = None

    @property
    def matching(self) -> StepKind:
        """How rows are matched in time."""
        written = self.interval or self.as_of
        if written is not None:
            return written
        assert self.window is not None, "a step has an interval, a window or an asOf"
        return self.window.form

    @property
    def kind(self) -> str:
        """`asOf`, `interval` or the form of the window."""
        return self.matching.name

    @property
    def preserved(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right side go out without a match too, padded with nulls (O1)."""
        return self.type in {"left", "full"}, self.type in {"right", "full"}


class SelectItem(Model):
    """One output column: `column` is `input.column`, or names the start or the end of a join's window
    (docs/semantics.md#w4); `expression` is an SQL expression over columns of inputs. Without `as` a column keeps its
    name without the input's."""

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


SIDES = ("left", "right")


def part_names(step_index: int) -> tuple[str, str]:
    """The parts of the state that hold a step's left and right rows: `left` and `right`, then `left.2`, ..."""
    left, right = SIDES if step_index == 0 else (f"{side}.{step_index + 1}" for side in SIDES)
    return left, right
