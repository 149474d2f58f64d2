"""The cross-field rules of a StreamJoin: each yields the places it finds wrong; what is missing silences it.

With `spec.sql`, the rules judge what the SQL stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from joinery_runtime.job.join import select_rules, step_rules
from joinery_runtime.job.join.aggregate_rules import broken_aggregate_rules, broken_ranking_rules
from joinery_runtime.job.kinds.ranking import RANKING_KINDS, Deduplication, TopN, ranking_beside_sql
from joinery_runtime.job.model import input_rules, output_rules, union_rules
from joinery_runtime.job.model.draft import Finding, InputDraft, JobDraft, Loc, dig, items, read_draft
from joinery_runtime.job.model.function_calls import declared_names
from joinery_runtime.job.sql import (
    SqlInput,
    SqlRanking,
    Translation,
    check_shape,
    fitting_stars,
    table_of,
    translate,
    unions_of,
)

_RULES = (*input_rules.RULES, *union_rules.RULES, *step_rules.RULES, *output_rules.RULES)
_SQL: Loc = ("spec", "sql")
_FROM_SQL = ("joins", "select", "aggregate")


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """List the rules that a resource with these YAML field names breaks, each with its place."""
    sql = dig(data, *_SQL)
    return _broken_fields(data) if not isinstance(sql, str) or not sql else list(_broken_sql(data, sql))


def _broken_fields(data: Mapping[str, Any]) -> list[Finding]:
    draft = read_draft(data)
    of_rows = [finding for rule in _RULES for finding in rule(draft)]
    if dig(data, "spec", "aggregate") is not None:
        return [*of_rows, *broken_ranking_rules(draft), *broken_aggregate_rules(draft)]
    selected = [finding for rule in select_rules.RULES for finding in rule(draft)]
    return [*of_rows, *broken_ranking_rules(draft), *selected]


def _broken_sql(data: Mapping[str, Any], sql: str) -> Iterator[Finding]:
    """Apply the rules to what the SQL stands for; each finding is at the SQL."""
    spec = data["spec"]
    for name in _FROM_SQL:
        if spec.get(name):
            yield _SQL, f"{name} and sql are both named; keep one"
    sources = read_draft(data).sources
    data, labels, repeated_branches = _with_unions(data, sources, sql)
    spec, draft = data["spec"], read_draft(data)
    tables = [table for source in draft.inputs if (table := table_of(source)) is not None]
    tables_known = 0 < len(tables) == len(draft.by_name) == len(draft.inputs)
    beside = ranking_beside_sql(spec.get(Deduplication.field), spec.get(TopN.field))
    translation = _fitting_translation(data, sql, tuple(tables), beside) if tables_known else None
    problems = translation.problems if translation is not None else check_shape(sql)
    problems = (*problems, *(_reject_repeated_unions(draft, translation) if translation is not None else ()))
    yield from ((_SQL, problem) for problem in problems)
    rest = {name: value for name, value in spec.items() if name not in _FROM_SQL}
    ranking = translation.ranking if translation is not None else None
    if translation is not None and not problems:
        translated_fields = _translated_fields(translation, draft)
        if ranking is not None:
            yield from _ranking_problems(spec.get(ranking.field), ranking)
    else:
        for kind in RANKING_KINDS:
            rest.pop(kind.field, None)  # what it lacks may be what the SQL says wrongly
        translated_fields = {"select": [None]}  # an unknown column, which silences the rules on outputs
    # A wrong aggregate is none of the fields, but its job needs one input only.
    grouped = problems and translation is not None and translation.aggregate is not None
    findings = _broken_fields({**data, "spec": {**rest, **translated_fields}})
    repeats = {**repeated_branches, **(translation.repeats if translation is not None else {})}
    for at, message in _place_findings(findings, labels, [source.name for source in sources], repeats):
        if ranking is not None and at[1:2] == (ranking.field,) and at[2:3] and at[2] in ranking.entries:
            yield _SQL, message
            continue
        if ranking is not None and at == ("spec", TopN.field, "window") and not dig(spec, TopN.field, "window"):
            todo = "into PARTITION BY write TUMBLE(<event time>, INTERVAL '1' HOUR)"
            yield at, f"{message}, or {todo}"
            continue
        if grouped and at == ("spec", "inputs") and len(draft.inputs) == 1:
            continue
        yield _SQL if at[1:2] and at[1] in _FROM_SQL else at, message


def _translated_fields(translation: Translation, draft: JobDraft) -> dict[str, Any]:
    """Return the fields of `spec` that the SQL stands for."""
    repeated = [{**draft.by_name[name].data, "name": alias} for alias, name in translation.repeats.items()]
    fields: dict[str, Any] = {
        "inputs": [*(source.data for source in draft.sources), *repeated],
        "joins": list(translation.steps),
        "select": translation.select,
    }
    if translation.aggregate is not None:
        fields["aggregate"] = translation.aggregate
    if (ranking := translation.ranking) is not None:
        written = dig(draft.data, "spec", ranking.field)
        fields[ranking.field] = {**(written if isinstance(written, Mapping) else {}), **ranking.entries}
    return fields


def _with_unions(
    data: Mapping[str, Any], sources: Sequence[InputDraft], sql: str
) -> tuple[Mapping[str, Any], Mapping[Loc, str], Mapping[str, str]]:
    """Return the resource with the unions of the SQL behind those of `unions`, words for the places in `spec` that only
    the SQL has, and by alias the inputs that branches read again, which are the last inputs of the resource."""
    columns = [(source.name, tuple(source.types)) for source in sources if source.name and source.types is not None]
    written, sql_unions = items(data, "spec", "unions"), unions_of(sql, tuple(columns))
    if not sql_unions:
        return data, {}, {}
    labels: dict[Loc, str] = {}
    for number, union in enumerate(sql_unions, len(written)):
        labels["unions", number] = union.place_text
        labels |= {("unions", number, "branches", branch): text for branch, text in enumerate(union.branch_texts)}
    read_again = {alias: name for union in sql_unions for alias, name in union.repeats.items()}
    by_name = {source.name: source.data for source in sources}
    repeats = {alias: name for alias, name in read_again.items() if name in by_name}
    repeated = [{**by_name[name], "name": alias} for alias, name in repeats.items()]
    # An input that is not declared is reported by the name that the text has for it.
    unknown = {alias: name for alias, name in read_again.items() if name not in by_name}
    entries = [
        {
            **union.entry,
            "branches": [
                {**branch, "input": unknown.get(branch["input"], branch["input"])} for branch in union.entry["branches"]
            ],
        }
        for union in sql_unions
    ]
    spec = {
        **data["spec"],
        "inputs": [*items(data, "spec", "inputs"), *repeated],
        "unions": [*written, *entries],
    }
    return {**data, "spec": spec}, labels, repeats


def _fitting_translation(
    data: Mapping[str, Any], sql: str, tables: tuple[SqlInput, ...], beside: str | None
) -> Translation:
    """Return what the SQL stands for, with columns of stars named as `fitting_stars` says."""
    written_outputs = [output for _, output in output_rules.outputs(data)]
    mentioned = {name for name in output_rules.row_columns(data) if isinstance(name, str)}
    mentioned |= words_of(text for output in written_outputs if isinstance(text := output.get("when"), str))
    in_postgres = any("postgres" in output for output in written_outputs)
    translations = partial(translate, sql, tables, declared_names(), beside)
    return translations(fitting_stars(sql, translations, mentioned, in_postgres=in_postgres))


def _place_findings(
    findings: Iterable[Finding],
    labels: Mapping[Loc, str],
    declared: Sequence[str | None],
    repeats: Mapping[str, str],
) -> Iterator[Finding]:
    """Yield the findings. Those below the places of `labels` are at the SQL, with the words for the place in it. So are
    those of an input that the SQL reads again, behind the `declared` inputs, which are omitted if they are also those
    of the input itself."""
    labelled: list[Finding] = []
    for at, message in findings:
        label = next((label for end in range(len(at), 2, -1) if (label := labels.get(at[1:end]))), None)
        labelled.append((at, message) if label is None else (_SQL, f"{label}: {message}"))
    paths = {at for at, _ in labelled}
    for at, message in labelled:
        match at:
            case ("spec", "inputs", int(number), *rest) if number >= len(declared):
                alias, name = list(repeats.items())[number - len(declared)]
                if ("spec", "inputs", declared.index(name), *rest) not in paths:
                    yield _SQL, f"{alias!r} reads {name!r} again: {message}"
            case _:
                yield at, message


def _reject_repeated_unions(draft: JobDraft, translation: Translation) -> Iterator[str]:
    for name in dict.fromkeys(translation.repeats.values()):
        if draft.by_name[name].at[1] == "unions":
            facts = f"{name!r} is a union, which a job reads once (rule U3)"
            yield f"{facts}; declare inputs that read the same, and write a UNION ALL of these"


def words_of(conditions: Iterable[str]) -> set[str]:
    """Return the words of SQL conditions: among them the names of their columns."""
    return {word for text in conditions for word in re.findall(r"\w+", text)}


def _ranking_problems(written: Any, ranking: SqlRanking) -> Iterator[Finding]:
    """Yield what is wrong with the field beside `sql` that says the rest of what ROW_NUMBER stands for."""
    at: Loc = ("spec", ranking.field)
    if written is None and ranking.field == Deduplication.field:
        facts = "is missing: ROW_NUMBER does not say for how long repeats of a row are known (rule D1)"
        todo = "or for a row of each window TUMBLE(<event time>, INTERVAL '1' HOUR) into PARTITION BY"
        yield at, f"{facts}; write deduplicate: {{within: 1h}} beside sql, {todo}"
    for name in ranking.entries:
        if dig(written, name) is not None:
            yield (*at, name), f"{name} and ROW_NUMBER both say it; drop {name}"
