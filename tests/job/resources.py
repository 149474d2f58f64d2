"""A valid resource as text, one field per line where tests need to point at it, and small edits of it."""

from __future__ import annotations

from joinery_runtime.errors import JobError, Problem
from joinery_runtime.job import StreamJoin, parse_job

GOOD = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata:
  name: orders-payments
spec:
  inputs:
    - name: orders
      kafka:
        bootstrapServers: kafka:9092
        topic: orders
      format: json
      schema:
        - {name: order_id, type: string}
        - {name: country, type: int32}
        - {name: amount, type: "decimal(12,2)"}
        - {name: ts, type: timestamp}
      eventTime: ts
      watermark: {delay: 10s}
    - name: payments
      kafka:
        bootstrapServers: kafka:9092
        topic: payments
      format: json
      schema:
        - {name: order_id, type: string}
        - {name: country, type: int64}
        - {name: ts, type: int64}
      eventTime: ts
  joins:
    - right: payments
      type: inner
      keys: {orders.order_id: payments.order_id}
      interval: {of: orders, lower: -1m, upper: 1h}
      lateData: drop
  output:
    postgres: {table: joined}
"""
DELAYED = (
    "        - {name: ts, type: int64}\n      eventTime: ts\n",
    "        - {name: ts, type: int64}\n      eventTime: ts\n      watermark: {delay: 0s}\n",
)
"""The edit that names the delay of payments too, so that nothing about GOOD deserves a warning."""


def edited(*edits: tuple[str, str]) -> str:
    """GOOD with each (old, new) applied to the first place where `old` stands; a stale edit fails loudly."""
    text = GOOD
    for old, new in edits:
        assert old in text, f"{old!r} is not in the resource"
        text = text.replace(old, new, 1)
    return text


def job(*edits: tuple[str, str]) -> StreamJoin:
    return parse_job(edited(*edits), "job.yaml")


def problems(text: str) -> list[Problem]:
    try:
        parse_job(text, "job.yaml")
    except JobError as error:
        return list(error.problems)
    return []
