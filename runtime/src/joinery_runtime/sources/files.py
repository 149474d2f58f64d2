"""JSON lines and CSV files as bounded inputs.

A position is a byte offset, so a stored one is found again without reading what is before it. Records are lines
without their terminator (LF or CRLF); empty lines are no records. In CSV a line break inside quotes belongs to the
record: it is one where the number of quotes before it in the file is odd. The header of a CSV file is no record.
"""

from __future__ import annotations

import csv
import io
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.errors import SourceError
from joinery_runtime.sources.base import Bounds, Exclusive, PartitionRef, Range, RawBatch, StoredOffsets

_CHUNK = 4 * 2**20  # bytes that a reader scans at a time
_LF, _QUOTE = 10, 34
_BOM = b"\xef\xbb\xbf"
_SAMPLE = 64 * 2**10  # bytes from which the planner estimates a record's length

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


class FilePlanner(Exclusive):
    """Driver half: one partition, the file, which is all there at once."""

    def __init__(self, name: str, path: str, *, quoted: bool, columns: Sequence[str]) -> None:
        self._partition = PartitionRef(name, path, 0)
        self._quoted, self._columns = quoted, columns

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        path = self._partition.topic
        with _opened(path) as data:
            size = len(data)
            first = _header_end(data) if self._quoted else len(_BOM) * (data[: len(_BOM)].tobytes() == _BOM)
            start = max(stored.offsets.get(self._partition, first), first)
            length = self._record_bytes(data, start, size)
        if self._quoted:
            csv_header(path, self._columns)
        if start > size:
            raise SourceError(
                f"The file {path} is shorter than before",
                facts=f"it was read up to byte {start} and has {size} now",
                todo="Put the old file back, or start the job with new state",
            )
        return [Bounds(self._partition, start, size, final=True, record_bytes=length)]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        """About `max_records`, going by the length of the next records."""
        with _opened(self._partition.topic) as data:
            length = self._record_bytes(data, bounds.start, bounds.end_exclusive)
            wanted = bounds.start + max(1, round(length * max_records))
            end = _boundary(data, bounds, wanted, quoted=self._quoted)
        return Range(bounds.partition, bounds.start, end)

    def _record_bytes(self, data: Bytes, start: int, end: int) -> float:
        """By the next records."""
        sample = data[start : min(start + _SAMPLE, end)]
        ends = _record_ends(sample, quoted=self._quoted)
        records = int(np.count_nonzero(np.diff(ends, prepend=0) > 2))
        if records:
            return float(ends[-1] / records)
        # The next record is longer than that.
        first = _boundary(data, Bounds(self._partition, start, end), start + 1, quoted=self._quoted) - start
        return float(max(1, len(sample), first))

    def records(self, planned: Range, record_bytes: float) -> int:
        return math.ceil((planned.end_exclusive - planned.start) / record_bytes)

    def close(self) -> None:
        """Nothing is kept open."""


class FileReader:
    """Task half. Needs the file at the same path as the driver."""

    def __init__(self, *, quoted: bool) -> None:
        self._quoted = quoted

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for each in planned:
            yield from self._read(each)

    def _read(self, planned: Range) -> Iterator[RawBatch]:
        with _opened(planned.partition.topic) as data:
            if planned.end_exclusive > len(data):
                raise SourceError(
                    f"The file {planned.partition.topic} was cut short while it was read",
                    facts=f"bytes up to {planned.end_exclusive} were planned and it has {len(data)}",
                )
            position = planned.start
            while position < planned.end_exclusive:
                chunk, ends = self._chunk(data, position, planned.end_exclusive)
                batch = _batch(planned.partition, position, chunk, ends)
                position += len(chunk)
                if len(batch.offsets):
                    yield batch

    def _chunk(self, data: Bytes, start: int, end: int) -> tuple[Bytes, Positions]:
        """Whole records from `start`, and where each ends; the last one may lack its line break."""
        size = _CHUNK
        while True:
            chunk = data[start : min(start + size, end)]
            ends = _record_ends(chunk, quoted=self._quoted)
            if start + len(chunk) == end:
                return chunk, ends if len(ends) and ends[-1] == len(chunk) else np.append(ends, len(chunk))
            if len(ends):
                return chunk[: ends[-1]], ends
            size *= 2

    def close(self) -> None:
        """Nothing is kept open."""


def csv_header(path: str, columns: Sequence[str]) -> list[str]:
    """The names in a CSV file's header, in its order. Raises SourceError when one of `columns` is not among them."""
    with _opened(path) as data:
        line = data[: _header_end(data)].tobytes()
    names = next(csv.reader(io.StringIO(line.decode("utf-8-sig", errors="replace"), newline="")), [])
    missing = [column for column in columns if column not in names]
    if missing:
        raise SourceError(
            f"The header of {path} does not fit the schema",
            facts=f"no column {', '.join(missing)}; it has {', '.join(names) or 'no columns'}",
            todo="The first line of a CSV file must name every column of the schema",
        )
    if len(set(names)) < len(names):
        raise SourceError(f"The header of {path} names a column twice", facts=", ".join(names))
    return names


def line_number(path: str, offset: int) -> int:
    """The 1-based number of the line that starts at (or holds) byte `offset`."""
    with _opened(path) as data:
        return int(np.count_nonzero(data[:offset] == _LF)) + 1


@contextmanager
def _opened(path: str) -> Iterator[Bytes]:
    """The file's bytes, mapped into memory while the context lasts."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            # Without an explicit close the mapping goes with the last array that looks into it.
            yield np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b"", dtype=np.uint8)
    except OSError as error:
        raise SourceError(
            f"The input file {path} cannot be read",
            facts=error.strerror or str(error),
            todo="Check the path in the job",
        ) from error


def _record_ends(chunk: Bytes, *, quoted: bool) -> Positions:
    """Where each record that starts in `chunk` ends: behind its line break."""
    breaks = np.flatnonzero(chunk == _LF)
    if quoted and len(breaks):
        quotes = np.flatnonzero(chunk == _QUOTE)
        breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return breaks + 1


def _header_end(data: Bytes) -> int:
    size = _SAMPLE
    while True:
        ends = _record_ends(data[:size], quoted=True)
        if len(ends) or size >= len(data):
            return int(ends[0]) if len(ends) else len(data)
        size *= 2


def _boundary(data: Bytes, bounds: Bounds, wanted: int, *, quoted: bool) -> int:
    """The end of the record that holds byte `wanted - 1`."""
    if wanted >= bounds.end_exclusive:
        return bounds.end_exclusive
    start = bounds.start if quoted else wanted - 1
    stop = min(wanted + _SAMPLE, bounds.end_exclusive)
    while True:
        ends = _record_ends(data[start:stop], quoted=quoted) + start
        later = ends[np.searchsorted(ends, wanted) :]
        if len(later):
            return int(later[0])
        if stop == bounds.end_exclusive:
            return stop
        stop = min(2 * stop - start, bounds.end_exclusive)


def _batch(partition: PartitionRef, position: int, chunk: Bytes, ends: Positions) -> RawBatch:
    starts = np.concatenate([[0], ends[:-1]])
    lines = pa.BinaryArray.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(np.append(0, ends).astype(np.int32)), pa.py_buffer(chunk.tobytes())]
    )
    values = pc.replace_substring_regex(lines, r"\r?\n\z", "")
    not_blank = pc.greater(pc.binary_length(values), 0)
    offsets = (starts + position)[not_blank.to_numpy(zero_copy_only=False)]
    return RawBatch(partition, offsets, values.filter(not_blank))
