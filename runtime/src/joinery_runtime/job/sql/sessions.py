"""Translates an SQL text, with the input of its job, to the fields of a SessionWindow."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlglot import exp

from joinery_runtime.job.model.expression_tree import TOO_DEEP
from joinery_runtime.job.sql.names import Names, SqlInput
from joinery_runtime.job.sql.parse import SESSIONS, parse_select
from joinery_runtime.job.sql.report import Report, place_of, problems_of
from joinery_runtime.job.sql.session_groups import read_groups
from joinery_runtime.job.sql.session_parts import SessionParts, session_parts
from joinery_runtime.job.sql.session_select import read_items


@dataclass(frozen=True, slots=True)
class SessionTranslation:
    """A translation. `fields` are groupBy, gap, compute, where, aggregates and select as in YAML. With `problems` they
    must not be used."""

    fields: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def check_session_shape(sql: str) -> tuple[str, ...]:
    """What is wrong with the text, whatever the input is."""
    return problems_of(sql, _read)


@lru_cache(maxsize=64)
def translate_sessions(sql: str, table: SqlInput) -> SessionTranslation:
    """Translates the text; `table` is the job's input."""
    try:
        return _translate(sql, table)
    except RecursionError:
        return SessionTranslation(problems=(TOO_DEEP,))


def _read(sql: str, report: Report) -> SessionParts | None:
    parsed = parse_select(sql, report, SESSIONS)
    return session_parts(parsed, report) if parsed is not None else None


def _translate(sql: str, table: SqlInput) -> SessionTranslation:
    report = Report(sql)
    parts = _read(sql, report)
    if parts is None:
        return SessionTranslation(problems=report.problems)
    names = Names((parts.source,), (table,), report)
    _refuse_unknown_functions(parts, report)
    groups = read_groups(parts, table, names, report)
    chosen = read_items(parts.items, groups, names, report)
    where = _where(parts, names, report)
    named = list(groups.by_text.values())
    computed = {group.name: group.text for group in named if group.name != group.column} | chosen.computed
    fields = {
        "groupBy": [group.name for group in named],
        "gap": groups.gap,
        "compute": [{"expression": text, "as": name} for name, text in computed.items()],
        **({"where": where} if where is not None else {}),
        "aggregates": chosen.aggregates,
        "select": chosen.select,
    }
    return SessionTranslation(fields, report.problems)


def _where(parts: SessionParts, names: Names, report: Report) -> str | None:
    if parts.where is None:
        return None
    condition = parts.where.copy()
    if condition.find(exp.AggFunc, exp.Window) is not None:
        report.add(place_of(condition), "WHERE is about rows before they are aggregated; filter the job's output")
        return None
    return condition.sql(comments=False) if names.qualify(condition) else None


def _refuse_unknown_functions(parts: SessionParts, report: Report) -> None:
    """Reports unknown functions inside expressions. The core checks the other functions."""
    roots = [*(item.unalias().unnest() for item in parts.items), *parts.groups]
    inside = [node for root in roots for node in root.find_all(exp.Anonymous) if node is not root]
    if parts.where is not None:
        inside += parts.where.find_all(exp.Anonymous)
    for node in inside:
        report.add(place_of(node), f"{node.name} is not a function that is known here; see docs/expressions.md")
