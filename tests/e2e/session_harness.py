"""A job of sessions over a topic of clicks, records that keep coming, and what must be in its table in the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from core.table.reference_keyhash import reference_hash
from e2e.jobs import json_rows
from e2e.kill_harness import Feeder, read_inputs
from joinery_devkit.verify_sessions import SessionVerdict, verify_sessions
from joinery_runtime.job import load_job

PARTITIONS = 3
USERS = 30
GAP_MS, DELAY_MS, LATENESS_MS = 800, 1_000, 20_000  # several epochs, also on a busy machine
SLOW_MS = LATENESS_MS + DELAY_MS - 1  # so late a click may be and still count

_JOB = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: {name}}}
spec:
  input:
    name: clicks
    kafka: {{bootstrapServers: "{bootstrap}", topic: {name}.clicks{stop}}}
    format: json
    schema: [{{name: user, type: string}}, {{name: page, type: string}}, {{name: n, type: int64}},
             {{name: ts, type: timestamp}}]
    eventTime: ts
    watermark: {{delay: {delay}, idleTimeout: 0}}
  groupBy: [user]
  gap: {gap}
  maxDuration: 1h
  aggregates:
    - {{function: count, as: clicks}}
    - {{function: first, column: page, as: first_page}}
    - {{function: last, column: n, as: last_n}}
    - {{function: max, column: n, as: highest}}
    - {{function: count_distinct, column: page, method: exact, as: pages}}
  lateData: {late_data}
  allowedLateness: {lateness}
  emitRetractions: true
  output: {{postgres: {{table: "{table}"}}}}
  deadLetter: {{file: {{path: "{dead}"}}}}
  stateStore: {{postgres: {{dsn: "{dsn}", schema: "{schema}"}}, checkpointInterval: 5s}}
  shards: {shards}
  spark: {{conf: {conf}}}
"""


@dataclass(frozen=True, slots=True)
class SessionJob:
    """The fields are parts of the job's file; `stop` makes its input bounded."""

    name: str
    bootstrap: str
    dsn: str
    dead: Path
    schema: str = "joinery"
    late_data: str = "reopen"
    shards: int = 4
    conf: str = "{}"
    stop: str = ""

    @property
    def table(self) -> str:
        return f"{self.name}_sessions"

    def write(self, path: Path) -> Path:
        parts = {name: getattr(self, name) for name in SessionJob.__slots__}
        path.write_text(_JOB.format(**parts, table=self.table, gap=GAP_MS, delay=DELAY_MS, lateness=LATENESS_MS))
        return path

    def rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            return connection.execute(f'SELECT * FROM "{self.table}"').fetchall()

    def deletions(self) -> int:
        """How many rows were taken out of the table."""
        with psycopg.connect(self.dsn) as connection:
            query = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = %s"
            (count,) = connection.execute(query, (self.table,)).fetchone() or (0,)
        return int(count)

    def judge(self, path: Path, log: Sequence[Mapping[str, Any]]) -> SessionVerdict:
        """The table against brute force over the topic. The input must have come to its end."""
        job = load_job(path)
        records, dead = read_inputs(job, self.bootstrap), json_rows(self.dead)
        return verify_sessions(records, log, self.rows(), job, dead_letters=dead, identify=reference_hash)


class ClickFeeder(Feeder):
    """One user has no name. Some clicks come out of order, so that sessions begin earlier or merge after they have gone
    out, and some are broken; none comes too late."""

    def __init__(self, job: SessionJob, seed: int, slow: float) -> None:
        super().__init__(job.bootstrap, job.name, seed)
        self._slow = slow

    def tick(self) -> None:
        for _ in range(4):
            self._click()
        self._clock_ms += 60
        self._producer.flush()

    def _click(self) -> None:
        self._number += 1
        user = self._random.randrange(USERS)
        back = self._random.randrange(SLOW_MS if self._random.random() < self._slow else DELAY_MS)
        row = {
            "user": f"u{user}" if user else None,
            "page": f"/{self._random.randrange(5)}",
            "n": self._number,
            "ts": self._clock_ms - back,
        }
        value = json.dumps(row) if self._random.random() > 0.005 else "{broken"
        self._producer.produce(f"{self._job}.clicks", value, partition=user % PARTITIONS)
