"""Parquet files as bounded inputs: one file, or all files of a directory or a pattern.

A position is the number of a row in its file. Rows stay columnar throughout and never become records of bytes. Only the
columns that the job names are read. A row group is decoded from its start up to the last row that is needed. Rows
that a damaged page hides are one bad record, which names them (rule T8): the row groups behind it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from joinery_runtime.connectors.files.source import ListedFiles
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.opened_files import file_errors, require_planned, stamp_of
from joinery_runtime.formats.parquet.decoder import can_be, type_at
from joinery_runtime.job.model.references import Path

_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 * 2**20  # of unpacked rows, by the mean size in their row group


class ParquetPlanner(ListedFiles):
    """The driver half. `schema` has the columns with the types as which they are read; `paths` says where they are. A
    column is null in files that lack it. An engine column (`$`) may be missing in all files, others not in all, and the
    event time in none."""

    unit = "row"

    def __init__(self, name: str, path: str, schema: pa.Schema, paths: Mapping[str, Path], event_time: str) -> None:
        super().__init__(name, path)
        self._schema, self._paths, self._event_time = schema, paths, event_time
        self._rows: dict[tuple[str, int, int], int] = {}
        self._missing = [column for column in schema.names if not column.startswith("$")]

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        bounds = super().bounds(stored)
        if self._missing:
            raise SourceError(
                f"The Parquet files of input {self._name} do not fit the schema",
                facts=f"no file of {self._path} has {', '.join(self._missing)}",
                todo="Correct the columns' names or paths, or leave them out",
            )
        return bounds

    def bounds_of(self, ref: PartitionRef, position: int | None) -> Bounds:
        stamp = stamp_of(ref.topic)
        if stamp not in self._rows:
            with opened_parquet(ref.topic) as file:
                self._check_types(ref.topic, file.schema_arrow)
                total = file.metadata.num_rows
                groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
                in_groups = sum(group.num_rows for group in groups)
            if total != in_groups:  # Arrow believes the total, and would leave out rows
                raise _damage_of(
                    ref.topic, f"its end says {total:,} rows, and {in_groups:,} for its row groups together"
                )
            self._rows[stamp] = total
        start, rows = position or 0, self._rows[stamp]
        if start > rows:
            raise SourceError(
                f"The file {ref.topic} is shorter than before",
                facts=f"it was read up to row {start} and has {rows} now",
                todo="Put the old file back, or start the job with new state",
            )
        return Bounds(ref, start, rows, final=True)

    def _check_types(self, path: str, schema: pa.Schema) -> None:
        """Check the types of a file's columns, and note which columns it has. Raises SourceError."""
        file_types = {field.name: type_at(schema, self._paths[field.name]) for field in self._schema}
        if file_types[self._event_time] is None:
            raise _unfit_file(path, f"column {self._event_time}, the event time, is not there", "Correct eventTime")
        for field in self._schema:
            file_type = file_types[field.name]
            if file_type is not None and not can_be(file_type, field.type):
                facts = f"column {field.name} is {file_type} there, and {field.type} in the job"
                raise _unfit_file(path, facts, "Write another type, or `string` for the value as text")
        self._missing = [name for name in self._missing if file_types[name] is None]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        end = min(bounds.start + max(1, max_records), bounds.end_exclusive)
        return Range(bounds.partition, bounds.start, end)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group by its number in the file, and how it is read: in batches of so many rows, and these columns."""

    number: int
    batch_rows: int
    columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended that read a row group, in words, and how many of its rows it had read."""

    rows: int
    words: str


Trial = Callable[[str, RowGroup], Death | None]
"""Tries to read a row group of a file in another process. None: that process has not died of it."""


