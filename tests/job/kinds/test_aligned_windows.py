"""Tumbling, hopping and cumulative windows of an aggregate: columns, explanation, and what an edit may change (M2)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import load, step
from job.kinds.test_aggregate_rules import COUNT, SESSION, aggregate, aggregate_call
from job.kinds.test_aggregate_signature import changed
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.windowed.kind import WindowAggregation
from joinery_runtime.job import Comparison, StreamJoin, explain

TUMBLING = {"tumbling": {"size": "1h"}}
HOPPING = {"hopping": {"size": "1h", "slide": "15m", "offset": "5m"}}
CUMULATIVE = {"cumulative": {"size": "24h", "step": "1h"}}
HOUR = 3_600_000


def job_of(window: dict[str, Any], **fields: Any) -> StreamJoin:
    return load(step(), aggregate=aggregate(window=window, **fields))


@pytest.mark.parametrize(
    ("window", "windows"),
    [
        (TUMBLING, Windows(HOUR, HOUR)),
        (HOPPING, Windows(HOUR, HOUR // 4, 300_000)),
        (CUMULATIVE, Windows(24 * HOUR, HOUR, cumulative=True)),
    ],
)
def test_the_step_behind_the_join_has_the_windows_of_the_job(window: dict[str, Any], windows: Windows) -> None:
    job = job_of(window, allowedLateness="1m")
    last = compile_job(job).last
    assert isinstance(last.kind, WindowAggregation)
    assert (last.kind.windows, last.kind.allowed_lateness) == (windows, 60_000)
    assert last.output_schema().names == ["currency", "window_start", "window_end", "n"]
    assert [column.name for column in job.output_columns] == last.output_schema().names


def test_the_plan_says_which_windows_there_are_and_when_they_are_emitted() -> None:
    aggregated = explain(job_of(HOPPING, allowedLateness="1m")).steps[-1]
    lines = dict(aggregated.lines)
    assert lines["windows"] == "1h long, one begins every 15m, aligned to midnight UTC, 5m [offset] after the full ones"
    assert lines["kept as"].endswith(": up to 4 spans of 15m make a window")
    end = "the window's end + 1m [allowedLateness]"
    assert lines["emitted"] == f"each window once, when wm(orders after step 1) >= {end}"
    assert lines["late rows"].endswith(
        "dropped and counted when the end of their last window + 1m [allowedLateness] <= wm(orders after step 1)"
    )


LOCAL = {"tumbling": {"size": "24h", "offset": "5h", "timeZone": "Europe/Zurich"}}


def test_the_plan_names_the_zone_of_the_windows() -> None:
    lines = dict(explain(job_of(LOCAL)).steps[-1].lines)
    aligned = "aligned to local midnight in Europe/Zurich, 5h [offset] after the full ones"
    assert lines["windows"] == f"24h long, one after the other, {aligned}"
    assert lines["local time"].endswith("where clocks change, a window is longer or shorter")


@pytest.mark.parametrize("lengths", [{"size": "1h"}, {"size": "12h"}, {"size": "24h"}, {"size": "168h"}])
def test_windows_of_a_zone_are_hours_that_divide_a_day_or_whole_days(lengths: dict[str, str]) -> None:
    compiled = compile_job(job_of({"tumbling": {**lengths, "timeZone": "Asia/Kathmandu"}}))
    assert isinstance(compiled.last.kind, WindowAggregation)
    assert compiled.last.kind.windows.zone == "Asia/Kathmandu"


LONGER = {"tumbling": {"size": "2h"}}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (TUMBLING, LONGER, "the windows' size was 1h, it is now 2h"),
        (TUMBLING, {"tumbling": {"size": "1h", "offset": "1m"}}, "the windows' offset was 0s, it is now 1m"),
        (HOPPING, {"hopping": {**HOPPING["hopping"], "slide": "1h"}}, "the windows' slide was 15m, it is now 1h"),
        (CUMULATIVE, {"cumulative": {"size": "24h", "step": "2h"}}, "the windows' step was 1h, it is now 2h"),
        (
            LOCAL,
            {"tumbling": {"size": "24h", "offset": "5h"}},
            "the windows' time zone was Europe/Zurich, it is now UTC",
        ),
        (
            LOCAL,
            {"tumbling": {**LOCAL["tumbling"], "timeZone": "Europe/Paris"}},
            "the windows' time zone was Europe/Zurich, it is now Europe/Paris",
        ),
        (TUMBLING, {"session": SESSION}, "the kind of window was tumbling, it is now session"),
    ],
)
def test_windows_do_not_change_while_there_is_state(before: dict[str, Any], after: dict[str, Any], words: str) -> None:
    assert words in changed(job_of(before), job_of(after)).refused[0]


def test_another_aggregate_is_not_in_the_stored_windows() -> None:
    added = job_of(TUMBLING, aggregates=[COUNT, aggregate_call("sum", "orders.amount")])
    assert "sum(orders.amount) is not in the stored windows" in changed(job_of(TUMBLING), added).refused[0]
    assert changed(added, job_of(TUMBLING)) == Comparison((), ())


def test_longer_lateness_brings_nothing_back() -> None:
    (warning,) = changed(job_of(TUMBLING), job_of(TUMBLING, allowedLateness="1m")).warnings
    assert "windows that were emitted before stay as they are" in warning
