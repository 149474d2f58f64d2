"""Scratch folders: gone with their process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from joinery_runtime.hosts.scratch import scratch_folder

_KILLED = """
import os, signal, sys
from joinery_runtime.hosts.scratch import scratch_folder
with scratch_folder("test") as folder:
    (folder / "part.arrow").write_bytes(b"x" * 100)
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_this_users_and_goes_in_the_end(temporary: Path) -> None:
    with scratch_folder("test") as folder:
        assert not list(folder.iterdir())
        assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
        (folder / "a").write_text("")
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_one(temporary: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = Path(killed.stdout.strip())
    assert (left / "part.arrow").exists()
    with scratch_folder("other"):
        assert left.exists(), "a folder of another kind is not this one's to remove"
    with scratch_folder("test"):
        assert not left.parent.exists()


def test_folders_in_use_stay(temporary: Path) -> None:
    """As do those of a release that locked nothing: whether their processes live cannot be told."""
    earlier = temporary / "joinery-test-earlier"
    earlier.mkdir()
    with scratch_folder("test") as first, scratch_folder("test") as second:
        assert first.exists()
        assert second.exists()
        assert first != second
    assert list(temporary.iterdir()) == [earlier]
