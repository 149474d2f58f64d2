"""Late records that go to the dead letters (`lateData: dlq`, rules J6, W2, S4).

Where event times and the plan alone decide, records are judged as they are read. Where other rows of the key decide
too, reading finds the few records that may be late; they go with the rows to the shard, whose step says which of them
are. Either way a replay finds the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.pipeline.watermark import Watermark
from joinery_runtime.job.model.duration import format_time


@dataclass(frozen=True, slots=True)
class LateRows:
    """Rows of an input with event times below `accept_from` (ms) are late, or where they are not `certain`, may be.
    `watermarks` are those in force, of the inputs that the step joins; `rule` is the kind's `late_rule`."""

    accept_from: int
    watermarks: Mapping[str, Watermark]
    rule: str
    certain: bool

    @classmethod
    def of(
        cls, pipeline: Pipeline, name: str, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> LateRows | None:
        """The late rows of an input; None: no row of it is late, or late rows are none of the dead letters."""
        place = pipeline.input(name)
        step = pipeline.steps[place.step]
        if not step.kind.late_to_dead_letters:
            return None
        lowest = step.kind.late_below(step, place.side, watermarks, horizons)
        joined = {side.time: watermarks[side.time] for side in step.sides}
        return None if lowest is None else cls(lowest, joined, step.kind.late_rule, not step.kind.judges_late_records)

    def reason(self, event_time: str, ts: int) -> str:
        """For the dead letter of a row at `ts`; `event_time` names its column."""
        known = ", ".join(f"{name} {format_time(at)}" for name, at in self.watermarks.items())
        return (
            f"late: event time {event_time!r} is {format_time(ts)}, {self.rule.format(format_time(self.accept_from))} "
            f"(watermark: {known})"
        )
