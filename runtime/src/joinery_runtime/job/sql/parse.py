"""Parses text to sqlglot's tree, with the streaming clauses taken off, and finds where a text has an expression that a
message names."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.expression_tree import TOO_DEEP, split_ands, too_deep
from joinery_runtime.job.model.function_calls import JoinerySql
from joinery_runtime.job.sql.clauses import Clauses, Within, keyword, split_clauses, take_withins
from joinery_runtime.job.sql.derived import Columns, EventTimes, merge_derived
from joinery_runtime.job.sql.dialects import common_tokens, rewrite_dialects
from joinery_runtime.job.sql.report import (
    JOINS,
    SESSIONS,
    UNION,
    Form,
    Report,
    TextPosition,
    node_position,
    token_position,
)
from joinery_runtime.job.sql.select_tree import without_inputs
from joinery_runtime.job.sql.unions import SqlUnion, take_unions, unused_union_name
from joinery_runtime.job.sql.window_functions import readable_tokens, rewrite_windows
from joinery_runtime.job.sql.window_joins import rewrite_window_joins

WITHIN = "joinery.within"
"""Marks a JOIN with its bound in ksqlDB's words."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parsed text: the tree of the SELECT, and the clauses behind it."""

    select: exp.Select
    clauses: Clauses

    def position_of(self, word: str) -> TextPosition:
        """Return where the word is in the SELECT, else its beginning."""
        tokens = self.clauses.body
        token = next((token for token in tokens if " ".join(token.text.upper().split()) == word), tokens[0])
        return TextPosition(token.start, word)


def parse_select(
    sql: str,
    report: Report,
    form: Form = JOINS,
    columns: Columns | None = None,
    event_times: EventTimes | None = None,
) -> Parsed | None:
    """Parse a SELECT, with its sub-queries in FROM merged; None if the text is not one, and the report says why.
    `columns` and `event_times` are those of the job's inputs, as far as they are known."""
    written = _written_tree(sql, report, form)
    if written is None:
        return None
    tree, clauses, withins = written
    if isinstance(tree, exp.Select) and form.tests_existence:
        take_unions(tree, columns or {}, report)
    if isinstance(tree, exp.Select):
        _attach_withins(withins, tree, report)
        windowed = clauses.window is not None
        if not rewrite_dialects(tree, columns or {}, event_times or {}, report, form, windowed=windowed):
            return None
        window = rewrite_window_joins(tree, report)
        if window is not None and clauses.window is not None:
            report.add(clauses.window.at, "table functions say in which windows rows are joined; leave WINDOW out")
        clauses.window = window or clauses.window
        rewrite_windows(tree, report)
        merge_derived(tree, columns or {}, event_times or {}, report, form)
        return Parsed(tree, clauses)
    if tree is not None:
        facts = f"the SQL of a job is one SELECT, this is {tree.key.upper()}"
        todo = UNION if isinstance(tree, exp.Union) else form.example
        if isinstance(tree, exp.Except | exp.Intersect) and form.tests_existence:
            todo = "write WHERE [NOT] EXISTS (SELECT 1 FROM <input> WHERE <equalities> AND <bound on time>)"
        report.add(token_position(clauses.body[0]), f"{facts}; {todo}")
    return None


@lru_cache(maxsize=64)
def unions_of(sql: str, columns: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[SqlUnion, ...]:
    """Return the unions in the text of a StreamJoin. `columns` are those of the job's inputs.
    What is wrong with the text is not reported here."""
    if "UNION" not in sql.upper():
        return ()
    report = Report(sql)
    try:
        written = _written_tree(sql, report, JOINS)
        tree = written[0] if written is not None else None
        return tuple(take_unions(tree, dict(columns), report)) if isinstance(tree, exp.Select) else ()
    except RecursionError:
        return ()


def _written_tree(sql: str, report: Report, form: Form) -> tuple[exp.Expr | None, Clauses, Sequence[Within]] | None:
    """Parse the text; None if it is no query, and the report says why."""
    try:
        tokens = sqlglot.tokenize(sql)
    except TokenError as error:
        report.add(TextPosition(0, sql.strip()[:40]), f"is not SQL: {_first_line(error)}; check quotes and comments")
        return None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if (deep := too_deep(tokens)) is not None:
        report.add(token_position(deep), TOO_DEEP)
        return None
    if not tokens or tokens[0].token_type not in {TokenType.SELECT, TokenType.WITH}:
        at = token_position(tokens[0]) if tokens else TextPosition(0, sql.strip())
        writes = bool(tokens) and keyword(tokens, 0) in {"CREATE", "INSERT"}
        facts = "the SQL of a job is one SELECT" + (", and spec.output says where its rows go" if writes else "")
        report.add(at, f"{facts}; {form.example}")
        return None
    tokens, withins = take_withins([*common_tokens(tokens)], report)
    clauses = split_clauses(tokens, report, form)
    tree = _parse_tokens(clauses.body, sql, report, form)
    if isinstance(tree, exp.Union) and form.tests_existence:
        united = exp.TableAlias(this=exp.to_identifier(unused_union_name(tree)))
        tree = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=tree, alias=united)))
    return tree, clauses, withins


