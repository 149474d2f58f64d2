"""Finds the records that `joinery why` is about, and those that may have met them, among all that the epochs read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.history import HistoryDecoder
from joinery_runtime.connectors.source import Range, SourceReader
from joinery_runtime.connectors.trial import read_carefully, with_trials
from joinery_runtime.core.pipeline.lateness import FutureCheck
from joinery_runtime.core.pipeline.prepare import too_far_ahead
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.engine.plan import EpochPlan, partition_id
from joinery_runtime.engine.worker import InputAccess
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.formats.records import Decoded, Decoder
from joinery_runtime.inspect.state_key import StepKey
from joinery_runtime.inspect.state_show import same_value
from joinery_runtime.job import Job

MAX_RECORDS = 1_000_000  # held in memory for one question

Key = Mapping[str, pa.Array]
"""For each key column of an input, an array with the one value of that key."""


@dataclass(frozen=True, slots=True, order=True)
class RecordPosition:
    """Where a record is: `offset` counts bytes in a file."""

    partition: PartitionRef
    offset: int

    def __str__(self) -> str:
        return f"{self.partition.topic}:{self.partition.partition}={self.offset}"

    @property
    def address(self) -> tuple[str, int, int]:
        """The topic or file, the partition and the offset, as a dead letter has them."""
        return self.partition.topic, self.partition.partition, self.offset


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of the key. `columns` is None if the record cannot be decoded; `ts` is in ms, None if it has none. `key`
    has the columns of its input's key, including computed ones, with values as in COLUMN=VALUE (None: NULL)."""

    position: RecordPosition
    epoch: int
    columns: Mapping[str, Any] | None
    ts: int | None
    key: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CarefulInputs:
    """An `InputAccess` of records that may end the process that reads or decodes them: another process tries first, as
    in the epoch that was committed without these records (T8). That process stays for further batches."""

    inputs: InputAccess
    decoders: dict[tuple[str, int], Decoder] = field(default_factory=dict)

    def reader(self, name: str, lane: int) -> SourceReader:
        return read_carefully(self.inputs.reader(name, lane))

    def decoder(self, name: str, lane: int) -> Decoder:
        if (name, lane) not in self.decoders:
            self.decoders[name, lane] = with_trials(self.inputs.decoder(name, lane))
        return self.decoders[name, lane]


