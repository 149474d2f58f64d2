"""Exactly-once Kafka output against a real broker: attempts, zombies and takeovers of one shard."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
import stamina
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.rows import INCARNATION, attempt, recovery
from joinery_devkit.kafka import KafkaBroker
from joinery_runtime.connectors.kafka import transactions as kafka_transactions
from joinery_runtime.connectors.kafka.errors import LastError
from joinery_runtime.connectors.kafka.markers import EpochMarker, EpochMarkerReader
from joinery_runtime.connectors.kafka.producers import OwningProducer, Producers
from joinery_runtime.connectors.kafka.records import Records, Texts
from joinery_runtime.connectors.kafka.target import ANSWER_SECONDS, KafkaTarget, RecordLimit
from joinery_runtime.connectors.kafka.transactions import (
    KafkaTransactionsSink,
    KafkaTransactionsWriter,
    PartNames,
    PartWrite,
    take_over,
)
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA, Attempt, Receipt
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.engine.messages import TRANSACTION_POINTS
from joinery_runtime.engine.output_limit import OutputLimit
from joinery_runtime.errors import (
    Fenced,
    OutputUnavailable,
    RecordTooLarge,
    SinkError,
    Superseded,
    WrittenWithOtherLimit,
)
from joinery_runtime.job.model.outputs import ONLY_OUTPUT

pytestmark = pytest.mark.services
_names = (f"exact-{number}" for number in count())
PATIENCE = 120.0


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


@dataclass
class Output:
    """A topic of one partition, the job that writes it, and the claims of its newest driver's pending epoch."""

    servers: str
    topic: str
    job: str
    dead_letters: bool = False
    generation: int = 1
    claims: dict[str, str] = field(default_factory=dict)
    target: KafkaTarget = field(init=False)
    names: PartNames = field(init=False)

    def __post_init__(self) -> None:
        self.target, self.names = KafkaTarget(self.topic, self.servers), PartNames(self.job, self.dead_letters)

    @property
    def name(self) -> str:
        """Of its first shard."""
        return self.names.of(0, INCARNATION)

    @property
    def sink(self) -> KafkaTransactionsSink:
        return KafkaTransactionsSink(self.target, self.names)

    def attempt(self, epoch: int = 1, generation: int = 1, **about: Any) -> Attempt:
        def claim(name: str, owner: str, replacing: str | None) -> str | None:
            if generation != self.generation:
                raise Fenced(f"generation {self.generation} owns the job")
            fresh = name not in self.claims
            if fresh or self.claims[name] == replacing:
                self.claims[name] = owner
            return None if fresh else self.claims[name]

        return attempt(epoch=epoch, generation=generation, claim=claim, **about)

    def commit(self) -> None:
        """The epoch is over."""
        self.claims.clear()

    def take_over(self, **fields: Any) -> None:
        """A newer driver recovers."""
        self.generation += 1
        self.sink.recover(recovery(self.generation, claims=dict(self.claims), **fields))
        self.claims = dict.fromkeys(self.claims, "")

    def write(self, trial: Attempt, table: pa.Table, process: Producers | None = None) -> Receipt:
        """`process`: the producers of the worker process that the attempt runs in; None: a new one's."""
        return PartWrite(self.target, self.names, trial, table, process or Producers()).run()

    def write_epoch(self, epoch: int, table: pa.Table, process: Producers | None = None) -> Receipt:
        receipt = self.write(self.attempt(epoch), table, process)
        self.commit()
        return receipt

    def mark(self, shard: int = 0) -> EpochMarker | None:
        return EpochMarkerReader(self.target).newest(self.names.of(shard, INCARNATION))

    def visible(self) -> list[Any]:
        """What a `read_committed` consumer has seen when it is at the end: no transaction is left open there."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        reader = Consumer({"bootstrap.servers": self.servers, "group.id": "x", "isolation.level": "read_uncommitted"})
        end = reader.get_watermark_offsets(TopicPartition(self.topic, 0), 10)[1]
        reader.close()
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        values: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while consumer.position([TopicPartition(self.topic, 0)])[0].offset < end:
            assert time.monotonic() < deadline, "a transaction holds readers back"
            values += [json.loads(m.value())["n"] for m in consumer.consume(1000, 0.1) if not m.error()]
            if not end:
                break
        consumer.close()
        return sorted(values)


@pytest.fixture
def output(kafka_broker) -> Output:
    name = next(_names)
    kafka_broker.create_topic(name)
    return Output(kafka_broker.bootstrap, name, f"job-{name}")


class Pause:
    """Holds an attempt at one point until it is let go."""

    def __init__(self, point: str) -> None:
        self._point, self._reached, self._go = point, threading.Event(), threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._reached.set()
            assert self._go.wait(PATIENCE)

    def wait(self) -> None:
        assert self._reached.wait(PATIENCE)

    def release(self) -> None:
        self._go.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def forget_nothing(future: Future[Receipt]) -> Receipt | BaseException:
    error = future.exception(PATIENCE)
    return error if error is not None else future.result()


# --- one attempt after the other ------------------------------------------------------------------------------------


def test_rows_and_mark_go_together_and_only_once(output) -> None:
    output.sink.prepare(rows(1).schema)
    writer = pickle.loads(pickle.dumps(output.sink.writer()))
    assert writer.write(output.attempt(7), rows(1, 2)) == {"attempt": "1-7-0-a", "rows": 2}
    assert output.visible() == [1, 2]
    mark = output.mark()
    assert mark is not None
    assert (mark.epoch, mark.incarnation, mark.generation) == (7, INCARNATION, 1)
    output.take_over(pending=7, pending_shards=1)
    again = writer.write(output.attempt(7, name="b", generation=2), rows(1, 2))
    assert again == {"attempt": "2-7-0-b", "rows": 2, "repeated": True}
    assert output.write(output.attempt(7, name="c", generation=2), rows(1, 2))["repeated"]
    output.commit()
    writer.write(output.attempt(8, generation=2), rows(3))
    assert output.visible() == [1, 2, 3]


def test_shards_have_marks_of_their_own(output) -> None:
    writer = output.sink.writer()
    for shard in range(3):
        writer.write(output.attempt(shard=shard), rows(shard))
    assert output.visible() == [0, 1, 2]
    assert all(output.write(output.attempt(shard=shard, name="b"), rows(shard))["repeated"] for shard in range(3))


def test_many_rows_arrive_once_and_in_order(output) -> None:
    small = KafkaTarget(output.topic, output.servers, properties={"queue.buffering.max.messages": "1000"})
    KafkaTransactionsSink(small, output.names).writer().write(output.attempt(), rows(*range(25_000)))
    assert output.visible() == list(range(25_000))


def test_another_lineage_s_mark_does_not_count(output) -> None:
    output.write(output.attempt(5, incarnation="of a store that was lost"), rows(1))
    output.commit()
    output.write(output.attempt(2), rows(2))
    assert output.visible() == [1, 2]
    assert output.mark().epoch == 2


def test_an_attempt_of_an_epoch_that_is_over(output) -> None:
    output.write_epoch(5, rows(5))
    output.claims[output.name] = ""
    with pytest.raises(Fenced, match=rf"Epoch 4 is over: output topic {output.topic} has epoch 5 of {output.name}"):
        output.write(output.attempt(4), rows(4))
    assert output.visible() == [5]


def test_an_attempt_of_an_older_driver_writes_nothing(output) -> None:
    output.take_over()
    with pytest.raises(Fenced):
        output.write(output.attempt(), rows(1))
    assert (output.visible(), output.mark()) == ([], None)


def test_rows_that_the_broker_refuses_and_writing_after_that(kafka_broker) -> None:
    name = next(_names)
    kafka_broker.create_topic(name, config={"max.message.bytes": "2000"})
    output, process = Output(kafka_broker.bootstrap, name, f"job-{name}"), Producers()
    output.write_epoch(1, rows(1), process)
    limits = r"Raise max\.message\.bytes of the topic, and message\.max\.bytes under kafka\.properties"
    with pytest.raises(SinkError, match=rf"Output topic {name}: rows were not written: .*too large.*{limits}"):
        output.write(output.attempt(2), pa.table({"n": ["x" * 10_000]}), process)
    assert output.visible() == [1]
    output.write(output.attempt(2, name="b"), rows(2), process)
    assert output.visible() == [1, 2]


class RefusedWhileTheMarkerIsSent:
    """A client whose rows are refused between the two requests that send a marker: its call then says no more than
    "Erroneous state"."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def send_offset(self, *_: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self) and time.monotonic() < deadline:
            self._producer.poll(0.05)
        raise KafkaException(KafkaError(KafkaError._STATE, txn_requires_abort=True))


