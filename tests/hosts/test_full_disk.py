"""A job whose disk is full names the folder, what was to be written there, and how to write it elsewhere."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from joinery_runtime.engine.cache import SegmentCache
from joinery_runtime.errors import NoRoom, explain_full_disk
from joinery_runtime.state.memory import MemoryStore

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: full-disk}
spec:
  inputs:
    - name: l
      file: {path: INPUT}
      format: json
      eventTime: ts
      schema: [{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]
    - {name: r, file: {path: r.jsonl}, format: json, eventTime: ts,
       schema: [{name: k, type: string}, {name: ts, type: timestamp}]}
  joins: [{right: r, keys: {l.k: r.k}, interval: {of: l, lower: 0s, upper: 1h}}]
  output: {file: {path: out}}
  stateStore: {memory: {}}
"""


def run_with_little_room(folder: Path, megabytes: int) -> str:
    """Run the job with TMPDIR on a file system of this size, and return what it says."""
    small = folder / "small"
    small.mkdir()
    mounted = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && TMPDIR="$0" exec "$@"'
    command = [sys.executable, "-m", "joinery_runtime", "run", "--local", "job.yaml", "--status-port", "0"]
    ended = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, str(small), *command],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    return ended.stderr


def write_inputs(folder: Path, name: str) -> None:
    source = random.Random(7)
    rows = [{"k": str(row), "v": source.randbytes(2_000).hex(), "ts": row} for row in range(2_000)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    (folder / name).write_bytes(gzip.compress(text, 1) if name.endswith(".gz") else text)
    (folder / "r.jsonl").write_text('{"k": "1", "ts": 1}\n')
    (folder / "job.yaml").write_text(JOB.replace("INPUT", name))


@pytest.mark.parametrize(
    ("name", "what"), [("l.jsonl.gz", "the unpacked input file"), ("l.jsonl", "the cache of the state's segments")]
)
def test_a_run_on_a_full_disk_names_it(tmp_path: Path, name: str, what: str) -> None:
    write_inputs(tmp_path, name)
    output = run_with_little_room(tmp_path, 2)
    assert f"There is no room in {tmp_path / 'small'}" in output
    assert what in output
    assert "No space left on device" in output
    assert "Make room there and start again: nothing is lost" in output
    assert "anew" not in output


def test_other_errors_of_a_file_stay_what_they_are() -> None:
    with pytest.raises(PermissionError), explain_full_disk("a file", "/somewhere"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    for code in (errno.ENOSPC, errno.EDQUOT):
        with (
            pytest.raises(NoRoom, match="There is no room in /somewhere for a file"),
            explain_full_disk("a file", "/somewhere"),
        ):
            raise OSError(code, os.strerror(code))


def test_a_cache_without_room_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SegmentCache(tmp_path, MemoryStore(), "job")

    def rename(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(NoRoom, match=r"spark\.local\.dir"):
        cache.put("a", 1, pa.record_batch({"a": [1]}))
    assert not list(tmp_path.iterdir())
