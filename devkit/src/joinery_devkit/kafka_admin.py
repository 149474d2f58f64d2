"""Administers a broker for tests and the demo. `KafkaAdmin` manages topics through the admin interface; every call
waits until its effect shows. Kafka's own command line tools, from the broker's jars, show consumer groups and set
quotas, as people who run Kafka do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from joinery_devkit.kafka_node import kafka_java
from joinery_devkit.processes import deadline_after, without_frames
from joinery_runtime.errors import EnvironmentProblem

_ADMIN_SECONDS = 30.0
# librdkafka would log every failed connection while a broker is starting.
_IMPATIENT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 0}


class KafkaAdmin:
    """Manages topics. `bootstrap` lists the brokers. Each is asked, because one may know of a change before
    another."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin: Any = AdminClient({"bootstrap.servers": bootstrap, **_IMPATIENT})

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, replication_factor: int = 1
    ) -> None:
        """Create a topic. Returns when every partition has a leader that serves it."""
        topic = NewTopic(name, partitions, replication_factor, config=dict(config or {}))
        self._admin.create_topics([topic])[name].result(_ADMIN_SECONDS)
        self._wait_until(f"topic {name} has no leader", lambda: self._led_everywhere(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Returns when no broker lists it any more."""
        self._admin.delete_topics([name])[name].result(_ADMIN_SECONDS)
        self._wait_until(
            f"topic {name} is still there", lambda: all(name not in topics for topics in self._topics_everywhere())
        )

    def add_partitions(self, topic: str, count: int) -> None:
        """Raise the topic's number of partitions to `count`; return when each has a leader that serves it."""
        self._admin.create_partitions([NewPartitions(topic, count)])[topic].result(_ADMIN_SECONDS)
        self._wait_until(f"a new partition of {topic} has no leader", lambda: self._led_everywhere(topic, count))

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Set some of the topic's settings and leave the others."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(_ADMIN_SECONDS)
        self._wait_until(
            f"{topic} does not have its new settings", lambda: self.topic_config(topic).items() >= config.items()
        )

    def topic_config(self, topic: str) -> dict[str, str]:
        """All settings that apply to the topic, its own and the brokers'."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(_ADMIN_SECONDS)
        return {name: entry.value for name, entry in entries.items()}

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Drop the records of a partition below `before_offset`, as retention would."""
        target = TopicPartition(topic, partition, before_offset)
        for done in self._admin.delete_records([target]).values():
            done.result(_ADMIN_SECONDS)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the number of the broker that leads the partition. The leader of partition 0 of `__consumer_offsets`
        coordinates every group, that of `__transaction_state` every transaction."""
        leader = _list_topics(self._admin)[topic].partitions[partition].leader
        return leader if leader >= 0 else None

    def _list_brokers(self, timeout_seconds: float = _ADMIN_SECONDS) -> set[int]:
        return set(self._admin.list_topics(timeout=timeout_seconds).brokers)

    def _topics_everywhere(self) -> list[Mapping[str, Any]]:
        addresses = self.bootstrap.split(",")
        if len(addresses) == 1:
            return [_list_topics(self._admin)]
        # A new client asks the one broker that it was given.
        return [_list_topics(AdminClient({"bootstrap.servers": address, **_IMPATIENT})) for address in addresses]

    def _led_everywhere(self, name: str, partitions: int) -> bool:
        for topics in self._topics_everywhere():
            if name not in topics:
                return False
            if sum(partition.leader >= 0 for partition in topics[name].partitions.values()) != partitions:
                return False
        # A broker names itself as a leader some time before it answers as one.
        offset_specs = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        return all(
            answer.exception(_ADMIN_SECONDS) is None for answer in self._admin.list_offsets(offset_specs).values()
        )

    def _wait_until(self, otherwise: str, condition: Callable[[], bool]) -> None:
        deadline = deadline_after(_ADMIN_SECONDS)
        while not condition():
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    "The Kafka broker is stuck", facts=f"{otherwise} after {_ADMIN_SECONDS:.0f} s ({self.bootstrap})"
                )
            time.sleep(0.01)


def _list_topics(admin: Any) -> Mapping[str, Any]:
    topics: Mapping[str, Any] = admin.list_topics(timeout=_ADMIN_SECONDS).topics
    return topics


_TOOL_SECONDS = 240.0
_ANSWER_MS = "120000"  # the tool itself gives a broker 5 s, which a cold JVM on a busy machine may take
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_CHANGED = "Completed updating config"
_ABSENT = "-"
_FAILED, _NO_GROUP = "Error: ", "GroupIdNotFoundException"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One partition of a group. The offset is None if nothing is committed; the member is None if nobody reads it."""

    topic: str
    partition: int
    current_offset: int | None
    log_end: int | None
    lag: int | None
    member: str | None


def describe_groups(bootstrap: str, *groups: str) -> list[GroupRow]:
    """Run `kafka-consumer-groups --describe --group`; rows are ordered by topic and partition. There are no rows if
    one of the groups does not exist. Raises EnvironmentProblem with the tool's output."""
    named = [argument for group in groups for argument in ("--group", group)]
    text = _run_tool(_GROUPS, "--bootstrap-server", bootstrap, "--timeout", _ANSWER_MS, "--describe", *named)
    if _NO_GROUP in text:
        return []
    if _FAILED in text:  # the tool's exit code is 0 all the same
        raise EnvironmentProblem("kafka-consumer-groups failed", facts="\n".join(without_frames(text)))
    return sorted(_parse_rows(text), key=lambda row: (row.topic, row.partition))


def limit_producers(bootstrap: str, client_id: str, bytes_per_second: int) -> None:
    """Set the quota `producer_byte_rate` of all producers with this `client.id`, with `kafka-configs --alter`. Raises
    EnvironmentProblem with the tool's output."""
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    quota = f"producer_byte_rate={bytes_per_second}"
    text = _run_tool(_CONFIGS, "--bootstrap-server", bootstrap, "--alter", *entity, "--add-config", quota)
    if _CHANGED not in text:
        raise EnvironmentProblem("kafka-configs failed", facts="\n".join(without_frames(text)))


def _run_tool(main_class: str, *arguments: str) -> str:
    """Run the tool and return all that it printed."""
    done = subprocess.run(
        kafka_java(main_class, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TOOL_SECONDS,
    )
    return done.stdout + done.stderr


def _parse_rows(text: str) -> Iterator[GroupRow]:
    """Parse the rows below the header. Finds columns by name, because tools of other releases have more columns."""
    names: list[str] = []
    for line in text.splitlines():
        fields = line.split()
        if "PARTITION" in fields:
            names = fields
        elif names and len(fields) == len(names):
            row = dict(zip(names, fields, strict=True))
            yield GroupRow(
                row["TOPIC"],
                int(row["PARTITION"]),
                _parse_number(row["CURRENT-OFFSET"]),
                _parse_number(row["LOG-END-OFFSET"]),
                _parse_number(row["LAG"]),
                None if row["CONSUMER-ID"] == _ABSENT else row["CONSUMER-ID"],
            )


def _parse_number(text: str) -> int | None:
    return None if text == _ABSENT else int(text)
