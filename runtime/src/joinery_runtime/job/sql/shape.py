"""Takes the parts of a SELECT that define a job, and refuses all other parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from joinery_runtime.job.sql.options import JoinKind
from joinery_runtime.job.sql.parse import Parsed
from joinery_runtime.job.sql.report import Report, TextPosition, place_of, token_place
from joinery_runtime.job.sql.windows import WindowClause

_WORDS = {
    "group": "GROUP BY",
    "order": "ORDER BY",
    "with_": "WITH",
    "windows": "WINDOW",
    "laterals": "LATERAL",
}
_READ = {"expressions", "from_", "joins", "where"}

JoinType = Literal["inner", "left", "right", "full"]
_TYPES: dict[str, JoinType] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
_KINDS = "write JOIN, LEFT JOIN, RIGHT JOIN or FULL JOIN"


@dataclass(frozen=True, slots=True)
class Source:
    """An input as FROM or JOIN names it; `alias` is its name in the other parts. A refused source has no name. `as_of`
    is the time of FOR SYSTEM_TIME AS OF."""

    name: str
    alias: str
    quoted: bool
    at: TextPosition
    as_of: exp.Expr | None = None


@dataclass(frozen=True, slots=True)
class JoinClause:
    """One JOIN. `broken`: what it has in place of ON was refused."""

    source: Source
    type: JoinType
    on: exp.Expr | None
    broken: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the SELECT. `first` is what FROM names (None: nothing), `joined` are the others, in text order."""

    first: Source | None
    joined: tuple[JoinClause, ...]
    items: tuple[exp.Expr, ...]
    where: exp.Expr | None
    window: WindowClause | None

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*([self.first] if self.first is not None else []), *(joined.source for joined in self.joined))

    @property
    def kind(self) -> JoinKind:
        if self.window is not None:
            return self.window.kind
        return "asof" if any(source.as_of is not None for source in self.sources) else "interval"


def shape_of(parsed: Parsed, report: Report) -> Shape:
    select = parsed.select
    _refuse_other_parts(parsed, report)
    start, where = select.args.get("from_"), select.args.get("where")
    first = source_of(start.this, report) if start is not None else None
    joined = tuple(_joined(join, report) for join in select.args.get("joins") or [])
    if not select.expressions:
        report.add(token_place(parsed.tokens[0]), "selects nothing; write the columns that go out, or *")
    if first is None or not joined:
        at = first.at if first is not None else token_place(parsed.tokens[0])
        report.add(at, "nothing is joined; write FROM <input> JOIN <input> ON <conditions>")
    if first is not None and first.as_of is not None:
        report.add(
            first.at, "FOR SYSTEM_TIME stands at the table, which is joined; write FROM <stream> JOIN <table> ..."
        )
    shape = Shape(first, joined, tuple(select.expressions), where.this if where is not None else None, parsed.window)
    _refuse_in_chains(shape, report)
    return shape


def _refuse_in_chains(shape: Shape, report: Report) -> None:
    if len(shape.joined) < 2:
        return
    if shape.window is not None:
        report.add(shape.window.at, "a window joins two inputs only (rule W4); write a bound on time for each JOIN")
    for source in shape.sources:
        if source.as_of is not None:
            todo = "join the table in a job of its own"
            report.add(source.at, f"FOR SYSTEM_TIME is not supported where more than two inputs are joined; {todo}")


def _refuse_other_parts(parsed: Parsed, report: Report) -> None:
    for name, value in parsed.select.args.items():
        if value and name not in _READ:
            word = _WORDS.get(name, name.strip("_").upper())
            token = next((token for token in parsed.tokens if token.text.upper() == word), parsed.tokens[0])
            at = TextPosition(token.start, word)
            report.add(at, "is not supported: a job puts out every pair as it is found; leave it out")
    refuse_queries(parsed.select, report)


def refuse_queries(select: exp.Select, report: Report) -> None:
    """Refuses sub-queries, except those in place of an input, which `source_of` reports."""
    for query in select.find_all(exp.Query):
        if query is not select and not isinstance(query.parent, exp.Query | exp.From | exp.Join):
            report.add(place_of(query), "a sub-query is not supported; use columns of the inputs")


def _joined(join: exp.Join, report: Report) -> JoinClause:
    at = place_of(join.this)
    kind = " ".join(filter(None, (join.method, join.side, join.kind)))
    is_supported = (
        not join.method and join.side in _TYPES and join.kind in ({"", "OUTER"} if join.side else {"", "INNER"})
    )
    if not is_supported:
        report.add(at, f"a {kind} join is not supported; {_KINDS}")
    using = join.args.get("using")
    if using:
        report.add(at, "USING is not supported; write ON with the equality of the columns")
    return JoinClause(
        source_of(join.this, report),
        _TYPES.get(join.side, "inner"),
        join.args.get("on"),
        bool(using or not is_supported),
    )


def source_of(table: exp.Expr, report: Report) -> Source:
    """An input as FROM and JOIN name it; anything else is reported."""
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
        report.add(place_of(table), f"{label} is not supported here; name an input of the job: FROM <input> [alias]")
        return Source("", table.alias_or_name, False, place_of(table))
    at = place_of(table) if as_of is None else TextPosition(place_of(table).start, table.name)
    return Source(table.name, table.alias_or_name, bool(table.this.args.get("quoted")), at, as_of)
