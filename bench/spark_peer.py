"""Spark as a peer: the release that Joinery runs on, and the one before it in an environment of its own."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peer import Peer
from joinery_devkit.jars import fetch_jars

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
# Built against 4.2: no later ones are on Maven Central yet, and 4.3 takes them too.
CONNECTOR = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
]


@dataclass(frozen=True, slots=True)
class Spark:
    """`join_state`: the newest format of the join's state that the release is meant to be used with."""

    version: str
    join_state: str
    python: Path


def current() -> Spark:
    """Return the release that Joinery runs on."""
    return Spark("4.3", "4", Path(sys.executable))


def previous() -> Spark:
    """Return the release before it, in an environment that is made once."""
    version = "4.2.0"
    folder = CACHE / f"pyspark-{version}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            uv, python = [sys.executable, "-m", "uv"], str(partial / "bin" / "python")
            subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(partial)], check=True)
            subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, f"pyspark=={version}"], check=True)
            partial.rename(folder)
    return Spark("4.2", "3", folder / "bin" / "python")


def peer(release: Spark, kind: str, settings: dict[str, Any], folder: Path) -> Peer:
    """Return `settings` as `spark_job.py` takes them, without those that the release gives."""
    jars = fetch_jars("spark-kafka-4.2.0", CONNECTOR, transitive=False)
    options = settings | {
        "jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "join_state": release.join_state,
        "folder": str(folder),
    }
    state = f", join state format {release.join_state}" if kind == "join" else ""
    return Peer(
        f"Spark {release.version}",
        f"RocksDB with changelog checkpoints{state}, 4 shuffle partitions, no UI, {settings['per_batch']:,} records "
        "of a topic a batch, 6 GB of heap; into Kafka at least once, its only way",
        [str(release.python), str(HERE / "spark_job.py"), kind, json.dumps(options)],
        folder,
        {"PYSPARK_PYTHON": str(release.python)},
    )
