"""The task half of the Kafka source: exactly the records of planned ranges, with a client that reads ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joinery_runtime.errors import DataLoss
from joinery_runtime.job.model.inputs import KafkaInput
from joinery_runtime.kafka_errors import is_away
from joinery_runtime.sources.base import PartitionRef, Range, RawBatch
from joinery_runtime.sources.kafka_client import Cluster, LoggedErrors, connect, consumer_settings

_SMALL_RECORD = 1_024  # bytes
_BATCH = 10_000  # records that one call takes from the client
_POLL_SECONDS = 0.05
_STALLED_SECONDS = 30.0  # a planned record that has not come by then is an error
_MAX_CONSUMERS = 32  # partitions that are kept open per process; each holds a connection and up to 32 MB
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class KafkaReader:
    """One consumer per partition, so that reading one never waits for another's records; the least recently used goes
    when there are too many. `keyed`: batches have the records' keys too."""

    def __init__(self, name: str, kafka: KafkaInput, *, keyed: bool = False) -> None:
        self._cluster, self._keyed = Cluster.of(name, kafka), keyed
        self._skip = kafka.on_data_loss == "continue"
        self._open: dict[PartitionRef, _PartitionReader] = {}

    def read(self, planned: Range) -> Iterator[RawBatch]:
        partition = planned.partition
        reader = self._open.pop(partition, None) or _PartitionReader(
            self._cluster.at(partition.topic), partition, skip=self._skip, keyed=self._keyed
        )
        if len(self._open) >= _MAX_CONSUMERS:
            self._open.pop(next(iter(self._open))).close()
        self._open[partition] = reader
        return reader.read(planned)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _timestamps(messages: Sequence[Message], size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Asking each of small records for its timestamp would take a tenth of the time in which they are read: only those
    that somebody wants are asked. Large ones are asked at once, since messages that are kept hold their values."""
    if size > _SMALL_RECORD * len(messages):
        known = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
        return lambda at: np.asarray(known[at])
    return lambda at: np.fromiter((messages[i].timestamp()[1] for i in at.tolist()), np.int64, len(at))


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Consecutive records, and the offset that the partition is known to have been read up to (exclusive). `lost`
    counts offsets before that which the broker had deleted."""

    records: RawBatch
    seen: int
    lost: int = 0


class _PartitionReader:
    """`skip`: records that the broker has deleted are counted and left out; otherwise they are a DataLoss."""

    def __init__(self, cluster: Cluster, partition: PartitionRef, *, skip: bool, keyed: bool) -> None:
        self._cluster, self._partition, self._skip, self._keyed = cluster, partition, skip, keyed
        self._errors = LoggedErrors()
        self._consumer = connect(Consumer, consumer_settings(cluster, self._errors), cluster)
        self._ahead: list[_Fetched] = []  # fetched and not yet asked for
        self._position = -1  # where the next range is expected to start
        self._seen = -1  # offsets below this will not come any more
        self._lost = 0  # offsets that were skipped since the last fetch was handed out

    def read(self, planned: Range) -> Iterator[RawBatch]:
        if planned.start != self._position:
            self._seek(planned.start)
        # Until the range has been read whole, what was handed out cannot be read again without a seek.
        self._position = -1
        while planned.start < planned.end_exclusive:
            fetched = self._ahead.pop(0) if self._ahead else self._fetch(planned)
            wanted = int(np.searchsorted(fetched.records.offsets, planned.end_exclusive))
            if wanted:
                yield fetched.records.part(0, wanted)
            if fetched.lost:
                yield replace(fetched.records.part(0, 0), lost=fetched.lost)
            if fetched.seen >= planned.end_exclusive:
                self._ahead.insert(0, _Fetched(fetched.records.part(wanted), fetched.seen))
                break
        self._position = planned.end_exclusive

    def close(self) -> None:
        self._consumer.close()

    def _seek(self, offset: int) -> None:
        self._ahead, self._seen = [], offset
        self._consumer.assign([TopicPartition(self._partition.topic, self._partition.partition, offset)])

    def _fetch(self, planned: Range) -> _Fetched:
        """The next records, or the news that there are none up to an offset."""
        deadline = time.monotonic() + _STALLED_SECONDS
        self._errors.forget()
        while time.monotonic() < deadline:
            # Asking for more than is planned would wait for it; offsets with no record still cost one poll.
            wanted = min(_BATCH, max(1, planned.end_exclusive - self._seen))
            messages = self._consumer.consume(wanted, _POLL_SECONDS)
            if any(map(Message.error, messages)):
                messages = self._without_events(messages, planned)
            elif messages:
                self._seen = messages[-1].offset() + 1
            if messages or self._lost or self._seen >= planned.end_exclusive:
                lost, self._lost = self._lost, 0
                return _Fetched(self._records(messages), self._seen, lost)
            if self._errors.denied is not None:
                raise self._cluster.failure(self._errors.denied, "reading")
        if self._watermarks()[1] < planned.end_exclusive:
            return self._truncated(planned)
        raise self._cluster.away(
            f"reading partition {self._name} has come to a halt",
            f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned, no record has come for "
            f"{_STALLED_SECONDS:.0f} s at offset {self._seen}; {self._errors}",
        )

    def _truncated(self, planned: Range) -> _Fetched:
        """The log ends before the range does, which it did not when the range was planned."""
        if not self._skip:
            raise DataLoss(
                f"Input {self._cluster.input}: records of partition {self._name} are gone",
                facts=f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned, and the log ends "
                f"before that now: it was truncated ({self._cluster})",
                todo="Set onDataLoss: continue to go on without them",
            )
        lost = planned.end_exclusive - self._seen
        self._seek(planned.end_exclusive)
        return _Fetched(self._records([]), self._seen, lost)

    def _records(self, messages: Sequence[Message]) -> RawBatch:
        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        values = pa.array(list(map(Message.value, messages)), pa.binary())
        keys = pa.array(list(map(Message.key, messages)), pa.binary()) if self._keyed else None
        return RawBatch(self._partition, offsets, values, keys, _timestamps(messages, values.nbytes))

    def _without_events(self, messages: Sequence[Message], planned: Range) -> list[Message]:
        """The records among messages that also bring errors or the news that the end was reached."""
        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._seen = max(self._seen, message.offset() + (error is None))
            else:
                self._check(error, planned)
        return [message for message in messages if message.error() is None]

    def _check(self, error: KafkaError, planned: Range) -> None:
        if error.code() in _GONE:
            self._lose(error, planned)
        elif not is_away(error):
            raise self._cluster.failure(error, f"reading partition {self._name}")
        else:
            self._errors(error)

    def _lose(self, error: KafkaError, planned: Range) -> None:
        """Goes on at the earliest offset there is, or at the range's end if that comes first; DataLoss otherwise.

        The news may be old, of an offset that was read before the last seek: then nothing of this range is gone.
        """
        earliest, latest = self._watermarks()
        if earliest <= self._seen <= latest:
            self._seek(self._seen)
            return
        if not self._skip:
            raise DataLoss(
                f"Input {self._cluster.input}: records of partition {self._name} are gone",
                facts=f"offsets {planned.start} to {planned.end_exclusive} (exclusive) are planned; {error.str()} "
                f"({self._cluster})",
                todo="Retention is shorter than the job's delay; set onDataLoss: continue to skip what is gone",
            )
        following = min(earliest, planned.end_exclusive) if earliest > self._seen else planned.end_exclusive
        self._lost += following - self._seen
        self._seek(following)

    def _watermarks(self) -> tuple[int, int]:
        """The offsets of the earliest record there is and of the next one to come."""
        place = TopicPartition(self._partition.topic, self._partition.partition)
        try:
            earliest, latest = self._consumer.get_watermark_offsets(place, _STALLED_SECONDS, cached=False)
        except KafkaException as problem:
            raise self._cluster.failure(problem, f"asking for the offsets of {self._name}") from problem
        return int(earliest), int(latest)

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.partition}"
