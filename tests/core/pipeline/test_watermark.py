"""Rules T1 and T4 to T7 as tables: one input's progress, or two inputs `a` and `b`, in; watermarks out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputClock, InputProgress, Watermark, advance, all_idle

END = END_OF_TIME
CLOCK = InputClock(delay_ms=10)


def seen(watermark: Watermark = None, **highest: int | None) -> InputProgress:
    return InputProgress(highest, watermark)


def advanced(
    progress: Mapping[str, InputProgress],
    idle: Mapping[str, Collection[str]] | None = None,
    ended: Collection[str] = (),
    **clocks: InputClock,
) -> dict[str, Watermark]:
    by_name = {name: clocks.get(name, CLOCK) for name in progress}
    results = advance(progress, by_name, idle=idle or {}, ended=ended)
    return {name: value.watermark for name, value in results.items()}


@pytest.mark.parametrize(
    ("progress", "idle", "expected"),
    [
        (seen(), [], None),  # no partition known
        (seen(p=None), [], None),  # nothing read yet
        (seen(p=100), [], 90),
        (seen(p=100, q=50), [], 40),  # the slowest partition counts
        (seen(p=100, q=None), [], None),  # one has shown no row: it may hold anything
        (seen(p=100, q=None), ["q"], 90),  # an idle one does not count
        (seen(p=100, q=50), ["q"], 90),
        (seen(95, p=100), [], 95),  # never back: longer delay after an edit, a new partition, a speaking one
        (seen(95, p=100, q=None), [], 95),
        (seen(p=-100), [], -110),  # times before 1970
    ],
)
def test_t1_lowest_highest_minus_delay(progress: InputProgress, idle: list[str], expected: Watermark) -> None:
    assert advanced({"a": progress, "b": seen(p=None)}, {"a": idle})["a"] == expected


def test_highest_event_times_only_grow() -> None:
    progress = seen(p=5).saw({"p": 3, "q": None}).saw({"q": 7, "p": None})
    assert progress.highest == {"p": 5, "q": 7}
    assert progress.raised(4).raised(2).raised(None).watermark == 4


@pytest.mark.parametrize(
    ("a", "b", "idle", "expected"),
    [
        # b is silent: it takes a's watermark...
        (seen(p=100), seen(p=50), {"b": ["p"]}, {"a": 90, "b": 90}),
        (seen(p=100), seen(p=None), {"b": ["p"]}, {"a": 90, "b": 90}),
        # ...or keeps its own if that is higher
        (seen(p=100), seen(140, p=150), {"b": ["p"]}, {"a": 90, "b": 140}),
        # ...and waits while the speaking one knows nothing
        (seen(p=None), seen(p=150), {"b": ["p"]}, {"a": None, "b": None}),
        # not all of its partitions are idle: its own counts
        (seen(p=100), seen(p=50, q=60), {"b": ["p"]}, {"a": 90, "b": 50}),
        # an input without partitions is not idle
        (seen(p=100), seen(), {"b": []}, {"a": 90, "b": None}),
        # after a restart the given watermark is part of the commit; b speaks again and is judged against it
        (seen(90, p=100), seen(90, p=50), {}, {"a": 90, "b": 90}),
    ],
)
def test_t5_a_silent_input_follows_the_others(
    a: InputProgress, b: InputProgress, idle: Mapping[str, list[str]], expected: dict[str, Watermark]
) -> None:
    assert advanced({"a": a, "b": b}, idle) == expected


def test_t5_takes_the_lowest_of_several_speaking_inputs() -> None:
    progress = {"a": seen(p=100), "b": seen(p=70), "c": seen(p=10)}
    assert advanced(progress, {"c": ["p"]}) == {"a": 90, "b": 60, "c": 60}


def test_t5_an_ended_input_does_not_pull_a_silent_one_to_infinity() -> None:
    progress = {"a": seen(p=100), "b": seen(40, p=50)}
    assert advanced(progress, {"b": ["p"]}, ended=["a"]) == {"a": END, "b": 40}
    third = {**progress, "c": seen(p=80)}
    assert advanced(third, {"b": ["p"]}, ended=["a"]) == {"a": END, "b": 70, "c": 70}


@pytest.mark.parametrize(
    ("advancing", "idle_for", "expected"),
    [(False, 5_000, {"a": 90, "b": 40}), (True, 0, {"a": 90, "b": 40}), (True, 5_000, {"a": 5_090, "b": 5_040})],
)
def test_t6_when_all_are_idle(advancing: bool, idle_for: int, expected: dict[str, Watermark]) -> None:
    clock = InputClock(delay_ms=10, advance_on_idle=advancing)
    progress = {"a": seen(90, p=100), "b": seen(40, p=50)}
    idle = {"a": ["p"], "b": ["p"]}
    results = advance(progress, {"a": clock, "b": clock}, idle=idle, idle_for_ms=idle_for)
    assert {name: value.watermark for name, value in results.items()} == expected
    assert all_idle(progress, idle)


def test_t6_goes_on_from_the_highest_time_of_all_partitions_or_that_of_another_input() -> None:
    clock = InputClock(delay_ms=10, advance_on_idle=True)
    progress = {"a": seen(p=100, q=300), "b": seen(p=None)}
    idle = {"a": ["p", "q"], "b": ["p"]}
    results = advance(progress, {"a": clock, "b": clock}, idle=idle, idle_for_ms=7)
    assert {name: value.watermark for name, value in results.items()} == {"a": 297, "b": 297}
    assert advance({"b": seen(p=None)}, {"b": clock}, idle={"b": ["p"]}, idle_for_ms=7)["b"].watermark is None


def test_t6_goes_on_from_where_it_began_however_often_that_is_committed() -> None:
    clock = InputClock(delay_ms=10, advance_on_idle=True)
    progress = {"a": seen(400, p=100)}
    for idle_for in (7, 9, 20):
        progress = advance(progress, {"a": clock}, idle={"a": ["p"]}, idle_for_ms=idle_for)
        assert (progress["a"].watermark, progress["a"].idle_from, progress["a"].idle_ms) == (
            400 + idle_for,
            400,
            idle_for,
        )


@pytest.mark.parametrize(
    ("a", "b", "idle", "expected"),
    [
        (seen(p=1), seen(p=1), {"a": ["p"]}, False),
        (seen(p=1), seen(p=1), {"a": ["p"], "b": ["p"]}, True),
        (seen(END, p=1), seen(p=1), {"b": ["p"]}, True),  # an ended input has nothing more to say
        (seen(END, p=1), seen(END, p=1), {}, False),  # nothing is waiting any more
        (seen(p=1), seen(), {"a": ["p"]}, False),
    ],
)
def test_all_idle(a: InputProgress, b: InputProgress, idle: Mapping[str, list[str]], expected: bool) -> None:
    assert all_idle({"a": a, "b": b}, idle) is expected


def test_t7_an_ended_input_is_at_infinity_for_good() -> None:
    progress = {"a": seen(p=100), "b": seen(p=50)}
    assert advanced(progress, ended=["a"]) == {"a": END, "b": 40}
    assert advanced({"a": seen(END, p=100), "b": seen(p=None)}) == {"a": END, "b": None}
    assert seen(END, p=1).ended


def test_an_explicit_clock_moves_only_when_told() -> None:
    explicit = InputClock(delay_ms=0, explicit=True)
    progress = {"a": seen(30, p=100), "b": seen(p=50)}
    assert advanced(progress, a=explicit) == {"a": 30, "b": 40}
    assert advanced({"a": progress["a"].raised(60), "b": progress["b"]}, a=explicit)["a"] == 60
    assert advanced(progress, ended=["a"], a=explicit)["a"] == END
