"""Segments of a wider job and of a narrower one merge: dropping a column from `select` goes on (M2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from engine.simulation import World
from joinery_runtime.core.columns import ENGINE_FIELDS
from joinery_runtime.core.compile import compile_join
from joinery_runtime.core.prepare import prepared_schema
from joinery_runtime.core.segment import Run, describe, encode
from joinery_runtime.engine.worker import Worker, WorkerParts


class Blobs:
    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs

    def read_segments(self, job: str, keys: Any) -> dict[str, bytes]:
        return {key: self._blobs[key] for key in keys}


def run_of(schema: pa.Schema, offset: int) -> Run:
    values = {"$hash": 1, "$ts": offset, "$partition": 0, "$offset": offset}
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return Run.sort(pa.record_batch(arrays, schema=schema))


def test_a_wide_segment_merges_with_a_narrow_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    spec = compile_join(world.job)
    world.close()
    wide = prepared_schema(spec.sides[0])
    narrow_side = replace(spec.sides[0], stored=spec.sides[0].keys)
    narrow_spec = replace(spec, sides=(narrow_side, spec.sides[1]))
    runs = {"a": run_of(wide, 1), "b": run_of(prepared_schema(narrow_side), 2)}
    blobs = {key: encode(run.batch) for key, run in runs.items()}
    segments = [describe(r, key=k, part="left", epoch=1, blob=blobs[k]) for k, r in runs.items()]
    parts = WorkerParts(
        "job", narrow_spec, cast(Any, None), cast(Any, Blobs(blobs)), cast(Any, None), None, tmp_path / "c"
    )
    ((_, merged),) = Worker(parts)._merged([segments], (None, None))
    assert merged.batch.schema.names == [f.name for f in ENGINE_FIELDS] + list(spec.sides[0].keys)
    assert len(merged) == 2
