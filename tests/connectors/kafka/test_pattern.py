"""Inputs that read every topic that matches a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from connectors.kafka.kafka_bench import (
    EAGER,
    PlainMember,
    eventually,
    joined,
    kafka_input,
    planning,
    ref,
    send,
    unique,
)
from joinery_runtime.connectors.inputs import reader_for
from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner, StoredOffsets
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.errors import DataLoss, SourceError
from joinery_runtime.job import Input

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.topics._LIST_SECONDS", 0.1)


@pytest.fixture
def prefix() -> str:
    return unique("pattern")


@pytest.fixture
def model(broker, prefix) -> Input:
    return kafka_input(broker.bootstrap, topicPattern=rf"{prefix}\.(a|b)\d*", properties=EAGER)


@pytest.fixture
def planner(model) -> Iterator[SourcePlanner]:
    with planning(model) as opened:
        yield opened


def test_all_topics_whose_whole_names_match(broker, prefix, planner) -> None:
    for name in ("a", "b1", "c", "b1x"):
        broker.create_topic(f"{prefix}.{name}")
    send(broker.bootstrap, f"{prefix}.b1", [b"x"] * 3)
    assert [(bound.partition, bound.end_exclusive) for bound in joined(planner)] == [
        (ref(f"{prefix}.a"), 0),
        (ref(f"{prefix}.b1"), 3),
    ]


def test_internal_topics_never_match(broker, prefix) -> None:
    broker.create_topic(f"{prefix}.a")
    with closing(PlainMember(broker.bootstrap, unique("makes-the-offsets-topic"), [f"{prefix}.a"])) as other:
        other.until(lambda: other.partitions)
    with planning(kafka_input(broker.bootstrap, topicPattern=r"__.*|" + prefix + r"\..*")) as planner:
        assert {bound.partition.topic for bound in planner.bounds(StoredOffsets())} == {f"{prefix}.a"}


def test_nothing_matches_yet(broker, prefix, planner, caplog) -> None:
    assert planner.bounds(StoredOffsets()) == planner.bounds(StoredOffsets()) == []
    assert caplog.text.count("no topic matches yet") == 1
    broker.create_topic(f"{prefix}.a")
    eventually(lambda: planner.bounds(StoredOffsets()))
    joined(planner)


@pytest.mark.parametrize("start", ["latest", {"timestamp": 5_000}])
def test_the_first_topic_that_comes_after_the_start_is_read_from_its_earliest_record(broker, prefix, start) -> None:
    """Its records have come since the job was started, though nobody found it at once."""
    model = kafka_input(broker.bootstrap, topicPattern=rf"{prefix}\..", startFrom=start, properties=EAGER)
    with planning(model) as planner:
        assert topics_of(planner) == []
        broker.create_topic(f"{prefix}.a")
        send(broker.bootstrap, f"{prefix}.a", [b"x"] * 2)
        (bound,) = eventually(lambda: topics_of(planner))
    assert (bound.start, bound.end_exclusive) == (0, 2)


def topics_of(planner: SourcePlanner, stored_offsets: StoredOffsets | None = None) -> list[Bounds]:
    """Without the mark that the input has begun."""
    return [bound for bound in planner.bounds(stored_offsets or StoredOffsets()) if not bound.waits]


@pytest.mark.parametrize("start", ["latest", {"timestamp": 5_000}])
def test_a_topic_that_comes_between_two_starts_is_read_from_its_earliest_record(broker, prefix, start) -> None:
    """Also where no topic matched at the first start, which therefore stores that it was one."""
    model = kafka_input(broker.bootstrap, topicPattern=rf"{prefix}\..", startFrom=start, properties=EAGER)
    clocks = {"in": InputClock(delay_ms=0)}
    with planning(model) as planner:
        settings = PlanSettings(1, Budget(1_000, 64 << 20), 3_600_000, "f")
        engine = Planner(settings, {"in": planner}, clocks, IdleClock({"in": 0}))
        plan = engine.plan(JobState(Pipeline((), ()), {"in": InputState()}), now_ms=0).plan
        assert plan is not None
        state = InputState().after(EpochPlan.from_json(plan.to_json()), "in", {}, clocks["in"])
        assert engine.plan(JobState(Pipeline((), ()), {"in": state}, epoch=1), now_ms=0).plan is None, "once is enough"
    broker.create_topic(f"{prefix}.a")
    send(broker.bootstrap, f"{prefix}.a", [b"x"] * 2)
    with planning(model) as planner:
        (bound,) = joined(planner, InputState.from_bytes("in", state.to_bytes()).stored_offsets)
    assert (bound.start, bound.end_exclusive) == (0, 2)


@pytest.mark.parametrize("start", ["latest", {"timestamp": 5_000}])
def test_start_from_decides_at_the_first_start_only(broker, prefix, start) -> None:
    first, second, third = (f"{prefix}.{name}" for name in "abc")
    broker.create_topic(first)
    send(broker.bootstrap, first, [b"x"] * 3)
    model = kafka_input(broker.bootstrap, topicPattern=rf"{prefix}\..", startFrom=start, properties=EAGER)
    with planning(model) as planner:
        assert [bound.start for bound in joined(planner)] == [3]
        broker.create_topic(second)
        send(broker.bootstrap, second, [b"x"] * 2)
        all_bounds = eventually(lambda: bounds if len(bounds := planner.bounds(StoredOffsets())) == 2 else [])
        assert [(bound.start, bound.end_exclusive) for bound in all_bounds] == [(3, 3), (0, 2)]
        joined(planner)
    broker.create_topic(third)
    send(broker.bootstrap, third, [b"x"] * 2)
    broker.add_partitions(first, 2)
    send(broker.bootstrap, first, [b"x"], partition=1)
    with planning(model) as planner:
        stored_offsets = StoredOffsets({ref(first): 3, ref(second): 1})
        starts = {bound.partition: bound.start for bound in joined(planner, stored_offsets)}
    assert starts == {ref(first): 3, ref(first, 1): 0, ref(second): 1, ref(third): 0}


def test_the_reader_reads_the_topic_of_the_range(broker, prefix, model) -> None:
    for name in "ab":
        broker.create_topic(f"{prefix}.{name}")
        send(broker.bootstrap, f"{prefix}.{name}", [name.encode()])
    with closing(reader_for(model)) as reader:
        values = [batch.values.to_pylist() for n in "ab" for batch in reader.read(Range(ref(f"{prefix}.{n}"), 0, 1))]
    assert values == [[b"a"], [b"b"]]


def test_a_topic_that_was_read_to_its_end_may_be_deleted(broker, prefix, planner, caplog) -> None:
    remaining, deleted = f"{prefix}.a", f"{prefix}.b"
    for name in (remaining, deleted):
        broker.create_topic(name)
    send(broker.bootstrap, deleted, [b"x"] * 2)
    ids = {bound.partition.topic: bound.topic_id for bound in joined(planner)}
    stored_offsets = StoredOffsets({ref(remaining): 0, ref(deleted): 2}, topic_ids=ids)
    joined(planner, stored_offsets)
    broker.delete_topic(deleted)
    eventually(
        lambda: (
            {bound.partition: bound.deleted for bound in planner.bounds(stored_offsets)}
            == {ref(remaining): False, ref(deleted): True}
        )
    )
    assert caplog.text.count(f"topic {deleted} was deleted after it had been read to its end") == 1
    broker.create_topic(deleted)
    send(broker.bootstrap, deleted, [b"new"])
    again = eventually(
        lambda: [
            bound for bound in planner.bounds(stored_offsets) if bound.partition == ref(deleted) and not bound.deleted
        ]
    )
    assert again[0].start == 0, "another topic of that name is read from its start"


def test_a_topic_that_is_deleted_before_it_was_read(broker, prefix, model, planner) -> None:
    remaining, deleted = f"{prefix}.a", f"{prefix}.b"
    for name in (remaining, deleted):
        broker.create_topic(name)
    send(broker.bootstrap, deleted, [b"x"] * 2)
    stored_offsets = StoredOffsets({ref(remaining): 0, ref(deleted): 1})
    joined(planner, stored_offsets)
    broker.delete_topic(deleted)
    facts = rf"topic {deleted} was deleted before .*read up to {deleted}-0@1, its last known end is {deleted}-0@2"
    with pytest.raises(DataLoss, match=facts):
        planner.bounds(stored_offsets)
    with planning(model) as restarted, pytest.raises(DataLoss, match="its last known end is not known"):
        restarted.bounds(stored_offsets)
    assert model.kafka is not None
    tolerant = model.model_copy(update={"kafka": model.kafka.model_copy(update={"on_data_loss": "continue"})})
    with planning(tolerant) as restarted:
        eventually(
            lambda: (
                [bound.partition for bound in restarted.bounds(stored_offsets) if bound.is_assigned] == [ref(remaining)]
            )
        )
        assert [bound.partition for bound in restarted.bounds(stored_offsets) if bound.deleted] == [ref(deleted)]


def test_stored_offsets_of_topics_that_no_longer_match_do_not_count(broker, prefix, planner) -> None:
    broker.create_topic(f"{prefix}.a")
    assert [bound.partition for bound in joined(planner, StoredOffsets({ref("elsewhere"): 5}))] == [ref(f"{prefix}.a")]


def test_errors_say_which_topics(prefix, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.kafka.metadata._ANSWER_SECONDS", 0.5)
    with (
        planning(kafka_input("127.0.0.1:1", topicPattern=f"{prefix}.*")) as planner,
        pytest.raises(SourceError, match=rf"does not answer: .*topics like '{prefix}\.\*', bootstrapServers"),
    ):
        planner.bounds(StoredOffsets())


# --- topics by their names (U1) ---------------------------------------------------------------------------------------


def test_each_named_topic_is_read_and_no_other(broker, prefix) -> None:
    names = [f"{prefix}.{name}" for name in "abc"]
    for name in names:
        broker.create_topic(name)
        send(broker.bootstrap, name, [b"x"] * 2)
    with planning(kafka_input(broker.bootstrap, topics=[names[2], names[0]], properties=EAGER)) as planner:
        bounds = [(bound.partition, bound.end_exclusive) for bound in joined(planner)]
    assert sorted(bounds) == [(ref(names[0]), 2), (ref(names[2]), 2)]


def test_a_named_topic_that_does_not_exist_is_an_error(broker, prefix) -> None:
    broker.create_topic(f"{prefix}.a")
    model = kafka_input(broker.bootstrap, topics=[f"{prefix}.a", f"{prefix}.b"], properties=EAGER)
    words = rf"topic {prefix}\.b does not exist.*Create it, or correct the name"
    with planning(model) as planner, pytest.raises(SourceError, match=words):
        planner.bounds(StoredOffsets({ref(f"{prefix}.a"): 0}))


def test_a_topic_that_is_added_is_read_from_its_earliest_record_and_one_taken_off_no_more(broker, prefix) -> None:
    first, second, third = (f"{prefix}.{name}" for name in "abc")
    for name in (first, second, third):
        broker.create_topic(name)
        send(broker.bootstrap, name, [b"x"] * 3)
    stored_offsets = StoredOffsets({ref(first): 3, ref(second): 2})
    model = kafka_input(broker.bootstrap, topics=[first, third], startFrom="latest", properties=EAGER)
    with planning(model) as planner:
        starts = {bound.partition: bound.start for bound in joined(planner, stored_offsets)}
    assert starts == {ref(first): 3, ref(third): 0}
