"""ksqlDB's query-validation cases give the rows that ksqlDB gives, or results.csv says why not (README.md)."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from joinery_devkit.ksql_cases import job_of
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.state.memory import MemoryStore

FOLDER = Path(__file__).parent
CASES: Sequence[Mapping[str, Any]] = json.loads((FOLDER / "cases.json").read_text())["cases"]
LEAST_CASES, LEAST_SHARE = 170, 0.9
AT_ONCE = 16


def results() -> list[tuple[str, str]]:
    """The name of each case, in order, with `pass` or the reason."""
    with (FOLDER / "results.csv").open(newline="") as table:
        return [(f"{row['file']}: {row['case']}", row["result"]) for row in csv.DictReader(table)]


def rows_of(case: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What our job emits. Windows of Kafka Streams begin in 1970 or later."""
    steps: list[dict[str, Any]] = [{"input": name, "rows": [row]} for name, row in case["rows"]]
    ends = [{"end": True}] if case["ends"] else []
    lines = run_trace(job_of(case["spec"]), [*steps, *ends], MemoryStore(), 1)
    return [row for line in lines for row in line["output"] if row.get("window_start", 0) >= 0]


def comparable(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> Counter[str]:
    """The rows as texts. Delimited values and decimals are texts, and sums of doubles differ in their last digit."""
    return Counter(json.dumps({name: _number(row[name]) for name in sorted(columns)}) for row in rows)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return value


def passes(case: Mapping[str, Any]) -> bool:
    """Whether the rows are those of ksqlDB. Of windows that it emits once, at most every second of its clock, it has
    emitted some when its case ends; we have emitted these."""
    columns = case["output"][0] if case["output"] else ()
    ours, theirs = comparable(rows_of(case), columns), comparable(case["output"], columns)
    return ours == theirs if case["ends"] else theirs <= ours


def test_the_cases_are_there_and_most_of_them_pass() -> None:
    assert [name for name, _ in results()] == [case["name"] for case in CASES]
    assert len(CASES) >= LEAST_CASES
    assert sum(result == "pass" for _, result in results()) >= LEAST_SHARE * len(CASES)
    assert all(case["output"] or "having" in case["spec"].get("aggregate", ()) for case in CASES)


@pytest.mark.parametrize("first", range(0, len(CASES), AT_ONCE))
def test_a_case_gives_the_rows_of_ksqldb_or_has_a_reason(first: int) -> None:
    expected = results()[first : first + AT_ONCE]
    actual = [(case["name"], passes(case)) for case in CASES[first : first + AT_ONCE]]
    assert actual == [(name, result == "pass") for name, result in expected]
