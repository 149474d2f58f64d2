"""What goes out of sessions: rows of the step's output from rows of the state (S6)."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.session.state import Folding
from joinery_runtime.core.pipeline.spec import SessionWindow, StepSpec
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.core.table.columns import OFFSET, PARTITION, START, TS
from joinery_runtime.core.table.keyhash import key_hash


class Emitter:
    def __init__(self, step: StepSpec, *, ordered: bool) -> None:
        self._rule, self._schema, self._ordered = cast(SessionWindow, step.rule), step.output_schema(), ordered
        self._folding = Folding(self._rule.aggregates)
        self._keys = step.sides[0].intake.keys
        self.batches: list[pa.RecordBatch] = []

    def emit(self, sessions: pa.RecordBatch, phase: int, *, retracted: bool = False) -> None:
        """Rows of the state that go out; `phase` is CLOSING or ARRIVAL."""
        if not sessions.num_rows:
            return
        keys = [sessions.column(name) for name in self._keys]
        columns = [
            *keys,
            sessions.column(START),
            sessions.column(TS),
            pa.array(key_hash([*keys, sessions.column(START)])),  # documented: S6, V1
            *self._folding.results(sessions),
            *([pa.repeat(pa.scalar(retracted), sessions.num_rows)] if self._rule.retracts else []),
        ]
        rows = pa.record_batch(columns, schema=self._schema)
        self.batches.append(_with_order(rows, sessions, phase, retracted=retracted) if self._ordered else rows)


def _with_order(rows: pa.RecordBatch, sessions: pa.RecordBatch, phase: int, *, retracted: bool) -> pa.RecordBatch:
    """With ORDER_COLUMNS: by (start, place of the first row), a retraction before what replaces it."""
    zero = np.zeros(rows.num_rows, dtype=np.int64)
    start, partition, offset = (
        sessions.column(name).to_numpy().astype(np.int64) for name in (START, PARTITION, OFFSET)
    )
    order = [zero + phase, start, zero, partition, offset, zero + (0 if retracted else 1), zero, zero]
    names = [*rows.schema.names, *ORDER_COLUMNS]
    return pa.RecordBatch.from_arrays([*rows.columns, *map(pa.array, order)], names=names)
