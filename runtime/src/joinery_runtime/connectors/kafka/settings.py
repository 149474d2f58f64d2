"""What the two halves of the Kafka source share: librdkafka's settings, and its errors turned into ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from confluent_kafka import KafkaError, KafkaException

from joinery_runtime.connectors.kafka.errors import (
    DENIED,
    MISSING,
    SILENT,
    LastError,
    check_address,
    check_tls,
    client_defaults,
    is_unavailable,
)
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.job.model.inputs import KafkaInput

logger = logging.getLogger("joinery.kafka")

# Properties that a job may not set, and why: each would change which records an epoch reads.
_OWNED = {
    "bootstrap.servers": "write it as bootstrapServers",
    "enable.auto.commit": "offsets are committed with the state",
    "enable.auto.offset.store": "offsets are committed with the state",
    "auto.offset.reset": "startFrom and onDataLoss say where reading starts",
    "isolation.level": "only committed records are read",
    "enable.partition.eof": "the reader needs it",
    "allow.auto.create.topics": "a missing topic is an error",
}
# Properties for the group's member only: the clients that read records and metadata belong to no group.
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
    """A topic, several, or those that match a pattern, and how to reach them. `properties` are librdkafka's and may
    hold secrets."""

    input: str
    topics: str
    bootstrap_servers: str
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, name: str, kafka: KafkaInput) -> Cluster:
        """Return the cluster of an input. Raises SourceError for a property that the job may not set."""
        refused = [name for name in kafka.properties if name in _OWNED]
        if refused:
            raise SourceError(
                f"Input {name}: kafka.properties may not set {', '.join(refused)}",
                facts="; ".join(f"{name}: {_OWNED[name]}" for name in refused),
                todo="Remove it",
            )
        return cls(name, kafka.source_name, kafka.bootstrap_servers, kafka.properties)

    def at(self, topic: str) -> Cluster:
        """Return the same cluster, for errors about one topic."""
        return replace(self, topics=f"topic {topic}")

    @property
    def plain_properties(self) -> dict[str, str]:
        """The job's properties without those for the group's member."""
        return {name: value for name, value in self.properties.items() if name not in _OF_MEMBERS}

    def problem(self, summary: str, facts: str, todo: str = "") -> SourceError:
        """Return an error that names the topic and the broker."""
        return SourceError(f"Input {self.input}: {summary}", facts=f"{facts} ({self})", todo=todo)

    def outage(self, summary: str, facts: str) -> SourceUnavailable:
        """Return an error for which waiting may help."""
        todo = check_address(self.bootstrap_servers, facts)
        return SourceUnavailable(f"Input {self.input}: {summary}", facts=f"{facts} ({self})", todo=todo)

    def missing(self, facts: str) -> SourceError:
        return self.problem(
            f"{self.topics} does not exist", facts, "Create it, or correct the name under kafka in the job"
        )

    def failure(self, error: KafkaError | KafkaException, doing: str) -> SourceError:
        """Turn a client's error into ours."""
        cause = error.args[0] if isinstance(error, KafkaException) else error
        if cause.code() in MISSING:
            return self.missing(cause.str())
        if cause.code() in DENIED:
            return self.problem(
                f"access to {self.topics} is denied",
                cause.str(),
                "Check security.protocol and the sasl.* settings in kafka.properties, and the topic's ACLs",
            )
        if is_unavailable(cause):
            return self.outage(f"{doing} failed", cause.str())
        return self.problem(f"{doing} failed", cause.str(), _PACKED.get(cause.code()) or check_tls(cause.str()))

    def __str__(self) -> str:
        return f"{self.topics}, bootstrapServers {self.bootstrap_servers}"


_PACKED = {
    KafkaError._NOT_IMPLEMENTED: "The records are compressed in a way that this build of librdkafka does not know. "
    "Install confluent-kafka as a wheel, which knows gzip, snappy, lz4 and zstd, or let the producers use one of them",
    KafkaError._BAD_COMPRESSION: "The batch of records at this offset is damaged. To do without it, delete the "
    "partition's records up to the next batch (kafka-delete-records), and set onDataLoss: continue",
}
"""What to do about a batch of records that the client cannot unpack. It skips none."""


