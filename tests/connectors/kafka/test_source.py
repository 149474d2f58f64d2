"""The Kafka source against a real broker."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from connectors.kafka.kafka_bench import bounds_of, eventually, joined, kafka_input, plain, planning, ref, unique
from connectors.kafka.kafka_bench import send as send_to
from joinery_devkit.kafka_tls import self_signed
from joinery_runtime.connectors.inputs import planner_for, reader_for
from joinery_runtime.connectors.kafka.record_clients import ConsumerEvent
from joinery_runtime.connectors.source import Bounds, Range, SourceReader, StoredOffsets
from joinery_runtime.errors import DataLoss, SourceError, SourceUnavailable
from joinery_runtime.formats.batch import RawBatch
from stores import STORE

pytestmark = pytest.mark.services


@pytest.fixture
def topic(broker) -> str:
    name = unique("source")
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def send(broker, topic) -> Any:
    return partial(send_to, broker.bootstrap, topic)


def transaction(broker, topic: str, values: Sequence[bytes], *, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


@pytest.fixture
def reader(broker, topic, way) -> Iterator[SourceReader]:
    opened = reader_for(kafka_input(broker.bootstrap, topic))
    yield opened
    opened.close()


@pytest.fixture
def reader_of(broker, way) -> Iterator[Callable[[str], SourceReader]]:
    """Opens readers of other topics."""
    with ExitStack() as opened:
        yield lambda name: opened.enter_context(closing(reader_for(kafka_input(broker.bootstrap, name))))


def read(reader: SourceReader, topic: str, start: int, end: int) -> list[tuple[int, bytes | None]]:
    batches = reader.read(Range(ref(topic), start, end))
    return [item for batch in batches for item in zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True)]


def test_bounds_from_the_earliest_record(broker, topic, send) -> None:
    send([b"a", b"b"])
    assert bounds_of(kafka_input(broker.bootstrap, topic)) == [Bounds(ref(topic, 0), 0, 2), Bounds(ref(topic, 1), 0, 0)]


def test_bounds_from_a_stored_position(broker, topic, send) -> None:
    send([b"a", b"b"])
    assert bounds_of(kafka_input(broker.bootstrap, topic), {ref(topic): 1})[0] == Bounds(ref(topic), 1, 2)


def test_latest_is_fixed_when_it_is_first_asked_for(broker, topic, send) -> None:
    send([b"a"])
    with planning(kafka_input(broker.bootstrap, topic, startFrom="latest")) as planner:
        assert plain(joined(planner))[0] == Bounds(ref(topic), 1, 1)
        send([b"b"])
        assert plain(joined(planner))[0] == Bounds(ref(topic), 1, 2)


def test_start_from_a_timestamp(broker, topic, send) -> None:
    send([b"a"], timestamp=1_000)
    send([b"b"], timestamp=2_000)
    model = kafka_input(broker.bootstrap, topic, startFrom={"timestamp": 1_500})
    assert [bounds.start for bounds in bounds_of(model)] == [1, 0]


def test_start_from_offsets(broker, topic, send) -> None:
    send([b"a", b"b", b"c"])
    model = kafka_input(broker.bootstrap, topic, startFrom={"offsets": {0: 2}})
    assert [bounds.start for bounds in bounds_of(model)] == [2, 0]


@pytest.mark.parametrize(
    ("offset", "says", "begins"),
    [
        (1, "1 record is gone .*the earliest offset", (2, 1)),
        (9, "startFrom names an offset that no record has yet .*the log's end", (3, 0)),
    ],
)
def test_a_start_that_is_not_there(broker, topic, send, offset: int, says: str, begins: tuple[int, int]) -> None:
    """Nothing has been read, and nothing was truncated."""
    send([b"a", b"b", b"c"])
    broker.delete_records(topic, 0, 2)
    start = {"offsets": {0: offset}}
    with pytest.raises(
        DataLoss, match=rf"from offset {offset}: .* offsets 2 to 3 .*{says}\. Or correct startFrom\.offsets"
    ):
        bounds_of(kafka_input(broker.bootstrap, topic, startFrom=start))
    allowed = bounds_of(kafka_input(broker.bootstrap, topic, startFrom=start, onDataLoss="continue"))[0]
    assert (allowed.start, allowed.lost) == begins


def test_partitions_that_the_job_names_and_the_topic_does_not_have(broker, topic, caplog) -> None:
    positions = {"startFrom": {"offsets": {1: 0, 2: 5, 3: 5}}, "stopAt": {"offsets": {2: 9}}}
    with planning(kafka_input(broker.bootstrap, topic, **positions)) as planner:
        joined(planner)
    assert [message for message in caplog.messages if "names partition" in message] == [
        f"input in: {field} names partition 2, and topic {topic} has 2 partitions, numbered from 0: correct it"
        for field in ("startFrom", "stopAt")
    ]


def test_stop_at_latest_ends_where_the_topic_ended_at_first(broker, topic, send) -> None:
    send([b"a"])
    with planning(kafka_input(broker.bootstrap, topic, stopAt="latest")) as planner:
        assert plain(joined(planner))[0] == Bounds(ref(topic), 0, 1, final=True, stop=1)
        send([b"b"])
        assert plain(joined(planner, StoredOffsets({ref(topic): 1})))[0] == Bounds(ref(topic), 1, 1, final=True, stop=1)


def test_stop_at_latest_is_what_was_stored_when_the_job_starts_again(broker, topic, send) -> None:
    send([b"a", b"b", b"c"])
    with planning(kafka_input(broker.bootstrap, topic, stopAt="latest")) as planner:
        stored_offsets = StoredOffsets({ref(topic): 1}, stops={ref(topic): 2})
        assert plain(joined(planner, stored_offsets))[0] == Bounds(ref(topic), 1, 2, final=True, stop=2)


def test_offsets_to_stop_at_are_what_the_job_says_now(broker, topic, send) -> None:
    send([b"a", b"b", b"c"])
    with planning(kafka_input(broker.bootstrap, topic, stopAt={"offsets": {0: 3}})) as planner:
        bounds = plain(joined(planner, StoredOffsets(stops={ref(topic): 2, ref(topic, 1): 0})))
    assert [bound.stop for bound in bounds] == [3, 0]


def test_a_stored_stop_does_not_bound_a_job_that_no_longer_has_one(broker, topic, send) -> None:
    send([b"a", b"b"])
    with planning(kafka_input(broker.bootstrap, topic)) as planner:
        bounds = plain(joined(planner, StoredOffsets({ref(topic): 1}, stops={ref(topic): 1})))
    assert bounds[0] == Bounds(ref(topic), 1, 2)


def test_stop_at_offsets_that_are_not_there_yet(broker, topic, send) -> None:
    send([b"a"])
    with planning(kafka_input(broker.bootstrap, topic, stopAt={"offsets": {0: 2, 1: 0}})) as planner:
        assert plain(joined(planner)) == [
            Bounds(ref(topic, 0), 0, 1, stop=2),
            Bounds(ref(topic, 1), 0, 0, final=True, stop=0),
        ]
        send([b"b", b"c"])
        assert plain(joined(planner))[0] == Bounds(ref(topic), 0, 2, final=True, stop=2)


def test_stop_at_a_timestamp(broker, topic, send) -> None:
    send([b"a"], timestamp=1_000)
    send([b"b"], timestamp=2_000)
    past = bounds_of(kafka_input(broker.bootstrap, topic, stopAt={"timestamp": 2_000}))
    assert past == [Bounds(ref(topic, 0), 0, 1, final=True, stop=1), Bounds(ref(topic, 1), 0, 0, final=True, stop=0)]
    future = bounds_of(kafka_input(broker.bootstrap, topic, stopAt={"timestamp": "2999-01-01T00:00:00Z"}))
    assert future[0] == Bounds(ref(topic), 0, 2, final=False)


def test_positions_of_another_topic_do_not_count(broker, topic, send) -> None:
    send([b"a"])
    all_bounds = bounds_of(kafka_input(broker.bootstrap, topic), {ref("other", 7): 5})
    assert [bounds.partition for bounds in all_bounds] == [ref(topic, 0), ref(topic, 1)]


def test_records_that_the_broker_deleted(broker, topic, send) -> None:
    send([b"a", b"b", b"c"])
    broker.delete_records(topic, 0, 2)
    facts = rf"{topic}-0 cannot be read from offset 1: the broker has offsets 2 to 3 .*, 1 record is gone"
    with pytest.raises(DataLoss, match=facts):
        bounds_of(kafka_input(broker.bootstrap, topic), {ref(topic): 1})
    allowed = bounds_of(kafka_input(broker.bootstrap, topic, onDataLoss="continue"), {ref(topic): 0})
    assert allowed[0] == Bounds(ref(topic), 2, 3, lost=2)


def test_a_log_that_was_truncated(broker, topic, send, caplog) -> None:
    """What is left of it has been read: it is not read again."""
    send([b"a"])
    with pytest.raises(DataLoss, match=r"from offset 5: .* 4 offsets before that: the log was truncated"):
        bounds_of(kafka_input(broker.bootstrap, topic), {ref(topic): 5})
    with planning(kafka_input(broker.bootstrap, topic, onDataLoss="continue")) as planner:
        for _ in range(2):
            assert plain(joined(planner, StoredOffsets({ref(topic): 5})))[0] == Bounds(ref(topic), 1, 1, lost=4)
        assert caplog.text.count("the log was truncated") == 1, "once is enough"
        send([b"b"])
        assert plain(joined(planner, StoredOffsets({ref(topic): 1})))[0] == Bounds(ref(topic), 1, 2)


def test_cut(broker, topic) -> None:
    with planning(kafka_input(broker.bootstrap, topic)) as planner:
        assert planner.cut(Bounds(ref(topic), 5, 100), 10) == Range(ref(topic), 5, 15)
        assert planner.cut(Bounds(ref(topic), 5, 9), 10) == Range(ref(topic), 5, 9)


def test_reads_exactly_the_range_and_goes_on_from_there(topic, send, reader) -> None:
    send([b"%d" % i for i in range(25_000)])
    ranges = [(0, 1), (1, 12_345), (12_345, 12_345), (12_345, 25_000)]
    items = [item for start, end in ranges for item in read(reader, topic, start, end)]
    assert items == [(i, b"%d" % i) for i in range(25_000)]


def test_reads_a_range_again(topic, send, reader) -> None:
    send([b"a", b"b", b"c"])
    first = read(reader, topic, 0, 2)
    assert read(reader, topic, 0, 2) == first == [(0, b"a"), (1, b"b")]
    assert read(reader, topic, 2, 3) == [(2, b"c")]


def test_a_range_that_was_left_half_way_is_read_again_in_full(topic, send, reader) -> None:
    send([b"%d" % i for i in range(30_000)])
    abandoned = reader.read(Range(ref(topic), 0, 30_000))
    next(iter(abandoned))
    abandoned.close()
    assert len(read(reader, topic, 0, 30_000)) == 30_000


def test_records_that_come_later(topic, send, reader) -> None:
    send([b"a"])
    assert read(reader, topic, 0, 1) == [(0, b"a")]
    send([b"b", None])
    assert read(reader, topic, 1, 3) == [(1, b"b"), (2, None)]


def test_ends_at_a_hole_left_by_transactions(broker, topic, send, reader) -> None:
    transaction(broker, topic, [b"a", b"b"])
    # The broker writes the control record some time after it has answered.
    eventually(lambda: bounds_of(kafka_input(broker.bootstrap, topic))[0].end_exclusive == 3)
    assert read(reader, topic, 0, 3) == [(0, b"a"), (1, b"b")]
    transaction(broker, topic, [b"never"] * 3, commit=False)
    assert read(reader, topic, 3, 7) == []
    send([b"c"])
    assert read(reader, topic, 7, 8) == [(7, b"c")]


def test_an_open_transaction_is_not_within_the_bounds(broker, topic, send) -> None:
    send([b"a"])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"open-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"b", partition=0)
    producer.flush(30)
    assert bounds_of(kafka_input(broker.bootstrap, topic))[0].end_exclusive == 1
    producer.abort_transaction(30)


def test_planned_records_that_retention_took(broker, topic, send, reader) -> None:
    send([b"a", b"b", b"c"])
    broker.delete_records(topic, 0, 2)
    with pytest.raises(DataLoss, match=f"records of partition {topic}-0 are gone: offsets 0 to 3"):
        read(reader, topic, 0, 3)


@pytest.mark.parametrize(("end", "expected"), [(4, [(2, b"c"), (3, b"d")]), (2, []), (1, [])])
def test_planned_records_that_retention_took_are_counted_where_the_job_allows_it(
    broker, topic, send, way, end, expected
) -> None:
    send([b"a", b"b", b"c", b"d", b"e"])
    broker.delete_records(topic, 0, 2)
    reader = reader_for(kafka_input(broker.bootstrap, topic, onDataLoss="continue"))
    batches = list(reader.read(Range(ref(topic), 0, end)))
    assert [item for b in batches for item in zip(b.offsets.tolist(), b.values.to_pylist(), strict=True)] == expected
    assert [(b.lost, len(b.offsets)) for b in batches if b.lost] == [(min(end, 2), 0)]
    assert read(reader, topic, 4, 5) == [(4, b"e")]
    reader.close()


def test_old_news_of_lost_records_loses_nothing(broker, topic, send, way) -> None:
    """The client may tell of an offset that it was at before it was sent elsewhere."""
    send([b"a", b"b", b"c"])
    broker.delete_records(topic, 0, 1)
    reader = reader_for(kafka_input(broker.bootstrap, topic, onDataLoss="continue"))
    assert read(reader, topic, 1, 2) == [(1, b"b")]
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    news = deliver_first(reader, ConsumerEvent(error, topic, 0))
    assert read(reader, topic, 2, 3) == [(2, b"c")]
    assert news == []
    reader.close()


def deliver_first(reader: Any, event: ConsumerEvent) -> list[ConsumerEvent]:
    """Has the reader's client tell this first; the list is empty once it has."""
    client, news = reader._client, [event]
    fetch = client.fetch
    client.fetch = lambda *arguments: ([], [news.pop()]) if news else fetch(*arguments)
    return news


