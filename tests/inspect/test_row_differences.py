"""What a difference between an expected and a found row says."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_runtime.inspect.row_differences import Difference


def line(expected: dict[str, Any], actual: dict[str, Any]) -> str:
    return Difference(3, "output", "different", expected, actual, "orders 0/7").line()


def test_json_that_an_older_release_wrote_as_text_is_named() -> None:
    text = line({"k": "a", "doc": {"x": [1]}, "n": 1}, {"k": "a", "doc": '{"x": [1]}', "n": 1})
    assert text.startswith("epoch 3, output, orders 0/7: different; expected ")
    assert text.endswith(
        "; doc found as text has the expected JSON: earlier releases wrote aggregates of json columns so"
    )


@pytest.mark.parametrize("actual", ['{"x": [2]}', "{", {"x": [2]}, None])
def test_other_values_are_no_older_spelling(actual: Any) -> None:
    assert "as text" not in line({"doc": {"x": [1]}}, {"doc": actual})
