"""`joinery verify` on the output of a trace, right and spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from cli.verified import inputs_of, left_join, write_files
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_environment import sorted_json_rows
from joinery_runtime.inspect.verify import Verdict, verify
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore

COLUMNS = "[{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]"
JOB = left_join(
    COLUMNS,
    """\
  output: {file: {path: OUT}}
  deadLetter: {file: {path: DEAD}}
  stateStore: {memory: {}}
""",
)
EPOCHS = 5
STEPS: list[dict[str, Any]] = [
    {
        "rows": {
            "l": [{"k": f"k{i}", "v": "l", "ts": 100 * step + i} for i in range(20)],
            "r": [*({"k": f"k{i}", "v": "r", "ts": 100 * step + i} for i in range(0, 20, 2)), {"k": "bad"}],
        }
    }
    for step in range(EPOCHS)
]


@pytest.fixture
def verdict(tmp_path: Path) -> Callable[..., Verdict]:
    """The job has run, and its output is in the files; what is called verifies it."""
    out, dead = tmp_path / "out", tmp_path / "dead"
    job = parse_job(JOB.replace("OUT", str(out)).replace("DEAD", str(dead)), "job.yaml")
    store = MemoryStore()
    lines = list(run_trace(job, STEPS, store, 3))
    inputs = inputs_of(job, STEPS)
    written = sorted_json_rows(write_files(job, store, inputs, tmp_path / "cache"))
    assert sorted(map(json.dumps, written)) == sorted(json.dumps(row) for line in lines for row in line["output"])
    return lambda first=None, last=None: verify(job, store, inputs, first, last)


def part(tmp_path: Path, folder: str = "out", at: int = 1) -> Path:
    return sorted((tmp_path / folder).iterdir())[at]


def test_a_right_output(verdict: Callable[..., Verdict]) -> None:
    judgement = verdict()
    assert (judgement.right, judgement.compared.dead, list(judgement.compared.differences)) == (True, EPOCHS, [])
    assert judgement.compared.rows >= 10 * EPOCHS
    assert next(iter(judgement.lines())).startswith(
        f"job orders-payments, epochs 1 to {judgement.last}: VERIFIED, "
        f"{judgement.compared.rows} rows and {EPOCHS} dead letters"
    )


def test_many_late_rows_are_said_beside_the_verdict(tmp_path: Path) -> None:
    late = {"rows": {"l": [{"k": f"k{i}", "v": "l", "ts": 0} for i in range(13)]}}
    job = parse_job(JOB.replace("OUT", str(tmp_path / "out")).replace("DEAD", str(tmp_path / "dead")), "job.yaml")
    store, steps = MemoryStore(), [*STEPS, late]
    for _ in run_trace(job, steps, store, 3):
        """The rows are written below."""
    inputs = inputs_of(job, steps)
    write_files(job, store, inputs, tmp_path / "cache")
    judgement = verify(job, store, inputs, None, None)
    assert judgement.right
    head, late_line = judgement.lines()
    assert "VERIFIED, BUT MANY ROWS WERE DROPPED AS LATE, " in head
    assert late_line.startswith("after epoch 11, 13 of the newest 113 records of l (12 %) were dropped as late, up to ")
    assert [
        (late_input["input"], late_input["rows"], late_input["records"]) for late_input in judgement.document()["late"]
    ] == [("l", 13, 113)]
    # Epochs that dropped nothing.
    assert list(verify(job, store, inputs, None, 5).late) == []


def test_a_value_that_was_changed(verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    spoilt = part(tmp_path, at=0)
    spoilt.write_text(spoilt.read_text().replace('"right_v":"r"', '"right_v":"R"', 1))
    judgement = verdict()
    assert dict(judgement.compared.counted) == {"different": 1}
    (difference,) = judgement.compared.differences
    assert difference.expected is not None
    assert difference.actual == {**difference.expected, "right_v": "R"}
    number = int(difference.expected["left_k"].removeprefix("k"))  # every second one has a partner
    assert difference.origin == f"r 0/{number // 2} with l 0/{number}"
    assert judgement.document()["verified"] is False
    assert "NOT VERIFIED, 1 different" in next(iter(judgement.lines()))


@pytest.mark.parametrize(("folder", "output"), [("out", "output"), ("dead", "dead letters")])
def test_a_row_that_is_not_there_and_one_that_is_twice(
    verdict: Callable[..., Verdict], tmp_path: Path, folder: str, output: str
) -> None:
    first, second = part(tmp_path, folder), part(tmp_path, folder, 2)
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[1:]))
    second.write_text(second.read_text() + second.read_text().splitlines(keepends=True)[0])
    judgement = verdict()
    assert dict(judgement.compared.counted) == {"missing": 1, "extra": 1}
    assert {difference.output for difference in judgement.compared.differences} == {output}


def test_a_line_that_is_no_row(verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    spoilt = part(tmp_path)
    spoilt.write_text(spoilt.read_text() + "torn{\n")
    assert [difference.actual for difference in verdict().compared.differences] == [{"not JSON": "torn{"}]


def test_the_same_row_written_in_another_way(verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    other = part(tmp_path)
    other.write_text("".join(json.dumps(json.loads(line)) + "\n" for line in other.read_text().splitlines()))
    assert verdict().right


def test_only_the_epochs_that_were_asked_for(verdict: Callable[..., Verdict], tmp_path: Path) -> None:
    part(tmp_path, at=0).write_text("")
    assert verdict(3).right
    assert not verdict(None, 2).right
    with pytest.raises(JoineryError, match="has no such epoch"):
        verdict(99)


def test_the_command_refuses_what_cannot_be_verified(joinery: Joinery, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    assert "are no epochs" in joinery("verify", job, "--epochs", "5..2").err
    assert "keeps its state in memory" in joinery("verify", job).err
