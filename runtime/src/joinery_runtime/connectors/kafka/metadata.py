"""Metadata of a Kafka cluster: which topics exist, their ids and partitions, and offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicDescription

from joinery_runtime.connectors.kafka import errors as kafka_errors
from joinery_runtime.connectors.kafka.errors import (
    ASK_SECONDS,
    MISSING,
    NO_ANSWER,
    client_defaults,
    no_offset,
    silence_reason,
    tls_port,
)
from joinery_runtime.connectors.kafka.settings import Cluster, LoggedErrors, connect, error_settings
from joinery_runtime.errors import SourceError, SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef

_ANSWER_SECONDS = 15.0  # how long a broker may take to answer
_TURN_SECONDS = 1.0  # how often a wait is checked for an error for which waiting does not help

_URL_SAFE = str.maketrans("+/", "-_")
_NO_RECORD = -1  # the offset if no record has the timestamp that was asked for, or a later one
_UNSETTLED = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,
}

HIGH_WATERMARK: Final = "high watermark"
"""The offset after the newest record, including records of open transactions."""
OffsetQuery: TypeAlias = OffsetSpec | Literal["high watermark"]

Result = TypeVar("Result")
OffsetFutures = Mapping[PartitionRef, "Future[ListOffsetsResultInfo]"]


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic. `id` tells it from others of the same name ("" if the broker has no ids)."""

    name: str
    id: str
    partitions: tuple[PartitionRef, ...]


class KafkaMetadata:
    """Queries a cluster. All methods raise SourceUnavailable if the broker does not answer, and SourceError if it
    rejects the login or denies access."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._errors = cluster, LoggedErrors()
        settings = {
            **client_defaults(cluster.plain_properties),
            **cluster.plain_properties,
            "bootstrap.servers": cluster.bootstrap_servers,
        }
        self._client = connect(AdminClient, {**settings, **error_settings(self._errors)}, cluster)

    def unavailability(self) -> SourceUnavailable | None:
        reason = silence_reason(self._client, self._errors, ASK_SECONDS)
        return None if reason is None else self._cluster.outage("the Kafka broker does not answer", reason)

    def names(self) -> set[str]:
        """Return the names of all visible topics, including internal ones."""
        self._errors.forget()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return set(self._client.list_topics(timeout=min(_TURN_SECONDS, _ANSWER_SECONDS)).topics)
            except KafkaException as error:
                self._client.poll(0)
                if self._errors.denial is not None or time.monotonic() >= deadline:
                    raise self._unanswered_error(error.args[0], self._cluster) from error

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return the topics among `names` that exist, by name."""
        if not names:
            return {}
        futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=_ANSWER_SECONDS)
        topics = {name: self._describe_topic(name, answer) for name, answer in futures.items()}
        return {name: topic for name, topic in topics.items() if topic is not None}

    def offsets(
        self, partitions: Collection[PartitionRef], *specs: OffsetQuery, sent_requests: Sequence[OffsetFutures] = ()
    ) -> list[dict[PartitionRef, int]]:
        """For each spec, the offsets among committed records (HIGH_WATERMARK: among all). -1 if no record has the
        spec's timestamp or a later one. Retries for a while when leaders move or partitions have just been created.
        `sent_requests` are those of these partitions and specs, if they were sent already."""
        deadline = time.monotonic() + kafka_errors.SETTLE_SECONDS
        while True:
            requests, sent_requests = sent_requests or [self.ask(partitions, spec) for spec in specs], ()
            codes = {error.code() for futures in requests for _, error in self._find_failures(futures)}
            if not codes & _UNSETTLED or time.monotonic() >= deadline:
                return [self.answers(futures) for futures in requests]
            time.sleep(kafka_errors.RETRY_SECONDS)

    def ask(self, partitions: Collection[PartitionRef], spec: OffsetQuery) -> OffsetFutures:
        """Send one request for all partitions, if there are any: the client raises for none."""
        if not partitions:
            return {}
        refs = {TopicPartition(ref.topic, ref.partition): ref for ref in partitions}
        seen = IsolationLevel.READ_UNCOMMITTED if spec == HIGH_WATERMARK else IsolationLevel.READ_COMMITTED
        at = OffsetSpec.latest() if spec == HIGH_WATERMARK else spec
        futures = self._client.list_offsets(
            dict.fromkeys(refs, at), isolation_level=seen, request_timeout=_ANSWER_SECONDS
        )
        return {refs[key]: answer for key, answer in futures.items()}

    def answers(self, futures: OffsetFutures) -> dict[PartitionRef, int]:
        """Wait for the offsets that were asked for."""
        for ref, error in self._find_failures(futures):
            raise self._unanswered_error(error, self._cluster.at(ref.topic)) from KafkaException(error)
        return {ref: int(answer.result().offset) for ref, answer in futures.items()}

    def _find_failures(self, futures: OffsetFutures) -> Iterator[tuple[PartitionRef, KafkaError]]:
        for ref, answer in futures.items():
            try:
                offset = int(self._await_result(answer).offset)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                # The client's own word for a partition without a leader, as when its broker has just died.
                leaderless = cause.code() == KafkaError._NOENT
                yield ref, KafkaError(KafkaError.LEADER_NOT_AVAILABLE, cause.str()) if leaderless else cause
            else:
                if offset < _NO_RECORD:
                    yield ref, no_offset(offset)

    def _describe_topic(self, name: str, future: Future[TopicDescription]) -> Topic | None:
        try:
            description = self._await_result(future)
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                return None
            raise self._unanswered_error(error.args[0], self._cluster.at(name)) from error
        numbers = sorted(int(partition.id) for partition in description.partitions)
        # As Kafka's own tools print it, in URL-safe base64. All zeros mean no id.
        topic_id = description.topic_id
        has_id = topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()
        return Topic(
            name,
            str(topic_id).translate(_URL_SAFE) if has_id else "",
            tuple(PartitionRef(self._cluster.input, name, n) for n in numbers),
        )

    def _await_result(self, future: Future[Result]) -> Result:
        """Wait for an answer in short turns. Stops early if the client reports a rejected login in between."""
        if not future.done():
            self._errors.forget()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return future.result(_TURN_SECONDS)
            except TimeoutError:
                self._client.poll(0)
                if self._errors.denial is not None or time.monotonic() >= deadline:
                    raise self._silence_error(self._cluster, self._waited_text()) from None

    def _unanswered_error(self, error: KafkaError, cluster: Cluster) -> SourceError:
        self._client.poll(0)
        if self._errors.denial is None and error.code() not in NO_ANSWER:
            return cluster.failure(error, "asking for offsets")
        # The client's own limit may end a moment before this class's, and its text names an internal step.
        timed_out = error.code() == KafkaError._TIMED_OUT
        return self._silence_error(cluster, self._waited_text() if timed_out else error.str())

    @staticmethod
    def _waited_text() -> str:
        return f"waited {_ANSWER_SECONDS:.0f} s"

    def _silence_error(self, cluster: Cluster, cause: str) -> SourceError:
        if self._errors.denial is not None:
            return cluster.failure(self._errors.denial, "connecting")
        secure = tls_port(cluster.bootstrap_servers, cluster.properties)
        if secure is not None:
            todo = "Set security.protocol: SSL (or SASL_SSL, with a login) in kafka.properties"
            return cluster.problem("the port speaks TLS, and the job does not", secure, todo)
        return cluster.outage("the Kafka broker does not answer", f"{cause}; {self._errors}")
