"""A real Kafka broker on this machine: KRaft, one node, loopback, its own ports and data directory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from joinery_devkit.environment import java_command
from joinery_devkit.jars import class_path, fetch_jars
from joinery_devkit.processes import ChildProcess, deadline_after, free_port, without_frames
from joinery_runtime.errors import EnvironmentProblem

KAFKA_VERSION = "4.1.2"
_LOG4J_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"
_START_SECONDS = 90.0
_ADMIN_SECONDS = 30.0
_JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseG1GC", "-Djava.awt.headless=true", "-Dlog4j2.level=WARN")
_IMPATIENT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
# Fixed: one drawn at random begins with "-" now and then, which the tool takes for an option.
_CLUSTER_ID = "JoineryDevkitBroker--1"
_NEVER = str(2**63 - 1)
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests choose their own event times: neither far past nor far future may expire or be refused.
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": _NEVER,
    "log.message.timestamp.before.max.ms": _NEVER,
    # A broker that comes back waits until the controller has given its former self up (9 s by default).
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # One node has nobody to hand its partitions to.
    "controlled.shutdown.enable": "false",
    # The default reserves 128 MB of heap before the first record.
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    "num.network.threads": "2",
    "num.io.threads": "4",
}


def kafka_jars() -> Path:
    """The folder with the broker's jars; downloads them (about 60 MB) when this machine has never done so."""
    coordinates = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in ("kafka_2.13", "kafka-tools")]
    return fetch_jars(f"kafka-{KAFKA_VERSION}", [*coordinates, _LOG4J_BINDING])


class KafkaBroker:
    """A broker for tests, the demo and benchmarks; use it as a context manager.

    `directory` holds its data and `server.log` and is kept; by default a temporary one is made and removed.
    `properties` override the broker's settings. Topics are never created by accident, records of any timestamp are
    accepted and none expires. After `stop` or `kill`, `start` brings back the same data on the same ports.
    """

    def __init__(self, directory: Path | str | None = None, properties: Mapping[str, str] | None = None) -> None:
        self._temporary = directory is None
        self.directory = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix="joinery-kafka-"))
        self._port, self._controller_port = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._properties = dict(properties or {})
        self._process: ChildProcess | None = None
        # librdkafka would log every refused connection while the broker is starting.
        self._admin: Any = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **_IMPATIENT})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Returns when the broker answers; a fresh directory is formatted first."""
        if self._process is not None:
            return
        settings = self._prepare()
        self._process = ChildProcess(self._java("kafka.Kafka", str(settings)), self.directory / "server.log")
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ends the broker in order; does nothing when it is not running."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Ends the broker as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Returns when every partition has a leader."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(_ADMIN_SECONDS)
        self._await(f"topic {name} has no leader", lambda: self._leaders(name) == partitions)

    def delete_topic(self, name: str) -> None:
        """Returns when the broker no longer lists the topic."""
        self._admin.delete_topics([name])[name].result(_ADMIN_SECONDS)
        self._await(f"topic {name} is still there", lambda: name not in self._topics())

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Drops the records of a partition below `before_offset`, as retention would."""
        target = TopicPartition(topic, partition, before_offset)
        for done in self._admin.delete_records([target]).values():
            done.result(_ADMIN_SECONDS)

    def _topics(self, timeout_seconds: float = _ADMIN_SECONDS) -> Mapping[str, Any]:
        topics: Mapping[str, Any] = self._admin.list_topics(timeout=timeout_seconds).topics
        return topics

    def _leaders(self, name: str) -> int:
        topic = self._topics().get(name)
        return sum(each.leader >= 0 for each in topic.partitions.values()) if topic else 0

    def _await(self, otherwise: str, condition: Callable[[], bool]) -> None:
        deadline = deadline_after(_ADMIN_SECONDS)
        while not condition():
            if time.monotonic() > deadline:
                raise self._problem("The Kafka broker is stuck", f"{otherwise} after {_ADMIN_SECONDS:.0f} s")
            time.sleep(0.01)

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        return [java_command(), *_JAVA_OPTIONS, "-cp", class_path(kafka_jars()), main_class, *arguments]

    def _prepare(self) -> Path:
        settings = self.directory / "server.properties"
        settings.parent.mkdir(parents=True, exist_ok=True)
        text = {**_SETTINGS, **self._addresses(), **self._properties}
        settings.write_text("".join(f"{key}={value}\n" for key, value in text.items()))
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(settings)
        return settings

    def _format(self, settings: Path) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID]
        command = self._java(*tool, "--config", str(settings))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            facts = "\n".join(without_frames(done.stdout + done.stderr))
            raise self._problem("The Kafka broker cannot format its directory", facts)

    def _addresses(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        return {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.directory / "data"),
        }

    def _wait_until_ready(self, process: ChildProcess) -> None:
        deadline = deadline_after(_START_SECONDS)
        while process.running() and time.monotonic() < deadline:
            try:
                self._topics(timeout_seconds=1.0)
                return
            except KafkaException:
                time.sleep(0.05)
        facts = "it ended" if not process.running() else f"no answer after {_START_SECONDS:.0f} s"
        raise self._problem("The Kafka broker does not start", f"{facts}; its last words:\n{process.log_tail()}")

    def _problem(self, what: str, facts: str) -> EnvironmentProblem:
        return EnvironmentProblem(what, facts=facts, todo=f"Its settings, data and log are in {self.directory}")
