"""What the next epoch will make of a job's state, from the stored progress of its inputs or from its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.describe import Outlook
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import InputTime, Watermark
from joinery_runtime.engine.job_state import stored_floors
from joinery_runtime.engine.plan import EpochPlan, input_states
from joinery_runtime.state.store import JobRecord


@dataclass(frozen=True, slots=True)
class NextEpoch:
    """Times and horizons of the next epoch (T3): those of its plan, or what the rows of all epochs imply. Milliseconds
    of event time."""

    pipeline: Pipeline
    times: Mapping[str, InputTime]
    horizons: Mapping[str, Horizon]

    @classmethod
    def of(cls, pipeline: Pipeline, record: JobRecord) -> NextEpoch:
        floors = stored_floors(record)
        plan = None if record.plan is None else EpochPlan.from_json(record.plan)
        if plan is None:
            input_times = _implied_times(pipeline, record)
        else:
            input_times = {side.name: plan.times.get(side.name, InputTime()) for side in pipeline.inputs}
        planned = plan.horizons if plan is not None else {}
        return cls(pipeline, input_times, planned or times.horizons(pipeline, input_times, floors))

    @property
    def watermarks(self) -> dict[str, Watermark]:
        return {name: time.watermark for name, time in self.times.items()}

    @property
    def outlook(self) -> Outlook:
        return Outlook(self.watermarks, self.horizons)

    def horizon(self, part: str) -> Watermark:
        return self.horizons[part].now


def _implied_times(pipeline: Pipeline, record: JobRecord) -> dict[str, InputTime]:
    """What the rows of all committed epochs imply."""
    states = input_states((side.name for side in pipeline.inputs), record)
    seen = {name: [ts for ts in state.progress.highest.values() if ts is not None] for name, state in states.items()}
    return {name: InputTime(state.progress.watermark, max(seen[name], default=None)) for name, state in states.items()}
