"""A step's run as one value: what it put out and what it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyarrow as pa

from joinery_runtime.core.pipeline.step import StepResult, StepRun


@dataclass(frozen=True, slots=True)
class Ran(StepResult):
    output: Sequence[pa.RecordBatch] = ()


def ran(run: StepRun) -> Ran:
    """Runs it to its end."""
    output = []
    while True:
        try:
            output.append(next(run))
        except StopIteration as end:
            result: StepResult = end.value
            return Ran(**{field.name: getattr(result, field.name) for field in fields(result)}, output=output)
