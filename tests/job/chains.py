"""Resources of every form of step, as plain data, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.errors import JobError
from joinery_runtime.job import Comparison, StreamJoin, compare, parse_job, signature

DAY = {"of": "orders", "lower": "0s", "upper": "24h"}


def stream(name: str, *columns: str, **more: Any) -> dict[str, Any]:
    """A file input with text columns and `ts`; `column:type` names another type."""
    typed = [(*column.split(":"), "string")[:2] for column in (*columns, "ts:timestamp")]
    schema = [{"name": column, "type": kind} for column, kind in typed]
    return {
        "name": name,
        "file": {"path": f"{name}.jsonl"},
        "format": "json",
        "schema": schema,
        "eventTime": "ts",
    } | more


ORDERS, PAYMENTS, ITEMS = (
    stream("orders", "id", "currency", "amount:double"),
    stream("payments", "order_id", "method"),
    stream("items", "order_id", "payment_method", "n:int64"),
)
RATES = stream("rates", "currency", "rate:double", table={"key": ["currency"]})

DEAD = {"deadLetter": {"file": {"path": "dead"}}}


def step(right: str = "payments", **more: Any) -> dict[str, Any]:
    """An interval step by the order's id, unless `more` says otherwise; None takes a field out."""
    fields = {"right": right, "keys": {"orders.id": f"{right}.order_id"}, "interval": DAY} | more
    return {name: value for name, value in fields.items() if value is not None}


def window(**kind: Any) -> dict[str, Any]:
    return step(interval=None, window=kind)


def as_of(**more: Any) -> dict[str, Any]:
    fields = {
        "interval": None,
        "keys": {"orders.currency": "rates.currency"},
        "asOf": {"historyRetention": "1h"},
    } | more
    return step("rates", **fields)


def time_only(**more: Any) -> dict[str, Any]:
    return step(**({"keys": {}, "broadcast": "payments"} | more))


def document(*steps: dict[str, Any], inputs: Any = None, **spec: Any) -> dict[str, Any]:
    """A job of these steps; its inputs are the ones that they name unless given."""
    inputs_by_name = {input_spec["name"]: input_spec for input_spec in (ORDERS, PAYMENTS, ITEMS, RATES)}
    rights = [inputs_by_name[join_step["right"]] for join_step in steps] if inputs is None else []
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": "chain"},
        "spec": {"inputs": inputs or [ORDERS, *rights], "joins": list(steps), "output": {"file": {"path": "out"}}}
        | spec,
    }


def parsed(resource: dict[str, Any]) -> StreamJoin:
    job = parse_job(json.dumps(resource), "job.json")
    assert isinstance(job, StreamJoin)
    return job


def load(*steps: dict[str, Any], **more: Any) -> StreamJoin:
    return parsed(document(*steps, **more))


def changed(before: StreamJoin, after: StreamJoin) -> Comparison:
    """Compare what the two jobs store: whether the second one may go on with the state of the first one."""
    old, new = (signature(job, stored_columns(compile_job(job))) for job in (before, after))
    return compare(old, new)


def mistakes(*steps: dict[str, Any], **more: Any) -> dict[str, str]:
    """Messages by path."""
    return messages_of(document(*steps, **more))


def messages_of(resource: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a resource, by path; several messages of one path run together."""
    messages: dict[str, str] = {}
    try:
        parse_job(json.dumps(resource), "job.json")
    except JobError as error:
        for problem in error.problems:
            messages[problem.path] = f"{messages.get(problem.path, '')}{problem.message}"
    return messages
