"""Takes the parts of a SELECT that define sessions, and refuses all other parts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from joinery_runtime.job.sql.parse import SESSIONS, Parsed
from joinery_runtime.job.sql.report import Report, TextPosition, place_of, token_place
from joinery_runtime.job.sql.shape import Source, refuse_queries, source_of
from joinery_runtime.job.sql.windows import WindowClause

_READ = {"expressions", "from_", "where", "group", "joins"}
_NO_SORT = "sessions go out as they end, in no order and without a last one; leave it out"
_REFUSED = {
    "having": ("HAVING", "a job puts out every session; filter its output"),
    "order": ("ORDER BY", _NO_SORT),
    "limit": ("LIMIT", _NO_SORT),
    "offset": ("OFFSET", _NO_SORT),
    "distinct": ("DISTINCT", "sessions differ in any case; leave it out"),
    "with_": ("WITH", "name an input of the job in FROM"),
}
_LATER = "write lateData, allowedLateness and maxDuration as fields of the resource"


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts. `groups` are the entries of GROUP BY, `group_at` is its place; `window` is the clause WINDOW
    SESSION."""

    source: Source
    items: tuple[exp.Expr, ...]
    where: exp.Expr | None
    groups: tuple[exp.Expr, ...]
    group_at: TextPosition
    window: WindowClause | None


def session_parts(parsed: Parsed, report: Report) -> SessionParts | None:
    """The parts; None without FROM, which the report says."""
    select = parsed.select
    _refuse_other_parts(parsed, report)
    start, where = select.args.get("from_"), select.args.get("where")
    for join in select.args.get("joins") or []:
        todo = "join in a StreamJoin whose output this job reads"
        report.add(place_of(join.this), f"sessions are of one input; {todo}")
    if parsed.options:
        report.add(token_place(parsed.options[0]), f"options are of joins; {_LATER}")
    if start is None:
        report.add(token_place(parsed.tokens[0]), f"no input is named; {SESSIONS.example}")
        return None
    source = source_of(start.this, report)
    if source.as_of is not None:
        report.add(source.at, "FOR SYSTEM_TIME is for a table that is joined; leave it out")
    if not select.expressions:
        report.add(token_place(parsed.tokens[0]), f"selects nothing; {SESSIONS.example}")
    groups, at = _groups(parsed, report)
    condition = where.this if where is not None else None
    return SessionParts(source, tuple(select.expressions), condition, groups, at, parsed.window)


def _groups(parsed: Parsed, report: Report) -> tuple[tuple[exp.Expr, ...], TextPosition]:
    group = parsed.select.args.get("group")
    words = (token for token in parsed.tokens if token.text.upper().split() == ["GROUP", "BY"])
    at = next((TextPosition(token.start, "GROUP BY") for token in words), None)
    if group is None or at is None:
        at = token_place(parsed.tokens[0])
        report.add(at, f"there is no GROUP BY; {SESSIONS.example}")
        return (), at
    more = [name for name, value in group.args.items() if value and name != "expressions"]
    sets = [
        node for node in group.expressions if isinstance(node, exp.Cube | exp.Rollup | exp.GroupingSets | exp.Tuple)
    ]
    if more or sets:
        report.add(at, "groups are columns and expressions with commas between them; write only these")
    return tuple(node for node in group.expressions if node not in sets), at


def _refuse_other_parts(parsed: Parsed, report: Report) -> None:
    for name, value in parsed.select.args.items():
        if value and name not in _READ:
            word, reason = _REFUSED.get(
                name, (name.strip("_").upper(), "a job of sessions has no such part; leave it out")
            )
            token = next((token for token in parsed.tokens if token.text.upper() == word), parsed.tokens[0])
            report.add(TextPosition(token.start, word), f"is not supported: {reason}")
    refuse_queries(parsed.select, report)
