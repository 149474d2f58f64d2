"""Every golden trace of tests/traces/, run straight, restarted, rescaled and recut: always the same rows.

`make test` runs each straight and disturbed as much as it can be; `make soak` disturbs it in one way after another.

The rules are those of the semantics page; COVERED lists the ones that are built, and each needs a trace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.core.table import blob
from joinery_runtime.core.table.blob import from_blob, to_blob
from joinery_runtime.engine import worker
from joinery_runtime.errors import JobError, JoineryError
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import StateStore
from traces.corpus import Expected, Row, Step, Trace, load_traces

# M1 to M3 and T6's `onIdle: advance` need another release, an edited job or a clock, which no trace has.
COVERED = (
    *(f"T{n}" for n in range(1, 13)),
    *(f"J{n}" for n in range(1, 14)),
    *(f"O{n}" for n in range(1, 3)),
    *(f"E{n}" for n in range(1, 4)),
    *(f"{letter}{n}" for letter in "WNA" for n in range(1, 5)),
    *(f"S{n}" for n in range(1, 9)),
    *(f"G{n}" for n in range(1, 13)),
    *(f"P{n}" for n in range(1, 4)),
    *(f"U{n}" for n in range(1, 5)),
    *(f"D{n}" for n in range(1, 6)),
    *(f"R{n}" for n in range(1, 12)),
    *("V1", "V2", "V3", "V4", "W5", "W6", "W7"),
)  # fmt: skip
LEAST_TRACES = 450
LEAST_SESSIONS = 150
SHARDS = (1, 3, 8)
RESTART: Mapping[str, Any] = {"restart": True}
RESCALES: Sequence[Mapping[str, Any]] = [{"rescale": shards} for shards in SHARDS]
SEEDS = {f"seed{number:03}" for number in range(5)}
SOURCES = SEEDS | {"kafka-streams", "ksql", "flink", "arroyo", "spark", "beam"}

TRACES = load_traces()
RUNNING = [trace for trace in TRACES if trace.steps]
REFUSED = [trace for trace in TRACES if trace.refused]

every_trace = pytest.mark.parametrize("trace", RUNNING, ids=lambda trace: trace.name)


def check_stored_segments(patch: pytest.MonkeyPatch) -> None:
    """From here on, pack each segment as one with many rows is packed, and compare it with what it is read as."""

    def looked_at(rows: pa.RecordBatch, keys: Sequence[str], co_partitions: int) -> bytes:
        stored = to_blob(rows, keys, co_partitions)
        again = from_blob(stored)
        assert again.schema.equals(rows.schema)
        # A NaN equals nothing, and is printed.
        assert again.equals(rows) or repr(again.to_pylist()) == repr(rows.to_pylist())
        return stored

    patch.setattr(blob, "FEW_ROWS", 0)
    patch.setattr(worker, "to_blob", looked_at)


# --- the corpus -------------------------------------------------------------------------------------------------------


def test_the_corpus_is_there() -> None:
    assert len(TRACES) >= LEAST_TRACES
    assert sum(trace.sessions for trace in TRACES) >= LEAST_SESSIONS
    assert len(REFUSED) >= 5
    assert {trace.name.partition("/")[0] for trace in TRACES} >= SOURCES


def test_no_trace_is_there_twice() -> None:
    content = [json.dumps([trace.job["spec"], [s.action for s in trace.steps]], sort_keys=True) for trace in TRACES]
    repeated = [trace.name for trace, text in zip(TRACES, content, strict=True) if content.count(text) > 1]
    assert not repeated
    assert len({trace.about for trace in TRACES}) == len(TRACES)


def test_every_rule_that_is_built_has_a_trace_and_no_other_is_named() -> None:
    named = {rule for trace in TRACES for rule in trace.covers}
    assert named == set(COVERED)


def test_every_trace_covers_a_rule_and_says_where_it_is_from() -> None:
    assert not [trace.name for trace in TRACES if not (trace.covers and trace.source and trace.about)]


def test_some_traces_are_for_spark_and_some_for_every_cut() -> None:
    assert sum(trace.spark for trace in TRACES) >= 5
    assert {"T9"} <= {rule for trace in TRACES if trace.any_cut for rule in trace.covers}


def test_running_traces_show_output() -> None:
    """A corpus in which everything expects nothing would prove nothing."""
    assert sum(any(step.expected.output for step in trace.steps) for trace in RUNNING) > len(RUNNING) / 2


# --- one trace, in many ways ------------------------------------------------------------------------------------------


@every_trace
def test_straight_and_with_a_restart_and_a_rescale_between_all_steps(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(trace)
    _check(trace, trace.steps, MemoryStore(), 1, job)  # shards come with the rescales
    # A restart reads all segments back: the run before it reads few, and its rows are the same.
    check_stored_segments(monkeypatch)
    _check(trace, _between(trace.steps, [[RESTART, rescale] for rescale in RESCALES]), MemoryStore(), 2, job)


@pytest.mark.soak
@every_trace
def test_with_shards_with_restarts_and_with_rescales_alone(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    check_stored_segments(monkeypatch)
    for shards in SHARDS:
        _check(trace, trace.steps, MemoryStore(), shards)
    _check(trace, _between(trace.steps, [[RESTART]]), MemoryStore())
    _check(trace, _between(trace.steps, [[rescale] for rescale in RESCALES]), MemoryStore(), shards=2)


@pytest.mark.parametrize("trace", [trace for trace in RUNNING if trace.any_cut], ids=lambda trace: trace.name)
def test_any_cut_gives_the_same_rows(trace: Trace) -> None:
    job = _job(trace)
    ends = [step.action for step in trace.steps if "end" in step.action]
    meant = [row for step in trace.steps for row in step.expected.output]
    settle = _final_upserts if trace.sessions else list
    for cut, steps in {"row by row": [*_row_by_row(trace)], "one epoch": [{"rows": _rows_by_input(trace)}]}.items():
        lines = list(run_trace(job, [*steps, *ends], MemoryStore(), 1))
        assert not any(count for line in lines for count in line["late"].values()), cut
        shown = [row for line in lines for row in line["output"]]
        assert _multiset(settle(shown)) == _multiset(settle(meant)), cut


@pytest.mark.parametrize("trace", REFUSED, ids=lambda trace: trace.name)
def test_refused(trace: Trace) -> None:
    with pytest.raises(JobError) as raised:
        _job(trace)
    problems = {problem.path: problem.message for problem in raised.value.problems}
    assert set(problems) == {refusal.at for refusal in trace.refused}
    assert not [refusal for refusal in trace.refused if refusal.says not in problems[refusal.at]]


# --- on the real Postgres ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStore]:
    folder: Path = tmp_path_factory.mktemp("traces-postgres")
    with embedded_postgres(folder) as dsn:
        store = PostgresStore(dsn, "traces")
        yield store
        store.close()


def _one_for_every_rule() -> list[str]:
    """Few traces that together cover every rule: always the one that adds most, of equals the one with most steps."""
    chosen: list[str] = []
    open_rules = {rule for trace in RUNNING for rule in trace.covers}
    while open_rules:
        best = max(RUNNING, key=lambda trace: (len(open_rules & {*trace.covers}), len(trace.steps), trace.name))
        chosen.append(best.name)
        open_rules -= {*best.covers}
    return chosen


ON_POSTGRES = _one_for_every_rule()


def test_postgres_gets_a_trace_for_every_rule() -> None:
    assert {rule for trace in RUNNING if trace.name in ON_POSTGRES for rule in trace.covers} == set(COVERED)
    assert len(ON_POSTGRES) < len(COVERED)


@pytest.mark.services
@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(trace, id=trace.name, marks=() if trace.name in ON_POSTGRES else pytest.mark.soak)
        for trace in RUNNING
    ],
)
def test_on_postgres(trace: Trace, postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With restarts: a straight run would read back less of what was stored. `soak` runs all of them."""
    check_stored_segments(monkeypatch)
    _check(trace, _between(trace.steps, [[RESTART]]), postgres)


