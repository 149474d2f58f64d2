from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from joinery_runtime import explain, load_job, trace
from joinery_runtime.errors import JoineryError

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: traced}
spec:
  inputs:
    - {name: l, file: {path: l.jsonl}, format: json, schema: [{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}], eventTime: ts}
    - {name: r, file: {path: r.jsonl}, format: json, schema: [{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}], eventTime: ts}
  joins: [{right: r, keys: {l.k: r.k}, interval: {of: l, lower: -10ms, upper: 10ms}}]
  select: [{column: l.v, as: l}, {column: r.v, as: r}]
  output: {file: {path: out}}
  stateStore: {memory: {}}
"""  # noqa: E501
STEPS: list[dict[str, Any]] = [
    {"input": "l", "rows": [{"k": "a", "v": "A", "ts": 100}, {"k": "b", "v": "B", "ts": 100}]},
    {"restart": True},
    {"rescale": 3},
    {"rows": {"r": [{"k": "a", "v": "a", "ts": 105, "$partition": 1}, {"k": "c", "v": "c", "ts": 105}]}},
    {"idle": ["r/0"]},
    {"watermark": {"l": 200}},
    {"end": True},
]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "traced.yaml"
    path.write_text(JOB)
    return path


def written(path: Path, steps: list[Any]) -> Path:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    return path


@pytest.mark.parametrize("shards", [None, 1, 5])
def test_one_line_per_step(joinery: Joinery, job: Path, tmp_path: Path, shards: int | None) -> None:
    options = [] if shards is None else ["--shards", shards]
    ended = joinery("trace", job, written(tmp_path / "steps.jsonl", STEPS), *options)
    assert (ended.code, ended.err) == (0, "")
    assert [line["step"] for line in ended.lines] == list(range(1, len(STEPS) + 1))
    assert [line["output"] for line in ended.lines if line["output"]] == [[{"l": "A", "r": "a"}]]
    assert ended.lines[0]["watermarks"] == {"l": 100, "r": None}
    assert ended.lines[0]["late"] == ended.lines[0]["dead"] == {"l": 0, "r": 0}


def test_verbose_tells_what_each_step_hands_on(joinery: Joinery, job: Path, tmp_path: Path) -> None:
    ended = joinery("trace", job, written(tmp_path / "steps.jsonl", [STEPS[0], STEPS[3]]), "--verbose")
    # Of l: what may still come (100), and what is still kept and may match, which begins 10 before r's watermark (105).
    assert [line["stepWatermarks"] for line in ended.lines] == [[{"l": None, "r": None}], [{"l": 95, "r": 90}]]


@pytest.mark.services
def test_on_an_embedded_postgres(joinery: Joinery, job: Path, tmp_path: Path) -> None:
    steps = written(tmp_path / "steps.jsonl", STEPS)
    assert joinery("trace", job, steps, "--store", "postgres") == joinery("trace", job, steps)


@pytest.mark.services
def test_on_the_jobs_own_postgres_it_leaves_nothing(
    joinery: Joinery, job: Path, tmp_path: Path, postgres_dsn: str
) -> None:
    job.write_text(JOB.replace("memory: {}", f'postgres: {{dsn: "{postgres_dsn}", schema: cli_trace}}'))
    steps = written(tmp_path / "steps.jsonl", [*STEPS[:1], {"restart": True}])
    ended = joinery("trace", job, steps, "--store", "postgres")
    assert (ended.code, len(ended.lines)) == (0, 2)
    assert "knows no job traced" in joinery("state", "ls", job).err


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({}, "it has nothing"),
        ({"inptu": "l", "rows": []}, "it has ['inptu', 'rows']"),
        ({"end": True, "rows": {}}, "it has ['end', 'rows']"),
        ({"input": "l", "rows": {"k": "a"}}, "one input's rows"),
        ({"input": "l", "rows": ["a"]}, "one input's rows"),
        ({"input": "l", "rows": [{"k": "a", "$partition": "1"}]}, "one input's rows"),
        ({"input": ["l"], "rows": []}, "one input's rows"),
        ({"input": "x", "rows": []}, "names input 'x': the job has ['l', 'r']"),
        ({"rows": {"l": [], "x": []}}, "names input 'x'"),
        ({"rows": [{"k": "a"}]}, "rows by input"),
        ({"watermark": 5}, "milliseconds by input"),
        ({"watermark": {"l": "5"}}, "milliseconds by input"),
        ({"watermark": {"x": 5}}, "names input 'x'"),
        ({"idle": "l"}, "a list of inputs"),
        ({"idle": ["l/first"]}, "a list of inputs"),
        ({"idle": ["x/1"]}, "names input 'x'"),
        ({"restart": False}, '{"restart": true}'),
        ({"rescale": 0}, "a number of shards"),
        ({"rescale": "4"}, "a number of shards"),
        ({"end": 1}, '{"end": true}'),
    ],
)
def test_a_step_that_is_none_is_named_with_its_line(
    joinery: Joinery, job: Path, tmp_path: Path, step: dict[str, Any], says: str
) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text(f"{json.dumps(STEPS[0])}\n\n{json.dumps(step)}\n{json.dumps(STEPS[3])}\n")
    ended = joinery("trace", job, steps)
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert ended.err.startswith(f"joinery: {steps}, line 3: step 2 ")
    assert says in ended.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"end": true}\nnonsense\n', "line 2: not JSON"),
        ('{"end": true}\n\n["end"]\n', "line 3: a step is a JSON object"),
    ],
)
def test_a_line_that_is_no_object_stops_before_anything_runs(
    joinery: Joinery, job: Path, tmp_path: Path, text: str, says: str
) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text(text)
    ended = joinery("trace", job, steps)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err


def test_steps_that_cannot_be_read(joinery: Joinery, job: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    assert "No such file" in joinery("trace", job, steps).err
    steps.write_bytes(b'{"end": true}\xff')
    assert "byte 13 is not UTF-8" in joinery("trace", job, steps).err


def test_a_record_that_cannot_be_used_is_named_with_the_steps_line(joinery: Joinery, job: Path, tmp_path: Path) -> None:
    steps = written(tmp_path / "steps.jsonl", [*STEPS[:1], {"input": "l", "rows": [{"k": "a", "ts": "soon"}]}])
    ended = joinery("trace", job, steps)
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert f"{steps}, line 2: input l has records that cannot be used" in ended.err
    assert "offset 2" in ended.err
    assert "correct the input's format or schema; else name an output" in ended.err


def test_python_gets_what_the_command_prints(joinery: Joinery, job: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text("\n".join(map(json.dumps, STEPS)))
    loaded = load_job(job)
    assert list(trace(loaded, STEPS)) == joinery("trace", job, steps).lines
    assert str(explain(loaded)) == joinery("explain", job).out.rstrip("\n")
    with pytest.raises(JoineryError, match="step 2 names input 'x'"):
        trace(loaded, [STEPS[0], {"input": "x", "rows": []}])
