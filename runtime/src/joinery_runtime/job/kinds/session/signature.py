"""The fingerprint of what a job aggregates, and whether a changed job may use its state (rule M2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.kinds.aggregate.model import WINDOW_KINDS, Aggregation
from joinery_runtime.job.kinds.aggregate.windows import signed_window_text
from joinery_runtime.job.kinds.session.sessions import arguments_text
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.wording import listed

Origin = str | dict[str, Any]
# A stored column that is not a group: its function, and `Aggregate.arguments`, empty for a count of rows.
_ACCUMULATOR = re.compile(r"\$(?P<function>\w+)\((?P<arguments>.*)\)[^()]*", re.DOTALL)


def aggregate_fields(
    aggregation: Aggregation, types: Mapping[str, ColumnType | str], stored: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of a signature for what is aggregated. `types` are the columns that groups and aggregates may
    name, `stored` those of the part of the state: groups, then accumulators such as `$sum(amount)`."""
    origins = _origins_of_parts(aggregation, types)
    return {
        "groups": [[name, origin(aggregation, types, name)] for name in aggregation.group_by],
        **aggregation.form.durations(),
        "allowedLateness": aggregation.allowed_lateness,
        "lateData": aggregation.late_data,
        **({"emitEvery": aggregation.emit_every} if aggregation.emit is not None else {}),
        "stored": {
            name: origins.get(match["arguments"]) or origin(aggregation, types, match["arguments"])
            for name in stored
            if (match := _ACCUMULATOR.fullmatch(name)) is not None
        },
    }


def origin(aggregation: Aggregation, types: Mapping[str, ColumnType | str], column: str) -> Origin:
    """Return what a column of the state holds: its declared type (empty for no column), or its expression with the
    types of the columns that the expression reads."""
    if column in types or not column:
        return str(types.get(column, ""))
    text = next(computed.expression for computed in aggregation.compute if computed.as_ == column)
    return {"expression": text, "reads": _read_types(text, types)}


def column_origins(aggregation: Aggregation, types: Mapping[str, ColumnType]) -> dict[str, str]:
    """Return what each column of an aggregate's rows holds, in words, by the name that the next aggregate writes."""
    origins = dict.fromkeys(aggregation.form.columns, "int64")
    for name, column in aggregation.columns_by_name.items():
        if column in aggregation.group_by:
            origins[name] = _origin_text(origin(aggregation, types, column))
    for aggregate in aggregation.aggregates:
        sources = [_origin_text(origin(aggregation, types, column)) for column in aggregate.columns]
        origins[aggregate.as_] = f"{aggregate.function}({aggregate.arguments(types)})" + (
            f" of {listed(sources)}" if sources else ""
        )
    return origins


def _origins_of_parts(aggregation: Aggregation, types: Mapping[str, ColumnType | str]) -> dict[str, Origin]:
    """Return what aggregates of two columns, or with a condition, are computed of: all parts together, by the arguments
    in the names of their columns."""
    expressions = {computed.as_: computed.expression for computed in aggregation.compute}
    origins: dict[str, Origin] = {}
    for aggregate in aggregation.aggregates:
        if len(aggregate.columns) < 2 and aggregate.where is None:
            continue
        parts = [expressions.get(name, _reference_text(name, types)) for name in aggregate.columns]
        text = f"({', '.join([*parts, *([aggregate.where] if aggregate.where is not None else [])])})"
        # The state names the columns of an only input without the input.
        plain = [bare if (bare := name.partition(".")[2]) in types else name for name in aggregate.columns]
        for columns in (aggregate.columns, plain):
            key = arguments_text(columns, aggregate.condition(types))
            origins.setdefault(key, {"expression": text, "reads": _read_types(text, types)})
    return origins


def _reference_text(name: str, types: Mapping[str, ColumnType | str]) -> str:
    """Return a column as an expression names it."""
    relation, _, column = name.partition(".")
    if column in types or not column:
        return exp.column(column or relation, quoted=True).sql()
    return exp.column(column, table=relation, quoted=True).sql()


def _read_types(expression: str, types: Mapping[str, ColumnType | str]) -> dict[str, str]:
    columns = _parse_expression(expression, types).find_all(exp.Column)
    names = {name for column in columns for name in (column.name, _qualified_name(column))}
    read = {name: str(types[name]) for name in sorted(names & types.keys())}
    return read | dict(called_functions(expression, types))


