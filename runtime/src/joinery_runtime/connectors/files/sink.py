"""JSON lines and Parquet files, exactly once: one part per shard and epoch, visible only after the epoch's commit.

A task writes `<directory>/.staging/<attempt>.<suffix>`. The driver renames the files that a commit named to
`epoch-<12 digits>-shard-<5 digits>.<suffix>`. With `Rolling` it first holds small files back and merges them
(`connectors.files.rolling`). Everything is on one file system that driver and tasks share. Receipts name the format, so
that a job whose format was edited still publishes what was staged in the former one.
"""

from __future__ import annotations

import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from joinery_runtime.connectors.files.rolling import (
    HELD,
    Part,
    Rolling,
    group_parts,
    held_names,
    held_parts,
    merge_parts,
)
from joinery_runtime.connectors.sink import (
    Attempt,
    AttemptRows,
    BufferedSink,
    NamesNoStore,
    Receipt,
    RecoveryContext,
    short_incarnation,
)
from joinery_runtime.errors import OutputUnavailable, SinkError, is_full
from joinery_runtime.formats.json.encode import PLAIN, JsonStyle, json_lines, rows_to_json
from joinery_runtime.job.model.outputs import FileFormat
from joinery_runtime.job.model.wording import counted

MAKE_ROOM = "Make room there: the job continues by itself"

_STAGING = ".staging"
_NAME = re.compile(r"epoch-(\d+)-(?:shard-\d+|since-(\d+))")
_SUFFIXES: dict[FileFormat, str] = {"json": ".jsonl", "parquet": ".parquet"}


@dataclass(frozen=True, slots=True)
class FileWriter:
    """The task half. Files of fewer bytes than `hold_below` are held."""

    directory: str
    format: FileFormat = "json"
    style: JsonStyle = PLAIN
    hold_below: int = 0

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        path = _staged_path(Path(self.directory), str(attempt.id), self.format)
        lines = partial(_write_lines, style=self.style)
        encode = write_parquet if self.format == "parquet" else lines
        count, size = _write_staged(path, lambda file: encode(file, rows.to_batches()))
        written = {"attempt": str(attempt.id), "shard": attempt.id.shard, "rows": count, "format": self.format}
        held_receipt = {**written, "held": True, "life": short_incarnation(attempt.incarnation)}
        return held_receipt if size < self.hold_below else written


