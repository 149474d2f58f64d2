"""What real topics hold: transactions, holes, compaction, retention, codecs, sizes, tombstones, many partitions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from connectors.kafka.kafka_bench import send as send_at
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.processes import deadline_after
from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for
from joinery_runtime.connectors.kafka import record_clients as kafka_record_clients
from joinery_runtime.connectors.kafka.planner import KafkaPlanner
from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner, SourceReader, StoredOffsets
from joinery_runtime.engine.read_report import DeadLetters
from joinery_runtime.errors import DataLoss
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.job import Input
from stores import STORE

pytestmark = pytest.mark.services
_names = (f"edges-{number}" for number in count())
WAIT_SECONDS = 120.0

Record = tuple[int, bytes | None]  # offset and value


def kafka_input(broker: KafkaAdmin, topic: str, **kafka: Any) -> Input:
    return Input.model_validate(
        {
            "name": "in",
            "kafka": {"bootstrapServers": broker.bootstrap, "topic": topic, **kafka},
            "format": "json",
            "schema": [{"name": "ts", "type": "int64"}],
            "eventTime": "ts",
        }
    )


def ref(topic: str, partition: int = 0) -> PartitionRef:
    return PartitionRef("in", topic, partition)


@contextmanager
def planning(model: Input) -> Iterator[Callable[[Mapping[PartitionRef, int]], dict[PartitionRef, Bounds]]]:
    """Asks a planner for the bounds of partitions with these stored offsets, once all partitions are its own."""
    assert model.kafka is not None
    planner = planner_for(model, f"job-of-{model.kafka.topic}", STORE)
    try:
        yield lambda offsets: held_bounds(planner, StoredOffsets(offsets=offsets))
    finally:
        planner.close()


def held_bounds(planner: SourcePlanner, stored_offsets: StoredOffsets) -> dict[PartitionRef, Bounds]:
    deadline = deadline_after(WAIT_SECONDS)
    while time.monotonic() < deadline:
        bounds = planner.bounds(stored_offsets)
        if all(bound.is_assigned for bound in bounds):
            return {bound.partition: bound for bound in bounds}
        time.sleep(0.02)
    raise AssertionError("the group did not assign every partition")


def extent(model: Input, offset: int | None = None) -> tuple[int, int, int]:
    """Start, end and lost offsets of partition 0, with that offset stored."""
    assert model.kafka is not None
    assert model.kafka.topic is not None
    partition = ref(model.kafka.topic)
    with planning(model) as bounds:
        bound = bounds({} if offset is None else {partition: offset})[partition]
    return bound.start, bound.end_exclusive, bound.lost


@pytest.fixture
def topic() -> str:
    return next(_names)


def batches(reader: SourceReader, partition: PartitionRef, start: int, end: int) -> list[RawBatch]:
    return list(reader.read(Range(partition, start, end)))


def read(reader: SourceReader, topic: str, start: int, end: int, partition: int = 0) -> list[Record]:
    return [
        record
        for batch in batches(reader, ref(topic, partition), start, end)
        for record in zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True)
    ]


def producer(broker: KafkaAdmin, **settings: Any) -> Producer:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return ordered_producer(broker.bootstrap, {"linger.ms": 0, **names})


def send(client: Producer, topic: str, values: Sequence[bytes | None], **fields: Any) -> None:
    for value in values:
        client.produce(topic, value, partition=fields.get("partition", 0), key=fields.get("key"))
        client.poll(0)
    assert client.flush(WAIT_SECONDS) == 0


def log_end(broker: KafkaAdmin, topic: str) -> int:
    """The offset that the next record, or control record, of partition 0 gets."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (offset,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()}).values()
    return int(offset.result(WAIT_SECONDS).offset)


