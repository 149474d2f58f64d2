"""The verifier must see every way in which an output can be wrong, and agree with the row-by-row oracle."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from joinery_devkit.oracle import Oracle, Row, WatermarkOracle
from joinery_devkit.topics import Record
from joinery_devkit.verify import JoinVerdict, verify
from joinery_runtime.job import StreamJoin, parse_job

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: clicks-buys}
spec:
  inputs:
    - name: clicks
      kafka: {bootstrapServers: "kafka:9092", topic: clicks}
      format: json
      schema: [{name: user, type: string}, {name: page, type: int64}, {name: ts, type: timestamp}]
      eventTime: ts
      watermark: {delay: 2ms}
    - name: buys
      kafka: {bootstrapServers: "kafka:9092", topic: buys}
      format: json
      schema: [{name: user, type: string}, {name: price, type: double}, {name: ts, type: timestamp}]
      eventTime: ts
  joins:
    - right: buys
      keys: {clicks.user: buys.user}
      interval: {of: clicks, lower: -3ms, upper: 10ms}
      allowedLateness: 1ms
  output: {postgres: {table: joined}}
  deadLetter: {file: {path: dead}}
"""
SIDES = ("clicks", "buys")


def job(*edits: tuple[str, str]) -> StreamJoin:
    text = JOB
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parse_job(text, "job.yaml")


@dataclass
class Run:
    """A run that can be spoilt: what `verify` takes."""

    records: dict[str, list[Record]]
    log: list[dict[str, Any]]
    output: list[dict[str, Any]]
    dead: list[dict[str, Any]]

    def verdict(self, join: StreamJoin | None = None, *, complete: bool = True) -> JoinVerdict:
        return verify(self.records, self.log, self.output, join or job(), dead_letters=self.dead, complete=complete)


def record(name: str, offset: int, user: str | None, ts: int, partition: int = 0) -> Record:
    value = {"user": user, "ts": ts, **({"page": offset} if name == "clicks" else {"price": offset / 4})}
    return Record(name, partition, offset, json.dumps(value).encode())


def entry(
    epoch: int, ranges: Sequence[Sequence[Any]], marks: tuple[int | None, int | None], out: int
) -> dict[str, Any]:
    plan = {"ranges": ranges, "watermarks": dict(zip(SIDES, marks, strict=True)), "idle": {}, "ended": []}
    return {"epoch": epoch, "plan": plan, "result": {"rows_out": out, "dropped": {}}}


def good() -> Run:
    """Epoch 1: a click at 100 and its buy at 105. Epoch 2: watermarks 98 and 105, another buy at 110, a click without a
    user, one that is no JSON. Epoch 3: watermarks 108 and 110: a click at 90 is late, one at 99 meets the first buy and
    is too far from the second."""
    clicks = [record("clicks", 0, "a", 100), record("clicks", 1, None, 110), Record("clicks", 0, 2, b"{")]
    late = [record("clicks", 3, "a", 90), record("clicks", 4, "a", 99)]
    buys = [record("buys", 0, "a", 105), record("buys", 1, "a", 110)]
    ranges = (
        [["clicks", "clicks", 0, 0, 1], ["buys", "buys", 0, 0, 1]],
        [["clicks", "clicks", 0, 1, 3], ["buys", "buys", 0, 1, 2]],
        [["clicks", "clicks", 0, 3, 5]],
    )
    log = [entry(1, ranges[0], (None, None), 1), entry(2, ranges[1], (98, 105), 1), entry(3, ranges[2], (108, 110), 1)]
    log[1]["result"]["dropped"] = {"clicks": {"null_key": 1}}
    log[2]["result"]["dropped"] = {"clicks": {"late": 1}}
    output = [joined(0, 100, 0, 105), joined(0, 100, 1, 110), joined(4, 99, 0, 105)]
    dead = [{"topic": "clicks", "partition": 0, "offset": 2}]
    return Run({"clicks": clicks + late, "buys": buys}, log, output, dead)


