"""Parses SQL expressions, no deeper than every process that computes them can follow, and lengths of time in them.

sqlglot's parser and the evaluation recurse, some twenty frames per bracket. Python ends at 1,000 frames, and the tasks
of a job start deeper in the stack than the check of the job does. So the depth has a bound, far above what people
write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.function_calls import JoinerySql, call_of

MAX_NESTING = 30
"""Brackets, CASEs, NOTs and signs inside each other."""
MAX_DEPTH = 300
"""Operators one after the other, such as conditions with AND between them."""
MAX_DIGITS = 1_100
"""Characters of a number: more than any double has, and fewer than Python reads as an integer."""
MAX_NODES = 10_000
"""Names, values and operators of an expression for which a name stands."""
TOO_DEEP = (
    f"is nested too deep: at most {MAX_NESTING} brackets, CASEs or NOTs may be inside each other, and {MAX_DEPTH} "
    "operators one after the other; write it in a simpler way, or into `compute` or several conditions"
)
_SHOWN = 80
_UNIT_MS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_PREFIXES = {TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE}


class TooDeepError(ParseError):
    """An expression that is nested too deep."""


class NotALengthError(ValueError):
    """An INTERVAL is not a length of time; the text says why."""


def parse_tree(text: str) -> exp.Expr:
    """Parse an expression. Raises SqlglotError."""
    tokens = sqlglot.tokenize(text)
    if too_deep(tokens) is not None:
        raise TooDeepError(TOO_DEEP)
    longest = max((len(token.text) for token in tokens if token.token_type == TokenType.NUMBER), default=0)
    if longest > MAX_DIGITS:
        raise ParseError(f"a number has {longest:,} characters; at most {MAX_DIGITS:,} are read")
    try:
        tree = sqlglot.parse_one(text, dialect=JoinerySql)
    except RecursionError:
        raise TooDeepError(TOO_DEEP) from None
    if depth(tree) > MAX_DEPTH:
        raise TooDeepError(TOO_DEEP)
    return tree.transform(_without_own_syntax, copy=False)


def _without_own_syntax(node: exp.Expr) -> exp.Expr:
    """Write IF(condition, a, b) as a CASE, as sqlglot does in the text of SQL, and POSITION(a IN b) as a plain call."""
    call = call_of(node)
    if call is not None and not isinstance(node, exp.Anonymous):
        return exp.Anonymous(this=call[0], expressions=call[1])
    if not isinstance(node, exp.If) or isinstance(node.parent, exp.Case):
        return node
    branch = exp.If(this=node.this, true=node.args["true"])
    return exp.Case(ifs=[branch], default=node.args.get("false"))


def replace_columns(text: str, meant: Mapping[str, exp.Expr]) -> str:
    """Write an expression with what its columns mean in their place. `meant` is by the names as written, with an
    input's name before a column where it has one; other columns stay. Raises SqlglotError."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        value = meant.get(f"{node.table}.{node.name}" if node.table else node.name)
        if value is None:
            return node
        if isinstance(value, exp.Column):
            return exp.column(value.name, quoted=node.this.quoted)
        return value.copy() if node.parent is None else exp.paren(value)

    return parse_tree(text).transform(replaced).sql(comments=False)


def too_deep(tokens: Sequence[Token]) -> Token | None:
    """Find the first token that is nested deeper than MAX_NESTING."""
    open_depths, nesting, prefixes = [0], 0, 0
    for token in tokens:
        if token.token_type in _PREFIXES:
            prefixes += 1
        elif token.token_type in _OPENING:
            nesting += 1 + prefixes
            open_depths.append(nesting)
            prefixes = 0
        else:
            if token.token_type in _CLOSING and len(open_depths) > 1:
                open_depths.pop()
                nesting = open_depths[-1]
            prefixes = 0
        if nesting + prefixes > MAX_NESTING:
            return token
    return None


def depth(tree: exp.Expr) -> int:
    """Count the levels of a tree, without recursion."""
    levels, deepest = [(tree, 1)], 0
    while levels:
        node, level = levels.pop()
        deepest = max(deepest, level)
        levels += ((child, level + 1) for child in node.iter_expressions())
    return deepest


def check_size(meant: exp.Expr) -> exp.Expr:
    """Return the expression for which a name stands. Raises TooDeepError for one of more than MAX_NODES: names that
    stand for expressions with two such names each would double it with each of them."""
    if next(islice(meant.walk(), MAX_NODES, None), None) is not None:
        raise TooDeepError(TOO_DEEP)
    return meant


def split_ands(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that ANDs connect."""
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        yield from split_ands(condition.this)
        yield from split_ands(condition.expression)
    else:
        yield condition


def shown(text: str) -> str:
    """Quote a text for a message, a long one only in part."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def interval_ms(node: exp.Interval) -> Fraction:
    """Read INTERVAL '24' HOUR as milliseconds, which need not be whole. Raises NotALengthError."""
    text = node.sql(comments=False)
    unit = str(node.args.get("unit") or "").upper().removesuffix("S")
    if unit not in _UNIT_MS:
        raise NotALengthError(f"{text}: the unit is MILLISECOND, SECOND, MINUTE, HOUR or DAY")
    negative = isinstance(node.this, exp.Neg)
    length = node.this.this if negative else node.this
    try:
        ms = Fraction(length.name.strip() if isinstance(length, exp.Literal) else "") * _UNIT_MS[unit]
    except (ValueError, ZeroDivisionError) as error:
        raise NotALengthError(f"{text}: the length of an interval must be a number") from error
    return -ms if negative else ms
