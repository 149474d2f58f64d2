"""`joinery why`, on traces, whose answers are known."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from cli.verified import inputs_of
from joinery_runtime.cli.replay_commands import why_command
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine import next_plan
from joinery_runtime.engine.plan import NAMED_BY_LIFE, EpochPlan
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.state_show import show
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_steps import PARTITION, rows_by_input
from joinery_runtime.inspect.why import Answer, Explained, explain_records, topic_in_plans
from joinery_runtime.inspect.why_records import FoundRecord, RecordPosition
from joinery_runtime.job import Job, StreamJoin, parse_job
from joinery_runtime.state.memory import MemoryStore
from traces.corpus import Trace, load_traces

COLUMNS = "[{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]"
JOB = f"""\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: orders-payments}}
spec:
  inputs:
    - {{name: l, file: {{path: l.jsonl}}, format: json, eventTime: ts, schema: {COLUMNS}}}
    - {{name: r, file: {{path: r.jsonl}}, format: json, eventTime: ts, schema: {COLUMNS}}}
  joins: [{{right: r, type: left, keys: {{l.k: r.k}}, interval: {{of: l, lower: -10ms, upper: 10ms}}}}]
  select: [{{column: l.v, as: l}}, {{column: r.v, as: r}}]
  output: {{file: {{path: out}}}}
  deadLetter: {{file: {{path: dead}}}}
  stateStore: {{memory: {{}}}}
"""
SUM = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: totals}
spec:
  inputs:
    - name: c
      file: {path: c.jsonl}
      format: json
      eventTime: ts
      schema: [{name: k, type: string}, {name: n, type: int64}, {name: ts, type: timestamp}]
  aggregate:
    groupBy: [c.k]
    window: {tumbling: {size: 10ms}}
    aggregates: [{function: sum, column: c.n, as: total}]
  output: {file: {path: out}}
  deadLetter: {file: {path: dead}}
  stateStore: {memory: {}}
"""
STEPS: list[dict[str, Any]] = [
    {"rows": {"l": [{"k": "a", "v": "A", "ts": 100}, {"k": "b", "v": "B", "ts": 100}]}},
    {"input": "r", "rows": [{"k": "a", "v": "x", "ts": 105}, {"k": "a", "v": "no time"}]},
    {"watermark": {"l": 200, "r": 200}},
    {"input": "l", "rows": [{"k": "a", "v": "late", "ts": 101}, {"k": "a", "v": "new", "ts": 300}]},
]


@pytest.fixture
def ask(joinery: Joinery, tmp_path: Path) -> Any:
    job, steps = tmp_path / "job.yaml", tmp_path / "steps.jsonl"
    job.write_text(JOB)
    steps.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    return lambda *question: joinery("why", job, "--steps", steps, *question)


def test_the_end_of_an_input_is_no_huge_number() -> None:
    record = FoundRecord(RecordPosition(PartitionRef("l", "l", 0), 0), 1, {}, 5)
    document = Explained(record, {"l": END_OF_TIME, "r": None, "s": 7}, None, "", {}, {}).document()
    assert document["watermarks"] == {"l": "end", "r": None, "s": 7}


@pytest.mark.parametrize("name", ["lower(l.k)", "LOWER(l.k)", "LOWER(k)", 'lower("k")', "r.k || ''"])
def test_a_computed_key_is_asked_for_by_its_value(joinery: Joinery, tmp_path: Path, name: str) -> None:
    job, steps = tmp_path / "job.yaml", tmp_path / "steps.jsonl"
    job.write_text(JOB.replace("{l.k: r.k}", """{lower(l.k): "r.k || ''"}"""))
    rows = {"l": [{"k": "A=b", "v": "A", "ts": 100}, {"k": "c", "v": "C", "ts": 100}]}
    steps.write_text(f"""{json.dumps({"rows": rows})}
{json.dumps({"input": "r", "rows": [{"k": "a=b", "v": "x", "ts": 105}]})}
""")
    answer = joinery("why", job, "--steps", steps, "--key", f"{name}=a=b").lines[0]
    assert [record["columns"]["v"] for record in answer["records"]] == ["A", "x"]
    assert [entry["row"]["l"] for record in answer["records"] for entry in record["made"]] == ["A", "A"]


def test_what_each_record_of_a_key_did(ask: Any) -> None:
    answer = ask("--key", "k=a").lines[0]
    assert answer["epochs"] == [1, 4]
    matched, partner, dead, late, waiting = answer["records"]
    pair, padded = {"l": "A", "r": "x"}, {"l": "A", "r": None}
    assert (matched["epoch"], matched["made"]) == (1, [{"epoch": 2, "row": pair}])
    # Without its partner the left row would have gone out padded.
    assert partner["made"] == [{"epoch": 2, "row": pair}]
    assert partner["prevented"] == [{"epoch": 3, "row": padded}]
    assert (dead["dropped"], dead["rule"], dead["offset"]) == ("dead letter", "docs/semantics.md#t8", 1)
    assert "event time 'ts' is null" in dead["detail"]
    assert (late["dropped"], late["rule"]) == ("late", "docs/semantics.md#t10")
    assert late["watermarks"] == {"l": 200, "r": 200}
    assert (waiting["dropped"], waiting["made"], waiting["prevented"]) == (None, [], [])
    (stored_row,) = answer["kept"]["steps"][0]["rows"]
    assert (stored_row["offset"], stored_row["until"]) == (3, 310)


