"""The page's script without a browser: it loads, and its sums are right. `test_status_page.py` has it drawn by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import quickjs

from hosts.test_status_page import PAGE
from joinery_runtime.job import format_duration

# As much of a browser as the script asks for while it is loaded.
BROWSER = """
const nothing = () => {};
const node = () => new Proxy(nothing, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => "" : node()), set: () => true, apply: () => node(),
});
const document = node(), matchMedia = node, getComputedStyle = node;
const setTimeout = nothing, AbortSignal = {timeout: nothing};
const fetch = async () => { throw new Error("there is no server"); };
class Node {}
class ResizeObserver { observe() {} }
"""


@pytest.fixture
def script() -> quickjs.Context:
    context = quickjs.Context()
    context.eval(BROWSER)
    context.eval((PAGE / "page.js").read_text())
    return context


def rates(script: quickjs.Context, totals: list[int | None], every_s: int = 3) -> list[Any]:
    samples = json.dumps([{"at": 1000 * every_s * i, "total": total} for i, total in enumerate(totals)])
    return list(json.loads(script.eval(f"JSON.stringify(ratesOf({samples}, (sample) => sample.total))")))


def test_a_rate_is_that_of_an_epoch_however_long_it_is(script: quickjs.Context) -> None:
    totals: list[int | None] = [9000 * (i // 10) for i in range(101)]  # 9,000 rows every 30 s
    assert rates(script, totals) == [None, *[300] * 100]


def test_what_comes_between_two_samples_is_their_difference(script: quickjs.Context) -> None:
    assert rates(script, [0, 300, 900, 900, 900, 1800]) == [None, 100, 200, 100, 100, 100]


def test_a_job_that_gets_no_more_falls_to_nothing_once_an_epoch_would_have_come(script: quickjs.Context) -> None:
    assert rates(script, [0, 0, 600, 600, 600, 600, 600]) == [None, 100, 100, None, None, 0, 0]


def test_totals_that_begin_anew_have_no_rate(script: quickjs.Context) -> None:
    assert rates(script, [None, 900, 1800, 0, 300]) == [None, None, 300, None, 100]


@pytest.mark.parametrize(("number", "shown"), [("1234567", "1.23 M"), ("0.5", "0.5"), ("null", "\u2013")])
def test_numbers_are_short(script: quickjs.Context, number: str, shown: str) -> None:
    assert script.eval(f"short({number})") == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        ("null", "\u2013"), ("0.2", "0s"), ("999.4", "999ms"), ("999.7", "1s"), ("59949", "59.9s"), ("59999", "1m"),
        ("119700", "2m"), ("3599600", "1h"), ("7199000", "2h"), ("172799000", "2 days"),
    ],
)  # fmt: skip
def test_a_duration_has_no_60_seconds_or_minutes(script: quickjs.Context, ms: str, shown: str) -> None:
    assert script.eval(f"duration({ms})") == shown


@pytest.mark.parametrize("ms", [1, 999, 1_000, 14_000, 60_000, 74_000, 3_600_000, 3_660_000, 90_000_000])
def test_a_duration_is_written_as_in_jobs_and_by_kubectl(script: quickjs.Context, ms: int) -> None:
    assert script.eval(f"duration({ms})") == format_duration(ms)


@pytest.mark.parametrize(
    ("times", "span", "shown"),
    [
        ([100], [100, 86_500], [-20, 100]),  # uPlot gives a day
        ([100, 103], [100, 103], [-17, 103]),
        ([100, 1000], [100, 1000], [100, 1000]),
        ([100, 1000], [400, 600], [400, 600]),  # a part that was selected
    ],
)
def test_the_axis_of_few_samples_is_two_minutes(
    script: quickjs.Context, times: list[int], span: list[int], shown: list[int]
) -> None:
    from_to = json.loads(script.eval(f"JSON.stringify(ofTimes({{data: [{times}]}}, {span[0]}, {span[1]}))"))
    assert from_to == shown


def test_no_two_labels_of_an_axis_say_the_same_minute(script: quickjs.Context) -> None:
    steps = json.loads(script.eval("JSON.stringify(axis(hourAndMinute).incrs)"))
    assert steps == sorted(steps)
    assert all(step % 60 == 0 for step in steps)


@pytest.mark.parametrize(
    ("inputs", "shown"),
    [
        ([{"name": "orders"}], ["Running", "good"]),
        (
            [{"name": "orders"}, {"name": "p", "lateWarning": "493 of 600"}],
            ["Running, rows are dropped as late", "wait"],
        ),
        ([{"name": "orders", "ended": True}], ["All inputs read", "good"]),
        (
            [{"name": "orders", "ended": True, "lateWarning": "x"}],
            ["All inputs read, rows were dropped as late", "wait"],
        ),
    ],
)
def test_the_badge_is_not_green_while_many_rows_are_late(
    script: quickjs.Context, inputs: list[dict[str, Any]], shown: list[str]
) -> None:
    answer = {"ready": True, "inputs": inputs, "paused": [], "tooHot": []}
    assert json.loads(script.eval(f"status = {json.dumps(answer)}; JSON.stringify(standing())")) == shown
    late_warnings = [input_status["lateWarning"] for input_status in inputs if "lateWarning" in input_status]
    assert [text for _, text in json.loads(script.eval("JSON.stringify(notices())"))] == late_warnings


def test_a_part_of_the_state_has_the_name_of_its_side(script: quickjs.Context) -> None:
    state_sides = ((1, "left", ["a"]), (1, "right", ["b"]), (2, "left", ["a", "b"]), (2, "right", ["c"]))
    sides = [{"step": step, "side": side, "inputs": inputs} for step, side, inputs in state_sides]
    parts = ("left", "right.2", "left.2", "left.3")
    named = [script.eval(f"partName({part!r}, {json.dumps(sides)})") for part in parts]
    assert named == ["step 1, left (a)", "step 2, right (c)", "step 2, left (a, b)", "left.3"]
    assert script.eval(f"partName('right', {json.dumps(sides[:2])})") == "right (b)"


def test_a_card_shows_the_newest_rate_of_its_chart(script: quickjs.Context) -> None:
    assert script.eval("newest([null, 100, null, null])") == 100
    assert script.eval("newest([null, 100, 0])") == 0
    assert script.eval("rate(newest([null]))") == "\u2013"
