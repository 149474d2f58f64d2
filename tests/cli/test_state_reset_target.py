"""What `joinery state reset` makes of its arguments, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputProgress
from joinery_runtime.engine.plan import InputState
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.admin.reset import offset_report
from joinery_runtime.inspect.admin.reset_target import (
    BrokerOffsets,
    Change,
    PartitionOffsets,
    ToOffsets,
    ToTime,
    parse_target,
    plan_reset,
)


def ref(partition: int, topic: str = "orders") -> PartitionRef:
    return PartitionRef("in", topic, partition)


PROGRESS = InputProgress({"orders/0": 5_000, "orders/1": None}, 1_768_471_200_000)
STATE = InputState({ref(0): 120, ref(1): 80}, PROGRESS, {ref(0): 500}, {"orders": "id1"})
BROKER = BrokerOffsets({ref(0): PartitionOffsets(10, 130), ref(1): PartitionOffsets(0, 90)}, {"orders": "id1"})
TWO_TOPICS = BrokerOffsets(
    {ref(0): PartitionOffsets(0, 9), ref(0, "more"): PartitionOffsets(0, 9), ref(1, "more"): PartitionOffsets(0, 9)}, {}
)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (("earliest", None, ()), "earliest"),
        (("latest", None, ()), "latest"),
        ((None, "1768471200000", ()), ToTime(1_768_471_200_000)),
        ((None, "2026-01-15T10:00:00Z", ()), ToTime(1_768_471_200_000)),
        ((None, "2026-01-15T11:00:00.5+01:00", ()), ToTime(1_768_471_200_500)),
        ((None, None, ("0=15",)), ToOffsets({(None, 0): 15})),
        ((None, None, ("orders-1:0=15", "a.b_c:12=0")), ToOffsets({("orders-1", 0): 15, ("a.b_c", 12): 0})),
    ],
)
def test_targets(arguments: Any, target: object) -> None:
    assert parse_target(*arguments) == target


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None, None, ()), "exactly one of --to"),
        (("earliest", "1", ()), "exactly one of --to"),
        (("earliest", None, ("0=1",)), "exactly one of --to"),
        ((None, "1", ("0=1",)), "exactly one of --to"),
        ((None, "2026-01-15T10:00:00", ()), "--to-time 2026-01-15T10:00:00 is not a time"),
        ((None, "yesterday", ()), "--to-time yesterday is not a time"),
        ((None, "-5", ()), "--to-time -5 is not a time"),
        ((None, None, ("0",)), "--to-offset 0 cannot be read"),
        ((None, None, ("0=-1",)), "--to-offset 0=-1 cannot be read"),
        ((None, None, ("orders-0=1",)), "--to-offset orders-0=1 cannot be read"),
        ((None, None, ("0=1", "job.yaml")), "--to-offset job.yaml cannot be read"),
        ((None, None, ("0=1", "0=2")), "names partition 0 twice"),
        ((None, None, ("a:0=1", "a:0=1")), "names partition a:0 twice"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, says: str) -> None:
    with pytest.raises(JoineryError, match=says):
        parse_target(*arguments)


@pytest.mark.parametrize(
    ("target", "positions"),
    [
        ("earliest", {ref(0): 10, ref(1): 0}),
        ("latest", {ref(0): 130, ref(1): 90}),
        (ToOffsets({(None, 1): 7}), {ref(0): 120, ref(1): 7}),
        (ToOffsets({("orders", 0): 130, (None, 1): 0}), {ref(0): 130, ref(1): 0}),
    ],
)
def test_positions_are_replaced_and_all_else_is_kept(target: Any, positions: dict[PartitionRef, int]) -> None:
    reset = plan_reset(STATE, target, BROKER)
    assert reset.state == InputState(positions, PROGRESS, STATE.stops, STATE.topic_ids)
    assert InputState.from_bytes("in", reset.state.to_bytes()) == reset.state


def test_a_time_is_where_the_broker_found_it_or_the_end() -> None:
    broker = BrokerOffsets({ref(0): PartitionOffsets(10, 130, first_at_time=44), ref(1): PartitionOffsets(0, 90)}, {})
    assert plan_reset(STATE, ToTime(1), broker).state.positions == {ref(0): 44, ref(1): 90}


@pytest.mark.parametrize("offset", [9, 131])
def test_an_offset_that_the_broker_does_not_have_is_refused(offset: int) -> None:
    with pytest.raises(JoineryError, match=rf"orders-0 cannot be read from offset {offset}: .* 10 to 130"):
        plan_reset(STATE, ToOffsets({(None, 0): offset}), BROKER)


@pytest.mark.parametrize(
    ("target", "broker", "says"),
    [
        (ToOffsets({(None, 2): 0}), BROKER, r"no partition orders-2: it has orders-0, orders-1"),
        (ToOffsets({("other", 0): 0}), BROKER, r"no partition other-0"),
        (ToOffsets({(None, 0): 20, ("orders", 0): 20}), BROKER, r"names partition orders-0 twice"),
        (ToOffsets({(None, 0): 0}), TWO_TOPICS, r"which topic is meant: the input has more, orders\. Write TOPIC:0="),
    ],
)
def test_a_partition_must_be_one_of_the_inputs(target: Any, broker: BrokerOffsets, says: str) -> None:
    with pytest.raises(JoineryError, match=says):
        plan_reset(STATE, target, broker)


def test_one_of_several_topics_is_named() -> None:
    reset = plan_reset(STATE, ToOffsets({("more", 1): 3}), TWO_TOPICS)
    assert reset.state.positions == {**STATE.positions, ref(1, "more"): 3}
    assert [(change.partition, change.stored) for change in reset.changes] == [(ref(1, "more"), None)]


def test_a_partition_that_the_broker_lost_keeps_its_offset() -> None:
    reset = plan_reset(STATE, "earliest", BrokerOffsets({ref(0): PartitionOffsets(10, 130)}, {"orders": "id1"}))
    assert (reset.missing, reset.state.positions) == ((ref(1),), {ref(0): 10, ref(1): 80})


class TestRecreated:
    BROKER = BrokerOffsets({ref(0): PartitionOffsets(0, 3)}, {"orders": "id2"})

    def test_nothing_of_the_topic_before_it_stays(self) -> None:
        reset = plan_reset(STATE, "earliest", self.BROKER)
        assert reset.state == InputState({ref(0): 0}, PROGRESS, {}, {"orders": "id2"})
        assert (reset.recreated, reset.missing) == (("orders",), ())

    def test_it_is_reset_as_a_whole_or_not_at_all(self) -> None:
        broker = BrokerOffsets({ref(0): PartitionOffsets(0, 3), ref(1): PartitionOffsets(0, 3)}, {"orders": "id2"})
        with pytest.raises(JoineryError, match=r"orders was recreated.*orders-1 would keep one"):
            plan_reset(STATE, ToOffsets({(None, 0): 0}), broker)

    @pytest.mark.parametrize("stored", [{}, {"orders": ""}])
    def test_where_no_id_is_stored_nothing_is_concluded(self, stored: dict[str, str]) -> None:
        state = InputState(STATE.positions, PROGRESS, {}, stored)
        assert plan_reset(state, "latest", self.BROKER).state.topic_ids == stored

    def test_where_the_broker_has_no_ids_nothing_is_concluded(self) -> None:
        broker = BrokerOffsets({ref(0): PartitionOffsets(0, 3)}, {"orders": ""})
        assert plan_reset(STATE, "latest", broker).state.topic_ids == {"orders": "id1"}


@pytest.mark.parametrize(
    ("stored", "new", "delta"),
    [(120, 15, -105), (15, 120, 105), (15, 15, 0), (None, 15, 0), (5, 60, 50), (900, 100, -30), (900, 130, 0)],
)
def test_how_many_offsets_a_change_is(stored: int | None, new: int, delta: int) -> None:
    assert Change(ref(0), stored, new, PartitionOffsets(10, 130)).delta == delta


def test_the_report() -> None:
    broker = BrokerOffsets(
        {ref(0): PartitionOffsets(10, 130), ref(1): PartitionOffsets(0, 90), ref(2): PartitionOffsets(0, 4)},
        {"orders": "id1"},
    )
    target = ToOffsets({(None, 0): 15, (None, 1): 85, (None, 2): 0})
    assert list(offset_report("in", plan_reset(STATE, target, broker))) == [
        "partition  stored  new  records         broker has",
        "orders-0   120     15   105 read again  10 to 130",
        "orders-1   80      85   5 skipped       0 to 90",
        "orders-2   -       0    never read      0 to 4",
        "The watermark of in does not go back (2026-01-15T10:00:00.000Z): rows read again may be late.",
        "Rows that are still in the state join again with rows that are read again: output repeats.",
        "Records that are skipped are not read: what they would have joined with stays without them.",
    ]


@pytest.mark.parametrize(
    ("watermark", "says"),
    [(END_OF_TIME, "has ended (stopAt)"), (-(2**60), f"({-(2**60)} ms)"), (0, "(1970-01-01T00:00:00.000Z)")],
)
def test_any_watermark_can_be_told(watermark: int, says: str) -> None:
    state = InputState(STATE.positions, InputProgress({}, watermark))
    assert says in "\n".join(offset_report("in", plan_reset(state, "earliest", BROKER)))


def test_without_a_watermark_none_is_mentioned() -> None:
    lines = list(offset_report("in", plan_reset(InputState(STATE.positions), "earliest", BROKER)))
    assert "watermark" not in "\n".join(lines)
    assert lines[-1].endswith("output repeats.")


def test_what_the_report_says_of_other_partitions() -> None:
    lost = BrokerOffsets({ref(0): PartitionOffsets(10, 130)}, {"orders": "id1"})
    assert "orders-1 is not on the broker and keeps its offset." in offset_report(
        "in", plan_reset(STATE, "latest", lost)
    )
    recreated = list(offset_report("in", plan_reset(STATE, "latest", TestRecreated.BROKER)))
    assert recreated[1].split() == ["orders-0", "120", "3", "stored", "offset", "is", "gone", "0", "to", "3"]
    assert recreated[2].startswith("Topic orders was recreated")