def test_one_record_and_what_went_out_when_it_had_waited(ask: Any) -> None:
    (only,) = ask("--record", "l:0=1").lines[0]["records"]
    assert only["columns"]["k"] == "b"
    assert only["made"] == [{"epoch": 3, "row": {"l": "B", "r": None}, "padded": "docs/semantics.md#o1"}]


def test_a_record_that_the_other_part_of_a_history_has(joinery: Joinery, tmp_path: Path) -> None:
    of_topic = 'kafka: {bootstrapServers: "k:9092", topic: l}, history: {path: h, format: json, until: 100}'
    job, steps = tmp_path / "job.yaml", tmp_path / "steps.jsonl"
    job.write_text(JOB.replace("file: {path: l.jsonl}", of_topic))
    rows = [{"k": "a", "v": "A", "ts": 90, "$history": True}, {"k": "a", "v": "A", "ts": 90}]
    steps.write_text("".join(json.dumps({"input": "l", "rows": [row]}) + "\n" for row in rows))
    ((accepted,), (skipped,)) = (
        joinery("why", job, "--steps", steps, "--record", record).lines[0]["records"]
        for record in ("/history:0=0", "l:0=0")
    )
    assert (accepted["dropped"], accepted["columns"]["v"]) == (None, "A")
    assert (skipped["dropped"], skipped["rule"]) == ("history", "docs/semantics.md#t12")
    assert joinery("why", job, "--steps", steps, "--key", "k=a").lines[0]["records"] == [accepted, skipped]


def test_the_answer_as_text(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    lines = list(why_command(parse_job(JOB, "job.yaml"), ("k=a",), None, None, steps).lines())
    assert lines[0] == "job orders-payments, epochs 1 to 4: 5 records"
    assert '  epoch 2 emitted because of it: {"l": "A", "r": "x"}' in lines
    assert '  without it, epoch 3 would have emitted: {"l": "A", "r": null}' in lines
    assert "  dropped: late (docs/semantics.md#t10)" in lines
    assert "  taken; no row was emitted because of it so far" in lines


def test_a_row_that_having_leaves_out_is_explained(tmp_path: Path) -> None:
    left_out = _answer("sessions/g7-having", tmp_path, (), "c:0=0")
    having = "`having` is not true for its group's row (docs/semantics.md#g7)"
    assert f"  taken; no row was emitted because of it; {having}" in list(left_out.lines())
    assert [record["having"] for record in left_out.document()["records"]] == ["docs/semantics.md#g7"]
    emitted = _answer("sessions/g7-having", tmp_path, (), "c:0=1")
    assert not [line for line in emitted.lines() if "`having`" in line]
    assert [record["having"] for record in emitted.document()["records"]] == [None]


LEFT_WITH_ITS_MATCH = "  left the state in epoch 2: it has matched, which is all that counts (docs/semantics.md#e1)"


def explained_as(job_type: str, tmp_path: Path) -> dict[tuple[str, int], list[str]]:
    """What is said of each record of keys a and b, by input and offset, when the job is of this type."""
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    text = JOB.replace("type: left", f"type: {job_type}").replace(", {column: r.v, as: r}", "")
    answers = [why_command(parse_job(text, "job.yaml"), (key,), None, None, steps) for key in ("k=a", "k=b")]
    return {
        (explained.record.position.partition.input, explained.record.position.offset): list(explained.lines())
        for answer in answers
        for explained in answer.records
    }


def test_a_row_that_does_not_fit_is_explained_by_its_rule(tmp_path: Path) -> None:
    name = "aggregates/s7-a-value-that-does-not-fit"
    answer = _answer(name, tmp_path, (), "c:0=0")
    (record,) = answer.document()["records"]
    assert (record["dropped"], record["rule"], record["misfit"]) == ("failed", "docs/semantics.md#s7", None)
    assert record["detail"].startswith("sum(n), in the output as total: the sum 9223372036854775808 does not fit int64")
    assert "k='a', in the window from 1969-12-31T23:59:59.990Z" in record["detail"]
    assert f"  dropped: failed, {record['detail']} (docs/semantics.md#s7)" in list(answer.lines())


def test_a_record_of_a_row_that_does_not_fit_without_it_either(tmp_path: Path) -> None:
    job, steps = tmp_path / "job.yaml", tmp_path / "steps.jsonl"
    job.write_text(SUM)
    rows = [{"k": "a", "n": n, "ts": n % 10} for n in (2**63 - 1, 2**63 - 2, 5)]
    steps.write_text(f"""{json.dumps({"input": "c", "rows": rows})}
{json.dumps({"end": True})}
""")
    answer = why_command(parse_job(SUM, "job.yaml"), (), "c:0=2", None, steps)
    (record,) = answer.document()["records"]
    assert (record["dropped"], record["made"]) == (None, [])
    assert "k='a'" in record["misfit"]
    assert f"  its group's row is a dead letter: {record['misfit']} (docs/semantics.md#s7)" in list(answer.lines())


@pytest.mark.parametrize("offset", [3, 4])
def test_a_row_whose_total_does_not_fit_is_explained_by_its_rule(tmp_path: Path, offset: int) -> None:
    """Offset 3 takes the total out of range. Offset 4 is of a row that `having` leaves out, so it needs no total."""
    answer = _answer("top-n/s7-a-total-that-does-not-fit", tmp_path, (), f"c:0={offset}")
    (record,) = answer.document()["records"]
    if offset == 3:
        assert (record["dropped"], record["rule"]) == ("failed", "docs/semantics.md#s7")
        assert "sum(revenue), in the output as total: the sum 9223372036854775808 does not" in record["detail"]
        assert "v='y', in the window from 1970-01-01T00:00:00.000Z" in record["detail"]
    else:
        assert (record["dropped"], record["misfit"]) == (None, None)


def test_the_rule_by_which_something_could_not_be_computed(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text(f"""{json.dumps({"input": "c", "rows": [{"k": "a", "n": 2**62, "ts": 1}]})}
{json.dumps({"end": True})}
""")
    job = SUM.replace("  output:", "  select: [{column: c.k}, {expression: total * 4, as: four}]\n  output:")
    of_group = why_command(parse_job(job, "job.yaml"), (), "c:0=0", None, steps)
    of_pair = _answer("window/t10-conditions-that-fail", tmp_path, (), "r:0=0")
    (record,) = of_pair.document()["records"]
    assert (record["dropped"], record["rule"]) == ("failed", "docs/semantics.md#j1")
    (record,) = of_group.document()["records"]
    assert [emitted["row"] for emitted in record["made"]] == [{"k": "a", "four": None}]
    assert (record["dropped"], record["uncomputed"]) == (None, "docs/semantics.md#g11")
    assert any("a column of that cannot be computed, and is NULL" in line for line in of_group.lines())


def test_why_an_order_is_not_in_the_output_of_an_anti_join(tmp_path: Path) -> None:
    explanations = explained_as("anti", tmp_path)
    assert '  epoch 3 emitted because of it, without a match (docs/semantics.md#e3): {"l": "B"}' in explanations["l", 1]
    assert any(
        "they match, so the row of l is not emitted (docs/semantics.md#e3)" in line for line in explanations["l", 0]
    )
    assert LEFT_WITH_ITS_MATCH in explanations["l", 0]
    assert '  without it, epoch 3 would have emitted: {"l": "A"}' in explanations["r", 0]
    assert "  taken; no row was emitted because of it so far" in explanations["l", 3]


def test_why_an_order_is_in_the_output_of_a_semi_join(tmp_path: Path) -> None:
    explanations = explained_as("semi", tmp_path)
    assert '  epoch 2 emitted because of it: {"l": "A"}' in explanations["l", 0]
    assert LEFT_WITH_ITS_MATCH in explanations["l", 0]
    assert '  epoch 2 emitted because of it: {"l": "A"}' in explanations["r", 0]
    assert "  no record of r with its key was read that can match" in explanations["l", 1]


def test_what_was_so_after_an_epoch(ask: Any) -> None:
    answer = ask("--key", "k=b", "--until", 2).lines[0]
    assert (answer["records"][0]["made"], answer["kept"]) == ([], None)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ((), "Give either --key COLUMN=VALUE or --record"),
        (("--record", "l@3"), "a record is TOPIC:PARTITION=OFFSET"),
        (("--record", "l:0=99"), "No epoch of job orders-payments has read l:0=99"),
        (("--key", "k=z"), "read no record with k=z"),
        (("--key", "v=z"), "cannot be used"),
        (("--key", "k=a", "--until", "0"), "Must be >= 1"),
    ],
)  # fmt: skip
def test_a_question_without_an_answer(ask: Any, question: tuple[str, ...], says: str) -> None:
    ended = ask(*question)
    assert ended.code != 0
    assert says in " ".join((ended.err + ended.out).split())


