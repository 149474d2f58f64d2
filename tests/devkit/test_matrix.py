"""`make matrix`: which cells there are, and that its scene tells right rows from wrong ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from joinery_devkit.matrix import Cell, cells, interpreter, run_twice
from joinery_runtime.errors import EnvironmentProblem


def test_every_python_meets_every_spark_and_every_postgres_is_there_once_more() -> None:
    assert cells(("3.11", "3.14"), ("4.2", "4.3"), ("14", "18")) == [
        Cell("3.11", "4.2", "18"),
        Cell("3.14", "4.2", "18"),
        Cell("3.11", "4.3", "18"),
        Cell("3.14", "4.3", "18"),
        Cell("3.11", "4.2", "14"),
    ]


def test_the_newest_python_of_a_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for patch in ("3.13.2", "3.13.10", "3.12.99"):
        (tmp_path / f"versions/{patch}/bin").mkdir(parents=True)
        (tmp_path / f"versions/{patch}/bin/python").touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreter("3.13") == tmp_path / "versions/3.13.10/bin/python"
    assert interpreter("/opt/python") == Path("/opt/python")
    with pytest.raises(EnvironmentProblem, match=r"Python 3\.99 is missing"):
        interpreter("3.99")


@pytest.mark.slow
def test_the_scene_passes_here_and_not_where_rows_repeat(tmp_path: Path, postgres_dsn: str) -> None:
    here = Path(sys.executable)
    run_twice(here, postgres_dsn, tmp_path / "right" / "job")
    again = tmp_path / "again" / "job" / "orders-shipments-joined"
    again.mkdir(parents=True)
    (again / "earlier.jsonl").write_text('{"order_id": "ORD-001"}\n')
    with pytest.raises(AssertionError):
        run_twice(here, postgres_dsn, tmp_path / "again" / "job")
