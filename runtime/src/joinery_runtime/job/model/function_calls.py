"""Calls of scalar functions in SQL: their parser, and the check of names and numbers of arguments. It needs no Arrow,
so a wrong call is rejected before a pod starts. What functions compute is in core.pipeline.functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

import sqlglot.parser
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from joinery_runtime.job.model.function_signatures import SIGNATURES
from joinery_runtime.job.model.wording import counted, suggestion

_BY_NAME = {name: signature for signature in SIGNATURES for name in signature.names}

# Functions whose result is not the same when an epoch is replayed, and why.
_CLOCK = "reads the clock, and a replay must give the same rows; use the event time, or a timestamp column `from` Kafka"
_CHANCE = "gives other values in a replay, which must give the same rows; hash a column instead, as in XXHASH64(x)"
_SESSION = "depends on who runs the job; write the value"
_NOT_REPEATABLE = {
    **dict.fromkeys(
        (
            "NOW",
            "CURRENT_TIMESTAMP",
            "CURRENT_DATE",
            "CURRENT_TIME",
            "CURRENT_DATETIME",
            "LOCALTIME",
            "LOCALTIMESTAMP",
            "CURDATE",
            "CURTIME",
            "GETDATE",
            "SYSDATE",
            "TODAY",
            "UTC_TIMESTAMP",
            "UTC_DATE",
            "CLOCK_TIMESTAMP",
            "STATEMENT_TIMESTAMP",
            "TRANSACTION_TIMESTAMP",
            "PROCTIME",
            "CURRENT_ROW_TIMESTAMP",
            "UNIX_TIMESTAMP",
            "CURRENT_WATERMARK",
            "MZ_NOW",
        ),
        _CLOCK,
    ),
    **dict.fromkeys(
        (
            "RAND",
            "RANDN",
            "RANDOM",
            "RANDOM_UUID",
            "GEN_RANDOM_UUID",
            "UUID",
            "UUIDV4",
            "UUIDV7",
            "GENERATE_UUID",
            "RAND_INTEGER",
            "SETSEED",
            "SHUFFLE",
            "MONOTONICALLY_INCREASING_ID",
            "NEXTVAL",
        ),
        _CHANCE,
    ),
    **dict.fromkeys(
        (
            "CURRENT_USER",
            "SESSION_USER",
            "USER",
            "CURRENT_ROLE",
            "CURRENT_DATABASE",
            "CURRENT_SCHEMA",
            "VERSION",
            "CURRENT_SETTING",
            "CURRENT_TIMEZONE",
            "INPUT_FILE_NAME",
            "SPARK_PARTITION_ID",
        ),
        _SESSION,
    ),
}
# Names that other systems give several meanings, or that mean what another name means here.
_OTHERWISE = {
    "TO_CHAR": "is DATE_FORMAT(time, 'yyyy-MM-dd') or STRFTIME(time, '%Y-%m-%d') here; a number is CAST(x AS VARCHAR)",
    "CONVERT_TIMEZONE": "is FROM_UTC_TIMESTAMP or TO_UTC_TIMESTAMP here",
    "DATE_DIFF": "is TIMESTAMPDIFF(DAY, first, second), or DATEDIFF(later, earlier) in days, here",
    "TIMESTAMP_DIFF": "is TIMESTAMPDIFF(DAY, first, second) here",
    "TIMESTAMPTOSTRING": "is DATE_FORMAT(TIMESTAMP_MILLIS(x), 'yyyy-MM-dd HH:mm:ss') here",
    "STRINGTOTIMESTAMP": "is UNIX_MILLIS(TO_TIMESTAMP(text, 'yyyy-MM-dd HH:mm:ss')) here",
    "NVL2": "is CASE WHEN x IS NOT NULL THEN a ELSE b END here",
    "DECODE": "is CASE x WHEN a THEN b ELSE c END, or FROM_UTF8(bytes), here",
    "ENCODE": "is TO_UTF8, TO_BASE64 or HEX here",
    "CONVERT": "is CAST(x AS type) here",
    "ISDISTINCT": "is x IS DISTINCT FROM y here",
}


# Names of calls that mean something in SQL, and that sqlglot has no syntax for.
_CALLS_OF_SQL = {
    *("TUMBLE", "HOP", "CUMULATE", "SESSION_WINDOW", "SLIDE", "ROW_NUMBER"),
    *("EVERY", "COLLECT_LIST", "LISTAGG", "APPROX_PERCENTILE", "PERCENTILE_APPROX"),
}


def call_of(node: exp.Expr) -> tuple[str, list[exp.Expr]] | None:
    """Return the name, in capitals, and the arguments of a call; None for a node that is no call."""
    if isinstance(node, exp.Anonymous):
        return node.name.upper(), node.expressions
    spoken = _SPOKEN.get(type(node))
    return spoken(node) if spoken is not None else None


NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""The pattern of names of functions and modules, and of columns that need no quotes."""
_DECLARED: ContextVar[frozenset[str]] = ContextVar("declared functions", default=frozenset())


