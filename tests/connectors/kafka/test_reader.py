"""What a reader hands out of what its client has, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from joinery_runtime.connectors.kafka import errors as kafka_errors
from joinery_runtime.connectors.kafka import reader as kafka_reader
from joinery_runtime.connectors.kafka.reader import KafkaReader
from joinery_runtime.connectors.kafka.record_clients import ConsumerEvent
from joinery_runtime.connectors.source import Range
from joinery_runtime.errors import SourceUnavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.job.model.inputs import KafkaInput

PLACE = PartitionRef("orders", "orders", 0)


def batch(first: int, stop: int, ref: PartitionRef = PLACE) -> RawBatch:
    """Record n has the key k<n>, the value v<n>, the header h<n> and the timestamp 1000 n."""
    numbers = np.arange(first, stop)
    texts = {name: pa.array([f"{name}{n}".encode() for n in numbers], pa.binary()) for name in "kvh"}
    return RawBatch(ref, numbers, texts["v"], texts["k"], (numbers * 1000).__getitem__, headers={"trace": texts["h"]})


class Client:
    """Has all batches at once. Each question for offsets has the next answer, the last one for ever."""

    def __init__(self, batches: Iterable[RawBatch], *answers: tuple[int, int]) -> None:
        self.batches, self.answers = list(batches), list(answers)

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        pass

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        pass

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        batches, self.batches = self.batches, []
        return batches, []

    def watermarks(self, ref: PartitionRef, seconds: float) -> tuple[int, int]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        pass


class SlowClient(Client):
    """Has one batch at a time."""

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        return [self.batches.pop(0)], []


class LogClient:
    """Fetches up to 10 records of each assigned partition at a time, from logs of these lengths."""

    def __init__(self, lengths: Mapping[PartitionRef, int]) -> None:
        self.lengths = lengths
        self.positions = dict.fromkeys(lengths, 0)
        self.assigned: set[PartitionRef] = set()

    def assign(self, at: Mapping[PartitionRef, int]) -> None:
        self.positions |= at
        self.assigned |= at.keys()

    def unassign(self, refs: Iterable[PartitionRef]) -> None:
        self.assigned -= set(refs)

    def fetch(self, most: int, seconds: float) -> tuple[list[RawBatch], list[ConsumerEvent]]:
        batches = []
        for ref in sorted(self.assigned):
            first = self.positions[ref]
            self.positions[ref] = min(first + 10, self.lengths[ref])
            if self.positions[ref] > first:
                batches.append(batch(first, self.positions[ref], ref))
        return batches, []

    def close(self) -> None:
        pass


def read_numbers(reader: KafkaReader, *ranges: Range) -> dict[int, list[int]]:
    """The offsets that come of these ranges, by partition."""
    offsets: dict[int, list[int]] = {}
    for read_batch in reader.read(*ranges):
        offsets.setdefault(read_batch.partition.partition, []).extend(read_batch.offsets.tolist())
    return offsets


def read(
    monkeypatch: pytest.MonkeyPatch, sizes: Iterable[int], *ends: int, client_class: type[Client] = Client
) -> list[list[RawBatch]]:
    """What comes of ranges up to these offsets, from batches of these sizes."""
    cuts = [0, *np.cumsum(list(sizes)).tolist()]
    client = client_class(batch(first, stop) for first, stop in pairwise(cuts))
    monkeypatch.setattr(kafka_reader, "open_client", lambda *_, **__: client)
    kafka = KafkaInput(bootstrap_servers="broker:9092", topic="orders")
    reader = KafkaReader("orders", kafka, keyed=True, headers=("trace",))
    return [list(reader.read(Range(PLACE, start, end))) for start, end in zip((0, *ends), ends, strict=False)]


def test_small_batches_are_handed_out_as_one_with_all_that_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    ((one,),) = read(monkeypatch, [1, 9, 30, 60], 100)
    assert one.offsets.tolist() == list(range(100))
    for column, name in ((one.values, "v"), (one.keys, "k"), (one.headers["trace"], "h")):
        assert column is not None
        assert column.to_pylist() == [f"{name}{n}".encode() for n in range(100)]
    assert one.timestamps is not None
    assert one.timestamps(np.array([99, 0, 10])).tolist() == [99_000, 0, 10_000]


def test_small_batches_wait_for_what_else_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a steady rate, each fetch brings some records. Decoding and preparing costs more by batch than by record."""
    (few,) = read(monkeypatch, [20] * 10, 200, client_class=SlowClient)
    assert [raw_batch.offsets.tolist() for raw_batch in few] == [list(range(200))]
    (many,) = read(monkeypatch, [100] * 7, 700, client_class=SlowClient)
    assert [len(raw_batch.offsets) for raw_batch in many] == [300, 300, 100]


