"""What a job's state depends on, and what a changed job may do with it (M2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from job.chains import DAY, ITEMS, ORDERS, PAYMENTS, RATES, as_of, load, step, stream, time_only, window
from job.resources import job
from joinery_runtime.job import Comparison, compare, signature

STORED = {"left": ["order_id", "country", "amount"], "right": ["order_id", "country"]}
OUTPUT = "    postgres: {table: joined}"
STEP = "      lateData: drop"


def sign(*edits: tuple[str, str], stored: Any = STORED) -> dict[str, Any]:
    return signature(job(*edits), stored)


def signature_of(*steps: dict[str, Any], stored: Any = None, **more: Any) -> dict[str, Any]:
    """The signature of a chain that stores what the steps' keys name, or as said."""
    parts = {f"{side}{mark}": [] for mark in ("", ".2", ".3") for side in ("left", "right")}
    return signature(load(*steps, **more), {**parts, **(stored or {})})


def test_signature_is_lasting_json() -> None:
    assert json.loads(json.dumps(sign())) == {
        "version": 2,
        "kind": "StreamJoin",
        "inputs": [
            {"name": "orders", "eventTime": "ts", "table": None},
            {"name": "payments", "eventTime": "ts", "table": None},
        ],
        "steps": [
            {
                "kind": "interval",
                "right": "payments",
                "type": "inner",
                "keys": [["orders.order_id", "payments.order_id", "string"]],
                "broadcast": None,
                "of": "orders",
                "lower": -60_000,
                "upper": 3_600_000,
                "allowedLateness": 0,
                "stored": {
                    "left": {"order_id": "string", "country": "int32", "amount": "decimal(12,2)"},
                    "right": {"order_id": "string", "country": "int64"},
                },
            }
        ],
    }


@pytest.mark.parametrize("kind", ["semi", "anti"])
def test_releases_that_do_not_know_the_type_of_join_reject_its_state(kind: str) -> None:
    signed = signature_of(step(type=kind))
    assert (signed["version"], signed["steps"][0]["type"]) == (4, kind)
    assert compare(signed, signed) == Comparison((), ())


def test_where_a_history_ends_belongs_to_the_state() -> None:
    def ending(until: int) -> dict[str, Any]:
        return sign(("topic: orders\n", f"topic: orders\n      history: {{path: in, format: json, until: {until}}}\n"))

    assert compare(ending(5), ending(5)) == Comparison((), ())
    for old, new, facts in (
        (sign(), ending(5), "was none, it is now one until 1970-01-01T00:00:00.005Z"),
        (ending(5), sign(), "was one until 1970-01-01T00:00:00.005Z, it is now none"),
        (ending(5), ending(6), "was one until 1970-01-01T00:00:00.005Z, it is now one until 1970-01-01T00:00:00.006Z"),
    ):
        (refused,) = compare(old, new).refused
        assert refused.startswith(f"the history of orders {facts}: ")


def test_a_chain_signs_every_step_and_columns_by_their_inputs() -> None:
    stored = {"left": ["id"], "right": ["method"], "left.2": ["orders.id", "payments.ts"], "right.2": ["n"]}
    first, second = signature_of(step(type="left"), step("items"), stored=stored)["steps"]
    assert (first["type"], first["stored"]) == ("left", {"left": {"id": "string"}, "right": {"method": "string"}})
    assert second["keys"] == [["orders.id", "items.order_id", "string"]]
    assert second["stored"] == {"left": {"orders.id": "string", "payments.ts": "timestamp"}, "right": {"n": "int64"}}


@pytest.mark.parametrize(
    ("join_step", "times"),
    [
        (window(tumbling="1h"), {"kind": "tumbling", "size": 3_600_000, "allowedLateness": 0}),
        (
            {**window(hopping={"size": "20ms", "slide": "10ms"}), "allowedLateness": "5ms"},
            {"kind": "hopping", "size": 20, "slide": 10, "allowedLateness": 5},
        ),
        (window(session={"gap": "7ms"}), {"kind": "session", "gap": 7, "allowedLateness": 0}),
        (as_of(), {"kind": "asOf", "historyRetention": 3_600_000, "grace": 0}),
        (time_only(), {"kind": "interval", "of": "orders", "broadcast": "payments", "keys": []}),
    ],
)
def test_every_kind_of_step_signs_its_times(join_step: Any, times: dict[str, Any]) -> None:
    (signed,) = signature_of(join_step)["steps"]
    assert {name: signed[name] for name in times} == times