def test_a_file_is_named_by_the_end_of_its_path() -> None:
    ranges = tuple(Range(PartitionRef("l", f"/data/{name}", 0), 0, 9) for name in ("a/l.jsonl", "b/l.jsonl", "r.jsonl"))
    plans = [EpochPlan(epoch=1, shards=1, ranges=ranges, watermarks={})]
    assert topic_in_plans("r.jsonl", plans) == "/data/r.jsonl"
    assert topic_in_plans("a/l.jsonl", plans) == "/data/a/l.jsonl"
    assert topic_in_plans("/data/r.jsonl", plans) == "/data/r.jsonl"
    assert topic_in_plans("l.jsonl", plans) == "l.jsonl"  # two end so


# --- every kind -------------------------------------------------------------------------------------------------------


def _places(trace: Trace) -> list[tuple[str, int, int]]:
    seen: Counter[tuple[str, int]] = Counter()
    positions = []
    for step in trace.steps:
        for name, rows in rows_by_input(step.action).items():
            for row in rows:
                at = (name, row.get(PARTITION, 0))
                positions.append((*at, seen[at]))
                seen[at] += 1
    return positions


@pytest.mark.parametrize(
    "name",
    [
        "time/t10-counts", "join/j4-null-key", "join/j6-dlq", "window/w3-full-tumbling", "seed002/buffered",
        "seed004/two-inputs-left", "kafka-streams/outer-left-expired-by-the-left", "sessions/s2-row-inside-a-mark",
        "sessions/s5-late-edge", "sessions/s6-retraction-of-a-merge", "sessions/compute", "sessions/s1-nan-groups",
        "sessions/sql-exact", "join/j9-broadcast-predicate", "outer/broadcast-left", "asof/a1-out-of-order-versions",
        "asof/t10-conditions-that-fail", "asof/a1-deletion", "window/w2-session-closes", "nway/n1-full-full",
        "values/int32-meets-int64", "aggregates/g1-cumulative", "aggregates/g3-in-the-windows-that-are-open",
        "aggregates/g4-groups",
    ],
)  # fmt: skip
def test_every_drop_and_every_row_of_a_trace_has_its_record(name: str) -> None:
    (trace,) = [trace for trace in load_traces() if trace.name == name]
    job, store = parse_job(json.dumps(trace.job), "job.yaml", plain_numbers=True), MemoryStore()
    steps = [step.action for step in trace.steps]
    lines = list(run_trace(job, steps, store, 2))
    inputs = inputs_of(job, steps)
    answers: list[Answer] = [explain_records(job, store, inputs, (), at) for at in _places(trace)]
    explained = [record for answer in answers for record in answer.records]
    reasons = Counter(record.reason for record in explained if record.reason not in {None, "dead letter"})
    meant = sum((Counter({"late": sum(line["late"].values())}) for line in lines), Counter())
    for line in lines:
        for counts in line.get("dropped", {}).values():
            meant.update(counts)
    assert reasons == +meant
    for answer in answers:
        _is_made_or_kept_or_left(job, answer)
    due = {row for record in explained for rows in record.produced.values() for row in rows}
    assert due >= {json.dumps(row) for line in lines for row in line["output"]}