@contextmanager
def declaring(names: Iterable[str]) -> Iterator[None]:
    """Let expressions call functions of these names, which the job declares (rule V4), within the block."""
    token = _DECLARED.set(frozenset(name.upper() for name in names))
    try:
        yield
    finally:
        _DECLARED.reset(token)


def declared_names() -> tuple[str, ...]:
    """Return the names of `declaring`."""
    return tuple(sorted(_DECLARED.get()))


def cannot_declare(name: str) -> str:
    """Say why a job cannot declare a function of this name; empty if it can."""
    if re.fullmatch(NAME, name) is None:
        return f"{name!r} is no name of a function: write letters, digits and _"
    if name.upper() in {*_BY_NAME, *_NOT_REPEATABLE, *_OTHERWISE}:
        return f"{name!r} is a function of SQL already (docs/functions.md); choose another name"
    if sqlglot.tokenize(name, dialect=JoinerySql)[0].token_type != TokenType.VAR:
        return f"{name!r} is a word of SQL already; choose another name"
    try:
        is_free = isinstance(sqlglot.parse_one(f"{name}(1)", dialect=JoinerySql), exp.Anonymous)
    except SqlglotError:  # a syntax of its own, as in CAST(1 AS VARCHAR)
        is_free = False
    if not is_free or name.upper() in _CALLS_OF_SQL:
        return f"{name!r} is a function of SQL already; choose another name"
    return ""


def cannot_call(name: str, count: int) -> str:
    """Say why this function cannot be called with so many arguments; empty if it can."""
    if name in _DECLARED.get():
        return "" if count else "a function that the job declares takes at least one argument"
    signature = _BY_NAME.get(name) if count or name not in _NOT_REPEATABLE else None
    if signature is None:
        reason = _NOT_REPEATABLE.get(name)
        if reason is not None:
            return f"{name} {reason}"
        if name in _OTHERWISE:
            return f"{name} {_OTHERWISE[name]} (docs/functions.md)"
        hint = suggestion(name, (*_BY_NAME, *_DECLARED.get()))
        return f"there is no function {name}{hint}; docs/functions.md lists all"
    if count < signature.fewest or (signature.most is not None and count > signature.most):
        return f"found {counted(count, 'argument')}, and the function is {signature.text}"
    return ""


def wrong_calls(tree: exp.Expr) -> list[tuple[exp.Expr, str]]:
    """List the calls in a tree that name no function, or give a wrong number of arguments, with the reasons."""
    problems = [(node, cannot_call(call[0], len(call[1]))) for node in tree.walk() if (call := call_of(node))]
    return [(node, problem) for node, problem in problems if problem]


# --- the parser -------------------------------------------------------------------------------------------------------


def _unit_as_text(arguments: list[exp.Expr]) -> list[exp.Expr]:
    """Write a unit that is a word, as in TIMESTAMPDIFF(HOUR, a, b), as a text."""
    first, *rest = arguments or [exp.null()]
    if isinstance(first, exp.Column) and not first.table:
        first = exp.Literal.string(first.name.upper())
    return [first, *rest]


def _call_builder(name: str, *, has_unit: bool) -> Callable[[list[exp.Expr]], exp.Expr]:
    return lambda arguments: exp.Anonymous(this=name, expressions=_unit_as_text(arguments) if has_unit else arguments)


def _build_truncation(arguments: list[exp.Expr]) -> exp.Expr:
    """Build DATE_TRUNC of TIMESTAMP_TRUNC(time, unit)."""
    unit, times = arguments[1:2], arguments[:1]
    return exp.Anonymous(this="DATE_TRUNC", expressions=_unit_as_text([*unit, *times, *arguments[2:]]))


def _is_kept(name: str, builder: object) -> bool:
    """Say whether a function of sqlglot's keeps its own node: aggregates, and what is an operator or a CASE here."""
    node = getattr(builder, "__self__", None)
    by_type = isinstance(node, type) and issubclass(node, exp.AggFunc | exp.If)
    return by_type or name in {"COALESCE", "IFNULL", "NVL", "MOD", "COUNT", "ARRAY_AGG", "ARRAYAGG"}


