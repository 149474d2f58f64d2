"""Leaves out change events of some ops: of a stream that has rows of `c` and `r` only, say (`debezium.ops`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.job.model.inputs import Column, Debezium, Input
from joinery_runtime.job.model.types import ColumnType
from joinery_runtime.sources.base import RawBatch
from joinery_runtime.sources.records import Decoded, Decoder

OP = Column.model_construct(name="$event_op", type=ColumnType("string"), origin="envelope", path="op")
"""The column with the op, which the decoder of the events has to give."""
_REASONS = {"c": "creation", "r": "snapshot", "u": "update"}


def leaves_out(model: Input) -> bool:
    """Whether some events with a row are to be left out."""
    return model.debezium is not None and not set(Debezium().ops) <= set(model.debezium.ops)


class WantedOps:
    """Drops and counts the rows whose op is not one of `ops`. `events` gives the column OP besides the input's. The
    event times of dropped rows count for the watermark (T1)."""

    def __init__(self, ops: tuple[str, ...], event_time: str, events: Decoder) -> None:
        self._ops, self._event_time, self._events = pa.array(ops), event_time, events

    def decode_batch(self, raw: RawBatch) -> Decoded:
        decoded = self._events.decode_batch(raw)
        ops = decoded.rows[OP.name]
        wanted = pc.is_in(ops, self._ops)
        rows = decoded.rows.drop_columns([OP.name])
        left_out = ops.filter(pc.invert(wanted)).to_pylist()
        if not left_out:
            return replace(decoded, rows=rows)
        times = rows[self._event_time].filter(pc.invert(wanted)).cast(pa.int64()).drop_null().to_numpy()
        times = times[(times >= EVENT_TIME_MIN) & (times <= EVENT_TIME_MAX)]
        return replace(
            decoded,
            rows=rows.filter(wanted),
            index=decoded.index[np.asarray(wanted.to_numpy())],
            dropped={**decoded.dropped, **Counter(_REASONS[op] for op in left_out)},
            passed=(int(times.min()), int(times.max())) if len(times) else None,
        )
