"""About how wide a stored row is: what `explain` multiplies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joinery_runtime.job.join.steps import part_names
from joinery_runtime.job.join.stream_join import StreamJoin, stored_type
from joinery_runtime.job.model.plan import BYTES, ENGINE_ROW_BYTES
from joinery_runtime.job.model.references import Reference


def row_bytes(job: StreamJoin, step_index: int, side: int, columns: Sequence[str]) -> int:
    """Bytes of a row with these stored columns, of the left (0) or right (1) side of a step."""
    types = (stored_type(job, step_index, ("left", "right")[side], column) for column in columns)
    return ENGINE_ROW_BYTES + sum(BYTES[kind.name] for kind in types)


def assumed_columns(job: StreamJoin) -> Mapping[str, Sequence[str]]:
    """Per part, what segments keep as far as it is known without reading SQL expressions: with one, every column."""
    columns: dict[str, Sequence[str]] = {}
    for number, step in enumerate(job.joins):
        left, right = part_names(number)
        chained = number > 0
        refs = [ref for name in job.left_inputs(number) for ref in _kept(job, name, chained=chained)]
        columns[left] = [str(ref) if chained else ref.column for ref in refs]
        columns[right] = [ref.column for ref in _kept(job, step.right, chained=False)]
    return columns


def _kept(job: StreamJoin, name: str, *, chained: bool) -> list[Reference]:
    """An input's own event time is a column of the engine's, unless it came through a step."""
    used, side = _used(job), job.input(name)
    every = [Reference(name, column) for column in side.types if chained or column != side.event_time]
    return [ref for ref in every if used is None or ref in used]


def _used(job: StreamJoin) -> set[Reference] | None:
    """None: an expression may use any column."""
    if job.has_expressions:
        return None
    keys = {ref for step in job.joins for pair in job.keys_of(step) for ref in (pair.left, pair.right)}
    counted = [of for step in job.joins if (of := step.matching.counted_from) is not None]
    times = {Reference(of, job.input(of).event_time) for of in counted}
    return keys | times | {column.source for column in job.output_columns if column.source is not None}
