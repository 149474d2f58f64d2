"""Resolves `startFrom` and `stopAt`: where reading starts and stops in each partition."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import OffsetSpec

from joinery_runtime.connectors.kafka.metadata import HIGH_WATERMARK, KafkaMetadata, OffsetFutures, OffsetQuery
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.inputs import AtOffsets, AtTimestamp, KafkaInput


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """A partition's offsets at the broker: `earliest <= offset < stable` can be read, `stable <= offset < high` wait
    for a transaction to end."""

    earliest: int
    stable: int
    high: int


LogOffsetsByPartition = Mapping[PartitionRef, LogOffsets]


_PRESENT: tuple[OffsetQuery, ...] = (OffsetSpec.earliest(), OffsetSpec.latest(), HIGH_WATERMARK)


def ask_log_offsets(admin: KafkaMetadata, partitions: Collection[PartitionRef]) -> list[OffsetFutures]:
    """Send the questions of `log_offsets`, without waiting for the answers."""
    return [admin.ask(partitions, spec) for spec in _PRESENT]


def log_offsets(
    admin: KafkaMetadata, partitions: Collection[PartitionRef], sent_requests: Sequence[OffsetFutures] = ()
) -> dict[PartitionRef, LogOffsets]:
    """Ask the broker for the present offsets of each partition. `sent_requests`: what `ask_log_offsets` has sent for
    them."""
    earliest, stable, high = admin.offsets(partitions, *_PRESENT, sent_requests=sent_requests)
    # The answers come at different moments: one may include a record that another does not.
    return {ref: LogOffsets(earliest[ref], stable[ref], max(stable[ref], high[ref])) for ref in partitions}


class Positions:
    """Resolves the start and the stop of each partition once. A partition that appears after the first look, or after
    others have been stored, holds records that nobody has seen, so it starts at the earliest."""

    def __init__(self, kafka: KafkaInput, admin: KafkaMetadata) -> None:
        self._kafka, self._admin = kafka, admin
        self._seen = False
        self._starts: dict[PartitionRef, int] = {}
        self._stops: dict[PartitionRef, int] = {}

    def forget(self, partitions: Collection[PartitionRef]) -> None:
        """Forget what was resolved for partitions of a topic that no longer exists."""
        for ref in partitions:
            self._starts.pop(ref, None)
            self._stops.pop(ref, None)

    def forget_starts(self) -> None:
        """Forget all starts, so that they are resolved again. Only before anything has been read."""
        self._seen, self._starts = False, {}

    def starts(
        self, stored: Mapping[PartitionRef, int], offsets_by_partition: LogOffsetsByPartition, *, later: bool
    ) -> dict[PartitionRef, int]:
        """Return the next offset of each partition: the stored one, else that of `startFrom`. `later`: this is not the
        input's first start."""
        fresh = [ref for ref in offsets_by_partition if ref not in stored and ref not in self._starts]
        if fresh:
            if later or self._seen:
                self._starts |= {ref: offsets_by_partition[ref].earliest for ref in fresh}
            else:
                self._starts |= self._first_offsets(fresh, offsets_by_partition)
        self._seen = True
        return {ref: stored[ref] if ref in stored else self._starts[ref] for ref in offsets_by_partition}

    def stops(
        self, stored: Mapping[PartitionRef, int], offsets_by_partition: LogOffsetsByPartition
    ) -> dict[PartitionRef, int]:
        """Return the first offset not to be read of each partition, where known. Offsets that the job names win over
        stored ones. Stored ones win over asking the broker, whose answer could be different today."""
        named = self._kafka.stop_at.offsets if isinstance(self._kafka.stop_at, AtOffsets) else {}
        configured = {ref: named.get(ref.partition, stored.get(ref)) for ref in offsets_by_partition}
        fixed = (
            {} if self._kafka.stop_at is None else {ref: stop for ref, stop in configured.items() if stop is not None}
        )
        fresh = [ref for ref in offsets_by_partition if ref not in fixed and ref not in self._stops]
        self._stops |= self._resolve_stops(fresh, offsets_by_partition) if fresh else {}
        return {ref: stop for ref in offsets_by_partition if (stop := fixed.get(ref, self._stops.get(ref))) is not None}

    def _first_offsets(
        self, partitions: Collection[PartitionRef], offsets_by_partition: LogOffsetsByPartition
    ) -> dict[PartitionRef, int]:
        start = self._kafka.start_from
        if isinstance(start, AtTimestamp):
            (offsets,) = self._admin.offsets(partitions, OffsetSpec.for_timestamp(start.timestamp))
            return {ref: offsets[ref] if offsets[ref] >= 0 else offsets_by_partition[ref].stable for ref in partitions}
        if isinstance(start, AtOffsets):
            return {ref: start.offsets.get(ref.partition, offsets_by_partition[ref].earliest) for ref in partitions}
        return {
            ref: offsets_by_partition[ref].stable if start == "latest" else offsets_by_partition[ref].earliest
            for ref in partitions
        }

    def _resolve_stops(
        self, partitions: Collection[PartitionRef], offsets_by_partition: LogOffsetsByPartition
    ) -> dict[PartitionRef, int]:
        stop = self._kafka.stop_at
        if stop is None:
            return {}
        if not isinstance(stop, AtTimestamp):
            return {ref: offsets_by_partition[ref].stable for ref in partitions}
        (offsets,) = self._admin.offsets(partitions, OffsetSpec.for_timestamp(stop.timestamp))
        # If no record has that timestamp or a later one, the end is known only once that time has passed.
        passed = stop.timestamp <= time.time() * 1000
        decided = [ref for ref in partitions if offsets[ref] >= 0 or passed]
        return {ref: offsets[ref] if offsets[ref] >= 0 else offsets_by_partition[ref].stable for ref in decided}