def test_a_refusal_while_the_marker_is_sent_is_named(kafka_broker) -> None:
    name = next(_names)
    kafka_broker.create_topic(name, config={"max.message.bytes": "2000"})
    producer = OwningProducer(KafkaTarget(name, kafka_broker.bootstrap), f"job-{name}")
    producer._producer = RefusedWhileTheMarkerIsSent(producer._producer)
    producer.begin()
    with pytest.raises(SinkError, match=rf"Output topic {name}: rows were not written: .*too large"):
        producer.send(name, [Records(Texts.of_list([b"x" * 10_000]))], f"job-{name}-0", EpochMarker(1, INCARNATION, 1))


def test_a_shard_that_moves_between_workers_to_and_fro_keeps_both_producers(output) -> None:
    workers = [Producers(), Producers()]
    owners = set()
    for epoch in range(1, 9):
        assert "repeated" not in output.write(output.attempt(epoch), rows(epoch), workers[epoch % 2])
        owners |= set(output.claims.values())
        output.commit()
    assert len(owners) == 2
    assert output.visible() == list(range(1, 9))


def test_shards_that_are_written_at_once_keep_a_producer_each(output) -> None:
    """To initialise an id takes a tenth of a second: each epoch would begin with that."""
    here = Producers()
    producers = [OwningProducer(output.target, f"{output.names.job}-{n}") for n in range(2)]
    for _ in range(3):
        for producer in producers:
            here.put(output.target, output.names.job, producer)
        assert {here.take(output.target, output.names.job) for _ in producers} == set(producers)
        assert here.take(output.target, output.names.job) is None