def _is_made_or_kept_or_left(job: Job, answer: Answer) -> None:
    """And the state has what is said to be kept."""
    (record,) = answer.records
    (partition, offset), name = (record.record.position.partition.partition, record.record.position.offset), ""
    if record.reason is not None:
        assert record.outcome is None
        return
    if record.outcome is None:
        assert record.unmatched  # it cannot match: if anything, it went out padded
        assert all(record.padded[epoch] for epoch in record.produced)
        assert record.produced or answer.key_view is None
        return
    retention, name = record.outcome.retention, record.record.position.partition.input
    text = "\n".join(record.lines())
    assert ("  kept until " in text) == (retention.evicted_in is None)
    assert ("  left the state in epoch " in text or "  never kept: " in text) == (retention.evicted_in is not None)
    assert retention.evicted_in is None or retention.evicted_in >= record.record.epoch
    of_rows = isinstance(job, StreamJoin) and job.aggregation is None
    if of_rows and retention.evicted_in is None and answer.key_view is not None:
        shown = [row.document() for step in answer.key_view.steps for row in step.rows]
        assert (name, partition, offset) in {(row["input"], row["partition"], row["offset"]) for row in shown}


WAYS = {
    "interval": "interval: {of: l, lower: -10ms, upper: 10ms}",
    "tumbling": "window: {tumbling: 10ms}",
    "session": "window: {session: {gap: 10ms}}",
    "asOf": "asOf: {historyRetention: 50ms}",
}
PASSED: dict[str, Any] = {"watermark": {"l": 300, "r": 300}}


def _alone(tmp_path: Path, way: str, left: int, right: int, *more: dict[str, Any], where: str = "") -> Explained:
    """What is said of a left row at a time, with a right one at another, when nothing met it."""
    text = JOB.replace(WAYS["interval"], WAYS[way] + where).replace("type: left", "type: inner")
    if way == "asOf":
        text = text.replace("{name: r,", "{name: r, table: {key: [k]},")
    steps = tmp_path / "steps.jsonl"
    rows = [
        {"input": "r", "rows": [{"k": "a", "v": "x", "ts": right}]},
        {"input": "l", "rows": [{"k": "a", "ts": left}]},
    ]
    steps.write_text("".join(json.dumps(step) + "\n" for step in [*rows, *more]))
    (record,) = why_command(parse_job(text, "job.yaml"), (), "l:0=0", None, steps).records
    assert (record.reason, record.produced, record.prevented) == (None, {}, {})
    return record


@pytest.mark.parametrize(
    ("way", "left", "right", "misses", "says"),
    [
        ("interval", 100, 89, 1, "1ms outside the bound (right - left from -10ms to 10ms)"),
        ("interval", 100, 117, 7, "7ms outside the bound (right - left from -10ms to 10ms)"),
        ("tumbling", 109, 112, 3, "3ms outside one window (10ms long, every 10ms)"),
        ("session", 100, 115, 5, "5ms outside the session gap (10ms)"),
        ("asOf", 100, 104, 4, "4ms outside the time of the stream's row (a version may not be newer)"),
    ],
)
def test_by_how_much_a_record_missed_its_nearest(
    tmp_path: Path, way: str, left: int, right: int, misses: int, says: str
) -> None:
    explained = _alone(tmp_path, way, left, right, PASSED)
    document, lines = explained.document(), "\n".join(explained.lines())
    assert (document["nearest"]["offset"], document["nearest"]["misses"]) == (0, misses)
    assert f"nearest: r r:0=0, event time 1970-01-01T00:00:00.{right:03}Z: {says}" in lines
    assert (document["state"]["kept"], "no row was emitted because of it so far" in lines) == (False, False)


def test_where_was_not_true_for_the_nearest(tmp_path: Path) -> None:
    explained = _alone(tmp_path, "interval", 100, 101, PASSED, where=', where: "l.v = r.v"')
    assert explained.document()["nearest"]["misses"] == 0
    assert "r r:0=0, event time 1970-01-01T00:00:00.101Z: within reach, but `where` is not true" in "\n".join(
        explained.lines()
    )


