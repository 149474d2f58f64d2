"""Every form of step: the good ones load, and each rule refuses at its place, alone."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from job.chains import (
    DAY,
    ITEMS,
    ORDERS,
    PAYMENTS,
    RATES,
    as_of,
    document,
    load,
    messages_of,
    mistakes,
    step,
    stream,
    time_only,
    window,
)
from joinery_runtime.job import KeyPair, Reference
from joinery_runtime.job.join.steps import FIELDS
from joinery_runtime.job.model.wording import listed


def windowed(right: str, **kind: Any) -> dict[str, Any]:
    return step(right, interval=None, window=kind)


OF_PAYMENTS = {"of": "payments", "lower": "0s", "upper": "1h"}
BY_METHOD = {"orders.id": "items.order_id", "payments.method": "items.payment_method"}
TWO_KEYS = {**RATES, "table": {"key": ["currency", "region"]}}
TWO_KEYS["schema"] = [*RATES["schema"], {"name": "region", "type": "string"}]

TOPICS = [
    {
        **{k: v for k, v in input_spec.items() if k != "file"},
        "kafka": {"bootstrapServers": "k:9092", "topic": input_spec["name"]},
    }
    for input_spec in (ORDERS, PAYMENTS, ITEMS, RATES)
]


RISK = {"name": "risk", "python": "a.b:c", "returns": "double"}
GOOD_STEPS: list[tuple[list[Any], dict[str, Any]]] = [
    *[([step(type=kind)], {}) for kind in ("inner", "left", "right", "full", "semi", "anti")],
    ([step(interval={"of": "orders", "lower": "5ms", "upper": "5ms"})], {}),
    ([window(tumbling="1h")], {}),
    ([window(hopping={"size": "1h", "slide": "1h"})], {}),
    ([{**window(session={"gap": "30s"}), "type": "full", "allowedLateness": "5s"}], {}),
    ([as_of(asOf={"historyRetention": "1h", "grace": "59m"}, type="left")], {}),
    ([as_of(allowedLateness="0s", lateData="drop")], {}),
    ([time_only()], {}),
    ([time_only(broadcast="orders")], {}),
    ([time_only(type="left")], {}),
    *[([time_only(type=kind)], {}) for kind in ("semi", "anti")],
    *[([{**window(session={"gap": "30s"}), "type": kind}], {}) for kind in ("semi", "anti")],
    ([step(type="semi"), step("items")], {"inputs": [ORDERS, PAYMENTS, ITEMS]}),
    ([time_only(type="right", broadcast="orders")], {}),
    ([step(), step("items", keys=BY_METHOD, interval=OF_PAYMENTS)], {}),
    ([step("items"), step("payments")], {"inputs": [ORDERS, PAYMENTS, ITEMS]}),
    ([step(), time_only(right="items", broadcast="items", type="left")], {}),
    ([step(type="full"), step("items", type="right", lateData="reopen")], {}),
    ([step(limits={"maxStateBytes": "10Gi", "maxRecords": 5, "onLimit": "pause"})], {}),
    ([step()], {"select": [{"expression": "orders.amount * 2", "as": "twice"}, {"column": "payments.ts"}]}),
    ([window(tumbling="1h")], {"select": [{"expression": "1", "as": "one"}]}),
    ([step(coPartitioned=True)], {"inputs": TOPICS[:2]}),
    ([{**window(session={"gap": "30s"}), "coPartitioned": True, "partitioner": "crc32"}], {"inputs": TOPICS[:2]}),
    ([as_of(coPartitioned=True)], {"inputs": [TOPICS[0], TOPICS[3]]}),
    ([step(coPartitioned=False, partitioner="murmur2")], {}),
    ([step(keys={"lower(orders.id)": "payments.order_id || ''"})], {}),
    ([step(), step("items", keys={'CAST(orders."id" AS BIGINT)': "items.n % 10"})], {}),
    ([as_of(keys={"upper(orders.currency)": "rates.currency"})], {}),
    (
        [step(where="Risk(orders.amount) > 1")],
        {"functions": [{"name": "risk", "python": "a.b:c", "returns": "double"}]},
    ),
]


@pytest.mark.parametrize(("steps", "more"), GOOD_STEPS)
def test_good_steps_load(steps: list[Any], more: Any) -> None:
    assert mistakes(*steps, **more) == {}


FIRST_TEN = {"orderBy": [{"expression": "orders.amount"}], "rows": 10, "window": {"tumbling": {"size": "1h"}}}
BAD_STEPS: list[tuple[list[Any], dict[str, Any], str, str]] = [
    # which inputs
    ([], {"inputs": [ORDERS, PAYMENTS]}, "joins", "there is no join step"),
    ([step()], {"inputs": [ORDERS, PAYMENTS, ITEMS]}, "inputs[2]", "no step joins input 'items'; add a step"),
    ([step(), step()], {"inputs": [ORDERS, PAYMENTS, ITEMS]}, "joins[1].right", "joins 'payments' already"),
    ([step("orders")], {"inputs": [ORDERS, PAYMENTS]}, "joins[0].right", "where the steps begin; write payments"),
    ([step("pay")], {"inputs": [ORDERS, PAYMENTS, ITEMS]}, "joins[0].right", "write payments or items"),
    ([step()], {"inputs": [ORDERS]}, "inputs", "there are 1, write at least two"),
    (
        [step(type="anti"), step("payments")],
        {"inputs": [ORDERS, PAYMENTS, ITEMS]},
        "joins[1].right",
        "a step before joins 'payments' already, and each input is joined once; write items",
    ),
    # semi and anti joins
    (
        [step(type="anti"), step("items", keys=BY_METHOD)],
        {},
        'joins[1].keys["payments.method"]',
        "step 1 is a join of type anti, which emits no column of 'payments' (rule E1); write a column of orders",
    ),
    (
        [step(type="semi"), step("items", interval=OF_PAYMENTS)],
        {},
        "joins[1].interval.of",
        "'payments' has no time any more: step 1 is a join of type semi",
    ),
    (
        [step(type="semi")],
        {"select": [{"column": "payments.method"}]},
        "select[0].column",
        "'payments.method' is not there any more: step 1 is a join of type semi",
    ),
    ([as_of(type="anti")], {}, "joins[0].type", "an asOf step has one version for each row"),
    ([time_only(type="semi", broadcast="orders")], {}, "joins[0].broadcast", "a broadcast side is in every shard"),
    # keys
    (
        [step(), step("items", keys={"items.order_id": "orders.id"})],
        {},
        'joins[1].keys["items.order_id"]',
        "the left input comes first; swap it: orders.id: items.order_id",
    ),
    (
        [step(keys={"items.order_id": "payments.order_id"}), step("items")],
        {},
        'joins[0].keys["items.order_id"]',
        "must be a column of 'orders'",
    ),
    (
        [step(), step("items", keys={"rates.x": "items.order_id"})],
        {},
        'joins[1].keys["rates.x"]',
        "must be a column of 'orders' or 'payments'",
    ),
    (
        [step(), step("items", keys={"payments.ordr_id": "items.order_id"})],
        {},
        'joins[1].keys["payments.ordr_id"]',
        "'payments' has no column 'ordr_id' (did you mean 'order_id'?)",
    ),
    (
        [step(), step("items", keys={"orders.id": "payments.order_id"})],
        {},
        'joins[1].keys["orders.id"]',
        "'payments.order_id' must be a column of 'items'",
    ),
    (
        [step(), step("items", keys={"orders.amount": "items.n"})],
        {},
        'joins[1].keys["orders.amount"]',
        "key types differ: orders.amount is double, items.n is int64",
    ),
    (
        [step(), step("items", keys={"id": "order_id"})],
        {},
        "joins[1].keys.id",
        "a key is written orders or payments.<column>: items.<column>",
    ),
    ([step(keys={})], {}, "joins[0].keys", "(rule J9); name at least one, or for a join on time only"),
    ([{**window(tumbling="1h"), "keys": {}}], {}, "joins[0].keys", "(rule J9); name at least one"),
    # keys that are expressions
    (
        [step(keys={"lowr(orders.id)": "payments.order_id"})],
        {},
        'joins[0].keys["lowr(orders.id)"]',
        "there is no function LOWR (did you mean 'LOWER'?)",
    ),
    (
        [step(keys={"lower(orders.id)": "lower(payments.id)"})],
        {},
        'joins[0].keys["lower(orders.id)"]',
        "'payments' has no column 'id'",
    ),
    (
        [step(keys={"lower(orders.id": "payments.order_id"})],
        {},
        'joins[0].keys["lower(orders.id"]',
        "'lower(orders.id' is neither a column nor an expression over columns of one input (rule J12)",
    ),
    (
        [step(), step("items", keys={"orders.id || payments.method": "items.order_id"})],
        {},
        'joins[1].keys["orders.id || payments.method"]',
        "reads columns of orders and payments, and a side of a key is computed of one input (rule J12)",
    ),
    (
        [step(keys={"orders.id || 'x'": "order_id || 'x'"})],
        {},
        "joins[0].keys[\"orders.id || 'x'\"]",
        "has a column without its input; write orders.<column> or payments.<column>",
    ),
    (
        [as_of(keys={"orders.currency": "upper(rates.currency)"})],
        {},
        "joins[0].keys",
        "the keys name upper(rates.currency) of 'rates', whose table key is currency",
    ),
    (
        [step(coPartitioned=True, keys={"lower(orders.id)": "payments.order_id"})],
        {"inputs": TOPICS[:2]},
        "joins[0].coPartitioned",
        "is for a key that the records have as it is, and 'lower(orders.id)' is computed (rule J12)",
    ),
    (
        [step(keys={"lower(orders.id)": "payments.order_id"})],
        {"inputs": [stream("orders", "id", "LOWER(id)"), PAYMENTS]},
        'joins[0].keys["lower(orders.id)"]',
        "is also the name of a column of 'orders'; rename the column",
    ),
    # functions of the job
    (
        [step()],
        {"functions": [{"name": "risk", "python": "a.b", "returns": "double"}]},
        "functions[0].python",
        "'a.b' names no function; write package.module:function",
    ),
    (
        [step()],
        {"functions": [{"name": "sqrt", "python": "a:b", "returns": "double"}]},
        "functions[0].name",
        "'sqrt' is a function of SQL already (docs/functions.md)",
    ),
    (
        [step()],
        {"functions": [{"name": "Currency", "python": "a:b", "returns": "double"}]},
        "functions[0].name",
        "'Currency' is a column of 'orders' already",
    ),
    # co-partitioned
    ([step(coPartitioned=True)], {}, "joins[0].coPartitioned", "'orders' is none; leave it out"),
    (
        [step(coPartitioned=True)],
        {"inputs": [TOPICS[0], PAYMENTS]},
        "joins[0].coPartitioned",
        "is for topics of Kafka, and 'payments' is none; leave it out",
    ),
    (
        [step(coPartitioned=True)],
        {
            "inputs": [
                {**TOPICS[0], "history": {"path": "old/", "format": "json", "until": "2026-01-01T00:00:00Z"}},
                TOPICS[1],
            ]
        },
        "joins[0].coPartitioned",
        "is for topics alone, and 'orders' has a history, whose files are in no partition; leave it out",
    ),
    (
        [step(), step("items", coPartitioned=True)],
        {"inputs": TOPICS[:3]},
        "joins[1].coPartitioned",
        "is for a job of one step, and there are 2; leave it out",
    ),
    (
        [step(coPartitioned=True)],
        {"inputs": TOPICS[:2], "deduplicate": {"by": ["orders.id"], "within": "1h"}},
        "joins[0].coPartitioned",
        "is for a job of one step, and deduplicate is another step, whose rows are in no partition; leave it out",
    ),
    (
        [step(keys={"orders.id": "payments.order_id", "orders.currency": "payments.method"}, coPartitioned=True)],
        {"inputs": TOPICS[:2]},
        "joins[0].coPartitioned",
        "is for one key column, whose bytes are the record's key, and there are 2; leave it out",
    ),
    (
        [time_only(coPartitioned=True)],
        {"inputs": TOPICS[:2]},
        "joins[0].coPartitioned",
        "is for one key column, whose bytes are the record's key, and there are 0; leave it out",
    ),
    (
        [as_of(keys={"orders.amount": "rates.rate"}, coPartitioned=True)],
        {"inputs": [TOPICS[0], {**TOPICS[3], "table": {"key": ["rate"]}}]},
        "joins[0].coPartitioned",
        "makes of a double (orders.amount) are not known; key by string, binary, int32 or int64, or leave it out",
    ),
    ([step(partitioner="crc32")], {}, "joins[0].partitioner", "is for coPartitioned: true, which is not set"),
    # broadcast
    ([step(broadcast="payments")], {}, "joins[0].broadcast", "is for a join without keys (rule J9), and this has 1"),
    ([time_only(broadcast="paymets")], {}, "joins[0].broadcast", "did you mean 'payments'?"),
    (
        [time_only(type="left", broadcast="orders")],
        {},
        "joins[0].broadcast",
        "a left join keeps unmatched rows of 'orders', which a broadcast side cannot (rule J9); "
        "write broadcast: payments, or type: inner",
    ),
    ([time_only(type="right")], {}, "joins[0].broadcast", "write broadcast: orders, or type: inner"),
    ([time_only(type="full")], {}, "joins[0].broadcast", "a full join keeps unmatched rows of 'payments'"),
    (
        [step(), time_only(right="items", broadcast="orders")],
        {},
        "joins[1].broadcast",
        "'orders' is part of what the steps before made, which cannot be broadcast; write items",
    ),
    (
        [step(), time_only(right="items", broadcast="items", type="right")],
        {},
        "joins[1].broadcast",
        "write type: inner, or name a key",
    ),
    (
        [{**window(tumbling="1h"), "keys": {}, "broadcast": "payments"}],
        {},
        "joins[0].broadcast",
        "only an interval step can do without keys",
    ),
    # interval
    ([step(interval=None)], {}, "joins[0].interval", "no bound on time, so its state would grow for ever (rule J8)"),
    (
        [step(window={"tumbling": "1h"})],
        {},
        "joins[0]",
        f"needs exactly one of {listed(FIELDS)}: interval and window are named",
    ),
    ([step(interval={**DAY, "lower": "25h"})], {}, "joins[0].interval", "lower (25h) is above upper (24h)"),
    (
        [step(), step("items", interval={**DAY, "of": "items"})],
        {},
        "joins[1].interval.of",
        "bounds count from an input that is: write orders or payments (to count from the right input, negate",
    ),
    ([step(interval=OF_PAYMENTS)], {}, "joins[0].interval.of", "write of: orders (to count from the right input"),
    # windows
    ([window()], {}, "joins[0].window", "exactly one of tumbling, hopping and session: none of them is named"),
    (
        [window(tumbling="1h", session={"gap": "5ms"})],
        {},
        "joins[0].window",
        "tumbling and session are named",
    ),
    ([window(tumbling=0)], {}, "joins[0].window.tumbling", "must be more than 0"),
    ([window(session={"gap": "0s"})], {}, "joins[0].window.session.gap", "must be more than 0"),
    ([window(session={"gap": "1h"}, offset="1m")], {}, "joins[0].window.offset", "a session begins with a row"),
    (
        [window(session={"gap": "1h"}, timeZone="Europe/Zurich")],
        {},
        "joins[0].window.timeZone",
        "a session begins with a row",
    ),
    ([window(tumbling="1h", offset="1h")], {}, "joins[0].window.offset", "is 1h, and windows begin every 1h"),
    (
        [window(hopping={"size": "2h", "slide": "1h"}, offset="2h")],
        {},
        "joins[0].window.offset",
        "is 2h, and windows begin every 2h",
    ),
    ([window(hopping={"size": "1h"})], {}, "joins[0].window.hopping.slide", "is missing"),
    (
        [window(hopping={"size": "1h", "slide": "61m"})],
        {},
        "joins[0].window.hopping.slide",
        "slide (1h1m) is longer than size (1h), so rows between windows would be lost; write at most the size",
    ),
    (
        [window(session={"gap": "1m"}), step("items")],
        {},
        "joins[0].window.session",
        "no step can follow, because a session may begin any time before it ends, so no time of its rows is bounded "
        "(rule N3); make it the last step, or a job of its own",
    ),
    (
        [window(tumbling="1h"), windowed("items", tumbling="2h")],
        {},
        "joins[1].window",
        "step 1 has put the rows into other windows, and a row is in one (rule W5); write the window of step 1, or "
        "join in these windows in a job of its own",
    ),
    (
        [window(tumbling="1h"), windowed("items", session={"gap": "1h"})],
        {},
        "joins[1].window",
        "step 1 has put the rows into other windows",
    ),
    (
        [window(tumbling="1h"), windowed("items", hopping={"size": "1h", "slide": "1h"}, of="orders")],
        {},
        "joins[1].window.of",
        "rows of step 1 are in windows already, whatever time counted there (rule W5); leave it out",
    ),
    (
        [step(), windowed("items", tumbling="1h", of="items")],
        {},
        "joins[1].window.of",
        "'items' is not joined before this step; windows count the time of an input that is: write orders or payments",
    ),
    (
        [step(type="left"), windowed("items", tumbling="1h", of="payments")],
        {},
        "joins[1].window.of",
        "rows of 'payments' may be missing, because step 1 is a left join, and a row without an event time is in no "
        "window (rule W6); write of: orders",
    ),
    (
        [step(type="right"), windowed("items", tumbling="1h")],
        {},
        "joins[1].window",
        "rows of 'orders' may be missing, because step 1 is a right join, and a row without an event time is in no "
        "window (rule W6); write of: payments",
    ),
    (
        [window(tumbling="1h"), step("items", type="full"), windowed("returns", tumbling="1h")],
        {"inputs": [ORDERS, PAYMENTS, ITEMS, stream("returns", "order_id")]},
        "joins[1].type",
        "rows of 'items' that match nothing are in no window, and step 3 joins in windows (rule W6); write type: left "
        "or inner, or join 'items' after this step",
    ),
    ([{**window(tumbling="1h"), "lateData": "reopen"}], {}, "joins[0].lateData", "reopen is for interval steps"),
    # as-of
    (
        [as_of()],
        {"inputs": [ORDERS, stream("rates", "currency")]},
        "joins[0].asOf",
        "'rates' is not a table: its versions have no key; write table: {key: [currency]} in that input",
    ),
    ([as_of()], {"inputs": [ORDERS, TWO_KEYS]}, "joins[0].keys", "whose table key is currency and region"),
    (
        [as_of(keys={"orders.currency": "rates.currency", "orders.amount": "rates.rate"})],
        {},
        "joins[0].keys",
        "the keys name currency and rate of 'rates', whose table key is currency; a version is looked up by",
    ),
    (
        [as_of(asOf={"historyRetention": "1h", "grace": "60m"})],
        {},
        "joins[0].asOf.grace",
        "grace (1h) is not below historyRetention (1h)",
    ),
    ([as_of(asOf={"historyRetention": 0})], {}, "joins[0].asOf.historyRetention", "must be more than 0"),
    ([as_of(asOf={})], {}, "joins[0].asOf.historyRetention", "is missing"),
    ([as_of(type="right")], {}, "joins[0].type", "write inner or left"),
    ([as_of(type="full")], {}, "joins[0].type", "write inner or left"),
    ([as_of(lateData="reopen")], {}, "joins[0].lateData", "a row that was emitted stays as it is; write drop"),
    ([as_of(allowedLateness="1s")], {}, "joins[0].allowedLateness", "write asOf.grace instead"),
    (
        [as_of(), step(interval={**DAY, "of": "rates"})],
        {},
        "joins[1].interval.of",
        "a version of 'rates' may be older than its row by any time, so rows would wait for ever (rule N2); "
        "write of: orders",
    ),
    ([as_of(asOf={"historyRetention": "1h", "of": "rates"})], {}, "joins[0].asOf.of", "write of: orders"),
    (
        [step("rates", keys={"orders.currency": "rates.currency"})],
        {},
        "inputs[1].table",
        "'rates' is a table, but not the right input of an asOf step; drop `table`, or write asOf",
    ),
    ([step()], {"inputs": [{**ORDERS, "table": {"key": ["id"]}}, PAYMENTS]}, "inputs[0].table", "'orders' is a table"),
    # limits
    ([step(limits={"maxStateBytes": "10GB"})], {}, "joins[0].limits.maxStateBytes", "write it as 10Gi, 500M or"),
    ([step(limits={"maxStateBytes": 0})], {}, "joins[0].limits.maxStateBytes", "must be at least 1"),
    ([step(limits={"maxRecords": 0})], {}, "joins[0].limits.maxRecords", "must be at least 1"),
    ([step(limits={"onLimit": "stop"})], {}, "joins[0].limits.onLimit", "write fail or pause"),
    # what goes out
    (
        [step()],
        {"select": [{"column": "orders.id", "expression": "1", "as": "x"}]},
        "select[0]",
        "needs exactly one of column and expression: column and expression are named",
    ),
    ([step()], {"select": [{"as": "x"}]}, "select[0]", "none of them is named"),
    ([step()], {"select": [{"expression": "orders.amount * 2"}]}, "select[0]", "add one: as: <name>"),
    (
        [step()],
        {"select": [{"expression": "orders.amuont * 2", "as": "x"}]},
        "select[0].expression",
        "'orders' has no column 'amuont' (did you mean 'amount'?)",
    ),
    ([step()], {"select": [{"expression": "amount", "as": "x"}]}, "select[0].expression", "write <input>.amount"),
    ([step()], {"select": [{"expression": "order.id", "as": "x"}]}, "select[0].expression", "did you mean 'orders'?"),
    ([step()], {"select": [{"expression": "1 +", "as": "x"}]}, "select[0].expression", "is not an SQL expression"),
    (
        [window(tumbling="1h")],
        {"select": [{"column": "window_start"}, {"column": "orders.id", "as": "window_start"}]},
        "select[1]",
        "two output columns are named 'window_start'",
    ),
    (
        [step()],
        {"select": [{"column": "window_start"}]},
        "select[0].column",
        "is a column of window joins only (rule W4)",
    ),
    (
        [],
        {"inputs": [ORDERS], "topN": FIRST_TEN, "select": [{"expression": "row_number + 1", "as": "s"}]},
        "select[0].expression",
        "select it as it is: column: row_number",
    ),
    (
        [step()],
        {"select": [{"expression": "window_start / 1000", "as": "s"}]},
        "select[0].expression",
        "write <input>.window_start",
    ),
    (
        [step(name, keys={"a.id": f"{name}.id"}, interval={**DAY, "of": "a"}) for name in ("b", "a_b")],
        {"inputs": [stream("a", "id", "b_c"), stream("b", "id"), stream("a_b", "id", "c")], "prefixes": "always"},
        "inputs",
        "two output columns would be named 'a_b_c' (rule J10)",
    ),
]


@pytest.mark.parametrize(("steps", "more", "path", "words"), BAD_STEPS, ids=lambda value: str(value)[:50])
def test_each_mistake_is_named_once_at_its_place(steps: list[Any], more: Any, path: str, words: str) -> None:
    messages = mistakes(*steps, **more)
    assert words in messages.pop(f"spec.{path}", ""), mistakes(*steps, **more)
    assert messages == {}


# --- what the engine asks of a valid job ---------------------------------------------------------------------------


def test_a_chain_tells_its_sides_and_keys() -> None:
    chain = load(step(), step("items", keys=BY_METHOD, interval=OF_PAYMENTS))
    assert [chain.left_inputs(i) for i in range(2)] == [("orders",), ("orders", "payments")]
    assert chain.keys_of(chain.joins[1]) == (
        KeyPair(Reference("orders", "id"), Reference("items", "order_id")),
        KeyPair(Reference("payments", "method"), Reference("items", "payment_method")),
    )
    names = [column.name for column in chain.output_columns]
    assert names[0] == "id"
    assert names[-2:] == ["n", "items_ts"]


def test_expressions_and_windows_in_the_output() -> None:
    until = {"column": "window_end", "as": "until"}
    chosen = [{"column": "orders.id"}, {"expression": "orders.amount * 2", "as": "x"}, until]
    job = load(window(tumbling="1h"), select=chosen)
    columns = [(c.name, c.source, c.expression, c.type and str(c.type)) for c in job.output_columns]
    assert columns == [
        ("id", Reference("orders", "id"), None, "string"),
        ("x", None, "orders.amount * 2", None),
        ("until", None, None, "int64"),
    ]


def test_output_names_may_be_named_by_the_output() -> None:
    key = {"kafka": {"bootstrapServers": "k", "topic": "t", "key": ["window_start", "left_id"]}}
    assert mistakes(window(tumbling="1h"), output=key) == {}
    chosen = mistakes(window(tumbling="1h"), output=key, select=[{"column": "orders.id", "as": "left_id"}])
    assert "'window_start' is not an output column" in chosen["spec.output.kafka.key[0]"]
    assert "output columns are id, " in mistakes(step(), output=key)["spec.output.kafka.key[0]"]


@pytest.mark.parametrize(
    ("join_step", "kind"),
    [
        (step(), "interval"),
        (window(tumbling="1h"), "tumbling"),
        (window(hopping={"size": "2ms", "slide": "1ms"}), "hopping"),
        (window(session={"gap": "1ms"}), "session"),
        (as_of(), "asOf"),
    ],
)
def test_kinds_of_steps(join_step: Any, kind: str) -> None:
    assert load(join_step).joins[0].kind == kind


@pytest.mark.parametrize(
    ("kind", "preserved"),
    [("inner", (False, False)), ("left", (True, False)), ("right", (False, True)), ("full", (True, True))],
)
def test_preserved_sides(kind: str, preserved: tuple[bool, bool]) -> None:
    assert load(step(type=kind)).joins[0].preserved == preserved


@pytest.mark.parametrize(
    ("text", "size", "again"),
    [
        ("10Gi", 10 * 2**30, "10Gi"),
        ("500Mi", 500 * 2**20, "500Mi"),
        ("1G", 10**9, "1000000000"),
        ("1.5k", 1500, "1500"),
        (2048, 2048, "2Ki"),
        ("77", 77, "77"),
    ],
)
def test_amounts_of_memory(text: Any, size: int, again: str) -> None:
    job = load(step(limits={"maxStateBytes": text}))
    assert job.joins[0].limits is not None
    assert job.joins[0].limits.max_state_bytes == size
    assert job.model_dump(mode="json", by_alias=True)["spec"]["joins"][0]["limits"]["maxStateBytes"] == again


@pytest.mark.parametrize("text", ["1.5", "0.3Ki", "9223372036854775808", "", "-1Gi", "1 Gi", True])
def test_no_amounts_of_memory(text: Any) -> None:
    assert list(mistakes(step(limits={"maxStateBytes": text}))) == ["spec.joins[0].limits.maxStateBytes"]


def test_dead_letters_go_to_the_kafka_that_a_later_input_names() -> None:
    kafka = {"bootstrapServers": "k:1", "topic": "items", "properties": {"a": "b"}}
    items = {**{key: value for key, value in ITEMS.items() if key != "file"}, "kafka": kafka}
    dead = load(step(), step("items"), inputs=[ORDERS, PAYMENTS, items], deadLetter={"kafka": {"topic": "d"}})
    assert dead.dead_letter_kafka is not None
    assert (dead.dead_letter_kafka.bootstrap_servers, dead.dead_letter_kafka.properties) == ("k:1", {"a": "b"})


# --- anything at all ----------------------------------------------------------------------------------------------

JUNK = st.sampled_from(
    [None, 5, -1, 1.5, True, "x", "", "$", "a.b", "1h", [], {}, [1], [[{}]], {"a": 1}, {"orders": "x"}]
)


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields and entries."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inner for path in ((*at, key), *paths_of(item, (*at, key)))]


def spoilt(good: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """The resource with junk in up to three places of its spec."""
    written = deepcopy(good)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(paths_of(written["spec"])))
        node = written["spec"]
        for key in path:
            node = node[key]
        node[last] = deepcopy(data.draw(JUNK))
    return written


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_no_value_anywhere_gives_anything_but_mistakes(data: st.DataObject) -> None:
    steps, more = data.draw(st.sampled_from(GOOD_STEPS))
    written = spoilt(document(*steps, **more), data)
    assert all(path and message for path, message in messages_of(written).items())
