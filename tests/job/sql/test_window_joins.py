"""Window joins as Flink writes them: the same job as a join with WINDOW, and the rows that DuckDB computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pytest

from job.chains import document, stream
from joinery_runtime.job.sql import SqlInput, Translation, translate
from local_rows import run_job

A, B, C = (SqlInput(name, ("id", name, "ts"), "ts") for name in ("a", "b", "c"))
LOCAL_DAY = "INTERVAL 1 DAY, 'Europe/Zurich'"
MINUTES = "INTERVAL '5' MINUTES"
TUMBLING, HOPPING = (
    f"WINDOW TUMBLING({MINUTES})",
    "WINDOW HOPPING(SIZE INTERVAL '10' MINUTE, SLIDE INTERVAL '5' MINUTE)",
)
SAME_WINDOW = "l.window_start = r.window_start AND l.window_end = r.window_end"
THIRD = "l.window_start = q.window_start AND l.window_end = q.window_end"


def tumble(name: str, lengths: str = MINUTES) -> str:
    return f"TABLE(TUMBLE(TABLE {name}, DESCRIPTOR(ts), {lengths}))"


def hop(name: str) -> str:
    return f"TABLE(HOP(TABLE {name}, DESCRIPTOR(ts), {MINUTES}, INTERVAL '10' MINUTES))"


def read(source: str, where: str = "") -> str:
    return f"(SELECT * FROM {source} {where})"


def translated(sql: str) -> Translation:
    translation = translate(sql, (A, B, C) if " q " in sql else (A, B))
    assert translation.problems == ()
    return translation


JOINED = f"FROM {read(tumble('a'))} l {{}} {read(tumble('b'))} r ON l.id = r.id AND {SAME_WINDOW}"
OURS = f"FROM a l {{}} b r ON l.id = r.id {TUMBLING}"
BOTH_TIMES = "COALESCE(l.window_start, r.window_start) AS window_start, COALESCE(r.window_end, l.window_end) AS ends"
SAME = [
    *((f"SELECT l.a, r.b, l.window_start {JOINED.format(join)}", f"SELECT l.a, r.b, window_start {OURS.format(join)}")
      for join in ("JOIN", "LEFT JOIN")),
    (f"SELECT l.a, r.b, r.window_end {JOINED.format('RIGHT JOIN')}",
     f"SELECT l.a, r.b, window_end {OURS.format('RIGHT JOIN')}"),
    (f"SELECT l.a, r.b, {BOTH_TIMES} {JOINED.format('FULL JOIN')}",
     f"SELECT l.a, r.b, window_start, window_end AS ends {OURS.format('FULL JOIN')}"),
    (f"SELECT l.a, l.window_start {JOINED.format('LEFT SEMI JOIN')}",
     f"SELECT l.a, window_start {OURS.format('LEFT SEMI JOIN')}"),
    # without sub-queries, with their conditions, and in WITH
    (f"SELECT l.a, r.b, window_end FROM {hop('a')} AS l JOIN {hop('b')} AS r ON {SAME_WINDOW} AND l.id = r.id",
     f"SELECT l.a, r.b, window_end FROM a l JOIN b r ON l.id = r.id {HOPPING}"),
    (f"SELECT l.a, r.b, window_end FROM {tumble('a')} l, {tumble('b')} r WHERE l.id = r.id AND {SAME_WINDOW}",
     f"SELECT l.a, r.b, window_end FROM a l JOIN b r ON l.id = r.id {TUMBLING}"),
    (f"SELECT l.a, r.b, window_end FROM {tumble('a')} l JOIN {tumble('b')} r USING (id, window_start, window_end)",
     f"SELECT l.a, r.b, window_end FROM a l JOIN b r USING (id) {TUMBLING}"),
    (f"SELECT l.a, r.b, l.window_end FROM {read(tumble('a'), 'WHERE a > 1')} l LEFT JOIN {tumble('b')} r "
     f"ON l.id = r.id AND {SAME_WINDOW}",
     f"SELECT l.a, r.b, window_end FROM (SELECT * FROM a WHERE a > 1) l LEFT JOIN b r ON l.id = r.id {TUMBLING}"),
    (f"WITH l AS (SELECT id, a, window_start AS starts, window_end AS ends FROM {tumble('a')} WHERE a > 1), "
     f"r AS (SELECT * FROM {tumble('b')}) "
     "SELECT l.a, r.b, starts FROM l JOIN r ON l.id = r.id AND starts = r.window_start AND l.ends = r.window_end",
     "SELECT l.a, r.b, window_start AS starts FROM (SELECT * FROM a WHERE a > 1) l JOIN b r ON l.id = r.id "
     f"{TUMBLING}"),
    (f"WITH plain AS (SELECT id, a, ts FROM a) SELECT l.a, r.b FROM {tumble('plain')} l JOIN {tumble('b')} r "
     f"ON l.id = r.id AND {SAME_WINDOW}",
     f"SELECT l.a, r.b FROM a l JOIN b r ON l.id = r.id {TUMBLING}"),
    # tests for a match
    (f"SELECT a, window_start FROM {read(tumble('a'))} l WHERE l.id IN "
     f"(SELECT id FROM {read(tumble('b'))} r WHERE {SAME_WINDOW})",
     f"SELECT a, window_start FROM a l WHERE l.id IN (SELECT id FROM b) {TUMBLING}"),
    (f"SELECT a FROM {read(tumble('a'))} l WHERE a > 1 AND NOT EXISTS "
     f"(SELECT * FROM {read(tumble('b'))} r WHERE l.id = r.id AND {SAME_WINDOW} AND r.b > l.a)",
     f"SELECT a FROM a l WHERE a > 1 AND NOT EXISTS (SELECT 1 FROM b r WHERE l.id = r.id AND r.b > l.a) {TUMBLING}"),
    (f"SELECT l.a {JOINED.format('LEFT JOIN')} WHERE r.window_start IS NULL",
     f"SELECT l.a {OURS.format('LEFT ANTI JOIN')}"),
    # groups in the windows of the join
    (f"SELECT l.window_start, r.window_end, COUNT(*) AS n {JOINED.format('JOIN')} "
     "GROUP BY l.window_start, r.window_end",
     "SELECT window_start, window_end, COUNT(*) AS n FROM a l JOIN b r ON l.id = r.id "
     f"GROUP BY TUMBLE(l.ts, {MINUTES}) {TUMBLING}"),
    (f"SELECT r.b, COUNT(l.a) AS n {JOINED.format('RIGHT JOIN')} GROUP BY window_end, r.b, window_start "
     "HAVING window_start > 5",
     f"SELECT r.b, COUNT(l.a) AS n FROM a l RIGHT JOIN b r ON l.id = r.id GROUP BY r.b, TUMBLE(r.ts, {MINUTES}) "
     f"HAVING window_start > 5 {TUMBLING}"),
    (f"SELECT starts, COUNT(*) AS n FROM (SELECT l.a, l.window_start AS starts, l.window_end AS ends "
     f"{JOINED.format('LEFT JOIN')}) GROUP BY starts, ends",
     f"SELECT window_start AS starts, COUNT(*) AS n FROM a l LEFT JOIN b r ON l.id = r.id "
     f"GROUP BY TUMBLE(l.ts, {MINUTES}) {TUMBLING}"),
    # three inputs, one after the other or one joined to a joined sub-query
    (f"SELECT l.a, r.b, q.c, q.window_start FROM {tumble('a')} l JOIN {tumble('b')} r ON l.id = r.id AND {SAME_WINDOW} "
     f"JOIN {tumble('c')} q ON q.id = r.id AND {THIRD}",
     f"SELECT l.a, r.b, q.c, window_start FROM a l JOIN b r ON l.id = r.id JOIN c q ON q.id = r.id {TUMBLING}"),
    (f"SELECT m.a, m.b, q.c, m.starts FROM (SELECT l.id, l.a, r.b, r.window_start AS starts, l.window_end AS ends "
     f"FROM {tumble('a')} l JOIN {tumble('b')} r ON l.id = r.id AND {SAME_WINDOW}) m "
     f"LEFT JOIN {tumble('c')} q ON m.id = q.id AND m.starts = q.window_start AND m.ends = q.window_end",
     f"SELECT l.a, r.b, q.c, window_start AS starts FROM a l JOIN b r ON l.id = r.id LEFT JOIN c q ON l.id = q.id "
     f"{TUMBLING}"),
]  # fmt: skip


@pytest.mark.parametrize(("flink", "ours"), SAME)
def test_the_job_is_that_of_window(flink: str, ours: str) -> None:
    assert translated(flink) == translated(ours)


ALIGNED = [
    (LOCAL_DAY, {"tumbling": 86_400_000, "timeZone": "Europe/Zurich"}),
    ("INTERVAL 1 DAY, INTERVAL 6 HOUR, 'Europe/Zurich'",
     {"tumbling": 86_400_000, "offset": 21_600_000, "timeZone": "Europe/Zurich"}),
    ("INTERVAL 1 HOUR, INTERVAL '-10' MINUTE", {"tumbling": 3_600_000, "offset": 3_000_000}),
    ("INTERVAL 1 HOUR, INTERVAL 2 HOUR", {"tumbling": 3_600_000}),
]  # fmt: skip


@pytest.mark.parametrize(("lengths", "window"), ALIGNED)
def test_windows_have_an_offset_and_a_zone(lengths: str, window: dict[str, Any]) -> None:
    joined = f"FROM {tumble('a', lengths)} l JOIN {tumble('b', lengths)} r ON l.id = r.id AND {SAME_WINDOW}"
    assert translated(f"SELECT l.a, r.b {joined}").steps[0]["window"] == window


KEY = "l.id = r.id"
REJECTED = [
    (f"SELECT l.a FROM {tumble('a')} l JOIN {tumble('b')} r ON {KEY} AND l.window_end = r.window_end",
     "no condition says that rows of 'r' are in the windows of those before; write l.window_start = r.window_start"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN {tumble('b')} r ON {KEY}",
     "write l.window_start = r.window_start AND l.window_end = r.window_end"),
    (f"SELECT l.a FROM {read(tumble('a'))} l WHERE l.id IN (SELECT id FROM {tumble('b')} r)",
     "write l.window_start = r.window_start AND l.window_end = r.window_end"),
    (f"SELECT l.a FROM {tumble('a')} l LEFT JOIN {tumble('b')} r ON {KEY} AND {SAME_WINDOW} "
     f"JOIN {tumble('c')} q ON l.id = q.id AND r.window_start = q.window_start AND l.window_end = q.window_end",
     "no condition says that rows of 'q' are in the windows of those before; write l.window_start = q.window_start"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN b r ON {KEY} AND {SAME_WINDOW}",
     "this side of the join is in no windows, and another side is; write TABLE(TUMBLE(TABLE b, DESCRIPTOR("),
    (f"SELECT l.a FROM {read(tumble('a'))} l WHERE EXISTS (SELECT * FROM {tumble('b')} r WHERE {KEY} AND "
     f"{SAME_WINDOW} AND r.b IN (SELECT id FROM a))", "a sub-query"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN {hop('b')} r ON {KEY} AND {SAME_WINDOW}",
     "these windows are not those of 'l', so rows of both are never in one; write the same function"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN {tumble('b', MINUTES.replace('5', '6'))} r ON {KEY} AND {SAME_WINDOW}",
     "these windows are not those of 'l'"),
    (f"SELECT l.a FROM {tumble('a').replace('(ts)', '(a)')} l JOIN {tumble('b')} r ON {KEY} AND {SAME_WINDOW}",
     "the eventTime of 'a' is ts; write DESCRIPTOR(ts)"),
    (f"SELECT l.a FROM {tumble('a', f'{MINUTES}, {MINUTES}')} l JOIN {tumble('b', f'{MINUTES}, {MINUTES}')} r "
     f"ON {KEY} AND {SAME_WINDOW}", None),
    (f"SELECT l.a FROM {tumble('a', MINUTES + ', INTERVAL 1 MINUTE')} l JOIN {tumble('b')} r "
     f"ON {KEY} AND {SAME_WINDOW}", "these windows are not those of 'l'"),
    (f"SELECT l.a FROM {tumble('a', LOCAL_DAY)} l JOIN {tumble('b', LOCAL_DAY.replace('Zurich', 'Paris'))} r "
     f"ON {KEY} AND {SAME_WINDOW}", "these windows are not those of 'l'"),
    (f"SELECT l.a FROM {tumble('a', LOCAL_DAY.replace('Zurich', 'Atlantis'))} l JOIN {tumble('b')} r "
     f"ON {KEY} AND {SAME_WINDOW}", "'Europe/Atlantis' is no time zone"),
    (f"SELECT l.a FROM {hop('a').replace('HOP', 'CUMULATE')} l JOIN {hop('b').replace('HOP', 'CUMULATE')} r "
     f"ON {KEY} AND {SAME_WINDOW}", "CUMULATE(...) is for groups"),
    (f"SELECT l.a FROM {tumble('a').replace('TUMBLE', 'SESSION')} l "
     f"JOIN {tumble('b').replace('TUMBLE', 'SESSION')} r ON {KEY} AND {SAME_WINDOW}", "write WINDOW SESSION(<gap>)"),
    (f"SELECT l.a FROM {tumble('a', 'soon')} l JOIN {tumble('b', 'soon')} r ON {KEY} AND {SAME_WINDOW}",
     "soon is no INTERVAL; write TUMBLE(TABLE <input>, DESCRIPTOR(<event time>), <size>)"),
    (f"SELECT l.a FROM {hop('a').replace('10', '1')} l JOIN {hop('b').replace('10', '1')} r ON {KEY} AND {SAME_WINDOW}",
     "the slide is longer than the size"),
    (f"SELECT l.a FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts))) l JOIN {tumble('b')} r ON {KEY} AND {SAME_WINDOW}",
     "takes 1 INTERVAL behind DESCRIPTOR"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN {tumble('b')} r ON {KEY} AND {SAME_WINDOW} {TUMBLING}",
     "table functions say in which windows rows are joined; leave WINDOW out"),
    (f"SELECT l.a, r.window_start FROM {tumble('a')} l LEFT JOIN (SELECT id, b, window_start, window_end FROM "
     f"{tumble('b')}) r ON {KEY} AND {SAME_WINDOW}",
     "is NULL in the rows that have none of 'r', which its event time would tell; write window_start, or select the"),
    (f"SELECT l.a FROM {tumble('a')} l JOIN {tumble('b')} r ON {KEY} AND {SAME_WINDOW} AND l.window_start > 0",
     "is a column of the rows that the joins make; write it into WHERE or the select list"),
    (f"SELECT COUNT(*) AS n {JOINED.format('JOIN')} GROUP BY window_start", "write window_end as well"),
    (f"SELECT l.id, COUNT(*) AS n {JOINED.format('JOIN')} GROUP BY l.id",
     "or window_start and window_end, for the windows of the joins"),
    (f"SELECT COUNT(*) AS n {JOINED.format('FULL JOIN')} GROUP BY window_start, window_end",
     "each input may be missing in a joined row"),
    (f"SELECT COUNT(*) AS n FROM a l JOIN b r ON {KEY} GROUP BY window_start, window_end {HOPPING}",
     "joined in hopping windows does not say in which of them that was; join in tumbling windows"),
    (f"SELECT COUNT(*) AS n FROM a l JOIN b r ON {KEY} GROUP BY window_start, window_end, "
     f"TUMBLE(l.ts, {MINUTES}) {TUMBLING}", "there are two windows; keep one"),
    (f"SELECT l.a {JOINED.format('JOIN')} QUALIFY ROW_NUMBER() OVER (PARTITION BY l.id, window_start "
     "ORDER BY l.a) <= 2", "a window of the joined rows is named by its start and its end; write window_end as well"),
    (f"SELECT l.a FROM a l JOIN b r ON {KEY} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
     f"ORDER BY l.a) <= 2 WINDOW SESSION(INTERVAL '5' MINUTE)", "does not say in which of them that was"),
    (f"SELECT l.a {JOINED.format('JOIN')} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end, "
     f"TUMBLE(l.ts, {MINUTES}) ORDER BY l.a) <= 2", "there are two windows; keep one"),
    (f"SELECT l.a, l.window_time {JOINED.format('JOIN')}", "it is the last millisecond before window_end"),
    (f"SELECT l.a FROM {read(tumble('a'), 'WHERE window_start > ts')} l JOIN {tumble('b')} r ON {KEY} AND "
     f"{SAME_WINDOW}", "a condition on the windows of one side is one on the joined rows"),
    ("WITH m AS (SELECT l.id, l.a, l.ts FROM a l JOIN b r ON l.id = r.id AND r.ts = l.ts) "
     f"SELECT l.a FROM {tumble('m')} l JOIN {tumble('c')} q ON l.id = q.id AND {THIRD}",
     "its rows are those of a join"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "words"), REJECTED)
def test_rejected_with_what_to_write(sql: str, words: str | None) -> None:
    problems = translate(sql, (A, B, C) if " q " in sql else (A, B)).problems
    assert problems == () if words is None else any(words in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        ("r.b, l.window_start AS w, l.a", ["b", "w", "a"]),
        ("l.window_end, l.a", ["window_end", "a"]),
        ("l.*, l.window_start AS w", ["id", "a", "ts", "w"]),
        ("l.a, r.b", ["a", "b"]),
        ("l.a, l.window_start AS w, ROW_NUMBER() OVER (PARTITION BY l.id, l.window_start, l.window_end ORDER BY r.b) "
         "AS n", ["a", "w", "n"]),
    ],
)  # fmt: skip
def test_a_star_around_a_sub_query_stands_for_the_times_of_windows_that_it_selects(
    selected: str, names: Sequence[str]
) -> None:
    rest = " WHERE n <= 2" if " AS n" in selected else ""
    for sql in (
        f"SELECT * FROM (SELECT {selected} {JOINED.format('JOIN')}){rest}",
        f"WITH j AS (SELECT {selected} {JOINED.format('JOIN')}) SELECT j.* FROM j{rest}",
    ):
        translated = translate(sql, (A, B))
        assert translated.problems == ()
        assert [item.get("as", item.get("column", "").rpartition(".")[2]) for item in translated.select] == names, sql


# --- the rows ---------------------------------------------------------------------------------------------------------

QUERIES = {
    "inner": f"SELECT l.a, r.b, l.window_start {JOINED.format('JOIN')} AND l.a < r.b",
    "left": f"SELECT l.a, r.b, l.window_start {JOINED.format('LEFT JOIN')}",
    "right": f"SELECT l.a, r.b, r.window_start {JOINED.format('RIGHT JOIN')}",
    "full": f"SELECT l.a, r.b, COALESCE(l.window_start, r.window_start) AS window_start {JOINED.format('FULL JOIN')}",
    "semi": f"SELECT l.a, window_start FROM {read(tumble('a'))} l WHERE EXISTS "
    f"(SELECT * FROM {read(tumble('b'), 'WHERE b > 5')} r WHERE l.id = r.id AND {SAME_WINDOW})",
    "anti": f"SELECT l.a, window_start FROM {read(tumble('a'))} l WHERE NOT EXISTS "
    f"(SELECT * FROM {read(tumble('b'))} r WHERE l.id = r.id AND {SAME_WINDOW})",
    "padded": f"SELECT l.a, r.b, r.window_start, r.window_end - l.window_start AS n {JOINED.format('LEFT JOIN')} "
    "WHERE l.window_start > 300000 AND (r.window_end IS NULL OR r.window_end < 1500000)",
    "groups": f"SELECT l.id, l.window_start, COUNT(*) AS n, MAX(r.b) AS highest {JOINED.format('LEFT JOIN')} "
    "GROUP BY l.id, l.window_start, l.window_end HAVING COUNT(r.b) < 2 AND l.window_end > 300000",
    "hopping": f"SELECT l.a, r.b, l.window_start FROM {hop('a')} l LEFT JOIN {hop('b')} r ON {KEY} AND {SAME_WINDOW}",
    "ranked": f"SELECT l.a, r.b, l.window_start FROM {hop('a')} l LEFT JOIN {hop('b')} r ON {KEY} AND {SAME_WINDOW} "
    "QUALIFY ROW_NUMBER() OVER (PARTITION BY l.id, l.window_start, l.window_end ORDER BY r.b DESC, l.a) <= 2",
}
SIZE = 300_000
FIVE_MINUTES = (
    f"(SELECT *, ts // {SIZE} * {SIZE} AS window_start, ts // {SIZE} * {SIZE} + {SIZE} AS window_end FROM {{}})"
)
TEN_MINUTES = f"(SELECT *, window_start + {2 * SIZE} AS window_end FROM (SELECT *, UNNEST([ts // {SIZE} * {SIZE}, "
TEN_MINUTES += f"ts // {SIZE} * {SIZE} - {SIZE}]) AS window_start FROM {{}}))"


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_are_those_of_duckdb(name: str, tmp_path: Path) -> None:
    chance, truth, inputs = random.Random(name), QUERIES[name], list[dict[str, Any]]()
    for table in ("a", "b"):
        times = sorted(chance.randrange(6 * SIZE) for _ in range(60))
        rows = pl.DataFrame({"id": [chance.choice("abcdefghijklmnop") for _ in times], table: range(60), "ts": times})
        rows.write_csv(tmp_path / f"{table}.csv")
        schema = [{"name": "id", "type": "string"}, {"name": table, "type": "int64"}, {"name": "ts", "type": "int64"}]
        inputs.append(stream(table, schema=schema, file={"path": f"{table}.csv"}, format="csv"))
        truth = truth.replace(tumble(table), FIVE_MINUTES.format(f"'{tmp_path}/{table}.csv'"))
        truth = truth.replace(hop(table), TEN_MINUTES.format(f"'{tmp_path}/{table}.csv'"))
    job = document(inputs=inputs, sql=QUERIES[name], stateStore={"memory": {}})
    emitted = run_job(job, tmp_path).rows()
    assert Counter(emitted) == Counter(duckdb.sql(truth).fetchall())
    assert len(emitted) > 5


@pytest.mark.filterwarnings("ignore:stateStore is memory")
def test_the_pairs_of_a_local_day_are_those_of_duckdb(tmp_path: Path) -> None:
    chance, inputs, day = random.Random(7), list[dict[str, Any]](), "INTERVAL 1 DAY, 'Europe/Berlin'"
    midnights = [datetime(2026, 3, day, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() for day in range(26, 32)]
    bounds = [round(midnight * 1000) for midnight in midnights]
    for table in ("a", "b"):
        times = sorted(chance.randrange(bounds[0], bounds[-1]) for _ in range(100))
        rows = pl.DataFrame({"id": [chance.choice("abcdefgh") for _ in times], table: range(100), "ts": times})
        rows.write_csv(tmp_path / f"{table}.csv")
        schema = [{"name": "id", "type": "string"}, {"name": table, "type": "int64"}, {"name": "ts", "type": "int64"}]
        inputs.append(stream(table, schema=schema, file={"path": f"{table}.csv"}, format="csv"))
    sql = f"SELECT l.a, r.b, window_start, window_end FROM {read(tumble('a', day))} l "
    sql += f"LEFT JOIN {read(tumble('b', day))} r ON l.id = r.id AND {SAME_WINDOW}"
    emitted = run_job(document(inputs=inputs, sql=sql, stateStore={"memory": {}}), tmp_path).rows()
    sides = {
        name: f"(SELECT * FROM '{tmp_path}/{name}.csv' JOIN days ON ts >= window_start AND ts < window_end)"
        for name in ("a", "b")
    }
    truth = f"WITH days(window_start, window_end) AS (VALUES {', '.join(map(str, pairwise(bounds)))}) "
    truth += f"SELECT l.a, r.b, l.window_start, l.window_end FROM {sides['a']} l "
    truth += f"LEFT JOIN {sides['b']} r ON l.id = r.id AND {SAME_WINDOW}"
    assert Counter(emitted) == Counter(duckdb.sql(truth).fetchall())
    assert len({row[2:] for row in emitted}) == 5