def test_a_task_that_runs_again_in_its_worker_and_in_another(output) -> None:
    here = Producers()
    output.write(output.attempt(), rows(1), here)
    assert output.write(output.attempt(name="again"), rows(1), here)["repeated"]
    assert output.write(output.attempt(name="elsewhere"), rows(1))["repeated"]
    output.commit()
    output.write_epoch(2, rows(2), here)
    assert output.visible() == [1, 2]


def test_a_kept_producer_whose_id_was_taken_over(output) -> None:
    here = Producers()
    output.write(output.attempt(), rows(1), here)
    output.take_over(pending=1, pending_shards=1)
    assert output.write(output.attempt(2, generation=2), rows(2), here) == {"attempt": "2-2-0-a", "rows": 1}
    assert output.visible() == [1, 2]


# --- row limits that brokers have shown -----------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(200, 100), (100, 200), (None, 100), (100, None)])
def test_the_row_limit_of_the_attempt_that_wrote_the_rows_wins(output, first: int | None, second: int | None) -> None:
    """The topic's own limit was raised or lowered between the two attempts."""

    def row_limits(limit: int | None) -> dict[str, int]:
        return {} if limit is None else {ONLY_OUTPUT: limit}

    writer = KafkaTransactionsWriter(output.target, output.names)
    writer.write(replace(output.attempt(), row_limits=row_limits(first)), rows(1, 2))
    with pytest.raises(WrittenWithOtherLimit) as caught:
        writer.write(replace(output.attempt(name="b"), row_limits=row_limits(second)), rows(1))
    assert caught.value.row_limit == first

    step: Any = None  # only dead letters need it
    limit = OutputLimit(RecordLimit(output.target, ONLY_OUTPUT), step, row_limits(second))
    receipt = limit.write(writer, output.attempt(name="c"), rows(1, 2))
    assert receipt == {"attempt": "1-1-0-c", "rows": 2, "repeated": True}
    assert limit.by_answers == row_limits(first)
    assert output.visible() == [1, 2]


