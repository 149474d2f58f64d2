"""`joinery state show` and `why` of an aggregate behind a deduplication, on state that real epochs have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.commands import Joinery
from cli.one_input_jobs import ZERO, after, resource, row, why
from job.chains import parsed
from joinery_runtime.inspect.state_show import show


def document() -> dict[str, Any]:
    aggregate = {
        "groupBy": ["c.k"],
        "window": {"tumbling": {"size": "10ms"}},
        "aggregates": [{"function": "count", "as": "rows"}],
    }
    deduplicate = {"by": ["c.k", "c.v"], "within": "50ms"}
    return resource("d", deduplicate=deduplicate, aggregate=aggregate, stateStore={"memory": {}})


def test_each_step_has_a_key_of_its_own() -> None:
    job = parsed(document())
    store = after(job, [row(100, 1), row(101, 1), row(102, 2)], [row(105, 3)])
    first, *rows = show(job, store, ["k=x", "v=1"]).lines()
    assert first.startswith('job d, step 1, key k "x", v 1: 1 row is kept')
    assert f'c 0/0 at {ZERO}.100Z: k "x", v 1; was emitted; repeats of it are dropped' in rows[0]
    (first, pane) = show(job, store, ["k=x"]).lines()
    assert first == 'job d, step 2, key c.k "x": 1 span is kept after epoch 4'
    assert "rows 2; in the window" in pane


STEPS: list[dict[str, Any]] = [
    {"input": "c", "rows": [row(100, 1), row(101, 1), row(102, 2)]},
    {"watermark": {"c": 110}},
]


def test_why_says_that_a_repeat_made_nothing(joinery: Joinery, tmp_path: Path) -> None:
    question = why(tmp_path, document(), STEPS)
    repeat, other = (joinery(*question, "--record", f"c:0={offset}").lines[0]["records"][0] for offset in (1, 2))
    assert (repeat["made"], repeat["prevented"]) == ([], [])
    assert [change["row"]["rows"] for change in other["made"]] == [2]
    assert [change["row"]["rows"] for change in other["prevented"]] == [1]


def test_why_takes_no_key(joinery: Joinery, tmp_path: Path) -> None:
    ended = joinery(*why(tmp_path, document(), STEPS), "--key", "k=x")
    assert ended.code != 0
    assert "have keys of their own" in " ".join(ended.err.replace("│", " ").split())
