"""Caps on the state of each side of a step (`spec.joins[].limits`): pure decisions over sizes, no I/O, no clock.

`onLimit: fail` stops the job before it commits an epoch that would take a side over its cap. The plan stays, and a
start with a higher cap replays it. With `onLimit: pause` the epoch is committed, and no records of that side's inputs
are read while the side is over its cap. The inputs whose progress releases the side's rows must then advance; if they
are paused too, nothing would ever change, so the job stops as with `fail`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.sides import FLAGS
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.report import StateSize
from joinery_runtime.errors import LimitReached


@dataclass(frozen=True, slots=True)
class StateQuota:
    """What one part of the state may hold (None: any amount), and whether its inputs are paused at the cap."""

    max_rows: int | None = None
    max_bytes: int | None = None
    pauses: bool = False

    def over(self, size: StateSize) -> Iterator[tuple[str, int, int]]:
        """Yield each limit that the size exceeds: the limit's name, the size, and the cap."""
        for name, amount, cap in (
            ("maxRecords", size.rows, self.max_rows),
            ("maxStateBytes", size.bytes, self.max_bytes),
        ):
            if cap is not None and amount > cap:
                yield name, amount, cap


@dataclass(frozen=True, slots=True)
class StateLimits:
    """A job's limits: caps by part of the state, and per step the number of rows of one key that causes a warning."""

    caps: Mapping[str, StateQuota] = field(default_factory=dict)
    hot_keys: Mapping[int, int] = field(default_factory=dict)

    @property
    def capped(self) -> bool:
        """Whether any part has a cap."""
        return any(cap.max_rows is not None or cap.max_bytes is not None for cap in self.caps.values())


@dataclass(frozen=True, slots=True)
class ExceededQuota:
    """A part that is over its cap. `limit` says whether `amount` and `cap` are rows or bytes."""

    part: str
    limit: str
    amount: int
    cap: int

    def words(self, pipeline: Pipeline) -> str:
        unit = "rows" if self.limit == "maxRecords" else "bytes"
        step, side = pipeline.side(self.part)
        return f"{step.side_name(side)} has {self.amount:,} {unit}, {self.limit} is {self.cap:,}"


# --- fail -------------------------------------------------------------------------------------------------------------


def reject_growth(
    limits: StateLimits, pipeline: Pipeline, before: Mapping[str, StateSize], after: Mapping[str, StateSize], epoch: int
) -> None:
    """Raise LimitReached if this epoch takes a part with `onLimit: fail` over its cap. A part that was over it before,
    because the job was edited, may shrink."""
    for part, cap in limits.caps.items():
        if cap.pauses:
            continue
        size = before.get(part)
        old = {} if size is None else {"maxRecords": size.rows, "maxStateBytes": size.bytes}
        for name, amount, most in cap.over(after[part]):
            if amount > old.get(name, 0):
                over = ExceededQuota(part, name, amount, most)
                raise _limit_reached(pipeline, over, f"after epoch {epoch}, of which nothing was committed")


def _limit_reached(pipeline: Pipeline, over: ExceededQuota, reason: str) -> LimitReached:
    return LimitReached(
        "The state is over its limits",
        facts=f"{over.words(pipeline)}, {reason}",
        todo=f"Nothing is lost. Raise limits.{over.limit} of that step and start the job again: it resumes where it "
        "was. Or keep fewer rows with a narrower bound, a `where` or less lateness. `joinery state stats` shows what "
        "each side stores and which watermark it waits for",
    )


# --- pause ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputActivity:
    """The inputs at the time of planning: those with unread records, idle ones (T4), those that have ended, and the
    watermarks of all."""

    unread: Collection[str]
    idle: Collection[str]
    ended: Collection[str]
    watermarks: Mapping[str, Watermark]


class Pauses:
    """What caps with `onLimit: pause` mean for the next plan, given the live segments."""

    def __init__(self, limits: StateLimits, pipeline: Pipeline, segments: Collection[SegmentMeta]) -> None:
        pausing = {part: cap for part, cap in limits.caps.items() if cap.pauses}
        sizes = StateSize.by_part(segments if pausing else (), pipeline.parts())
        self._pipeline, self._segments = pipeline, segments
        self.over = tuple(
            ExceededQuota(part, *excess) for part, cap in pausing.items() for excess in cap.over(sizes[part])
        )

    def inputs(self) -> dict[str, str]:
        """Return the paused inputs, each with the reason."""
        return {name: over.words(self._pipeline) for over in reversed(self.over) for name in self._paused_by(over)}

    def shrinks(self, horizons: Horizons) -> bool:
        """Return whether an epoch with these horizons drops segments of a part that is over its cap, whatever it
        reads."""
        parts = {over.part for over in self.over}
        segments = (meta for meta in self._segments if meta.part.removesuffix(FLAGS) in parts)
        return any(times.expired(self._pipeline, meta, horizons) for meta in segments)

    def stuck_error(self, activity: InputActivity) -> LimitReached | None:
        """Return why unread records can never be read: the inputs that would release rows of the part are paused too,
        or idle. None if there are no such records."""
        # The inputs that will still be read, now or after others have been.
        everything = {spec.name for spec in self._pipeline.inputs}
        progressing = (everything - self.inputs().keys() - set(activity.idle)) | set(activity.ended)
        paused = everything - set(activity.idle)
        causes = {name: [over.part for over in self.over if name in self._paused_by(over)] for name in paused}
        while resumed := {
            name
            for name in paused - progressing
            if all(self._releasing_inputs(part, activity) <= progressing for part in causes[name])
        }:
            progressing |= resumed
        for over in self.over:
            waiting = [name for name in self._paused_by(over) if name in activity.unread and name not in progressing]
            if waiting:
                held_up = ", ".join(sorted(self._releasing_inputs(over.part, activity) - progressing))
                reason = f"{', '.join(waiting)} waits for it to shrink, and {held_up} is paused or idle too"
                return _limit_reached(self._pipeline, over, reason)
        return None

    def _paused_by(self, over: ExceededQuota) -> tuple[str, ...]:
        step, side = self._pipeline.side(over.part)
        return step.sides[side].inputs

    def _releasing_inputs(self, part: str, activity: InputActivity) -> set[str]:
        """Return the inputs whose progress releases rows of the part (docs/architecture.md, "Horizons")."""
        step, side = self._pipeline.side(part)
        return step.kind.released_by(step, side, activity.watermarks)