def test_planned_records_that_never_come(topic, send, reader, monkeypatch) -> None:
    send([b"a"])
    assert read(reader, topic, 0, 1) == [(0, b"a")]
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._SMALL", 1)  # the first one does not wait for others
    reading = reader.read(Range(ref(topic), 0, 2))
    next(reading)  # which may take longer
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._STALLED_SECONDS", 1.0)
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader.KafkaReader._read_watermarks", lambda *_: (0, 2))
    with pytest.raises(SourceError, match="no record has come for 1 s at offset 1"):
        list(reading)


def test_a_log_that_was_truncated_within_a_planned_range(broker, topic, send, reader, monkeypatch) -> None:
    send([b"a"])
    allowed = reader_for(kafka_input(broker.bootstrap, topic, onDataLoss="continue"))
    for source_reader in (reader, allowed):
        assert read(source_reader, topic, 0, 1) == [(0, b"a")]
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._SMALL", 1)  # the first one does not wait for others
    reading = allowed.read(Range(ref(topic), 0, 3))
    batches = [next(reading)]  # which may take longer
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._STALLED_SECONDS", 1.0)
    with pytest.raises(DataLoss, match=r"offsets 0 to 3 .* it was truncated"):
        read(reader, topic, 0, 3)
    batches += reading
    allowed.close()
    assert [(batch.offsets.tolist(), batch.lost) for batch in batches] == [([0], 0), ([], 2)]


