"""Merges files of many epochs into one before a reader sees them (`output.file.rollSize` and `rollInterval`).

After an epoch's commit its small files are *held*: durable, but not visible. Once held files are large or old enough,
the driver merges them, and the staged files of the epoch that it is about to commit, into one staged file. The commit
names that file. After the commit the file gets its name, `epoch-<this one>-since-<first>`, which sorts after all
existing names, and the merged files are removed. So the store, which fences drivers, decides which rows are in which
file: no commit names a file that a replaced driver has merged (docs/decisions/0055).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

HELD = ".held"
_COPIED = 1 << 20  # bytes copied at a time
# The row group size of merged Parquet files: what readers skip or decode as a whole.
_GROUP_ROWS, _GROUP_BYTES = 128 * 1024, 64 << 20


@dataclass(frozen=True, slots=True)
class Rolling:
    """When held files are merged: once they have `size` bytes, or the oldest has been held for `wait_ms`."""

    size: int
    wait_ms: int


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A file with rows of one epoch and shard that is held or about to be. `since` is when it was written, in seconds
    since 1970. `incarnation` is that of its job, in short (`connectors.sink.short_incarnation`)."""

    epoch: int
    shard: int
    rows: int
    path: Path
    size: int
    since: float
    incarnation: str

    @property
    def name(self) -> str:
        """The name under which the file is held. It says everything that a starting driver needs to know."""
        incarnation = f"-of-{self.incarnation}" if self.incarnation else ""
        return f"epoch-{self.epoch:012d}-shard-{self.shard:05d}-rows-{self.rows}{incarnation}{self.path.suffix}"

    @classmethod
    def parse(cls, path: Path) -> Part:
        _, epoch, _, shard, _, rows, *suffixes = path.stem.split("-")
        status = path.stat()
        return cls(
            int(epoch), int(shard), int(rows), path, status.st_size, status.st_mtime, suffixes[-1] if suffixes else ""
        )


def held_parts(directory: Path, incarnation: str | None = None) -> list[Part]:
    """Return the held files of an incarnation, or of all, in order of their epochs."""
    parts = []
    for path in (directory / HELD).glob("epoch-*-rows-*"):
        with suppress(FileNotFoundError):  # a running driver has merged it
            parts.append(Part.parse(path))
    return sorted(part for part in parts if incarnation is None or part.incarnation == incarnation)


def held_names(directory: Path, incarnations: Iterable[str]) -> str:
    """Return patterns for the files that these incarnations hold in the directory."""
    names = sorted({f"*-of-{incarnation}.*" if incarnation else "*-rows-*" for incarnation in incarnations})
    return ", ".join(str(directory / HELD / name) for name in names)


def group_parts(parts: Collection[Part]) -> Iterator[list[Part]]:
    """Group files that can be merged into one: of one format and, in Parquet, with the same columns. Raises ValueError
    for a file that is gone or torn."""
    missing = [part.path for part in parts if not part.path.exists()]
    if missing:
        raise ValueError(f"{missing[0]} is gone")
    for _, group in groupby(
        sorted(parts),
        lambda part: (part.path.suffix, (str(pq.read_schema(part.path)) if part.path.suffix == ".parquet" else "")),
    ):
        yield list(group)


def merge_parts(parts: Sequence[Part], file: IO[bytes]) -> int:
    """Write the rows of a group in the order of its parts, and return their number. Holds at most one row group in
    memory. Raises ValueError if the number differs from that of the rows that were written."""
    copy = _copy_row_groups if parts[0].path.suffix == ".parquet" else _copy_lines
    count = copy(parts, file)
    expected = sum(part.rows for part in parts)
    if count != expected:
        raise ValueError(f"the {len(parts)} files have {count} rows, and {expected} were written")
    return count


def _copy_lines(parts: Iterable[Part], file: IO[bytes]) -> int:
    count = 0
    for part in parts:
        with part.path.open("rb") as source:
            while chunk := source.read(_COPIED):
                file.write(chunk)
                count += chunk.count(b"\n")
    return count


def _copy_row_groups(parts: Sequence[Part], file: IO[bytes]) -> int:
    count = 0
    with pq.ParquetWriter(file, pq.read_schema(parts[0].path), compression="zstd") as writer:
        for table in _large_tables(parts):
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            count += table.num_rows
    return count


def _large_tables(parts: Iterable[Part]) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        with pq.ParquetFile(part.path) as source:
            for batch in source.iter_batches():
                batches.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                    yield pa.Table.from_batches(batches)
                    batches, rows, size = [], 0, 0
    if batches:
        yield pa.Table.from_batches(batches)
