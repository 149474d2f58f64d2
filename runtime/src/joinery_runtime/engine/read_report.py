"""What reading one range of a partition yields: counts, event times, and dead letters (rule T8), including those of
records that may be late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.files.source import line_number
from joinery_runtime.connectors.sink import Receipt, dead_letter_rows
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.lateness import LateRows
from joinery_runtime.core.pipeline.prepare import Prepared
from joinery_runtime.core.pipeline.spec import InputSpec
from joinery_runtime.core.table.columns import OFFSET, PARTITION, TS, UNAVAILABLE
from joinery_runtime.core.table.segment import concat, encode
from joinery_runtime.engine.messages import PartitionRead, ReadSummary
from joinery_runtime.engine.null_keys import KeyParts, missing_part
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import BadRecord, Decoded, records_of

RecordPaths = Callable[[bytes], tuple[str, ...]]
"""Lists the paths of the values in a record."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Unusable records of a batch. `rows` are rows of the dead-letter output; `first` names the first record and its
    fault."""

    count: int
    rows: pa.RecordBatch
    first: str

    @classmethod
    def of(cls, raw: RawBatch, bad: Sequence[BadRecord]) -> DeadLetters:
        """`bad` are records of the batch, at least one, in any order."""
        faults = sorted(bad, key=lambda record: record.index)
        partition = raw.origin or raw.partition
        offsets = [int(raw.offsets[record.index]) for record in faults]
        rows = dead_letter_rows(
            input_name=partition.input,
            topic=partition.topic,
            partition=partition.partition,
            offsets=offsets,
            reasons=[record.reason for record in faults],
            values=records_of(raw, [record.index for record in faults]),
        )
        path, offset = partition.topic, offsets[0]
        if raw.columns is not None:
            location = f"{path} row {offset}"
        elif raw.timestamps is None and Path(path).is_file():  # only files have no timestamps
            location = f"{path} line {line_number(path, offset)} (byte {offset})"
        else:
            location = f"{path}/{partition.partition} offset {offset}"
        return cls(len(faults), rows, f"{location}: {faults[0].reason}")


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What one range yielded; `dead` holds its dead letters as an Arrow IPC file."""

    read: PartitionRead
    dead: bytes | None


@dataclass(frozen=True, slots=True)
class LateCandidates:
    """Records of a side of a step that may be late, or may lack a value, as rows of the dead-letter output; their shard
    decides. All are of one partition of `input`, whose PARTITION is `partition`."""

    input: str
    step: int
    side: int
    partition: int
    rows: pa.RecordBatch

    @classmethod
    def of(
        cls, spec: InputSpec, event_time: str, raw: RawBatch, rows: pa.RecordBatch, late: LateRows
    ) -> LateCandidates:
        """`rows` are prepared rows of the batch's records, all of them below `late.accept_from`."""
        indexes = np.searchsorted(raw.offsets, rows.column(OFFSET).to_numpy()).tolist()
        reasons = [late.reason(event_time, ts) for ts in rows.column(TS).to_pylist()]
        letters = DeadLetters.of(raw, list(map(BadRecord, indexes, reasons)))
        return cls(spec.name, spec.step, spec.side, _partition_of(rows), letters.rows)

    @classmethod
    def lacking_values(cls, spec: InputSpec, raw: RawBatch, rows: pa.RecordBatch) -> LateCandidates:
        """`rows` are prepared rows of the batch's records, each of which has UNAVAILABLE."""
        indexes = np.searchsorted(raw.offsets, rows.column(OFFSET).to_numpy()).tolist()
        reasons = [
            f"column {', '.join(names.splitlines())}: the event does not have the value, because the database did not "
            "log it, and no earlier version of the key is there to take it from; read the table from a snapshot, or "
            "have the database log whole rows (Postgres: REPLICA IDENTITY FULL)"
            for names in rows.column(UNAVAILABLE).to_pylist()
        ]
        letters = DeadLetters.of(raw, list(map(BadRecord, indexes, reasons)))
        return cls(spec.name, spec.step, spec.side, _partition_of(rows), letters.rows)


def _partition_of(rows: pa.RecordBatch) -> int:
    """PARTITION of prepared rows that are all of one partition."""
    return int(rows.column(PARTITION)[0].as_py())


