"""Dead letters in a Kafka topic: a record's own bytes are the value, and the facts about it are headers.

A record that is larger than the topic takes is cut: the value is then its head, and two more headers have the size and
the SHA-256 of the whole. The record itself is where the facts say. So a dead letter fits into every topic, and a
record never stops a job (rule T8).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.kafka.target import KafkaTarget

FACTS = ("input", "topic", "partition", "offset", "reason")
_OF_A_CUT_RECORD = ("size", "sha256")
REASON_HEADER = "joinery.reason"
HEADERS = {f"joinery.{name}": name for name in (*FACTS, *_OF_A_CUT_RECORD)}
LONGEST_REASON = 1_000
"""Characters. A reason may show a value, and headers count for a record's size."""
_HEADER_BYTES = 10  # the most that a header takes besides its name and value
_LEAST_BYTES = 512  # a topic that does not take this takes no facts either


@dataclass(frozen=True, slots=True)
class DeadLetterTarget(KafkaTarget):
    """`most_bytes` is the size that a record may have, with its headers; 0: what the client takes."""

    TITLE: ClassVar[str] = "Dead-letter topic"

    most_bytes: int = 0

    @classmethod
    def of(cls, topic: str, bootstrap_servers: str, properties: Mapping[str, str]) -> Self:
        return cls(topic, bootstrap_servers, properties=properties, headers=HEADERS)

    @property
    def named_columns(self) -> Mapping[str, Collection[str]]:
        return {}

    def records(self, rows: pa.Table | pa.RecordBatch) -> Records:
        """Makes one record for each row of DEAD_LETTER_SCHEMA."""
        letters = _cut_to_fit(facts_and_value(rows), self._limit)
        return Records.of(letters, (), self.headers, values=Texts.of_column(letters["value"].combine_chunks()))

    def for_smaller_records(self) -> Self | None:
        topic = self.topic_limit()
        limit = topic if topic is not None and topic < self._limit else self._limit // 4
        return None if limit < _LEAST_BYTES else replace(self.in_batches_of(limit), most_bytes=limit)

    @property
    def _limit(self) -> int:
        return self.most_bytes or self.client_limit


def facts_and_value(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The columns of dead letters that make a record: FACTS, with reasons of at most LONGEST_REASON, and the value."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    reasons = pc.utf8_slice_codeunits(table["reason"], 0, LONGEST_REASON)
    return table.set_column(table.schema.get_field_index("reason"), "reason", reasons).select([*FACTS, "value"])


def _cut_to_fit(letters: pa.Table, limit: int) -> pa.Table:
    """Cuts what makes records larger than `limit`: the value, and the reason where the facts alone are too large. Adds
    the columns that say so."""
    facts = np.full(len(letters), sum(len(name) + _HEADER_BYTES for name in HEADERS), np.int64)
    for name in FACTS:
        facts += pc.fill_null(pc.binary_length(letters[name].cast(pa.string())), 0).to_numpy()
    sizes = pc.fill_null(pc.binary_length(letters["value"]), 0).to_numpy()
    values, reasons = letters["value"].to_pylist(), letters["reason"].to_pylist()
    cut: dict[str, list[Any]] = {"size": [None] * len(letters), "sha256": [None] * len(letters)}
    for row in np.flatnonzero(facts + sizes > limit).tolist():
        value = values[row] or b""
        cut["size"][row], cut["sha256"][row] = len(value), sha256_of(value)
        room = limit - int(facts[row]) - len(str(len(value))) - len(cut["sha256"][row])
        values[row] = value[: max(0, room)]
        if room < 0:
            reason = reasons[row].encode()
            reasons[row] = reason[: max(0, len(reason) + room)].decode(errors="ignore")
    columns = {name: letters[name] for name in FACTS} | {"reason": pa.array(reasons, pa.string())}
    columns |= {"value": pa.array(values, pa.binary()), "size": pa.array(cut["size"], pa.int64())}
    return pa.table(columns | {"sha256": pa.array(cut["sha256"], pa.string())})


def sha256_of(value: bytes | None) -> str | None:
    return None if value is None else hashlib.sha256(value).hexdigest()
