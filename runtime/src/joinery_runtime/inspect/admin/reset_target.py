"""Where `joinery state reset` sets an input: what was asked for, and what that means for each partition. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from joinery_runtime.connectors.history import is_file_of_history
from joinery_runtime.engine.plan import InputState
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.base import EpochMs

_OFFSET = re.compile(r"(?:(?P<topic>[a-zA-Z0-9._-]+):)?(?P<partition>\d+)=(?P<offset>\d+)", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)
_TIME: TypeAdapter[int] = TypeAdapter(EpochMs)


@dataclass(frozen=True, slots=True)
class ToTime:
    """Sets each partition to the first record whose Kafka timestamp is at or after `timestamp` (epoch milliseconds)."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """Sets the next offset to read, by (topic, partition); topic None: the input's only topic."""

    offsets: Mapping[tuple[str | None, int], int]


Target = Literal["earliest", "latest"] | ToTime | ToOffsets


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """What the broker has of a partition: committed records with `earliest <= offset < end`. `first_at_time` is the
    offset of the first one at or after the requested time (None: there is none, or no time was requested)."""

    earliest: int
    end: int
    first_at_time: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerOffsets:
    """The partitions that the broker has, and the ids of their topics by name ("": the topic has no id)."""

    partitions: Mapping[PartitionRef, PartitionOffsets]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one partition's next offset. `stored` is None if the partition was never read."""

    partition: PartitionRef
    stored: int | None
    new: int
    available: PartitionOffsets

    @property
    def delta(self) -> int:
        """How many offsets are skipped; negative: read again. Offsets that the broker does not have do not count."""
        stored = self.new if self.stored is None else self.stored
        return self.new - min(max(stored, self.available.earliest), self.available.end)


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset does to an input: `state` is its new state; `missing` are stored partitions that the broker does not
    have; `recreated` are topics. Files of a history keep their offsets."""

    changes: tuple[Change, ...]
    missing: tuple[PartitionRef, ...]
    recreated: tuple[str, ...]
    state: InputState


def parse_target(to: Literal["earliest", "latest"] | None, to_time: str | None, to_offset: Sequence[str]) -> Target:
    """Parse the target. Raises JoineryError unless exactly one option is given and valid."""
    if (to is not None) + (to_time is not None) + bool(to_offset) != 1:
        raise JoineryError(
            "It is not clear where the input is to be set to",
            todo="Give exactly one of --to earliest|latest, --to-time T and --to-offset P=OFFSET",
        )
    if to is not None:
        return to
    if to_time is not None:
        return ToTime(parse_time("--to-time", to_time))
    offsets: dict[tuple[str | None, int], int] = {}
    for text in to_offset:
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise JoineryError(
                f"--to-offset {text} cannot be read",
                todo="Write PARTITION=OFFSET, or TOPIC:PARTITION=OFFSET where the input has several topics",
            )
        topic_partition = match["topic"], int(match["partition"])
        if topic_partition in offsets:
            raise JoineryError(f"--to-offset names partition {text.partition('=')[0]} twice", todo="Give it once")
        offsets[topic_partition] = int(match["offset"])
    return ToOffsets(offsets)


def parse_time(option: str, text: str) -> int:
    """Parse a time. Raises JoineryError, which names the option."""
    try:
        return _TIME.validate_python(int(text) if _DIGITS.fullmatch(text) else text)
    except ValidationError as error:
        raise JoineryError(
            f"{option} {text} is not a time",
            todo="Write milliseconds since 1970 or RFC 3339 with its offset, for example 2026-01-15T10:00:00Z",
        ) from error


def plan_reset(state: InputState, target: Target, broker: BrokerOffsets) -> Reset:
    """Work out a reset. Raises JoineryError for a partition or an offset that the broker does not have."""
    new = _new_offsets(target, broker)
    ids = ((topic, state.topic_ids.get(topic), now) for topic, now in sorted(broker.topic_ids.items()))
    recreated = tuple(topic for topic, before, now in ids if before and now and before != now)
    # The offsets that are not reset are of the deleted topic, and mean nothing in the one that has its name now.
    unset = [ref for ref in sorted(broker.partitions) if ref.topic in recreated and ref not in new]
    if unset:
        raise JoineryError(
            f"Topic {unset[0].topic} was recreated: its stored offsets are of the topic before it",
            facts=f"{', '.join(f'{ref.topic}-{ref.partition}' for ref in unset)} would keep one",
            todo="Give every partition of the topic an offset, or use --to or --to-time",
        )
    stored = state.positions
    missing = [ref for ref in sorted(stored) if ref not in broker.partitions and not is_file_of_history(ref)]
    dropped = {ref for ref in (*stored, *state.stops) if ref.topic in recreated}  # of the deleted topic
    changes = tuple(Change(ref, stored.get(ref), offset, broker.partitions[ref]) for ref, offset in sorted(new.items()))
    return Reset(
        changes=changes,
        missing=tuple(ref for ref in missing if ref not in dropped),
        recreated=recreated,
        state=replace(
            state,
            positions={**_without_partitions(stored, dropped), **new},
            stops=_without_partitions(state.stops, dropped),
            topic_ids={**state.topic_ids, **{topic: broker.topic_ids[topic] for topic in recreated}},
        ),
    )


def _without_partitions(offsets: Mapping[PartitionRef, int], dropped: set[PartitionRef]) -> dict[PartitionRef, int]:
    return {ref: offset for ref, offset in offsets.items() if ref not in dropped}


def _new_offsets(target: Target, broker: BrokerOffsets) -> dict[PartitionRef, int]:
    if isinstance(target, ToTime):
        return {
            ref: available.end if available.first_at_time is None else available.first_at_time
            for ref, available in broker.partitions.items()
        }
    if not isinstance(target, ToOffsets):
        return {
            ref: available.earliest if target == "earliest" else available.end
            for ref, available in broker.partitions.items()
        }
    offsets: dict[PartitionRef, int] = {}
    for (topic, number), offset in target.offsets.items():
        ref = _find_partition(topic, number, broker)
        if ref in offsets:
            raise JoineryError(f"--to-offset names partition {ref.topic}-{number} twice", todo="Give it once")
        available = broker.partitions[ref]
        if not available.earliest <= offset <= available.end:
            raise JoineryError(
                f"{ref.topic}-{number} cannot be read from offset {offset}",
                facts=f"the broker has offsets {available.earliest} to {available.end} (exclusive)",
                todo="Give one of these, or the end itself to continue with what comes next",
            )
        offsets[ref] = offset
    return offsets


def _find_partition(topic: str | None, number: int, broker: BrokerOffsets) -> PartitionRef:
    topics = sorted({ref.topic for ref in broker.partitions})
    if topic is None and len(topics) != 1:
        raise JoineryError(
            f"--to-offset {number}=... does not say which topic is meant",
            facts=f"the input has {', '.join(topics)}",
            todo=f"Write TOPIC:{number}=OFFSET",
        )
    topic_name = topics[0] if topic is None else topic
    for ref in broker.partitions:
        if (ref.topic, ref.partition) == (topic_name, number):
            return ref
    partition_names = ", ".join(f"{ref.topic}-{ref.partition}" for ref in sorted(broker.partitions))
    raise JoineryError(
        f"The input has no partition {topic_name}-{number}", facts=f"it has {partition_names}", todo="Name one of these"
    )
