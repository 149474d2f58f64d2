"""The lines of `make bench ONLY=scale`, the goals that they are compared with, and what a job's log says of where its
epochs ran."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from bench import joinery_jobs, joins, latency, scale, sessions
from bench.peer import Figures, Peer
from bench.section import FILES
from bench.table import cpu_by_kind, goals

from joinery_runtime.job import StreamJoin, load_job

LINES = {line.name: line for line in scale.LINES}


def figures(line: str, rate: float | None = 100.0, problem: str | None = None, **warm: float) -> Figures:
    by_kind = {"java": 0.0, "driver": 0.0, "workers": 0.0, "postgres": 0.25, "broker": 0.5} | warm
    return Figures(
        f"Joinery, {line}", f"settings of {line}", 6000, 3000, 50.0, rate,
        problem=problem, cold_cpu_by_kind=dict.fromkeys(by_kind, 9.0), warm_cpu_by_kind=by_kind,
    )  # fmt: skip


def rows(*measured: Figures) -> dict[str, tuple[float, str, str]]:
    return {text: (round(value, 6), bound, verdict) for text, value, bound, verdict in scale.goal_rows(measured)}


def test_rates_and_cpu_are_compared_with_the_goals_of_the_lines_that_were_measured() -> None:
    compared = rows(
        figures("local-2", 1_000),
        figures("cluster-1x2", 960),
        figures("cluster-2x1", 900, java=0.30, driver=0.1, workers=1.0),
        figures("cluster-2x1-shards-16", java=0.5, driver=0.1, workers=1.4),
        figures("cluster-4x1-shards-16", java=0.6, driver=0.2, workers=1.6),
    )
    assert compared == {
        "one executor of two cores against local[2]: rate": (0.96, ">= 0.95", "yes"),
        "two executors of one core against local[2]: rate": (0.9, ">= 0.95", "no"),
        "two executors: CPU of Java, us per row": (0.30, "<= 0.35", "yes"),
        "four executors against two, 16 shards: CPU per row of Java and Python": (1.2, "<= 1.10", "no"),
    }


def test_shards_are_compared_by_the_cpu_of_python_alone() -> None:
    compared = rows(
        figures("local-2-shards-4", java=1.0, driver=0.4, workers=0.6),
        figures("local-2-shards-512", java=9.0, driver=0.5, workers=0.9),
        figures("cluster-2x1-shards-4", driver=0.5, workers=0.5),
        figures("cluster-2x1-shards-64", driver=1.5, workers=0.5),
    )
    assert compared == {
        "512 shards against 4, local-2: CPU per row of Python": (1.4, "<= 1.50", "yes"),
        "64 shards against 4, cluster-2x1: CPU per row of Python": (2.0, "", ""),
    }


@pytest.mark.parametrize("two", [figures("cluster-2x1", None), figures("cluster-2x1", problem="wrong rows")])
def test_what_failed_or_was_too_short_has_no_ratio(two: Figures) -> None:
    assert "two executors of one core against local[2]: rate" not in rows(figures("local-2"), two)


def test_every_goal_is_of_lines_that_there_are() -> None:
    assert len(LINES) == len(scale.LINES)
    assert {name for goal in scale.GOALS for name in (goal.line, goal.base) if name is not None} <= LINES.keys()


def test_a_table_has_cpu_by_kind_of_process_and_goals() -> None:
    failed = figures("cluster-4x1", problem="ended with 1")
    lines = cpu_by_kind("Scale", [figures("cluster-2x1", java=0.31, driver=0.1, workers=1.0), failed]).splitlines()
    assert lines[4] == (
        "| Joinery, cluster-2x1 | 50 | 100 | 0.31 (9.00) | 0.10 (9.00) | 1.00 (9.00) | 0.25 (9.00) | 0.50 (9.00) |"
    )
    assert lines[5].startswith("| Joinery, cluster-4x1 | ended with 1 | ")
    assert "- Joinery, cluster-2x1: settings of cluster-2x1." in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    table = goals([("four against two", 1.2, "<= 1.10", "no")]).splitlines()
    assert table[-1] == "| four against two | 1.20 | <= 1.10 | no |"


def peer_of(line: str, folder: Path) -> Peer:
    ground = SimpleNamespace(
        bootstrap="127.0.0.1:9092", rows=6_000_000, files=lambda slug: folder / "rows", folder=lambda slug: folder
    )
    how = joinery_jobs.on_spark(LINES[line].layout.master or "spark://127.0.0.1:7077", {"SPARK_CONF_DIR": "/conf"})
    return scale._peer(ground, f"run1-{line}{FILES}", line=LINES[line], setup=how)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", LINES)
def test_the_job_of_every_line_is_valid_and_its_blocks_cross_the_network(line: str, tmp_path: Path) -> None:
    peer = peer_of(line, tmp_path)
    job = load_job(tmp_path / "job.yaml")
    assert isinstance(job, StreamJoin)
    assert job.spec.spark.conf["spark.shuffle.readHostLocalDisk"] == "false"
    assert job.joins[0].co_partitioned is line.endswith("co-partitioned")
    assert peer.environment["JOINERY_WAIT_FOR_SPARK"] == "1"
    assert peer.environment["SPARK_CONF_DIR"] == "/conf"


def test_a_line_of_the_series_has_its_shards_small_epochs_and_executors(tmp_path: Path) -> None:
    peer = peer_of("cluster-2x1-shards-64", tmp_path)
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert job["spec"]["shards"] == 64
    assert job["spec"]["trigger"] == {"maxRecordsPerEpoch": 2 * 6_000_000 // 40}
    assert list(peer.command[-2:]) == ["--master", "local-cluster[2,1,2048]"]
    assert peer.settings == "2 executors with 1 core each; 64 shards, epochs of 300,000 records"


@pytest.mark.parametrize("section", [joins.PEERS, sessions.PEERS])
def test_every_job_of_ours_is_measured_by_default_and_without_spark_beside_it(section: dict[str, object]) -> None:
    ours = [name for name in section if name.startswith("joinery-")]
    by_default = [name for name in ours if not name.startswith("joinery-local-")]
    assert [name.replace("joinery-", "joinery-local-", 1) for name in by_default] == [
        name for name in ours if name not in by_default
    ]


def test_latency_is_measured_by_default_without_spark_and_on_two_executors(tmp_path: Path) -> None:
    options = {
        name: latency.PEERS[name]("127.0.0.1:9092", name, tmp_path / name).command[3:]
        for name in latency.PEERS
        if name.startswith("joinery")
    }
    assert options == {
        "joinery": ["--master", "local[2,4]"],
        "joinery-local": ["--local"],
        "joinery-cluster-2x1": ["--master", "local-cluster[2,1,2048]"],
    }


def log_of(folder: Path, *events: dict[str, str]) -> Path:
    log = folder / "log"
    log.write_text("\n".join(["JVM says something", *map(json.dumps, events), '{"event": "epo']))
    return log


def test_notes_say_where_epochs_ran(tmp_path: Path) -> None:
    epochs = [{"event": "epoch", "runs_on": name} for name in ["driver", "driver", *["spark"] * 5]]
    log = log_of(tmp_path, {"event": "started", "master": "local[2,4]"}, *epochs)
    peer = Peer("Joinery", "4 shards", ["joinery"], tmp_path, note=lambda: joinery_jobs.epoch_places(log))
    assert peer.settings_after_run() == "4 shards; epochs: 5 on Spark, 2 in the driver (master local[2,4])"


def test_notes_of_a_job_that_failed_early_say_that_no_epoch_ran(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    peer = Peer("Joinery", "4 shards", ["joinery"], tmp_path, note=lambda: joinery_jobs.epoch_places(log))
    assert peer.settings_after_run() == "4 shards; epochs: none"