def records(batches: Iterable[RawBatch]) -> dict[int, list[int]]:
    """Offsets by partition, in the order in which they came."""
    offsets_by_partition: dict[int, list[int]] = {}
    for batch in batches:
        offsets_by_partition.setdefault(batch.partition.partition, []).extend(batch.offsets.tolist())
    return offsets_by_partition


def test_one_consumer_reads_all_partitions_of_an_input(topic, send, reader) -> None:
    for partition in (0, 1):
        send([b"%d" % i for i in range(5)], partition=partition)
    assert records(reader.read(Range(ref(topic, 0), 0, 3), Range(ref(topic, 1), 1, 2))) == {0: [0, 1, 2], 1: [1]}
    first = reader._client
    assert records(reader.read(Range(ref(topic, 1), 2, 5))) == {1: [2, 3, 4]}
    assert records(reader.read(Range(ref(topic, 0), 3, 5))) == {0: [3, 4]}
    assert reader._client is first


def test_ranges_at_random_places_are_read_exactly(broker, reader_of, monkeypatch) -> None:
    """As when tasks change places: whatever was fetched before, and however little may be kept."""
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._AHEAD_BYTES", 2_000)
    many, length, random = unique("many"), 300, Random(7)
    broker.create_topic(many, 12)
    for partition in range(12):
        send_to(broker.bootstrap, many, [b"%d" % i for i in range(length)], partition=partition)
    reader = reader_of(many)
    for _ in range(60):
        chosen = random.sample(range(12), random.randint(1, 12))
        bounds = {p: sorted(random.sample(range(length + 1), 2)) for p in chosen}
        offsets = records(reader.read(*(Range(ref(many, p), *between) for p, between in bounds.items())))
        assert offsets == {p: list(range(*between)) for p, between in bounds.items() if between[0] < between[1]}


