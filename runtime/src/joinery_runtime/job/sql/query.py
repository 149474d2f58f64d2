"""Takes a SELECT apart into a `Query`: its inputs, joins, conditions and groups, as written.

Nothing is resolved here: `scope` finds what names mean, `joins` and `sessions` say what each kind of job makes of the
parts. A part that the job's form does not read is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from joinery_runtime.job.sql.clauses import JoinKind, WindowClause
from joinery_runtime.job.sql.parse import Parsed, parse_select
from joinery_runtime.job.sql.report import Form, Report, TextPosition, node_position

_WORDS = {
    "group": "GROUP BY",
    "order": "ORDER BY",
    "with_": "WITH",
    "windows": "WINDOW",
    "laterals": "LATERAL",
}

JoinType = Literal["inner", "left", "right", "full"]
_TYPES: dict[str, JoinType] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


@dataclass(frozen=True, slots=True)
class Source:
    """An input as FROM or JOIN names it; `alias` is its name in the other parts. A rejected source has no name. `as_of`
    is the time of FOR SYSTEM_TIME AS OF."""

    name: str
    alias: str
    quoted: bool
    at: TextPosition
    as_of: exp.Expr | None = None


@dataclass(frozen=True, slots=True)
class JoinClause:
    """One JOIN. `unsupported` says what it has in place of a supported type and ON."""

    source: Source
    type: JoinType
    on: exp.Expr | None
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """The parts of a SELECT. `first` is what FROM names (None: nothing), `joined` are the others, in text order.
    `groups` are the entries of GROUP BY, `grouped` says whether there is one. `start` and `group_at` are the positions
    of SELECT and GROUP BY."""

    start: TextPosition
    first: Source | None
    joined: tuple[JoinClause, ...]
    items: tuple[exp.Expr, ...]
    where: exp.Expr | None
    groups: tuple[exp.Expr, ...]
    grouped: bool
    group_at: TextPosition
    window: WindowClause | None
    options: Sequence[Token]

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*([self.first] if self.first is not None else []), *(joined.source for joined in self.joined))

    @property
    def kind(self) -> JoinKind:
        if self.window is not None:
            return self.window.kind
        return "asof" if any(source.as_of is not None for source in self.sources) else "interval"


def read_query(sql: str, report: Report, form: Form) -> Query | None:
    """Read the text; None if it is not one SELECT, and the report says why."""
    parsed = parse_select(sql, report, form)
    if parsed is None:
        return None
    select = parsed.select
    _reject_other_parts(parsed, report, form)
    start, where, group = (select.args.get(part) for part in ("from_", "where", "group"))
    return Query(
        start=parsed.position_of("SELECT"),
        first=_read_source(start.this, report) if start is not None else None,
        joined=tuple(_read_join(join, report) for join in select.args.get("joins") or []),
        items=tuple(select.expressions),
        where=where.this if where is not None else None,
        groups=_read_groups(group, parsed, report) if group is not None and "group" in form.parts else (),
        grouped=group is not None,
        group_at=parsed.position_of("GROUP BY"),
        window=parsed.clauses.window,
        options=parsed.clauses.options,
    )


def _reject_other_parts(parsed: Parsed, report: Report, form: Form) -> None:
    for name, value in parsed.select.args.items():
        if value and name not in form.parts:
            at = parsed.position_of(_WORDS.get(name, name.strip("_").upper()))
            report.add(at, f"is not supported: {form.rejected.get(name, form.rest)}")
    for query in parsed.select.find_all(exp.Query):
        # `_read_source` reports a sub-query in place of an input.
        if query is not parsed.select and not isinstance(query.parent, exp.Query | exp.From | exp.Join):
            report.add(node_position(query), "a sub-query is not supported; use columns of the inputs")


def _read_groups(group: exp.Expr, parsed: Parsed, report: Report) -> tuple[exp.Expr, ...]:
    more = [name for name, value in group.args.items() if value and name != "expressions"]
    sets = [
        node for node in group.expressions if isinstance(node, exp.Cube | exp.Rollup | exp.GroupingSets | exp.Tuple)
    ]
    if more or sets:
        facts = "groups are columns and expressions with commas between them; write only these"
        report.add(parsed.position_of("GROUP BY"), facts)
    return tuple(node for node in group.expressions if node not in sets)


def _read_join(join: exp.Join, report: Report) -> JoinClause:
    is_supported = (
        not join.method and join.side in _TYPES and join.kind in ({"", "OUTER"} if join.side else {"", "INNER"})
    )
    unsupported = []
    if not is_supported:
        kind = " ".join(filter(None, (join.method, join.side, join.kind)))
        unsupported.append(f"a {kind} join is not supported; write JOIN, LEFT JOIN, RIGHT JOIN or FULL JOIN")
    if join.args.get("using"):
        unsupported.append("USING is not supported; write ON with the equality of the columns")
    source = _read_source(join.this, report)
    return JoinClause(source, _TYPES.get(join.side, "inner"), join.args.get("on"), tuple(unsupported))


def _read_source(table: exp.Expr, report: Report) -> Source:
    """Read an input as FROM and JOIN name it; anything else is reported."""
    plain = isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)
    version = table.args.get("version")
    as_of = None
    if isinstance(version, exp.Version) and version.name == "TIMESTAMP" and version.args.get("kind") == "AS OF":
        as_of = version.expression  # FOR SYSTEM_TIME AS OF
    read = {"this", "alias", *(["version"] if as_of is not None else [])}
    extra = [name for name, value in table.args.items() if value and name not in read]
    alias = table.args.get("alias")
    if not plain or extra or (alias is not None and alias.args.get("columns")):
        label = "a sub-query" if isinstance(table, exp.Query) else "this"
        facts = f"{label} is not supported here; name an input of the job: FROM <input> [alias]"
        report.add(node_position(table), facts)
        return Source("", table.alias_or_name, False, node_position(table))
    at = node_position(table) if as_of is None else TextPosition(node_position(table).start, table.name)
    return Source(table.name, table.alias_or_name, bool(table.this.args.get("quoted")), at, as_of)
