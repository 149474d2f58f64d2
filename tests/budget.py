"""How much the tests search: little in `make test`, much in `make soak` (JOINERY_BUDGET=large)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import seed

LARGE = {"small": False, "large": True}[os.environ.get("JOINERY_BUDGET", "small")]


def examples(large: int, small: int | None = None) -> int:
    """How many examples hypothesis tries: `large` of them, or a tenth, or as many as `small` says."""
    if LARGE:
        return large
    return max(10, large // 10) if small is None else small


def found_with(number: int | None) -> Callable[[Any], Any]:
    """A search for something broken, begun where it is found soon; the large budget begins elsewhere. When what is drawn
    changes, the search takes longer and no more: it tries as many examples."""
    return (lambda test: test) if LARGE or number is None else seed(number)