def _write_staged(path: Path, write: Callable[[IO[bytes]], int]) -> tuple[int, int]:
    """Write a file, and make it and its name durable. Returns what `write` returns, and the file's size."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            count = write(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        _sync_folder(path.parent)
    except OSError as error:
        raise _sink_error(path, error) from error
    return count, size


def _write_lines(file: IO[bytes], batches: Iterable[pa.RecordBatch], style: JsonStyle) -> int:
    count = 0
    for batch in batches:
        file.write(json_lines(batch, style))
        count += batch.num_rows
    return count


def write_parquet(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    """Write one row group per batch. Returns the number of rows."""
    count, writer = 0, None
    for batch in batches:
        writer = writer or pq.ParquetWriter(file, batch.schema, compression="zstd")
        writer.write_batch(batch)
        count += batch.num_rows
    assert writer is not None, "an attempt that writes has a row"
    writer.close()
    return count


class FileSink(NamesNoStore, BufferedSink):
    """The driver half. `wall` is a clock in seconds since 1970, like the file system's. `incarnation` says whose held
    files it merges, until `recover` sets it. Held files of others stay: another incarnation of the job writes the rows
    of this one again, and another job may be at work."""

    def __init__(
        self,
        directory: str,
        file_format: FileFormat = "json",
        style: JsonStyle = PLAIN,
        rolling: Rolling | None = None,
        wall: Callable[[], float] = time.time,
        incarnation: str = "",
    ) -> None:
        self._directory, self._format, self._style = Path(directory), file_format, style
        self._rolling, self._wall, self._incarnation = rolling, wall, incarnation
        self._held_parts: dict[str, Part] | None = None  # by name; None: has to be listed

    def prepare(self, schema: pa.Schema) -> str | None:
        created = None if self._directory.exists() else f"the folder {self._directory}"
        try:
            for name in (_STAGING, *([HELD] if self._rolling else [])):
                (self._directory / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _sink_error(self._directory, error) from error
        return created

    def writer(self) -> FileWriter:
        hold_below = self._rolling.size if self._rolling is not None else 0
        return FileWriter(str(self._directory), self._format, self._style, hold_below)

    # --- what is buffered -------------------------------------------------------------------------------------------

    @property
    def buffered_rows(self) -> int:
        return sum(part.rows for part in self._list_parts().values())

    def due(self, *, last: bool) -> bool:
        return self._is_due(self._list_parts().values(), last=last)

    def _list_parts(self) -> dict[str, Part]:
        if self._held_parts is None:
            self._held_parts = {part.name: part for part in held_parts(self._directory, self._incarnation)}
        return self._held_parts

    def _is_due(self, parts: Iterable[Part], *, last: bool) -> bool:
        listed = list(parts)
        if not listed or last or self._rolling is None:
            return bool(listed)
        # A clock that was set back must not hold rows for the time by which it was: they are then due.
        waits_ms = abs(1000 * (self._wall() - min(part.since for part in listed)))
        return sum(part.size for part in listed) >= self._rolling.size or waits_ms >= self._rolling.wait_ms

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> list[Receipt]:
        try:
            staged = [self._staged_part(epoch, receipt) for receipt in receipts if receipt.get("held")]
        except FileNotFoundError:
            return []  # `in_transaction` reports it
        parts = [*self._list_parts().values(), *staged]
        if not self._is_due(parts, last=last):
            return []
        try:
            return [
                self._merge_group(f"{generation}-{epoch}-roll-{uuid.uuid4().hex}", group)
                for group in group_parts(parts)
            ]
        except ValueError as error:  # Arrow's errors included
            raise SinkError(
                f"Output that is held in {self._directory / HELD} cannot be merged",
                facts=str(error),
                todo="Only this job may change what is there: put back what is missing. Or continue without the "
                "rows of a file that is missing or torn: remove it, and start the job again",
            ) from error

    def _staged_part(self, epoch: int, receipt: Receipt) -> Part:
        path = _staged_path(self._directory, receipt["attempt"], _format_of(receipt))
        status = path.stat()
        return Part(
            epoch, receipt["shard"], receipt["rows"], path, status.st_size, status.st_mtime, receipt.get("life", "")
        )

    def _merge_group(self, attempt: str, parts: Sequence[Part]) -> Receipt:
        file_format: FileFormat = "parquet" if parts[0].path.suffix == _SUFFIXES["parquet"] else "json"
        _write_staged(_staged_path(self._directory, attempt, file_format), partial(merge_parts, parts))
        rows: dict[int, int] = {}
        for part in parts:
            rows[part.epoch] = rows.get(part.epoch, 0) + part.rows
        merged = {"attempt": attempt, "format": file_format, "rows": sum(rows.values()), "life": parts[0].incarnation}
        return {**merged, "rolled": [[epoch, count] for epoch, count in rows.items()]}

    # --- commit -----------------------------------------------------------------------------------------------------

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Check that the files are there: they become visible only after the commit."""
        for receipt in receipts:
            staged = _staged_path(self._directory, receipt["attempt"], _format_of(receipt))
            if not staged.exists():
                raise SinkError(
                    f"The output of epoch {epoch} cannot be seen from the driver",
                    facts=f"a task has written {staged}, and it is not there; nothing of the epoch was committed",
                    todo="Driver and tasks must share the directory: name one on a shared file system",
                )

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Give files their names. Merged files are removed only once the file with their rows has its name."""
        for receipt in receipts:
            if "life" in receipt:
                self._take_incarnation(receipt["life"])
        # Receipts come in the order in which shards end. A job that watches the folder rejects names that come before
        # the last one it has seen.
        in_order = sorted(receipts, key=lambda receipt: self._part_path(epoch, receipt).name)
        missing = [receipt for receipt in in_order if not self._publish_part(epoch, receipt)]
        if missing:
            given_up = shlex.join(str(self._given_up(receipt)) for receipt in missing)
            raise SinkError(
                f"Output of epoch {epoch}, the newest one, is gone: {len(missing)} of {counted(len(receipts), 'file')}",
                facts=f"neither {self._part_path(epoch, missing[0])} nor what was staged for it is there: somebody "
                "deleted it, or driver and tasks do not share the folder",
                todo="Put it back. Or continue without its rows, which are not written again: "
                f"touch {given_up}. Or start from the beginning, and write all rows again: "
                "empty the folder, then joinery state delete JOB.yaml --yes",
            )
        if not receipts:
            return
        _sync_folder(self._directory)
        if any("rolled" in receipt for receipt in receipts):
            self._drop_merged(lambda part_epoch: part_epoch <= epoch)  # the file with their rows has its name
        if (self._directory / HELD).exists():
            _sync_folder(self._directory / HELD)  # the next recovery no longer looks at this epoch
        # Removes what repeated attempts wrote. Not of this epoch: another sink may still have to publish it.
        self._sweep_staged(lambda _, staged_epoch: staged_epoch < epoch)

    def _part_path(self, epoch: int, receipt: Receipt) -> Path:
        """Return the path of a part. The name of a merged file sorts after those of the epoch's shards."""
        suffix = _SUFFIXES[_format_of(receipt)]
        if "rolled" in receipt:
            first, _ = receipt["rolled"][0]
            return self._directory / f"epoch-{epoch:012d}-since-{first:012d}{suffix}"
        return self._directory / f"epoch-{epoch:012d}-shard-{receipt['shard']:05d}{suffix}"

    def _given_up(self, receipt: Receipt) -> Path:
        """Return the file whose existence says that the part may be missing. Readers of the folder ignore such names.
        It is named after the attempt, because a job that starts from the beginning uses the same epochs and shards
        again."""
        return self._directory / f".{receipt['attempt']}.gone"

    def _publish_part(self, epoch: int, receipt: Receipt) -> bool:
        """Give a part its name. Returns whether it is there now, or was given up."""
        staged, part = (
            _staged_path(self._directory, receipt["attempt"], _format_of(receipt)),
            self._part_path(epoch, receipt),
        )
        try:
            if receipt.get("held"):
                held_part = self._staged_part(epoch, receipt)
                named = replace(held_part, path=self._directory / HELD / held_part.name)
                named.path.parent.mkdir(exist_ok=True)
                staged.replace(named.path)
                self._list_parts()[held_part.name] = named
            else:
                staged.replace(part)
        except FileNotFoundError:
            present = part.exists() or (receipt.get("held") and self._has_part(epoch, receipt))
            return present or self._given_up(receipt).exists()
        except OSError as error:
            raise _sink_error(part, error) from error
        return True

    def _take_incarnation(self, incarnation: str) -> None:
        if incarnation != self._incarnation:
            self._incarnation, self._held_parts = incarnation, None

    def _has_part(self, epoch: int, receipt: Receipt) -> bool:
        """Return whether a part is held or was merged later. After a return to a savepoint, its epoch is the newest
        again."""
        self._held_parts = None  # another driver may have changed it
        is_held = any((part.epoch, part.shard) == (epoch, receipt["shard"]) for part in self._list_parts().values())
        return is_held or any(first <= epoch <= last for first, last, _ in _merged_files(self._directory))

    def _drop_merged(self, merged: Callable[[int], bool]) -> None:
        for part in held_parts(self._directory, self._incarnation):
            if merged(part.epoch):
                part.path.unlink(missing_ok=True)
        self._held_parts = None

    # --- recover ----------------------------------------------------------------------------------------------------

    def recover(self, recovery: RecoveryContext) -> bool:
        """Sweep, but leave the committed epoch's files to `publish`; those not named go at the next recovery.

        Rejects parts of later epochs than the committed one. They are not this job's, which would overwrite them one by
        one.
        """
        self._take_incarnation(short_incarnation(recovery.incarnation))
        self._reject_foreign(recovery.committed_epoch)
        # A driver that died may have left held files that were merged, if the job has since started from the beginning
        # (without a `publish`).
        rolled = _merged_files(self._directory)
        self._drop_merged(lambda part_epoch: any(first <= part_epoch <= last for first, last, _ in rolled))
        foreign = [part for part in held_parts(self._directory) if part.incarnation != self._incarnation]
        if foreign:
            recovery.warn(
                f"{held_names(self._directory, {part.incarnation for part in foreign})} hold "
                f"{counted(sum(part.rows for part in foreign), 'row')} of another job, or of this one before its "
                "state was deleted: this job does not show them. If no other job writes there, remove these files"
            )
        self._sweep_staged(
            lambda generation, epoch: generation < recovery.generation and epoch != recovery.committed_epoch
        )
        return False

    def _sweep_staged(self, garbage: Callable[[int, int], bool]) -> None:
        """Remove staged files for whose generation and epoch `garbage` is true."""
        for staged in _with_suffix((self._directory / _STAGING).glob("*")):
            generation, epoch = map(int, staged.name.split("-")[:2])
            if garbage(generation, epoch):
                staged.unlink(missing_ok=True)

    def _reject_foreign(self, committed_epoch: int) -> None:
        parts = [(last, path) for _, last, path in _visible_files(self._directory)]
        parts += [(part.epoch, part.path) for part in held_parts(self._directory)]
        newest, path = max(parts, default=(0, self._directory))
        if newest > committed_epoch:
            raise SinkError(
                f"The folder {self._directory} holds output of another job, or of this one before its state was lost",
                facts=f"{path.relative_to(self._directory)} is there, and this job has committed up to epoch "
                f"{committed_epoch}",
                todo="Move the files away, or name another folder",
            )

    def close(self) -> None:
        """Do nothing: no file stays open."""


