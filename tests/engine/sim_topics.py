"""The inputs of the simulated world: partitions that only grow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from engine.sim_process import CRASHES, IN_TASK, Fault, call
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.errors import SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import BadRecord, ByValue, Decoded


@dataclass(slots=True)
class Topic(UnsharedSource):
    """One input: planner and reader in one. A value of None is an offset without a record (a control record);
    `open_from` is the first offset of a transaction that is open, by partition."""

    name: str
    partitions: list[list[bytes | None]]
    from_latest: bool = False
    final: bool = False
    open_from: dict[int, int] = field(default_factory=dict)

    def append(self, partition: int, value: bytes | None) -> None:
        self.partitions[partition].append(value)

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        return call("source.bounds", CRASHES | {Fault.FAIL_BEFORE}, lambda: self._bounds(stored.offsets), _source_error)

    def _bounds(self, positions: Mapping[PartitionRef, int]) -> list[Bounds]:
        return [
            self._bounds_of(PartitionRef(self.name, self.name, number), len(values), positions)
            for number, values in enumerate(self.partitions)
        ]

    def _bounds_of(self, ref: PartitionRef, high: int, positions: Mapping[PartitionRef, int]) -> Bounds:
        stable = self.open_from.get(ref.partition, high)
        start = positions.get(ref, stable if self.from_latest else 0)
        return Bounds(ref, start, stable, self.final, undecided=high - stable)

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for planned_range in planned:
            yield call("source.read", IN_TASK, partial(self._read, planned_range), _source_error)

    def _read(self, planned: Range) -> RawBatch:
        values = self.partitions[planned.partition.partition][planned.start : planned.end_exclusive]
        offsets = [planned.start + i for i, value in enumerate(values) if value is not None]
        present = [value for value in values if value is not None]
        return RawBatch(planned.partition, np.array(offsets, dtype=np.int64), pa.array(present, pa.binary()))

    def close(self) -> None:
        """Nothing is open."""


def _source_error() -> SourceUnavailable:
    return SourceUnavailable("the simulated broker does not answer")


@dataclass(frozen=True, slots=True)
class PlainDecoder(ByValue):
    schema: pa.Schema
    table: bool = False

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows = [_parsed(value) for value in values.to_pylist()]
        good = [i for i, row in enumerate(rows) if row is not None]
        bad = [BadRecord(i, "not JSON") for i, row in enumerate(rows) if row is None]
        table = pa.Table.from_pylist([row for row in rows if row is not None], schema=self.schema)
        deleted = np.zeros(len(good), dtype=np.bool_) if self.table else None
        return Decoded(table, np.array(good, dtype=np.int64), bad, deleted)


def _parsed(value: bytes) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(value)
    except ValueError:
        return None
    return row


@dataclass(frozen=True, slots=True)
class Inputs:
    topics: Mapping[str, Topic]
    decoders: Mapping[str, PlainDecoder]

    def reader(self, name: str, lane: int) -> Topic:
        return self.topics[name]

    def decoder(self, name: str, lane: int) -> PlainDecoder:
        return self.decoders[name]
