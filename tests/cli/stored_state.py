"""Real state of a job, as its driver would have left it: segments that decode, offsets, plans, signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import part_name
from joinery_runtime.core.pipeline.watermark import InputProgress
from joinery_runtime.core.table.segment import Run, SegmentMeta, describe, encode
from joinery_runtime.engine.assembly import identity
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.engine.report import Totals
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import StreamJoin
from joinery_runtime.state.store import EpochCommit, JobRecord, StateStore

Rows = Sequence[Mapping[str, Any]]


def segment_of(
    job: StreamJoin, side: int, rows: Rows, key: str, epoch: int, version: int = 1
) -> tuple[SegmentMeta, bytes]:
    """Rows of one side; a row's place in the list is its offset."""
    intake = compile_join(job).steps[0].sides[side].intake
    batch = pa.RecordBatch.from_pylist(list(rows), schema=intake.schema)
    run = Run.sort(prepare(intake, DecodedRecords(batch, 0, pa.array(range(len(rows))).to_numpy())).rows)
    blob = encode(run.batch)
    meta = describe(run, key=key, part=part_name(0, side), epoch=epoch, blob=blob)
    return replace(meta, state_version=version), blob


def commit_rows(
    store: StateStore,
    record: JobRecord,
    job: StreamJoin,
    epoch: int,
    sides: tuple[Rows, Rows],
    *,
    watermarks: Mapping[str, int] | None = None,
    rows_out: int = 0,
    next_plan: EpochPlan | None = None,
    version: int = 1,
    totals: Totals | None = None,
) -> None:
    """One epoch that kept these rows, of the left and of the right input."""
    who = identity(job, compile_join(job), lambda _: None)
    staged = [
        segment_of(job, side, rows, f"{part_name(0, side)}/{record.generation}-{epoch}", epoch, version)
        for side, rows in enumerate(sides)
        if rows
    ]
    store.stage(job.name, staged)
    offsets = {
        side.name: InputState(
            {PartitionRef(side.name, side.name, 0): 10 * epoch},
            InputProgress({f"{side.name}/0": None}, (watermarks or {}).get(side.name)),
        ).to_bytes()
        for side in job.spec.inputs
    }
    store.commit(
        job.name,
        record.generation,
        EpochCommit(
            epoch=epoch,
            plan=plan_of(epoch, watermarks).to_json(),
            result={
                "rows_out": rows_out,
                "output": [],
                "dead_letters": [],
                **({} if totals is None else {"totals": totals.to_json()}),
            },
            upserts=[meta.key for meta, _ in staged],
            deletes=[],
            offsets=offsets,
            signature=dict(who.signature),
            definition=dict(who.definition),
            next_plan=None if next_plan is None else next_plan.to_json(),
        ),
    )


def plan_of(epoch: int, watermarks: Mapping[str, int] | None = None) -> EpochPlan:
    return EpochPlan(epoch=epoch, shards=2, ranges=(), watermarks=dict(watermarks or {}))