def test_an_error_of_a_partition_that_is_not_read_now_stops_nothing(broker, topic, send, reader) -> None:
    send([b"a", b"b"], partition=0)
    send([b"a", b"b", b"c"], partition=1)
    assert records(reader.read(Range(ref(topic, 0), 0, 1), Range(ref(topic, 1), 0, 1))) == {0: [0], 1: [0]}
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    news = deliver_first(reader, ConsumerEvent(error, topic, 1))
    assert records(reader.read(Range(ref(topic, 0), 1, 2))) == {0: [1]}
    assert records(reader.read(Range(ref(topic, 1), 1, 3))) == {1: [1, 2]}
    assert news == []


class Unsettled(AdminClient):
    """The first questions for offsets meet a broker that no longer leads the partitions."""

    refusals = 0

    def list_offsets(self, specs: dict[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        if Unsettled.refusals <= 0:
            return super().list_offsets(specs, **options)
        Unsettled.refusals -= 1
        answers = {partition: Future[Any]() for partition in specs}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
        return answers


@pytest.fixture
def unsettled(monkeypatch) -> type[Unsettled]:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata.AdminClient", Unsettled)
    return Unsettled


def test_a_leader_that_moves_is_asked_again(broker, topic, send, unsettled) -> None:
    send([b"a"])
    unsettled.refusals = 3
    assert bounds_of(kafka_input(broker.bootstrap, topic))[0] == Bounds(ref(topic), 0, 1)


def test_a_partition_that_stays_without_a_leader(broker, topic, unsettled, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.errors.SETTLE_SECONDS", 0.3)
    unsettled.refusals = 1_000
    with pytest.raises(SourceUnavailable, match=rf"asking for offsets failed: .*[Nn]ot leader.* \(topic {topic}, "):
        bounds_of(kafka_input(broker.bootstrap, topic))
    unsettled.refusals = 0


def test_a_missing_topic(broker) -> None:
    with pytest.raises(SourceError, match=f"topic nowhere does not exist: .*bootstrapServers {broker.bootstrap}"):
        bounds_of(kafka_input(broker.bootstrap, "nowhere"))


def test_a_refused_login(broker, topic) -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    model = kafka_input(broker.bootstrap, topic, properties={**properties, "sasl.password": "hush"})
    with pytest.raises(SourceError, match=f"access to topic {topic} is denied") as caught:
        bounds_of(model)
    assert "hush" not in str(caught.value)
    assert not isinstance(caught.value, SourceUnavailable)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("turn", [0.1, 5.0])
def test_a_broker_that_never_answers(silent_server, monkeypatch, turn: float) -> None:
    """Turns of 5 s let the client's own limit end first: "Failed while waiting for controller" told nobody anything."""
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._TURN_SECONDS", turn)
    with pytest.raises(SourceUnavailable, match=rf"does not answer: waited 1 s; .*bootstrapServers {silent_server}"):
        bounds_of(kafka_input(silent_server, "any"))


@pytest.fixture
def secure_port(tmp_path: Path) -> Iterator[str]:
    key, certificate = self_signed(tmp_path / "store", "127.0.0.1")
    (tmp_path / "both.pem").write_text(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = server.accept()
                with suppress(OSError), context.wrap_socket(connection, server_side=True):
                    """A client that does not speak TLS is sent away."""

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=[server])
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_port_that_speaks_tls_is_recognised(monkeypatch, secure_port: str) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 0.5)
    with pytest.raises(SourceError, match=rf"the port speaks TLS, and the job does not.*{secure_port}") as caught:
        bounds_of(kafka_input(secure_port, "any"))
    assert not isinstance(caught.value, SourceUnavailable)
    assert "security.protocol: SSL" in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_told_with_what_to_set(secure_port: str) -> None:
    with pytest.raises(SourceError, match=r"certificate verify failed.*the ssl\.\* settings"):
        bounds_of(kafka_input(secure_port, "any", properties={"security.protocol": "SSL"}))


def test_tls_to_a_port_without_is_told_with_what_to_set(monkeypatch, broker) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 3.0)
    with pytest.raises(SourceError, match=r"does not answer.*SSL.*Check security\.protocol"):
        bounds_of(kafka_input(broker.bootstrap, "any", properties={"security.protocol": "SSL"}))


def test_a_task_without_a_broker_does_not_say_that_the_topic_is_missing(monkeypatch, way) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.reader._STALLED_SECONDS", 0.5)
    reader = reader_for(kafka_input("127.0.0.1:1", "any"))
    with pytest.raises(SourceUnavailable, match=r"asking for the offsets of any-0 failed: .*"):
        list(reader.read(Range(ref("any"), 0, 1)))
    reader.close()


def test_no_broker_at_all(monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 3.0)
    with pytest.raises(SourceUnavailable, match=r"does not answer: waited 3 s; .*Connection refused"):
        bounds_of(kafka_input("127.0.0.1:1", "any"))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("enable.auto.commit", "offsets are committed with the state"),
        ("no.such.name", "No such configuration property"),
    ],
)
def test_properties_that_cannot_be_set(name: str, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        planner_for(kafka_input("127.0.0.1:1", "any", properties={name: "true"}), "job", STORE)
