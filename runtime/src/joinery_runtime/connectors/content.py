"""Reads the present content of an output, in pieces of bounded size: topics and tables for `joinery verify`, topics
also for `joinery sql`.

A topic or a table does not say to which epoch a row belongs, only up to which epoch it has all rows. Kafka has those of
every committed epoch, and maybe rows of the next one. A Postgres, Iceberg or Delta table is read in one snapshot, and
the state store or the table's own mark says which epoch is the newest in it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joinery_runtime.connectors.kafka import errors as kafka_errors
from joinery_runtime.connectors.kafka.errors import LastError, watermarks
from joinery_runtime.connectors.kafka.records import Records
from joinery_runtime.connectors.kafka.target import (
    ANSWER_SECONDS,
    DEAD_LETTER_FACTS,
    DEAD_LETTER_HEADERS,
    LONGEST_REASON,
    REASON_HEADER,
    KafkaTarget,
    facts_and_value,
    sha256_of,
)
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.formats.registry.output import without_nulls

SEPARATOR = b"\0"
"""Separates a record's value from its key and headers. JSON never contains this byte."""
_AT_ONCE, _TURN_SECONDS = 10_000, 0.1  # the most records per call, and how long it waits for them
_END_SECONDS = 10.0  # how long to wait for the ends of transactions
_HEAD = 100  # how many first records to keep of a partition that has lost its beginning
_NULL = b"\\N"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of an output as texts: lines of JSON, in Kafka followed by key and headers if the job sets those.
    `numbers` give the order of the rows. `is_own`: as far as the output shows, nobody else has written them."""

    texts: Sequence[bytes]
    locations: Sequence[str]
    numbers: Sequence[int]
    is_own: bool = True


class Content(Protocol):
    """One output at one moment. All methods raise SinkError, OutputUnavailable or StoreUnavailable."""

    @property
    def complete_to(self) -> int:
        """The epoch up to which all rows have to be present."""
        ...

    @property
    def exact(self) -> bool:
        """Whether rows of later epochs cannot be present."""
        ...

    @property
    def upsert_key(self) -> tuple[str, ...]: ...

    @property
    def retracted(self) -> str | None: ...

    @property
    def heads(self) -> Mapping[int, Sequence[bytes]]:
        """The first remaining texts of each partition whose oldest records are gone. Known once `pieces` has ended."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Why rows that were written may not be seen."""
        ...

    def texts(self, rows: pa.Table) -> list[bytes]:
        """Output rows as the texts that this output would have."""
        ...

    def pieces(self) -> Iterator[Piece]: ...

    def close(self) -> None: ...


# --- Kafka ------------------------------------------------------------------------------------------------------------


