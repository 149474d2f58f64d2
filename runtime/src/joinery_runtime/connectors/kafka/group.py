"""Membership in a Kafka consumer group: which partitions this driver owns, and keeping them while an epoch runs.

The member subscribes and polls in its own thread and never fetches: tasks read planned ranges with clients that belong
to no group. Offsets committed to the group are for lag tools; the state store is the truth. Only that thread calls the
client, which lets one thread in at a time: another would wait between two polls for a long time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from threading import Condition, Thread, current_thread
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from joinery_runtime.connectors.kafka.settings import Cluster, LoggedErrors, connect, logger, member_settings
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.errors import Fenced, JoineryError, Unavailable
from joinery_runtime.formats.batch import PartitionRef

HOLD_SECONDS = 30.0  # how long a rebalance may wait for a running epoch
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 1.0  # how long `close` waits for offsets that are being published
_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 3.0  # closing takes longer if the broker does not answer; the thread is a daemon
_MAX_POLL_MS = 300_000  # librdkafka's default, and the broker's patience with a rebalance

_FENCED = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
# Reasons for unpublished offsets that nobody needs to know. A replaced member reports its replacement itself, and its
# client then rejects every call with a fatal error. A group that rebalances takes no offsets.
_OF_ITSELF = {
    KafkaError._FATAL,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
}
_REFUSED = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Allow this user to Read the group (kafka-acls --operation Read --group), "
    "or name another one as group.id in kafka.properties",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "Set partition.assignment.strategy in kafka.properties as the other "
    "members of the group do, or name another group as group.id",
    KafkaError.INVALID_SESSION_TIMEOUT: "Set session.timeout.ms in kafka.properties to what the broker allows",
    KafkaError.GROUP_MAX_SIZE_REACHED: "Name another group as group.id in kafka.properties",
    KafkaError._FATAL: "Correct the group's settings in kafka.properties, or wait until the member of the same "
    "group.instance.id is gone",
}


class GroupMember:
    """One input's member of the group. `follow` makes it join. All methods return at once. Except for `close`, they
    raise Fenced if another driver has joined under the member's name, and SourceError if the group rejects the member.

    A rebalance that takes held partitions waits until they are released, at most `hold_seconds`. Then they are lost.
    The member signs the offsets that it commits with its job's `store`, so that of two jobs with one name and different
    stores, each can name the other.
    """

    def __init__(self, cluster: Cluster, name: str, store: StoreIdentity, hold_seconds: float = HOLD_SECONDS) -> None:
        properties = cluster.properties
        self._cluster, self._store = cluster, store
        self._errors = LoggedErrors()
        self._settings = {**member_settings(cluster, name, self._errors), "on_commit": self._on_published}
        self._group, self._instance = self._settings["group.id"], self._settings.get("group.instance.id", "")
        self._incremental = (
            properties.get("partition.assignment.strategy", "").startswith("cooperative")
            or properties.get("group.protocol") == "consumer"
        )
        self._inherits = bool(self._instance) and properties.get("group.protocol", "classic") == "classic"
        patience = properties.get("max.poll.interval.ms", "")
        self._hold_seconds = min(hold_seconds, (int(patience) if patience.isdecimal() else _MAX_POLL_MS) / 2000)
        self._changed = Condition()
        self._thread: Thread | None = None
        # The thread shares all of these, under `_changed`.
        self._topics: frozenset[str] = frozenset()
        self._starts: dict[PartitionRef, int] = {}
        self._owned: set[PartitionRef] = set()
        self._leaving: set[PartitionRef] = set()  # still owned, until the held ones among them are released
        self._pinned: frozenset[PartitionRef] = frozenset()
        self._lost = False
        self._to_publish: dict[PartitionRef, int] = {}
        self._published_offsets: dict[PartitionRef, int] = {}  # offsets that the group has been told, or is about to be
        self._unacknowledged = 0
        self._expected: frozenset[PartitionRef] = frozenset()  # all partitions of the topics, whoever has them
        self._compared = False  # the first assignment with what is expected
        self._failure: JoineryError | None = None
        self._closing = False

    # --- the driver's side --------------------------------------------------------------------------------------------

    def follow(self, topics: Collection[str], starts: Mapping[PartitionRef, int]) -> None:
        """Subscribe to exactly these topics (none: changes nothing). `starts` are the partitions' next offsets."""
        with self._changed:
            self._raise_failure()
            self._starts, self._expected = dict(starts), frozenset(starts)
            if topics:
                self._subscribe(frozenset(topics))

    def follow_also(self, topics: Collection[str]) -> None:
        """Subscribe to these topics as well."""
        with self._changed:
            self._raise_failure()
            if not self._topics.issuperset(topics):
                self._subscribe(self._topics.union(topics))

    def assigned(self) -> frozenset[PartitionRef]:
        """Return the partitions that this member owns and is not about to lose."""
        with self._changed:
            self._raise_failure()
            return frozenset(self._owned - self._leaving)

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        """Hold these partitions, if all are assigned, instead of those held before."""
        with self._changed:
            self._raise_failure()
            self._pinned, self._lost = frozenset(), False
            self._changed.notify_all()
            if not (self._owned - self._leaving).issuperset(partitions):
                return False
            self._pinned = frozenset(partitions)
            return True

    def is_pinned(self) -> bool:
        """Return whether the member still has all held partitions."""
        with self._changed:
            self._raise_failure()
            return not self._lost

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        """Let a waiting rebalance continue. Publishes the next offsets of partitions that are still owned, soon."""
        with self._changed:
            self._starts |= committed
            news = {
                ref: at
                for ref, at in committed.items()
                if ref in self._owned and self._published_offsets.get(ref) != at
            }
            self._to_publish |= news
            self._published_offsets |= news
            self._pinned, self._lost = frozenset(), False
            self._changed.notify_all()

    def rejoin(self) -> None:
        """After Fenced, makes the next `follow` join again, which fences the member that took the name."""
        if not isinstance(self._failure, Fenced):
            return
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        with self._changed:
            self._thread, self._failure, self._topics = None, None, frozenset()

    def committed_by(self) -> StoreIdentity | None:
        """See `SourcePlanner.committed_by`. None also if the brokers do not answer."""
        partitions = [TopicPartition(ref.topic, ref.partition) for ref in self._starts]
        settings = {name: value for name, value in self._settings.items() if name != "group.instance.id"}
        consumer = connect(Consumer, settings, self._cluster)
        try:
            committed = consumer.committed(partitions, timeout=_ANSWER_SECONDS) if partitions else []
        except KafkaException:
            return None
        finally:
            consumer.close()
        stores = (StoreIdentity.parse(partition.metadata) for partition in committed)
        return next((store for store in stores if store is not None), None)

    def close(self) -> None:
        """Publish remaining offsets and end the thread. A member with an instance id stays in the group until its
        session ends or its successor takes over."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _raise_failure(self) -> None:
        failure = self._failure
        if isinstance(failure, Unavailable):  # the thread has ended; the next `follow` starts another one
            self._thread, self._failure, self._topics = None, None, frozenset()
        if failure is not None:
            raise failure

    def _subscribe(self, topics: frozenset[str]) -> None:
        self._topics = topics
        if self._thread is None:
            self._compared = False
            consumer = connect(Consumer, self._settings, self._cluster)
            self._thread = Thread(
                target=self._run_consumer, args=(consumer,), name=f"kafka group {self._group}", daemon=True
            )
            self._thread.start()

    # --- the thread's side --------------------------------------------------------------------------------------------

    def _run_consumer(self, consumer: Any) -> None:
        try:
            self._poll_until_closed(consumer)
            self._publish_offsets(consumer)
            deadline = time.monotonic() + _FLUSH_SECONDS
            while self._unacknowledged and time.monotonic() < deadline:
                consumer.poll(_POLL_SECONDS)
        except KafkaException as error:
            self._note_error(error.args[0])
            if self._failure is None:
                self._fail_with(self._cluster.failure(error, f"being a member of consumer group {self._group}"))
        except Exception as error:
            # Nobody else would notice, and the driver would wait for its partitions for ever.
            self._fail_with(
                self._cluster.problem(f"being a member of consumer group {self._group} failed", repr(error))
            )
        finally:
            with self._changed:
                if self._thread is current_thread():  # else another thread has joined again
                    self._lost |= bool(self._pinned)
                    self._owned, self._leaving = set(), set()
            consumer.close()

    def _poll_until_closed(self, consumer: Any) -> None:
        subscribed: frozenset[str] = frozenset()
        callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        while not self._closing and not isinstance(self._failure, Fenced):
            if self._topics != subscribed:
                subscribed = self._topics
                consumer.subscribe(sorted(subscribed), **callbacks)
            elif self._has_assignment_of_predecessor():
                consumer.unsubscribe()
                consumer.subscribe(sorted(subscribed), **callbacks)
            message = consumer.poll(_POLL_SECONDS)
            if message is not None and message.error() is not None:
                self._note_error(message.error())
            self._publish_offsets(consumer)

    def _has_assignment_of_predecessor(self) -> bool:
        """Return whether the first assignment is that of the member whose instance id this one has taken over. Brokers
        hand it on without a rebalance, though the topics of the job may be others by now, or have grown; those would
        never come. What is lacking after a rebalance is another member's."""
        with self._changed:
            if self._compared or not self._inherits or not self._owned or not self._expected:
                return False
            self._compared = True
            former = any(ref.topic not in self._topics for ref in self._owned)
            return former or not self._owned.issuperset(self._expected)

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        with self._changed:
            refs = self._partition_refs(partitions)
            for ref, partition in zip(refs, partitions, strict=True):
                # A partition that the driver has not seen yet is new, and is read from its earliest record.
                partition.offset = self._starts.get(ref, OFFSET_BEGINNING)
            (consumer.incremental_assign if self._incremental else consumer.assign)(partitions)
            consumer.pause(partitions)
            # Publishing also shows in the group which job has them now.
            known_starts = {ref: self._starts[ref] for ref in refs if ref in self._starts}
            self._to_publish |= known_starts
            self._published_offsets |= known_starts
            self._owned |= set(refs)
            self._failure = None

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        refs = set(self._partition_refs(partitions))
        with self._changed:
            self._leaving |= refs
            released = self._changed.wait_for(
                lambda: self._closing or not self._pinned & refs, timeout=self._hold_seconds
            )
            if not released:
                logger.warning(
                    "kafka group %s: a rebalance took partitions after waiting %.0f s for the running epoch",
                    self._group,
                    self._hold_seconds,
                )
            else:
                self._publish_offsets(consumer)
            self._drop_partitions(refs)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._drop_partitions(set(self._partition_refs(partitions)))

    def _drop_partitions(self, refs: set[PartitionRef]) -> None:
        self._lost |= bool(self._pinned & refs)
        self._owned -= refs
        self._leaving -= refs
        for ref in refs:
            self._to_publish.pop(ref, None)
            self._published_offsets.pop(ref, None)

    def _publish_offsets(self, consumer: Any) -> None:
        """Commit offsets asynchronously. They reach the broker before the answer to a rebalance, which takes the same
        connection."""
        with self._changed:
            offsets, self._to_publish = self._to_publish, {}
            if not offsets:
                return
            self._unacknowledged += 1
        try:
            store_metadata = self._store.metadata()
            partitions = [
                TopicPartition(r.topic, r.partition, at, metadata=store_metadata) for r, at in offsets.items()
            ]
            consumer.commit(offsets=partitions)
        except KafkaException as error:
            self._on_published(error.args[0], [])

    def _on_published(self, error: KafkaError | None, partitions: Iterable[TopicPartition]) -> None:
        error = next((partition.error for partition in partitions if partition.error is not None), error)
        with self._changed:
            self._unacknowledged -= 1
            if error is not None:
                self._published_offsets.clear()  # the next release publishes all offsets again
        if error is not None and _FENCED not in error.str() and error.code() not in _OF_ITSELF:
            logger.warning("kafka group %s: offsets were not published: %s", self._group, error.str())

    def _note_error(self, error: KafkaError) -> None:
        if _FENCED in error.str():
            self._fail_with(
                Fenced(
                    f"Another driver of this job has joined consumer group {self._group}",
                    facts=f"its member has the same group.instance.id, {self._instance} ({self._cluster})",
                    todo="This one stops",
                )
            )
        elif error.code() in _REFUSED:
            todo = _REFUSED[error.code()]
            summary = f"consumer group {self._group} cannot be joined"
            self._fail_with(self._cluster.problem(summary, error.str(), todo))
        else:
            self._errors(error)

    def _fail_with(self, failure: JoineryError) -> None:
        with self._changed:
            self._failure = failure

    def _partition_refs(self, partitions: Iterable[TopicPartition]) -> list[PartitionRef]:
        return [PartitionRef(self._cluster.input, partition.topic, partition.partition) for partition in partitions]
