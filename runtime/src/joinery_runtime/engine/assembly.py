"""Builds the parts of the engine that every host shares from a job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from joinery_runtime.core.compile.jobs import stored_columns
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobIdentity
from joinery_runtime.engine.limits import StateLimits, StateQuota
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.job import Job, definition, definition_hash, signature
from joinery_runtime.job.model.owner import OwnerCandidate
from joinery_runtime.job.model.resource import PROCESS_BYTES, PROCESS_RECORDS


def identity(
    job: Job, pipeline: Pipeline, warn: Callable[[str], None], candidate: OwnerCandidate | None = None
) -> JobIdentity:
    return JobIdentity(job.name, signature(job, stored_columns(pipeline)), definition(job), warn, candidate)


def plan_settings(job: Job, identity: JobIdentity) -> PlanSettings:
    records, size = job.spec.trigger.max_records_per_epoch, job.spec.trigger.max_bytes_per_epoch
    return PlanSettings(
        shards=job.spec.shards,
        budget=Budget(
            records or PROCESS_RECORDS,
            size or PROCESS_BYTES,
            records_per_process=records is None,
            bytes_per_process=size is None,
        ),
        checkpoint_interval_ms=job.spec.state_store.checkpoint_interval,
        interval_ms=job.spec.trigger.interval,
        fingerprint=fingerprint(identity.signature),
        definition=definition_hash(identity.definition),
        tables=frozenset(side.name for side in job.inputs if side.table is not None),
        delays={side.name: side.watermark.delay for side in job.inputs},
        limits=state_limits(job),
        late_warnings=late_shares(job),
        co_partitioned=job.co_partitioned,
        max_future={
            side.name: side.watermark.max_future for side in job.inputs if side.watermark.max_future is not None
        },
    )


def state_limits(job: Job) -> StateLimits:
    caps = {
        part: StateQuota(limits.max_records, limits.max_state_bytes, pauses=limits.on_limit == "pause")
        for parts, limits in job.limits.items()
        for part in parts
    }
    return StateLimits(caps, {step: limits.hot_key_warning for step, limits in enumerate(job.limits.values())})


def fingerprint(signature: Mapping[str, Any]) -> str:
    """Return a short name for a signature, stored in plans: equal signatures have equal names."""
    return hashlib.sha256(json.dumps(signature, sort_keys=True).encode()).hexdigest()[:16]


def late_shares(job: Job) -> dict[str, float | None]:
    """Return `watermark.lateWarning` of each input (None: `off`)."""
    return {side.name: side.watermark.late_share for side in job.inputs}


def input_clocks(job: Job) -> dict[str, InputClock]:
    return {
        side.name: InputClock(
            delay_ms=side.watermark.delay,
            explicit=side.watermark.explicit,
            advance_on_idle=side.watermark.on_idle == "advance",
            branch_delays={part.name: part.watermark.delay for part in side.parts if part is not side},
        )
        for side in job.inputs
    }


def idle_clock(job: Job) -> IdleClock:
    return IdleClock({side.name: side.watermark.idle_timeout for side in job.inputs})
