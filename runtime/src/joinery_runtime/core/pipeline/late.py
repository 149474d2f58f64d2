"""Late records that go to the dead letters (`lateData: dlq`, rules J6, W2, S4).

Where event times and the plan alone decide, records are judged as they are read. Where other rows of the key also
decide, the reader only finds the few records that may be late. These go with the rows to the shard, whose step decides.
Either way a replay finds the same records.
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
    """Judges rows of an input: those with event times below `accept_from` (ms) are late or, unless `certain`, may be.
    `watermarks` are the current ones of the inputs that the step joins. `rule` is the kind's `late_rule`."""

    accept_from: int
    watermarks: Mapping[str, Watermark]
    rule: str
    certain: bool

    @classmethod
    def of(
        cls, pipeline: Pipeline, name: str, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> LateRows | None:
        """The judge of an input's rows. None: none of its rows is late, or late rows do not go to the dead letters."""
        input_spec = pipeline.input(name)
        step = pipeline.steps[input_spec.step]
        if not step.kind.late_to_dead_letters:
            return None
        lowest = step.kind.late_below(step, input_spec.side, watermarks, horizons)
        joined = {side.time: watermarks[side.time] for side in step.sides}
        return None if lowest is None else cls(lowest, joined, step.kind.late_rule, not step.kind.judges_late_records)

    def reason(self, event_time: str, ts: int) -> str:
        """The reason in the dead letter of a row at `ts`. `event_time` names its column."""
        watermarks = ", ".join(f"{name} {format_time(at)}" for name, at in self.watermarks.items())
        return (
            f"late: event time {event_time!r} is {format_time(ts)}, {self.rule.format(format_time(self.accept_from))} "
            f"(watermark: {watermarks})"
        )
