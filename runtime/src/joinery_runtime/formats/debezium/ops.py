"""Leaves out change events of some ops: of a stream that has rows of `c` and `r` only, say (`debezium.ops`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import Decoded, Decoder, LeftOut
from joinery_runtime.job.model.inputs import Column, Debezium, Input
from joinery_runtime.job.model.types import ColumnType

OP = Column.model_construct(name="$event_op", type=ColumnType("string"), origin="envelope", path="op")
"""The column with the op, which the decoder of the events has to give."""
_REASONS = {"c": "creation", "r": "snapshot", "u": "update"}


def leaves_out(model: Input) -> bool:
    """Whether some events with a row are to be left out."""
    return model.debezium is not None and not set(Debezium().ops) <= set(model.debezium.ops)


class WantedOps:
    """Drops and counts the events whose op is not one of `ops`. `events` gives the column OP besides the input's;
    `times` gives OP and the event time, and `kinds` only OP. The event times of dropped events count for the watermark
    (T1), and no other value of theirs has to be one of its column."""

    def __init__(self, ops: tuple[str, ...], event_time: str, events: Decoder, times: Decoder, kinds: Decoder) -> None:
        self._ops, self._event_time = pa.array(ops), event_time
        self._events, self._of_bad = events, (times, kinds)

    def decode_batch(self, raw: RawBatch) -> Decoded:
        decoded = self._events.decode_batch(raw)
        selected = pc.is_in(decoded.rows[OP.name], self._ops)
        rows, bad = decoded.rows.drop_columns([OP.name]), decoded.bad
        unwanted = [self._select_unwanted(decoded)]
        for decoder in self._of_bad:
            if not bad:
                break
            positions = np.array([record.index for record in bad], np.int64)
            unwanted_bad = self._select_unwanted(decoder.decode_batch(raw.take(positions))).at(positions)
            bad = [record for record in bad if record.index not in unwanted_bad.index]
            unwanted.append(unwanted_bad)
        counts = Counter(_REASONS[op] for events in unwanted for op in events.rows[OP.name].to_pylist())
        if not counts:
            return replace(decoded, rows=rows)
        return replace(
            decoded,
            rows=rows.filter(selected),
            index=decoded.index[selected.to_numpy()],
            bad=bad,
            dropped={**decoded.dropped, **counts},
            left_out=self._valid_times([events for events in unwanted if self._event_time in events.rows.column_names]),
        )

    def _select_unwanted(self, events: Decoded) -> Decoded:
        unwanted = pc.invert(pc.is_in(events.rows[OP.name], self._ops))
        return Decoded(events.rows.filter(unwanted), events.index[unwanted.to_numpy()], [])

    def _valid_times(self, parts: Sequence[Decoded]) -> LeftOut:
        """The valid event times of these events."""
        columns = [events.rows[self._event_time].cast(pa.int64()) for events in parts]
        times = np.concatenate([pc.fill_null(column, EVENT_TIME_MIN - 1).to_numpy() for column in columns])
        valid = (times >= EVENT_TIME_MIN) & (times <= EVENT_TIME_MAX)
        return LeftOut(times[valid], np.concatenate([events.index for events in parts])[valid])
