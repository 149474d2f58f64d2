"""JSON lines and CSV files as bounded inputs: one file, or all files of a directory or a pattern.

A position is an offset in (uncompressed) bytes, so a stored position is found again without reading what precedes it.
Records are lines without their terminator (LF or CRLF, or CR in files without LF); lines that are empty or have only
blanks are not records. In CSV, a line break inside quotes belongs to the record (`record_ends`). The header of a CSV
file is not a record. A job reads the files that exist at its start; files that appear later are read after the next
start.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import Cut, PartitionRef, RawBatch
from joinery_runtime.formats.csv.decoder import csv_header, header_end
from joinery_runtime.formats.opened_files import (
    Bytes,
    covers_file,
    files_of,
    name_input_in_errors,
    opened,
    require_planned,
    stamp_of,
)
from joinery_runtime.formats.record_ends import (
    CR,
    LF,
    LONGEST_RECORD,
    SAMPLE,
    Positions,
    has_quotes,
    line_end_of,
    next_line_end,
    record_ends,
    skip_bom,
)
from joinery_runtime.job.model.wording import counted

_CHUNK = 4 * 2**20  # bytes that a reader scans at a time
_BEGINNING = 64 * 2**10  # bytes that a dead letter has of a record that is too long
_BLANKS = tuple(b" \t\r\n")
_MOST_COUNTED = 1_000  # files whose lines were counted
_lines_before: dict[tuple[str, int, int], tuple[int, int]] = {}  # by file: a byte, and the lines that end before it


@dataclass(frozen=True, slots=True)
class _File:
    """The positions at which a file's records begin and end, and the byte with which lines end."""

    first: int
    size: int
    line_end: int


class ListedFiles(UnsharedSource):
    """Plans one partition for each file of a path. The files are listed once, when all of them exist. `unit` is what
    positions count, `field` where the input in the job has the path."""

    unit: ClassVar[str] = "byte"
    field: str = "file.path"

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path
        self._partitions: list[PartitionRef] = []

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        if not self._partitions:
            with name_input_in_errors(self._name, self.field):
                self._partitions = [PartitionRef(self._name, file, 0) for file in files_of(self._path)]
        watched = sorted(ref.topic for ref in stored.offsets if ref.topic in stored.topic_ids)
        if watched:
            raise SourceError(
                f"Input {self._name} was watched, and is not any more",
                facts=f"all files before {watched[0]} were read, and are not known one by one",
                todo="Write watch: true again, or start the job with new state",
            )
        missing = sorted(
            ref for ref in stored.offsets.keys() - set(self._partitions) if covers_file(self._path, ref.topic)
        )
        if missing:
            raise SourceError(
                f"The file {missing[0].topic} is not there any more",
                facts=f"of input {self._name}, {counted(len(missing), 'file', 'were')} read that {self._path} "
                "does not have now",
                todo="Put them back, or start the job with new state",
            )
        with name_input_in_errors(self._name, self.field):
            return [self.bounds_of(ref, stored.offsets.get(ref)) for ref in self._partitions]

    @abstractmethod
    def bounds_of(self, ref: PartitionRef, position: int | None) -> Bounds:
        """Return the bounds of a file that was read up to `position` (None: not read yet)."""

    @abstractmethod
    def cut(self, bounds: Bounds, max_records: int) -> Range: ...

    def reads_file(self, partition: PartitionRef) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: no file stays open."""


class FilePlanner(ListedFiles):
    """The driver half for files of lines."""

    def __init__(self, name: str, path: str, *, cut: Cut, columns: Sequence[str]) -> None:
        super().__init__(name, path)
        self._cut, self._columns = cut, columns
        self._files_by_stamp: dict[tuple[str, int, int], _File] = {}

    def bounds_of(self, ref: PartitionRef, position: int | None) -> Bounds:
        path, file = ref.topic, self._open_file(ref.topic)
        start = file.first if position is None else max(position, file.first)
        if start > file.size:
            raise SourceError(
                f"The file {path} is shorter than before",
                facts=f"it was read up to byte {start} and has {file.size} now",
                todo="Put the old file back, or start the job with new state",
            )
        length = 1.0
        if start < file.size:
            with opened(path) as data:
                length = self._record_bytes(data, start, file)
        return Bounds(ref, start, file.size, final=True, record_bytes=length)

    def _open_file(self, path: str) -> _File:
        stamp = stamp_of(path)
        if stamp not in self._files_by_stamp:
            with opened(path) as data:
                line_end, bom = line_end_of(data, self._cut), len(data) - len(skip_bom(data))
                first = header_end(data, self._cut, line_end) if self._cut.header else bom
                self._files_by_stamp[stamp] = _File(first, len(data), line_end)
            if self._cut.header:
                # The decoder reads all files by the first file's header.
                first_path = self._partitions[0].topic
                names = csv_header(path, self._columns, self._cut)
                expected = csv_header(first_path, self._columns, self._cut)
                if names != expected:
                    raise SourceError(
                        f"The header of {path} is not that of {first_path}",
                        facts=f"{', '.join(names)} instead of {', '.join(expected)}",
                        todo="Give all files of an input the same columns in the same order",
                    )
        return self._files_by_stamp[stamp]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        """Cut a range of about `max_records`, estimated from the length of the next records."""
        with opened(bounds.partition.topic) as data:
            file = self._open_file(bounds.partition.topic)
            length = self._record_bytes(data, bounds.start, file)
            target = bounds.start + max(1, round(length * max_records))
            end = _find_boundary(data, bounds.start, min(target, bounds.end_exclusive), self._cut, file)
        return Range(bounds.partition, bounds.start, min(end, bounds.end_exclusive))

    def _record_bytes(self, data: Bytes, start: int, file: _File) -> float:
        """Return the mean length of the next records in bytes."""
        sample = data[start : start + SAMPLE]
        ends = record_ends(sample, self._cut, file.line_end, complete=start + SAMPLE >= file.size)
        records = int(np.count_nonzero(np.diff(ends, prepend=0) > 2))
        if records:
            return float(ends[-1] / records)
        # The next record is longer than the sample.
        first = _find_boundary(data, start, start + 1, self._cut, file) - start
        return float(max(1, len(sample), first))

    def records(self, planned: Range, record_bytes: float) -> int:
        return math.ceil((planned.end_exclusive - planned.start) / record_bytes)


class FileReader:
    """The task half for files of lines. Needs the file at the same path as the driver."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for planned_range in planned:
            require_planned(planned_range.partition.topic, "bytes", planned_range.start, planned_range.end_exclusive)
            with opened(planned_range.partition.topic) as data:
                if planned_range.end_exclusive > len(data):
                    raise SourceError(
                        f"The file {planned_range.partition.topic} was cut short while it was read",
                        facts=f"bytes up to {planned_range.end_exclusive} were planned and it has {len(data)}",
                    )
                position, line_end = planned_range.start, line_end_of(data, self._cut)
                while position < planned_range.end_exclusive:
                    chunk, ends = self._cut_chunk(data, position, planned_range.end_exclusive, line_end)
                    yield from _cut_batches(planned_range.partition, position, chunk, ends, self._cut)
                    position += len(chunk)

    def _cut_chunk(self, data: Bytes, start: int, end: int, line_end: int) -> tuple[Bytes, Positions]:
        """Return the bytes of whole records from `start`, and where each ends. The last may lack its line break."""
        size = _CHUNK
        while True:
            chunk = data[start : min(start + size, end)]
            complete = start + len(chunk) == end  # a planned range ends where a record does
            ends = record_ends(chunk, self._cut, line_end, complete=complete)
            if complete:
                return chunk, ends if len(ends) and ends[-1] == len(chunk) else np.append(ends, len(chunk))
            if len(ends):
                return chunk[: ends[-1]], ends
            line = next_line_end(data, start + len(chunk), end, line_end) - start
            if line > LONGEST_RECORD and not has_quotes(data, start, start + line, self._cut):
                return data[start : start + line], np.array([line])
            size *= 2

    def close(self) -> None:
        """Do nothing: no file stays open."""