class _Parser(sqlglot.parser.Parser):
    """sqlglot's parser, in which a function is its name and its arguments, in their order as written."""

    FUNC_TOKENS: ClassVar = {*sqlglot.parser.Parser.FUNC_TOKENS, TokenType.DIV}
    FUNCTIONS: ClassVar = {
        **{name: build for name, build in sqlglot.parser.Parser.FUNCTIONS.items() if _is_kept(name, build)},
        **{
            name: _call_builder(signature.names[0], has_unit=signature.text.startswith(f"{signature.names[0]}(unit "))
            for name, signature in _BY_NAME.items()
        },
        **dict.fromkeys(("IFF", "IIF"), exp.If.from_arg_list),
        "TIMESTAMP_TRUNC": _build_truncation,
    }


class JoinerySql(Dialect):
    """The dialect of expressions and of `sql`."""

    Parser = _Parser


# --- calls with a syntax of their own ---------------------------------------------------------------------------------


def _arguments_of(node: exp.Expr, *names: str) -> list[exp.Expr]:
    """Return the arguments of these names, up to the last one that the node has."""
    values = [node.args.get(name) for name in names]
    while values and values[-1] is None:
        values.pop()
    return [exp.null() if value is None else value for value in values]


def _trim_call(node: exp.Expr) -> tuple[str, list[exp.Expr]] | None:
    name = {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get(str(node.args.get("position") or "").upper(), "TRIM")
    return None if node.args.get("collation") else (name, _arguments_of(node, "this", "expression"))


def _as_text(word: object) -> list[exp.Expr]:
    return [] if not isinstance(word, exp.Expr) else [exp.Literal.string(word.name.upper())]


def _call_without(name: str, *unread: str) -> Callable[[exp.Expr], tuple[str, list[exp.Expr]] | None]:
    """Return a call with the argument `this`; none if the node has one of the `unread` arguments."""
    return lambda node: None if any(node.args.get(part) for part in unread) else (name, _arguments_of(node, "this"))


def _extract(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    time = node.expression.unnest()
    if node.this.name.upper() == "EPOCH" and isinstance(time, exp.Sub) and time.right.key != "interval":
        return "EPOCH", [time]
    return "DATE_PART", [*_as_text(node.this), node.expression]


_SPOKEN: dict[type[exp.Expr], Callable[[exp.Expr], tuple[str, list[exp.Expr]] | None]] = {
    exp.Substring: lambda node: ("SUBSTRING", _arguments_of(node, "this", "start", "length")),
    exp.Trim: _trim_call,
    exp.StrPosition: lambda node: (
        None
        if node.args.get("position") or node.args.get("occurrence")
        else ("STRPOS", _arguments_of(node, "this", "substr"))
    ),
    exp.Overlay: lambda node: ("OVERLAY", _arguments_of(node, "this", "expression", "from_", "for_")),
    exp.Ceil: lambda node: None if node.args.get("to") else ("CEIL", _arguments_of(node, "this", "decimals")),
    exp.Floor: lambda node: None if node.args.get("to") else ("FLOOR", _arguments_of(node, "this", "decimals")),
    exp.Chr: lambda node: None if node.args.get("charset") else ("CHR", node.expressions),
    exp.Initcap: lambda node: ("INITCAP", _arguments_of(node, "this")),
    exp.Normalize: lambda node: ("NORMALIZE", [node.this, *_as_text(node.args.get("form"))]),
    exp.RegexpLike: lambda node: ("REGEXP_LIKE", _arguments_of(node, "this", "expression", "flag")),
    exp.Extract: _extract,
    exp.JSONExtractScalar: lambda node: (
        None
        if node.args.get("on_condition") or node.args.get("expressions")
        else ("JSON_VALUE", [node.this, exp.Literal.string(node.expression.sql().strip("'"))])
    ),
    exp.CurrentTimestamp: _call_without("CURRENT_TIMESTAMP"),
    exp.CurrentDate: _call_without("CURRENT_DATE"),
    exp.CurrentTime: _call_without("CURRENT_TIME"),
    exp.CurrentDatetime: _call_without("CURRENT_DATETIME"),
    exp.CurrentUser: _call_without("CURRENT_USER"),
    exp.CurrentRole: _call_without("CURRENT_ROLE"),
}
