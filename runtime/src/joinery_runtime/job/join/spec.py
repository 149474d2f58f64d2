"""The fields of a StreamJoin's `spec`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from joinery_runtime.job.join.steps import JoinStep, SelectItem
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.ranking import Deduplication, TopN
from joinery_runtime.job.model.base import Text
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.references import Prefixes
from joinery_runtime.job.model.resource import JobSpec
from joinery_runtime.job.model.unions import InputUnion


def _example(name: str) -> dict[str, Any]:
    """Return an input as an example."""
    return {
        "name": name,
        "kafka": {"bootstrapServers": "kafka:9092", "topic": name},
        "format": "json",
        "schema": [{"name": "order_id", "type": "string"}, {"name": "ts", "type": "timestamp"}],
        "eventTime": "ts",
    }


class StreamJoinSpec(JobSpec):
    inputs: tuple[Input, ...] = Field(examples=[[_example("orders"), _example("payments")]])
    """What is joined, in order: the first input is the left side of the first step. Without `joins`, there is one."""
    unions: tuple[InputUnion, ...] = Field(
        default=(),
        examples=[
            [
                {
                    "name": "orders",
                    "branches": [
                        {"input": "orders_eu", "select": [{"column": "id", "as": "order_id"}, {"column": "ts"}]},
                        {"input": "orders_us", "select": [{"column": "order_id"}, {"column": "ts"}]},
                    ],
                }
            ]
        ],
    )
    """Inputs whose rows are those of one side, as in UNION ALL. The rest of the job names the union, and no branch."""
    joins: tuple[JoinStep, ...] = Field(
        default=(),
        examples=[
            [
                {
                    "right": "payments",
                    "keys": {"orders.order_id": "payments.order_id"},
                    "interval": {"of": "orders", "lower": "0s", "upper": "24h"},
                }
            ]
        ],
    )
    """The steps. Each joins one more input. Without steps and `aggregate`, each record of the only input makes a row by
    itself."""
    aggregate: Aggregation | None = Field(
        default=None,
        examples=[
            {
                "groupBy": ["orders.country"],
                "window": {"of": "orders", "session": {"gap": "30m", "maxDuration": "12h"}},
                "aggregates": [{"function": "count", "as": "paid_orders"}],
            }
        ],
    )
    """What is computed of the rows that the joins make, or of an only input: emitted are groups, not rows."""
    deduplicate: Deduplication | None = Field(
        default=None, examples=[{"by": ["orders.order_id"], "keep": "first", "within": "1h"}]
    )
    """Emits one row of each key and span of time, behind the joins or of an only input."""
    top_n: TopN | None = Field(
        default=None,
        examples=[
            {
                "by": ["orders.country"],
                "orderBy": [{"expression": "orders.amount", "direction": "desc"}],
                "rows": 10,
                "window": {"tumbling": {"size": "1h"}},
            }
        ],
    )
    """Emits of each key and window the rows that come first in an order, behind the joins or of an only input."""
    select: Annotated[tuple[SelectItem, ...], Field(min_length=1)] | None = None
    """What is emitted: exactly these columns, in this order. If absent, every column, named as `prefixes` says, or with
    `aggregate` its groups, the window's columns, and the aggregates."""
    prefixes: Prefixes | None = None
    """How columns are named without `select`: if absent, as in the job's stored state, and without state as with
    `whenNeeded`. `whenNeeded`: columns that several inputs have get the prefix `<input>_`. `always`: all get `left_`,
    `right_` or, of more than two inputs, `<input>_`."""
    sql: Text | None = Field(
        default=None,
        examples=["SELECT a.k, b.v FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' DAY"],
    )
    """A SELECT, instead of `joins`, `select` and `aggregate`."""
