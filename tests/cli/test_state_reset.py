"""`joinery state reset` on a real broker and a real Postgres."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from cli.commands import Joinery
from job.resources import edited
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.watermark import InputProgress
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.errors import Fenced
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord
from state.values import DEFINITION, commit_of, run_epoch

JOB = "orders-payments"
PROGRESS = InputProgress({"orders": 7_000}, 5_000)
_numbers = count(1)


@pytest.fixture
def topic(kafka_broker: KafkaAdmin) -> str:
    """20 records in partition 0, 10 in partition 1, with the timestamps 1,000, 2,000, ..."""
    name = f"reset-{next(_numbers)}"
    kafka_broker.create_topic(name, 2)
    fill(kafka_broker, name)
    return name


def fill(broker: KafkaAdmin, topic: str) -> None:
    producer = ordered_producer(broker.bootstrap)
    for partition, size in ((0, 20), (1, 10)):
        for number in range(size):
            producer.produce(topic, b"{}", partition=partition, timestamp=1_000 * (number + 1))
    assert producer.flush(30) == 0


@pytest.fixture
def written(postgres_dsn: str, kafka_broker: KafkaAdmin, tmp_path: Path, topic: str) -> Path:
    return write_job(postgres_dsn, kafka_broker, tmp_path, f"topic: {topic}")


def write_job(dsn: str, broker: KafkaAdmin, folder: Path, topics: str) -> Path:
    path = folder / "job.yaml"
    output, schema = "    postgres: {table: joined}\n", folder.name.replace("-", "_")
    path.write_text(
        edited(
            ("kafka:9092\n        topic: orders", f"{broker.bootstrap}\n        {topics}"),
            (output, f'{output}  stateStore: {{postgres: {{dsn: "{dsn}", schema: "{schema}"}}}}\n'),
        )
    )
    return path


@pytest.fixture
def store(postgres_dsn: str, tmp_path: Path):
    store = PostgresStore(postgres_dsn, tmp_path.name.replace("-", "_"))
    yield store
    store.close()


@pytest.fixture
def started(store: PostgresStore, topic: str) -> JobRecord:
    """The job after an epoch that read 15 and 5 records; its driver still runs."""
    record = store.acquire(JOB)
    positions = {PartitionRef("orders", topic, 0): 15, PartitionRef("orders", topic, 1): 5}
    stored = InputState(positions, PROGRESS, {PartitionRef("orders", topic, 0): 99})
    run_epoch(store, record, 1, ["a"], offsets={"orders": stored.to_bytes(), "payments": InputState().to_bytes()})
    return record


Positions = Callable[[], dict[int, int]]


@pytest.fixture
def positions(store: PostgresStore) -> Positions:
    def read() -> dict[int, int]:
        record = store.record(JOB)
        assert record is not None
        state = InputState.from_bytes("orders", record.offsets["orders"])
        return {ref.partition: offset for ref, offset in state.positions.items()}

    return read


@pytest.mark.services
def test_a_dry_run_tells_and_changes_nothing(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord, topic: str
) -> None:
    before = store.record(JOB)
    ended = joinery("state", "reset", written, "--input", "orders", "--to", "earliest", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[1] == [f"{topic}-0", "15", "0", "15", "read", "again", "0", "to", "20"]
    assert lines[2] == [f"{topic}-1", "5", "0", "5", "read", "again", "0", "to", "10"]
    assert "does not go back (1970-01-01T00:00:05.000Z)" in ended.out
    assert ended.out.splitlines()[-1] == "Dry run: nothing was changed."
    assert store.record(JOB) == before
    run_epoch(store, started, 2)  # the driver goes on


@pytest.mark.services
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to", "earliest"), {0: 0, 1: 0}),
        (("--to", "latest"), {0: 20, 1: 10}),
        (("--to-time", "1970-01-01T00:00:07.5Z"), {0: 7, 1: 7}),
        (("--to-time", "12000"), {0: 11, 1: 10}),
        (("--to-offset", "0=15", "1=9"), {0: 15, 1: 9}),
        (("--to-offset", "{topic}:0=3"), {0: 3, 1: 5}),
        (("--to-offset", "0=20", "--to-offset", "1=0"), {0: 20, 1: 0}),
    ],
)
def test_the_input_is_read_on_from_there(
    joinery: Joinery,
    written: Path,
    store: PostgresStore,
    started: JobRecord,
    positions: Positions,
    topic: str,
    arguments: tuple[str, ...],
    expected: dict[int, int],
) -> None:
    before = store.record(JOB)
    ended = joinery("state", "reset", written, "--input", "orders", *(a.format(topic=topic) for a in arguments))
    assert (ended.code, ended.err) == (0, "")
    assert "has been fenced" in ended.out.splitlines()[-1]
    assert positions() == expected
    after = store.record(JOB)
    assert before is not None
    assert after is not None
    state = InputState.from_bytes("orders", after.offsets["orders"])
    assert (state.progress, state.stops) == (PROGRESS, {PartitionRef("orders", topic, 0): 99})
    assert after.offsets["payments"] == before.offsets["payments"]
    assert (after.generation, after.epoch, after.segments) == (before.generation + 1, 1, before.segments)
    with pytest.raises(Fenced):
        store.commit(JOB, started.generation, commit_of(2))


@pytest.mark.services
def test_nothing_to_change_fences_nobody(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord
) -> None:
    before = store.record(JOB)
    ended = joinery("state", "reset", written, "--input", "orders", "--to-offset", "0=15")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "Nothing to change.")
    assert store.record(JOB) == before


@pytest.mark.services
def test_what_the_broker_does_not_have_is_refused(
    joinery: Joinery, kafka_broker: KafkaAdmin, written: Path, store: PostgresStore, started: JobRecord, topic: str
) -> None:
    kafka_broker.delete_records(topic, 0, 4)
    before = store.record(JOB)
    for offset in (3, 21):
        ended = joinery("state", "reset", written, "--input", "orders", "--to-offset", f"0={offset}", "--drop-planned")
        assert ended.code == 1
        assert f"{topic}-0 cannot be read from offset {offset}: the broker has offsets 4 to 20" in ended.err
    assert store.record(JOB) == before


@pytest.mark.services
@pytest.mark.parametrize("dry_run", [True, False])
def test_under_a_pending_plan_it_is_refused_unless_it_is_dropped(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord, positions: Positions, dry_run: bool
) -> None:
    store.write_plan(JOB, started.generation, {"epoch": 2}, DEFINITION)
    before = store.record(JOB)
    command = ("state", "reset", written, "--input", "orders", "--to", "earliest", *(["--dry-run"] if dry_run else []))
    ended = joinery(*command)
    assert ended.code == 1
    assert f"Epoch 2 of job {JOB} is planned and not committed" in ended.err
    assert "stop it with SIGTERM" in ended.err
    assert "--drop-planned" in ended.err
    assert store.record(JOB) == before
    dropped = joinery(*command, "--drop-planned")
    assert dropped.code == 0
    assert "The plan of epoch 2 is dropped: rows of it may repeat in a Kafka output." in dropped.out
    after = store.record(JOB)
    assert after is not None
    if dry_run:
        assert after == before
    else:
        assert (after.plan, after.epoch, positions()) == (None, 2, {0: 0, 1: 0})


@pytest.mark.services
def test_a_plan_is_dropped_where_the_offsets_stay(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord, positions: Positions
) -> None:
    store.write_plan(JOB, started.generation, {"epoch": 2}, DEFINITION)
    command = ("state", "reset", written, "--input", "orders", "--to-offset", "0=15", "--drop-planned")
    assert joinery(*command).code == 0
    after = store.record(JOB)
    assert after is not None
    assert (after.plan, after.epoch, positions()) == (None, 2, {0: 15, 1: 5})


@pytest.mark.services
def test_a_topic_that_was_recreated_can_be_read_on(
    joinery: Joinery, kafka_broker: KafkaAdmin, written: Path, store: PostgresStore, topic: str
) -> None:
    record, ref = store.acquire(JOB), PartitionRef("orders", topic, 0)
    state = InputState({ref: 500}, PROGRESS, {}, {topic: "the id of the topic before it"})
    run_epoch(store, record, 1, offsets={"orders": state.to_bytes()})
    assert joinery("state", "reset", written, "--input", "orders", "--to", "earliest").code == 0
    after = store.record(JOB)
    assert after is not None
    reset = InputState.from_bytes("orders", after.offsets["orders"])
    assert reset.positions == {ref: 0, PartitionRef("orders", topic, 1): 0}
    assert reset.topic_ids[topic] not in ("", state.topic_ids[topic])
    again = joinery("state", "reset", written, "--input", "orders", "--to-offset", "0=1")  # no longer as a whole
    assert (again.code, again.err) == (0, "")


@pytest.mark.services
def test_of_a_pattern_the_topics_that_were_read_are_set(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path, store: PostgresStore, topic: str
) -> None:
    other = f"{topic}-more"
    kafka_broker.create_topic(other, 1)
    never_read = PartitionRef("orders", other, 0)
    path = write_job(postgres_dsn, kafka_broker, tmp_path, f'topicPattern: "{topic}.*"')
    command = ("state", "reset", path, "--input", "orders", "--to-offset")
    run_epoch(store, store.acquire(JOB), 1, offsets={"orders": InputState({}).to_bytes()})
    early = joinery(*command, f"{topic}:0=3")
    assert (early.code, "it has read no topic yet" in early.err, "history" in early.err) == (1, True, False)
    stored = InputState({PartitionRef("orders", topic, 0): 15, never_read: 0})
    run_epoch(store, store.acquire(JOB), 2, offsets={"orders": stored.to_bytes()})
    unnamed = joinery(*command, "0=3")
    assert unnamed.code == 1
    assert f"the input has {topic}, {other}" in unnamed.err
    assert joinery(*command, f"{topic}:0=3").code == 0
    after = store.record(JOB)
    assert after is not None
    reset = InputState.from_bytes("orders", after.offsets["orders"])
    assert reset.positions == {PartitionRef("orders", topic, 0): 3, never_read: 0}


@pytest.mark.services
def test_before_the_seam_of_a_history_the_topic_s_offsets_are_set_and_the_files_keep_theirs(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path, store: PostgresStore, topic: str
) -> None:
    """No broker is asked for a topic with the name of a file."""
    file = PartitionRef("orders", "/history/orders.jsonl", 0)
    run_epoch(store, store.acquire(JOB), 1, offsets={"orders": InputState({file: 700}).to_bytes()})
    command = ("state", "reset", tmp_path / "job.yaml", "--input", "orders", "--to", "latest")
    write_job(postgres_dsn, kafka_broker, tmp_path, f'topicPattern: "{topic}.*"')
    early = joinery(*command)
    assert early.code == 1
    assert "it has read files of its history, and no topic yet" in early.err
    write_job(postgres_dsn, kafka_broker, tmp_path, f"topic: {topic}")
    done = joinery(*command)
    assert (done.code, "/history" in done.out) == (0, False)
    after = store.record(JOB)
    assert after is not None
    ends = {PartitionRef("orders", topic, 0): 20, PartitionRef("orders", topic, 1): 10}
    assert InputState.from_bytes("orders", after.offsets["orders"]).positions == {file: 700, **ends}


@pytest.mark.services
def test_inputs_that_have_no_offsets_to_set(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord
) -> None:
    unknown = joinery("state", "reset", written, "--input", "rates", "--to", "earliest")
    assert (unknown.code, unknown.out) == (1, "")
    assert f"Job {JOB} has no input rates: it has orders, payments" in unknown.err
    text = written.read_text().replace(
        "kafka:\n        bootstrapServers: kafka:9092\n        topic: payments", "file: {path: p.jsonl}"
    )
    written.write_text(text)
    file = joinery("state", "reset", written, "--input", "payments", "--to", "earliest")
    assert (file.code, file.out) == (1, "")
    assert "only the offsets of Kafka inputs can be reset" in file.err


@pytest.mark.services
def test_the_plan_of_the_first_epoch_can_be_given_up(
    joinery: Joinery, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path, store: PostgresStore, topic: str
) -> None:
    """It may be one that no restart can run to its end; nothing is committed yet."""
    plan = EpochPlan(1, 2, (Range(PartitionRef("orders", topic, 0), 5, 20),), {"orders": None, "payments": None})
    store.write_plan(JOB, store.acquire(JOB).generation, plan.to_json(), {})
    command = ("state", "reset", write_job(postgres_dsn, kafka_broker, tmp_path, f"topic: {topic}"))
    refused = joinery(*command, "--input", "orders", "--to", "earliest")
    assert refused.code == 1
    assert "--drop-planned gives the plan of epoch 1 up" in refused.err
    assert joinery(*command, "--input", "orders", "--to", "earliest", "--drop-planned").code == 0
    after = store.record(JOB)
    assert after is not None
    assert (after.plan, after.epoch) == (None, 1)
    reset = InputState.from_bytes("orders", after.offsets["orders"])
    assert reset.positions == {PartitionRef("orders", topic, partition): 0 for partition in (0, 1)}


@pytest.mark.services
def test_a_plan_is_dropped_alone_whatever_the_inputs_are(
    joinery: Joinery, written: Path, store: PostgresStore, started: JobRecord
) -> None:
    """Also of a job of files, whose inputs have no offsets to set."""
    written.write_text(
        re.sub(r"kafka:\n( +)bootstrapServers: \S+\n +topic: \S+", r"file: {path: x.jsonl}", written.read_text())
    )
    command = ("state", "reset", written, "--drop-planned")
    assert joinery(*command).out.splitlines()[-1] == "Nothing to change: no epoch is planned."
    store.write_plan(JOB, started.generation, {"epoch": 2}, DEFINITION)
    before = store.record(JOB)
    dry = joinery(*command, "--dry-run")
    assert dry.out.splitlines() == [
        "The plan of epoch 2 is dropped: rows of it may repeat in a Kafka output.",
        "Dry run: nothing was changed.",
    ]
    assert store.record(JOB) == before
    ended = joinery(*command)
    assert (ended.code, ended.err) == (0, "")
    record = store.record(JOB)
    assert record is not None
    assert before is not None
    assert (record.plan, record.offsets) == (None, before.offsets)
    with pytest.raises(Fenced):
        store.commit(JOB, started.generation, commit_of(2))


@pytest.mark.services
def test_a_job_that_never_ran(joinery: Joinery, written: Path, store: PostgresStore) -> None:
    ended = joinery("state", "reset", written, "--input", "orders", "--to", "latest")
    assert (ended.code, ended.out) == (1, "")
    assert f"the state store knows no job {JOB}" in ended.err
    store.acquire(JOB)
    ended = joinery("state", "reset", written, "--input", "orders", "--to", "latest")
    assert ended.code == 1
    assert f"Job {JOB} has no stored offsets of input orders" in ended.err