@pytest.mark.parametrize(
    ("way", "words", "rule"),
    [
        ("interval", "the watermark of r ({r}) is above 1970-01-01T00:00:00.110Z", "j3"),
        (
            "tumbling",
            "the lower watermark of l ({l}) and r ({r}) is at 1970-01-01T00:00:00.110Z, "
            "the end of its last window, or above",
            "w2",
        ),
        (
            "session",
            "the lower watermark of l ({l}) and r ({r}) is above 1970-01-01T00:00:00.110Z, "
            "the last row of its session + 10ms",
            "w2",
        ),
    ],
)
def test_when_a_record_left_and_until_when_one_is_kept(tmp_path: Path, way: str, words: str, rule: str) -> None:
    at = "1970-01-01T00:00:00.{:03}Z".format
    left = _alone(tmp_path, way, 100, 50, PASSED)
    text = words.format(l=at(300), r=at(300))
    assert f"  left the state in epoch 3: {text} (docs/semantics.md#{rule})" in list(left.lines())
    staying = _alone(tmp_path, way, 100, 50)
    text = words.format(l=at(100), r=at(50))
    assert f"  kept until {text} (docs/semantics.md#{rule})" in list(staying.lines())
    assert "  taken; no row was emitted because of it so far" in list(staying.lines())


def _of(tmp_path: Path, text: str, steps: list[dict[str, Any]], record: str) -> Explained:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    (explained,) = why_command(parse_job(text, "job.yaml", plain_numbers=True), (), record, None, path).records
    return explained


def _nearest(explained: Explained) -> tuple[Any, ...]:
    nearest = explained.document()["nearest"]
    return () if nearest is None else tuple(nearest[name] for name in ("offset", "misses", "why", "rule"))


LEFT_ROW = {"input": "l", "rows": [{"k": "a", "v": "A", "ts": 100}]}


def test_what_was_dropped_is_not_what_came_near(tmp_path: Path) -> None:
    """The record was asked for alone: nobody has said of the others what became of them. One that was late is nearer
    than one that was taken."""
    steps = [
        {"input": "r", "rows": [{"k": "a", "v": "x", "ts": 60}]},
        {"watermark": {"r": 95}},
        {"input": "r", "rows": [{"k": "a", "v": "late", "ts": 80}]},
        LEFT_ROW,
    ]
    assert _nearest(_of(tmp_path, JOB, steps, "l:0=0"))[:2] == (0, 30)


def test_of_dropped_records_only_one_within_reach_is_named(tmp_path: Path) -> None:
    late = [{"watermark": {"r": 109}}, {"input": "r", "rows": [{"k": "a", "v": "late", "ts": 101}]}]
    dropped = (0, 0, "within reach, but it was dropped: late", "docs/semantics.md#t10")
    assert _nearest(_of(tmp_path, JOB, [*late, LEFT_ROW], "l:0=0")) == dropped
    # `where` is not asked of what was dropped.
    where = JOB.replace("upper: 10ms}", 'upper: 10ms}, where: "l.v = r.v"')
    assert _nearest(_of(tmp_path, where, [*late, LEFT_ROW], "l:0=0")) == dropped
    # One that was taken comes first, and if it is further away.
    accepted = [{"input": "r", "rows": [{"k": "a", "v": "x", "ts": 109}]}]
    assert _nearest(_of(tmp_path, where, [*late, *accepted, LEFT_ROW], "l:0=0"))[:3] == (
        1,
        0,
        "within reach, but `where` is not true for the two",
    )
    far = [{"watermark": {"r": 109}}, {"input": "r", "rows": [{"k": "a", "v": "late", "ts": 50}]}, LEFT_ROW]
    explained = _of(tmp_path, JOB, far, "l:0=0")
    assert _nearest(explained) == ()
    assert "  all records of r with its key were dropped that can match" in list(explained.lines())


def test_of_very_many_records_that_may_have_been_dropped_the_answer_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steps.jsonl"
    late = {"input": "r", "rows": [{"k": "a", "v": str(n), "ts": 100} for n in range(3)]}
    path.write_text("".join(json.dumps(step) + "\n" for step in ({"watermark": {"r": 111}}, late, LEFT_ROW)))

    def answer() -> Answer:
        return why_command(parse_job(JOB, "job.yaml"), (), "l:0=0", None, path)

    assert answer().document()["unjudged"] == 0
    monkeypatch.setattr("joinery_runtime.inspect.why.MAX_JUDGED", 1)
    assert answer().document()["unjudged"] == 2
    message = "2 other records are counted as taken above, dropped or not: there are too many to judge each"
    assert message in list(answer().lines())


FUTURE = JOB.replace("eventTime: ts,", "eventTime: ts, watermark: {maxFuture: 50ms},")


def test_a_record_of_the_future_is_neither_nearest_nor_a_newer_version(tmp_path: Path) -> None:
    steps = [
        {"clock": 100},
        {"input": "r", "rows": [{"k": "a", "v": "x", "ts": 85}]},
        {"input": "r", "rows": [{"k": "a", "v": "future", "ts": 160}]},
        LEFT_ROW,
    ]
    assert _of(tmp_path, FUTURE, steps, "r:0=1").reason == "future"
    assert _nearest(_of(tmp_path, FUTURE, steps, "l:0=0"))[:2] == (0, 5)
    versions = FUTURE.replace(WAYS["interval"], WAYS["asOf"]).replace("{name: r,", "{name: r, table: {key: [k]},")
    version = _of(tmp_path, versions, [*steps, {"watermark": {"l": 300, "r": 300}}], "r:0=0")
    assert version.outcome is not None
    assert version.outcome.retention.words == "a newer version of its key comes (of r)"


def test_what_is_too_far_ahead_is_so_by_the_clock_of_its_plan(tmp_path: Path) -> None:
    late = {"k": "a", "v": "z", "ts": 170}
    steps = [{"clock": 120}, {"input": "r", "rows": [late]}, {"clock": 119}, {"input": "r", "rows": [late]}]
    assert _of(tmp_path, FUTURE, steps, "r:0=0").reason is None
    rejected = _of(tmp_path, FUTURE, steps, "r:0=1")
    assert rejected.reason == "future"
    assert "ahead of the driver's clock, 1970-01-01T00:00:00.119Z" in rejected.detail