def line_number(path: str, offset: int) -> int:
    """Return the number, from 1, of the line whose record begins at byte `offset`. Counts on from where it was last
    asked in the file."""
    stamp = stamp_of(path)
    counted_to, lines = _lines_before.get(stamp, (0, 0))
    if counted_to > offset:
        counted_to, lines = 0, 0
    with opened(path) as data:
        line_end = CR if offset and data[offset - 1 : offset].tobytes() == b"\r" else LF
        for start in range(counted_to, offset, _CHUNK):
            lines += int(np.count_nonzero(data[start : min(start + _CHUNK, offset)] == line_end))
    if len(_lines_before) >= _MOST_COUNTED:
        _lines_before.clear()
    _lines_before[stamp] = offset, lines
    return lines + 1


def _find_boundary(data: Bytes, start: int, target: int, cut: Cut, file: _File) -> int:
    """Return the end of the record that contains byte `target - 1`. A record begins at `start`."""
    if target >= file.size:
        return file.size
    if cut.quote is None:
        return next_line_end(data, target - 1, file.size, file.line_end)
    stop = min(target + SAMPLE, file.size)
    while True:
        ends = record_ends(data[start:stop], cut, file.line_end, complete=stop == file.size) + start
        later = ends[np.searchsorted(ends, target) :]
        if len(later):
            return int(later[0])
        if stop == file.size:
            return stop
        stop = min(2 * stop - start, file.size)


def _cut_batches(partition: PartitionRef, position: int, chunk: Bytes, ends: Positions, cut: Cut) -> Iterator[RawBatch]:
    """Yield the records of a chunk, in batches. One that is too long is a batch of its own, with its beginning."""
    long = np.flatnonzero(np.diff(ends, prepend=0) > LONGEST_RECORD)
    first = 0
    for record in [*long.tolist(), len(ends)]:
        begin = int(ends[first - 1]) if first else 0
        if record > first:
            part = chunk[begin : ends[record - 1]]
            batch = _make_batch(partition, position + begin, part, ends[first:record] - begin, cut)
            if len(batch.offsets):
                yield batch
        if record < len(ends):
            begin = int(ends[record - 1]) if record else 0
            yield RawBatch(
                partition,
                np.array([position + begin]),
                pa.array([chunk[begin : begin + _BEGINNING].tobytes()], pa.binary()),
                refusal=f"it has {int(ends[record]) - begin:,} bytes, and a record has {LONGEST_RECORD:,} at most; "
                f"this is its beginning of {_BEGINNING:,} bytes",
            )
        first = record + 1


def _make_batch(partition: PartitionRef, position: int, chunk: Bytes, ends: Positions, cut: Cut) -> RawBatch:
    starts = np.concatenate([[0], ends[:-1]])
    lines = pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(np.append(0, ends).astype(np.int32)), pa.py_buffer(chunk.tobytes())]
    )
    values = pc.replace_substring_regex(lines, r"(\r?\n|\r)\z", "")
    offsets = starts + position
    blank = np.isin(chunk[starts], _BLANKS)
    if not blank.any():
        return RawBatch(partition, offsets, values)
    only_blanks = pc.match_substring_regex(values.filter(pa.array(blank)), rf"\A[^\S{re.escape(cut.separator)}]*\z")
    blank[blank] = only_blanks.to_numpy(zero_copy_only=False)
    return RawBatch(partition, offsets[~blank], values.filter(pa.array(~blank)))
