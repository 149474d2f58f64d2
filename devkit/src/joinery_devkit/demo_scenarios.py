"""What the demo runs: orders and the payments that follow them, joined, and clicks, of which sessions are made (the job
of examples/session-window.yaml)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from joinery_devkit import clicks, datagen
from joinery_devkit.datagen import DELAY_MS, INTERVAL_MS, LATENESS_MS, GeneratedRecord
from joinery_devkit.demo_process import epoch_log
from joinery_devkit.demo_view import Rows, Wording
from joinery_devkit.topics import read_dead_letters, read_topic
from joinery_devkit.verify import JoinVerdict, verify
from joinery_devkit.verify_sessions import SessionVerdict, verify_sessions
from joinery_runtime.job import SessionWindow, StreamJoin, format_duration, load_job

_ORDER_DEAD_LETTERS = "orders-payments.dead"

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: orders-payments}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders}}
      format: json
      schema:
        - {{name: order_id, type: string}}
        - {{name: customer, type: string}}
        - {{name: amount, type: double}}
        - {{name: currency, type: string}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: {delay}}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments}}
      format: json
      schema:
        - {{name: payment_id, type: string}}
        - {{name: order_id, type: string}}
        - {{name: method, type: string}}
        - {{name: amount, type: double}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: {delay}}}
  joins:
    - right: payments
      type: inner
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: {lower}, upper: {upper}}}
      where: "orders.amount >= 5 AND payments.amount <= orders.amount"
      allowedLateness: {lateness}
  select:
    - {{column: orders.order_id}}
    - {{column: orders.customer}}
    - {{column: orders.amount, as: ordered}}
    - {{column: orders.currency}}
    - {{column: orders.ts, as: ordered_at}}
    - {{column: payments.payment_id}}
    - {{column: payments.method}}
    - {{column: payments.amount, as: paid}}
    - {{column: payments.ts, as: paid_at}}
  output: {{postgres: {{table: joined}}}}
  deadLetter: {{kafka: {{topic: {dead_letters}}}}}
  stateStore: {{postgres: {{dsn: "{dsn}"}}}}
  shards: 4
"""


class Joins:
    """The scenario of joins. The job is stopped once it has read everything, since rows are emitted as soon as
    they match."""

    name = "orders-payments"
    topics: Mapping[str, int] = {"orders": 3, "payments": 3, _ORDER_DEAD_LETTERS: 1}
    words = Wording(does="joins them", out="joined", title="joined rows")
    newest = (
        "SELECT order_id, customer, ordered, method, paid, ordered_at, paid_at FROM joined "
        "ORDER BY paid_at DESC LIMIT 5"
    )
    table = "joined"
    ends = False

    def records(self, seed: int, size: int) -> list[GeneratedRecord]:
        return datagen.make(seed, size)

    def job(self, bootstrap: str, dsn: str, records: Sequence[GeneratedRecord]) -> str:
        return job_text(bootstrap, dsn)

    def judge(self, job_file: Path, bootstrap: str, table: Rows) -> JoinVerdict:
        job = load_job(job_file)
        assert isinstance(job, StreamJoin)
        records = {side.name: read_topic(bootstrap, side.name) for side in job.inputs}
        return verify(
            records, epoch_log(job_file), table, job, dead_letters=read_dead_letters(bootstrap, _ORDER_DEAD_LETTERS)
        )


def job_text(bootstrap: str, dsn: str) -> str:
    lower, upper, delay, lateness = map(format_duration, (*INTERVAL_MS, DELAY_MS, LATENESS_MS))
    return JOB.format(
        bootstrap=bootstrap, dsn=dsn, dead_letters=_ORDER_DEAD_LETTERS,
        lower=lower, upper=upper, delay=delay, lateness=lateness,
    )  # fmt: skip


SESSION_EXAMPLE = Path(__file__).parents[3] / "examples" / "session-window.yaml"
_CLICK_DEAD_LETTERS = "clicks.dead"
_CLICK_PARTITIONS = 3


class SessionsOfClicks:
    """The scenario of sessions. The job's input is bounded by the number of clicks, so at the end all sessions are
    complete, and can be compared with those that a slow, simple method finds."""

    name = "session-window"
    topics: Mapping[str, int] = {clicks.TOPIC: _CLICK_PARTITIONS, _CLICK_DEAD_LETTERS: 1}
    words = Wording(does="makes sessions of them", out="sessions out", title="sessions")
    newest = (
        "SELECT user_id, to_timestamp(window_start / 1000.0) AS began, to_timestamp(window_end / 1000.0) AS ended, "
        "events, first_page, pages FROM sessions ORDER BY window_end DESC LIMIT 5"
    )
    table = "sessions"
    ends = True

    def records(self, seed: int, size: int) -> list[GeneratedRecord]:
        return clicks.make(seed, size, _CLICK_PARTITIONS)

    def job(self, bootstrap: str, dsn: str, records: Sequence[GeneratedRecord]) -> str:
        """Return the example job with the addresses of these servers, and the end of its input."""
        document = yaml.safe_load(SESSION_EXAMPLE.read_text())
        counts = Counter(record.partition for record in records)
        stop_at = {"offsets": {str(number): counts[number] for number in range(_CLICK_PARTITIONS)}}
        document["spec"]["input"]["kafka"] |= {"bootstrapServers": bootstrap, "stopAt": stop_at}
        document["spec"]["stateStore"] = {"postgres": {"dsn": dsn}}
        document["spec"]["shards"] = 4
        # Makes sure that even a busy machine runs several epochs, so that some records are late.
        document["spec"]["trigger"] = {"maxRecordsPerEpoch": max(1, len(records) // 20)}
        return str(yaml.safe_dump(document, sort_keys=False))

    def judge(self, job_file: Path, bootstrap: str, table: Rows) -> SessionVerdict:
        job = load_job(job_file)
        assert isinstance(job, SessionWindow)
        records = {job.spec.input.name: read_topic(bootstrap, clicks.TOPIC)}
        return verify_sessions(
            records, epoch_log(job_file), table, job, dead_letters=read_dead_letters(bootstrap, _CLICK_DEAD_LETTERS)
        )
