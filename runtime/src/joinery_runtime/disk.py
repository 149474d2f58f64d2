"""Names the folder in which there is no room for a file that a job writes for itself: "No space left on device" alone
says neither where nor what for."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joinery_runtime.errors import NoRoom

ELSEWHERE = (
    "TMPDIR names another folder for temporary files; for those of Spark's workers, spark.local.dir in the job's "
    "spark.conf does (on a cluster SPARK_LOCAL_DIRS)"
)
_FULL = re.compile("No space left on device|Disk quota exceeded", re.IGNORECASE)


@contextmanager
def explain_full_disk(content: str, folder: Path | str) -> Iterator[None]:
    """Turns an error of the block into NoRoom if the folder has no room for the `content` that the block writes."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise no_room(content, folder, error.strerror or str(error)) from error


def temporary_folder() -> Path:
    """The folder for temporary files. Raises NoRoom if there is none that takes a file."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise NoRoom(
            "No folder takes temporary files", facts=error.strerror or str(error), todo=f"Make room in one. {ELSEWHERE}"
        ) from error


def is_full(error: OSError) -> bool:
    """Whether there is no room for a file, so that somebody may make some."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def says_full(text: str) -> bool:
    """Whether a message of another program says so."""
    return _FULL.search(text) is not None


def no_room(content: str, folder: Path | str, facts: str) -> NoRoom:
    return NoRoom(
        f"There is no room in {folder} for {content}",
        facts=facts,
        todo=f"Make room there and start again: nothing is lost. {ELSEWHERE}",
    )
