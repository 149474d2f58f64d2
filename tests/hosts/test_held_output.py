"""Jobs whose output is held for larger files, run whole, without Spark: at the end of their inputs, at a stop, after a
crash and an edit. What a driver may do at each step of the commit: tests/connectors/files/test_rolled.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from cli.commands import Joinery, runner
from joinery_runtime.engine.loop import CommittedEpoch, JobListener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import load_job

USERS = 60
JOB = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: visits}}
spec:
  input:
    name: clicks
    file: {{path: clicks.jsonl{watch}}}
    format: json
    schema: [{{name: user, type: string}}, {{name: ts, type: timestamp}}]
    eventTime: ts
    watermark: {{delay: 0s}}
  groupBy: [user]
  gap: 1s
  maxDuration: 1h
  trigger: {{maxBytesPerEpoch: 400}}
  shards: 2
  output: {{file: {{path: {out}{rolling}}}, format: {format}}}
  stateStore: {store}
"""
ROLLING = ", rollSize: 1Mi, rollInterval: 1h"


class Crash(BaseException):
    """Nothing of this process runs after it."""


@pytest.fixture
def joinery(capsys: pytest.CaptureFixture[str]) -> Joinery:
    return runner(capsys)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """The job's file, with clicks of one user after the other."""
    clicks = [json.dumps({"user": f"u{n}", "ts": 10_000 * n}) for n in range(USERS)]
    (tmp_path / "clicks.jsonl").write_text("".join(f"{line}\n" for line in clicks))

    def write(out: str, rolling: str = "", store: str = "{memory: {}}", watch: str = "", kind: str = "json") -> Path:
        path = tmp_path / "visits.yaml"
        path.write_text(JOB.format(out=out, rolling=rolling, store=store, watch=watch, format=kind))
        return path

    return write


def run(
    path: Path, committed: Callable[[CommittedEpoch], None] = lambda _: None, stop: Event | None = None
) -> list[CommittedEpoch]:
    seen: list[CommittedEpoch] = []

    def heard(progress: CommittedEpoch) -> None:
        seen.append(progress)
        committed(progress)

    hears = JobListener(lambda _: None, heard, lambda error, _: pytest.fail(str(error)))
    run_job(load_job(path), hears, stop or Event(), warn=lambda _: None, local=True)
    return seen


def users(folder: Path) -> list[str]:
    """As a reader of `folder/*.jsonl` gets them."""
    return sorted(json.loads(line)["user"] for part in folder.glob("*.jsonl") for line in part.read_text().splitlines())


EVERYBODY = sorted(f"u{n}" for n in range(USERS))


def test_a_bounded_job_leaves_one_file_instead_of_one_for_each_epoch(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    run(write("plain"))
    assert len(list((tmp_path / "plain").glob("*.jsonl"))) > 4
    seen = run(write("out", ROLLING))
    (only,) = (tmp_path / "out").glob("*.jsonl")
    assert "-since-" in only.name
    assert users(tmp_path / "out") == users(tmp_path / "plain") == EVERYBODY
    assert [progress.report.unpublished_rows for progress in seen][-2:] == [USERS, 0], (
        "an epoch without rows shows them"
    )
    assert not any((tmp_path / "out" / ".held").iterdir())


def test_a_stop_shows_what_is_held(write: Callable[..., Path], tmp_path: Path) -> None:
    """Its epoch, if one runs, or one without rows."""
    stop = Event()
    seen = run(write("out", ROLLING), lambda progress: stop.set() if progress.report.unpublished_rows else None, stop)
    assert users(tmp_path / "out") == sorted(f"u{n}" for n in range(len(users(tmp_path / "out"))))
    assert (
        seen[-2].report.unpublished_rows > 0,
        seen[-1].report.unpublished_rows,
        len(users(tmp_path / "out")) > 0,
    ) == (True, 0, True)
    assert sum(progress.report.rows_in["clicks"] for progress in seen) < USERS


def stored(postgres_dsn: str, kind: str) -> str:
    return f'{{postgres: {{dsn: "{postgres_dsn}", schema: "held_{kind}"}}}}'


def run_until_it_dies(path: Path) -> None:
    def die(progress: CommittedEpoch) -> None:
        if progress.report.unpublished_rows > 10:
            raise Crash

    with pytest.raises(Crash):
        run(path, die)


@pytest.mark.services
def test_what_is_held_is_verified_and_told_by_sql(
    write: Callable[..., Path], tmp_path: Path, postgres_dsn: str, joinery: Joinery
) -> None:
    path = write("out", ROLLING, stored(postgres_dsn, "json"))
    run_until_it_dies(path)
    answer = joinery("sql", path, "SELECT count(*) AS n FROM output")
    assert "There is no output of job visits yet" in answer.err
    assert "output does not show" in answer.err
    asked_of_log = joinery("sql", path, "SELECT count(*) > 0 AS there FROM epochs")
    assert (asked_of_log.lines, asked_of_log.err) == ([{"there": True}], ""), "the output was not asked"
    (held_file, *_) = (tmp_path / "out" / ".held").iterdir()
    other_file = held_file.with_name(held_file.name.partition("-of-")[0] + "-of-another.jsonl")
    other_file.write_bytes(held_file.read_bytes())
    assert joinery("sql", path, "SELECT count(*) AS n FROM output").err == answer.err, "another job's are not its own"
    other_file.unlink()
    (verdict,) = joinery("verify", path).lines
    assert (verdict["verified"], verdict["rows"] > 10) == (True, True)
    run(path)
    (only,) = (tmp_path / "out").glob("*.jsonl")
    (verdict,) = joinery("verify", path).lines
    assert (verdict["verified"], verdict["rows"]) == (True, USERS)
    answer = joinery("sql", path, "SELECT count(*) AS n FROM output")
    assert (answer.lines, answer.err) == ([{"n": USERS}], "")
    only.write_text("".join(only.read_text().splitlines(keepends=True)[:-1]))
    (verdict,) = joinery("verify", path).lines
    assert (verdict["verified"], verdict["missing"]) == (False, 1)


@pytest.mark.services
def test_a_job_that_died_and_was_edited_shows_what_it_held_where_it_belongs(
    write: Callable[..., Path], tmp_path: Path, postgres_dsn: str, joinery: Joinery
) -> None:
    store = stored(postgres_dsn, "parquet")
    run_until_it_dies(write("before", ROLLING, store, kind="parquet"))
    assert not list((tmp_path / "before").glob("epoch-*"))
    run(write("after", ROLLING, store, kind="parquet"))
    shown = {}
    for name in ("before", "after"):
        query = 'SELECT count(*) AS n, count(DISTINCT "user") AS u FROM output'
        (shown[name],) = joinery("sql", write(name, ROLLING, store, kind="parquet"), query).lines
        assert len(list((tmp_path / name).glob("epoch-*.parquet"))) == 1
        assert not any((tmp_path / name / ".held").iterdir())
    assert shown["before"]["n"] > 10
    assert sum(counts["n"] for counts in shown.values()) == sum(counts["u"] for counts in shown.values()) == USERS