class Transaction:
    """A producer in a transaction whose records are in the topic."""

    def __init__(self, broker: KafkaAdmin, topic: str, name: str, values: Sequence[bytes]) -> None:
        self._broker, self._topic = broker, topic
        self._client = producer(broker, transactional_id=f"{topic}-{name}")
        self._client.init_transactions(WAIT_SECONDS)
        self._client.begin_transaction()
        send(self._client, topic, values)

    def commit(self) -> None:
        self._end(self._client.commit_transaction)

    def abort(self) -> None:
        self._end(self._client.abort_transaction)

    def _end(self, how: Callable[[float], object]) -> None:
        """Returns when the control record is there, which the broker writes some time after it has answered."""
        before, deadline = log_end(self._broker, self._topic), deadline_after(WAIT_SECONDS)
        how(WAIT_SECONDS)
        while log_end(self._broker, self._topic) == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)


# --- transactions -------------------------------------------------------------------------------------------------


# Two transactions that overlap, one of them aborted, plain records between, an abort and a commit at the end. Control
# records stand at offsets 6, 8, 11 and 13.
COMMITTED = [(0, b"p0"), (1, b"k1"), (2, b"k2"), (5, b"p5"), (7, b"p7"), (12, b"k12")]
END = 14


@pytest.fixture(scope="module")
def holes(broker: KafkaAdmin) -> str:
    """A topic of which COMMITTED may be read."""
    topic = next(_names)
    broker.create_topic(topic)
    plain = producer(broker)
    send(plain, topic, [b"p0"])
    visible = Transaction(broker, topic, "kept", [b"k1", b"k2"])
    dropped = Transaction(broker, topic, "dropped", [b"never", b"never"])
    send(plain, topic, [b"p5"])
    dropped.abort()
    send(plain, topic, [b"p7"])
    visible.commit()
    Transaction(broker, topic, "dropped", [b"never", b"never"]).abort()
    Transaction(broker, topic, "kept", [b"k12"]).commit()
    return topic


def committed(start: int, end: int) -> list[Record]:
    return [record for record in COMMITTED if start <= record[0] < end]


def test_only_committed_records_are_read_and_bounds_include_control_records(broker, holes, way) -> None:
    model = kafka_input(broker, holes)
    assert extent(model) == (0, END, 0)
    with closing(reader_for(model)) as reader:
        assert read(reader, holes, 0, END) == COMMITTED


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_every_way_to_cut_a_topic_with_holes_gives_the_same_records(broker, holes, way, step) -> None:
    """Ranges that end or begin in a hole, and ranges that are nothing but hole."""
    ranges = list(pairwise([*range(0, END, step), END]))
    with closing(reader_for(kafka_input(broker, holes))) as reader:
        assert [read(reader, holes, start, end) for start, end in ranges] == [
            committed(*planned_range) for planned_range in ranges
        ]


@pytest.mark.parametrize("planned", [(3, 5), (3, 7), (9, 11), (13, 14), (6, 7), (1, 12)])
def test_a_range_with_holes_at_its_ends_is_all_that_a_reader_reads(broker, holes, way, planned) -> None:
    with closing(reader_for(kafka_input(broker, holes))) as reader:
        assert read(reader, holes, *planned) == committed(*planned)


@pytest.mark.parametrize("stored", [4, 6, 14])
def test_stored_offsets_in_a_hole_are_no_loss(broker, holes, stored) -> None:
    assert extent(kafka_input(broker, holes), stored) == (stored, END, 0)


@pytest.mark.parametrize("commits", [True, False])
def test_an_open_transaction_holds_back_what_comes_after_it_until_it_ends(broker, topic, way, commits) -> None:
    broker.create_topic(topic)
    plain, model = producer(broker), kafka_input(broker, topic)
    send(plain, topic, [b"p0"])
    held_back = Transaction(broker, topic, "open", [b"k1"])
    send(plain, topic, [b"p2"])
    Transaction(broker, topic, "within", [b"k3"]).commit()
    assert extent(model) == (0, 1, 0)
    with closing(reader_for(model)) as reader:
        assert read(reader, topic, 0, 1) == [(0, b"p0")]
        held_back.commit() if commits else held_back.abort()
        assert extent(model, 1) == (1, 6, 0)
        assert read(reader, topic, 1, 6) == ([(1, b"k1")] if commits else []) + [(2, b"p2"), (3, b"k3")]


