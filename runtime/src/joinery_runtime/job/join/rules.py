"""The cross-field rules of a StreamJoin. Each yields the places it finds wrong; what is missing silences it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joinery_runtime.job.join import select_rules, step_rules
from joinery_runtime.job.model import input_rules, output_rules
from joinery_runtime.job.model.draft import Finding, Loc, dig, read_draft
from joinery_runtime.job.sql import check_shape, translate
from joinery_runtime.job.sql.names import table_of

_RULES = (
    *(*input_rules.RULES, *step_rules.RULES),
    *(*select_rules.RULES, *output_rules.RULES),
)
_SQL: Loc = ("spec", "sql")
_FROM_SQL = ("joins", "select")


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """Every finding as (path, message), for a resource with its YAML field names."""
    sql = dig(data, *_SQL)
    return _broken(data) if not isinstance(sql, str) or not sql else list(_broken_sql(data, sql))


def _broken(data: Mapping[str, Any]) -> list[Finding]:
    draft = read_draft(data)
    return [finding for rule in _RULES for finding in rule(draft)]


def _broken_sql(data: Mapping[str, Any], sql: str) -> Iterator[Finding]:
    """The rules on what the SQL says, each finding at the SQL."""
    spec = data["spec"]
    for name in _FROM_SQL:
        if spec.get(name):
            yield _SQL, f"{name} and sql are both named; keep one"
    draft = read_draft(data)
    tables = [table for source in draft.inputs if (table := table_of(source)) is not None]
    known = draft.all_named and len(tables) == len(draft.inputs)
    translation = translate(sql, tuple(tables)) if known else None
    problems = translation.problems if translation is not None else check_shape(sql)
    yield from ((_SQL, problem) for problem in problems)
    rest = {name: value for name, value in spec.items() if name not in _FROM_SQL}
    if translation is not None and not problems:
        said: dict[str, list[Any]] = {"joins": list(translation.steps), "select": translation.select}
    else:
        said = {"select": [None]}  # one column that nobody knows: rules on outputs have nothing to say
    for at, message in _broken({**data, "spec": {**rest, **said}}):
        yield _SQL if at[1:2] and at[1] in _FROM_SQL else at, message
