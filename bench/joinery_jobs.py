"""Joinery's jobs of the comparison: state in an embedded Postgres that the run starts, two cores."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from bench.outputs import FileOutput
from bench.peer import Looks, Peer, running
from bench.section import FILES, SHARDS, Ground, epoch_rows
from bench.usage import cpu_seconds

MASTER = "local[2,4]"
SCHEMAS: dict[str, dict[str, str]] = {
    "orders": {"order_id": "string", "customer": "string", "amount": "double", "ts": "timestamp"},
    "payments": {"payment_id": "string", "order_id": "string", "method": "string", "ts": "timestamp"},
    "shipments": {"shipment_id": "string", "payment_id": "string", "ts": "timestamp"},
    "clicks": {"user_id": "string", "page": "string", "ts": "timestamp"},
}


def kafka_input(name: str, bootstrap: str, **kafka: Any) -> dict[str, Any]:
    """Of the topic of the same name, unless `kafka`, which goes into the field of that name, has another."""
    return {
        "name": name,
        "kafka": {"bootstrapServers": bootstrap, "topic": name} | kafka,
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in SCHEMAS[name].items()],
        "eventTime": "ts",
        "watermark": {"delay": "10s"},
    }


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def to_topic(bootstrap: str, topic: str) -> dict[str, Any]:
    return {"kafka": {"bootstrapServers": bootstrap, "topic": topic}}


def to_files(folder: Path) -> dict[str, Any]:
    return {"file": {"path": str(folder)}}


def compared(kind: str, name: str, spec: dict[str, Any], ground: Ground, slug: str) -> Peer:
    """The job of a section's comparison: `spec` with what all of them share."""
    into = to_files(ground.files(slug)) if slug.endswith(FILES) else to_topic(ground.bootstrap, slug)
    shared = {"output": into, "shards": SHARDS, "trigger": {"maxRecordsPerEpoch": epoch_rows(ground.rows)}}
    settings = (
        f"{SHARDS} shards, epochs of {epoch_rows(ground.rows):,} records on two cores (master {MASTER}); state in "
        "an embedded Postgres, whose memory and CPU count"
    )
    return peer(f"Joinery, {name}", settings, document(kind, slug, spec | shared), ground.folder(slug))


def peer(name: str, settings: str, job: dict[str, Any], folder: Path) -> Peer:
    """Runs `job` until it is stopped. Dead letters go to files; there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    job["spec"]["deadLetter"] = to_files(folder / "dead")
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    command = [str(Path(sys.executable).with_name("joinery")), "run", str(path), "--master", MASTER]
    return Peer(name, settings, command, folder, {"JOINERY_HOME": str(folder / "home")}, lambda: epoch_places(folder))


def epoch_places(folder: Path) -> str:
    """Where the epochs of a job ran, by the log in its folder: the driver runs the first ones, while Spark starts."""
    places = Counter(epoch["runs_on"] for epoch in _epochs(folder))
    return f"epochs in the driver: {places['driver']}, on Spark: {places['spark']}"


def _epochs(folder: Path) -> list[dict[str, Any]]:
    """What a job has said of each of its epochs; it may still run, and be in the middle of a line."""
    whole = (folder / "log").read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in whole if line.startswith("{") and line.endswith("\n")]
    return [line for line in lines if line["event"] == "epoch"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A bounded job that has run to its end. `epochs`: what it said of each, as `joinery run` prints it."""

    rows: int
    cold_rate: float
    warm_rate: float | None
    cpu_us: float
    peak_bytes: int
    epochs: list[dict[str, Any]]

    @property
    def rows_out(self) -> int:
        return sum(epoch["rows_out"] for epoch in self.epochs)


def run_to_end(job: Peer) -> Ended:
    """Rates count from the start of the process to the last commit, and without the first quarter of the epochs."""
    before, looks = cpu_seconds(), Looks(FileOutput(job.folder / "nothing", {}))
    began = datetime.now(UTC)
    with looks, running(job) as ended:
        while (how := ended()) is None:
            time.sleep(0.2)
    epochs = _epochs(job.folder)
    if not epochs or not how.startswith("ended with 0"):
        raise SystemExit(f"{job.name} {how}")
    rows, seconds = sum(map(rows_in, epochs)), (committed_at(epochs[-1]) - began).total_seconds()
    later = epochs[max(1, len(epochs) // 4) :]
    spent = sum(epoch["seconds"] for epoch in later)
    return Ended(
        rows,
        cold_rate=rows / seconds,
        warm_rate=sum(map(rows_in, later)) / spent if spent else None,
        cpu_us=1e6 * (cpu_seconds() - before) / rows,
        peak_bytes=looks.peak_bytes,
        epochs=epochs,
    )


def rows_in(epoch: dict[str, Any]) -> int:
    return sum(epoch["rows_in"].values())


def committed_at(epoch: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(epoch["timestamp"])
