"""Runs Kafka's own command line tools from the broker's jars, to see our consumer groups as a Kafka operator does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from joinery_devkit.kafka_node import kafka_java
from joinery_devkit.processes import without_frames
from joinery_runtime.errors import EnvironmentProblem

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
    """Runs `kafka-consumer-groups --describe --group`; rows are ordered by topic and partition. There are no rows if
    one of the groups does not exist. Raises EnvironmentProblem with the tool's output."""
    named = [argument for group in groups for argument in ("--group", group)]
    text = _run(_GROUPS, "--bootstrap-server", bootstrap, "--timeout", _ANSWER_MS, "--describe", *named)
    if _NO_GROUP in text:
        return []
    if _FAILED in text:  # the tool's exit code is 0 all the same
        raise EnvironmentProblem("kafka-consumer-groups failed", facts="\n".join(without_frames(text)))
    return sorted(_rows(text), key=lambda row: (row.topic, row.partition))


def limit_producers(bootstrap: str, client_id: str, bytes_per_second: int) -> None:
    """Sets the quota `producer_byte_rate` of all producers with this `client.id`, with `kafka-configs --alter`. Raises
    EnvironmentProblem with the tool's output."""
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    quota = f"producer_byte_rate={bytes_per_second}"
    text = _run(_CONFIGS, "--bootstrap-server", bootstrap, "--alter", *entity, "--add-config", quota)
    if _CHANGED not in text:
        raise EnvironmentProblem("kafka-configs failed", facts="\n".join(without_frames(text)))


def _run(main_class: str, *arguments: str) -> str:
    """Runs the tool and returns all that it printed."""
    done = subprocess.run(
        kafka_java(main_class, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TOOL_SECONDS,
    )
    return done.stdout + done.stderr


def _rows(text: str) -> Iterator[GroupRow]:
    """Parses the rows below the header. Finds columns by name, because tools of other releases have more columns."""
    names: list[str] = []
    for line in text.splitlines():
        fields = line.split()
        if "PARTITION" in fields:
            names = fields
        elif names and len(fields) == len(names):
            yield _row(dict(zip(names, fields, strict=True)))


def _row(fields: Mapping[str, str]) -> GroupRow:
    member = fields["CONSUMER-ID"]
    return GroupRow(
        fields["TOPIC"],
        int(fields["PARTITION"]),
        _number(fields["CURRENT-OFFSET"]),
        _number(fields["LOG-END-OFFSET"]),
        _number(fields["LAG"]),
        None if member == _ABSENT else member,
    )


def _number(text: str) -> int | None:
    return None if text == _ABSENT else int(text)
