"""The demo of joins: orders and the payments that follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from joinery_devkit import datagen
from joinery_devkit.datagen import DELAY_MS, INTERVAL_MS, LATENESS_MS, GeneratedRecord
from joinery_devkit.demo_process import epoch_log
from joinery_devkit.demo_view import Rows, Wording
from joinery_devkit.topics import read_dead_letters, read_topic
from joinery_devkit.verify import JoinVerdict, verify
from joinery_runtime.job import StreamJoin, format_duration, load_job

DEAD_LETTERS = "orders-payments.dead"

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
    topics: Mapping[str, int] = {"orders": 3, "payments": 3, DEAD_LETTERS: 1}
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
        return verify(records, epoch_log(job_file), table, job, dead_letters=read_dead_letters(bootstrap, DEAD_LETTERS))


def job_text(bootstrap: str, dsn: str) -> str:
    lower, upper, delay, lateness = map(format_duration, (*INTERVAL_MS, DELAY_MS, LATENESS_MS))
    return JOB.format(
        bootstrap=bootstrap, dsn=dsn, dead_letters=DEAD_LETTERS,
        lower=lower, upper=upper, delay=delay, lateness=lateness,
    )  # fmt: skip
