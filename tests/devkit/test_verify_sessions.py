"""The verifier of sessions must see every way in which a table can be wrong, and agree with the row-by-row oracle."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

from joinery_devkit.oracle import EpochExpectation, Row, SessionOracle, SessionShape
from joinery_devkit.topics import Record
from joinery_devkit.verify_sessions import SessionVerdict, verify_sessions
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import SessionWindow, parse_job

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: visits}
spec:
  input:
    name: clicks
    kafka: {bootstrapServers: "kafka:9092", topic: clicks, stopAt: latest}
    format: json
    schema: [{name: user, type: string}, {name: page, type: string}, {name: ts, type: timestamp}]
    eventTime: ts
    watermark: {delay: 2ms}
  groupBy: [user]
  gap: 15ms
  maxDuration: 100ms
  aggregates:
    - {function: count, as: clicks}
    - {function: first, column: page, as: first_page}
    - {function: count_distinct, column: page, method: hll, as: pages}
  lateData: reopen
  allowedLateness: 5ms
  emitRetractions: true
  output: {postgres: {table: sessions}}
  deadLetter: {file: {path: dead}}
"""
END = 2**63 - 1


def job(*edits: tuple[str, str]) -> SessionWindow:
    text = JOB
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    parsed = parse_job(text, "job.yaml")
    assert isinstance(parsed, SessionWindow)
    return parsed


@dataclass
class Run:
    """A run that can be spoilt: what `verify_sessions` takes."""

    records: list[Record]
    log: list[dict[str, Any]]
    table: list[dict[str, Any]]
    dead: list[dict[str, Any]]

    def verdict(self, window: SessionWindow | None = None) -> SessionVerdict:
        records = {"clicks": self.records}
        return verify_sessions(
            records, self.log, self.table, window or job(), dead_letters=self.dead, identify=lambda key: key[-1]
        )


def click(offset: int, user: str | None, page: str | None, ts: int) -> Record:
    return Record("clicks", 0, offset, json.dumps({"user": user, "page": page, "ts": ts}).encode())


def entry(epoch: int, ranges: list[list[Any]], mark: int | None, **result: Any) -> dict[str, Any]:
    plan = {"ranges": ranges, "watermarks": {"clicks": mark}, "idle": {}, "ended": ["clicks"] if mark == END else []}
    return {"epoch": epoch, "plan": plan, "result": {"rows_out": 0, "dropped": {}, **result}}


def session(user: str | None, start: int, end: int, clicks: int, first_page: str | None, pages: int) -> dict[str, Any]:
    return {
        "user": user,
        "window_start": start,
        "window_end": end,
        "session_id": start,
        "clicks": clicks,
        "first_page": first_page,
        "pages": pages,
    }


def good() -> Run:
    """Epoch 1: two sessions of a, and one of nobody. Epoch 2, watermark 138: a click merges those of a, one of b at 100
    is late, one is no JSON. Epoch 3 is the end."""
    records = [
        click(0, "a", "/1", 120),
        click(1, None, "/1", 125),
        click(2, "a", "/2", 140),
        click(3, None, None, 121),
        click(4, "a", "/1", 133),
        click(5, "b", "/1", 100),
        Record("clicks", 0, 6, b"{"),
        click(7, "a", "/3", 134),
    ]
    log = [
        entry(1, [["clicks", "clicks", 0, 0, 4]], None),
        entry(2, [["clicks", "clicks", 0, 4, 8]], 138, dropped={"clicks": {"late": 1}}),
        entry(3, [], END),
    ]
    table = [session("a", 120, 140, 4, "/1", 3), session(None, 121, 125, 2, "/1", 1)]
    return Run(records, log, table, [{"topic": "clicks", "partition": 0, "offset": 6}])


def test_a_right_run_is_verified() -> None:
    verdict = good().verdict()
    assert verdict.problems == ()
    assert verdict.ok
    assert (verdict.sessions, verdict.rows, verdict.late, verdict.dead_letters, verdict.epochs) == (2, 7, 1, 1, 3)
    assert str(verdict).startswith(
        "VERIFIED: 2 sessions of 6 rows, each as brute force finds it, 1 late, 1 dead letters"
    )