def published_lines(
    directory: str, epoch: int, receipts_of: Callable[[int], Iterable[Receipt]], incarnation: str
) -> Iterator[bytes]:
    """Yield the visible and held rows of an epoch, as lines of JSON without line breaks, also while the job runs.
    `receipts_of` gives the receipts that an epoch's commit named. `incarnation` is the job's, as in its receipts."""
    folder = Path(directory)
    for part in _with_suffix(folder.glob(f"epoch-{epoch:012d}-shard-*")):
        yield from _read_lines(part)
    # Held files come first: they are removed only after the file into which they were merged has its name.
    held_lines: list[bytes] = []
    missing: SinkError | None = None
    try:
        held_lines = [
            line for part in held_parts(folder, incarnation) if part.epoch == epoch for line in _read_lines(part.path)
        ]
    except SinkError as error:
        missing = error
    merged = False
    for first, last, path in _merged_files(folder):
        if first <= epoch <= last:
            counts: dict[int, int] = {}
            for receipt in receipts_of(last):
                named = dict(receipt.get("rolled", ()))
                if named and (min(named), _SUFFIXES[_format_of(receipt)]) == (first, path.suffix):
                    counts = named
            before = sum(count for part_epoch, count in counts.items() if part_epoch < epoch)
            # Rows that no commit has named are yielded once, with the file's last epoch.
            yield from islice(_read_lines(path), before, None if epoch == last else before + counts.get(epoch, 0))
            merged |= epoch in counts
    if merged:
        return
    if missing is not None:
        raise missing
    yield from held_lines


