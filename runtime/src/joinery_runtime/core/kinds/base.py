"""The base of all kinds that join two sides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from joinery_runtime.core.pipeline.spec import Emits, StepOperator, StepSpec
from joinery_runtime.core.pipeline.watermark import OutputWatermarks
from joinery_runtime.job import JoinStep
from joinery_runtime.job.kinds.base import StepKind


class Join(StepOperator):
    """A `StepOperator` of step with a left and a right side, whose state is made of rows."""

    __slots__ = ()

    written_as: ClassVar[tuple[type[StepKind], ...]]
    """The forms in which a job asks for this kind."""
    right_is_table: ClassVar[bool] = False
    """Whether the right side's rows are versions of a table."""

    @classmethod
    @abstractmethod
    def of(cls, step: JoinStep, only: bool, /) -> Self:
        """The kind as the step asks for it; `only`: the job has no other step."""

    def flags_rows(self, side: int, emits: Emits, *, preserved: bool) -> bool:
        """Whether stored rows of a side, preserved or not, carry flags."""
        return False


def lower_of_both(step: StepSpec, lows: OutputWatermarks) -> Mapping[str, int | None]:
    """The horizons of window kinds: the lower of the two times closes both sides."""
    left, right = step.sides
    low, other = lows[left.time], lows[right.time]
    both = None if low is None or other is None else min(low, other)
    return {left.part: both, right.part: both}
