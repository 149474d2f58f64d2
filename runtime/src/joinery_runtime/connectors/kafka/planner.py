"""The driver half of the Kafka source: which partitions exist, who owns them, and how far each can be read now."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from confluent_kafka.admin import OffsetSpec

from joinery_runtime.connectors.kafka.group import GroupMember
from joinery_runtime.connectors.kafka.metadata import KafkaMetadata, OffsetFutures, Topic
from joinery_runtime.connectors.kafka.positions import LogOffsets, Positions, ask_log_offsets, log_offsets
from joinery_runtime.connectors.kafka.settings import Cluster, logger
from joinery_runtime.connectors.kafka.topics import InputTopics
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, StoreIdentity
from joinery_runtime.errors import DataLoss, Unavailable
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.inputs import AtOffsets, KafkaInput
from joinery_runtime.job.model.wording import counted

BEGUN = "topics:begun"
"""The name stored, like a topic with an id, where an input has begun before any topic matched: those that come are read
from their earliest record, also after a restart. A topic's name cannot have a colon."""


_FRESH_SECONDS = 0.1  # how old answers may be with which a plan is made


def newest_ranges(name: str, kafka: KafkaInput, records: int) -> list[Range]:
    """Return the newest records of an input's topics, at most about so many in all. Joins no group."""
    cluster = Cluster.of(name, kafka)
    admin = KafkaMetadata(cluster)
    topics = InputTopics(cluster, kafka, admin).existing_topics(StoredOffsets(), {})
    partitions = sorted(ref for topic in topics.values() for ref in topic.partitions)
    most = max(1, records // max(1, len(partitions)))
    offsets_by_partition = log_offsets(admin, partitions)
    return [
        Range(ref, max(at.earliest, at.stable - most), at.stable)
        for ref, at in offsets_by_partition.items()
        if at.stable
    ]


@dataclass(frozen=True, slots=True)
class _Answers:
    """What brokers told at the end of an epoch, at the time `at` (s of a clock that never goes back): the topics that
    it read, None for one that does not exist, and the offsets of the `partitions` that were known of these. The next
    plan, which is made right after that, needs the same, and waits for no further answer."""

    at: float
    topics: Mapping[str, Topic | None]
    partitions: Set[PartitionRef]
    offsets: Sequence[OffsetFutures]


class KafkaPlanner:
    """Plans a Kafka input. Every call gives fresh bounds, but the meaning of `latest` and of a timestamp is fixed when
    a partition is first seen. The first call makes the job a member of the consumer group `<job>.<input>`, without
    waiting for that.

    `since` (ms, None: any time): the input needs records from this event time on. Records with earlier Kafka timestamps
    may be gone."""

    def __init__(
        self, name: str, kafka: KafkaInput, job_name: str, store: StoreIdentity, since: int | None = None
    ) -> None:
        self._kafka, self._since = kafka, since
        self._cluster = Cluster.of(name, kafka)
        self._admin = KafkaMetadata(self._cluster)
        self._member = GroupMember(self._cluster, f"{job_name}.{name}", store)
        self._topics = InputTopics(self._cluster, kafka, self._admin)
        self._positions = Positions(kafka, self._admin)
        self._ids: dict[str, str] = {}
        self._ends: dict[PartitionRef, int] = {}
        self._answers: _Answers | None = None
        self._warned: set[str] = set()  # fields that name partitions which are not there
        self._reported: set[tuple[PartitionRef, int]] = set()  # losses that the job allows, with the stored offset

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        own_offsets = {
            ref: offset
            for ref, offset in stored.offsets.items()
            if ref.input == self._cluster.input and self._topics.named(ref.topic)
        }
        stored = StoredOffsets(own_offsets, stored.stops, stored.topic_ids)
        answers, self._answers = self._answers, None
        if answers is not None and answers.at < time.monotonic() - _FRESH_SECONDS:
            answers = None
        topics = self._topics.existing_topics(stored, self._ends, None if answers is None else answers.topics)
        valid = self._topics.valid(stored, topics)
        # What was resolved for topics that were since replaced by others of the same name is forgotten.
        former = {name for name, topic in topics.items() if self._ids.get(name, topic.id) != topic.id}
        forgotten = [ref for ref in self._ends if ref.topic in former]
        self._positions.forget(forgotten)
        for ref in forgotten:
            del self._ends[ref]
        self._ids |= {name: topic.id for name, topic in topics.items()}
        partitions = {*(ref for topic in topics.values() for ref in topic.partitions), *valid.offsets}
        # What was asked before the topics were known holds for them if they are the same as before that.
        requests = answers.offsets if answers is not None and not former and answers.partitions == partitions else ()
        offsets_by_partition = log_offsets(self._admin, sorted(partitions), requests)
        self._ends |= {ref: offsets.stable for ref, offsets in offsets_by_partition.items()}
        later = bool(own_offsets) or BEGUN in stored.topic_ids
        starts = self._positions.starts(valid.offsets, offsets_by_partition, later=later)
        if topics and not later:
            self._warn_of_partitions(offsets_by_partition)
        stops = self._positions.stops(valid.stops, offsets_by_partition)
        self._member.follow(topics, starts)
        assigned = self._member.assigned()
        if self._since is not None:
            fresh = offsets_by_partition.keys() - valid.offsets.keys()
            begun = {ref for ref in fresh if starts[ref] <= offsets_by_partition[ref].earliest}
            self._check_since(
                self._since, {ref: offsets_by_partition[ref] for ref in begun if offsets_by_partition[ref].earliest}
            )
        if not topics and not later and self._kafka.start_from != "earliest":
            return [Bounds(PartitionRef(self._cluster.input, BEGUN, 0), 0, 0, topic_id="begun", waits=True)]
        return [
            *(
                Bounds(ref, at, at, final=True, is_assigned=False, deleted=True)
                for ref, at in own_offsets.items()
                if ref.topic not in topics
            ),
            *(
                self._bounds_of(
                    ref, valid, starts[ref], stops.get(ref), offsets, topics[ref.topic], is_assigned=ref in assigned
                )
                for ref, offsets in offsets_by_partition.items()
            ),
        ]

    def forget_starts(self) -> None:
        """See `TopicPlanner.forget_starts`."""
        self._positions.forget_starts()

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def records(self, planned: Range, record_bytes: float) -> int:
        return planned.end_exclusive - planned.start

    def reads_file(self, partition: PartitionRef) -> bool:
        return False

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        names = {ref.topic for ref in partitions}
        resolved = frozenset(ref for ref in self._ends if ref.topic in names)
        requests, topics = ask_log_offsets(self._admin, resolved), self._admin.topics(names)
        described = {name: topics.get(name) for name in names}
        self._answers = _Answers(time.monotonic(), described, resolved, requests)
        return self._topics.find_replaced_partitions(partitions, topic_ids, described)

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        # An earlier driver's plan is replayed before any call of `bounds`.
        self._member.follow_also({ref.topic for ref in partitions})
        return self._member.pin(partitions)

    def is_pinned(self) -> bool:
        return self._member.is_pinned()

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        self._member.unpin(committed)

    def rejoin(self) -> None:
        self._member.rejoin()

    def committed_by(self) -> StoreIdentity | None:
        return self._member.committed_by()

    def unavailability(self) -> Unavailable | None:
        return self._admin.unavailability()

    def close(self) -> None:
        self._member.close()

    def _warn_of_partitions(self, partitions: Collection[PartitionRef]) -> None:
        """Warn once of partitions that the job names and that are not there: the job would read others from another
        place than somebody thinks."""
        numbers = {ref.partition for ref in partitions}
        for field, at in (("startFrom", self._kafka.start_from), ("stopAt", self._kafka.stop_at)):
            missing = sorted(at.offsets.keys() - numbers) if isinstance(at, AtOffsets) else []
            if missing and field not in self._warned:
                name, topics = self._cluster.input, self._kafka.source_name
                has = f"{topics} has {counted(len(numbers), 'partition')}, numbered from 0"
                logger.warning("input %s: %s names partition %d, and %s: correct it", name, field, missing[0], has)
                self._warned.add(field)

    def _bounds_of(
        self,
        ref: PartitionRef,
        stored: StoredOffsets,
        start: int,
        stop: int | None,
        offsets: LogOffsets,
        topic: Topic,
        *,
        is_assigned: bool,
    ) -> Bounds:
        lost = 0
        # A loss in a partition of another member is judged when the partition comes back. A partition that was read to
        # its stop cannot lose anything.
        if is_assigned and not (stop is not None and start >= stop) and not offsets.earliest <= start <= offsets.stable:
            named = ref not in stored.offsets and isinstance(self._kafka.start_from, AtOffsets)
            start, lost = self._after_loss(ref, start, offsets, named=named)
        end = max(start, offsets.stable if stop is None else min(stop, offsets.stable))
        final = stop is not None and stop <= max(offsets.stable, start)
        last = offsets.high if stop is None else min(stop, offsets.high)
        return Bounds(ref, start, end, final, lost, is_assigned, stop, topic.id, undecided=max(0, last - end))

    def _check_since(self, since: int, truncated: Mapping[PartitionRef, LogOffsets]) -> None:
        """Check whether records from `since` on still exist, as far as Kafka's timestamps tell. `truncated` has the
        partitions whose first records were deleted and which are read from the earliest one."""
        (first,) = self._admin.offsets(truncated, OffsetSpec.for_timestamp(since)) if truncated else ({},)
        for ref, offset in first.items():
            offsets = truncated[ref]
            if offset > offsets.earliest or (offset < 0 and offsets.earliest < offsets.stable):
                continue  # an older record is still there
            evidence = "no record is left" if offset < 0 else "no older record is left"
            summary = f"records of {ref.topic}-{ref.partition} may be gone that no file of the history has"
            facts = (
                f"the history ends at {format_time(since)}, offsets before {offsets.earliest} are deleted, "
                f"and {evidence}"
            )
            if self._kafka.on_data_loss == "fail":
                raise DataLoss(
                    f"Input {self._cluster.input}: {summary}",
                    facts=f"{facts} ({self._cluster.at(ref.topic)})",
                    todo="Add files up to a time that the topic still reaches back to, and write that as `until`. Or "
                    "set onDataLoss: continue, and the job reads what there is",
                )
            if (ref, offsets.earliest) not in self._reported:
                logger.warning("input %s: %s: %s", self._cluster.input, summary, facts)
                self._reported.add((ref, offsets.earliest))

    def _after_loss(self, ref: PartitionRef, position: int, offsets: LogOffsets, *, named: bool) -> tuple[int, int]:
        """Return where reading continues, and how many offsets were lost. If retention has deleted unread records,
        reading continues with the first one that remains. A truncated log has lost records that were read: everything
        else was read too.
        `named`: nothing has been read, and the job has the position (`startFrom`)."""
        other = "Or correct startFrom.offsets" if named else "Or start the job with new state"
        if position < offsets.earliest:
            following, lost = offsets.earliest, offsets.earliest - position
            explanation, resume_point = f"{counted(lost, 'record', 'are')} gone", "the earliest offset"
        elif named:
            following, lost = offsets.stable, 0
            explanation, resume_point = "startFrom names an offset that no record has yet", "the log's end"
        else:
            following, lost = offsets.stable, position - offsets.stable
            earlier = counted(lost, "offset")
            explanation = f"it ends {earlier} before that: the log was truncated (an unclean leader election, say)"
            resume_point = "the log's end: what was read stays in the state and the output"
        summary = f"{ref.topic}-{ref.partition} cannot be read from offset {position}"
        facts = f"the broker has offsets {offsets.earliest} to {offsets.stable} (exclusive), {explanation}"
        if self._kafka.on_data_loss == "fail":
            raise DataLoss(
                f"Input {self._cluster.input}: {summary}",
                facts=f"{facts} ({self._cluster.at(ref.topic)})",
                todo=f"Set onDataLoss: continue, and reading resumes at {resume_point}. {other}",
            )
        if (ref, position) not in self._reported:
            logger.warning("input %s: %s: %s; reading resumes at %s", self._cluster.input, summary, facts, resume_point)
            self._reported.add((ref, position))
        return following, lost
