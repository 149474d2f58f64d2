"""Translates an SQL text, with the inputs of its job, to `spec.joins` and `spec.select`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import TOO_DEEP
from joinery_runtime.job.model.references import side_prefixes
from joinery_runtime.job.model.wording import listed
from joinery_runtime.job.sql.chain import Link, chain_of, place_conditions
from joinery_runtime.job.sql.conditions import read_predicates
from joinery_runtime.job.sql.names import Names, SqlInput
from joinery_runtime.job.sql.options import Options, read_options
from joinery_runtime.job.sql.parse import parse_select
from joinery_runtime.job.sql.report import Report, problems_of
from joinery_runtime.job.sql.selection import selection
from joinery_runtime.job.sql.shape import Shape, shape_of
from joinery_runtime.job.sql.steps import steps_of


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation. `steps` are the entries of `spec.joins`, `select` is `spec.select`, both as in YAML; `filters` are
    `where` of inputs, by name. With `problems` they must not be used."""

    steps: tuple[dict[str, Any], ...]
    select: list[dict[str, str]]
    problems: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)


def check_shape(sql: str) -> tuple[str, ...]:
    """What is wrong with the text, whatever the inputs are."""
    return problems_of(sql, _read)


@lru_cache(maxsize=64)
def translate(sql: str, tables: tuple[SqlInput, ...]) -> Translation:
    """Translates the text; `tables` are all inputs of the job, in its order."""
    try:
        return _translate(sql, tables)
    except RecursionError:
        return Translation((), [], (TOO_DEEP,))


def _translate(sql: str, tables: Sequence[SqlInput]) -> Translation:
    report = Report(sql)
    read = _read(sql, report)
    if read is None:
        return Translation((), [], report.problems)
    shape, options = read
    names = Names(shape.sources, tables, report)
    inputs = [table.name for table in tables]
    prefixes = dict(zip(inputs, side_prefixes(inputs), strict=True))
    select = selection(shape.items, names, prefixes, report, windowed=shape.window is not None)
    links, filters = _links(shape, names, tables, report)
    steps = steps_of(links, shape, options, names, report)
    return Translation(steps, select, report.problems, filters)


def _read(sql: str, report: Report) -> tuple[Shape, Options] | None:
    parsed = parse_select(sql, report)
    if parsed is None:
        return None
    shape = shape_of(parsed, report)
    return shape, read_options(parsed.options, shape.kind, report)


def _links(
    shape: Shape, names: Names, tables: Sequence[SqlInput], report: Report
) -> tuple[list[Link], Mapping[str, str]]:
    """The links with their conditions, and the conditions of inputs; none if an input is unknown, and then only names
    are checked."""
    on, where = [read_predicates(joined.on, names) for joined in shape.joined], read_predicates(shape.where, names)
    if shape.first is None or not names.complete:
        return [], {}
    used = {named.table.name for named in names.named.values()}
    unused = [table.name for table in tables if table.name not in used]
    if unused:
        facts = f"of the job's inputs, {listed(unused)} are not joined"
        report.add(shape.sources[0].at, f"{facts}; JOIN them, or take them out of spec.inputs")
    links = chain_of(shape.joined, names, tables[0].name, report)
    filters = place_conditions(links, on, where, report, filters_inputs=shape.kind != "session")
    return links, {name: exp.and_(*parts, copy=False).sql(comments=False) for name, parts in filters.items()}
