"""The releases with a further state version, as processes that have only their package on the path."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.images.build import (
    FAILING_MIGRATION,
    FAILING_START,
    INSTALLED,
    MIGRATING,
    SOURCES,
    Variant,
    files_of,
)
from joinery_runtime.core.table.segment import STATE_VERSION

MIGRATE = """
import pyarrow as pa
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.segment import STATE_VERSION, Run, decode, describe, encode
from joinery_runtime.engine import driver
from joinery_runtime.state import migrations

before = pa.record_batch({HASH: pa.array([1, 2], pa.uint64()), TS: pa.array([10, 20], pa.int64())})
blob = encode(before)
after = migrations.migrate(blob, STATE_VERSION - 1, STATE_VERSION)
assert decode(after).equals(before) and after != blob
assert driver.STATE_VERSION == migrations.CURRENT_STATE_VERSION == STATE_VERSION
assert describe(Run.view(before), key="k", part="left", epoch=1, blob=after).state_version == STATE_VERSION
print(STATE_VERSION)
"""
START = "from joinery_runtime.hosts.spark import start_context; start_context('job', {}, None)"


def run(variant: Variant, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A program with the variant's package in front of the installed one."""
    # With what is compiled: it is valid as long as its source is the same.
    shutil.copytree(SOURCES, folder / "joinery_runtime")
    for path, content in files_of(variant).items():
        (folder / Path(path).relative_to(Path(INSTALLED).parent)).write_bytes(content)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("variant", [MIGRATING, FAILING_START])
def test_a_migration_that_works_brings_a_segment_to_the_next_version(variant: Variant, tmp_path: Path) -> None:
    done = run(variant, tmp_path, MIGRATE)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == STATE_VERSION + 1


def test_a_migration_that_fails_says_which_and_why(tmp_path: Path) -> None:
    done = run(FAILING_MIGRATION, tmp_path, MIGRATE)

    assert done.returncode != 0
    assert f"The migration from state_version {STATE_VERSION} to {STATE_VERSION + 1} failed" in done.stderr
    assert "a segment of 2 rows cannot be brought to the next version" in done.stderr


def test_a_driver_that_does_not_start_fails_before_spark(tmp_path: Path) -> None:
    done = run(FAILING_START, tmp_path, START)

    assert done.returncode != 0
    assert "This release does not start" in done.stderr


def test_an_edit_that_no_longer_fits_the_sources_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "core" / "table" / "segment.py").write_text("STATE_VERSION: Final = 1\n")
    monkeypatch.setattr("joinery_devkit.images.build.SOURCES", tmp_path)

    with pytest.raises(ValueError, match=r"0 times in the source"):
        files_of(MIGRATING)
