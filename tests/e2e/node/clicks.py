"""Clicks, some out of order and some broken, and the sessions that they make: worked out by sorting them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg

from e2e.kill_harness import Feeder, dead_letter_rows
from joinery_devkit.topics import Record, read_topic

PARTITIONS = 3
GAP_MS, DELAY_MS = 1_000, 500
DISORDER_MS = 3_000  # more than the delay: sessions go out and then change, merge and begin earlier
USERS = 25  # that click at a time
_CLOSES_WITHIN_S = 480  # for what hangs: the machine may be a tenth of itself for minutes

Manifest = dict[str, Any]
Row = tuple[Any, ...]


class Clicks(Feeder):
    """A user clicks now and then for a while, and another one comes in the place."""

    _users = 0

    def tick(self) -> None:
        self._users += 1
        for _ in range(4):
            user = self._users // 10 + self._random.randrange(USERS)
            ts = self._clock_ms - self._random.randrange(DISORDER_MS)
            row = {"user": None if user % 50 == 0 else f"u{user}", "page": page(ts), "ts": ts}
            value = json.dumps(row) if self._random.random() > 0.005 else "{broken"
            self._producer.produce(f"{self._job}.clicks", value, partition=self._random.randrange(PARTITIONS))
        self._clock_ms += 60
        self._producer.flush()


def page(ts: int) -> str:
    """Of a click at that time, so that the first and the last one of a session are no matter of chance."""
    return f"/{ts % 7}"


def manifest(name: str, bootstrap: str, dsn: str, schema: str, table: str) -> Manifest:
    """Late rows are taken as long as there are any; `retracted` rows take back what went out before."""
    columns = {"user": "string", "page": "string", "ts": "timestamp"}
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "SessionWindow",
        "metadata": {"name": name},
        "spec": {
            "input": {
                "name": "clicks",
                "kafka": {"bootstrapServers": bootstrap, "topic": f"{name}.clicks"},
                "format": "json",
                "schema": [{"name": column, "type": kind} for column, kind in columns.items()],
                "eventTime": "ts",
                "watermark": {"delay": f"{DELAY_MS}ms", "idleTimeout": 0},
            },
            "groupBy": ["user"],
            "gap": f"{GAP_MS}ms",
            "maxDuration": "1h",
            "aggregates": [
                {"function": "count", "as": "events"},
                {"function": "first", "column": "page", "as": "first_page"},
                {"function": "last", "column": "page", "as": "last_page"},
                {"function": "count_distinct", "column": "page", "method": "exact", "as": "pages"},
            ],
            "lateData": "reopen",
            "allowedLateness": f"{2 * DISORDER_MS}ms",
            "emitRetractions": True,
            "output": {"postgres": {"table": table}},
            "deadLetter": {"kafka": {"topic": f"{name}.broken", "bootstrapServers": bootstrap}},
            "stateStore": {"postgres": {"dsn": dsn, "schema": schema}, "checkpointInterval": "5s"},
            "shards": 4,
        },
    }


@dataclass(frozen=True, slots=True)
class Expected:
    """Rows as the table has them. Those of `complete` are there; of the others those that went out and then grew."""

    complete: frozenset[Row]
    unfinished: frozenset[Row]
    broken: int


def expected(records: Sequence[Record]) -> Expected:
    clicked: defaultdict[str | None, list[int]] = defaultdict(list)
    highest: defaultdict[int, int] = defaultdict(int)
    broken = 0
    for record in records:
        if record.value == b"{broken":
            broken += 1
            continue
        row = json.loads(record.value or b"")
        clicked[row["user"]].append(row["ts"])
        highest[record.partition] = max(highest[record.partition], row["ts"])
    closed = min(highest.values()) - DELAY_MS - GAP_MS
    complete, unfinished = set(), set()
    for user, times in clicked.items():
        for session in _sessions(sorted(times)):
            (complete if session[-1] < closed else unfinished).add(_row(user, session))
    return Expected(frozenset(complete), frozenset(unfinished), broken)


def _sessions(times: Sequence[int]) -> Iterator[list[int]]:
    current = [times[0]]
    for before, ts in pairwise(times):
        if ts - before > GAP_MS:
            yield current
            current = []
        current.append(ts)
    yield current


def _row(user: str | None, times: Sequence[int]) -> Row:
    return user, times[0], times[-1], len(times), page(times[0]), page(times[-1]), len({page(ts) for ts in times})


def judge(bootstrap: str, name: str, dsn: str, table: str) -> None:
    """What the last rows closed may still be on its way out."""
    sessions = expected(read_topic(bootstrap, f"{name}.clicks"))
    assert len(sessions.complete) > 10
    deadline = time.monotonic() + _CLOSES_WITHIN_S
    while not sessions.complete <= (written := set(rows_of(dsn, table))):
        missing = sorted(sessions.complete - written, key=str)
        assert time.monotonic() < deadline, f"{len(missing)} of {len(sessions.complete)} are missing: {missing[:5]}"
        time.sleep(0.5)
    rows = rows_of(dsn, table)
    assert len(rows) == len(set(rows)), "a session is there twice"
    wrong = set(rows) - sessions.complete - sessions.unfinished
    assert not wrong, f"{len(wrong)} rows are no session: {sorted(wrong, key=str)[:5]}"
    assert len(dead_letter_rows(bootstrap, f"{name}.broken")) == sessions.broken


def rows_of(dsn: str, table: str) -> list[Row]:
    with psycopg.connect(dsn) as connection:
        columns = '"user", window_start, window_end, events, first_page, last_page, pages'
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()