def test_rows_that_were_left_out_need_dead_letters(output) -> None:
    output.write(replace(output.attempt(), row_limits={ONLY_OUTPUT: 100}), rows(1))
    with pytest.raises(RecordTooLarge, match=r"more than 100 bytes\. Name spec\.deadLetter again"):
        output.write(output.attempt(name="b"), rows(1))


# --- crashes --------------------------------------------------------------------------------------------------------

CRASH = """
    import os, signal, sys
    import pyarrow as pa
    from joinery_runtime.connectors.sink import Attempt, AttemptId
    from joinery_runtime.connectors.kafka.target import ANSWER_SECONDS, KafkaTarget
    from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsWriter, PartNames

    def claim(name, owner, replacing):
        print(owner, flush=True)
        return owner

    servers, topic, job, incarnation, point = sys.argv[1:]
    die = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
    writer = KafkaTransactionsWriter(KafkaTarget(topic, servers), PartNames(job))
    writer.write(Attempt(AttemptId(1, 1, 0, "dies"), incarnation, claim, die), pa.table({"n": [1, 2]}))
"""


@pytest.mark.parametrize("taken_over", [False, True], ids=["tried again", "newer driver"])
@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_a_worker_that_is_killed_in_the_transaction(output, point, taken_over) -> None:
    arguments = [output.servers, output.topic, output.job, INCARNATION, point]
    command = [sys.executable, "-c", textwrap.dedent(CRASH), *arguments]
    died = subprocess.run(command, check=False, timeout=PATIENCE, stdout=subprocess.PIPE, text=True)
    assert died.returncode == -signal.SIGKILL
    output.claims[output.name] = died.stdout.strip()
    if taken_over:
        output.take_over(pending=1, pending_shards=1)
    receipt = output.write(output.attempt(name="next", generation=output.generation), rows(1, 2))
    assert receipt.get("repeated", False) == (point == "transaction-committed")
    assert output.visible() == [1, 2]


def test_a_commit_whose_outcome_is_unknown(monkeypatch) -> None:
    """The broker, one of this test's own, gets the commit and stops before it answers."""
    with KafkaBroker() as broker:
        broker.create_topic("output")
        output, here = Output(broker.bootstrap, "output", "job"), Producers()
        # A client's first transaction on a new broker may not come back (see `_repeat`); the epoch is run again then.
        for trial in stamina.retry_context(on=OutputUnavailable, attempts=10, timeout=None):
            with trial:
                output.write_epoch(1, rows(0), here)

        def freeze(point: str) -> None:
            if point == "transaction-sent":
                monkeypatch.setattr("joinery_runtime.connectors.kafka.target.DELIVERY_SECONDS", 0.5)
                monkeypatch.setattr("joinery_runtime.connectors.kafka.producers._CALL_SECONDS", 0.5)
                os.kill(broker.pid, signal.SIGSTOP)
                # On a busy machine its threads go on for a moment, and one of them might answer.
                os.waitid(os.P_PID, broker.pid, os.WSTOPPED)

        try:
            with pytest.raises(OutputUnavailable, match="it is not known whether the rows were written"):
                output.write(output.attempt(2, reach=freeze), rows(1), here)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            monkeypatch.undo()
        # The controller, in the same process, may take the broker that was stopped for a dead one at first.
        for trial in stamina.retry_context(on=OutputUnavailable, attempts=10, timeout=None):
            with trial:
                output.write(output.attempt(2, name="b"), rows(1), here)
        assert output.visible() == [0, 1]


# --- zombies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
@pytest.mark.parametrize("wrote_before", [False, True], ids=["new producer", "kept producer"])
def test_a_paused_attempt_and_its_sibling(output, threads, point, wrote_before) -> None:
    here, pause = Producers(), Pause(point)
    if wrote_before:
        output.write_epoch(1, rows(0), here)
    paused = threads.submit(output.write, output.attempt(2, name="slow", reach=pause), rows(1, 2), here)
    pause.wait()
    sibling = output.write(output.attempt(2, name="fast"), rows(1, 2))
    assert sibling.get("repeated", False) == (point == "transaction-committed")
    pause.release()
    assert paused.result(PATIENCE).get("repeated", False) == (point != "transaction-committed")
    assert output.visible() == [0] * wrote_before + [1, 2]


