"""Joinery's jobs of the comparison: state in an embedded Postgres that the run starts, two cores."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from bench.outputs import FileOutput
from bench.peer import Looks, Peer, running
from bench.section import FILES, SHARDS, Candidates, Ground, epoch_rows
from bench.usage import cpu_seconds

MASTER = "local[2,4]"
EXECUTOR_MB = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    """How `joinery run` is started: its options, variables of its environment, and the job's `spark.conf`. `name` ends
    the peer's."""

    options: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


BY_DEFAULT = Setup(("--master", MASTER))  # the driver runs epochs while Spark starts
WITHOUT_SPARK = Setup(("--local",), name=", without Spark")


def on_spark(master: str, environment: Mapping[str, str] = MappingProxyType({}), name: str = "") -> Setup:
    """Every epoch on Spark, also the first ones, for which the job waits. Executors of this machine read each other's
    blocks from its disk otherwise, not over the network."""
    return Setup(
        ("--master", master),
        {**environment, "JOINERY_WAIT_FOR_SPARK": "1"},
        {"spark.shuffle.readHostLocalDisk": "false"},
        name,
    )


def local_cluster(executors: int, cores: int) -> str:
    return f"local-cluster[{executors},{cores},{EXECUTOR_MB}]"


_PLACES = {"driver": "in the driver", "spark": "on Spark"}  # by what an epoch's line says
SCHEMAS: dict[str, dict[str, str]] = {
    "orders": {"order_id": "string", "customer": "string", "amount": "double", "ts": "timestamp"},
    "payments": {"payment_id": "string", "order_id": "string", "method": "string", "ts": "timestamp"},
    "shipments": {"shipment_id": "string", "payment_id": "string", "ts": "timestamp"},
    "clicks": {"user_id": "string", "page": "string", "ts": "timestamp"},
}


def with_and_without_spark(candidates: Mapping[str, Callable[..., Peer]]) -> Candidates:
    """Each as users get it, and without Spark beside it: `joinery-files` and `joinery-local-files`."""
    return {
        f"{prefix}-{name}": partial(candidate, setup=setup)
        for name, candidate in candidates.items()
        for prefix, setup in {"joinery": BY_DEFAULT, "joinery-local": WITHOUT_SPARK}.items()
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


def compared(kind: str, name: str, spec: dict[str, Any], ground: Ground, slug: str, setup: Setup = BY_DEFAULT) -> Peer:
    """Return the job of a section's comparison: `spec` with what all of them share."""
    into = to_files(ground.files(slug)) if slug.endswith(FILES) else to_topic(ground.bootstrap, slug)
    shared = {"output": into, "shards": SHARDS, "trigger": {"maxRecordsPerEpoch": epoch_rows(ground.rows)}}
    settings = (
        f"{SHARDS} shards, epochs of {epoch_rows(ground.rows):,} records on two cores; state in an embedded Postgres, "
        "whose memory and CPU count"
    )
    return peer(
        f"Joinery, {name}{setup.name}", settings, document(kind, slug, spec | shared), ground.folder(slug), setup
    )


def peer(name: str, settings: str, job: dict[str, Any], folder: Path, setup: Setup = BY_DEFAULT) -> Peer:
    """Run `job` until it is stopped. Dead letters go to files; there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    job["spec"] |= {"deadLetter": to_files(folder / "dead"), "spark": {"conf": dict(setup.conf)}}
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    command = [str(Path(sys.executable).with_name("joinery")), "run", str(path), *setup.options]
    environment = {"JOINERY_HOME": str(folder / "home"), **setup.environment}
    return Peer(name, settings, command, folder, environment, lambda: epoch_places(folder / "log"))


def epoch_places(log: Path) -> str:
    """Where the epochs of a job ran, by its own lines."""
    counts = Counter(_PLACES[epoch["runs_on"]] for epoch in epochs_in(log))
    masters = {line["master"]: None for line in _lines_of(log) if line["event"] == "started" and "master" in line}
    epochs = ", ".join(f"{count} {where}" for where, count in counts.most_common()) or "none"
    return f"epochs: {epochs}" + (f" (master {', '.join(masters)})" if masters else "")


def epochs_in(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a job's epochs so far."""
    return [line for line in _lines_of(log) if line["event"] == "epoch"]


def _lines_of(log: Path) -> list[dict[str, Any]]:
    """Return the log's lines as objects, without a last line that is incomplete."""
    lines = log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


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
    """Run the job to its end. Rates count from the start of the process to the last commit, and without the first
    quarter of the epochs."""
    before, looks = cpu_seconds(), Looks(FileOutput(job.folder / "nothing", {}))
    began = datetime.now(UTC)
    with looks, running(job) as ended:
        while (ending := ended()) is None:
            time.sleep(0.2)
    epochs = epochs_in(job.log)
    if not epochs or not ending.startswith("ended with 0"):
        raise SystemExit(f"{job.name} {ending}")
    rows, seconds = sum(map(rows_in, epochs)), (datetime.fromisoformat(epochs[-1]["timestamp"]) - began).total_seconds()
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
