import json

import pytest

from job.resources import job
from joinery_runtime.job import compare, signature

STORED = {"orders": ["order_id", "country", "amount"], "payments": ["order_id", "country"]}
OUTPUT = "    postgres: {table: joined}"
STEP = "      lateData: drop"


def sign(*edits, stored=STORED):
    return signature(job(*edits), stored)


def test_signature_is_lasting_json():
    assert json.loads(json.dumps(sign())) == {
        "version": 1,
        "kind": "StreamJoin",
        "step": "interval",
        "type": "inner",
        "inputs": [
            {
                "name": "orders",
                "eventTime": "ts",
                "stored": {"order_id": "string", "country": "int32", "amount": "decimal(12,2)"},
            },
            {"name": "payments", "eventTime": "ts", "stored": {"order_id": "string", "country": "int64"}},
        ],
        "keys": [["order_id", "order_id", "string"]],
        "lower": -60_000,
        "upper": 3_600_000,
        "allowedLateness": 0,
    }


@pytest.mark.parametrize(
    "edit",
    [
        (OUTPUT, OUTPUT + "\n  shards: 3"),
        (OUTPUT, OUTPUT + "\n  spark: {executor: {instances: 5}}"),
        ("delay: 10s", "delay: 1h, idleTimeout: 0, onIdle: advance"),
        (STEP, STEP + '\n      where: "orders.amount > 10"'),
        ("lateData: drop", "lateData: reopen"),
        ("lower: -1m, upper: 1h", "lower: 0s, upper: 30m"),
        (OUTPUT, OUTPUT + "\n  select: [{column: orders.amount, as: total}]"),
        ("topic: orders", "topic: orders2"),
    ],
)
def test_goes_on(edit):
    assert compare(sign(), sign(edit)) == compare(sign(), sign())
    assert compare(sign(), sign(edit)).refused == compare(sign(), sign(edit)).warnings == ()


def test_fewer_stored_columns_go_on():
    fewer = {"orders": ["order_id"], "payments": ["order_id"]}
    assert compare(sign(), sign(stored=fewer)).refused == ()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("upper: 1h", "upper: 2h"), "upper bound went from 1h to 2h"),
        (("lower: -1m", "lower: -2m"), "lower bound went from -1m to -2m"),
        ((STEP, STEP + "\n      allowedLateness: 5s"), "allowedLateness went from 0s to 5s"),
    ],
)
def test_keeping_rows_longer_goes_on_with_a_warning(edit, words):
    comparison = compare(sign(), sign(edit))
    assert comparison.refused == ()
    (warning,) = comparison.warnings
    assert warning.startswith(words)
    assert "stay gone" in warning
    assert compare(sign(edit), sign()).warnings == ()


KEYS = "{orders.order_id: payments.order_id}"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            (KEYS, "{orders.country: payments.country}"),
            "the keys were orders.order_id = payments.order_id (string), they",
        ),
        ((KEYS, KEYS[:-1] + ", orders.country: payments.country}"), "are now orders.order_id"),
        (("decimal(12,2)", "double"), "column orders.amount is stored as decimal(12,2), the job now declares double"),
        (("type: int32", "type: int64"), "column orders.country is stored as int32"),
        (("eventTime: ts\n  joins", "eventTime: country\n  joins"), "the event time of payments was ts"),
    ],
)
def test_refuses_with_the_difference(edit, words):
    (refused,) = compare(sign(), sign(edit)).refused
    assert words in refused


def test_refuses_another_key_type():
    old = sign()
    new = {**old, "keys": [["order_id", "order_id", "binary"]]}
    assert "(string), they are now orders.order_id = payments.order_id (binary)" in compare(old, new).refused[0]


def test_refuses_a_column_that_was_not_stored():
    narrow = {**STORED, "orders": ["order_id"]}
    assert compare(sign(stored=narrow), sign()).refused == (
        "column orders.country is not in the stored rows, and the job now needs it",
        "column orders.amount is not in the stored rows, and the job now needs it",
    )


def test_refuses_renamed_inputs():
    old = sign()
    new = {**old, "inputs": [{**old["inputs"][0], "name": "sales"}, old["inputs"][1]]}
    swapped = {**old, "inputs": old["inputs"][::-1]}
    assert compare(old, new).refused == (
        "the inputs were orders and payments, they are now sales and payments; they keep their names and order",
    )
    assert "they are now payments and orders" in compare(old, swapped).refused[0]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("kind", "SessionWindow", "the kind of job was StreamJoin, it is now SessionWindow"),
        ("step", "window", "the kind of step was interval, it is now window"),
        ("type", "left", "the join type was inner, it is now left"),
    ],
)
def test_refuses_another_kind(field, value, words):
    assert compare(sign(), {**sign(), field: value}).refused == (words,)


def test_refuses_a_signature_of_another_layout():
    assert "version 2, this release writes version 1" in compare({"version": 2}, sign()).refused[0]
