"""Membership in a consumer group, with real groups, assignors and other members."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.kafka_bench import (
    COOPERATIVE,
    EAGER,
    PATIENCE_SECONDS,
    PlainMember,
    assigned_partitions,
    eventually,
    joined,
    kafka_input,
    planning,
    published,
    ref,
    send,
    unique,
)
from joinery_runtime.connectors.inputs import planner_for, reader_for
from joinery_runtime.connectors.kafka import group as kafka_group
from joinery_runtime.connectors.kafka.group import GroupMember
from joinery_runtime.connectors.kafka.settings import Cluster
from joinery_runtime.connectors.source import Range, StoredOffsets, StoreIdentity
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.engine.plan import InputState
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.errors import Fenced, SourceError
from stores import STORE

pytestmark = pytest.mark.services
SESSION_S = 40  # somewhat less than a broker waits for a member that has gone without a word (45 s)
CLASSIC = pytest.mark.parametrize("properties", [EAGER, COOPERATIVE], ids=["range", "cooperative-sticky"])


@pytest.fixture
def topic(broker) -> str:
    name = unique("group")
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def group() -> str:
    return unique("members")


@pytest.fixture
def make_member(broker, topic, group) -> Iterator[Any]:
    """Makes members that have joined already; all are closed in the end."""
    members = []

    def make(properties: dict[str, str] = EAGER, **options: float) -> GroupMember:
        kafka = kafka_input(broker.bootstrap, topic, properties=properties).kafka
        assert kafka is not None
        members.append(GroupMember(Cluster.of("in", kafka), group, STORE, **options))
        members[-1].follow([topic], {})
        eventually(lambda: members[-1].assigned() == {ref(topic), ref(topic, 1)})
        return members[-1]

    yield make
    for member in members:
        member.close()


class Recording(Consumer):
    """Keeps the offsets that partitions are assigned with. (Another thread could not ask: one at a time may call.)"""

    starts: ClassVar[dict[int, int]] = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.starts.update({topic_partition.partition: topic_partition.offset for topic_partition in partitions})
        super().assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.starts.update({topic_partition.partition: topic_partition.offset for topic_partition in partitions})
        super().incremental_assign(partitions)


@pytest.fixture
def starts(monkeypatch) -> dict[int, int]:
    monkeypatch.setattr(kafka_group, "Consumer", Recording)
    monkeypatch.setattr(Recording, "starts", {})
    return Recording.starts


# --- assignment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [EAGER, COOPERATIVE, {"group.protocol": "consumer"}],
    ids=["range", "cooperative-sticky", "kip-848"],
)
def test_another_member_takes_partitions_and_leaves(broker, topic, properties, monkeypatch) -> None:
    job, answers = unique("job"), Event()

    class Late(Consumer):
        def poll(self, *timeout: float) -> Any:
            assert answers.wait(PATIENCE_SECONDS)
            return super().poll(*timeout)

    monkeypatch.setattr(kafka_group, "Consumer", Late)
    with planning(kafka_input(broker.bootstrap, topic, properties=properties), job) as planner:
        assert not any(bound.is_assigned for bound in planner.bounds(StoredOffsets())), "the group has not answered yet"
        answers.set()
        joined(planner)
        with closing(PlainMember(broker.bootstrap, f"{job}.in", [topic], **properties)) as other:
            other.until(lambda: len(other.partitions) == 1 and len(assigned_partitions(planner)) == 1)
            assert assigned_partitions(planner) | other.partitions == {0, 1}
            assert not planner.pin([ref(topic), ref(topic, 1)])
        joined(planner)
        assert planner.pin([ref(topic), ref(topic, 1)])


@CLASSIC
def test_recovered_offsets_are_set_on_assignment(broker, topic, properties, starts) -> None:
    send(broker.bootstrap, topic, [b"x"] * 5, partition=0)
    send(broker.bootstrap, topic, [b"x"] * 3, partition=1)
    model = kafka_input(broker.bootstrap, topic, startFrom="latest", properties=properties)
    with planning(model) as planner:
        stored_offsets = StoredOffsets({ref(topic): 2, ref(topic, 1): 1})
        joined(planner, stored_offsets)
        assert starts == {0: 2, 1: 1}
    starts.clear()
    with planning(model) as planner:
        joined(planner)
        assert starts == {0: 5, 1: 3}, "startFrom counts where nothing is stored"
    starts.clear()
    with planning(model) as planner:
        joined(planner, StoredOffsets({ref(topic): 4}))
        assert starts == {0: 4, 1: 0}, "a partition that came later is read from its earliest record"


def test_a_partition_that_is_added_is_read_from_its_earliest_record(broker, topic) -> None:
    send(broker.bootstrap, topic, [b"x"] * 5)
    model = kafka_input(broker.bootstrap, topic, startFrom="latest", properties=EAGER)
    with planning(model) as planner:
        assert [bound.start for bound in joined(planner)] == [5, 0]
        broker.add_partitions(topic, 3)
        send(broker.bootstrap, topic, [b"x"] * 2, partition=2)
        added = eventually(
            lambda: [bound for bound in planner.bounds(StoredOffsets()) if bound.partition == ref(topic, 2)]
        )
        assert added[0].start == 0
        eventually(lambda: assigned_partitions(planner) == {0, 1, 2})


def test_a_partition_of_another_member_starts_where_it_did_when_the_job_started(broker, topic) -> None:
    """After a restart its records from since the first start are read, and those from before are not."""
    model, job = kafka_input(broker.bootstrap, topic, startFrom="latest", properties=EAGER), unique("job")
    clocks = {"in": InputClock(delay_ms=0)}
    for partition, records in enumerate((5, 3)):
        send(broker.bootstrap, topic, [b"before"] * records, partition)
    with closing(PlainMember(broker.bootstrap, f"{job}.in", [topic], **EAGER)) as other:
        other.until(lambda: len(other.partitions) == 2)
        with planning(model, job) as planner:
            other.until(lambda: len(assigned_partitions(planner)) == 1 == len(other.partitions))
            settings = PlanSettings(1, Budget(1_000, 64 << 20), 3_600_000, "f")
            engine = Planner(settings, {"in": planner}, clocks, IdleClock({"in": 0}))
            state = JobState(Pipeline((), ()), {"in": InputState()})
            # Another rebalance may follow; there is no plan while nothing is held.
            plan = other.until(lambda: engine.plan(state, now_ms=0).plan)
            assert plan is not None
    for partition in (0, 1):
        send(broker.bootstrap, topic, [b"since"], partition)
    stored = InputState.from_bytes("in", InputState().after(plan, "in", {}, clocks["in"]).to_bytes()).stored_offsets
    with planning(model, job) as planner:
        extents = {bound.partition.partition: (bound.start, bound.end_exclusive) for bound in joined(planner, stored)}
    assert extents == {0: (5, 6), 1: (3, 4)}


def test_readers_do_not_join(broker, topic, group) -> None:
    send(broker.bootstrap, topic, [b"a"])
    names = {"group.id": group, "group.instance.id": "the-driver", "partition.assignment.strategy": "roundrobin"}
    model = kafka_input(broker.bootstrap, topic, properties={**EAGER, **names})
    with planning(model) as planner, closing(reader_for(model)) as reader:
        joined(planner)
        (batch,) = reader.read(Range(ref(topic), 0, 1))
        assert batch.values.to_pylist() == [b"a"]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        members = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS).members
        assert [member.group_instance_id for member in members] == ["the-driver"]


# --- what an epoch holds ----------------------------------------------------------------------------------------------


@CLASSIC
def test_a_rebalance_waits_for_what_is_held(broker, topic, group, make_member, properties) -> None:
    member = make_member(properties)
    assert member.pin([ref(topic), ref(topic, 1)])
    with closing(PlainMember(broker.bootstrap, group, [topic], **properties)) as other:
        other.until(lambda: len(member.assigned()) < 2)
        assert not member.pin([ref(topic), ref(topic, 1)]), "what is about to go cannot be held anew"


@CLASSIC
def test_a_rebalance_goes_on_after_the_release(broker, topic, group, make_member, properties) -> None:
    member = make_member(properties)
    assert member.pin([ref(topic), ref(topic, 1)])
    with closing(PlainMember(broker.bootstrap, group, [topic], **properties)) as other:
        other.until(lambda: len(member.assigned()) < 2)
        waited_until = time.monotonic() + 1.0
        other.until(lambda: other.partitions or time.monotonic() > waited_until)
        assert not other.partitions
        assert member.is_pinned()
        member.unpin({ref(topic): 4, ref(topic, 1): 6})
        other.until(lambda: len(other.partitions) == 1)
        assert published(broker.bootstrap, group, topic) == {0: 4, 1: 6}, "told before the partitions went"
        assert member.is_pinned()


@CLASSIC
def test_a_rebalance_does_not_wait_for_ever(broker, topic, group, make_member, properties, caplog) -> None:
    member = make_member(properties, hold_seconds=0.3)
    member.pin([ref(topic), ref(topic, 1)])
    with closing(PlainMember(broker.bootstrap, group, [topic], **properties)) as other:
        other.until(lambda: len(other.partitions) == 1 and len(member.assigned()) == 1)
        assert not member.is_pinned()
        assert "took partitions after waiting" in caplog.text
        (other_partition,) = other.partitions
        member.unpin({ref(topic): 8, ref(topic, 1): 8})
        eventually(lambda: published(broker.bootstrap, group, topic))
        assert published(broker.bootstrap, group, topic) == {1 - other_partition: 8}, (
            "never for a partition that was lost"
        )
    eventually(lambda: len(member.assigned()) == 2)
    assert member.pin([ref(topic), ref(topic, 1)])
    assert member.is_pinned()


def test_what_nobody_holds_goes_at_once(broker, topic, group, make_member) -> None:
    make_member(EAGER, hold_seconds=60.0)
    with closing(PlainMember(broker.bootstrap, group, [topic], **EAGER)) as other:
        other.until(lambda: len(other.partitions) == 1)


@pytest.mark.parametrize(
    ("code", "is_logged"),
    [
        (KafkaError._FATAL, False),
        (KafkaError.FENCED_INSTANCE_ID, False),
        (KafkaError.REBALANCE_IN_PROGRESS, False),
        (KafkaError.ILLEGAL_GENERATION, False),
        (KafkaError.UNKNOWN_MEMBER_ID, False),
        (KafkaError.REQUEST_TIMED_OUT, True),
    ],
)
def test_a_member_that_was_replaced_or_in_a_rebalance_says_nothing_of_offsets(
    broker, topic, caplog, code: int, is_logged: bool
) -> None:
    kafka = kafka_input(broker.bootstrap, topic).kafka
    assert kafka is not None
    GroupMember(Cluster.of("in", kafka), "g", STORE)._on_published(KafkaError(code), [])
    assert ("offsets were not published" in caplog.text) == is_logged


def test_the_time_to_wait_is_well_below_what_the_broker_waits(broker, topic) -> None:
    quick = {"max.poll.interval.ms": "8000", "session.timeout.ms": "6000"}
    kafka = kafka_input(broker.bootstrap, topic, properties=quick).kafka
    assert kafka is not None
    assert GroupMember(Cluster.of("in", kafka), "g", STORE)._hold_seconds == 4.0


# --- one driver after another -----------------------------------------------------------------------------------------


@CLASSIC
def test_a_new_driver_takes_over_at_once_and_the_old_one_is_fenced(topic, group, make_member, properties) -> None:
    first = make_member(properties)
    assert first.pin([ref(topic)])
    started = time.monotonic()
    second = make_member(properties)
    assert time.monotonic() - started < SESSION_S, "it did not wait for the first one's session to end"

    def fenced() -> bool:
        try:
            return not first.is_pinned()
        except Fenced as error:
            return f"Another driver of this job has joined consumer group {group}" in str(error)

    eventually(fenced)
    for call in (first.assigned, first.is_pinned, lambda: first.pin([ref(topic)]), lambda: first.follow([topic], {})):
        with pytest.raises(Fenced, match=f"the same group.instance.id, {group}"):
            call()
    first.unpin({ref(topic): 1})
    assert second.pin([ref(topic), ref(topic, 1)])


def test_a_driver_that_was_closed_is_succeeded_at_once(topic, make_member) -> None:
    make_member().close()
    started = time.monotonic()
    make_member()
    assert time.monotonic() - started < SESSION_S


@CLASSIC
def test_a_driver_whose_input_has_another_topic_gets_its_partitions(
    broker, topic, group, make_member, properties
) -> None:
    make_member(properties).close()  # the group keeps this static member, and would give its partitions to the next one
    other = unique("other")
    broker.create_topic(other, 2)
    kafka = kafka_input(broker.bootstrap, other, properties=properties).kafka
    with closing(GroupMember(Cluster.of("in", kafka), group, STORE)) as member:
        refs = {ref(other): 0, ref(other, 1): 0}
        member.follow([other], refs)
        eventually(lambda: member.assigned() == refs.keys())
        assert member.pin(refs)


@CLASSIC
def test_a_driver_whose_topic_has_grown_gets_all_partitions(broker, topic, group, make_member, properties) -> None:
    make_member(properties).close()
    broker.add_partitions(topic, 4)
    kafka = kafka_input(broker.bootstrap, topic, properties=properties).kafka
    with closing(GroupMember(Cluster.of("in", kafka), group, STORE)) as member:
        member.follow([topic], {ref(topic, number): 0 for number in range(4)})
        eventually(lambda: len(member.assigned()) == 4)


def test_the_newer_protocol_refuses_a_second_member_of_the_same_name(broker, topic, make_member) -> None:
    properties = {"group.protocol": "consumer", "group.instance.id": "the-driver"}
    make_member(properties)
    with pytest.raises(SourceError, match=r"cannot be joined: .*instance ID is still used by another member"):
        make_member(properties)


# --- what the group is told -------------------------------------------------------------------------------------------


def test_offsets_are_published_as_the_next_ones(broker, topic, group, make_member) -> None:
    member = make_member()
    member.pin([ref(topic)])
    member.unpin({ref(topic): 7})
    eventually(lambda: published(broker.bootstrap, group, topic) == {0: 7})
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as reading:
        (committed,) = reading.committed([TopicPartition(topic, 0)], PATIENCE_SECONDS)
    assert committed.offset == 7


def test_closing_publishes_what_is_left(broker, topic, group, make_member) -> None:
    member = make_member()
    member.unpin({ref(topic): 7, ref(topic, 1): 9})
    started = time.monotonic()
    member.close()
    assert time.monotonic() - started < SESSION_S
    eventually(lambda: published(broker.bootstrap, group, topic) == {0: 7, 1: 9})


def test_offsets_of_partitions_that_were_never_ours_are_not_published(broker, topic, group, make_member) -> None:
    member = make_member()
    member.unpin({ref(topic): 7, ref(topic, 5): 1, ref("elsewhere"): 2})
    member.close()
    eventually(lambda: published(broker.bootstrap, group, topic) == {0: 7})


# --- groups that refuse -----------------------------------------------------------------------------------------------


def test_an_assignor_that_the_group_does_not_have(broker, topic, group) -> None:
    properties = {**EAGER, "group.id": group, "partition.assignment.strategy": "roundrobin"}
    with (
        closing(PlainMember(broker.bootstrap, group, [topic], **COOPERATIVE)) as other,
        planning(kafka_input(broker.bootstrap, topic, properties=properties)) as planner,
    ):
        other.until(lambda: len(other.partitions) == 2)
        with pytest.raises(
            SourceError, match=f"consumer group {group} cannot be joined: .*partition.assignment.strategy"
        ):
            other.until(lambda: assigned_partitions(planner))


# --- two jobs of one name ---------------------------------------------------------------------------------------------


def test_who_was_driven_out_learns_which_store_the_other_one_has(broker, topic) -> None:
    """Also where nothing was committed meanwhile: the offsets are told on assignment. The other one's place is as its
    store says it, without a password."""
    job, other_store = unique("job"), StoreIdentity("there", "host b, port 5432, database s, schema joinery")
    model = kafka_input(broker.bootstrap, topic)
    with planning(model, job) as planner:
        joined(planner)
        eventually(lambda: planner.committed_by() == STORE)
        with closing(planner_for(model, job, other_store)) as other:
            joined(other)
            eventually(lambda: planner.committed_by() == other_store)
            with pytest.raises(Fenced):
                eventually(lambda: assigned_partitions(planner) and False)
            planner.rejoin()
            joined(planner)
            eventually(lambda: other.committed_by() == STORE)
