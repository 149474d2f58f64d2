"""Folders for what a process has on disk while it lives. One that is killed leaves its folder behind, in which may be
gigabytes of segments or a job's secrets; the next process removes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from joinery_runtime.errors import explain_full_disk, temporary_folder

_OWNER = "owner"  # a file that the process of a folder has locked; the lock ends with the process


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield an empty folder that this user alone may read, and that is gone afterwards. Folders of this kind whose
    processes were killed are removed first."""
    prefix, content = f"joinery-{kind}-", "a job's files"
    parent = temporary_folder()
    for owner in parent.glob(f"{prefix}*/{_OWNER}"):
        with suppress(OSError):  # it is another user's, is in use, or goes meanwhile
            handle = os.open(owner, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(handle)
    with ExitStack() as stack:
        with explain_full_disk(content, parent):
            own_folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            owner_file = stack.enter_context(Path(own_folder, f"{_OWNER}.new").open("wb"))
        with suppress(OSError):  # on a file system without locks nobody can tell whose it is, so nobody removes it
            fcntl.flock(owner_file, fcntl.LOCK_EX)
            # Nobody sees it before it is locked.
            Path(owner_file.name).rename(Path(own_folder, _OWNER))
        folder = Path(own_folder, "files")
        with explain_full_disk(content, parent):
            folder.mkdir(mode=0o700)
        yield folder
