"""Event times that are too far ahead (T11), in whole runs of files: whatever is in the past is taken."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from joinery_runtime.engine.loop import JobListener
from joinery_runtime.errors import RecordError
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import job_from

SCHEMA = [{"name": "id", "type": "string"}, {"name": "ts", "type": "timestamp"}]


def spec(**more: Any) -> dict[str, Any]:
    """Sessions of the files in `in`."""
    clicks = {"name": "c", "file": {"path": "in"}, "format": "json", "schema": SCHEMA, "eventTime": "ts"}
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "SessionWindow",
        "metadata": {"name": "too-far-ahead"},
        "spec": {
            "input": {**clicks, **more.pop("input", {})},
            "groupBy": ["id"],
            "gap": "30m",
            "maxDuration": "12h",
            "aggregates": [{"function": "count", "as": "n"}],
            "output": {"file": {"path": "out"}},
            "deadLetter": {"file": {"path": "dead"}},
            "stateStore": {"memory": {}},
            **more,
        },
    }


def run(document: dict[str, Any], *, once: bool = False) -> list[str]:
    """Runs the job in this process. Returns the warnings."""
    warnings: list[str] = []
    hears = JobListener(
        lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)), warned=warnings.append
    )
    run_job(job_from(document), hears, Event(), warn=warnings.append, once=once, local=True)
    return warnings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path


def write(folder: Path, name: str, *times: str) -> None:
    lines = [json.dumps({"id": "a", "ts": ts}) for ts in times]
    (folder / "in" / name).write_text("".join(f"{line}\n" for line in lines))


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in (folder / kind).glob("*.jsonl") for line in file.read_text().splitlines()]


@pytest.mark.parametrize("records", [1, 3, 8, 1_000])
def test_daily_files_are_taken_whatever_the_size_of_epochs(folder: Path, records: int) -> None:
    for day in (10, 11, 12, 15, 16):
        write(folder, f"{day}.jsonl", *(f"2024-01-{day}T{hour:02}:00:00Z" for hour in (0, 6, 12, 18)))
    run(spec(trigger={"maxRecordsPerEpoch": records}))
    assert len(lines(folder, "out")) == 20, "each row is a session"
    assert not lines(folder, "dead")


def test_a_watched_folder_goes_on_after_a_weekend(folder: Path, postgres_dsn: str) -> None:
    watched = {"file": {"path": "in", "watch": True}}
    job = spec(input=watched, stateStore={"postgres": {"dsn": postgres_dsn, "schema": "after_a_weekend"}})
    for day in (12, 15, 16, 17):
        write(folder, f"2024-01-{day}.jsonl", f"2024-01-{day}T14:30:00Z", f"2024-01-{day}T21:00:00Z")
        run(job, once=True)
    assert not lines(folder, "dead")
    assert len(lines(folder, "out")) == 7, "the eighth session is open"


def test_a_time_of_the_year_9999_in_a_first_epoch_is_rejected_and_nothing_else(folder: Path) -> None:
    write(folder, "1.jsonl", "9999-01-01T00:00:00Z", "2024-01-10T00:00:00Z")
    write(folder, "2.jsonl", "2024-01-20T00:00:00Z")
    run(spec(trigger={"maxRecordsPerEpoch": 1}))
    assert len(lines(folder, "out")) == 2
    (letter,) = lines(folder, "dead")
    assert letter["reason"].startswith("future: event time 'ts' is 9999-01-01T00:00:00.000Z, more than")
    assert "ahead of the driver's clock, 20" in letter["reason"]


def test_planned_times_are_taken_with_the_setting_that_the_error_names(folder: Path) -> None:
    write(folder, "1.jsonl", "2024-01-10T00:00:00Z", "2724-01-10T00:00:00Z", "2724-06-01T00:00:00Z")
    with pytest.raises(RecordError, match=r"input c has records .*give input c watermark: \{maxFuture: \"off\"\}"):
        run(spec(deadLetter=None))
    run(spec(input={"watermark": {"maxFuture": "off"}}, deadLetter=None))
    assert len(lines(folder, "out")) == 3


def test_a_run_warns_of_times_that_are_often_too_far_ahead(folder: Path) -> None:
    write(folder, "1.jsonl", "2024-01-10T00:00:00Z", "2724-01-10T00:00:00Z", "2724-06-01T00:00:00Z")
    (warning,) = [message for message in run(spec()) if message.startswith("Input c")]
    assert warning.startswith("Input c: 2 of the 3 records read so far went to the dead letters because their event")
    assert 'give the input watermark: {maxFuture: "off"}' in warning
    assert "future: event time 'ts' is 2724-01-10" in warning
