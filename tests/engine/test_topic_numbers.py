"""Numbers of topics and files: given once, in order, never to two."""

from __future__ import annotations

from dataclasses import replace

from joinery_runtime.connectors.source import Bounds, Range
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.core.table.columns import numbered_partition, split_partition
from joinery_runtime.engine.plan import EpochPlan, InputState, TopicNumbers
from joinery_runtime.formats.batch import PartitionRef


def bounds(*topics: str, topic_id: str = "") -> list[Bounds]:
    return [Bounds(PartitionRef("l", topic, 0), 0, 5, topic_id=topic_id) for topic in topics]


def test_an_only_topic_has_no_number_to_store() -> None:
    """So the documents of such jobs are those of earlier releases."""
    assert TopicNumbers().of_new(bounds("a"), [], {}) == {}
    assert TopicNumbers().to_json() is None


def test_topics_are_numbered_in_order_and_later_ones_follow() -> None:
    numbers = TopicNumbers().with_new(TopicNumbers().of_new(bounds("a", "c"), [], {}))
    assert numbers.by_topic == {"a": 0, "c": 1}
    assert numbers.of_new(bounds("a", "b", "c"), ["a", "c"], {}) == {"b": 2}


def test_topics_that_were_read_without_a_number_come_first() -> None:
    """One that has no bounds any more, too: rows of it may be in the state."""
    assert TopicNumbers().of_new(bounds("a", "b"), ["b"], {}) == {"b": 0, "a": 1}
    assert TopicNumbers().of_new(bounds("a"), ["b"], {}) == {"b": 0, "a": 1}


def test_a_topic_that_was_recreated_is_another_one() -> None:
    numbers = TopicNumbers({"a": 0, "b": 1}, 2)
    assert numbers.of_new(bounds("a", topic_id="new"), ["a", "b"], {"a": "old"}) == {"a": 2}
    assert numbers.of_new(bounds("a", topic_id="old"), ["a", "b"], {"a": "old"}) == {}


def test_an_only_topic_that_was_recreated_is_another_one() -> None:
    assert TopicNumbers().of_new(bounds("a", topic_id="new"), ["a"], {"a": "old"}) == {"a": 1}
    assert TopicNumbers().of_new(bounds("a", topic_id="old"), ["a"], {"a": "old"}) == {}


def test_an_only_topic_that_was_deleted_and_comes_again_is_another_one() -> None:
    clock, (planned,) = InputClock(0, 60_000), (Range(bound.partition, 0, 5) for bound in bounds("a"))
    state = InputState().after(EpochPlan(1, 1, (planned,), {"l": None}, topic_ids={"l": {"a": "old"}}), "l", {}, clock)
    assert b"topic_numbers" not in state.to_bytes()
    state = state.after(EpochPlan(2, 1, (), {"l": None}, topic_ids={"l": {"a": ""}}), "l", {}, clock)
    state = InputState.from_bytes("l", state.to_bytes())
    assert state.topic_numbers.of_new(bounds("a", topic_id="new"), [], state.topic_ids) == {"a": 1}


def test_a_topic_that_is_deleted_as_another_one_comes_has_no_number_any_more() -> None:
    """It may come again, as another topic."""
    clock, (planned,) = InputClock(0, 60_000), (Range(bound.partition, 0, 5) for bound in bounds("a"))
    state = InputState().after(EpochPlan(1, 1, (planned,), {"l": None}, topic_ids={"l": {"a": "old"}}), "l", {}, clock)
    plan = EpochPlan(2, 1, (), {"l": None}, topic_ids={"l": {"a": ""}}, topic_numbers={"l": {"a": 0, "b": 1}})
    assert state.after(plan, "l", {}, clock).topic_numbers == TopicNumbers({"b": 1}, 2)


def test_rows_of_several_topics_that_have_no_numbers_are_told_from_later_ones() -> None:
    """An earlier release stored them with 0. A later row of one topic may have the place of a stored one of another."""
    assert TopicNumbers().of_new(bounds("a", "b"), ["a", "b"], {}) == {"a": 1, "b": 2}


def test_a_forgotten_number_is_not_given_again() -> None:
    numbers = TopicNumbers({"a": 0, "b": 1}, 2).without(["b"])
    stored = TopicNumbers.from_json(numbers.to_json())
    assert stored == numbers
    assert stored.of_new(bounds("a", "c"), ["a"], {}) == {"c": 2}


def test_plans_and_inputs_keep_numbers_when_they_are_stored() -> None:
    ranges = tuple(Range(bound.partition, 0, 5) for bound in bounds("a", "b"))
    plan = EpochPlan(1, 1, ranges, {"l": None}, topic_numbers={"l": {"a": 0, "b": 1}})
    plan = EpochPlan.from_json(plan.to_json())
    assert [plan.numbered(ref) for ref in plan.partitions] == [0, numbered_partition(0, 1)]
    state = InputState().after(plan, "l", {}, InputClock(0, 60_000))
    assert InputState.from_bytes("l", state.to_bytes()) == state
    assert state.topic_numbers == TopicNumbers({"a": 0, "b": 1}, 2)


def test_a_plan_of_an_earlier_release_has_no_numbers() -> None:
    plan = EpochPlan(1, 1, tuple(Range(bound.partition, 0, 5) for bound in bounds("a", "b")), {"l": None})
    assert "topic_numbers" not in plan.to_json()
    assert {plan.numbered(replace(ref, partition=7)) for ref in plan.partitions} == {7}


def test_a_number_and_a_partition_are_told_apart() -> None:
    assert split_partition(numbered_partition(2**31 - 1, 3)) == (3, 2**31 - 1)
