"""Opens input files as bytes in memory: finds those of a path, directory or glob, unpacks compressed ones, maps them.

Positions count unpacked bytes. A process unpacks a file once, into a private temporary file, and keeps the last few of
these.
"""

from __future__ import annotations

import fnmatch
import glob
import gzip
import io
import mmap
import shutil
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joinery_runtime.errors import SourceError, explain_full_disk, is_full, temporary_folder

Bytes = npt.NDArray[np.uint8]
MOST_FILES = 10_000  # of one input: each is a partition in its plans
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# How files begin that are neither lines nor compressed in a supported way.
_OTHERS = {
    b"BZh": "bzip2: unpack it, or pack it with gzip or zstd",
    b"\xfd7zXZ\x00": "xz: unpack it, or pack it with gzip or zstd",
    b"PK\x03\x04": "zip: unpack it, or pack it with gzip or zstd",
    b"PAR1": "Parquet: write format: parquet",
    b"\xff\xfe": "UTF-16: write it as UTF-8",
    b"\xfe\xff": "UTF-16: write it as UTF-8",
    b"Obj\x01": "an Avro container, which is not supported yet",
}
_CHECK_PATH = "Check the path in the job"
_PIECE = 64 * 2**10  # bytes that are unpacked at a time
_MOST_UNPACKED = 8  # unpacked files that a process keeps
_unpacked: OrderedDict[tuple[str, int, int], Bytes] = OrderedDict()
_lock = threading.Lock()


def files_of(path: str) -> list[str]:
    """Return the files that a path stands for, in order: itself, a directory's files that are not hidden, or those that
    match a pattern (`*`, `?`, `[abc]`, `**` for any directories). Raises SourceError if there are none."""
    if Path(path).is_dir():
        files = [str(file) for file in Path(path).iterdir() if file.is_file() and file.name[0] not in "._"]
    elif Path(path).is_file() or not glob.has_magic(path):
        return [path]
    else:
        matching = glob.glob(path, recursive=True)  # noqa: PTH207  of any path, also an absolute one
        files = [file for file in matching if Path(file).is_file()]
    if not files:
        entries = list(Path(path).iterdir()) if Path(path).is_dir() else []
        inner, hidden = ([entry.name for entry in entries if entry.is_dir() == kind] for kind in (True, False))
        facts, todo = "", _CHECK_PATH
        if inner:
            facts = f"it has only directories, such as {min(inner)}"
            todo = f'Name the files below them: path: "{path}/**/*.<suffix>"'
        elif hidden:
            facts, todo = f"it has only hidden ones, such as {min(hidden)}", "Names must not begin with . or _"
        raise SourceError(f"There is no input file in {path}", facts=facts, todo=todo)
    if len(files) > MOST_FILES:
        raise SourceError(
            f"There are too many input files in {path}",
            facts=f"{len(files):,}, and an input reads at most {MOST_FILES:,}",
            todo="Name fewer files, or combine them",
        )
    return sorted(files)


@contextmanager
def name_input_in_errors(name: str, field: str = "file.path") -> Iterator[None]:
    """Add the input's name to SourceErrors of the block, which name the file. The job has the path in `field`."""
    try:
        yield
    except SourceError as error:
        wrong_path = error.todo == _CHECK_PATH
        summary = f"Input {name}: {error.summary[:1].lower()}{error.summary[1:]}"
        failure = type(error)(
            summary, facts=error.facts, todo=f"Check {field} in the job" if wrong_path else error.todo
        )
        failure.field = (name, field) if wrong_path else None
        raise failure from error


def stamp_of(path: str) -> tuple[str, int, int]:
    """Return a value that changes when the file does. Raises SourceError if the file cannot be read."""
    with file_errors(path):
        stat = Path(path).stat()
        return path, stat.st_mtime_ns, stat.st_size


@contextmanager
def opened(path: str) -> Iterator[Bytes]:
    """Map the file's bytes, unpacked, into memory. Raises SourceError."""
    with file_errors(path), Path(path).open("rb") as file:
        beginning = file.read(6)
        for magic, description in _OTHERS.items():
            if beginning.startswith(magic):
                raise SourceError(f"The input file {path} looks like {description}")
        packed = beginning.startswith((_GZIP, _ZSTD))
        data = _unpacked_bytes(path, gzipped=beginning.startswith(_GZIP)) if packed else _map_file(file)
    yield data


def covers_file(path: str, file: str) -> bool:
    """Return whether the path, a directory or a pattern, would stand for that file if it existed."""
    return Path(file).parent == Path(path) or fnmatch.fnmatchcase(file, path)


def _map_file(file: IO[bytes]) -> Bytes:
    """Map a file. The mapping is not closed explicitly: it goes with the last array that refers to it."""
    size = file.seek(0, io.SEEK_END)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b"", dtype=np.uint8)


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Turn errors of the file system in the block into SourceErrors that name the file."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"The input file {path} cannot be read",
            facts=error.strerror or str(error),
            todo=_CHECK_PATH,
        ) from error


def require_planned(path: str, units: str, start: int, end: int) -> None:
    """Raise SourceError if a file is missing that an epoch reads from `start` to `end`."""
    if not Path(path).exists():
        raise SourceError(
            f"The input file {path} is not there any more",
            facts=f"an epoch is to read its {units} {start:,} to {end:,}",
            todo="Put the same file back and start the job again: it resumes where it was. If the file was not "
            "removed: every machine of the job needs the file at this path",
        )


def _unpacked_bytes(path: str, *, gzipped: bool) -> Bytes:
    key = stamp_of(path)
    with _lock:
        if key in _unpacked:
            _unpacked.move_to_end(key)
            return _unpacked[key]
        with (
            explain_full_disk(f"the unpacked input file {path}", temporary_folder()),
            tempfile.TemporaryFile(prefix="joinery-input-") as target,
        ):
            try:
                with gzip.open(path) if gzipped else pa.input_stream(path, compression="zstd") as source:
                    shutil.copyfileobj(source, target, _PIECE)
                target.flush()
            except (EOFError, zlib.error, OSError) as error:
                if isinstance(error, OSError) and is_full(error):
                    raise
                start = target.tell()
                raise SourceError(
                    f"The input file {path} cannot be unpacked",
                    facts=f"{'gzip' if gzipped else 'zstd'}, between byte {start:,} and byte {start + _PIECE:,} of the "
                    f"unpacked text: {error}; the file has {key[2]:,} bytes",
                    todo="Replace the file: it is broken or not complete. To read the part that can be "
                    f"unpacked, write it to another file ({'zcat' if gzipped else 'zstdcat'}), and name that file",
                ) from error
            _unpacked[key] = _map_file(target)
        while len(_unpacked) > _MOST_UNPACKED:
            _unpacked.popitem(last=False)
        return _unpacked[key]