class LoggedErrors(LastError):
    """Logs each error that differs from the one before and says more. Counts missing rights as permanent too."""

    permanent: ClassVar[frozenset[int]] = frozenset(DENIED)

    def __call__(self, error: KafkaError) -> None:
        before = self._error
        super().__call__(error)
        says_more = self._error is error
        if says_more and (before is None or error.code() != before.code()):
            logger.warning("kafka: %s", error.str())


# What a consumer queues for all of its partitions, besides one answer of a broker: enough to last while a batch is
# decoded, and little to throw away when another process reads on.
_QUEUE_RECORDS, _QUEUE_KB = 20_000, 3_000
_ANSWER_BYTES = 4 << 20  # of one broker, for all partitions
_MOST_AT_ONCE, _LEAST_AT_ONCE = 1 << 20, 64 << 10  # bytes of one partition in an answer


def consumer_settings(cluster: Cluster, errors: LoggedErrors, partitions: int = 1) -> dict[str, Any]:
    """Return settings of a consumer that reads committed records at assigned offsets and leaves no trace in the
    cluster. With many partitions, an answer holds little (compressed) of each: otherwise a few partitions would fill
    the queue before the others come."""
    share = _ANSWER_BYTES // max(1, partitions)
    return {
        # The client insists on a group's name, but never joins the group or commits to it.
        "group.id": f"joinery.{cluster.input}",
        "client.id": f"joinery.{cluster.input}",
        # Many small records: fill the queue, and look again soon when it was full (the default is a second).
        "queued.min.messages": _QUEUE_RECORDS,
        "queued.max.messages.kbytes": _QUEUE_KB,
        "fetch.message.max.bytes": max(_LEAST_AT_ONCE, min(share, _MOST_AT_ONCE)),
        # A batch that was damaged on its way, or on a disk, is no batch: its values would count.
        "check.crcs": True,
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
        # The longest time for an empty fetch, and so for learning that the end was reached.
        "fetch.wait.max.ms": 100,
        **client_defaults(cluster.plain_properties),
        **cluster.plain_properties,
        "bootstrap.servers": cluster.bootstrap_servers,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        **error_settings(errors),
    }


def member_settings(cluster: Cluster, group: str, errors: LoggedErrors) -> dict[str, Any]:
    """Return settings of a consumer that joins a group and never fetches. Both the group and the member are called
    `group` (`<job>.<input>`) unless the job names them."""
    classic = cluster.properties.get("group.protocol", "classic") == "classic"
    own = {
        # With it, a new driver takes over at once instead of waiting for the dead one's session to end. In the newer
        # protocol it would only hurt: until the session ends, that protocol rejects a second member of the same name.
        "group.instance.id": group,
        # How soon a member learns of a rebalance, or that it was replaced (in the newer protocol the broker decides).
        "heartbeat.interval.ms": 1_000,
    }
    return {
        **consumer_settings(cluster, errors),
        "group.id": group,
        "client.id": f"joinery.{group}",
        # How soon new partitions and topics are assigned.
        "topic.metadata.refresh.interval.ms": 5_000,
        **(own if classic else {}),
        **cluster.properties,
        "queued.min.messages": 1,
        "enable.partition.eof": False,
        "logger": SILENT,
    }


def error_settings(errors: LoggedErrors) -> dict[str, Any]:
    """Return settings that send a client's errors to `errors`. By default they go to standard error, many times a
    second."""
    return {"error_cb": errors, "log_level": 0}


Client = TypeVar("Client")


def connect(client: Callable[[dict[str, Any]], Client], settings: dict[str, Any], cluster: Cluster) -> Client:
    """Make a client, which connects later on its own. Raises SourceError for a property that librdkafka rejects."""
    try:
        return client(settings)
    except KafkaException as error:
        reason = error.args[0].str()
        raise cluster.problem("kafka.properties are not valid", reason, "Use librdkafka's names and values") from error
