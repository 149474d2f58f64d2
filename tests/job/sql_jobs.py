"""Jobs whose join is SQL, and the same as YAML: over the inputs of `resources.GOOD` and others."""

from __future__ import annotations

import textwrap

from job.resources import GOOD
from joinery_runtime.job import StreamJoin, parse_job

HEAD, TAIL = GOOD[: GOOD.index("  joins:")], GOOD[GOOD.index("  output:") :]
KEY = "o.order_id = p.order_id"
HOUR = "p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR"


def resource(sql: str) -> str:
    return f"{HEAD}  sql: |\n{textwrap.indent(sql.rstrip(), '    ')}\n{TAIL}"


def load(sql: str) -> StreamJoin:
    return parse_job(resource(sql), "job.yaml")


def joined(conditions: str, select: str = "o.order_id", more: str = "") -> str:
    """One line of SQL."""
    return f"SELECT {select} FROM orders o JOIN payments p ON {conditions} {more}".rstrip()


def twin(step: str, select: str) -> StreamJoin:
    """`step` and `select` in YAML's flow style, without what every step here has."""
    text = f"  joins:\n    - {{right: payments, {step}}}\n  select: {select}\n"
    return parse_job(f"{HEAD}{text}{TAIL}", "job.yaml")


class Inputs:
    """A job's inputs with their columns, each as `orders="order_id string, event_time timestamp"`, the last one of
    which is event time; `tables` are changelogs and their key."""

    def __init__(self, tables: dict[str, str] | None = None, **columns: str) -> None:
        self._tables, self._columns = tables or {}, columns

    def sql(self, sql: str) -> str:
        return self._resource(f"  sql: |\n{textwrap.indent(sql.strip(), '    ')}\n")

    def yaml(self, joins: str, select: str) -> str:
        """`joins` and `select` in YAML's flow style, without the brackets."""
        return self._resource(f"  joins: [{joins}]\n  select: [{select}]\n")

    def _resource(self, body: str) -> str:
        inputs = "".join(map(self._input, self._columns))
        head = "apiVersion: joinery.dev/v1alpha1\nkind: StreamJoin\nmetadata: {name: a}\nspec:\n  inputs:\n"
        return f"{head}{inputs}{body}  output: {{file: {{path: out.jsonl}}}}\n"

    def _input(self, name: str) -> str:
        columns = [column.split() for column in self._columns[name].split(",")]
        schema = ", ".join(f"{{name: {column}, type: {kind}}}" for column, kind in columns)
        table = f", table: {{key: [{self._tables[name]}]}}" if name in self._tables else ""
        source = f"file: {{path: {name}.jsonl}}, format: json, schema: [{schema}]"
        return f"    - {{name: {name}, {source}, eventTime: {columns[-1][0]}{table}}}\n"


SEED_001 = Inputs(
    orders="order_id string, customer_id string, amount double, event_time timestamp",
    shipments="shipment_id string, order_id string, carrier string, event_time timestamp",
)
SEED_004 = Inputs(
    orders="id int64, region string, time int64",
    deliveries="id int64, order_id int64, status string, time int64",
    returns="id int64, delivery_id int64, order_id int64, time int64",
)
RATES = Inputs(
    {"rates": "currency"}, orders="id int64, currency string, amount double, ts timestamp",
    rates="currency string, rate double, ts timestamp",
)  # fmt: skip