def called_functions(expression: str, types: Mapping[str, ColumnType | str]) -> list[tuple[str, str]]:
    """Return the functions of the job's own that an expression calls, as `SCORE()`, with what they return; `types` has
    them by these names."""
    calls = {f"{node.name.upper()}()" for node in _parse_expression(expression, types).find_all(exp.Anonymous)}
    return [(name, str(types[name])) for name in sorted(calls & types.keys())]


def _qualified_name(column: exp.Column) -> str:
    return f"{column.table}.{column.name}"


def _parse_expression(expression: str, columns: Collection[str]) -> exp.Expr:
    """Return the parsed expression. `columns` are those that it may read; where these have no input's name before them,
    the name of the only input is left out."""
    try:
        tree = parse_tree(expression)
    except SqlglotError:
        return exp.Var(this=expression)  # the core rejects it, and says why
    for column in tree.find_all(exp.Column):
        if _qualified_name(column) not in columns:
            column.set("table", None)
    return tree


# --- comparison ---------------------------------------------------------------------------------------------------

Signed = Mapping[str, Any]


def aggregate_incompatibilities(old: Signed, new: Signed) -> Iterator[str]:
    """Yield why the state cannot be used although the inputs are the same."""
    was, now = old["groups"], new["groups"]
    names = [[name for name, _ in groups] for groups in (was, now)]
    if names[0] != names[1] or not all(_is_same_origin(a[1], b[1]) for a, b in zip(was, now, strict=True)):
        groups_text = [listed(f"{name} ({_origin_text(source)})" for name, source in groups) for groups in (was, now)]
        yield f"groupBy was {groups_text[0]}, it is now {groups_text[1]}"
    for kind in WINDOW_KINDS:
        for field, words in kind.fixed.items() if kind.field == new.get("window") else ():
            if old.get(field, 0) != new.get(field, 0):
                texts = [signed_window_text(field, signed.get(field, 0)) for signed in (old, new)]
                yield f"{words} was {texts[0]}, it is now {texts[1]}"
    for name, source in new["stored"].items():
        before = old["stored"].get(name)
        text = name.removeprefix("$")
        if before is None:
            stored = "sessions" if "gap" in new else "windows"
            yield f"{text} is not in the stored {stored}, and the job now needs it"
        elif not _is_same_origin(before, source):
            yield f"{text} is stored over {_origin_text(before)}, the job now makes it of {_origin_text(source)}"


def _is_same_origin(was: Origin, now: Origin) -> bool:
    """Say whether two origins are the same. Differences in how an expression is written do not count."""
    if isinstance(was, str) or isinstance(now, str):
        return was == now
    trees = [_parse_expression(side["expression"], side["reads"]) for side in (was, now)]
    return bool(was["reads"] == now["reads"] and trees[0] == trees[1])


def _origin_text(origin: Origin) -> str:
    if isinstance(origin, str):
        return origin
    reads = [f"{name} {kind}" for name, kind in origin["reads"].items()]
    return f"{origin['expression']} of {listed(reads)}" if reads else str(origin["expression"])


def aggregate_warnings(old: Signed, new: Signed) -> Iterator[str]:
    for field, words in (("gap", "gap"), ("maxDuration", "maxDuration")):
        if old.get(field) != new.get(field):
            yield f"{words} went from {_times(old, new, field)}: sessions that were formed before stay as they are"
    if new["allowedLateness"] > old["allowedLateness"]:
        rest = "sessions that were evicted before stay gone, so rows that belong to them open new ones"
        if "gap" not in new:
            rest = "windows that were emitted before stay as they are, and rows of these alone are late"
        yield f"allowedLateness went from {_times(old, new, 'allowedLateness')}: {rest}"
    if old["lateData"] == "reopen" != new["lateData"]:
        went = f"lateData went from reopen to {new['lateData']}"
        rest = "what was emitted is emitted again only with a row that is not late"
        if "gap" not in new:
            rest = "windows that were emitted and are kept are emitted once more, as final"
        yield f"{went}: {rest}"
    if "emitEvery" in old and "emitEvery" not in new:
        rest = "their final rows replace them, but a session id that only they had is not taken back"
        yield f"early results are emitted no more: those that were emitted stay until {rest}"


def _times(old: Signed, new: Signed, field: str) -> str:
    return f"{format_duration(old[field])} to {format_duration(new[field])}"