def spoilt(change: str, run: Run) -> None:
    match change:
        case "missing":
            del run.table[1]
        case "a session that was replaced":
            run.table.append(session("a", 140, 140, 1, "/2", 1))
        case "cut":
            run.table[0] = session("a", 120, 133, 3, "/1", 2)
        case "twice":
            run.table.append(dict(run.table[0]))
        case "count":
            run.table[0]["clicks"] = 3
        case "first":
            run.table[0]["first_page"] = "/2"
        case "sketch":
            run.table[0]["pages"] = 5
        case "id":
            run.table[0]["session_id"] += 1
        case "late count":
            run.log[1]["result"]["dropped"] = {}
        case "another reason":
            run.log[0]["result"]["dropped"] = {"clicks": {"closed": 1}}
        case "watermark":
            run.log[1]["plan"]["watermarks"]["clicks"] = 137
        case "gap in the reading":
            run.log[1]["plan"]["ranges"][0][3] = 5
        case "dead letter":
            run.dead.clear()
        case "unread":
            run.records.append(click(8, "c", "/1", 150))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("missing", "1 sessions are missing, such as:\n      {'user': None, 'window_start': 121, 'window_end': 125}"),
        ("a session that was replaced", "1 sessions should not be there"),
        ("cut", "1 sessions are missing"),
        ("twice", "1 sessions are there more than once"),
        (
            "count",
            "1 sessions have a wrong clicks, such as:\n      {'user': 'a', 'window_start': 120, 'window_end': 140, 'th",
        ),
        ("first", "1 sessions have a wrong first_page"),
        ("sketch", "1 sessions have a wrong pages"),
        ("id", "1 sessions have a wrong session_id"),
        ("late count", "epoch 2: the log counts as dropped {}, it is {'clicks': {'late': 1}}"),
        ("another reason", "epoch 1: the log counts as dropped {'clicks': {'closed': 1}}, it is {}"),
        ("watermark", "epoch 2: the watermarks are {'clicks': 137}, the records imply {'clicks': 138}"),
        ("gap in the reading", "epoch 2 starts at offset 5, epoch 1 ended at 4"),
        ("dead letter", "1 records are not among the dead letters"),
        ("unread", "1 records were never read"),
    ],
)
def test_a_wrong_run_is_not(change: str, sentence: str) -> None:
    run = good()
    spoilt(change, run)
    verdict = run.verdict()
    assert not verdict.ok
    assert sentence in "\n".join(verdict.problems)
    assert str(verdict).startswith("NOT VERIFIED")


def test_a_sketch_may_be_a_little_off_but_an_exact_count_may_not() -> None:
    run = good()
    run.table[0]["pages"] = 4
    assert run.verdict().ok
    assert not run.verdict(job(("method: hll", "method: exact"))).ok


def test_with_drop_a_click_is_late_by_the_allowed_lateness_alone() -> None:
    run = good()
    run.log[1]["result"]["dropped"] = {"clicks": {"late": 2}}
    run.table[0] = session("a", 120, 140, 3, "/1", 3)
    verdict = run.verdict(job(("lateData: reopen", "lateData: drop"), ("allowedLateness: 5ms", "allowedLateness: 4ms")))
    assert verdict.problems == ()
    assert verdict.late == 2


def test_a_late_click_that_is_near_another_one_cannot_be_judged() -> None:
    run = good()
    run.records[5] = click(5, "a", "/1", 115)
    with pytest.raises(JoineryError, match=r"cannot be judged by brute force: .*is near another row"):
        run.verdict()


def test_a_session_that_reaches_the_cap_cannot_be_judged() -> None:
    with pytest.raises(JoineryError, match=r"\('a', 120, 140\) reaches maxDuration"):
        good().verdict(job(("maxDuration: 100ms", "maxDuration: 20ms")))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (("emitRetractions: true", "emitRetractions: false"), "it emits no retractions"),
        (("groupBy: [user]", 'where: "page IS NOT NULL"\n  groupBy: [user]'), "it computes columns or filters rows"),
    ],
)
def test_jobs_that_cannot_be_judged(edit: tuple[str, str], sentence: str) -> None:
    with pytest.raises(JoineryError, match=sentence):
        good().verdict(job(edit))


@pytest.mark.parametrize("late_data", ["drop", "reopen"])
@pytest.mark.parametrize("seed", range(15))
def test_it_agrees_with_the_oracle(seed: int, late_data: str) -> None:
    """Random clicks in random epochs, some late and alone, taken row by row; what goes out replaces and retracts."""
    window = job(("lateData: reopen", f"lateData: {late_data}"), ("maxDuration: 100ms", "maxDuration: 100000ms"))
    run = by_the_oracle(random.Random(seed), window)
    verdict = run.verdict(window)
    assert verdict.problems == ()
    assert verdict.sessions > 10
    assert verdict.late > 0


def by_the_oracle(chance: random.Random, window: SessionWindow) -> Run:
    oracle = SessionOracle(SessionShape(window, lambda key: key[-1]))
    run, table, highest = Run([], [], [], []), {}, None
    for number in range(1, 80):
        first = len(run.records)
        for offset in range(first, first + chance.randrange(1, 6)):
            late = number > 20 and chance.random() < 0.05
            user = f"late{offset}" if late else chance.choice(("a", "b", None))
            ts = 1_000 + 8 * number - (100 if late else chance.randrange(8))
            run.records.append(click(offset, user, chance.choice(("/1", "/2", None)), ts))
        run.log.append(entry(number, [["clicks", "clicks", 0, first, len(run.records)]], highest))
        rows = [Row(0, r.offset, json.loads(r.value)["ts"], json.loads(r.value)) for r in run.records[first:]]
        _apply(table, run.log[-1], oracle.epoch({"clicks": highest}, {"clicks": rows}))
        highest = max([row.ts - 2 for row in rows] + ([highest] if highest is not None else []))
    run.log.append(entry(80, [], END))
    (last,) = oracle.end()
    _apply(table, run.log[-1], last)
    run.table = list(table.values())
    return run


def _apply(table: dict[Any, dict[str, Any]], line: dict[str, Any], expected: EpochExpectation) -> None:
    for row in expected.rows:
        key = (row["user"], row["session_id"])
        if row.pop("retracted"):
            table.pop(key)
        else:
            table[key] = row
    line["result"]["dropped"] = {name: {"late": count} for name, count in expected.late.items() if count}
