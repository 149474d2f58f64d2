"""Many late rows are warned about while the job runs, by one rule: of the newest records, at least 1 %."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from engine.simulation import World
from engine.test_totals import epochs, started
from job.chains import load
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.late_rows import LATE_RECORDS, LATE_WINDOW_MS, LateCounts, LateInput, late_inputs
from joinery_runtime.engine.report import Totals
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.state.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("simulated_topics")

_identifiers = count(1)

SIDE: dict[str, Any] = {
    "file": {"path": "unused"},
    "format": "json",
    "eventTime": "ts",
    "schema": [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}],
}
COUNT = {"function": "count", "as": "rows"}


def learned(rows: LateCounts, records: int, late: int = 0, at_ms: int = 0, behind: int = 1_000) -> list[LateInput]:
    return list(rows.learn(at_ms, {"orders": records}, {"orders": late} if late else {}, {"orders": behind}))


@pytest.mark.parametrize(("late", "warns"), [(0, False), (5, False), (6, True), (493, True)])
def test_from_one_percent_on_late_rows_are_warned_about(late: int, *, warns: bool) -> None:
    rows = LateCounts({"orders": InputClock(10_000)}, {"orders": 0.01})
    warned_inputs = learned(rows, 600, late)
    assert warned_inputs == ([LateInput("orders", late, 1_000, 11_000, 600)] if warns else [])
    assert list(rows.active.values()) == warned_inputs


def test_the_words_name_the_delay() -> None:
    (warning,) = learned(LateCounts({"orders": InputClock(0)}, {"orders": 0.01}), 600, 493, behind=300_000)
    assert warning.words == (
        "493 of the newest 600 records of orders (82 %) were dropped as late, up to 5m behind its watermark; "
        "watermark.delay: 5m of that input would have kept them all"
    )


@pytest.mark.parametrize(("rows", "shown"), [(493, "82 %"), (600, "100 %"), (6, "1 %"), (7, "1.2 %"), (598, "100 %")])
def test_a_share_is_shown_with_two_digits(rows: int, shown: str) -> None:
    assert f" of orders ({shown}) were dropped" in LateInput("orders", rows, None, None, 600).words


def test_a_warning_comes_once_and_again_after_it_has_gone() -> None:
    rows = LateCounts({"orders": InputClock(0)}, {"orders": 0.01})
    assert learned(rows, 100, 10)
    assert not learned(rows, 100, 10)
    assert not learned(rows, LATE_RECORDS, at_ms=1)
    assert not rows.active
    assert learned(rows, LATE_RECORDS, LATE_RECORDS // 50, at_ms=2)


def test_newest_records_are_the_last_ten_thousand_or_those_of_five_minutes() -> None:
    slow, fast = (
        LateCounts({"orders": InputClock(0)}, {"orders": 0.01}),
        LateCounts({"orders": InputClock(0)}, {"orders": 0.01}),
    )
    learned(slow, 50, 40)
    for minute in range(60):
        learned(slow, 50, at_ms=60_000 * minute)
    assert slow.active["orders"].records == 50 + 60 * 50
    learned(fast, LATE_RECORDS, LATE_RECORDS)
    learned(fast, 9 * LATE_RECORDS, at_ms=LATE_WINDOW_MS)
    assert fast.active["orders"].records == 10 * LATE_RECORDS
    learned(fast, 1, at_ms=LATE_WINDOW_MS + 1)
    assert not fast.active


@pytest.mark.parametrize(("share", "warns"), [(None, False), (0.9, False), (0.8, True), (0.0, True)])
def test_the_job_sets_the_share(share: float | None, *, warns: bool) -> None:
    assert bool(learned(LateCounts({"orders": InputClock(0)}, {"orders": share}), 600, 493)) is warns


def test_inputs_are_apart() -> None:
    rows = LateCounts({"orders": InputClock(0), "payments": InputClock(0)}, {"orders": 0.01, "payments": 0.01})
    rows.learn(0, {"orders": 100, "payments": 100}, {"payments": 50}, {"payments": 7})
    rows.learn(0, {"orders": 100, "payments": 0}, {}, {})
    assert [late_input.input for late_input in rows.active.values()] == ["payments"]


def test_the_branches_of_a_union_have_the_delay() -> None:
    clock = InputClock(5_000, branch_delays={"eu": 5_000, "us": 1_000})
    (warning,) = learned(LateCounts({"orders": clock}, {"orders": 0.01}), 600, 493, behind=300_000)
    assert warning.words.endswith("watermark.delay: 5m5s of the inputs eu and us would have kept them all")
    totals = Totals(dropped={"orders": {"late": 2}}, behind={"orders": 7})
    (report,) = late_inputs(totals, {"orders": clock})
    assert report.words.endswith("watermark.delay: 5s7ms of the inputs eu and us would have kept them all")


def test_late_rows_of_a_join_are_told_of_at_the_input_whose_time_they_have() -> None:
    """One record may make several, and an epoch may have no record of that input."""
    rows = LateCounts({"orders": InputClock(0)}, {"orders": 0.01})
    (warning,) = learned(rows, 1, 30)
    assert (warning.rows, warning.records) == (30, 30)
    assert learned(LateCounts({"orders": InputClock(0)}, {"orders": 0.01}), 0, 30)


def test_the_delay_that_keeps_late_rows_of_a_join_is_named() -> None:
    inputs = [{**side, "name": name} for side, name in zip([SIDE, SIDE | {"table": {"key": ["k"]}}], "lr", strict=True)]
    as_of = {"right": "r", "keys": {"l.k": "r.k"}, "asOf": {"of": "l", "historyRetention": "10h"}}
    aggregate = {"groupBy": ["l.k"], "window": {"tumbling": {"size": "10s"}}, "aggregates": [COUNT]}
    job = load(as_of, inputs=inputs, aggregate=aggregate)
    ahead = [{"rows": {"l": [{"k": "a", "ts": at}], "r": [{"k": "a", "ts": 1}]}} for at in (100_000, 100_001)]
    *_, line = run_trace(job, [*ahead, {"rows": {"l": [{"k": "a", "ts": 1_000}]}}], MemoryStore())
    (warning,) = line["warnings"]
    assert line["late"] == {"l": 1, "r": 0}
    assert warning.endswith(
        "up to 1m39s1ms behind its watermark; watermark.delay: 1m39s1ms of that input would have kept them all"
    )


def test_an_epoch_warns_while_the_job_runs(world: World) -> None:
    for name, partition in (("orders", 0), ("orders", 1), ("payments", 0)):
        world.append(name, partition, "a", 100_000, identifier=next(_identifiers))
    driver = started(world)
    assert [report.warnings for report in epochs(driver)] == [()]
    for ts in (1, 2):
        world.append("orders", 0, "a", ts, identifier=next(_identifiers))
    (report,) = epochs(driver)
    words = "2 of the newest 4 records of orders (50 %) were dropped as late, up to 1m39s994ms behind its watermark"
    assert report.late_warnings["orders"].startswith(words)
    assert report.warnings == (report.late_warnings["orders"],)


def test_an_epoch_says_how_far_its_rows_are_out_of_order(world: World) -> None:
    driver = started(world)
    for times in ((5_000, 9_000, 6_000), (8_500, 9_500)):
        for ts in times:
            world.append("orders", 0, "a", ts, identifier=next(_identifiers))
        world.append("payments", 0, "a", times[0], identifier=next(_identifiers))
        (report,) = epochs(driver)
        assert report.disorder == {"orders": 3_000 if times[0] == 5_000 else 500, "payments": 0}