class KafkaRecords:
    """The records that a `read_committed` reader sees, up to the topic's end at creation, or in `ranges`: by partition,
    the first offset and the one after the last. Nothing is committed to `group`.

    Waits at creation for transactions that are open then: a broker writes the end of a transaction into its partitions
    some time after it has answered, so rows of a committed epoch may not be visible yet. `notes` name the partitions
    in which a transaction stays open."""

    def __init__(self, target: KafkaTarget, group: str, ranges: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._target, self._errors, self.notes = target, LastError(), list[str]()
        self._settings = {
            **target.client_settings(), "group.id": group, "isolation.level": "read_committed",
            "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error",
        }  # fmt: skip
        self._consumer: Consumer = target.connect(Consumer, self._settings, self._errors)
        try:
            self.ranges = self._asked_ranges() if ranges is None else ranges
        except BaseException:
            self._consumer.close()
            raise

    def _asked_ranges(self) -> dict[int, tuple[int, int]]:
        everything = {**self._settings, "isolation.level": "read_uncommitted"}
        with closing(self._target.connect(Consumer, everything, self._errors)) as consumer:
            with _translate_errors(self._target, self._errors):
                topic = consumer.list_topics(self._target.topic, ANSWER_SECONDS).topics[self._target.topic]
                if topic.error is not None:
                    raise KafkaException(topic.error)
            ends = {number: self._offset_range(consumer, number)[1] for number in topic.partitions}
        ranges = {number: self._offset_range(self._consumer, number) for number in ends}
        deadline = time.monotonic() + _END_SECONDS
        while hidden := [number for number, end in ends.items() if ranges[number][1] < end]:
            if time.monotonic() >= deadline:
                break
            time.sleep(kafka_errors.RETRY_SECONDS)
            ranges |= {number: self._offset_range(self._consumer, number) for number in hidden}
        self.notes += [
            f"a transaction has been open in {self._target.topic}-{number} for {_END_SECONDS:.0f} s or longer: "
            f"records from offset {ranges[number][1]} on cannot be seen until it has ended"
            for number in hidden
        ]
        return ranges

    def _offset_range(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        """Return the first offset, and the one after the last as this consumer sees it."""
        partition_ref = TopicPartition(self._target.topic, partition)

        def read_offsets() -> tuple[int, int]:
            low, high = consumer.get_watermark_offsets(partition_ref, ANSWER_SECONDS, cached=False)
            return low, high

        with _translate_errors(self._target, self._errors):
            return watermarks(read_offsets)

    def messages(self) -> Iterator[list[Message]]:
        topic = self._target.topic
        waiting = {partition: high for partition, (low, high) in self.ranges.items() if low < high}
        self._consumer.assign([TopicPartition(topic, partition, self.ranges[partition][0]) for partition in waiting])
        deadline = time.monotonic() + ANSWER_SECONDS
        while waiting:
            with _translate_errors(self._target, self._errors):
                came = self._consumer.consume(_AT_ONCE, _TURN_SECONDS)  # waits this long for this many
            if came:
                deadline = time.monotonic() + ANSWER_SECONDS
            elif time.monotonic() > deadline:
                raise self._target.silent(f"no record for {ANSWER_SECONDS:.0f} s; {self._errors}")
            messages = []
            for message in came:
                partition, error = message.partition(), message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise self._target.failure(error, self._errors, "it cannot be read", error.str())
                    waiting.pop(partition, None)
                elif partition in waiting:
                    if message.offset() < waiting[partition]:
                        messages.append(message)
                    if message.offset() >= waiting[partition] - 1:
                        del waiting[partition]
            if messages:
                yield messages

    def values(self, messages: Sequence[Message], defaults: Mapping[str, Any] = MappingProxyType({})) -> list[bytes]:
        """Return the values as lines of JSON, with `defaults` for nulls, if a registry has their schema; others
        unchanged."""
        values = [message.value() or b"" for message in messages]
        output = self._target.schema_output
        return values if output is None else output.lines(values, defaults)

    def close(self) -> None:
        self._consumer.close()


class KafkaContent:
    """The records in the topic at creation. `committed` is the newest epoch that was committed before."""

    exact: ClassVar[bool] = False
    upsert_key: ClassVar[tuple[str, ...]] = ()
    retracted: ClassVar[str | None] = None

    def __init__(self, target: KafkaTarget, committed: int) -> None:
        self._target, self.complete_to = target, committed
        self._reject_compacted()
        self._defaults = {} if target.schema_output is None else target.schema_output.defaults()
        self._records = KafkaRecords(target, "joinery.verify")
        ranges, self.notes = self._records.ranges, self._records.notes
        self.heads: dict[int, list[bytes]] = {partition: [] for partition, (low, _) in ranges.items() if low > 0}

    def _reject_compacted(self) -> None:
        # The right to read a topic does not include the right to read its settings.
        policy = self._target.topic_setting("cleanup.policy") or ""
        if "compact" in policy:
            raise self._target.problem(
                "it cannot be verified",
                f"cleanup.policy is {policy}: compaction deletes rows",
                "`joinery why JOB --key COLUMN=VALUE` says which rows a key has to have there",
            )

    def texts(self, rows: pa.Table) -> list[bytes]:
        target = self._target
        values = rows_to_json(without_nulls(rows, self._defaults), target.style)
        if not target.key and not target.headers:
            return values
        records = Records.of(rows, target.key, target.headers, target.style, values)
        return [
            self._record_text(message["value"], message.get("key"), dict(message["headers"]) if target.headers else {})
            for message in records.messages()
        ]

    def _record_text(self, value: bytes, key: str | bytes | None, headers: Mapping[str, str | bytes | None]) -> bytes:
        parts = [value]
        if self._target.key:
            parts.append(_as_bytes(key))
        parts += [b"%s=%s" % (name.encode(), _as_bytes(headers.get(name))) for name in self._target.headers]
        return SEPARATOR.join(parts)

    def pieces(self) -> Iterator[Piece]:
        for messages in self._records.messages():
            texts = self._texts_of(messages, self._records.values(messages, self._defaults))
            for text, message in zip(texts, messages, strict=True):
                head = self.heads.get(message.partition() or 0)
                if head is not None and len(head) < _HEAD:
                    head.append(text)
            topic = self._target.topic
            locations = [f"{topic}:{message.partition()}={message.offset()}" for message in messages]
            yield Piece(texts, locations, [message.offset() or 0 for message in messages])

    def _texts_of(self, messages: Sequence[Message], values: list[bytes]) -> list[bytes]:
        if not self._target.key and not self._target.headers:
            return values
        return [
            self._record_text(value, message.key(), dict(message.headers() or ()))
            for value, message in zip(values, messages, strict=True)
        ]

    def close(self) -> None:
        self._records.close()


_DIGEST_SCHEMA = pa.schema(
    [*map(DEAD_LETTER_SCHEMA.field, DEAD_LETTER_FACTS), pa.field("size", pa.int64()), pa.field("sha256", pa.string())]
)


class DeadLetterContent(KafkaContent):
    """The dead letters in a topic, as JSON of their facts with the size and the SHA-256 of the record. So a record that
    was cut is compared as a whole, and a dead letter that an earlier release wrote as JSON like any other."""

    def texts(self, rows: pa.Table) -> list[bytes]:
        letters = facts_and_value(rows)
        values = letters["value"].to_pylist()
        sizes = pa.array([None if value is None else len(value) for value in values], pa.int64())
        digests = pa.array(map(sha256_of, values), pa.string())
        return rows_to_json(pa.table([*map(letters.column, DEAD_LETTER_FACTS), sizes, digests], schema=_DIGEST_SCHEMA))

    def _texts_of(self, messages: Sequence[Message], values: list[bytes]) -> list[bytes]:
        rows = [_digest_letter(message) for message in messages]
        return rows_to_json(pa.Table.from_pylist(rows, schema=_DIGEST_SCHEMA))


def _digest_letter(message: Message) -> dict[str, Any]:
    """Return a dead letter as a row of _DIGEST_SCHEMA; a record that is none, as one whose reason says so."""
    value: bytes | None = message.value()
    headers = {name: _as_bytes(content).decode() for name, content in message.headers() or ()}
    if REASON_HEADER in headers:
        facts: dict[str, Any] = {name: headers.get(header) for header, name in DEAD_LETTER_HEADERS.items()}
    else:
        try:
            facts = json.loads(value or b"")
            value = None if facts["value"] is None else base64.b64decode(facts["value"])
            facts["reason"] = facts["reason"][:LONGEST_REASON]
        except (ValueError, KeyError, TypeError):
            facts = {"reason": "a record that is no dead letter"}
    return {
        **{name: facts.get(name) for name in DEAD_LETTER_FACTS},
        **{name: int(facts[name]) for name in ("partition", "offset") if facts.get(name) is not None},
        "size": int(facts["size"]) if facts.get("size") else None if value is None else len(value),
        "sha256": facts.get("sha256") or sha256_of(value),
    }


def _as_bytes(part: str | bytes | None) -> bytes:
    return _NULL if part is None else part.encode() if isinstance(part, str) else part


@contextmanager
def _translate_errors(target: KafkaTarget, errors: LastError) -> Iterator[None]:
    """Turn errors of the client in the block into ours."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        raise target.failure(cause, errors, "it cannot be read", cause.str()) from error