@pytest.mark.parametrize("commits", [True, False])
def test_a_partition_is_not_at_its_end_while_a_transaction_is_open(broker, topic, commits) -> None:
    """T4: however long that takes. Its control record counts as read once it has ended."""
    broker.create_topic(topic)
    send(producer(broker), topic, [b"p0"])
    held_back = Transaction(broker, topic, "open", [b"k1", b"k2"])
    with planning(kafka_input(broker, topic)) as bounds:
        one = bounds({ref(topic): 1})[ref(topic)]
        assert (one.end_exclusive, one.undecided, one.at_end) == (1, 2, False)
        held_back.commit() if commits else held_back.abort()
        ended = bounds({ref(topic): 1})[ref(topic)]
        assert (ended.end_exclusive, ended.undecided, ended.at_end) == (4, 0, False)
        assert bounds({ref(topic): 4})[ref(topic)].at_end
    with closing(reader_for(kafka_input(broker, topic))) as reader:
        assert read(reader, topic, 1, 4) == ([(1, b"k1"), (2, b"k2")] if commits else [])


def test_a_transaction_after_the_stop_holds_nothing_back(broker, topic) -> None:
    broker.create_topic(topic)
    send(producer(broker), topic, [b"p0"])
    after = Transaction(broker, topic, "open", [b"k1"])
    with planning(kafka_input(broker, topic, stopAt={"offsets": {0: 1}})) as bounds:
        assert bounds({ref(topic): 1})[ref(topic)].at_end
    after.abort()


def test_stop_at_latest_ends_before_an_open_transaction(broker, topic) -> None:
    broker.create_topic(topic)
    send(producer(broker), topic, [b"p0"])
    open_one = Transaction(broker, topic, "open", [b"k1"])
    with planning(kafka_input(broker, topic, stopAt="latest")) as bounds:
        first = bounds({})[ref(topic)]
        open_one.commit()
        second = bounds({ref(topic): 1})[ref(topic)]
    assert [(bound.start, bound.end_exclusive, bound.final) for bound in (first, second)] == [
        (0, 1, True),
        (1, 1, True),
    ]


# --- compaction ---------------------------------------------------------------------------------------------------

COMPACTING = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.0"}


@pytest.fixture
def compacted(broker: KafkaAdmin, topic: str) -> list[Record]:
    """A topic of twenty records of two keys that has lost all but a few of them, and these."""
    broker.create_topic(topic, config=COMPACTING)
    client = producer(broker)
    for number in range(20):
        # Ten seconds of the records' time apart: each is a segment of its own, and only the last is never cleaned.
        client.produce(topic, b"%d" % number, key=b"ab"[number % 2 :][:1], partition=0, timestamp=10_000 * (number + 1))
        client.flush()
    return [(17, b"17"), (18, b"18"), (19, b"19")]


def wait_until_compacted(reader: SourceReader, topic: str, expected: Sequence[Record]) -> None:
    deadline = deadline_after(WAIT_SECONDS)
    while (records := read(reader, topic, 0, 20)) != expected:
        assert time.monotonic() < deadline, f"not compacted: {records}"
        assert records[-3:] == expected
        time.sleep(0.1)


def test_a_compacted_topic(broker, topic, compacted, monkeypatch) -> None:
    """A plan that is replayed after compaction finds fewer records, and ends all the same."""
    model = kafka_input(broker, topic)
    with closing(reader_for(model)) as reader:
        wait_until_compacted(reader, topic, compacted)
    assert extent(model) == (0, 20, 0)
    assert extent(model, 5) == (5, 20, 0)  # it held a record once: compaction is no loss
    for kernel in (None, kafka_record_clients.kernels("messages")):
        monkeypatch.setattr(kafka_record_clients, "kernels", lambda _, kernel=kernel: kernel)
        ranges = [(0, 5), (5, 17), (17, 18), (18, 20), (2, 18), (2, 17)]
        with closing(reader_for(model)) as reader:
            records_read = [read(reader, topic, *planned) for planned in ranges]
        assert records_read == [[], [], compacted[:1], compacted[1:], compacted[:1], []]


