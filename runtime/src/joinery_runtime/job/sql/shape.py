"""The parts of a SELECT that a job is made of; all other parts are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.sql.parse import Parsed, token_place
from joinery_runtime.job.sql.report import Place, Report, place_of

_WORDS = {
    "group": "GROUP BY",
    "order": "ORDER BY",
    "with_": "WITH",
    "windows": "WINDOW",
    "laterals": "LATERAL",
}
_READ = {"expressions", "from_", "joins", "where"}


@dataclass(frozen=True, slots=True)
class Source:
    """An input as FROM or JOIN names it; `alias` is what the other parts call it. What was refused has no name."""

    name: str
    alias: str
    quoted: bool
    at: Place


@dataclass(frozen=True, slots=True)
class Shape:
    """`sources` are in the order of the text; `conditions` are those of ON and WHERE, without what was refused of them
    where `broken`."""

    sources: tuple[Source, ...]
    items: tuple[exp.Expr, ...]
    conditions: tuple[exp.Expr, ...]
    broken: bool


def shape_of(parsed: Parsed, report: Report) -> Shape:
    select = parsed.select
    _refuse_other_parts(parsed, report)
    joins: list[exp.Join] = select.args.get("joins") or []
    start = select.args.get("from_")
    tables = [part.this for part in ([start] if start is not None else []) + joins]
    if len(tables) < 2:
        at = place_of(tables[0]) if tables else token_place(parsed.tokens[0])
        report.add(at, "nothing is joined; write FROM <input> JOIN <input> ON <conditions>")
    for table in tables[2:]:
        report.add(place_of(table), "joining more than two inputs is not supported yet; keep the first two")
    sources = [_source(table, report) for table in tables[:2]] + [_refused(table) for table in tables[2:]]
    conditions = [condition for join in joins[:1] for condition in _join_condition(join, report)]
    where = select.args.get("where")
    return Shape(
        tuple(sources),
        tuple(select.expressions),
        (*conditions, *([where.this] if where is not None else [])),
        broken=any(join.args.get("using") for join in joins),
    )


def _refuse_other_parts(parsed: Parsed, report: Report) -> None:
    for name, value in parsed.select.args.items():
        if value and name not in _READ:
            word = _WORDS.get(name, name.strip("_").upper())
            token = next((token for token in parsed.tokens if token.text.upper() == word), parsed.tokens[0])
            at = Place(token.start, word)
            report.add(at, "is not supported: a job puts out every pair as it is found; leave it out")
    for query in parsed.select.find_all(exp.Query):
        if query is not parsed.select and not (isinstance(query.parent, exp.Query) or _is_source(query)):
            report.add(place_of(query), "a sub-query is not supported; use columns of the two inputs")


def _is_source(query: exp.Expr) -> bool:
    return isinstance(query.parent, exp.From | exp.Join)


def _join_condition(join: exp.Join, report: Report) -> Iterator[exp.Expr]:
    at = place_of(join.this)
    kind = " ".join(filter(None, (join.method, join.side, join.kind)))
    if join.side in {"LEFT", "RIGHT", "FULL"} and join.kind in {"", "OUTER"} and not join.method:
        report.add(at, f"a {join.side} join is not supported yet; use an inner JOIN")
    elif kind not in {"", "INNER"}:
        report.add(at, f"a {kind} join is not supported; use an inner JOIN")
    if join.args.get("using"):
        report.add(at, "USING is not supported; write ON with the equality of the columns")
    if join.args.get("on") is not None:
        yield join.args["on"]


def _source(table: exp.Expr, report: Report) -> Source:
    plain = isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)
    extra = [name for name, value in table.args.items() if value and name not in {"this", "alias"}]
    alias = table.args.get("alias")
    if not plain or extra or (alias is not None and alias.args.get("columns")):
        what = "a sub-query" if isinstance(table, exp.Query) else "this"
        report.add(place_of(table), f"{what} is not supported here; name an input of the job: FROM <input> [alias]")
        return _refused(table)
    return Source(table.name, table.alias_or_name, bool(table.this.args.get("quoted")), place_of(table))


def _refused(table: exp.Expr) -> Source:
    return Source("", table.alias_or_name, False, place_of(table))
