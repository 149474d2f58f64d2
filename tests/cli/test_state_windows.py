"""`joinery state show` and `stats` of windows of an aggregate, on state that real epochs have left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cli.one_input_jobs import ZERO, after, resource, row
from job.chains import parsed
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.job import StreamJoin, explain
from joinery_runtime.state.memory import MemoryStore

AGGREGATES = [{"function": "count", "as": "events"}, {"function": "sum", "column": "c.v", "as": "total"}]


def job_of(window: Mapping[str, Any], **fields: Any) -> StreamJoin:
    aggregate = {"groupBy": ["c.k"], "window": window, "aggregates": AGGREGATES, **fields}
    return parsed(resource("w", aggregate=aggregate))


def shown(job: StreamJoin, store: MemoryStore, key: str = "k=x") -> list[dict[str, Any]]:
    (step,) = show(job, store, [key]).document()["steps"]
    return list(step["rows"])


def test_a_tumbling_window_has_its_aggregates_so_far_and_its_end() -> None:
    job = job_of({"tumbling": {"size": "10ms"}}, allowedLateness="5ms")
    store = after(job, [row(100, 3), row(105, 4), row(103, k="y")], [row(101, 5)])
    assert shown(job, store) == [
        {
            **{"input": "c", "start": 100, "end": 110, "windows": [[100, 110]], "until_input": "c", "until": 115},
            "aggregates": {"events": 3, "total": 12},
        }
    ]
    first, line = show(job, store, ["k=x"]).lines()
    assert first == 'job w, step 1, key k "x": 1 span is kept after epoch 2'
    assert line == (
        f"rows from {ZERO}.100Z to before {ZERO}.110Z: events 3, total 12; in the window {ZERO}.100Z to {ZERO}.110Z; "
        f"the first one is emitted when the watermark of c ({ZERO}.105Z) is at {ZERO}.115Z or above"
    )


def test_a_hopping_window_is_shown_by_the_spans_that_windows_share() -> None:
    job = job_of({"hopping": {"size": "20ms", "slide": "10ms"}})
    store = after(job, [row(105), row(111)], [row(99), row(112)])
    # The watermark is 112: [90, 110) has been emitted. The row at 99 was in [80, 100) and in [90, 110), so it was late.
    assert [(span["start"], span["windows"], span["until"]) for span in shown(job, store)] == [
        (100, [[100, 120]], 120),
        (110, [[100, 120], [110, 130]], 120),
    ]
    document = stats(job, store).document()
    assert document["windows"] == {"kept": 2, "due": 0, "until_input": "c", "until": 120}
    (side,) = document["sides"]
    assert (side["part"], side["side"]) == ("aggregate", "aggregate")
    assert side["goes"] == f"emits windows that end at {ZERO}.112Z or before"
    lines = list(stats(job, store).lines())
    assert "windows: 2 spans of a group, 0 in a window that the next epoch emits" in lines
    assert f"  the next window is emitted when the watermark of c is at {ZERO}.120Z or above" in lines


def test_a_group_may_be_named_with_its_input() -> None:
    job = job_of({"tumbling": {"size": "10ms"}})
    store = after(job, [row(100), row(105, k="y")])
    assert shown(job, store, "c.k=x") == shown(job, store, "k=x") != []
    with pytest.raises(JoineryError, match=r"--key d\.k=x cannot be used: the rows of job w are grouped by k"):
        show(job, store, ["d.k=x"])


def test_windows_without_groups_are_of_no_key() -> None:
    job = job_of({"tumbling": {"size": "10ms"}}, groupBy=[])
    store = after(job, [row(100), row(105, k="y")])
    with pytest.raises(JoineryError, match="has no such key: its windows have no groups"):
        show(job, store, ["k=x"])
    assert [side.rows for side in stats(job, store).sides] == [1]
    assert "groups: none, all rows are one group" in explain(job).render()


def test_windows_that_have_been_emitted_are_not_shown() -> None:
    job = job_of({"cumulative": {"size": "20ms", "step": "10ms"}})
    store = after(job, [row(100), row(119, k="y")])
    assert [span["windows"] for span in shown(job, store)] == [[[100, 120]]]
    store = after(job, [row(100), row(119, k="y")], [row(120, k="y")])
    assert shown(job, store) == []
    assert shown(job, store, "k=y")[0]["windows"] == [[120, 130], [120, 140]]


def test_a_window_that_reopens_is_shown_until_it_takes_no_rows() -> None:
    """The watermark is 112: the window to 110 has been emitted, and takes rows until 125."""
    job = job_of({"tumbling": {"size": "10ms"}}, lateData="reopen", allowedLateness="15ms")
    store = after(job, [row(105)], [row(112)], [row(106)])
    emitted, coming = list(show(job, store, ["k=x"]).lines())[1:]
    assert emitted.endswith(f"takes rows until the watermark of c ({ZERO}.112Z) is at {ZERO}.125Z or above")
    assert coming.endswith(f"takes rows until the watermark of c ({ZERO}.112Z) is at {ZERO}.135Z or above")
    assert stats(job, store).document()["windows"] == {"kept": 2, "due": 0, "until_input": "c", "until": 120}
    lines = dict(explain(job).steps[-1].lines)
    assert (
        lines["emitted"]
        == "each window when wm(c) >= the window's end, and again, whole, after each epoch that changes it"
    )