# --- retention ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(broker: KafkaAdmin, topic: str) -> str:
    """A topic of ten records."""
    broker.create_topic(topic)
    send(producer(broker), topic, [b"%d" % number for number in range(10)])
    return topic


def test_retention_between_two_epochs(broker, ten) -> None:
    broker.delete_records(ten, 0, 7)
    facts = rf"{ten}-0 cannot be read from offset 4: the broker has offsets 7 to 10 .*, 3 records are gone"
    with pytest.raises(DataLoss, match=facts):
        extent(kafka_input(broker, ten), 4)
    model = kafka_input(broker, ten, onDataLoss="continue")
    assert extent(model, 4) == (7, 10, 3)
    with closing(reader_for(model)) as reader:
        assert read(reader, ten, 7, 10) == [(7, b"7"), (8, b"8"), (9, b"9")]


def test_retention_between_plan_and_read(broker, ten, way) -> None:
    with closing(reader_for(kafka_input(broker, ten))) as reader:
        assert len(read(reader, ten, 0, 2)) == 2
        broker.delete_records(ten, 0, 7)
        with pytest.raises(DataLoss, match=f"records of partition {ten}-0 are gone: offsets 0 to 9"):
            read(reader, ten, 0, 9)


def test_retention_between_plan_and_read_that_is_allowed(broker, ten, way) -> None:
    broker.delete_records(ten, 0, 7)
    with closing(reader_for(kafka_input(broker, ten, onDataLoss="continue"))) as reader:
        for start, end, records in [(4, 9, [(7, b"7"), (8, b"8")]), (2, 6, []), (9, 10, [(9, b"9")])]:
            read_batches = batches(reader, ref(ten), start, end)
            assert sum(batch.lost for batch in read_batches) == max(0, min(7, end) - start)
            assert [
                (o, v) for b in read_batches for o, v in zip(b.offsets.tolist(), b.values.to_pylist(), strict=True)
            ] == (records)


def test_retention_of_everything(broker, ten) -> None:
    broker.delete_records(ten, 0, 10)
    assert extent(kafka_input(broker, ten)) == (10, 10, 0)
    assert extent(kafka_input(broker, ten), 10) == (10, 10, 0)
    assert extent(kafka_input(broker, ten, onDataLoss="continue"), 3) == (10, 10, 7)


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_retention_between_a_history_and_its_topic(broker, topic, policy: str, caplog) -> None:
    """Record n is of second n. As long as one from before the history's end is there, all that come after it are."""
    broker.create_topic(topic)
    for second in range(10):
        send_at(broker.bootstrap, topic, [b"{}"], timestamp=1_000 * second)
    model = kafka_input(broker, topic, onDataLoss=policy)
    assert model.kafka is not None
    planner = KafkaPlanner("in", model.kafka, topic, STORE, since=5_500)

    def start(deleted: int) -> int:
        broker.delete_records(topic, 0, deleted)
        planner.forget_starts()
        (bound,) = planner.bounds(StoredOffsets())
        return bound.start

    try:
        assert [start(0), start(5)] == [0, 5]
        assert not caplog.messages
        for deleted, left in ((6, "no older record"), (10, "no record")):
            pattern = (
                f"records of {topic}-0 may be gone that no file.*offsets before {deleted} are deleted, and {left} is"
            )
            if policy == "fail":
                with pytest.raises(DataLoss, match=pattern):
                    start(deleted)
            else:
                assert start(deleted) == start(deleted) == deleted
                (message,) = caplog.messages
                assert re.search(pattern, message)
                caplog.clear()
    finally:
        planner.close()


# --- codecs and sizes ---------------------------------------------------------------------------------------------

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")  # in the order of their numbers in a batch's attributes


def codecs_in_use(broker: KafkaBroker, topic: str) -> set[str]:
    """Codecs of the batches in the partition's log file: bits 0 to 2 of the attributes of each batch header."""
    log = Path(broker.directory, "data", f"{topic}-0", f"{0:020}.log").read_bytes()
    codecs, at = set(), 0
    while at < len(log) and (length := int.from_bytes(log[at + 8 : at + 12], "big")):
        codecs.add(CODECS[int.from_bytes(log[at + 21 : at + 23], "big") & 0b111])
        at += 12 + length
    return codecs


