"""Pieces of messages."""

from __future__ import annotations

import pytest

from joinery_runtime.job.model.wording import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 dead letters were"), (1, "1 dead letter was"), (1_234, "1,234 dead letters were")]
)
def test_one_of_a_thing_and_several(count: int, text: str) -> None:
    assert counted(count, "dead letter", "were") == text
    assert counted(count, "dead letter") == text.rpartition(" ")[0]
