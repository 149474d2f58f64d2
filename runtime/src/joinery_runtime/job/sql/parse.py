"""Parses text to sqlglot's tree, and the clauses of streaming SQL after it, which sqlglot does not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.expression_tree import TOO_DEEP, too_deep
from joinery_runtime.job.sql.report import Report, TextPosition, token_place
from joinery_runtime.job.sql.windows import KINDS, WindowClause, read_window


@dataclass(frozen=True, slots=True)
class Form:
    """Words for the SQL of one kind of job: `example` is its shape, `before` what the clauses follow, `final` says why
    rows do not wait. `window_inside`: WINDOW may follow FROM, as in ksqlDB, or be at the end."""

    example: str
    before: str
    final: str
    window_inside: bool = False


JOINS = Form(
    example="write SELECT <columns> FROM <input> JOIN <input> ON <conditions>",
    before="the join",
    final="pairs go out as they are found",
)
SESSIONS = Form(
    example="write SELECT <groups and aggregates> FROM <input> GROUP BY <columns>, "
    "SESSION(<event time>, INTERVAL '30' SECOND)",
    before="GROUP BY",
    final="lateData says when sessions go out, and whether again",
    window_inside=True,
)


_AT_THE_END = "a window of a join is a clause at the end: write WINDOW"
_HOPPING = f"{_AT_THE_END} HOPPING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE)"
_WINDOW_FUNCTIONS = {
    "TUMBLE": f"{_AT_THE_END} TUMBLING(INTERVAL '1' HOUR)",
    "HOP": _HOPPING,
    "CUMULATE": f"there are no cumulating windows; {_HOPPING}",
    "SESSION": f"{_AT_THE_END} SESSION(INTERVAL '30' SECOND)",
}
_SESSION_HERE = "sessions are made by GROUP BY <columns>, SESSION(<event time>, INTERVAL '30' SECOND)"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parsed text. `tokens` are those of the SELECT itself, `options` those inside WITH ( ... )."""

    select: exp.Select
    tokens: Sequence[Token]
    options: Sequence[Token]
    window: WindowClause | None


def parse_select(sql: str, report: Report, form: Form = JOINS) -> Parsed | None:
    """Parses a SELECT; None if the text is not one, and the report says why."""
    try:
        tokens = sqlglot.tokenize(sql)
    except TokenError as error:
        report.add(TextPosition(0, sql.strip()[:40]), f"is not SQL: {_first_line(error)}; check quotes and comments")
        return None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if (deep := too_deep(tokens)) is not None:
        report.add(token_place(deep), TOO_DEEP)
        return None
    if not tokens or tokens[0].token_type != TokenType.SELECT:
        at = token_place(tokens[0]) if tokens else TextPosition(0, sql.strip())
        report.add(at, f"the SQL of a job is one SELECT; {form.example}")
        return None
    if (foreign := _foreign_clause(tokens, form)) is not None:
        report.add(*foreign)
        return None
    body, clauses = _without_clauses(_window_last(tokens) if form.window_inside else tokens, report, form)
    tree = _tree(body, sql, report)
    if tree is not None and not isinstance(tree, exp.Select):
        report.add(
            token_place(tokens[0]), f"the SQL of a job is one SELECT, this is {tree.key.upper()}; {form.example}"
        )
    return Parsed(tree, body, clauses.options, clauses.window) if isinstance(tree, exp.Select) else None


def _foreign_clause(tokens: list[Token], form: Form) -> tuple[TextPosition, str] | None:
    """Find a clause of ksqlDB's or Flink's that is written in another way here, and say how."""
    for i, token in enumerate(tokens):
        word, following = _word(tokens, i), _word(tokens, i + 1)
        before = _word(tokens, i - 1) if i else ""
        bound = following in {"(", "INTERVAL"} or following[:1].isdigit()
        if word == "WITHIN" and bound and before != "." and not form.window_inside:
            return token_place(token), _bound_in_on(tokens[i + 1 :])
        in_from = before in {"FROM", "JOIN"} or _word(tokens, i + 2) == "TABLE"
        if word in _WINDOW_FUNCTIONS and following == "(" and in_from:
            todo = _SESSION_HERE if form.window_inside else _WINDOW_FUNCTIONS[word]
            return token_place(token), f"{word}(...) of a table is not understood: FROM and JOIN name inputs; {todo}"
    return None


def _bound_in_on(tokens: list[Token]) -> str:
    """Say how the bound behind WITHIN is written: `1 HOUR`, or `(1 HOUR, 2 HOURS)` before and after."""
    words = [token.text for token in tokens[:6] if token.text not in {"(", ")", ","}]
    lengths = [
        f"INTERVAL '{count}' {unit.upper().rstrip('S')}"
        for count, unit in zip(words[::2], words[1::2], strict=False)
        if count.isdigit() and unit.upper().rstrip("S") in {"MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY"}
    ]
    ends = (lengths[:2] if tokens and tokens[0].text == "(" else lengths[:1]) or ["INTERVAL '1' HOUR"]
    time = "<left>.<event time>"
    bound = f"<right>.<event time> BETWEEN {time} - {ends[0]} AND {time} + {ends[-1]}"
    return f"WITHIN is not understood: a bound is a condition on both event times; write ON ... AND {bound}"


