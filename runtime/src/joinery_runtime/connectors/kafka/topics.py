"""Finds an input's present topics (those that it names, or that match its pattern) and what became of others."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from joinery_runtime.connectors.kafka.metadata import KafkaMetadata, Topic
from joinery_runtime.connectors.kafka.settings import Cluster, logger
from joinery_runtime.connectors.source import StoredOffsets
from joinery_runtime.errors import DataLoss
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.inputs import KafkaInput

_LIST_SECONDS = 5.0  # how often matching topics are listed
_INTERNAL = "__"


class InputTopics:
    """Resolves `topic`, `topics` or `topicPattern`, and judges topics that were deleted or recreated."""

    def __init__(self, cluster: Cluster, kafka: KafkaInput, admin: KafkaMetadata) -> None:
        self._cluster, self._kafka, self._admin = cluster, kafka, admin
        self._pattern = re.compile(kafka.topic_pattern) if kafka.topic_pattern is not None else None
        self._matching = set(kafka.named_topics)
        self._listed_at = float("-inf")
        self._settled: set[tuple[str, str]] = set()  # former topics (name, id) that were reported and are not an error
        self._waiting = False

    def named(self, topic: str) -> bool:
        """Return whether a topic with this name belongs to the input."""
        if self._pattern is None:
            return topic in self._kafka.named_topics
        return not topic.startswith(_INTERNAL) and self._pattern.fullmatch(topic) is not None

    def existing_topics(
        self,
        stored: StoredOffsets,
        ends: Mapping[PartitionRef, int],
        described: Mapping[str, Topic | None] | None = None,
    ) -> dict[str, Topic]:
        """Return the topics that exist, by name. `ends` are the newest known ends of partitions. `described` are topics
        of which the broker has told just now, None for one that does not exist; others are asked for.

        Raises SourceError if a named topic does not exist, and DataLoss if a matching one was deleted before it was
        read to its known end.
        """
        read_before = {ref.topic for ref in stored.offsets}
        if self._pattern is not None and time.monotonic() - self._listed_at >= _LIST_SECONDS:
            self._matching = {name for name in self._admin.names() if self.named(name)}
            self._listed_at = time.monotonic()
        names, described = self._matching | read_before, described or {}
        topics = {name: existing for name in names if (existing := described.get(name)) is not None}
        topics |= self._admin.topics([name for name in names if name not in described])
        missing = self._kafka.named_topics - topics.keys()
        if missing:
            raise self._cluster.at(min(missing)).missing("the broker knows no such topic")
        for topic in sorted(read_before - set(topics)):
            self._judge_deleted(topic, stored, ends)
        if not topics and not self._waiting:
            logger.warning("input %s: no topic matches yet (%s)", self._cluster.input, self._cluster)
        self._waiting = not topics
        return topics

    def valid(self, stored: StoredOffsets, topics: Mapping[str, Topic]) -> StoredOffsets:
        """Return the stored progress of the existing topics. Raises DataLoss if one of them was recreated since."""
        valid: set[str] = set()
        for name, topic in topics.items():
            stored_id = stored.topic_ids.get(topic.name, "")
            if not _ids_differ(stored_id, topic.id):
                valid.add(name)
                continue
            lost_offsets = {ref: offset for ref, offset in stored.offsets.items() if ref.topic == topic.name}
            facts = (
                f"the stored offsets ({_offsets_text(lost_offsets)}) are of id {stored_id}, "
                f"the broker has one with id {topic.id}"
            )
            self._report_loss(topic.name, stored_id, "was deleted and recreated", facts)
        offsets = {ref: offset for ref, offset in stored.offsets.items() if ref.topic in valid}
        return replace(stored, offsets=offsets, stops={r: stop for r, stop in stored.stops.items() if r.topic in valid})

    def find_replaced_partitions(
        self,
        partitions: Collection[PartitionRef],
        topic_ids: Mapping[str, str],
        described: Mapping[str, Topic | None],
    ) -> set[PartitionRef]:
        """Return planned partitions of topics that were deleted or recreated, as the broker has just `described` them.
        Raises DataLoss unless the job allows it."""
        former: set[str] = set()
        for name in {ref.topic for ref in partitions}:
            planned_id, topic = topic_ids.get(name, ""), described[name]
            if topic is not None and not _ids_differ(planned_id, topic.id):
                continue
            now = f"the broker has one with id {topic.id}" if topic is not None else "the broker has none of this name"
            self._report_loss(
                name, planned_id, "was deleted while an epoch of it was planned", f"its id was {planned_id}, {now}"
            )
            former.add(name)
        return {ref for ref in partitions if ref.topic in former}

    def _judge_deleted(self, topic: str, stored: StoredOffsets, ends: Mapping[PartitionRef, int]) -> None:
        topic_id = stored.topic_ids.get(topic, "")
        offsets = {ref: offset for ref, offset in stored.offsets.items() if ref.topic == topic}
        last = {ref: min(end, stored.stops.get(ref, end)) for ref, end in ends.items() if ref.topic == topic}
        if offsets.keys() <= last.keys() and all(offsets.get(ref, -1) >= end for ref, end in last.items()):
            self._warn_once(topic, topic_id, "was deleted after it had been read to its end", _offsets_text(offsets))
            return
        facts = (
            f"it was read up to {_offsets_text(offsets)}, its last known end is {_offsets_text(last) or 'not known'}"
        )
        self._report_loss(topic, topic_id, "was deleted before it was read to its end", facts)

    def _report_loss(self, topic: str, topic_id: str, change: str, facts: str) -> None:
        if (topic, topic_id) not in self._settled and self._kafka.on_data_loss == "fail":
            raise DataLoss(
                f"Input {self._cluster.input}: topic {topic} {change}",
                facts=f"{facts} ({self._cluster.at(topic)})",
                todo="Set onDataLoss: continue if the job can do without what was lost (a new topic of that name is "
                "read from its earliest record), or start the job with new state",
            )
        self._warn_once(topic, topic_id, change, facts)

    def _warn_once(self, topic: str, topic_id: str, change: str, facts: str) -> None:
        """Warn once for each former topic."""
        if (topic, topic_id) not in self._settled:
            logger.warning("input %s: topic %s %s: %s", self._cluster.input, topic, change, facts)
        self._settled.add((topic, topic_id))


def _ids_differ(stored_id: str, topic_id: str) -> bool:
    """Return whether the ids are known to differ. A broker without topic ids cannot tell."""
    return bool(stored_id and topic_id and stored_id != topic_id)


def _offsets_text(offsets: Mapping[PartitionRef, int]) -> str:
    return ", ".join(f"{ref.topic}-{ref.partition}@{offset}" for ref, offset in sorted(offsets.items()))
