from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.core.compile import WHERE_PATH, compile_join, stored_columns
from joinery_runtime.core.spec import END_OF_TIME, LEFT, RIGHT, JoinSpec
from joinery_runtime.errors import JobError
from joinery_runtime.job import StreamJoin


def columns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in pairs]


def compiled(select: list[dict[str, str]] | None = None, **step: Any) -> JoinSpec:
    inputs = [
        {"name": "o", "file": {"path": "o.jsonl"}, "format": "json", "eventTime": "ts",
         "schema": columns(("id", "int64"), ("amount", "double"), ("note", "string"), ("ts", "timestamp"))},
        {"name": "p", "file": {"path": "p.jsonl"}, "format": "json", "eventTime": "at",
         "schema": columns(("oid", "int32"), ("paid", "double"), ("at", "int64"))},
    ]  # fmt: skip
    join = {"right": "p", "keys": {"o.id": "p.oid"}, "interval": {"of": "o", "lower": "-1s", "upper": "5s"}, **step}
    spec: dict[str, Any] = {"inputs": inputs, "joins": [join], "output": {"file": {"path": "out.jsonl"}}}
    if select is not None:
        spec["select"] = select
    return compile_join(StreamJoin.model_validate({"metadata": {"name": "job"}, "spec": spec}))


def test_bounds_are_seen_from_each_side() -> None:
    left, right = compiled().sides
    assert (left.partner_lower_ms, left.partner_upper_ms) == (-1_000, 5_000)
    assert (right.partner_lower_ms, right.partner_upper_ms) == (-5_000, 1_000)
    assert (left.keys, right.keys) == (("id",), ("oid",))


def test_every_column_goes_out_with_its_side_as_prefix() -> None:
    assert compiled().output_schema() == pa.schema(
        [
            ("left_id", pa.int64()), ("left_amount", pa.float64()), ("left_note", pa.string()),
            ("left_ts", pa.timestamp("ms", "UTC")),
            ("right_oid", pa.int32()), ("right_paid", pa.float64()), ("right_at", pa.int64()),
        ]
    )  # fmt: skip


def test_only_keys_output_and_residual_columns_are_stored() -> None:
    select = [{"column": "o.note", "as": "text"}, {"column": "p.at"}]
    spec = compiled(select, where="o.amount > 10 AND p.paid < o.amount + 1")
    assert stored_columns(spec) == {"o": ("id", "amount", "note"), "p": ("oid", "paid")}
    assert spec.output_schema().names == ["text", "at"]
    # A one-sided predicate is decided before anything is stored.
    assert stored_columns(compiled(select, where="o.amount > 10")) == {"o": ("id", "note"), "p": ("oid",)}


def test_a_predicate_is_taken_apart_by_side() -> None:
    spec = compiled(
        where="o.amount > 10 AND (p.paid > 1 OR o.note = 'x') AND p.paid < 99 AND o.note LIKE 'a%' AND 1 = 1"
    )
    left, right = spec.sides
    assert left.predicate is not None
    assert right.predicate is not None
    assert spec.residual is not None
    assert left.predicate.text == "o.amount > 10 AND o.note LIKE 'a%'"
    assert right.predicate.text == "p.paid < 99"
    assert spec.residual.text == "(p.paid > 1 OR o.note = 'x') AND 1 = 1"
    assert compiled().residual is None


@pytest.mark.parametrize("where", ["o.nope = 1", "q.id = 1", "o.id", "o.id +", "o.note > 1"])
def test_a_bad_predicate_is_a_job_error_that_names_its_place(where: str) -> None:
    with pytest.raises(JobError) as caught:
        compiled(where=where)
    assert [problem.path for problem in caught.value.problems] == [WHERE_PATH]
    assert where in str(caught.value)


def test_deadlines_and_lateness() -> None:
    spec = compiled(allowedLateness="2s")
    assert spec.keep_from(LEFT, (None, 100_000)) == 100_000 - 5_000 - 2_000
    assert spec.keep_from(RIGHT, (100_000, None)) == 100_000 - 1_000 - 2_000
    assert spec.keep_from(LEFT, (100_000, None)) is None
    assert (spec.kept_for_ms(LEFT), spec.kept_for_ms(RIGHT)) == (7_000, 3_000)
    assert spec.accept_from((90_000, 100_000)) == 90_000 - 5_000 - 2_000
    assert spec.accept_from((None, 100_000)) is None
    assert compiled(lateData="reopen").accept_from((90_000, 100_000)) is None


def test_deadlines_stay_in_64_bits_at_the_end_of_time() -> None:
    spec = compiled(interval={"of": "o", "lower": "-9s", "upper": "-5s"})
    assert spec.keep_from(LEFT, (END_OF_TIME, END_OF_TIME)) == 2**63 - 1
    assert spec.kept_for_ms(LEFT) == 0
