"""A job whose state an earlier release wrote goes on under this one, as if nothing had happened between them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import MIGRATED, STATE_VERSION
from state.stored_jobs import (
    COMMITTED,
    JOBS,
    SCHEMA,
    SEGMENT_VERSIONS,
    archive_of,
    new_database,
    output_rows,
    release_of,
    run_epochs,
    run_until_interrupted,
    running,
)

pytestmark = pytest.mark.services


@pytest.fixture(params=JOBS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the job left in its working directory, which is this one now."""
    with zipfile.ZipFile(archive_of(release_of(name))) as archive:
        archive.extractall(tmp_path)
    for file in (tmp_path / "inputs").iterdir():
        file.rename(tmp_path / name / file.name)
    monkeypatch.chdir(tmp_path / name)
    return tmp_path / name


@pytest.fixture
def restored(name: str, folder: Path, dsn: str) -> Iterator[str]:
    """The address of a database as the job left it."""
    with new_database(dsn, f"restored {name}") as address:
        with psycopg.connect(address) as connection:
            connection.execute((folder / "dump.sql").read_text())
        yield address


def test_it_goes_on_where_it_was(name: str, folder: Path, restored: str) -> None:
    expected = (folder / "expected.jsonl").read_text().splitlines()
    visible = output_rows(name, restored)
    assert len(visible) < len(expected), "there was more to come"
    with running(name, restored, folder / "cache") as run:
        assert run.driver.epoch == COMMITTED
        assert run.driver.pending
        assert (run.driver.state.totals.rows_out > 0) == (len(visible) > 0)
        pending = run.driver.plan()
        assert pending is not None
        assert run_epochs(run.driver) > 1
    assert not any(MIGRATED.encode() in key for _, key in _rows(restored, "state", "pipeline_name, group_key")), (
        "older segments are read as they are, and not rewritten for that"
    )
    assert _documents(restored, "plan", COMMITTED + 1) == [pending.to_json()], "it was run as it stood"
    assert _selected(name, output_rows(name, restored)) == _selected(name, expected)


def test_a_savepoint_of_it_can_be_restored(name: str, folder: Path, restored: str) -> None:
    """Rows of the epochs since then come again where nothing replaces them: only what is new has to be there."""
    with running(name, restored, folder / "cache") as run:
        epoch = run.driver.epoch
        record = run.store.restore_savepoint(run.job.name, "by-hand")
        assert (record.committed, record.epoch) == (COMMITTED // 2, epoch + 1)
    with running(name, restored, folder / "cache") as run:
        run_epochs(run.driver)
    expected = (folder / "expected.jsonl").read_text().splitlines()
    assert set(_selected(name, expected)) <= set(_selected(name, output_rows(name, restored)))


def test_this_release_writes_what_the_earlier_one_wrote_under_another_version_of_segments(
    name: str, folder: Path, restored: str, dsn: str
) -> None:
    """Signature and definition are the same; plans, results and offsets have every key that the earlier release wrote,
    and segments the same columns, of which sums may be wider. Keys may be added, and where epochs are cut is no part of
    a format. A `state_version` that is higher tells the earlier release to leave segments alone."""
    for part in ("joined", "refused"):
        if (folder / part).exists():
            (folder / part).rename(folder / f"{part}-before")
    with new_database(dsn, f"written {name}") as written:
        with running(name, written, folder / "cache") as run:
            run_until_interrupted(run)
        for table, columns in _THE_SAME.items():
            assert _rows(written, table, columns) == _rows(restored, table, columns), table
        steps = _rows(restored, "schema_version", "version, usable_from")
        assert _rows(written, "schema_version", "version, usable_from")[: len(steps)] == steps, "and later ones"
        for table, columns in _GROWING.items():
            missing = _keys(_rows(restored, table, columns)) - _keys(_rows(written, table, columns))
            assert not missing, table
        assert _columns_of_segments(written) == _columns_of_segments(restored)
        assert (_versions_of_segments(written), _versions_of_segments(restored)) == (
            {STATE_VERSION},
            {SEGMENT_VERSIONS[release_of(name)]},
        )


_THE_SAME = {
    "jobs": "pipeline_name, generation, epoch, signature::text, definition::text, committed",
    "savepoints": "pipeline_name, name, epoch, signature::text, definition::text, source_ids",
}
_GROWING = {
    "jobs": "pipeline_name, epoch, pending_plan::text",
    "epochs": "pipeline_name, epoch, plan::text, result::text",
    "offsets": "pipeline_name, source_id, convert_from(offset_bytes, 'UTF8')",
}


def _keys(document: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all keys of JSON objects in it, those of lists' elements together."""
    if isinstance(document, str) and document.startswith("{"):
        document = json.loads(document)
    if isinstance(document, dict):
        return {key for name, value in document.items() for key in {(*path, name), *_keys(value, (*path, name))}}
    return {key for value in document for key in _keys(value, path)} if isinstance(document, list | tuple) else set()


def _selected(name: str, lines: Sequence[str]) -> list[str]:
    """Rows without the columns that the release that stored `windows` put out although nobody selected them (W4), and
    dead letters without their text, which came later."""

    def chosen(row: dict[str, Any], key: str) -> bool:
        return not (name == "windows" and key.startswith("window_")) and not (key == "text" and "reason" in row)

    rows = map(json.loads, lines)
    return sorted(json.dumps({key: row[key] for key in row if chosen(row, key)}) for row in rows)


def _rows(dsn: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(f"SELECT {columns} FROM {SCHEMA}.{table} ORDER BY 1, 2")  # type: ignore[arg-type]
        return cursor.fetchall()


def _columns_of_segments(dsn: str) -> set[tuple[Any, ...]]:
    """By part of the state: what is said of its segments, and their columns."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(f"SELECT meta, state_blob FROM {SCHEMA}.state").fetchall()
    return {(meta["part"], *sorted(meta), *(_column(field) for field in from_blob(blob).schema)) for meta, blob in rows}


def _column(field: pa.Field) -> str:
    is_sum = field.name.startswith("$sum(") or field.name.endswith(".sum")
    return field.name if is_sum else str(field)


def _versions_of_segments(dsn: str) -> set[int]:
    return {version for version, _, _ in _rows(dsn, "state", "state_version, pipeline_name, group_key")}


def _documents(dsn: str, column: str, epoch: int) -> list[Any]:
    return [json.loads(text) for at, text in _rows(dsn, "epochs", f"epoch, {column}::text") if at == epoch]