def joined(page: int, left_ts: int, buy: int, right_ts: int) -> dict[str, Any]:
    left = {"clicks_user": "a", "page": page, "clicks_ts": left_ts}
    return {**left, "buys_user": "a", "price": buy / 4, "buys_ts": right_ts}


def test_a_right_run_is_verified() -> None:
    verdict = good().verdict()
    assert verdict.problems == ()
    assert (verdict.pairs, verdict.missing, verdict.extra, verdict.duplicates) == (3, 0, 0, 0)
    assert (verdict.dropped, verdict.dead_letters, verdict.unread, verdict.epochs) == (
        {"null_key": 1, "late": 1}, 1, 0, 3,
    )  # fmt: skip
    assert str(verdict).startswith("VERIFIED: 3 joined rows, each exactly once, 1 late, 1 null key, 1 dead letters")


def spoilt(change: str, run: Run) -> None:
    match change:
        case "missing":
            del run.output[1]
        case "extra":
            run.output.append(joined(7, 100, 1, 110))
        case "duplicate":
            run.output.append(dict(run.output[0]))
        case "a late row that was joined":
            run.output.append(joined(3, 90, 0, 105))
        case "watermark":
            run.log[1]["plan"]["watermarks"]["clicks"] = 99
        case "watermark of a row that is read in the same epoch":
            run.log[0]["plan"]["watermarks"]["buys"] = 105
        case "gap":
            run.log[1]["plan"]["ranges"][1][3] = 2
        case "epoch number":
            run.log[2]["epoch"] = 2
        case "late count":
            run.log[2]["result"]["dropped"] = {}
        case "pair count":
            run.log[0]["result"]["rows_out"] = 2
        case "lost dead letter":
            run.dead.clear()
        case "usable dead letter":
            run.dead.append({"topic": "buys", "partition": 0, "offset": 0})
        case "dead letter twice":
            run.dead.append(dict(run.dead[0]))
        case "unread":
            run.records["buys"].append(record("buys", 2, "a", 120))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("missing", "1 joined rows are missing"),
        ("extra", "1 joined rows should not be there"),
        ("duplicate", "1 joined rows came more than once"),
        ("a late row that was joined", "1 joined rows should not be there"),
        ("watermark", "epoch 2: the watermarks are {'clicks': 99, 'buys': 105}, the records imply {'clicks': 98,"),
        ("watermark of a row that is read in the same epoch", "epoch 1: the watermarks are"),
        ("gap", "input buys, buys-0: epoch 2 starts at offset 2, epoch 1 ended at 1"),
        ("epoch number", "epoch 2 comes after epoch 2"),
        ("late count", "epoch 3: the log counts as dropped {}, it is {'clicks': {'late': 1}}"),
        ("pair count", "epoch 1: the log counts 2 joined rows, there are 1"),
        ("lost dead letter", "1 records are not among the dead letters, such as:\n      {'topic': 'clicks'"),
        ("usable dead letter", "1 dead letters are of usable records"),
        ("dead letter twice", "1 dead letters came more than once"),
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


def test_counts_say_how_much_is_wrong() -> None:
    run = good()
    run.output = [run.output[0], run.output[0], run.output[0], joined(7, 100, 1, 110)]
    verdict = run.verdict()
    assert (verdict.missing, verdict.extra, verdict.duplicates) == (2, 1, 2)


def test_a_job_that_was_stopped_may_leave_records_unread() -> None:
    run = good()
    run.records["buys"].append(record("buys", 2, "a", 120))
    verdict = run.verdict(complete=False)
    assert verdict.ok
    assert verdict.unread == 1


