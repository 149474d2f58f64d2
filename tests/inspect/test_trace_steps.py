"""Deletions, and rows of a history, in the steps of a trace: which are refused, and what the others decode to."""

from __future__ import annotations

import re
from typing import Any

import pytest

from joinery_runtime.connectors.inputs import json_decoder_for
from joinery_runtime.connectors.source import Range
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.trace_steps import StepLog, check_step
from joinery_runtime.job import Input


def side(name: str, **more: Any) -> Input:
    schema = [
        {"name": "currency", "type": "string"},
        {"name": "region", "type": "int32"},
        {"name": "ts", "type": "int64"},
    ]
    source = {"file": {"path": "rates.jsonl"}, "format": "json", "schema": schema, "eventTime": "ts"}
    return Input.model_validate({"name": name, **source, **more})


RATES = side("rates", table={"key": ["currency", "region"]})
SEVERAL = side("several", file=None, kafka={"bootstrapServers": "unused:9092", "topics": ["eu", "us"]})
INPUTS = [side("orders"), RATES, SEVERAL]
EUR = {"currency": "EUR", "region": 1, "ts": 5, "$delete": True}


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            {"input": "orders", "rows": [{"ts": 1}, {"currency": "EUR", "$delete": True}]},
            r"step 3: row 1 of 'orders' deletes, and the input is no table",
        ),
        ({"rows": {"rates": [{**EUR, "$delete": "true"}]}}, r"row 0 of 'rates' has \$delete: \"true\""),
        ({"input": "rates", "rows": [{**EUR, "$delete": 1}]}, r"row 0 of 'rates' has \$delete: 1"),
        ({"input": "rates", "rows": [{**EUR, "$delete": False}]}, r"row 0 of 'rates' has \$delete: false"),
        (
            {"input": "rates", "rows": [{"region": 1, "ts": 5, "$delete": True}]},
            r"row 0 of 'rates' deletes without currency",
        ),
        (
            {"input": "rates", "rows": [EUR, {"ts": 5, "$delete": True}]},
            r"row 1 of 'rates' deletes without currency, region",
        ),
    ],
)
def test_a_deletion_that_cannot_be_meant_is_refused(step: dict[str, Any], words: str) -> None:
    with pytest.raises(JoineryError, match=words):
        check_step(3, step, INPUTS)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"ts": 1, "$history": True}, r"row 0 of 'orders' has \$history, and the input has no history"),
        ({"ts": 1, "$history": "true"}, "one input's rows"),
    ],
)
def test_a_row_of_a_history_that_is_not_there_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(JoineryError) as raised:
        check_step(3, {"input": "orders", "rows": [row]}, INPUTS)
    assert re.search(words, str(raised.value))


def test_deletions_of_a_table_decode_with_their_own_event_time() -> None:
    rows = [{"currency": "EUR", "region": 1, "ts": 4}, {**EUR, "$partition": 0}, {"currency": "USD", "ts": -6}]
    check_step(1, {"rows": {"rates": rows, "orders": [{"ts": 1}]}}, INPUTS)
    log = StepLog(RATES)
    log.append(rows)
    (raw,) = log.read(Range(PartitionRef("rates", "rates", 0), 0, 3))
    decoded = json_decoder_for(RATES).decode_batch(raw)
    assert decoded.rows.to_pylist() == [
        {"currency": "EUR", "region": 1, "ts": 4},
        {"currency": "EUR", "region": 1, "ts": 5},
        {"currency": "USD", "region": None, "ts": -6},
    ]
    assert decoded.deleted is not None
    assert decoded.deleted.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [("several", r"row 0 of 'several' has \$topic: asia, .*it reads eu and us"), ("orders", r"it reads orders")],
)
def test_a_row_of_a_topic_that_the_input_does_not_read(name: str, words: str) -> None:
    with pytest.raises(JoineryError, match=words):
        check_step(1, {"input": name, "rows": [{"ts": 1, "$topic": "asia"}]}, INPUTS)


def test_a_partition_that_is_idle_has_a_number() -> None:
    check_step(1, {"idle": ["several/eu/0", "several/1", "several"]}, INPUTS)
    with pytest.raises(JoineryError, match="is not a step"):
        check_step(1, {"idle": ["several/eu"]}, INPUTS)
