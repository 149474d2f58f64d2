"""Kafka Streams as a peer: one process, two threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.java import LOG4J_BINDING, java_program
from bench.peer import Peer
from joinery_devkit.jars import fetch_jars

VERSION = "4.3.1"


@dataclass(frozen=True, slots=True)
class Setup:
    name: str
    settings: str
    configuration: Mapping[str, str]


_THREADS = {"num.stream.threads": "2", "auto.offset.reset": "earliest", "replication.factor": "1"}
_IN_BATCHES = {"linger.ms": "50", "batch.size": "1048576", "compression.type": "lz4", "max.poll.records": "10000"}
AT_LEAST_ONCE = Setup(
    "at least once",
    "2 threads, topics keyed by the join key (nothing is repartitioned), RocksDB stores with changelog topics, "
    "ParallelGC, 4 GB of heap, batches of 1 MB, commits every 10 s",
    {**_THREADS, **_IN_BATCHES, "commit.interval.ms": "10000"},
)
EXACTLY_ONCE = Setup(
    "exactly once",
    "the same with exactly_once_v2 and commits every second",
    {**_THREADS, **_IN_BATCHES, "processing.guarantee": "exactly_once_v2", "commit.interval.ms": "1000"},
)
PROMPT = Setup(
    "exactly once",
    "2 threads, exactly_once_v2, commits every 100 ms (the default)",
    {**_THREADS, "processing.guarantee": "exactly_once_v2", "commit.interval.ms": "100"},
)


def peer(setup: Setup, kind: str, bootstrap: str, topic: str, window_ms: int, folder: Path) -> Peer:
    """`kind`: see StreamsJob.java."""
    jars = fetch_jars(f"kafka-streams-{VERSION}", [f"org.apache.kafka:kafka-streams:{VERSION}", LOG4J_BINDING])
    options = {
        "application.id": topic,
        "bootstrap.servers": bootstrap,
        "topic": topic,
        "window.ms": str(window_ms),
        "state.dir": str(folder / "state"),
        **setup.configuration,
    }
    command = [
        *java_program("StreamsJob", jars, ["-Xmx4g"]),
        kind,
        *(f"{key}={value}" for key, value in options.items()),
    ]
    return Peer(f"Kafka Streams {VERSION}, {setup.name}", setup.settings, command, folder)