def _tree(tokens: list[Token], sql: str, report: Report) -> exp.Expr | None:
    second = next((i for i, token in enumerate(tokens) if token.token_type == TokenType.SEMICOLON), None)
    if second is not None:
        report.add(
            token_place(tokens[min(second + 1, len(tokens) - 1)]), "a second statement; the SQL of a job is one SELECT"
        )
        return None
    try:
        return Dialect.get_or_raise(None).parser().parse([*_with_session(tokens)], sql)[0]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        highlight = str(first.get("highlight") or "")
        message = str(first.get("description") or _first_line(error)).partition(" but got <Token")[0].rstrip(".")
        line, column = int(first.get("line") or 1), int(first.get("col") or 1) - len(highlight)
        start = sum(len(text) + 1 for text in sql.split("\n")[: line - 1]) + max(column, 0)
        report.add(TextPosition(start, highlight), f"is not SQL that is understood here: {message}; see docs/sql.md")
        return None


def _with_session(tokens: list[Token]) -> Iterator[Token]:
    """Makes SESSION before a bracket the name of a function, instead of sqlglot's keyword."""
    for i, token in enumerate(tokens):
        if token.token_type == TokenType.SESSION and _word(tokens, i + 1) == "(":
            yield Token(TokenType.VAR, token.text, line=token.line, col=token.col, start=token.start, end=token.end)
        else:
            yield token


def _window_last(tokens: list[Token]) -> list[Token]:
    """Moves the first WINDOW clause to the end, where clauses belong."""
    first = next((i for i in _outside_brackets(tokens) if _is_clause(tokens, i) and _word(tokens, i) == "WINDOW"), None)
    if first is None:
        return tokens
    end = _end(tokens, first)
    return [*tokens[:first], *tokens[end:], *tokens[first:end]]


@dataclass(slots=True)
class _Clauses:
    options: list[Token] = field(default_factory=list)
    window: WindowClause | None = None


def _without_clauses(tokens: list[Token], report: Report, form: Form) -> tuple[list[Token], _Clauses]:
    """Splits the tokens into those before the first streaming clause, and the clauses."""
    first = next((i for i in _outside_brackets(tokens) if _is_clause(tokens, i)), len(tokens))
    clauses = _Clauses()
    i = first
    while i < len(tokens):
        end = _end(tokens, i)
        if not _is_clause(tokens, i):
            text = f"is not understood here; see docs/sql.md for what may follow {form.before}"
            report.add(token_place(tokens[i]), text)
            break
        _read_clause(tokens[i:end], clauses, report, form)
        i = end
    return tokens[:first], clauses


def _read_clause(clause: list[Token], clauses: _Clauses, report: Report, form: Form) -> None:
    word, following = _word(clause, 0), _word(clause, 1)
    if word == "WITH":
        clauses.options += clause[2:-1]
    elif word == "WINDOW" and clauses.window is not None:
        report.add(token_place(clause[1]), "a second WINDOW; keep one")
    elif word == "WINDOW":
        clauses.window = read_window(clause, report)
    elif following == "FINAL":
        text = f"EMIT {following} is not supported: {form.final}; write EMIT CHANGES"
        report.add(token_place(clause[0]), text)


def _end(tokens: list[Token], i: int) -> int:
    """The position after the clause that starts at `i`: two words, or words followed by a bracket."""
    if _word(tokens, i) == "EMIT":
        return i + 2
    depth = 0
    for at in range(i, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[at].text, 0) if tokens[at].token_type != TokenType.STRING else 0
        if depth == 0 and tokens[at].text == ")":
            return at + 1
    return len(tokens)


def _outside_brackets(tokens: list[Token]) -> list[int]:
    depth, outside = 0, []
    for i, token in enumerate(tokens):
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0:
            outside.append(i)
        depth += token.token_type == TokenType.L_PAREN
    return outside


def _is_clause(tokens: list[Token], i: int) -> bool:
    word, following = _word(tokens, i), _word(tokens, i + 1)
    return (
        (word == "EMIT" and following in {"CHANGES", "FINAL"})
        or (word == "WITH" and following == "(")
        or (word == "WINDOW" and following in KINDS)
    )


def _word(tokens: list[Token], i: int) -> str:
    quoted = {TokenType.STRING, TokenType.IDENTIFIER}
    return tokens[i].text.upper() if i < len(tokens) and tokens[i].token_type not in quoted else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