def test_a_co_partitioned_step_signs_its_partitioner() -> None:
    """Under a version of its own: earlier releases, which know 1 and 2, would look for its rows elsewhere."""
    signed = sign((STEP, STEP + "\n      coPartitioned: true"))
    assert signed["version"] == 3
    assert signed["steps"] == [{**sign()["steps"][0], "coPartitioned": "murmur2"}]
    assert compare(signed, signed) == compare(sign(), sign())


CO_PARTITIONED = STEP + "\n      coPartitioned: true"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (STEP, CO_PARTITIONED, "coPartitioned was off, it is now murmur2"),
        (CO_PARTITIONED, STEP, "coPartitioned was murmur2, it is now off"),
        (CO_PARTITIONED, CO_PARTITIONED + "\n      partitioner: crc32", "coPartitioned was murmur2, it is now crc32"),
    ],
)
def test_rows_stay_where_they_are(before: str, after: str, words: str) -> None:
    (refused,) = compare(sign((STEP, before)), sign((STEP, after))).refused
    assert refused == f"{words}, and it says where rows are in the state"


@pytest.mark.parametrize(("counted_from", "null"), [("orders", "payments.ts is"), ("payments", "orders.ts is")])
def test_the_time_that_bounds_count_from_is_in_every_stored_row_of_a_chain(counted_from: str, null: str) -> None:
    chain = (step(), step("items", interval={**DAY, "of": counted_from}))
    before = signature_of(*chain, stored={"left.2": ["orders.id"]})
    after = signature_of(*chain, stored={"left.2": ["orders.id", "orders.ts", "payments.ts"]})
    assert compare(before, after).warnings == (f"{null} null in rows that were stored before (step 2)",)


# --- goes on ------------------------------------------------------------------------------------------------------


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
        (STEP, STEP + "\n      limits: {maxRecords: 5}"),
    ],
)
def test_goes_on(edit: tuple[str, str]) -> None:
    assert compare(sign(), sign(edit)).refused == compare(sign(), sign(edit)).warnings == ()


def test_fewer_stored_columns_go_on() -> None:
    fewer = {"left": ["order_id"], "right": ["order_id"]}
    assert compare(sign(), sign(stored=fewer)).refused == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (as_of(asOf={"historyRetention": "1h"}), as_of(asOf={"historyRetention": "30m", "grace": "10m"})),
        (as_of(asOf={"historyRetention": "1h", "grace": "9m"}), as_of(asOf={"historyRetention": "1h"})),
        (as_of(), as_of(asOf={"historyRetention": "1h", "of": "orders"})),
        ({**window(tumbling="1h"), "allowedLateness": "1m"}, window(tumbling="1h")),
        (window(tumbling="1h"), {**window(tumbling="1h"), "where": "orders.amount > 1"}),
    ],
)
def test_changes_of_windows_and_tables_that_go_on(before: Any, after: Any) -> None:
    assert compare(signature_of(before), signature_of(after)) == compare(signature_of(before), signature_of(before))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (step(), step(interval={**DAY, "upper": "25h"}), "upper bound went from 24h to 25h"),
        (step(), step(interval={**DAY, "lower": "-2m"}), "lower bound went from 0s to -2m"),
        (step(), step(allowedLateness="5s"), "allowedLateness went from 0s to 5s"),
        (as_of(), as_of(asOf={"historyRetention": "2h"}), "historyRetention went from 1h to 2h"),
        (
            window(session={"gap": "5ms"}),
            {**window(session={"gap": "5ms"}), "allowedLateness": "9ms"},
            "allowedLateness went from",
        ),
    ],
)  # fmt: skip
def test_keeping_rows_longer_goes_on_with_a_warning(before: Any, after: Any, words: str) -> None:
    comparison = compare(signature_of(before), signature_of(after))
    assert comparison.refused == ()
    (warning,) = comparison.warnings
    assert warning.startswith(words)
    assert "stay gone" in warning
    assert compare(signature_of(after), signature_of(before)).warnings == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "left",
            "inner",
            "the join type went from left to inner: rows of the left side that wait without a match will",
        ),
        ("full", "left", "from full to left: rows of the right side"),
        ("full", "inner", "rows of the left side and right side"),
    ],
)
def test_a_side_that_is_preserved_no_more_goes_on_with_a_warning(before: str, after: str, words: str) -> None:
    comparison = compare(signature_of(step(type=before)), signature_of(step(type=after)))
    assert comparison.refused == ()
    assert words in comparison.warnings[0]


def test_a_warning_names_its_step_in_a_chain() -> None:
    wider = step("items", interval={**DAY, "upper": "48h"})
    (warning,) = compare(signature_of(step(), step("items")), signature_of(step(), wider)).warnings
    assert warning.endswith("(step 2)")