@dataclass(frozen=True, slots=True)
class ChosenRecords:
    """An `InputAccess` in which ranges of a plan yield only the chosen records, except those in `without`."""

    decoders: InputAccess
    batches: Mapping[PartitionRef, Sequence[tuple[int, RawBatch]]]
    without: frozenset[RecordPosition] = frozenset()

    def reader(self, name: str, lane: int) -> ChosenRecords:
        return self

    def decoder(self, name: str, lane: int) -> Decoder:
        return self.decoders.decoder(name, lane)

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for planned_range in planned:
            for _, raw in self.batches.get(planned_range.partition, ()):
                inside = (raw.offsets >= planned_range.start) & (raw.offsets < planned_range.end_exclusive)
                without = [
                    position.offset for position in self.without if position.partition == planned_range.partition
                ]
                if without:
                    inside &= ~np.isin(raw.offsets, without)
                if inside.any():
                    yield raw.take(np.flatnonzero(inside))

    def holds(self, plan: EpochPlan) -> bool:
        """Whether the epoch reads any of them."""
        return next(self.read(*plan.ranges), None) is not None

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(slots=True)
class Gathering:
    """Reads what epochs read, and keeps the records of the key. Keeps all records of an input without a column of the
    key: they may meet rows of the key in another step. `at` is a place (topic, partition, offset) whose record is asked
    for, whatever its key."""

    job: Job
    pipeline: Pipeline
    inputs: InputAccess
    keys: Mapping[str, Sequence[Key]]
    at: tuple[str, int, int] | None = None
    record_only: bool = False
    batches: dict[PartitionRef, list[tuple[int, RawBatch]]] = field(default_factory=dict)  # with their epochs
    records: list[FoundRecord] = field(default_factory=list)
    future: dict[RecordPosition, str] = field(default_factory=dict)
    """The records that are too far ahead (T11), with the reason. In plans of earlier releases that depends on other
    records of their ranges, which are not kept."""
    _kept_count: int = 0

    def take(self, plan: EpochPlan) -> dict[str, int]:
        """Take all that an epoch read. Returns how many records each partition yielded, named as in the epoch log.
        Raises JoineryError if there are too many records to keep, or if they cannot be read."""
        read: Counter[str] = Counter()
        for planned in plan.ranges:
            name = planned.partition.input
            future = plan.future_check(name)
            for raw in self.inputs.reader(name, 0).read(planned):
                read[f"{name}:{partition_id(planned.partition)}"] += len(raw.offsets)
                if len(raw.offsets):
                    self._take_batch(plan.epoch, name, raw, future)
        return read

    def _take_batch(self, epoch: int, name: str, raw: RawBatch, future: FutureCheck | None) -> None:
        decoder = self.inputs.decoder(name, 0)
        if isinstance(decoder, HistoryDecoder):  # a row that the other part has is of the key too
            decoded = decoder.with_skipped(raw)
            accepted = decoder.without_skipped(raw, decoded)
        else:
            accepted = decoded = decoder.decode_batch(raw)
        ahead = {} if future is None else self._find_ahead(name, raw, accepted, future)
        named = (
            np.zeros(len(raw.offsets), dtype=bool)
            if self.at is None or self.at[:2] != (raw.partition.topic, raw.partition.partition)
            else np.asarray(raw.offsets == self.at[2])
        )
        of_key = np.zeros(len(raw.offsets), dtype=bool)
        for key in self.keys.get(name, ()):
            of_key[decoded.index[self._has_key(name, decoded, key)]] = True
        everything = not self.record_only and name not in self.keys
        chosen = np.flatnonzero(of_key | named | everything)
        if not len(chosen):
            return
        self.future |= {
            RecordPosition(raw.partition, int(raw.offsets[at])): ahead[at] for at in ahead.keys() & set(chosen.tolist())
        }
        self._kept_count += len(chosen)
        if self._kept_count > MAX_RECORDS:
            raise JoineryError(
                f"More than {MAX_RECORDS:,} records may have met those of the key",
                facts=f"input {name} has no column of it, so all of its records count",
                todo="Ask for the key of the step that joins this input, or for fewer epochs: --until",
            )
        self.batches.setdefault(raw.partition, []).append((epoch, raw.take(chosen)))
        self.records += self._find_records(epoch, name, raw, decoded, np.flatnonzero(of_key | named))

    def _find_ahead(self, name: str, raw: RawBatch, decoded: Decoded, future: FutureCheck) -> dict[int, str]:
        """Return the rows that are too far ahead, by position in the batch, with the reason."""
        of_all, batches = raw.timestamps, decoded.rows.combine_chunks().to_batches()
        if not batches:
            return {}
        timestamps = None if of_all is None else lambda at: of_all(decoded.index[at])
        reasons = too_far_ahead(self.pipeline.intake(name), batches[0], future, timestamps)
        return {int(decoded.index[row]): reason for row, reason in reasons.items()}

    def _has_key(self, name: str, decoded: Decoded, key: Key) -> np.ndarray:
        """Return bool[rows]: which decoded rows have the key."""
        intake, rows = self.pipeline.intake(name), decoded.rows.combine_chunks()
        has = np.ones(rows.num_rows, dtype=bool)
        for column, value in key.items():
            has &= same_value(_column_values(intake, rows, column), value[0])
        return has

    def _find_records(
        self, epoch: int, name: str, raw: RawBatch, decoded: Decoded, numbers: np.ndarray
    ) -> Iterator[FoundRecord]:
        row_of = {int(index): row for row, index in enumerate(decoded.index)} if len(numbers) else {}
        for at in map(int, numbers):
            position = RecordPosition(raw.partition, int(raw.offsets[at]))
            row = decoded.rows.slice(row_of[at], 1) if at in row_of else None
            columns = None if row is None else json.loads(rows_to_json(row)[0])
            intake = self.pipeline.intake(name)
            ts = None if row is None else row[intake.event_time].cast(pa.int64())[0].as_py()
            key: dict[str, str | None] = {}  # as `--key COLUMN=VALUE` takes the values
            for column in intake.keys if row is not None else ():
                value = _column_values(intake, row, column)
                if pa.types.is_floating(value.type) and value.is_nan()[0].as_py():
                    key[column] = "NaN"
                else:
                    read = json.loads(rows_to_json(pa.table({"value": value}))[0])["value"]
                    key[column] = read if read is None or isinstance(read, str) else json.dumps(read)
            yield FoundRecord(position, epoch, columns, ts, key)


def _column_values(intake: Intake, rows: pa.Table, name: str) -> pa.Array:
    """Return a column of the input, or one that the job computes."""
    computed = dict(intake.computed)
    if name in computed:
        evaluated = computed[name].evaluate(lambda ref: rows[ref.column].combine_chunks(), rows.num_rows)
        return evaluated.values.cast(intake.schema.field(name).type)
    column = rows[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column


def keys_by_input(pipeline: Pipeline, keys: Collection[StepKey], inputs: Collection[str]) -> dict[str, list[Key]]:
    """Return the values of the keys in each input's key columns. Leaves out inputs without such a column."""
    keys_of_inputs: dict[str, list[Key]] = {}
    input_names = {spec.name for spec in pipeline.inputs}
    for key in keys:
        for side, values in zip(pipeline.steps[key.step].sides, key.values, strict=True):
            by_input: dict[str, dict[str, pa.Array]] = {}
            for name, value in zip(side.intake.keys, values, strict=True):
                owner, _, column = name.partition(".") if side.intake.chained else (side.time, "", name)
                by_input.setdefault(owner, {})[column] = value
            for owner, columns in by_input.items():
                # A key column is one of the input, or one that is computed of its records. What is computed of joined
                # rows is neither, whatever its name.
                read = {
                    column: value
                    for column, value in columns.items()
                    if not side.intake.chained
                    or (owner in input_names and column in pipeline.intake(owner).schema.names)
                }
                if owner in inputs and read:
                    keys_of_inputs.setdefault(owner, []).append(read)
    return keys_of_inputs
