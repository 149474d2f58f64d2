"""The bases of all kinds: those that join two sides, and those that aggregate the rows of one or emit some of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Self, TypeVar

import pyarrow as pa

from joinery_runtime.core import kinds
from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.pipeline.expression import Expression
from joinery_runtime.core.pipeline.sides import LEFT, WINDOW_END, Intake, SideSpec
from joinery_runtime.core.pipeline.spec import Distance, Emits, StepOperator, StepSpec
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times, Watermark, earlier
from joinery_runtime.job import JoinStep
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow
from joinery_runtime.job.kinds.base import StepKind, WindowKind
from joinery_runtime.job.kinds.ranking import RankingKind
from joinery_runtime.job.model.references import WINDOW_START

_Kind = TypeVar("_Kind", bound=StepOperator)


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
        """Return the kind as the step asks for it; `only`: the job has no other step."""

    @property
    def time_in_window(self) -> str:
        """The column that is the time of left rows which a step before has put into windows (W5)."""
        return WINDOW_START

    def flags_rows(self, side: int, emits: Emits, *, preserved: bool) -> bool:
        """Whether stored rows of a side, preserved or not, carry flags."""
        return False


class Aggregating(StepOperator):
    """A `StepOperator` of a step with one side, whose state is made of groups with their accumulators."""

    __slots__ = ()

    written_as: ClassVar[tuple[type[WindowKind], ...]]
    """The windows of a job that the kind computes."""
    column_types: ClassVar[Mapping[str, pa.DataType]]
    """The columns of the window in the output, as the kind makes them."""

    @classmethod
    @abstractmethod
    def of(cls, aggregation: Aggregation, aggregates: tuple[AggregateCall, ...], /) -> Self:
        """Return the kind with its durations, and the aggregates that it computes."""

    def of_same_windows(self) -> Self:
        """Return the kind for rows that an aggregate with the same windows has made: each is in the window that it
        comes from."""
        raise TypeError(f"{type(self).__name__} aggregates no rows of its own windows")

    @abstractmethod
    def state_schema(self, intake: Intake) -> pa.Schema:
        """Return the columns of the segments."""


class Ranking(StepOperator):
    """A `StepOperator` of a step with one side, which emits some of its rows. The state is made of rows, with flags on
    those that have left."""

    __slots__ = ()

    written_as: ClassVar[tuple[type[RankingKind], ...]]
    """The forms in which a job asks for this kind."""
    allowed_lateness: int
    """How far behind the watermark the horizon is, in milliseconds."""

    @classmethod
    @abstractmethod
    def of(
        cls,
        ranking: RankingKind,
        expressions: tuple[Expression, ...],
        of_windows: AlignedWindow | None = None,
        totals: tuple[AggregateCall, ...] = (),
        /,
    ) -> Self:
        """Return the kind as the job asks for it, with its compiled `expressions`. `of_windows`: an aggregate or
        joins with these windows make the rows, over which `totals` are computed; `ranking` has the ranks."""

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        return True

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        """See D2 and R3."""
        (side,) = step.sides
        return {side.part: less_allowed_lateness(side, lows, self.allowed_lateness)}


def find_kinds(base: type[_Kind]) -> tuple[type[_Kind], ...]:
    """Find the kinds that extend `base`. A new kind only needs a module in `core.kinds`, or a package with a module
    `kind`."""
    modules = [
        import_module(f"{kinds.__name__}.{module_info.name}{'.kind' if module_info.ispkg else ''}")
        for module_info in iter_modules(kinds.__path__)
    ]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        if value is not base
    )


def less_allowed_lateness(side: SideSpec, lows: OutputWatermarks, allowed_lateness: int) -> Watermark:
    """Return the horizon of a step with one side: what the step before hands on (N3), or the input's own, less the
    allowed lateness (ms). Rows that joins have put into windows come by the ends of these (R8)."""
    if side.one_window:
        return earlier(lows[WINDOW_END], 1)
    low = lows[side.time]  # of an input, less the allowed lateness already
    return earlier(low, allowed_lateness) if side.intake.chained else low


def lower_of_both(step: StepSpec, lows: OutputWatermarks) -> Mapping[str, int | None]:
    """Return the horizons of window kinds: the lower of the two times closes both sides. Rows that are in a window
    already close by its end: all of them have come once that is below the lowest one that may still come."""
    left, right = step.sides
    left_low = earlier(lows[WINDOW_END], 1) if left.one_window else lows[left.time]
    both = lower_of(left_low, lows[right.time])
    return {left.part: both, right.part: both}


def lowest_of_left(
    step: StepSpec, lows: OutputWatermarks, lowest_kept: Watermark, distance: Distance
) -> OutputWatermarks:
    """N3 for the times of the left side and the windows of its rows; of the kept rows none that may still be emitted is
    before `lowest_kept`."""
    left, low_by_time = step.sides[LEFT], dict[str, Watermark]()
    for name in (*left.inputs, WINDOW_END):
        least = distance(name, left.time)
        if name in lows and least is not None:
            low_by_time[name] = lower_of(lows[name], earlier(lowest_kept, -least))
    return low_by_time


def lower_of(first: Watermark, second: Watermark) -> Watermark:
    """Return the lower of two times; None while one of them is unknown."""
    return None if first is None or second is None else min(first, second)
