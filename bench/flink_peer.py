"""Flink SQL as a peer: one process with its in-process cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.java import LOG4J_BINDING, java_program
from bench.peer import Peer
from joinery_devkit.jars import fetch_jars

VERSION, _CONNECTOR = "2.3.0", "5.0.0-2.2"
_PARTS = (
    "flink-streaming-java", "flink-clients", "flink-table-api-java-bridge", "flink-table-runtime",
    "flink-table-planner-loader", "flink-json", "flink-statebackend-rocksdb", "flink-connector-base",
)  # fmt: skip
# Its serializers look into the JDK's own classes.
_OPTIONS = [
    "-Xmx6g",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.time")),
]
_COMMON = {
    "parallelism.default": "4",
    "taskmanager.numberOfTaskSlots": "4",
    "pipeline.object-reuse": "true",
    "table.exec.source.idle-timeout": "0",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.network.min": "256m",
    "taskmanager.memory.network.max": "256m",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A way to run Flink. `sink`: options of the output table."""

    name: str
    settings: str
    configuration: Mapping[str, str]
    sink: Mapping[str, str] = field(default_factory=dict)


_IN_BATCHES = {"properties.linger.ms": "50", "properties.batch.size": "1048576", "properties.compression.type": "lz4"}
HEAP = Setup(
    "state on the heap",
    "parallelism 4, object reuse, ParallelGC, 6 GB of heap, no checkpoints (a failure loses the state); into Kafka",
    {"state.backend.type": "hashmap"},
    {"sink.delivery-guarantee": "at-least-once", **_IN_BATCHES},
)
ROCKSDB = Setup(
    "RocksDB",
    "as on the heap, but RocksDB with 1 GB of managed memory and incremental checkpoints every 10 s; into Kafka at "
    "least once",
    {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "10 s",
        "taskmanager.memory.managed.size": "1g",
    },
    {"sink.delivery-guarantee": "at-least-once", **_IN_BATCHES},
)
EXACTLY_ONCE = Setup(
    "exactly once",
    "state on the heap, checkpoints every second, transactions that each checkpoint commits",
    {"state.backend.type": "hashmap", "execution.checkpointing.interval": "1 s"},
    {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": "flink",
        "properties.transaction.timeout.ms": "600000",
    },
)


def input_table(
    topic: str, bootstrap: str, columns: str, start: str = "earliest-offset", time: str = "ts", delay_seconds: int = 10
) -> str:
    """`columns` as in SQL; `time` (milliseconds) and `event_time` are added."""
    watermark = f"WATERMARK FOR event_time AS event_time - INTERVAL '{delay_seconds}' SECOND"
    columns = f"{columns}, `{time}` BIGINT, event_time AS TO_TIMESTAMP_LTZ(`{time}`, 3), {watermark}"
    more = {"properties.group.id": "flink", "scan.startup.mode": start}
    return _table_sql(topic, topic, bootstrap, columns, more)


def output_table(topic: str, bootstrap: str, columns: str, setup: Setup) -> str:
    """Return the table `joined`."""
    return _table_sql("joined", topic, bootstrap, columns, setup.sink)


def _table_sql(name: str, topic: str, bootstrap: str, columns: str, more: Mapping[str, str]) -> str:
    options = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": bootstrap,
        "format": "json",
        **more,
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


def peer(setup: Setup, statements: Sequence[str], folder: Path) -> Peer:
    """Return a program of SQL statements, the last one an INSERT that runs until it is stopped."""
    jars = fetch_jars(
        f"flink-{VERSION}-{_CONNECTOR}",
        [
            *(f"org.apache.flink:{part}:{VERSION}" for part in _PARTS),
            f"org.apache.flink:flink-connector-kafka:{_CONNECTOR}",
            LOG4J_BINDING,
        ],
    )
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "job.sql"
    script.write_text(";\n".join(statements))
    configuration_of_all = _COMMON | {
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "io.tmp.dirs": str(folder),
    }
    configuration = [f"{key}={value}" for key, value in (configuration_of_all | dict(setup.configuration)).items()]
    command = [*java_program("FlinkJob", jars, _OPTIONS), str(script), *configuration]
    return Peer(f"Flink {VERSION}, {setup.name}", setup.settings, command, folder)