def test_a_newer_driver_prepares_while_a_transaction_is_open(output, threads) -> None:
    """It would wait for ever: only what it does after that ends the transaction."""
    pause = Pause("transaction-sent")
    paused = threads.submit(output.write, output.attempt(1, reach=pause), rows(1))
    pause.wait()
    prepared = threads.submit(output.sink.prepare, rows(1).schema)
    try:
        prepared.result(ANSWER_SECONDS / 2)
    finally:
        pause.release()
        paused.result(PATIENCE)


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_a_paused_attempt_and_a_newer_driver(output, threads, point) -> None:
    """The newer driver replays the plan, with other rows so that one can tell whose they are."""
    pause = Pause(point)
    zombie = threads.submit(output.write, output.attempt(reach=pause), rows(1))
    pause.wait()
    output.take_over(pending=1, pending_shards=1)
    replayed = output.write(output.attempt(generation=2), rows(2))
    pause.release()
    outcome = forget_nothing(zombie)
    if point == "transaction-committed":
        assert (replayed["repeated"], output.visible()) == (True, [1])
    else:
        assert isinstance(outcome, dict)
        assert outcome["repeated"], "it wrote nothing, and finds that another one has"
        assert output.visible() == [2]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_a_takeover_fences_the_attempts_of_every_older_shard_count(output, threads, before, after) -> None:
    pauses = [Pause("transaction-sent") for _ in range(before)]
    zombies = [
        threads.submit(output.write, output.attempt(shard=shard, reach=pause), rows(shard))
        for shard, pause in enumerate(pauses)
    ]
    for pause in pauses:
        pause.wait()
    output.take_over()
    for shard in range(after):
        output.write(output.attempt(2, generation=2, shard=shard), rows(100 + shard))
    for pause in pauses:
        pause.release()
    assert output.visible() == [100 + shard for shard in range(after)]
    assert all(isinstance(forget_nothing(zombie), Fenced | Superseded) for zombie in zombies)


def test_a_sibling_that_takes_over_and_never_writes(output, monkeypatch) -> None:
    monkeypatch.setattr(kafka_transactions, "_SUCCESSOR_SECONDS", 0.2)

    def take_over_after_send(point: str) -> None:
        if point == "transaction-sent":
            take_over(output.target, output.claims[output.name])

    with pytest.raises(Superseded, match=rf"Output topic {output.topic}: another attempt took {output.name} over"):
        output.write(output.attempt(reach=take_over_after_send), rows(1))
    output.write(output.attempt(name="again"), rows(1))
    assert output.visible() == [1]


def test_attempts_that_keep_taking_it_from_one_another(output) -> None:
    other_claims = (f"{output.job}-other-{number}" for number in count())
    with pytest.raises(Superseded, match="keep taking it from one another"):
        output.write(attempt(claim=lambda *_: next(other_claims)), rows(1))
    assert output.visible() == []


# --- takeovers ------------------------------------------------------------------------------------------------------

WEEKS = 15 * 24 * 3_600_000  # milliseconds; the test's broker keeps marks for 7 days


def test_markers_that_may_have_expired(output) -> None:
    output.write_epoch(3, rows(1))
    lost = "of a store that was lost"
    output.write(output.attempt(3, shard=1, incarnation=lost), rows(1))
    owner = output.claims.pop(output.names.of(1, lost))
    output.claims |= {output.name: owner, output.names.of(1, INCARNATION): owner}
    old = {"pending": 3, "pending_shards": 3, "pending_for_ms": WEEKS}
    claims = dict(output.claims)
    with pytest.raises(SinkError) as refused:
        output.take_over(**old)
    text = str(refused.value)
    assert f"Output topic {output.topic}: it is unknown whether epoch 3 was written" in text
    assert (
        f"360 h old, the brokers keep markers for 168 h, and there is none for {output.names.of(1, INCARNATION)}"
        in text
    )
    assert output.name not in text, "any marker of ours shows that the shard's has not expired"
    assert output.names.of(2, INCARNATION) not in text, "nobody claimed it"
    assert "delivery: atLeastOnce" in text
    output.claims = claims
    output.take_over(**{**old, "pending_for_ms": 6 * 24 * 3_600_000})


