"""A topic that is deleted and made again under the same name."""

from __future__ import annotations

import pytest

from connectors.kafka.kafka_bench import EAGER, eventually, joined, kafka_input, plain, planning, ref, send, unique
from joinery_runtime.connectors.source import Bounds, StoredOffsets
from joinery_runtime.errors import DataLoss, SourceError

pytestmark = pytest.mark.services


@pytest.fixture
def topic(broker) -> str:
    name = unique("recreated")
    broker.create_topic(name, 2)
    send(broker.bootstrap, name, [b"old"] * 3)
    return name


def recreate(broker, topic: str, records: int, partitions: int = 2) -> None:
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions)
    send(broker.bootstrap, topic, [b"new"] * records)


def ids(planner) -> dict[str, str]:
    return {bound.partition.topic: bound.topic_id for bound in joined(planner)}


def test_is_not_read_from_the_old_offset_in_silence(broker, topic) -> None:
    model = kafka_input(broker.bootstrap, topic, properties=EAGER)
    with planning(model) as planner:
        stored_offsets = StoredOffsets({ref(topic): 2, ref(topic, 1): 0}, topic_ids=ids(planner))
        assert [bound.start for bound in joined(planner, stored_offsets)] == [2, 0]
        recreate(broker, topic, records=5)
        facts = rf"topic {topic} was deleted and recreated: the stored offsets \({topic}-0@2, {topic}-1@0\) are of id "
        with pytest.raises(DataLoss, match=facts + stored_offsets.topic_ids[topic]):
            eventually(lambda: not planner.bounds(stored_offsets))
    with planning(model) as restarted, pytest.raises(DataLoss, match="Set onDataLoss: continue"):
        restarted.bounds(stored_offsets)


def test_is_read_from_its_earliest_record_where_the_job_allows_it(broker, topic, caplog) -> None:
    model = kafka_input(
        broker.bootstrap, topic, onDataLoss="continue", startFrom="latest", stopAt="latest", properties=EAGER
    )
    with planning(model) as planner:
        stored_offsets = StoredOffsets(
            {ref(topic): 3, ref(topic, 1): 0}, {ref(topic): 3, ref(topic, 1): 0}, ids(planner)
        )
        recreate(broker, topic, records=5)
        for _ in range(2):
            bounds = joined(planner, stored_offsets)
            assert plain(bounds)[0] == Bounds(ref(topic), 0, 5, final=True, stop=5), "its stored stop is void, too"
        assert bounds[0].topic_id not in {"", stored_offsets.topic_ids[topic]}
        assert caplog.text.count("was deleted and recreated") == 1
        later = StoredOffsets({ref(topic): 4, ref(topic, 1): 0}, {ref(topic): 5}, {topic: bounds[0].topic_id})
        assert joined(planner, later)[0].start == 4


def test_may_have_fewer_partitions(broker, topic) -> None:
    model = kafka_input(broker.bootstrap, topic, onDataLoss="continue", properties=EAGER)
    with planning(model) as planner:
        stored_offsets = StoredOffsets({ref(topic): 3, ref(topic, 1): 0}, topic_ids=ids(planner))
        recreate(broker, topic, records=1, partitions=1)
        assert plain(joined(planner, stored_offsets)) == [Bounds(ref(topic), 0, 1)]


def test_without_stored_ids_nothing_is_compared(broker, topic) -> None:
    with planning(kafka_input(broker.bootstrap, topic)) as planner:
        assert [bound.start for bound in joined(planner, StoredOffsets({ref(topic): 3}))] == [3, 0]
        assert [bound.start for bound in joined(planner, StoredOffsets({ref(topic): 3}, topic_ids={topic: ""}))] == [
            3,
            0,
        ]


def test_a_named_topic_that_is_deleted_while_it_is_read(broker, topic) -> None:
    with planning(kafka_input(broker.bootstrap, topic, properties=EAGER)) as planner:
        joined(planner)
        broker.delete_topic(topic)
        with pytest.raises(SourceError, match=f"topic {topic} does not exist"):
            eventually(lambda: not planner.bounds(StoredOffsets({ref(topic): 3})))


