"""Finds where an SQL text has the expression that a message about types names."""

from __future__ import annotations

import ast
import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.expression_tree import TOO_DEEP, split_ands
from joinery_runtime.job.model.function_calls import JoinerySql
from joinery_runtime.job.sql.parse import parse_select
from joinery_runtime.job.sql.report import JOINS, SESSIONS, Report, node_position

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
        sought, alike = _unqualified(bare), (node for node in written if type(node) is type(bare))
        node = next((node for node in alike if _unqualified(node) == sought), None)
        if node is not None:
            report.add(node_position(node), message)
            return report.problems[0]
    return message


def _unqualified(node: exp.Expr) -> str:
    """Return the expression's text without the names of inputs."""
    copy = node.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    return copy.sql(comments=False)