def test_a_state_that_was_set_back(output) -> None:
    output.write_epoch(5, rows(1))
    output.take_over(committed_epoch=5, shards=1)
    with pytest.raises(SinkError, match=rf"{output.topic} is ahead of the state: it has epoch 5 of {output.name}, the"):
        output.take_over(committed_epoch=3, shards=1, pending=4, pending_shards=1)
    with pytest.raises(SinkError, match="is ahead of the state"):
        output.take_over(committed_epoch=4, shards=1, pending=5, pending_shards=1)
    output.claims[output.name] = ""
    output.take_over(committed_epoch=4, shards=1, pending=5, pending_shards=1)


def test_dead_letters_are_one_part_for_all_shard_counts(kafka_broker, threads) -> None:
    name = next(_names)
    kafka_broker.create_topic(name)
    output, pause = Output(kafka_broker.bootstrap, name, f"job-{name}", dead_letters=True), Pause("transaction-sent")
    dead = [f"job-{name}-astoresjob-dead", f"job-{name}-dead"]
    assert (output.names.below(0, INCARNATION), output.names.below(3, INCARNATION)) == ([], dead)
    output.sink.prepare(DEAD_LETTER_SCHEMA)
    zombie = threads.submit(output.write, output.attempt(shard=8, reach=pause), rows(1))
    pause.wait()
    output.take_over(pending=1, pending_shards=8)
    output.write(output.attempt(shard=3, generation=2), rows(2))
    pause.release()
    assert forget_nothing(zombie)["repeated"]
    assert output.visible() == [2]


# --- jobs of one name, and earlier releases ---------------------------------------------------------------------------


def test_jobs_of_one_name_with_different_stores_keep_their_markers_apart(output) -> None:
    """Each one's crash after the other's transaction finds its own rows, and repeats nothing."""
    other = Output(output.servers, output.topic, output.job)
    output.write(output.attempt(1), rows(1))
    other.write(other.attempt(1, incarnation="another life"), rows(10))
    output.take_over(pending=1, pending_shards=1)
    other.take_over(pending=1, pending_shards=1, incarnation="another life")
    assert output.write(output.attempt(1, generation=2), rows(1))["repeated"]
    assert other.write(other.attempt(1, generation=2, incarnation="another life"), rows(10))["repeated"]
    assert output.visible() == [1, 10]


def test_the_job_that_signed_first_learns_which_store_the_other_one_has(output) -> None:
    """Without its password: the place is what the store says of itself."""
    here, other_store = StoreIdentity("here", "host a, database s"), StoreIdentity("there", "host b, database s")
    first, second = output.sink, output.sink
    first.recover(recovery(1, store=here))
    assert first.other_store() is None
    output.sink.recover(recovery(2, store=StoreIdentity("here", "host a by another name, database s")))
    assert first.other_store() is None, "a newer driver of the same job"
    second.recover(recovery(1, store=other_store))
    assert (first.other_store(), second.other_store()) == (other_store, None)


def test_dead_letters_are_not_signed(kafka_broker) -> None:
    """A topic of dead letters may be many jobs'."""
    name = next(_names)
    kafka_broker.create_topic(name)
    sink = KafkaTransactionsSink(KafkaTarget(name, kafka_broker.bootstrap), PartNames("job", dead_letters=True))
    sink.recover(recovery())
    sink.recover(recovery(store=StoreIdentity("there", "elsewhere")))
    assert sink.other_store() is None
    assert EpochMarkerReader(sink.writer().target).signed("job-driver") is None