# --- refused ------------------------------------------------------------------------------------------------------

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
def test_refuses_with_the_difference(edit: tuple[str, str], words: str) -> None:
    (refused,) = compare(sign(), sign(edit)).refused
    assert words in refused


TWO_KEYS = {**RATES, "table": {"key": ["currency", "rate"]}}
BY_TWO = as_of(keys={"orders.currency": "rates.currency", "orders.amount": "rates.rate"})


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (step(), step(type="left"), "the join type was inner, it is now left, and of the rows that are kept"),
        (step(type="left"), step(type="anti"), "the join type was left, it is now anti, and a semi or anti join keeps"),
        (step(type="semi"), step(), "the join type was semi, it is now inner, and a semi or anti join keeps"),
        (step(type="semi"), step(type="anti"), "the join type was semi, it is now anti, and a semi or anti join"),
        (step(type="left"), step(type="right"), "the join type was left, it is now right"),
        (step(type="left"), step(type="full"), "the join type was left, it is now full"),
        (step(), window(tumbling="1h"), "the kind of step was interval, it is now tumbling"),
        (window(tumbling="20ms"), window(hopping={"size": "20ms", "slide": "10ms"}), "was tumbling, it is now hopping"),
        (window(tumbling="1h"), window(tumbling="2h"), "the window's size was 1h, it is now 2h, which would cut"),
        (
            window(tumbling="24h"),
            window(tumbling="24h", offset="6h"),
            "the windows' offset was 0s, it is now 6h, which would cut windows that are open",
        ),
        (
            window(tumbling="24h", timeZone="Europe/Zurich"),
            window(tumbling="24h"),
            "the windows' time zone was Europe/Zurich, it is now UTC, which would cut windows that are open",
        ),
        (
            window(hopping={"size": "20ms", "slide": "10ms"}),
            window(hopping={"size": "20ms", "slide": "20ms"}),
            "the window's slide was 10ms, it is now 20ms",
        ),
        (window(session={"gap": "1s"}), window(session={"gap": "2s"}), "the session gap was 1s, it is now 2s"),
        (time_only(), time_only(broadcast="orders"), "the broadcast side was payments, it is now orders"),
    ],
)
def test_refuses_changes_of_a_step(before: Any, after: Any, words: str) -> None:
    (refused,) = compare(signature_of(before), signature_of(after)).refused
    assert words in refused


def test_windows_from_midnight_utc_are_signed_as_before_they_could_begin_elsewhere() -> None:
    plain, moved = signature_of(window(tumbling="24h")), signature_of(window(tumbling="24h", offset="0s"))
    assert plain == moved
    assert not {"offset", "timeZone"} & plain["steps"][0].keys()


def test_refuses_another_table_key() -> None:
    refused = compare(signature_of(as_of()), signature_of(BY_TWO, inputs=[ORDERS, TWO_KEYS])).refused
    assert refused[0] == "the table key of rates was currency, it is now currency and rate"
    assert "the keys were" in refused[1]


def test_refuses_more_and_other_steps() -> None:
    three = [ORDERS, PAYMENTS, ITEMS]
    chain = signature_of(step(), step("items"), inputs=three)
    assert "the inputs were orders and payments, they are now" in compare(signature_of(step()), chain).refused[0]
    swapped = signature_of(step("items"), step("payments"), inputs=three)
    assert compare(chain, swapped).refused == (
        "the right input was payments, it is now items (step 1)",
        "the right input was items, it is now payments (step 2)",
    )
    shorter = {**chain, "steps": chain["steps"][:1]}
    assert compare(shorter, chain).refused == (
        "there were 1 steps, there are now 2; steps are neither added nor removed",
    )


def test_refuses_bounds_that_count_from_another_input() -> None:
    of_payments = step("items", interval={**DAY, "of": "payments"})
    (refused,) = compare(signature_of(step(), step("items")), signature_of(step(), of_payments)).refused
    assert refused == "the step counted from the time of orders, it now counts from that of payments (step 2)"


def test_refuses_another_key_type() -> None:
    old = sign()
    binary = [["orders.order_id", "payments.order_id", "binary"]]
    new = {**old, "steps": [{**old["steps"][0], "keys": binary}]}
    assert "(string), they are now orders.order_id = payments.order_id (binary)" in compare(old, new).refused[0]


def test_a_column_that_was_not_stored_is_null_in_what_is_there() -> None:
    narrow = {**STORED, "left": ["order_id"]}
    assert compare(sign(stored=narrow), sign()) == Comparison(
        (), ("orders.country and orders.amount are null in rows that were stored before",)
    )
    chain = (step(), step("items"))
    (warning,) = compare(signature_of(*chain), signature_of(*chain, stored={"left.2": ["payments.method"]})).warnings
    assert warning == "payments.method is null in rows that were stored before (step 2)"


