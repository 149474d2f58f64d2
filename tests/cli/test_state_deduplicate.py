"""`joinery state show` and `stats`, and `joinery why`, of deduplication, on state that real epochs have left."""

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
    deduplicate = {"by": ["c.k"], "within": "10ms", **fields}
    return resource("d", deduplicate=deduplicate, stateStore={"memory": {}})


def job_of(**fields: Any) -> StreamJoin:
    return parsed(document(**fields))


def test_a_first_row_that_was_emitted_and_one_that_waits() -> None:
    job = job_of()
    lines = lines_of(job, after(job, [row(100, 1), row(102, 2), row(105, 3, "y")], [row(106, 4)]))
    assert lines == [
        'job d, step 1, key k "x": 2 rows are kept after epoch 4; 1 that left the state is still stored',
        f'c 0/0 at {ZERO}.100Z: k "x", v 1; was emitted; repeats of it are dropped until the watermark of c '
        f"({ZERO}.106Z) is at {ZERO}.110Z or above",
        f'c 0/1 at {ZERO}.102Z: k "x", v 2; a repeat, or of a span that was emitted',
        f'c 0/3 at {ZERO}.106Z: k "x", v 4; waits until the watermark of c ({ZERO}.106Z) is above {ZERO}.106Z; then '
        "repeats of it are known",
    ]


def test_an_open_span_has_its_first_and_its_last_row() -> None:
    job = job_of(keep="last")
    store = after(job, [row(100, 1), row(102, 2), row(103, 3), row(105, 3, "y")], [row(106, 4)])
    first, *rows = lines_of(job, store)
    assert first == 'job d, step 1, key k "x": 3 rows are kept after epoch 2; 1 that left the state is still stored'
    open_, repeat, last, waits = (line.partition("; ")[2] for line in rows)
    assert open_.startswith("in an open span, of which the last row is emitted; goes at the latest when the watermark")
    assert repeat == "a repeat, or of a span that was emitted"
    assert last.startswith("in an open span")
    assert waits.startswith("waits until the watermark of c")
    (side,) = stats(job, store).document()["sides"]
    assert (side["part"], side["side"], side["rows"]) == ("deduplicate", "deduplicate", 4)
    assert side["goes"] == f"emits the last row of spans that end at {ZERO}.106Z or before"


STEPS: list[dict[str, Any]] = [
    {"input": "c", "rows": [row(102, 2), row(100, 1), row(105, 3, "y")]},
    {"input": "c", "rows": [row(101, 4), row(111, 5)]},
    {"watermark": {"c": 200}},
]


@pytest.mark.parametrize("question", [["--key", "k=x"], ["--record", "c:0=1"]])
def test_why_says_which_row_is_a_repeat_and_what_it_made(joinery: Joinery, tmp_path: Path, question: list[str]) -> None:
    lines = [*STEPS[:1], {"watermark": {"c": 101}}, *STEPS[1:]]
    records = joinery(*why(tmp_path, document(), lines), *question).lines[0]["records"]
    emitted = {record["columns"]["v"]: [entry["row"]["v"] for entry in record["made"]] for record in records}
    if "--key" in question:
        assert emitted == {2: [], 1: [1], 4: [], 5: [5]}
    else:
        assert emitted == {1: [1]}
    assert all(record["dropped"] is None for record in records)