class FormerNames(PartNames):
    """As releases before the life was part of a name."""

    def of(self, shard: int, incarnation: str) -> str:
        return self.former_name(shard)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_an_epoch_that_an_earlier_release_wrote_is_not_written_again(kafka_broker, dead_letters: bool) -> None:
    """It was planned and written before the upgrade, and is replayed after it; another part of it was not written. That
    part has its former name too: the earlier release may be rolled back to, and replay the same plan."""
    name = next(_names)
    kafka_broker.create_topic(name)
    output = Output(kafka_broker.bootstrap, name, f"job-{name}", dead_letters)
    earlier = Output(kafka_broker.bootstrap, name, f"job-{name}", claims=output.claims)
    earlier.names = FormerNames(earlier.job, dead_letters)
    earlier.write(earlier.attempt(7), rows(1))
    assert set(output.claims) == {output.names.former_name(0)}
    assert output.sink.recover(recovery(2, 6, claims=dict(output.claims), pending=7, pending_shards=2))
    output.take_over(pending=7, pending_shards=2, committed_epoch=6)
    receipt = output.write(output.attempt(7, generation=2, former_names=True), rows(1))
    assert receipt["repeated"]
    assert output.visible() == [1]
    if not dead_letters:
        output.write(output.attempt(7, generation=2, former_names=True, shard=1), rows(2))
        assert set(output.claims) == {output.names.former_name(0), output.names.former_name(1)}
    output.commit()
    output.write(output.attempt(8, generation=2), rows(8))
    assert output.mark().epoch == 8, "from the next epoch on under the new name"


def test_state_that_is_older_than_what_an_earlier_release_wrote_is_refused(output) -> None:
    earlier = Output(output.servers, output.topic, output.job)
    earlier.names = FormerNames(earlier.job)
    earlier.write_epoch(9, rows(9))
    with pytest.raises(SinkError, match=rf"ahead of the state: it has epoch 9 of {output.job}-0"):
        output.take_over(committed_epoch=8, shards=1)


def test_output_and_dead_letters_tell_their_claims_apart() -> None:
    output, dead = PartNames("job"), PartNames("job", dead_letters=True)
    assert [output.owns(name) for name in ("job-a1b2-0", "job-a1b2-dead", "job-dead")] == [True, False, False]
    assert [dead.owns(name) for name in ("job-a1b2-0", "job-a1b2-dead", "job-dead")] == [False, True, True]


def test_no_broker(monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.target.ANSWER_SECONDS", 3.0)
    monkeypatch.setattr("joinery_runtime.connectors.kafka.target.DELIVERY_SECONDS", 1.0)
    sink = KafkaTransactionsSink(KafkaTarget("any", "127.0.0.1:1"), PartNames("j"))
    with pytest.raises(OutputUnavailable, match=r"does not answer: waited 3 s; .*Connection refused"):
        sink.prepare(rows(1).schema)
    with pytest.raises(
        OutputUnavailable, match=r"no transaction can be begun: transactional id j-[0-9a-f]{12}: .*refused"
    ):
        sink.writer().write(attempt(), rows(1))


def test_a_missing_topic(kafka_broker) -> None:
    with pytest.raises(SinkError, match="Output topic nowhere: it does not exist"):
        Output(kafka_broker.bootstrap, "nowhere", "j").sink.prepare(rows(1).schema)


def test_a_producer_goes_on_when_its_brokers_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has asked for the group's coordinator before. librdkafka forgets brokers that are all down, unless it is told
    not to, and `send_offsets_to_transaction` then waits for the forgotten one without an end."""
    heard: list[int] = []
    monkeypatch.setattr(LastError, "__call__", lambda _, error: heard.append(error.code()))
    with KafkaBroker(proxied=True) as broker:
        broker.create_topic("output")
        output = Output(broker.proxied_bootstrap, "output", "job")
        # As a driver does: a new broker makes the topics that its coordinators need, and until then the first
        # transaction's calls wait for these.
        output.sink.prepare(rows(1).schema)
        producer = OwningProducer(output.target, "job-1")

        def write(epoch: int) -> None:
            producer.begin()
            producer.send(
                "output", [output.target.records(rows(epoch))], output.name, EpochMarker(epoch, INCARNATION, 1)
            )
            producer.commit()

        write(1)
        broker.cut()
        deadline = time.monotonic() + PATIENCE
        while KafkaError._ALL_BROKERS_DOWN not in heard and time.monotonic() < deadline:
            producer._producer.poll(0.1)
        assert KafkaError._ALL_BROKERS_DOWN in heard
        broker.restore()
        write(2)
        assert output.visible() == [1, 2]
