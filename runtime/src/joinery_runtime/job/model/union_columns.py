"""The columns of a union's branches (rule U3), as far as the text of a job tells their names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.expression_tree import parse_tree

Types = Mapping[str, ColumnType | None]
"""The columns of an input by name; None for a type that is not known."""


class BranchField(NamedTuple):
    """A column of a branch: its name in the union, the expression over the input's columns, and the type as far as the
    text tells it."""

    name: str
    expression: str
    type: ColumnType | None


def branch_fields(branch: Mapping[str, Any], types: Types) -> list[BranchField] | None:
    """Return the columns of a branch, as it is written in YAML; None while a mistake hides one. `types` are those of
    the branch's input."""
    written = branch.get("select")
    if written is None:
        return [BranchField(name, quoted(name), kind) for name, kind in types.items()]
    fields = []
    for item in written if isinstance(written, list | tuple) else ():
        column, expression, name = (
            item.get(key) if isinstance(item, Mapping) else None for key in ("column", "expression", "as")
        )
        if isinstance(column, str) and column in types and expression is None:
            fields.append(BranchField(name if isinstance(name, str) else column, quoted(column), types[column]))
        elif column is None and isinstance(expression, str) and isinstance(name, str):
            fields.append(BranchField(name, expression, _type_of(expression, tuple(types.items()))))
        else:
            return None
    return fields


def event_time_names(fields: Sequence[BranchField], event_time: object) -> list[str]:
    """Return the names under which a branch has the event time of its input; none: it is not among the columns."""
    written = quoted(event_time) if isinstance(event_time, str) else None
    return [field.name for field in fields if field.expression == written]


def event_time_name(branches: Sequence[tuple[Sequence[BranchField], object]]) -> str | None:
    """Return the name of a union's event time: the first one that is that of each branch, or else one of the first
    branch; None: it has none. A branch is its columns and the event time of its input."""
    by_branch = [event_time_names(fields, event_time) for fields, event_time in branches]
    return next((name for name in by_branch[0] if all(name in names for names in by_branch)), (*by_branch[0], None)[0])


def union_types(branches: Sequence[Sequence[BranchField]]) -> dict[str, ColumnType | None]:
    """Return the columns of a union in the order of its first branch, each with the first type that a branch tells."""
    typed = [{field.name: field.type for field in fields if field.type is not None} for fields in branches]
    names = [field.name for field in branches[0]] if branches else []
    return {name: next((kinds[name] for kinds in typed if name in kinds), None) for name in names}


def quoted(name: str) -> str:
    """Return a column as an SQL expression."""
    return '"' + name.replace('"', '""') + '"'


# --- types that a text tells ----------------------------------------------------------------------------------------

_CASTS = {
    exp.DataType.Type.INT: "int32",
    exp.DataType.Type.BIGINT: "int64",
    exp.DataType.Type.FLOAT: "float",
    exp.DataType.Type.DOUBLE: "double",
    exp.DataType.Type.BOOLEAN: "boolean",
    exp.DataType.Type.DATE: "date",
    **dict.fromkeys((exp.DataType.Type.VARCHAR, exp.DataType.Type.TEXT), "string"),
    **dict.fromkeys(
        (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPNTZ), "timestamp"
    ),
}


@lru_cache(maxsize=1024)
def _type_of(text: str, types: tuple[tuple[str, ColumnType | None], ...]) -> ColumnType | None:
    """Return the type of a column, a literal or a CAST; None of any other expression, and of one that is wrong. The
    core compares it with the type of the values."""
    try:
        node = parse_tree(text).unnest()
    except SqlglotError:
        return None
    match node:
        case exp.Column():
            return dict(types).get(node.name)
        case exp.Literal(is_string=True):
            return ColumnType("string")
        case exp.Literal() if node.name.isdigit():
            return ColumnType("int64")
        case exp.Boolean():
            return ColumnType("boolean")
        case exp.Cast():
            target = node.args["to"]
        case _:
            return None
    if target.this == exp.DataType.Type.DECIMAL and len(target.expressions) == 2:
        try:
            return ColumnType("decimal", *(int(part.name) for part in target.expressions))
        except ValueError:
            return None
    name = _CASTS.get(target.this)
    return None if name is None or target.expressions else ColumnType(name)
