"""Records that cannot be used, as rows for the dead-letter output (rule T8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.sinks import dead_letter_rows
from joinery_runtime.sources import BadRecord
from joinery_runtime.sources.base import RawBatch


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """`rows` are rows of the dead-letter output; `first` says where the first one is and what is wrong with it."""

    count: int
    rows: pa.RecordBatch
    first: str

    @classmethod
    def of(cls, raw: RawBatch, bad: Sequence[BadRecord], bad_time: np.ndarray, event_time: str) -> DeadLetters:
        """The undecodable records of a batch and those (by position) whose event time cannot be used."""
        reason = f"event time {event_time!r} is null or outside the years 0001 to 9999"
        faults = sorted([(b.index, b.reason) for b in bad] + [(int(i), reason) for i in bad_time])
        place = raw.partition
        offsets = [int(raw.offsets[i]) for i, _ in faults]
        rows = dead_letter_rows(
            input_name=place.input,
            topic=place.topic,
            partition=place.partition,
            offsets=offsets,
            reasons=[reason for _, reason in faults],
            values=raw.values.take(pa.array([i for i, _ in faults], pa.int64())),
        )
        first = f"{place.topic}/{place.partition} offset {offsets[0]}: {faults[0][1]}" if faults else ""
        return cls(len(faults), rows, first)
