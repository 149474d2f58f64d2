"""What the two halves of the Kafka source share: librdkafka's settings and its errors as ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.job.model.inputs import KafkaInput
from joinery_runtime.kafka_errors import DENIED, MISSING, SILENT, LastError, is_away, soon_back

logger = logging.getLogger("joinery.kafka")

# Why a property of the job's is refused: each would change which records an epoch has.
_OWNED = {
    "bootstrap.servers": "write it as bootstrapServers",
    "enable.auto.commit": "offsets are committed with the state",
    "enable.auto.offset.store": "offsets are committed with the state",
    "auto.offset.reset": "startFrom and onDataLoss say where reading starts",
    "isolation.level": "only committed records are read",
    "enable.partition.eof": "the reader needs it",
    "allow.auto.create.topics": "a missing topic is an error",
}
# What only a group's member may be told: the clients that read and ask belong to no group.
_OF_MEMBERS = {
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "session.timeout.ms",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A topic, or those that match a pattern, and how to reach them. `properties` are librdkafka's and may hold
    secrets."""

    input: str
    topics: str
    bootstrap_servers: str
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, name: str, kafka: KafkaInput) -> Cluster:
        """The cluster of an input. Raises SourceError for a property that the job may not set."""
        refused = [name for name in kafka.properties if name in _OWNED]
        if refused:
            raise SourceError(
                f"Input {name}: kafka.properties may not set {', '.join(refused)}",
                facts="; ".join(f"{name}: {_OWNED[name]}" for name in refused),
                todo="Remove it",
            )
        return cls(name, kafka.topics, kafka.bootstrap_servers, kafka.properties)

    def at(self, topic: str) -> Cluster:
        """The same, for errors that are about one topic."""
        return replace(self, topics=f"topic {topic}")

    @property
    def plain_properties(self) -> dict[str, str]:
        """The job's properties without those of a group's member."""
        return {name: value for name, value in self.properties.items() if name not in _OF_MEMBERS}

    def problem(self, what: str, facts: str, todo: str = "") -> SourceError:
        """An error that names the topic and the broker."""
        return SourceError(f"Input {self.input}: {what}", facts=f"{facts} ({self})", todo=todo)

    def away(self, what: str, facts: str) -> SourceUnavailable:
        """An error that waiting may mend."""
        todo = "Check bootstrapServers and that the brokers run and can be reached from here"
        return SourceUnavailable(f"Input {self.input}: {what}", facts=f"{facts} ({self})", todo=todo)

    def missing(self, facts: str) -> SourceError:
        return self.problem(f"{self.topics} does not exist", facts, "Create it, or correct kafka.topic in the job")

    def failure(self, error: KafkaError | KafkaException, doing: str) -> SourceError:
        """A client's error as ours."""
        cause = error.args[0] if isinstance(error, KafkaException) else error
        if cause.code() in MISSING:
            return self.missing(cause.str())
        if cause.code() in DENIED:
            return self.problem(
                f"access to {self.topics} is denied",
                cause.str(),
                "Check security.protocol and the sasl.* settings in kafka.properties, and the topic's ACLs",
            )
        if is_away(cause):
            return self.away(f"{doing} failed", cause.str())
        return self.problem(f"{doing} failed", cause.str())

    def __str__(self) -> str:
        return f"{self.topics}, bootstrapServers {self.bootstrap_servers}"


class LoggedErrors(LastError):
    """Logs each error that differs from the one before; missing rights do not heal by waiting either."""

    permanent: ClassVar[frozenset[int]] = frozenset(DENIED)

    def __call__(self, error: KafkaError) -> None:
        if self._error is None or error.code() != self._error.code():
            logger.warning("kafka: %s", error.str())
        super().__call__(error)


# What a consumer keeps of all of its partitions, beside one answer of a broker: enough while a batch is decoded, and
# little to throw away when another process reads on.
_QUEUE_RECORDS, _QUEUE_KB = 20_000, 3_000
_ANSWER_BYTES = 4 << 20  # of a broker, with all partitions
_MOST_AT_ONCE, _LEAST_AT_ONCE = 1 << 20, 64 << 10  # bytes of one partition in an answer


def consumer_settings(cluster: Cluster, errors: LoggedErrors, partitions: int = 1) -> dict[str, Any]:
    """Settings of a consumer that reads committed records at assigned offsets and leaves no trace in the cluster. With
    many partitions an answer brings little of each (and it is compressed): few of them would fill the queue before the
    others come."""
    share = _ANSWER_BYTES // max(1, partitions)
    return {
        # Never joined or committed to; the client insists on a name.
        "group.id": f"joinery.{cluster.input}",
        "client.id": f"joinery.{cluster.input}",
        # Many small records: fill the queue, and look again soon when it was full (the default is a second).
        "queued.min.messages": _QUEUE_RECORDS,
        "queued.max.messages.kbytes": _QUEUE_KB,
        "fetch.message.max.bytes": max(_LEAST_AT_ONCE, min(share, _MOST_AT_ONCE)),
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
        # How long an empty fetch, and with it the news of having reached the end, may take.
        "fetch.wait.max.ms": 100,
        **soon_back(cluster.plain_properties),
        **cluster.plain_properties,
        "bootstrap.servers": cluster.bootstrap_servers,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        **callbacks(errors),
    }


def member_settings(cluster: Cluster, group: str, errors: LoggedErrors) -> dict[str, Any]:
    """Settings of a consumer that joins a group and never fetches. The group's name and the member's own are `group`
    (`<job>.<input>`) unless the job names them."""
    classic = cluster.properties.get("group.protocol", "classic") == "classic"
    own = {
        # A new driver takes over at once instead of waiting for the dead one's session to end. The newer protocol
        # refuses a second member of the same name until then, which would only be worse.
        "group.instance.id": group,
        # How soon a rebalance, and having been replaced, is heard of (with the newer protocol the broker says).
        "heartbeat.interval.ms": 1_000,
    }
    return {
        **consumer_settings(cluster, errors),
        "group.id": group,
        "client.id": f"joinery.{group}",
        # How soon a new partition or topic is assigned.
        "topic.metadata.refresh.interval.ms": 5_000,
        **(own if classic else {}),
        **cluster.properties,
        "queued.min.messages": 1,
        "enable.partition.eof": False,
        "logger": SILENT,
    }


def callbacks(errors: LoggedErrors) -> dict[str, Any]:
    """Settings that send a client's errors to `errors` instead of, many times a second, to standard error."""
    return {"error_cb": errors, "log_level": 0}


Client = TypeVar("Client")


def connect(client: Callable[[dict[str, Any]], Client], settings: dict[str, Any], cluster: Cluster) -> Client:
    """Makes a client (which connects later, by itself); a property that librdkafka refuses is a SourceError."""
    try:
        return client(settings)
    except KafkaException as error:
        reason = error.args[0].str()
        raise cluster.problem("kafka.properties are not valid", reason, "Use librdkafka's names and values") from error