# --- running and comparing --------------------------------------------------------------------------------------------


def _job(trace: Trace) -> Job:
    return parse_job(json.dumps(trace.job), f"{trace.name}.yaml", plain_numbers=True)


def _check(
    trace: Trace, steps: Sequence[Step], store: StateStore, shards: int | None = None, job: Job | None = None
) -> None:
    with closing(_lines(job or _job(trace), steps, store, shards)) as lines:
        for number, step in enumerate(steps, start=1):
            context = f"{trace.name}, step {number} of this run: {step.action}"
            if step.expected.fails:
                _check_failure(lines, step.expected.fails, context)
                return
            _check_line(next(lines), step.expected, trace, context)
        assert next(lines, None) is None


def _lines(
    job: Job, steps: Sequence[Step], store: StateStore, shards: int | None
) -> Generator[Mapping[str, Any], None, None]:
    yield from run_trace(job, [step.action for step in steps], store, shards, verbose=True)


def _check_line(line: Mapping[str, Any], expected: Expected, trace: Trace, context: str) -> None:
    # As text, because the order of an output row's columns counts too (rule J10).
    shown, meant = _texts(line["output"]), _texts(expected.output)
    assert (shown if trace.ordered else sorted(shown)) == (meant if trace.ordered else sorted(meant)), context
    for counter, counts in (("late", expected.late), ("dead", expected.dead)):
        assert line[counter] == {**dict.fromkeys(trace.inputs, 0), **(counts or {})}, f"{counter}: {context}"
    _check_if_said(line["watermarks"], expected.watermarks, context)
    _check_if_said(line["stepWatermarks"], expected.step_watermarks and list(expected.step_watermarks), context)
    _check_if_said(line.get("dropped", {}), expected.dropped, context)
    _check_if_said(line.get("after_eviction", {}), expected.after_eviction, context)


