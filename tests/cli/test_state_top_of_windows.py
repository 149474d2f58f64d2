"""`joinery state show` and `stats`, and `why`, of top-N behind an aggregate, on state that real epochs have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.commands import Joinery
from cli.one_input_jobs import ZERO, after, lines_of, resource, row, why
from job.chains import parsed
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.job import StreamJoin


def document(**fields: Any) -> dict[str, Any]:
    aggregate = {
        "groupBy": ["c.k"],
        "window": {"tumbling": {"size": "10ms"}},
        "aggregates": [{"function": "sum", "column": "c.v", "as": "total"}],
    }
    top_n = {"by": ["k"], "orderBy": [{"expression": "total", "direction": "desc"}], "rows": 2, **fields}
    return resource("t", aggregate=aggregate, topN=top_n, stateStore={"memory": {}})


def job_of(**fields: Any) -> StreamJoin:
    return parsed(document(**fields))


def test_a_key_is_shown_in_the_aggregate_and_in_the_ranking() -> None:
    job = job_of()
    store = after(job, [row(100, 1), row(101, 5), row(102, 9, "y")], [row(112, 7)])
    first, pane, last = lines_of(job, store)
    assert first == 'job t, step 1, key k "x": 1 span is kept after epoch 4'
    assert "total 7; in the window" in pane
    assert last == 'job t, step 2, key k "x": 0 rows are kept after epoch 4'


def test_stats_say_what_the_next_epoch_emits() -> None:
    job = job_of()
    _, side = stats(job, after(job, [row(100, 1), row(102, 9, "y")], [row(112, 7)])).document()["sides"]
    assert (side["part"], side["side"], side["totals"]["stored"], side["rows"]) == ("topN.2", "topN", 2, 0)
    assert side["goes"] == f"emits the first 2 rows of windows that end at {ZERO}.112Z or before"


STEPS: list[dict[str, Any]] = [
    {"input": "c", "rows": [row(100, 1), row(101, 5)]},
    {"input": "c", "rows": [row(102, 9), row(103, 9, "y"), row(111, 2)]},
    {"watermark": {"c": 110}},
]


def test_why_says_which_rows_a_record_made(joinery: Joinery, tmp_path: Path) -> None:
    """Without the record, the group of x would have been the second one."""
    (record,) = joinery(*why(tmp_path, document(by=None), STEPS), "--record", "c:0=2").lines[0]["records"]
    emitted, prevented = (
        [(change["row"]["k"], change["row"]["total"], change["row"]["row_number"]) for change in record[name]]
        for name in ("made", "prevented")
    )
    assert emitted == [("x", 15, 1), ("y", 9, 2)]
    assert prevented == [("x", 6, 2), ("y", 9, 1)]


def test_why_takes_no_key_because_each_record_may_be_in_each_row(joinery: Joinery, tmp_path: Path) -> None:
    ended = joinery(*why(tmp_path, document(), STEPS), "--key", "k=x")
    assert ended.code != 0
    assert "have keys of their own" in " ".join(ended.err.replace("│", " ").split())