def test_dead_letters_in_kafka_may_repeat_only_at_least_once() -> None:
    run = good()
    run.dead *= 2
    into_kafka = ("{file: {path: dead}}", "{kafka: {topic: dead}}")
    assert not run.verdict(job(into_kafka)).ok
    assert run.verdict(job(into_kafka, ("spec:", "spec:\n  delivery: atLeastOnce"))).ok


def test_the_condition_counts_as_the_rules_say() -> None:
    # The click's own part of `where` filters it (J4), the part about both sides only decides on pairs.
    run = good()
    run.output = [joined(0, 100, 0, 105)]
    run.log[1]["result"] = {"rows_out": 0, "dropped": {"clicks": {"null_key": 1}}}
    run.log[2]["result"] = {"rows_out": 0, "dropped": {"clicks": {"filtered": 2}}}
    where = 'allowedLateness: 1ms\n      where: "clicks.page < 3 AND buys.price <= clicks.page"'
    verdict = run.verdict(job(("allowedLateness: 1ms", where)))
    assert verdict.problems == ()
    assert verdict.dropped == {"null_key": 1, "filtered": 2}


@pytest.mark.parametrize("late_data", ["drop", "reopen"])
@pytest.mark.parametrize("seed", range(15))
def test_it_agrees_with_the_oracle(seed: int, late_data: str) -> None:
    join = job(("allowedLateness: 1ms", f"allowedLateness: 1ms\n      lateData: {late_data}"))
    run = by_the_oracle(random.Random(seed), join)
    verdict = run.verdict(join)
    assert verdict.problems == ()
    assert verdict.pairs > 20
    assert ("late" in verdict.dropped) == (late_data == "drop")


def by_the_oracle(chance: random.Random, join: StreamJoin) -> Run:
    """Random rows on two partitions per input, in random epochs, joined row by row."""
    oracle, marks = Oracle.of_job(join), WatermarkOracle({"clicks": 2, "buys": 0})
    run = Run({name: [] for name in SIDES}, [], [], [])
    ends: Counter[tuple[str, int]] = Counter()
    for number in range(1, 40):
        arrivals = [(name, partition, chance.randrange(3)) for name in SIDES for partition in (0, 1)]
        rows = {name: _rows(chance, name, number, arrivals, ends) for name in SIDES}
        ranges = [[n, n, p, ends[n, p], ends[n, p] + count] for n, p, count in arrivals if count or number == 1]
        for name, topic, partition, _, _ in ranges:
            marks.saw(name, f"{topic}/{partition}", ())
        watermarks = marks.watermarks()
        expected = oracle.epoch(watermarks, rows)
        counts = {name: {"late": late} for name, late in expected.late.items() if late}
        line = entry(number, ranges, (watermarks["clicks"], watermarks["buys"]), len(expected.rows))
        line["result"]["dropped"] = {name: dict(dropped) for name, dropped in _both(counts, expected.dropped).items()}
        run.log.append(line)
        run.output += expected.rows
        for name in SIDES:
            for row in rows[name]:
                run.records[name].append(record(name, row.offset, row.values["user"], row.ts, row.partition))
                marks.saw(name, f"{name}/{row.partition}", [row.ts])
        for name, partition, count in arrivals:
            ends[name, partition] += count
    return run


def _rows(
    chance: random.Random, name: str, number: int, arrivals: Sequence[tuple[str, int, int]], ends: Counter[Any]
) -> list[Row]:
    rows_read = []
    for _, partition, count in (arrival for arrival in arrivals if arrival[0] == name):
        for offset in range(ends[name, partition], ends[name, partition] + count):
            user, ts = chance.choice(("a", "b", None)), 3 * number - chance.choice((0, 1, 4, 9, 30))
            document = json.loads(record(name, offset, user, ts, partition).value or b"")
            rows_read.append(Row(partition, offset, ts, document))
    return rows_read


def _both(late: Mapping[str, Any], dropped: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    merged = {name: {**late.get(name, {}), **dropped[name]} for name in SIDES}
    return {name: counts for name, counts in merged.items() if counts}