def _read_lines(part: Path) -> Iterator[bytes]:
    try:
        if part.suffix == _SUFFIXES["parquet"]:
            yield from (line for batch in pq.ParquetFile(part).iter_batches() for line in rows_to_json(batch))
        else:
            with part.open("rb") as file:
                yield from (line.rstrip(b"\n") for line in file)
    except (OSError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"The output file {part} cannot be read",
            facts=getattr(error, "strerror", None) or str(error),
            todo="Check that this user may read there, and that nobody has changed the file",
        ) from error


def _visible_files(directory: Path) -> list[tuple[int, int, Path]]:
    """Return the visible files: the first and the last epoch of each, and its path."""
    named = [(_NAME.fullmatch(path.stem), path) for path in _with_suffix(directory.glob("epoch-*"))]
    return [(int(name[2] or name[1]), int(name[1]), path) for name, path in named if name is not None]


def _merged_files(directory: Path) -> list[tuple[int, int, Path]]:
    """Return the visible files that were merged."""
    return [file for file in _visible_files(directory) if "-since-" in file[2].stem]


def _format_of(receipt: Receipt) -> FileFormat:
    """Return a receipt's format. Receipts of earlier releases name none."""
    named: FileFormat = receipt.get("format", "json")
    return named


def _staged_path(directory: Path, attempt: str, file_format: FileFormat) -> Path:
    return directory / _STAGING / f"{attempt}{_SUFFIXES[file_format]}"


def _with_suffix(paths: Iterable[Path]) -> list[Path]:
    """Return the paths with a suffix that sinks write, sorted by name."""
    return sorted(path for path in paths if path.suffix in _SUFFIXES.values())


def _sync_folder(directory: Path) -> None:
    """Make new names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sink_error(path: Path, error: OSError) -> SinkError:
    summary, facts = f"The output file {path} cannot be written", error.strerror or str(error)
    if is_full(error):
        return OutputUnavailable(summary, facts=facts, todo=MAKE_ROOM)
    return SinkError(summary, facts=facts, todo="Check output.file.path and that this user may write there")
