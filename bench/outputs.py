"""Where an engine's rows appear, and whether they are the right ones.

A run watches how many rows are visible to a `read_committed` reader. What they hold is read after the clock has
stopped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_POLL_SECONDS = 30.0

Schema = dict[str, pl.DataType | type[pl.DataType]]  # of an output row, by column


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A multiset of rows: their number, and the sum (modulo 2^64) of a hash of each. Equal within one process only."""

    rows: int
    checksum: int


def fingerprint(rows: pl.DataFrame) -> Fingerprint:
    text = pl.concat_str([pl.all().cast(pl.String).fill_null("NULL")], separator="|")
    hashes = rows.select(text.hash(seed=1).alias("hash"))["hash"]
    return Fingerprint(len(rows), int(hashes.to_numpy().sum(dtype="uint64")))


Ends = dict[int, int]  # how far each part of an output has come


class Output(Protocol):
    """The rows of one run, as JSON objects."""

    def ends(self) -> Ends:
        """Return what is visible now: in all at least as much as there are rows. Cheap; called by a thread of its
        own."""
        ...

    def last(self, rows: int) -> Ends | None:
        """Return the first ends that have all of the rows, once `rows` are visible. Reads; asked when `ends` say so."""
        ...

    def read(self) -> pl.DataFrame:
        """All visible rows; the last call."""
        ...


class FileOutput:
    """JSON lines in files of one folder that do not change once they are there."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._folder, self._schema, self._lines = folder, schema, dict[Path, int]()

    def ends(self) -> Ends:
        for path in self._folder.glob("*.jsonl"):
            if path not in self._lines:
                self._lines[path] = path.read_bytes().count(b"\n")
        return {0: sum(self._lines.values())}

    def last(self, rows: int) -> Ends | None:
        return {0: rows}

    def read(self) -> pl.DataFrame:
        self.ends()
        parts = [pl.read_ndjson(path, schema=self._schema) for path, lines in self._lines.items() if lines]
        return pl.concat([pl.DataFrame(schema=self._schema), *parts])


class TopicOutput:
    """A topic, as a `read_committed` reader sees it: up to its last stable offsets, among which are the markers of
    transactions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, schema: Schema) -> None:
        self._partitions, self._schema = [TopicPartition(topic, number, 0) for number in range(partitions)], schema
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"verify-{topic}",
                                   "isolation.level": "read_committed", "enable.auto.commit": False,
                                   "enable.partition.eof": True})  # fmt: skip
        # Offsets up to which each partition was read. None before the first read, which comes when the clock has all
        # but stopped: reading would compete with the engine.
        self._read: Ends | None = None
        self._ends = dict.fromkeys(range(partitions), 0)
        self._after_last_row = dict.fromkeys(range(partitions), 0)
        self._frames = [pl.DataFrame(schema=schema)]

    def ends(self) -> Ends:
        answers = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
        )
        for partition, answer in answers.items():
            # A broker that is busy with the new topic's leader says so; what was known before holds.
            with suppress(KafkaException):
                self._ends[partition.partition] = answer.result(_POLL_SECONDS).offset
        return dict(self._ends)

    def last(self, rows: int) -> Ends | None:
        self._read_to(self.ends())
        return dict(self._after_last_row) if sum(map(len, self._frames)) >= rows else None

    def read(self) -> pl.DataFrame:
        self._read_to(self.ends())
        self._consumer.close()
        return pl.concat(self._frames)

    def _read_to(self, ends: Ends) -> None:
        if self._read is None:
            self._consumer.assign(self._partitions)
            self._read = dict.fromkeys(ends, 0)
        while any(self._read[number] < end for number, end in ends.items()):
            values = []
            for message in self._consumer.consume(100_000, 0.2):
                if message.error() is None:
                    values.append(message.value())
                    self._after_last_row[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:  # also past the markers at the end
                    self._read[message.partition()] = message.offset()
                else:
                    raise KafkaException(message.error())
            if values:
                self._frames.append(pl.read_ndjson(b"\n".join(values), schema=self._schema))
