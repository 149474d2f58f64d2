"""Cross-field rules of `spec.aggregates` of a SessionWindow: columns, types and options (rule S7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from joinery_runtime.job.kinds.session.sessions import EXACT_LIMIT, takes, takes_text
from joinery_runtime.job.model.parts import Finding, Loc, Parts, dig, items
from joinery_runtime.job.model.types import ColumnType
from joinery_runtime.job.model.wording import listed, suggestion


def computed_names(parts: Parts) -> list[str]:
    names = (dig(each, "as") for each in items(parts.data, "spec", "compute"))
    return [name for name in names if isinstance(name, str)]


def unknown(at: Loc, name: Any, parts: Parts) -> Iterator[Finding]:
    """A finding unless the input or `compute` has a column of this name; none while not all columns are known."""
    types = parts.inputs[0].types if parts.inputs else None
    if types is None or not isinstance(name, str) or not name:
        return
    known = [*types, *computed_names(parts)]
    if name not in known:
        hint = suggestion(name, known)
        yield at, f"{parts.inputs[0].name!r} has no column {name!r}{hint}; columns are {listed(known)}"


def _columns(parts: Parts) -> Iterator[Finding]:
    for i, each in enumerate(items(parts.data, "spec", "aggregates")):
        at: Loc = ("spec", "aggregates", i)
        function, column = dig(each, "function"), dig(each, "column")
        if function == "count" and column is not None:
            todo = f"drop `column`, or write function: count_col to count the rows where {column!r} is not null"
            yield (*at, "column"), f"count counts rows and takes no column; {todo}"
        elif isinstance(function, str) and function != "count" and column is None:
            yield (*at, "column"), f"is missing: {function} is of a column; name one"
        else:
            yield from unknown((*at, "column"), column, parts)
            yield from _type((*at, "column"), function, column, parts)


def _type(at: Loc, function: Any, column: Any, parts: Parts) -> Iterator[Finding]:
    """Types of computed columns the core knows."""
    types = (parts.inputs[0].types if parts.inputs else None) or {}
    kind: ColumnType | None = types.get(column) if isinstance(column, str) else None
    if kind is not None and isinstance(function, str) and not takes(function, kind.name):
        yield at, f"{function} takes {takes_text(function)}, and column {column!r} is {kind}; choose another function"


def _options(parts: Parts) -> Iterator[Finding]:
    for i, each in enumerate(items(parts.data, "spec", "aggregates")):
        at: Loc = ("spec", "aggregates", i)
        function = dig(each, "function")
        for name in ("method", "limit"):
            if dig(each, name) is not None and isinstance(function, str) and function != "count_distinct":
                yield (*at, name), f"is for count_distinct, and this is {function}; drop it"
        if function == "count_distinct" and dig(each, "method") == "hll" and dig(each, "limit") is not None:
            yield (*at, "limit"), "is for method: exact, a sketch takes any number of values; drop it"


def _one_limit(parts: Parts) -> Iterator[Finding]:
    """Exact counts of one column are one set of values in the state."""
    limits: dict[str, Any] = {}
    for i, each in enumerate(items(parts.data, "spec", "aggregates")):
        column, limit = dig(each, "column"), dig(each, "limit") or EXACT_LIMIT
        exact = dig(each, "function") == "count_distinct" and dig(each, "method") != "hll"
        if exact and isinstance(column, str) and limits.setdefault(column, limit) != limit:
            facts = f"column {column!r} is counted with limit {limits[column]} above"
            yield ("spec", "aggregates", i, "limit"), f"{facts}, and its values are kept once; write the same limit"


RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (_columns, _options, _one_limit)