def _attach_withins(withins: Sequence[Within], select: exp.Select, report: Report) -> None:
    """Give each WITHIN to its join: the last one whose source is before it in the text."""
    joins = {
        max((part.meta["start"] for part in join.this.walk() if "start" in part.meta), default=0): join
        for join in reversed([*select.find_all(exp.Join, bfs=True)])  # an outer join counts before one inside it
    }
    for within in withins:
        start = max((start for start in joins if start < within.at.start), default=None)
        if start is None:
            continue
        if WITHIN in joins[start].meta:
            report.add(within.at, "a second WITHIN of one join; keep one")
        joins[start].meta[WITHIN] = within


def _parse_tokens(tokens: list[Token], sql: str, report: Report, form: Form) -> exp.Expr | None:
    """Parse the tokens of the SELECT; None if that fails, and the report says why."""
    second = next((i for i, token in enumerate(tokens) if token.token_type == TokenType.SEMICOLON), None)
    if second is not None:
        report.add(
            token_position(tokens[min(second + 1, len(tokens) - 1)]),
            "a second statement; the SQL of a job is one SELECT",
        )
        return None
    pattern = next((token for token in tokens if token.text.upper() == "MATCH_RECOGNIZE"), None)
    if pattern is not None:
        todo = "for A followed by B within a time, write a join of the two with a bound on time"
        report.add(token_position(pattern), f"patterns of rows are not supported; {todo}")
        return None
    try:
        tree = JoinerySql().parser().parse([*readable_tokens(tokens)], sql)[0]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        highlight = str(first.get("highlight") or "")
        message = str(first.get("description") or _first_line(error)).partition(" but got <Token")[0].rstrip(".")
        if "<class" in message:
            message = "a name or a value is missing before this; a word of SQL as a name stands in double quotes"
        line, column = int(first.get("line") or 1), int(first.get("col") or 1) - len(highlight)
        start = sum(len(text) + 1 for text in sql.split("\n")[: line - 1]) + max(column, 0)
        report.add(TextPosition(start, highlight), f"is not SQL that is understood here: {message}; see docs/sql.md")
        return None
    if tree is None:
        facts = "there is no SELECT before the brackets of WITH, which hold options"
        report.add(TextPosition(0, sql.strip()[:40]), f"{facts}; {form.example}, or WITH <name> AS (SELECT ...)")
    return tree


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_KEYS = re.compile(r"^key types differ: (.+?) is \w+(?:\([\d, ]+\))?, (.+?) is \w")
"""The message about keys of two types of `join.step_rules`."""


def placed(message: str, sql: str, *, sessions: bool = False) -> str:
    """Put line and column of the SQL before a message that has an expression in quotes, or the two columns of a key.
    Names of inputs do not count; an expression that several conditions make is where the first of them is. A message
    that has a place, or that is about something that the text does not have, stays as it is."""
    quoted, keys = _QUOTED.search(message), _KEYS.match(message)
    if message.startswith("line ") or TOO_DEEP in message or (quoted is None and keys is None):
        return message
    try:
        text = " = ".join(keys.groups()) if keys is not None else str(ast.literal_eval(quoted[0])) if quoted else ""
    except (SyntaxError, ValueError):
        return message  # quotes of a text that Python did not write
    report = Report(sql)
    parsed = parse_select(sql, report, SESSIONS if sessions else JOINS)
    if parsed is None or report.problems:
        return message
    try:
        named: exp.Expr = sqlglot.parse_one(text, dialect=JoinerySql)
    except SqlglotError:
        named = exp.Literal.string(text)
    written = [node for node in parsed.select.walk() if not isinstance(node, exp.Identifier)]
    aliases = {item.alias: item.this for item in parsed.select.expressions if isinstance(item, exp.Alias)}
    of_having = named.copy()
    for column in list(of_having.find_all(exp.Column)):
        if not column.table and column.name in aliases:
            column.replace(aliases[column.name].copy())
    turned = exp.EQ(this=named.expression, expression=named.this) if isinstance(named, exp.EQ) else named
    candidates: list[exp.Expr] = [named, turned, exp.Literal.string(text), of_having, *split_ands(named)]
    for candidate in candidates:
        bare = candidate.unnest()
        sought = without_inputs(bare).sql(comments=False)
        alike = (node for node in written if type(node) is type(bare))
        node = next((node for node in alike if without_inputs(node).sql(comments=False) == sought), None)
        if node is not None:
            report.add(node_position(node), message)
            return report.problems[0]
    return message