def test_what_an_earlier_release_found_too_far_ahead_is_so_among_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file, a record before it in the range had brought the time on: one of another key."""
    monkeypatch.setattr(next_plan, "EpochPlan", partial(EpochPlan, format=NAMED_BY_LIFE))
    steps = [
        {"input": "r", "rows": [{"k": "a", "v": "x", "ts": 85}]},
        {"input": "r", "rows": [{"k": "b", "v": "y", "ts": 130}, {"k": "a", "v": "z", "ts": 170}]},
    ]
    assert _of(tmp_path, FUTURE, steps, "r:0=2").reason is None
    steps[1]["rows"].pop(0)
    assert _of(tmp_path, FUTURE, steps, "r:0=1").reason == "future"


def test_the_partner_had_left_before_the_record_came(tmp_path: Path) -> None:
    """Of a left row without a watermark of its own that would make it late."""
    reopen = JOB.replace("upper: 10ms}", "upper: 10ms}, lateData: reopen")
    steps = [{"input": "r", "rows": [{"k": "a", "v": "x", "ts": 101}]}, {"watermark": {"l": 300}}, LEFT_ROW]
    explained = _of(tmp_path, reopen, steps, "l:0=0")
    at = "1970-01-01T00:00:00.{:03}Z".format
    assert _nearest(explained) == (
        0,
        0,
        "within reach, but it left the state in epoch 2, before the record came: "
        f"the watermark of l ({at(300)}) is above {at(111)}",
        "docs/semantics.md#j3",
    )
    # In an as-of join without grace, the row of the stream was joined when it came.
    versions = JOB.replace(WAYS["interval"], WAYS["asOf"]).replace("{name: r,", "{name: r, table: {key: [k]},")
    version = _of(tmp_path, versions, [LEFT_ROW, {"input": "r", "rows": [{"k": "a", "ts": 90}]}], "r:0=0")
    assert _nearest(version) == (
        0,
        0,
        "within reach, but it was never kept, before the record came: a row of the stream is joined when it comes",
        "docs/semantics.md#a3",
    )


def test_the_job_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, store = parse_job(JOB, "job.yaml"), MemoryStore()
    for _ in run_trace(job, STEPS, store, 2):
        """It is asked for below."""
    compiled = []

    def counting(compiled_job: Job) -> Any:
        compiled.append(compiled_job)
        return compile_job(compiled_job)

    for module in ("inspect.why", "inspect.state_show", "inspect.replay"):
        monkeypatch.setattr(f"joinery_runtime.{module}.compile_job", counting)
    assert len(explain_records(job, store, inputs_of(job, STEPS), ["k=a"], None).records) == 5
    assert len(compiled) == 1


def test_no_other_record_of_the_key(ask: Any) -> None:
    (only,) = ask("--record", "l:0=1").lines[0]["records"]
    assert (only["state"]["left"], only["nearest"]) == (3, None)


def _answer(name: str, tmp_path: Path, *question: Any) -> Answer:
    (trace,) = [trace for trace in load_traces() if trace.name == name]
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step.action) + "\n" for step in trace.steps))
    return why_command(parse_job(json.dumps(trace.job), "job.yaml", plain_numbers=True), *question, None, steps)


def _said(answer: Answer) -> dict[str, tuple[list[Any], list[Any]]]:
    """By record: values of the rows that it made, and of those that it prevented."""
    rows_by_record = {}
    for explained in answer.records:
        emitted, prevented = (
            [tuple(json.loads(row).values()) for counted in rows.values() for row in counted]
            for rows in (explained.produced, explained.prevented)
        )
        rows_by_record[str(explained.record.position)] = (emitted, prevented)
    return rows_by_record


def test_which_version_of_a_table_each_row_met(tmp_path: Path) -> None:
    rows_by_record = _said(_answer("asof/a1-version-of-its-time", tmp_path, ("k=a",), None))
    assert rows_by_record == {
        "r:0=0": ([("s10", "v10"), ("s19", "v10")], [("s10", None), ("s19", None)]),
        "r:0=1": ([("s20", "v20"), ("s99", "v20")], [("s20", "v10"), ("s99", "v10")]),
        "l:0=0": ([("s9", None)], []), "l:0=1": ([("s10", "v10")], []), "l:0=2": ([("s19", "v10")], []),
        "l:0=3": ([("s20", "v20")], []), "l:0=4": ([("s99", "v20")], []),
    }  # fmt: skip


# --- chains, and sessions that reach the cap --------------------------------------------------------------------------


def _of_trace(name: str, record: str, tmp_path: Path, upto: int | None = None) -> Explained:
    (trace,) = [trace for trace in load_traces() if trace.name == name]
    steps = [step.action for step in trace.steps][:upto]
    return _of(tmp_path, json.dumps(trace.job), steps, record)


def _at(ms: int) -> str:
    return f"1970-01-01T00:00:00.{ms:03}Z"


def _retention(explained: Explained) -> tuple[int | None, str, str]:
    assert explained.outcome is not None
    return explained.outcome.retention.evicted_in, explained.outcome.retention.words, explained.outcome.retention.rule


def test_a_row_of_a_session_that_reached_the_cap_left_with_it(tmp_path: Path) -> None:
    def stay(offset: int) -> tuple[int | None, str, str]:
        return _retention(_of_trace("sessions/s2-row-inside-a-mark", f"c:0={offset}", tmp_path, 2))

    forced = f"its session, {_at(100)} to {_at(119)}, reached maxDuration and was emitted"
    assert [stay(offset) for offset in (0, 1, 2)] == [(1, forced, "s2")] * 3
    until_watermark = f"the watermark of c (not known yet) is above {_at(130)}: then its session leaves"
    assert stay(3) == (None, until_watermark, "s4")  # it has forced the others out
    assert _of_trace("sessions/s2-row-inside-a-mark", "c:0=4", tmp_path, 2).reason == "closed"


def test_rows_in_reach_of_each_other_may_be_of_sessions_that_stay_apart(tmp_path: Path) -> None:
    def until(offset: int) -> str:
        left, words, rule = _retention(_of_trace("sessions/s2-left-of-a-full-session", f"c:0={offset}", tmp_path, 3))
        assert (left, rule) == (None, "s4")
        return words.partition(" is above ")[2]

    then = ": then its session leaves"
    # Of `a` 100 and 105 are one session, 110 to 120 another; of `b` all three are one.
    assert [until(offset) for offset in (0, 1, 4, 6, 7)] == [_at(130) + then] * 2 + [_at(115) + then] * 2 + [
        _at(130) + then
    ]
    assert [until(offset) for offset in (2, 3, 5)] == [_at(129) + then] * 3


def test_a_session_that_reached_the_cap_long_after_a_row_came(tmp_path: Path) -> None:
    """It grew by rows of later epochs until one was too far from its start."""
    trace = next(trace for trace in load_traces() if trace.name == "sessions/s2-row-inside-a-mark")
    steps = [{"input": "c", "rows": [{"k": "a", "ts": ts}]} for ts in (100, 108, 116, 124)]
    left, words, rule = _retention(_of(tmp_path, json.dumps(trace.job), steps, "c:0=0"))
    assert (left, words, rule) == (
        4,
        f"its session, {_at(100)} to {_at(116)}, reached maxDuration and was emitted",
        "s2",
    )
    left, words, rule = _retention(_of(tmp_path, json.dumps(trace.job), steps[:3], "c:0=0"))
    assert (left, words[-len(_at(126)) - 25 :], rule) == (None, f"{_at(126)}: then its session leaves", "s4")


def test_what_a_chain_keeps_of_a_record(tmp_path: Path) -> None:
    """Step 2 waits for `c`: the row of a and b is neither out nor lost, even when step 1 has let go of the record."""
    name = "nway/n1-left-left"
    explained = _of_trace(name, "a:0=1", tmp_path, 3)
    waits = f"the watermark of c ({_at(102)}) is above {_at(105)}"
    assert explained.document()["waiting"] == [{"step": 2, "rows": 1, "when": waits, "rule": "docs/semantics.md#j3"}]
    assert f"  in step 2, 1 joined row of it is kept until {waits} (docs/semantics.md#j3)" in list(explained.lines())
    assert [wait.rows for wait in _of_trace(name, "b:0=0", tmp_path, 3).waiting] == [1]
    assert _of_trace(name, "a:0=0", tmp_path, 3).waiting == []
    (trace,) = [trace for trace in load_traces() if trace.name == name]
    steps = [*(step.action for step in trace.steps[:3]), {"watermark": {"a": 150, "b": 150}}]
    evicted = _of(tmp_path, json.dumps(trace.job), steps, "a:0=1")
    assert (
        evicted.outcome is not None and evicted.outcome.retention.evicted_in,
        [wait.rows for wait in evicted.waiting],
    ) == (
        4,
        [1],
    )
    assert "  taken; no row was emitted because of it so far" in list(evicted.lines())
    assert _of_trace(name, "a:0=1", tmp_path).waiting == []  # it went out at the end


def test_the_nearest_of_the_rows_that_a_step_hands_on(tmp_path: Path) -> None:
    """Named by its record of the input that the bound counts from; a record of that input that has made no row is none
    of them."""
    of_a = {"input": "a", "rows": [{"k": "p", "v": "A", "ts": 100}, {"k": "p", "v": "no b", "ts": 119}]}
    of_b = {"input": "b", "rows": [{"k": "p", "v": "B", "ts": 96}]}
    of_c = {"input": "c", "rows": [{"k": "p", "v": "C", "ts": 120}, {"k": "q", "v": "C", "ts": 120}]}
    job = json.dumps(next(trace for trace in load_traces() if trace.name == "nway/n1-left-left").job)
    job = job.replace('"type": "left"', '"type": "inner"', 1)
    explained = _of(tmp_path, job, [of_a, of_b, of_c], "c:0=0")
    assert _nearest(explained) == (
        0,
        15,
        "15ms outside the bound (right - left from -5ms to 5ms)",
        "docs/semantics.md#j1",
    )
    assert explained.document()["nearest"]["input"] == "a"
    # It comes when the joined row is within reach, but a condition is not true.
    where = job.replace('"right": "c"', '"right": "c", "where": "b.v = c.v"')
    near = [of_a, of_b, {"input": "c", "rows": [{"k": "p", "v": "C", "ts": 103}]}]
    words = "within reach, but `where` is not true for the two"
    assert _nearest(_of(tmp_path, where, near, "c:0=0"))[:3] == (0, 0, words)
    alone = _of(tmp_path, job, [of_a, of_b, of_c], "c:0=1")
    assert _nearest(alone) == ()
    assert "  step 1 has handed on no row with its key that was kept: ask for a record of a" in list(alone.lines())


def test_a_join_on_time_only_is_asked_for_a_record(tmp_path: Path) -> None:
    (changes,) = _said(_answer("join/j9-broadcast-predicate", tmp_path, (), "l:0=0")).values()
    assert changes == ([("A", "a"), ("A", "b")], [])


def test_a_record_names_its_group_by_what_the_job_computes(tmp_path: Path) -> None:
    answer = _answer("sessions/compute", tmp_path, (), "c:0=0")
    assert answer.key_view is not None
    ((emitted, prevented),) = _said(answer).values()
    assert [row[0] for row in emitted] == ["ann"]
    assert emitted[0][-2:] == (16, 5)
    assert prevented[0][-2:] == (4, 5)  # the session would have begun later, without 3 * 4


@pytest.mark.parametrize("kind", ["interval", "window", "asOf"])
def test_what_has_left_is_not_kept_even_while_its_segment_is_stored(tmp_path: Path, kind: str) -> None:
    """A row far ahead, of the same epoch, keeps the segment."""
    text = JOB
    if kind != "interval":
        matching = "window: {tumbling: 10ms}" if kind == "window" else "asOf: {historyRetention: 10ms}"
        text = text.replace("interval: {of: l, lower: -10ms, upper: 10ms}", matching)
    if kind == "asOf":
        text = text.replace("{path: r.jsonl}", "{path: r.jsonl}, table: {key: [k]}")
    job = parse_job(text, "job.yaml")
    early, late = {"k": "a", "v": "x", "ts": 100}, {"k": "a", "v": "y", "ts": 100_000}
    superseding = [{"k": "a", "v": "z", "ts": 101}] if kind == "asOf" else []
    steps = [
        {"rows": {"l": [{"k": "b", "v": "l", "ts": 50}], "r": [early, *superseding, late]}},
        {"rows": {"l": [{"k": "b", "v": "l", "ts": 5_000}]}},
        {"rows": {"l": [{"k": "b", "v": "l", "ts": 5_001}]}},
    ]
    store = MemoryStore()
    for _ in run_trace(job, steps, store, 2):
        """The answer is asked for below."""
    answer = explain_records(job, store, inputs_of(job, steps), ["k=a"], None)
    left = {
        explained.record.ts: explained.outcome.retention.evicted_in
        for explained in answer.records
        if explained.outcome is not None
    }
    assert left[100] is not None
    assert left[100_000] is None
    assert answer.key_view is not None
    (kept_step,) = answer.key_view.document()["steps"]
    stayed = {explained.record.ts for explained in answer.records if left[explained.record.ts or 0] is None}
    assert {row["ts"] for row in kept_step["rows"]} == stayed
    # `joinery state show` lists what is stored as well, and says which of it has left.
    (stored,) = show(job, store, ["k=a"]).document()["steps"]
    assert {row["ts"]: row.get("left", False) for row in stored["rows"]} == {
        ts: at is not None for ts, at in left.items()
    }
    assert f"{len(stayed)} row" in next(iter(answer.key_view.lines()))


SESSIONS = """\
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: clicks}
spec:
  input: {name: c, file: {path: c.jsonl}, format: json, eventTime: ts, schema: COLUMNS}
  groupBy: [k]
  gap: 10ms
  maxDuration: 1h
  aggregates: [{function: max, column: v, as: most}, {function: first, column: v, as: first}]
  SELECT
  output: {file: {path: out}}
  stateStore: {memory: {}}
