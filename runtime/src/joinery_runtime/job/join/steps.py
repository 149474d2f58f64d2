"""Models of `spec.joins[]` and `spec.select[]`: what matches, for how long rows wait, and what is emitted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from joinery_runtime.job.kinds.as_of import AsOf
from joinery_runtime.job.kinds.base import StepKind
from joinery_runtime.job.kinds.interval import Interval
from joinery_runtime.job.kinds.window import Window
from joinery_runtime.job.model.base import Bool, Limits, Model, PositiveDuration, Text
from joinery_runtime.job.model.references import EXISTENCE, JoinType

Partitioner = Literal["murmur2", "crc32"]

STEP_KINDS: tuple[type[StepKind], ...] = (Interval, *Window.kinds, AsOf)
FIELDS: tuple[str, ...] = tuple(dict.fromkeys(kind.field for kind in STEP_KINDS))
"""The fields of a step that name its kind."""


class JoinStep(Model):
    """Joins the first input, or what the step before made, with `right`."""

    right: Text = Field(examples=["payments"])
    """The input to join with the first input, or with what the step before made."""
    type: JoinType = "inner"
    """Which rows are emitted without a match too, padded with nulls: none, or those of the left, the right or both.
    `semi` and `anti` emit left rows alone, each once: those with a match, or those without one."""
    keys: dict[str, str] = Field(examples=[{"orders.order_id": "payments.order_id"}])
    """What must be equal: `<earlier input>.column` to `<right>.column`. Either may be an SQL expression over columns of
    one input, such as `lower(orders.email)`. Without entries rows match on time only."""
    interval: Interval | None = None
    """Rows match when the right one's event time is in [lower, upper], counted from that of `of`, both ends included.
    One of `interval`, `window` and `asOf`."""
    window: Window | None = None
    """Rows match when both are in the same window: exactly one of `tumbling`, `hopping` and `session`."""
    as_of: AsOf | None = None
    """Each row takes the version of a table that is valid at its time."""
    where: Text | None = Field(default=None, examples=["orders.amount > 10"])
    """An SQL condition over columns of the inputs (`input.column`) that a pair must meet."""
    filter: Text | None = Field(default=None, examples=["payments.method IS NULL OR payments.method <> 'test'"])
    """An SQL condition on the rows that the step makes, also on those padded with nulls: rows for which it is not true
    are not emitted, and the next step does not get them. From the first window step on, it can name window_start and
    window_end."""
    late_data: Literal["drop", "reopen", "dlq"] = "drop"
    """What happens to late rows: `drop` counts them, `reopen` joins them with what is still kept, `dlq` writes them to
    the dead letters."""
    allowed_lateness: PositiveDuration = Field(default=0, examples=["1m"])
    """How much longer state is kept for rows behind the watermark, a duration."""
    broadcast: Text | None = Field(default=None, examples=["rates"])
    """In a join without keys, the side that every shard gets in full."""
    co_partitioned: Bool = False
    """Whether both topics are partitioned by the join key alike, so that executors exchange no rows. Every record is
    checked: one in another partition than its key's is a bad record. For a job of one step with one key."""
    partitioner: Partitioner = "murmur2"
    """With `coPartitioned`: how the producers of both topics choose a key's partition. `murmur2` is the default of
    Kafka's Java client (and librdkafka's `murmur2_random`), `crc32` that of librdkafka (`consistent_random`)."""
    limits: Limits | None = None
    """Caps on the state of each side, and what happens at one."""

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
        """Whether rows of the left and of the right side are emitted without a match too (O1, E3)."""
        return self.type in {"left", "full", "anti"}, self.type in {"right", "full"}

    @property
    def emits_right(self) -> bool:
        """Whether what the step makes has the columns of its right input."""
        return self.type not in EXISTENCE


class SelectItem(Model):
    """One output column: exactly one of `column` and `expression`. Window columns: docs/semantics.md#w4."""

    column: Text | None = Field(default=None, examples=["orders.order_id"])
    """`input.column`, or of a window join: window_start, window_end. With `aggregate`: a group, an aggregate, or a
    column of the window."""
    expression: Text | None = Field(default=None, examples=["orders.amount * rates.rate"])
    """An SQL expression over such columns, in place of `column`."""
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = Field(default=None, examples=["amount_eur"])
    """The output column's name, which an expression needs; if absent, the column's own without its input's."""


SIDES = ("left", "right")


def part_names(step_index: int) -> tuple[str, str]:
    """Return the parts of the state that hold a step's left and right rows: `left` and `right`, then `left.2`, ..."""
    left, right = SIDES if step_index == 0 else (f"{side}.{step_index + 1}" for side in SIDES)
    return left, right