def test_small_batches_with_many_bytes_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_reader, "_SMALL_BYTES", 1_000)
    (batches,) = read(monkeypatch, [50] * 4, 200, client_class=SlowClient)
    assert [len(raw_batch.offsets) for raw_batch in batches] == [50] * 4


def test_large_ones_go_out_as_they_are_between_the_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (batches,) = read(monkeypatch, [10, 20, 300, 5, 400, 7], 742)
    assert [len(raw_batch.offsets) for raw_batch in batches] == [30, 300, 5, 400, 7]
    assert np.concatenate([raw_batch.offsets for raw_batch in batches]).tolist() == list(range(742))


def test_a_range_ends_in_the_middle_of_a_batch_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = read(monkeypatch, [10, 300, 10], 200, 320)
    assert [raw_batch.offsets.tolist() for raw_batch in first] == [list(range(200))]
    assert [raw_batch.offsets.tolist() for raw_batch in second] == [list(range(200, 320))]


def test_a_partition_that_is_not_asked_for_is_fetched_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small epoch each process reads all partitions; in the next one another process reads this one."""
    monkeypatch.setattr(kafka_reader, "_UNASKED_BYTES", 2_000)
    other = PartitionRef("orders", "orders", 1)
    client = LogClient({PLACE: 1_000, other: 1_000})
    monkeypatch.setattr(kafka_reader, "open_client", lambda *_, **__: client)
    reader = KafkaReader("orders", KafkaInput(bootstrap_servers="broker:9092", topic="orders"), keyed=True)
    assert read_numbers(reader, Range(PLACE, 0, 10), Range(other, 0, 10)) == {0: list(range(10)), 1: list(range(10))}
    for start in range(10, 510, 10):
        assert read_numbers(reader, Range(PLACE, start, start + 10)) == {0: list(range(start, start + 10))}
    assert client.positions[PLACE] >= 510
    assert 10 < client.positions[other] <= 150, "some 2,000 bytes, and a fetch"
    expected = {0: list(range(510, 1_000)), 1: list(range(10, 1_000))}
    assert read_numbers(reader, Range(PLACE, 510, 1_000), Range(other, 10, 1_000)) == expected


@pytest.mark.parametrize(
    ("answers", "words"),
    [([(-1001, -1001), (0, 3)], "has come to a halt"), ([(0, -1001)], "the broker answered -1001")],
)
def test_a_starting_broker_that_answers_no_offsets_has_truncated_nothing(
    answers: list[tuple[int, int]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again for a while, then it is away: taken for an end of the log, the answer would stop the job."""
    monkeypatch.setattr(kafka_reader, "_STALLED_SECONDS", 0.0)
    monkeypatch.setattr(kafka_errors, "SETTLE_SECONDS", 60.0 if len(answers) > 1 else 0.0)
    monkeypatch.setattr(kafka_errors, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(kafka_reader, "open_client", lambda *_, **__: Client([], *answers))
    reader = KafkaReader("orders", KafkaInput(bootstrap_servers="broker:9092", topic="orders"))
    with pytest.raises(SourceUnavailable, match=words):
        list(reader.read(Range(PLACE, 0, 3)))