def test_records_of_every_codec_in_one_partition(topic) -> None:
    """In a broker of this test's own, whose files show that the codecs are there."""
    values = [b'{"text": "%s %d"}' % (b"again and " * 20, number) for number in range(500)]
    with KafkaBroker() as broker:
        broker.create_topic(topic)
        for codec in CODECS:
            send(producer(broker, compression_type=codec, linger_ms=50), topic, values)
        assert codecs_in_use(broker, topic) == set(CODECS)
        total = len(CODECS) * len(values)
        with closing(reader_for(kafka_input(broker, topic))) as reader:
            records = read(reader, topic, 0, 700) + read(reader, topic, 700, total)
    assert records == list(enumerate(values * len(CODECS)))


def test_records_of_one_byte_and_of_one_mebibyte(broker, topic, way) -> None:
    broker.create_topic(topic, config={"max.message.bytes": str(2**21)})
    random = np.random.default_rng(5)
    large = [random.bytes(2**20) for _ in range(6)]
    values = [value for large_value in large for value in (b"x", large_value, *[b"y"] * 200)]
    send(producer(broker, message_max_bytes=2**21), topic, values)
    with closing(reader_for(kafka_input(broker, topic))) as reader:
        at_once = read(reader, topic, 0, len(values))
        one_by_one = [record for at in range(4) for record in read(reader, topic, at, at + 1)]
    assert at_once == list(enumerate(values))
    assert one_by_one == at_once[:4]


def test_a_record_that_is_larger_than_a_fetch(broker, topic, way) -> None:
    broker.create_topic(topic, config={"max.message.bytes": str(8 * 2**20)})
    values = [b"a", b"b" * (6 * 2**20), b"c"]
    send(producer(broker, message_max_bytes=8 * 2**20), topic, values)
    with closing(reader_for(kafka_input(broker, topic))) as reader:
        assert read(reader, topic, 0, 3) == list(enumerate(values))


def test_tombstones_go_to_the_dead_letters(broker, topic, way) -> None:
    broker.create_topic(topic)
    good = json.dumps({"ts": 1}).encode()
    send(producer(broker), topic, [None, good, None, b""], key=b"k")
    model = kafka_input(broker, topic)
    with closing(reader_for(model)) as reader:
        (raw,) = batches(reader, ref(topic), 0, 4)
    decoded = decoder_for(model).decode_batch(raw)
    assert decoded.rows.to_pylist() == [{"ts": 1}]
    dead = DeadLetters.of(raw, decoded.bad)
    rows = dead.rows.to_pylist()
    assert [(row["offset"], row["value"]) for row in rows] == [(0, None), (2, None), (3, b"")]
    assert [row["reason"] for row in rows[:2]] == ["null value"] * 2
    assert dead.first == f"{topic}/0 offset 0: null value"


# --- many partitions ----------------------------------------------------------------------------------------------

PARTITIONS = 40  # more than a reader keeps open


def test_more_partitions_than_a_reader_keeps_open(broker, topic, way) -> None:
    broker.create_topic(topic, PARTITIONS)
    client, model = producer(broker), kafka_input(broker, topic)
    for number in range(3 * PARTITIONS):
        client.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert client.flush(WAIT_SECONDS) == 0
    with planning(model) as bounds:
        bound_by_partition = bounds({})
    assert {partition: (bound.start, bound.end_exclusive) for partition, bound in bound_by_partition.items()} == {
        ref(topic, number): (0, 3) for number in range(PARTITIONS)
    }
    with closing(reader_for(model)) as reader:
        for start, end in [(0, 1), (1, 3)]:
            for number in range(PARTITIONS):
                expected = [(at, b"%d" % (at * PARTITIONS + number)) for at in range(start, end)]
                assert read(reader, topic, start, end, number) == expected
