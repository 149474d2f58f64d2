"""The engine against the oracle where each partition of a random history is a topic, or a branch of a union, of its
own: the same rows, watermarks and order as with partitions of one topic (U1 to U4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from budget import examples, rest_in_search
from core.cases import HISTORIES, Case, cases
from core.harness import check_against_oracle

KINDS = ("interval", "windows", "asof")


@pytest.mark.parametrize("kind", rest_in_search(KINDS, ("interval",)))
def test_topics_are_to_an_input_what_partitions_are(kind: str) -> None:
    @settings(HISTORIES, max_examples=examples(25))
    @given(case=cases(kind))
    def every(case: Case) -> None:
        check_against_oracle(case, topics=True)

    every()


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_branches_are_to_a_union_what_partitions_are_to_an_input(kind: str) -> None:
    @settings(HISTORIES, max_examples=examples(25))
    @given(case=cases(kind))
    def every(case: Case) -> None:
        check_against_oracle(case, unions=True)

    every()
