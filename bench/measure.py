"""Runs a command, or a job, and measures it: wall time, peak memory of the whole process tree, rows per second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from raw_read import Read

from joinery_devkit.jars import fetch_jars

HERE = Path(__file__).parent
CONNECTOR = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
]


def measured(command: Sequence[str], environment: dict[str, str]) -> tuple[str, float, int]:
    """(standard output, wall seconds, peak resident bytes of the process and all it started)."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    peak = _Peak(process.pid)
    out, _ = process.communicate()
    peak.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return out, time.monotonic() - started, peak.bytes


class _Peak:
    """Samples the proportional memory of a process tree; shared pages count once."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._process, self._done = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self.bytes = max(self.bytes, sum(map(_memory, self._tree())))

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return []


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def run_spark(script: str, bootstrap: str, *arguments: object) -> dict[str, Any]:
    """A peer's script of this folder, which prints its seconds and rows as JSON."""
    jars = fetch_jars("spark-kafka-4.2.0", CONNECTOR, transitive=False)
    command = [sys.executable, str(HERE / script), bootstrap, str(jars), *map(str, arguments)]
    out, wall, peak = measured(command, dict(os.environ))
    result = json.loads(out.strip().splitlines()[-1])
    return result | {"rate": result["rows"] / result["seconds"], "wall_seconds": wall, "peak_bytes": peak}


def run_raw(bootstrap: str, reads: Sequence[Read]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "raw_read.py"), bootstrap, json.dumps(reads)]
    out, _, _ = measured(command, dict(os.environ))
    result = json.loads(out)
    return result | {"rate": result["rows"] / result["seconds"]}


def run_job(job: Path, work: Path) -> dict[str, Any]:
    """Runs a bounded job on two cores, its state in an embedded Postgres under `work`."""
    command = [str(Path(sys.executable).with_name("joinery")), "run", str(job), "--master", "local[2,4]"]
    out, wall, peak = measured(command, os.environ | {"JOINERY_HOME": str(work / "home")})
    lines = [json.loads(line) for line in out.splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    rows = sum(sum(e["rows_in"].values()) for e in epochs)
    # As for the peer: from the first plan on, with Spark running, to the last epoch's commit; first epochs and their
    # cold workers count, Spark's own end does not.
    seconds = _at(epochs[-1:], "epoch") - _at(lines, "started")
    return {
        "rows": rows,
        "seconds": seconds,
        "rate": rows / seconds,
        "wall_seconds": wall,
        "steady_rate": _steady_rate(epochs),
        "epochs": len(epochs),
        "rows_out": sum(e["rows_out"] for e in epochs),
        "state_rows": max(e["state_rows"] for e in epochs),
        "state_bytes": max(e["state_bytes"] for e in epochs),
        "peak_bytes": peak,
    }


def _at(lines: list[dict[str, Any]], event: str) -> float:
    return next(datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines if line["event"] == event)


def _steady_rate(epochs: list[dict[str, Any]]) -> float:
    """Rows per second without the first two epochs, which start workers and learn how dense the topics are."""
    later = epochs[2:]
    return sum(sum(e["rows_in"].values()) for e in later) / sum(e["seconds"] for e in later) if later else 0.0
