"""From a job to the engine's parts that every host shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from joinery_runtime.core.compile import stored_columns
from joinery_runtime.core.spec import SIDES, Pipeline, part_name
from joinery_runtime.core.watermark import InputClock
from joinery_runtime.engine.identity import JobIdentity
from joinery_runtime.engine.idleness import IdleClock
from joinery_runtime.engine.limits import Cap, StateLimits
from joinery_runtime.engine.planner import PlanSettings
from joinery_runtime.job import Limits, StreamJoin, definition, signature


def identity(job: StreamJoin, pipeline: Pipeline, warn: Callable[[str], None]) -> JobIdentity:
    return JobIdentity(job.name, signature(job, stored_columns(pipeline)), definition(job), warn)


def plan_settings(job: StreamJoin, identity: JobIdentity) -> PlanSettings:
    return PlanSettings(
        shards=job.spec.shards,
        max_records=job.spec.trigger.max_records_per_epoch,
        checkpoint_interval_ms=job.spec.state_store.checkpoint_interval,
        fingerprint=fingerprint(identity.signature),
        tables=frozenset(side.name for side in job.spec.inputs if side.table is not None),
        limits=state_limits(job),
    )


def state_limits(job: StreamJoin) -> StateLimits:
    limits = [step.limits or Limits() for step in job.joins]
    caps = {part_name(step, side): _cap(of) for step, of in enumerate(limits) for side in SIDES}
    return StateLimits(caps, {step: of.hot_key_warning for step, of in enumerate(limits)})


def _cap(of: Limits) -> Cap:
    return Cap(of.max_records, of.max_state_bytes, pauses=of.on_limit == "pause")


def fingerprint(signature: Mapping[str, Any]) -> str:
    """A short name for a signature, for plans: equal for equal signatures."""
    return hashlib.sha256(json.dumps(signature, sort_keys=True).encode()).hexdigest()[:16]


def input_clocks(job: StreamJoin) -> dict[str, InputClock]:
    return {
        side.name: InputClock(
            delay_ms=side.watermark.delay,
            explicit=side.watermark.explicit,
            advance_on_idle=side.watermark.on_idle == "advance",
        )
        for side in job.spec.inputs
    }


def idle_clock(job: StreamJoin) -> IdleClock:
    return IdleClock({side.name: side.watermark.idle_timeout for side in job.spec.inputs})