@dataclass(frozen=True, slots=True)
class StepDeadLetters:
    """Dead letters of records that a step has found to be late, or to lack a value, or of rows with values that do not
    fit, as an Arrow IPC file, with their counts by input. `first` names the first one and its fault."""

    dead: bytes
    counts: Mapping[str, int]
    first: str = ""

    @classmethod
    def select_late(cls, candidates: Sequence[LateCandidates], late: Sequence[np.ndarray]) -> StepDeadLetters | None:
        """Select the candidates that are late: `late` has the places that the step found, by side (`StepResult`).
        Topics of one input may have records of equal partition and offset; their PARTITION differs."""
        late_offsets = [set(map(tuple, positions.tolist())) for positions in late]
        letters, counts = [], Counter[str]()
        for candidate in candidates:
            late_here = late_offsets[candidate.side]
            is_late = [
                (candidate.partition, offset) in late_here for offset in candidate.rows.column("offset").to_pylist()
            ]
            letters.append(candidate.rows.filter(pa.array(is_late, pa.bool_())))
            counts[candidate.input] += letters[-1].num_rows
        if not counts.total():
            return None
        rows = concat(letters)
        topic, partition, offset, reason = (rows.column(name)[0] for name in ("topic", "partition", "offset", "reason"))
        return cls(encode(rows), +counts, f"{topic}/{partition} offset {offset}: {reason}")


class ReadCounter:
    """Adds up the batches of one range while it is read: its `records`, and their undecoded `bytes`."""

    def __init__(self, planned: Range, key: KeyParts = (), paths_of: RecordPaths | None = None) -> None:
        """`paths_of` is asked for the paths of a record if the `key` is null in all of them."""
        self.planned = planned
        self._key, self._paths_of = key, paths_of
        self._example: bytes | None = None
        self._rows = self._lost = 0
        self.records = self.bytes = 0
        self._lowest: int | None = None
        self._highest: int | None = None
        self._disorder = 0
        self._dropped: Counter[str] = Counter()
        self._dead: list[DeadLetters] = []
        self._decoded = 0
        self._empty: frozenset[str] | None = None

    def add(
        self,
        raw: RawBatch,
        decoded: Decoded,
        prepared: Prepared,
        dead: DeadLetters | None,
        reached: tuple[int, int] | tuple[None, None] = (None, None),
    ) -> None:
        """`reached` is the span of the event times of events that are left out, without those too far ahead (T11)."""
        self.records += len(raw.offsets)
        self.bytes += raw.bytes
        self._lost += raw.lost
        self._rows += prepared.rows.num_rows
        self._dropped.update(prepared.dropped)
        self._dropped.update(decoded.dropped)
        if self._highest is not None and prepared.lowest is not None:
            self._disorder = max(self._disorder, self._highest - prepared.lowest)
        self._disorder = max(self._disorder, prepared.disorder)
        for lowest, highest in ((prepared.lowest, prepared.highest), decoded.passed or (None, None), reached):
            if lowest is not None and highest is not None:
                self._highest = highest if self._highest is None else max(self._highest, highest)
                self._lowest = lowest if self._lowest is None else min(self._lowest, lowest)
        if dead is not None:
            self._dead.append(dead)
        rows, index, deletions = decoded.rows, decoded.index, decoded.deleted
        if prepared.left_out is not None and len(prepared.left_out):
            included = np.ones(rows.num_rows, np.bool_)
            included[prepared.left_out] = False
            rows, index = rows.filter(pa.array(included)), index[included]
            deletions = None if deletions is None else deletions[included]
        # A deletion has nothing but its key.
        deleted = 0 if deletions is None else int(np.count_nonzero(deletions))
        if rows.num_rows > deleted:
            self._decoded += rows.num_rows - deleted
            empty = frozenset(name for name in rows.column_names if rows[name].null_count == rows.num_rows)
            self._empty = empty if self._empty is None else self._empty & empty
            if self._example is None and missing_part(self._key, empty) is not None:
                self._example = records_of(raw, [int(index[0])])[0].as_py()

    def report(self, lost: int = 0) -> ReadReport:
        paths: tuple[str, ...] = ()
        wrong = missing_part(self._key, self._empty) is not None
        if wrong and self._example is not None and self._paths_of is not None:
            paths = self._paths_of(self._example)
        read = PartitionRead(
            partition=self.planned.partition,
            records=self.records,
            bytes=self.bytes,
            rows=self._rows,
            lowest=self._lowest,
            highest=self._highest,
            disorder=self._disorder,
            dropped=dict(self._dropped),
            dead=sum(dead.count for dead in self._dead),
            first_dead=self._dead[0].first if self._dead else "",
            lost=self._lost + lost,
            decoded=self._decoded,
            empty=self._empty,
            paths=paths,
        )
        return ReadReport(read, encode(concat([dead.rows for dead in self._dead])) if self._dead else None)


def read_summary(reports: Iterable[object], dead_letters: Receipt | None = None) -> ReadSummary:
    """Sum up the read reports among the reports of an epoch."""
    reads = (report.read for report in reports if isinstance(report, ReadReport))
    return ReadSummary(tuple(sorted(reads, key=lambda read: read.partition)), dead_letters)