def test_refuses_renamed_inputs() -> None:
    old = sign()
    renamed = {**old, "inputs": [{**old["inputs"][0], "name": "sales"}, old["inputs"][1]]}
    swapped = {**old, "inputs": old["inputs"][::-1]}
    assert compare(old, renamed).refused == (
        "the inputs were orders and payments, they are now sales and payments; they keep their names and order",
    )
    assert "they are now payments and orders" in compare(old, swapped).refused[0]


def test_refuses_another_kind_of_job() -> None:
    other = {**sign(), "kind": "SessionWindow"}
    assert compare(sign(), other).refused == ("the kind of job was StreamJoin, it is now SessionWindow",)


@pytest.mark.parametrize("version", [None, 0, 5])
def test_refuses_a_signature_of_another_layout(version: int | None) -> None:
    assert f"version {version}, this release writes version 2" in compare({"version": version}, sign()).refused[0]


# --- version 1 ------------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "signatures"


def recorded(name: str) -> dict[str, Any]:
    """A signature as an earlier release wrote it into a state store."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def test_state_of_the_first_layout_goes_on() -> None:
    assert compare(recorded("v1_orders_payments"), sign()) == compare(sign(), sign())


def test_two_keys_of_the_first_layout_go_on() -> None:
    both = (KEYS, KEYS[:-1] + ", orders.country: payments.country}")
    late = (STEP, STEP + "\n      allowedLateness: 5s")
    assert compare(recorded("v1_two_keys"), sign(both, late)) == compare(sign(), sign())
    (warning,) = compare(recorded("v1_two_keys"), sign(both, (STEP, STEP + "\n      allowedLateness: 6s"))).warnings
    assert warning.startswith("allowedLateness went from 5s to 6s")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ((KEYS, "{orders.country: payments.country}"), "the keys were orders.order_id = payments.order_id (string)"),
        (("type: inner", "type: left"), "the join type was inner, it is now left"),
        (("decimal(12,2)", "double"), "column orders.amount is stored as decimal(12,2)"),
        (
            ("interval: {of: orders, lower: -1m, upper: 1h}", "window: {tumbling: 1h}"),
            "the kind of step was interval, it is now tumbling",
        ),
    ],
)
def test_differences_to_the_first_layout_are_refused(edit: tuple[str, str], words: str) -> None:
    (refused,) = compare(recorded("v1_orders_payments"), sign(edit)).refused
    assert words in refused


def test_a_chain_cannot_go_on_from_one_step() -> None:
    refused = compare(recorded("v1_orders_payments"), signature_of(step(), step("items"))).refused
    assert refused[0].startswith("the inputs were orders and payments, they are now orders, payments and items")


COMPUTED = {"left": ["LOWER(id)"], "right": ["order_id"]}


def computed(key: str, *inputs: Any) -> dict[str, Any]:
    more = {"inputs": [inputs[0], PAYMENTS]} if inputs else {}
    return signature_of(step(keys={key: "payments.order_id"}), stored=COMPUTED, **more)


def test_a_computed_key_is_signed_with_the_types_that_it_reads() -> None:
    signed = computed("lower(orders.id)")
    assert signed["version"] == 4
    (of_step,) = signed["steps"]
    assert of_step["keys"] == [["LOWER(orders.id)", "payments.order_id", "string"]]
    assert of_step["stored"] == {
        "left": {"LOWER(id)": "an expression of orders.id string"},
        "right": {"order_id": "string"},
    }
    assert computed('LOWER( orders."id" )') == signed


def test_a_changed_computed_key_is_a_changed_key() -> None:
    (refused,) = compare(signature_of(step()), computed("lower(orders.id)")).refused
    before, after = (f"{key} = payments.order_id (string)" for key in ("orders.id", "LOWER(orders.id)"))
    assert refused == f"the keys were {before}, they are now {after}"
    quoted = load(
        step(keys={'lower(orders."select")': "payments.order_id"}), inputs=[stream("orders", "select"), PAYMENTS]
    )
    assert [key.text for key in quoted.computed_keys] == ['LOWER(orders."select")']
    assert not compare(computed("lower(orders.id)"), computed("LOWER(orders.id)")).refused
    before, after = (stream("orders", f"id:{kind}", "currency", "amount:double") for kind in ("int32", "int64"))
    both = {"keys": {"orders.id % 7": "payments.order_id % 7"}}
    numbers = stream("payments", "order_id:int64", "method")
    old, new = (
        signature_of(step(**both), stored={"left": ["id % 7"], "right": []}, inputs=[orders, numbers])
        for orders in (before, after)
    )
    assert any("an expression of orders.id int32" in reason for reason in compare(old, new).refused)
