"""The page's script without a browser: it loads, and its sums are right. `test_status_page.py` has it drawn by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import quickjs

from hosts.test_status_page import PAGE

# As much of a browser as the script asks for while it is loaded.
BROWSER = """
const nothing = () => {};
const node = () => new Proxy(nothing, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => "" : node()), set: () => true, apply: () => node(),
});
const document = node(), matchMedia = node, setTimeout = nothing, AbortSignal = {timeout: nothing};
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
