"""`lateData: dlq`: what becomes of a late record (rules J6, W2, S4). The golden traces say which records are late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore
from traces.corpus import resource, session_resource

DEAD = {"deadLetter": {"file": {"path": "unused-dead.jsonl"}}}
EXPLICIT = {"watermark": {"explicit": True}}
INPUTS = {"inputs": [{"name": "l", **EXPLICIT}, {"name": "r", **EXPLICIT}]}


def dead_letters(job: dict[str, Any], steps: Sequence[dict[str, Any]], shards: int) -> list[dict[str, Any]]:
    traced = run_trace(parse_job(json.dumps(job), "job.yaml", plain_numbers=True), steps, MemoryStore(), shards=shards)
    return [letter for line in traced for letter in line.get("dead_letters", [])]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("step", "watermarks", "below"),
    [
        ({"interval": {"lower": -3, "upper": 8}}, {"l": 100, "r": 120}, 92),
        ({"type": "left", "interval": {"lower": -3, "upper": 8}}, {"l": 100, "r": 120}, 100),
        ({"window": {"tumbling": 10}}, {"l": 100, "r": 120}, 100),
    ],
)
def test_a_late_record_of_a_join_is_one_dead_letter(
    step: dict[str, Any], watermarks: dict[str, int], below: int, shards: int
) -> None:
    job = resource({**INPUTS, **DEAD, "joins": [{**step, "lateData": "dlq"}]}, "late")
    late = {"k": "a", "v": "late", "ts": below - 1, "$partition": 2}
    steps = [
        {"watermark": watermarks},
        {"input": "l", "rows": [{"k": "a", "v": "A", "ts": below}, late]},
        {"end": True},
    ]
    (letter,) = dead_letters(job, steps, shards)
    assert (letter["input"], letter["partition"], letter["offset"]) == ("l", 2, 0)
    assert letter["reason"] == (
        f"late: event time 'ts' is 1970-01-01T00:00:00.{below - 1:03}Z, rows are taken from "
        f"1970-01-01T00:00:00.{below:03}Z on (watermark: l 1970-01-01T00:00:00.100Z, r 1970-01-01T00:00:00.120Z)"
    )
    assert '"late"' in letter["text"]


@pytest.mark.parametrize("shards", [1, 4])
def test_a_late_record_of_a_session_of_both_sides_is_one_dead_letter(shards: int) -> None:
    """Other rows of the key decide: of records behind the watermark, an open session takes the one of `a`."""
    job = resource({**INPUTS, **DEAD, "joins": [{"window": {"session": {"gap": 10}}, "lateData": "dlq"}]}, "late")
    behind = [{"k": key, "v": f"late {key}", "ts": 91, "$partition": 2} for key in ("a", "b", "c")]
    steps = [
        {"input": "l", "rows": [{"k": "a", "v": "A", "ts": 100}]},
        {"watermark": {"l": 109, "r": 109}},
        {"input": "r", "rows": behind},
        {"restart": True},
        {"input": "r", "rows": [{"k": "c", "v": "late too", "ts": 91}, {"k": "c", "v": "in time", "ts": 99}]},
    ]
    letters = dead_letters(job, steps, shards)
    assert [(letter["partition"], letter["offset"]) for letter in letters] == [(2, 1), (2, 2)]
    assert letters[0]["reason"] == (
        "late: event time 'ts' is 1970-01-01T00:00:00.091Z, sessions that end before 1970-01-01T00:00:00.099Z are "
        "closed (watermark: l 1970-01-01T00:00:00.109Z, r 1970-01-01T00:00:00.109Z)"
    )
    assert '"late b"' in letters[0]["text"]


def test_a_late_row_of_a_session_is_one_dead_letter() -> None:
    job = session_resource({**DEAD, "input": EXPLICIT, "lateData": "dlq", "allowedLateness": 5}, "late")
    steps = [{"watermark": {"c": 110}}, {"input": "c", "rows": [{"k": "a", "ts": 104}, {"k": "a", "ts": 105}]}]
    (letter,) = dead_letters(job, steps, 2)
    assert letter["reason"].startswith("late: event time 'ts' is 1970-01-01T00:00:00.104Z, rows are taken from")
    assert letter["offset"] == 0