@pytest.mark.parametrize("remade", [True, False], ids=["recreated", "deleted"])
def test_planned_partitions_of_a_topic_that_is_no_more(broker, topic, remade) -> None:
    other = unique("recreated")
    broker.create_topic(other)
    model = kafka_input(broker.bootstrap, topicPattern=f"{topic}|{other}", properties=EAGER)
    with planning(model) as planner:
        planned_ids = ids(planner)
        planned = [ref(topic), ref(topic, 1), ref(other)]
        assert planner.find_replaced_partitions(planned, planned_ids) == set()
        broker.delete_topic(topic)
        if remade:
            broker.create_topic(topic, 2)
        with pytest.raises(DataLoss, match=f"topic {topic} was deleted while an epoch .*{planned_ids[topic]}"):
            eventually(lambda: not planner.find_replaced_partitions(planned, planned_ids))
    assert model.kafka is not None
    tolerant = model.model_copy(update={"kafka": model.kafka.model_copy(update={"on_data_loss": "continue"})})
    with planning(tolerant) as planner:
        assert planner.find_replaced_partitions(planned, planned_ids) == {ref(topic), ref(topic, 1)}
        assert planner.find_replaced_partitions([ref(other)], planned_ids) == set()


def test_a_plan_is_held_before_any_bounds_were_asked_for(broker, topic) -> None:
    with planning(kafka_input(broker.bootstrap, topic, properties=EAGER)) as planner:
        assert not planner.pin([ref(topic)])
        eventually(lambda: planner.pin([ref(topic)]))
        assert planner.is_pinned()


class Questions:
    """Counts what a planner asks its broker."""

    def __init__(self, planner, monkeypatch) -> None:
        self.topics, self.offsets = 0, 0
        describe, ask = planner._admin.topics, planner._admin.ask

        def topics(names):
            self.topics += bool(names)
            return describe(names)

        def offsets(partitions, spec):
            self.offsets += bool(partitions)
            return ask(partitions, spec)

        monkeypatch.setattr(planner._admin, "topics", topics)
        monkeypatch.setattr(planner._admin, "ask", offsets)


def test_a_plan_right_after_the_check_of_its_topics_asks_nothing_twice(broker, topic, monkeypatch) -> None:
    with planning(kafka_input(broker.bootstrap, topic, properties=EAGER)) as planner:
        stored = StoredOffsets({ref(topic): 3, ref(topic, 1): 0}, topic_ids=ids(planner))
        joined(planner, stored)
        monkeypatch.setattr("joinery_runtime.connectors.kafka.planner._FRESH_SECONDS", 60.0)
        send(broker.bootstrap, topic, [b"more"] * 2)
        questions = Questions(planner, monkeypatch)
        assert planner.find_replaced_partitions([ref(topic), ref(topic, 1)], stored.topic_ids) == set()
        assert plain(planner.bounds(stored))[0] == Bounds(ref(topic), 3, 5)
        assert (questions.topics, questions.offsets) == (1, 3)
        send(broker.bootstrap, topic, [b"more"] * 2)
        assert plain(planner.bounds(stored))[0] == Bounds(ref(topic), 3, 7), "an answer serves one plan"
        assert (questions.topics, questions.offsets) == (2, 6)


def test_a_plan_long_after_the_check_asks_again(broker, topic, monkeypatch) -> None:
    with planning(kafka_input(broker.bootstrap, topic, properties=EAGER)) as planner:
        stored = StoredOffsets({ref(topic): 3, ref(topic, 1): 0}, topic_ids=ids(planner))
        joined(planner, stored)
        monkeypatch.setattr("joinery_runtime.connectors.kafka.planner._FRESH_SECONDS", -1.0)
        planner.find_replaced_partitions([ref(topic)], stored.topic_ids)
        send(broker.bootstrap, topic, [b"more"] * 2)
        assert plain(planner.bounds(stored))[0] == Bounds(ref(topic), 3, 5)


def test_offsets_of_a_topic_that_was_recreated_are_asked_for_again(broker, topic, monkeypatch) -> None:
    """Those that were asked for before its id was known may be of the former topic."""
    with planning(kafka_input(broker.bootstrap, topic, onDataLoss="continue", properties=EAGER)) as planner:
        stored = StoredOffsets({ref(topic): 3, ref(topic, 1): 0}, topic_ids=ids(planner))
        joined(planner, stored)
        monkeypatch.setattr("joinery_runtime.connectors.kafka.planner._FRESH_SECONDS", 60.0)
        recreate(broker, topic, records=5)
        eventually(lambda: planner.find_replaced_partitions([ref(topic)], stored.topic_ids) == {ref(topic)})
        questions = Questions(planner, monkeypatch)
        assert plain(planner.bounds(stored))[0] == Bounds(ref(topic), 0, 5)
        assert (questions.topics, questions.offsets) == (0, 3)