def _check_if_said(shown: object, expected: object | None, context: str) -> None:
    assert expected is None or shown == expected, context


def _check_failure(lines: Iterator[Mapping[str, Any]], fragments: Sequence[str], context: str) -> None:
    with pytest.raises(JoineryError) as raised:
        next(lines)
    assert not [fragment for fragment in fragments if fragment not in str(raised.value)], f"{raised.value}: {context}"


def _between(steps: Sequence[Step], extra: Sequence[Sequence[Mapping[str, Any]]]) -> list[Step]:
    """The steps with one group of `extra`, in turn, between them. They emit nothing and move no watermark."""
    inserted = list(steps[:1])
    for number, (before, step) in enumerate(pairwise(steps)):
        inserted += [Step(event, _unmoved(before.expected)) for event in extra[number % len(extra)]]
        inserted.append(step)
    return inserted


def _unmoved(after: Expected) -> Expected:
    return Expected(watermarks=after.watermarks, step_watermarks=after.step_watermarks)


def _texts(rows: Iterable[Row]) -> list[str]:
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def _multiset(rows: Iterable[Row]) -> Counter[str]:
    return Counter(_texts(rows))


def _final_upserts(rows: Iterable[Row]) -> list[Row]:
    """What stays in a table with the key of rule S6 (T9)."""
    table: dict[str, Row] = {}
    for row in rows:
        columns = list(row)
        key = json.dumps([row[name] for name in (*columns[: columns.index("window_start")], "session_id")])
        table[key] = row
    return [row for row in table.values() if not row.get("retracted")]


def _rows_of(step: Step) -> Mapping[str, Sequence[Row]]:
    rows = step.action.get("rows", {})
    return {step.action["input"]: rows} if "input" in step.action else rows


def _row_by_row(trace: Trace) -> Iterator[dict[str, Any]]:
    for step in trace.steps:
        for name, rows in _rows_of(step).items():
            yield from ({"input": name, "rows": [row]} for row in rows)


def _rows_by_input(trace: Trace) -> dict[str, list[Row]]:
    return {name: [row for step in trace.steps for row in _rows_of(step).get(name, ())] for name in trace.sources}
