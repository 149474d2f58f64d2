"""Adds up what one range gives while it is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from joinery_runtime.core.pipeline.prepare import Prepared
from joinery_runtime.core.table.segment import concat, encode
from joinery_runtime.engine.dead_letters import DeadLetters
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.sources.base import Range, RawBatch


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What one range gave; `dead` holds its dead letters as an Arrow IPC file."""

    read: PartitionRead
    dead: bytes | None


class Tally:
    def __init__(self, planned: Range) -> None:
        self._partition = planned.partition
        self._records = self._rows = self._lost = 0
        self._lowest: int | None = None
        self._highest: int | None = None
        self._dropped: Counter[str] = Counter()
        self._dead: list[DeadLetters] = []

    def add(self, raw: RawBatch, prepared: Prepared, dead: DeadLetters) -> None:
        self._records += len(raw.offsets)
        self._lost += raw.lost
        self._rows += prepared.rows.num_rows
        self._dropped.update(prepared.dropped)
        if prepared.highest is not None and prepared.lowest is not None:
            self._highest = prepared.highest if self._highest is None else max(self._highest, prepared.highest)
            self._lowest = prepared.lowest if self._lowest is None else min(self._lowest, prepared.lowest)
        if dead.count:
            self._dead.append(dead)

    def report(self, lost: int = 0) -> ReadReport:
        read = PartitionRead(
            partition=self._partition,
            records=self._records,
            rows=self._rows,
            lowest=self._lowest,
            highest=self._highest,
            dropped=dict(self._dropped),
            dead=sum(dead.count for dead in self._dead),
            first_dead=self._dead[0].first if self._dead else "",
            lost=self._lost + lost,
        )
        return ReadReport(read, encode(concat([dead.rows for dead in self._dead])) if self._dead else None)
