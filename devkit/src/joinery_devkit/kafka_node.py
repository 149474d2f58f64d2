"""One Kafka process of a test broker or cluster: its settings, directory and ports. KRaft."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from joinery_devkit.environment import java_command
from joinery_devkit.jars import class_path, fetch_jars
from joinery_devkit.processes import ChildProcess, without_frames
from joinery_runtime.errors import EnvironmentProblem

KAFKA_VERSION = "4.1.2"
LOOPBACK = "127.0.0.1"
MAIN = "PLAINTEXT"  # the listener that everybody uses, including the brokers among themselves
_LOG4J_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"
# Brokers and tools live for seconds or minutes: compiling their code twice would take half of their CPU time.
_JAVA_OPTIONS = (
    "-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true",
    "-Dlog4j2.level=WARN",
)  # fmt: skip
# Fixed: a random id sometimes begins with "-", which the tool takes for an option.
_CLUSTER_ID = "JoineryDevkitBroker--1"
_NEVER = str(2**63 - 1)
_SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": MAIN,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Tests choose their own event times: the broker must neither expire nor reject a far past or far future.
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": _NEVER,
    "log.message.timestamp.before.max.ms": _NEVER,
    # A broker that returns waits until the controller has given up its former session (9 s by default).
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # The default reserves 128 MB of heap before the first record.
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    # Compaction looks for work every 15 s by default.
    "log.cleaner.backoff.ms": "200",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
_REPLICATED = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def kafka_jars() -> Path:
    """Return the folder with the broker's jars. Downloads them (about 60 MB) if this machine has not done so yet."""
    coordinates = [f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in ("kafka_2.13", "kafka-tools")]
    return fetch_jars(f"kafka-{KAFKA_VERSION}", [*coordinates, _LOG4J_BINDING])


def kafka_java(main_class: str, *arguments: str) -> list[str]:
    """Return the command line of one of Kafka's own programs."""
    return [java_command(), *_JAVA_OPTIONS, "-cp", class_path(kafka_jars()), main_class, *arguments]


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of the address `host` to which clients connect. `advertised` is the port that clients are told, a proxy's
    for example; by default the same port."""

    name: str
    port: int
    host: str = LOOPBACK
    protocol: str = "PLAINTEXT"
    advertised: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.advertised or self.port}"


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many brokers a cluster has, numbered from 1, and the controller ports of those that vote."""

    brokers: int
    voters: Mapping[int, int]

    def settings(self) -> dict[str, str]:
        return {
            "controller.quorum.voters": ",".join(f"{n}@{LOOPBACK}:{port}" for n, port in self.voters.items()),
            # A single node has no other node to hand its partitions to.
            "controlled.shutdown.enable": str(self.brokers > 1).lower(),
            **{f"{topic}.replication.factor": str(self.brokers) for topic in _REPLICATED},
        }


class KafkaNode:
    """A broker process. After `stop` or `kill`, `start` brings back the same data on the same ports."""

    def __init__(
        self, number: int, directory: Path, quorum: Quorum, listeners: Sequence[Listener], properties: Mapping[str, str]
    ) -> None:
        self.number, self.directory, self.listeners = number, directory, tuple(listeners)
        self._quorum, self._properties = quorum, dict(properties)
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the broker was started, and its process has not ended by itself."""
        return self._process is not None and self._process.running()

    def start(self) -> None:
        """Format a new directory, then start the process without waiting for it."""
        if self._process is None:
            settings = self._write_settings()
            self._process = ChildProcess(kafka_java("kafka.Kafka", str(settings)), self.directory / "server.log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def last_words(self) -> str:
        return self._process.log_tail() if self._process else ""

    def problem(self, title: str, facts: str) -> EnvironmentProblem:
        return EnvironmentProblem(title, facts=facts, todo=f"Its settings, data and log are in {self.directory}")

    def _write_settings(self) -> Path:
        settings = self.directory / "server.properties"
        settings.parent.mkdir(parents=True, exist_ok=True)
        text = {**_SETTINGS, **self._quorum.settings(), **self._node_settings(), **self._properties}
        settings.write_text("".join(f"{key}={value}\n" for key, value in text.items()))
        if not (self.directory / "data" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID]
            command = kafka_java(*tool, "--config", str(settings))
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                facts = "\n".join(without_frames(done.stdout + done.stderr))
                raise self.problem("The Kafka broker cannot format its directory", facts)
        return settings

    def _node_settings(self) -> dict[str, str]:
        control = self._quorum.voters.get(self.number)
        bound = [f"{listener.name}://{listener.host}:{listener.port}" for listener in self.listeners]
        protocols = {"CONTROLLER": "PLAINTEXT", **{listener.name: listener.protocol for listener in self.listeners}}
        own = {
            "process.roles": "broker" if control is None else "broker,controller",
            "node.id": str(self.number),
            "listeners": ",".join(bound if control is None else [*bound, f"CONTROLLER://{LOOPBACK}:{control}"]),
            "advertised.listeners": ",".join(f"{listener.name}://{listener.bootstrap}" for listener in self.listeners),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "log.dirs": str(self.directory / "data"),
        }
        return own | {key: value for listener in self.listeners for key, value in listener.settings.items()}
