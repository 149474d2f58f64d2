"""JSON lines and Parquet files, exactly once: one part per shard and epoch, visible only after the epoch's commit.

A task writes `<directory>/.staging/<attempt>.<suffix>`; the driver renames what a commit named to
`epoch-<12 digits>-shard-<5 digits>.<suffix>`. Both must be on one file system that driver and tasks share. The receipt
names the format, so that a job whose format was edited still publishes what was staged in the one before.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from joinery_runtime.errors import SinkError
from joinery_runtime.job.model.outputs import FileFormat, Timestamps
from joinery_runtime.sinks.base import Attempt, Receipt, Rows, Takeover, Unsigned
from joinery_runtime.sinks.encode import json_lines, rows_to_json

_STAGING = ".staging"
_SUFFIXES: dict[FileFormat, str] = {"json": ".jsonl", "parquet": ".parquet"}


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Task half."""

    directory: str
    format: FileFormat = "json"
    timestamps: Timestamps = "epochMillis"

    def write(self, attempt: Attempt, rows: Rows) -> Receipt:
        path = _staged(Path(self.directory), str(attempt.id), self.format)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                encode = (
                    write_parquet if self.format == "parquet" else partial(_write_lines, timestamps=self.timestamps)
                )
                count = encode(file, rows.to_batches())
                file.flush()
                os.fsync(file.fileno())
            _sync(path.parent)
        except OSError as error:
            raise _problem(path, error) from error
        return {"attempt": str(attempt.id), "shard": attempt.id.shard, "rows": count, "format": self.format}


def _write_lines(file: IO[bytes], batches: Iterable[pa.RecordBatch], timestamps: Timestamps) -> int:
    count = 0
    for batch in batches:
        file.write(json_lines(batch, timestamps))
        count += batch.num_rows
    return count


def write_parquet(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    """A row group per batch."""
    count, writer = 0, None
    for batch in batches:
        writer = writer or pq.ParquetWriter(file, batch.schema, compression="zstd")
        writer.write_batch(batch)
        count += batch.num_rows
    assert writer is not None, "an attempt that writes has a row"
    writer.close()
    return count


class FileSink(Unsigned):
    """Driver half."""

    def __init__(
        self, directory: str, file_format: FileFormat = "json", timestamps: Timestamps = "epochMillis"
    ) -> None:
        self._directory, self._format, self._timestamps = Path(directory), file_format, timestamps

    def prepare(self, schema: pa.Schema) -> str | None:
        made = None if self._directory.exists() else f"the folder {self._directory}"
        try:
            (self._directory / _STAGING).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _problem(self._directory, error) from error
        return made

    def writer(self) -> FileWriter:
        return FileWriter(str(self._directory), self._format, self._timestamps)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Files become visible after the commit; here it is made sure that they will."""
        for receipt in receipts:
            staged = _staged(self._directory, receipt["attempt"], _format_of(receipt))
            if not staged.exists():
                raise SinkError(
                    f"The output of epoch {epoch}, shard {receipt['shard']} cannot be seen from the driver",
                    facts=f"a task has written {staged}, and it is not there; nothing of the epoch was committed",
                    todo="Driver and tasks must share the directory: name one on a shared file system",
                )

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        gone = [part for receipt in receipts if (part := self._publish(epoch, receipt)) is not None]
        if gone:
            raise SinkError(
                f"Output of epoch {epoch}, the newest one, is gone: {len(gone)} of {len(receipts)} files",
                facts=f"neither {gone[0]} nor what was staged for it is there: somebody deleted it, or driver and "
                "tasks do not share the folder",
                todo="Put it back. Or go on without its rows, which are not written again: "
                f"touch {' '.join(shlex.quote(str(part)) for part in gone)}. Or start anew, and write all rows again: "
                "empty the folder, then joinery state delete JOB.yaml --yes",
            )
        if receipts:
            _sync(self._directory)
            # What attempts left behind that were run again. Another sink may still have to publish of this epoch.
            self._sweep(lambda _, of: of < epoch)

    def _publish(self, epoch: int, receipt: Receipt) -> Path | None:
        """The part, if it is gone."""
        of = _format_of(receipt)
        staged = _staged(self._directory, receipt["attempt"], of)
        part = self._directory / f"epoch-{epoch:012d}-shard-{receipt['shard']:05d}{_SUFFIXES[of]}"
        try:
            staged.replace(part)
        except FileNotFoundError:
            return None if part.exists() else part
        except OSError as error:
            raise _problem(part, error) from error
        return None

    def recover(self, takeover: Takeover) -> bool:
        """The committed epoch's files are left to `publish`; what it does not name goes at the next recovery.

        Parts of later epochs than the committed one are not this job's: it would overwrite them one by one.
        """
        self._refuse_foreign(takeover.committed_epoch)
        self._sweep(lambda generation, of: generation < takeover.generation and of != takeover.committed_epoch)
        return False

    def _sweep(self, garbage: Callable[[int, int], bool]) -> None:
        """Removes staged files whose generation and epoch are such."""
        for staged in _with_suffix((self._directory / _STAGING).glob("*")):
            generation, epoch = map(int, staged.name.split("-")[:2])
            if garbage(generation, epoch):
                staged.unlink(missing_ok=True)

    def _refuse_foreign(self, committed_epoch: int) -> None:
        parts = _with_suffix(self._directory.glob("epoch-*-shard-*"))
        if parts and int(parts[-1].name.split("-")[1]) > committed_epoch:
            raise SinkError(
                f"The folder {self._directory} holds output of another job, or of this one before its state was lost",
                facts=f"{parts[-1].name} is there, and this job has committed up to epoch {committed_epoch}",
                todo="Move the files away, or name another folder",
            )

    def close(self) -> None:
        """Nothing is kept open."""


def published(directory: str, epoch: int) -> Iterator[bytes]:
    """The rows in the visible parts of an epoch, each as a line of JSON without its line break."""
    for part in _with_suffix(Path(directory).glob(f"epoch-{epoch:012d}-shard-*")):
        try:
            if part.suffix == _SUFFIXES["parquet"]:
                yield from (line for batch in pq.ParquetFile(part).iter_batches() for line in rows_to_json(batch))
            else:
                yield from part.read_bytes().splitlines()
        except (OSError, pa.ArrowInvalid) as error:
            raise SinkError(
                f"The output file {part} cannot be read",
                facts=getattr(error, "strerror", None) or str(error),
                todo="Check that this user may read there, and that nobody has changed the file",
            ) from error


def _format_of(receipt: Receipt) -> FileFormat:
    """Receipts of earlier releases name none."""
    named: FileFormat = receipt.get("format", "json")
    return named


def _staged(directory: Path, attempt: str, file_format: FileFormat) -> Path:
    return directory / _STAGING / f"{attempt}{_SUFFIXES[file_format]}"


def _with_suffix(paths: Iterable[Path]) -> list[Path]:
    """Those that a sink writes, of any format, by their names."""
    return sorted(path for path in paths if path.suffix in _SUFFIXES.values())


def _sync(directory: Path) -> None:
    """Makes new names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problem(path: Path, error: OSError) -> SinkError:
    return SinkError(
        f"The output file {path} cannot be written",
        facts=error.strerror or str(error),
        todo="Check output.file.path and that this user may write there",
    )