"""


@pytest.mark.parametrize("select", ["lateData: drop", "select: [{column: k}, {column: most}]"])
def test_a_record_is_part_of_a_session_that_others_explain_as_well(tmp_path: Path, select: str) -> None:
    text = SESSIONS.replace("COLUMNS", COLUMNS).replace("SELECT", select)
    rows = [("A", 100), ("Z", 105), ("Z", 107), ("B", 109), ("C", 150), ("D", 300)]
    steps = [{"input": "c", "rows": [{"k": "a", "v": v, "ts": ts} for v, ts in rows]}, {"watermark": {"c": 200}}]
    explanations = {offset: _of(tmp_path, text, steps, f"c:0={offset}") for offset in range(6)}
    assert [bool(explanations[offset].produced) for offset in range(6)] == [
        select.startswith("late"),
        False,
        False,
        *[select.startswith("late"), True, False],
    ]
    for offset in (1, 2):
        (part,) = explanations[offset].document()["part_of"]
        assert part["row"]["most"] == "Z"
        (line,) = [line for line in explanations[offset].lines() if "part of" in line]
        assert line.startswith(f"  part of what epoch {part['epoch']} emitted, which is the same without it: ")
        assert not any("no row was emitted" in line for line in explanations[offset].lines())
    assert all(not explanations[offset].part_of for offset in (4, 5))


def test_a_version_that_says_what_the_one_before_it_said(tmp_path: Path) -> None:
    text = JOB.replace("interval: {of: l, lower: -10ms, upper: 10ms}", "asOf: {historyRetention: 1h}")
    text = text.replace("{path: r.jsonl}", "{path: r.jsonl}, table: {key: [k]}")
    versions = {"input": "r", "rows": [{"k": "a", "v": "x", "ts": 50}, {"k": "a", "v": "x", "ts": 60}]}
    explained = _of(tmp_path, text, [versions, LEFT_ROW], "r:0=1")
    assert (explained.produced, explained.prevented) == ({}, {})
    assert [entry["row"] for entry in explained.document()["part_of"]] == [{"l": "A", "r": "x"}]
    assert not explained.unmatched
    assert _of(tmp_path, text, [versions, LEFT_ROW], "r:0=0").part_of == {}
