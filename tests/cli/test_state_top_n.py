"""`joinery state show` and `stats` of top-N, on state that real epochs have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from cli.one_input_jobs import ZERO, after, lines_of, resource, row, why
from job.chains import parsed
from joinery_runtime.inspect.state_stats import stats
from joinery_runtime.job import StreamJoin


def document(**fields: Any) -> dict[str, Any]:
    top_n = {
        "by": ["c.k"],
        "orderBy": [{"expression": "c.v", "direction": "desc"}],
        "rows": 2,
        "window": {"tumbling": {"size": "10ms"}},
        **fields,
    }
    return resource("t", topN=top_n, stateStore={"memory": {}})


def job_of(**fields: Any) -> StreamJoin:
    return parsed(document(**fields))


def test_rows_that_are_among_the_first_and_one_that_others_displace() -> None:
    job = job_of()
    lines = lines_of(job, after(job, [row(100, 1), row(101, 5), row(102, 9, "y")], [row(103, 7), row(104, 0)]))
    until = f"the watermark of c ({ZERO}.104Z) is at {ZERO}.110Z or above"
    assert lines == [
        'job t, step 1, key k "x": 2 rows are kept after epoch 2; 1 that left the state is still stored',
        f'c 0/0 at {ZERO}.100Z: k "x", v 1; 2 rows of its key and window precede it',
        f'c 0/1 at {ZERO}.101Z: k "x", v 5; one of the first so far; goes when {until}',
        f'c 0/3 at {ZERO}.103Z: k "x", v 7; one of the first so far; goes when {until}',
    ]


def test_an_ended_window_leaves_nothing() -> None:
    job = job_of()
    store = after(job, [row(100, 1), row(101, 5)], [row(110, 7)])
    (first, *rows) = lines_of(job, store)
    assert first.startswith('job t, step 1, key k "x": 1 row is kept')
    assert [line for line in rows if "v 7; one of the first so far" in line]


def test_stats_say_what_the_next_epoch_emits() -> None:
    job = job_of(allowedLateness="5ms")
    (side,) = stats(job, after(job, [row(100, 1), row(101, 5)], [row(112, 7)])).document()["sides"]
    assert (side["part"], side["side"], side["rows"]) == ("topN", "topN", 3)
    assert side["goes"] == f"emits the first 2 rows of windows that end at {ZERO}.107Z or before"


@pytest.mark.parametrize("question", [["--key", "k=x"], ["--record", "c:0=2"]])
def test_why_says_which_rows_a_record_made(joinery: Joinery, tmp_path: Path, question: list[str]) -> None:
    arrivals = [[row(100, 1), row(101, 5)], [row(102, 9), row(103, 9, "y"), row(111, 2)]]
    lines = [*({"input": "c", "rows": rows} for rows in arrivals), {"watermark": {"c": 200}}]
    records = joinery(*why(tmp_path, document(), lines), *question).lines[0]["records"]
    by_value = {record["columns"]["v"]: record for record in records}
    emitted, prevented = (
        [(change["row"]["v"], change["row"]["row_number"]) for change in by_value[9][name]]
        for name in ("made", "prevented")
    )
    assert by_value.keys() == ({1, 5, 9, 2} if "--key" in question else {9})
    assert emitted == [(5, 2), (9, 1)]
    assert prevented == [(1, 2), (5, 1)]
    assert all(record["dropped"] is None for record in records)