class ParquetReader:
    """The task half. Needs the file at the same path as the driver. Reads no row that a `trial` has died of."""

    def __init__(self, names: Collection[str | int], trial: Trial | None = None) -> None:
        self._names, self._trial = names, trial

    def after(self, trial: Trial) -> ParquetReader:
        """Return the same reader, which tries each row group first."""
        return ParquetReader(self._names, trial)

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for planned_range in planned:
            require_planned(planned_range.partition.topic, "rows", planned_range.start, planned_range.end_exclusive)
            with opened_parquet(planned_range.partition.topic) as file:
                if planned_range.end_exclusive > file.metadata.num_rows:
                    raise SourceError(
                        f"The file {planned_range.partition.topic} was cut short while it was read",
                        facts=f"rows up to {planned_range.end_exclusive} were planned "
                        f"and it has {file.metadata.num_rows}",
                    )
                yield from self._read_range(planned_range, file)

    def _read_range(self, planned: Range, file: pq.ParquetFile) -> Iterator[RawBatch]:
        path, names = planned.partition.topic, [name for name in file.schema_arrow.names if name in self._names]
        end = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            at, end = end, end + group.num_rows
            if end <= planned.start or at >= planned.end_exclusive:
                continue
            size = max(1, group.total_byte_size // max(1, group.num_rows))
            row_group = RowGroup(number, max(1, min(_BATCH_ROWS, _BATCH_BYTES // size)), names)
            fault = f"there are fewer than the {group.num_rows:,} rows that the file's metadata says"
            death = self._trial(path, row_group) if self._trial is not None else None
            safe_end = planned.end_exclusive if death is None else at + death.rows
            try:
                for batch in batches_of(file, row_group) if at < safe_end else ():
                    first, last = max(planned.start, at), min(planned.end_exclusive, at + batch.num_rows)
                    if first < last:
                        columns = pa.Table.from_batches([batch.slice(first - at, last - first)])
                        yield RawBatch.of_columns(planned.partition, np.arange(first, last), columns)
                    at += batch.num_rows
                    if at >= planned.end_exclusive:
                        return
                    if at >= safe_end:
                        break
            except (pa.ArrowInvalid, OSError) as error:
                if not _is_damage(error):
                    raise
                fault = str(error)
            if death is not None:
                fault = f"reading them ended the process ({death.words})"
            if names and at < end:  # the rows of the group that cannot be read are one bad record
                first_row, last_row = max(planned.start, at), min(planned.end_exclusive, end) - 1
                rows = pa.table({"first_row": [first_row], "last_row": [last_row]})
                cause = f"of row group {number}, cannot be read: {' '.join(fault.split())}"
                bad_record = RawBatch.of_columns(planned.partition, np.array([first_row]), rows)
                yield replace(bad_record, refusal=f"rows {first_row:,} to {last_row:,}, {cause}")

    def close(self) -> None:
        """Do nothing: no file stays open."""


def batches_of(file: pq.ParquetFile, group: RowGroup) -> Iterator[pa.RecordBatch]:
    numbers, columns = [group.number], list(group.columns)
    yield from file.iter_batches(group.batch_rows, row_groups=numbers, columns=columns, use_threads=False)


def _is_damage(error: Exception) -> bool:
    """Return whether the file's bytes are to blame. What the operating system reports has a number, and may pass."""
    return not isinstance(error, OSError) or error.errno is None


@contextmanager
def opened_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a file. Raises SourceError, also for errors that show while the block reads the file."""
    try:
        with file_errors(path):
            try:
                # Arrow reads the times of older writers (INT96) as nanoseconds, which wrap outside the years 1677 to
                # 2262.
                with pq.ParquetFile(
                    path, memory_map=True, coerce_int96_timestamp_unit="us", page_checksum_verification=True
                ) as file:
                    yield file
            except OSError as error:
                if _is_damage(error):
                    raise pa.ArrowInvalid(str(error)) from error
                raise
    except pa.ArrowException as error:
        facts = f"{' '.join(str(error).split())}; the file has {stamp_of(path)[2]:,} bytes"
        raise _damage_of(path, facts) from error


def _damage_of(path: str, facts: str) -> SourceError:
    todo = "Check the input's format and that the file is complete"
    return SourceError(f"The input file {path} cannot be read as Parquet", facts=facts, todo=todo)


def _unfit_file(path: str, facts: str, todo: str) -> SourceError:
    return SourceError(f"The Parquet file {path} does not fit the schema", facts=facts, todo=todo)
