"""How much the tests search: little in `make test`, much in `make soak` (JOINERY_BUDGET=large)."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import seed

LARGE = {"small": False, "large": True}[os.environ.get("JOINERY_BUDGET", "small")]

T = TypeVar("T")


def few_of(every: Sequence[T], few: Sequence[T]) -> Sequence[T]:
    """Return all in the large budget, `few` of them in the small one."""
    assert {*few} <= {*every}
    return every if LARGE else few


def rest_in_search(values: Iterable[T], fast: Container[T]) -> list[T | Any]:
    """Return the values as parameters of a test: those in `fast` are in the fast tests, the others in `make
    test-search`."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.search) for value in values]


def examples(large: int) -> int:
    """How many examples hypothesis tries: so many in the large budget, a tenth in the small one, at least 12. A dozen
    is what the mutants of test_broken_engines.py are found with. CI draws the same ones on every run, so that more of
    them would find no more there the second time."""
    return large if LARGE else min(large, max(12, large // 10))


def found_with(number: int) -> Callable[[Any], Any]:
    """Begins the search for something broken where it is found soon; the large budget begins elsewhere. When what is
    drawn changes, the search takes longer and finds it all the same: it tries as many examples."""
    return (lambda test: test) if LARGE else seed(number)
