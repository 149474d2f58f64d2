"""The rules of a table input; that only an as-of step may have one is a rule of the step."""

from __future__ import annotations

import pytest

from job.resources import edited, problems

TYPES = "{name: ts, type: int64}\n      eventTime: ts\n"


def problems_of_table(table: str) -> list[tuple[str, str]]:
    """(path, message) of what is wrong with `table` of the second input, line 29 of the resource."""
    reported = problems(edited((TYPES, f"{TYPES}      table: {table}\n")))
    mine = [problem for problem in reported if problem.path.startswith("spec.inputs[1].table.")]
    assert all(problem.line == 29 for problem in mine), reported
    return [(problem.path.removeprefix("spec.inputs[1].table."), problem.message) for problem in mine]


@pytest.mark.parametrize(
    "table",
    [
        "{key: [order_id]}",
        "{key: [order_id, country], keyFormat: json}",
        "{key: [order_id], keyFormat: string}",
        "{key: [country], keyFormat: string}",
    ],
)
def test_keys_that_are_fine(table: str) -> None:
    assert problems_of_table(table) == []


@pytest.mark.parametrize(
    ("table", "path", "words"),
    [
        ("{keyFormat: json}", "key", "is missing"),
        ("{key: []}", "key", "write at least one entry"),
        ("{key: order_id}", "key", "must be a list"),
        ("{key: [order]}", "key[0]", "'payments' has no column 'order' (did you mean 'order_id'?)"),
        ("{key: [order_id, country, order_id]}", "key[2]", "the key names column 'order_id' twice; drop one"),
        ("{key: [order_id, ts]}", "key[1]", "'ts' is the event time"),
        ("{key: [order_id], keyFormat: avro}", "keyFormat", "write json or string"),
        ("{key: [order_id, country], keyFormat: string}", "keyFormat", "hold one column, the key has 2; write json"),
        ("{key: [ts], keyFormat: string}", "key[0]", "'ts' is the event time"),
        ("{key: [order_id], format: string}", "format", "did you mean 'keyFormat'?"),
    ],
)
def test_keys_that_are_refused(table: str, path: str, words: str) -> None:
    ((at, message),) = problems_of_table(table)
    assert at == path
    assert words in message


def test_a_string_key_of_a_type_that_text_does_not_hold_exactly() -> None:
    edits = (
        ("{name: country, type: int64}", "{name: country, type: double}"),
        (
            TYPES,
            f"{TYPES}      table: {{key: [country], keyFormat: string}}\n",
        ),
    )
    (problem,) = [
        candidate for candidate in problems(edited(*edits)) if candidate.path == "spec.inputs[1].table.keyFormat"
    ]
    assert problem.message == ("column 'country' is double; a string key holds string, int32 and int64; write json")
