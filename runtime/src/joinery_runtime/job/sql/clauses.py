"""The clauses of streaming SQL after the SELECT, which sqlglot does not know.

* `WINDOW TUMBLING(...)`, `SLIDING(...)`, `HOPPING(...)` or `SESSION(...)`;
* `WITH ('join.lower_bound' = '0s', ...)`: the options of a join;
* `EMIT CHANGES`, which says nothing that a job does not do anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.duration import MAX_MS, parse_duration
from joinery_runtime.job.model.expression_tree import NotALengthError, interval_ms
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import Form, Report, TextPosition, token_position


@dataclass(slots=True)
class Clauses:
    """`body` are the tokens of the SELECT itself, `options` those inside WITH ( ... )."""

    body: list[Token]
    options: list[Token] = field(default_factory=list)
    window: WindowClause | None = None


def split_clauses(tokens: list[Token], report: Report, form: Form) -> Clauses:
    """Split the tokens at the first streaming clause, and read the clauses."""
    starts = [i for i in _outside_brackets(tokens) if _is_clause(tokens, i)]
    window = next((i for i in starts if keyword(tokens, i) == "WINDOW"), None)
    if form.window_inside and window is not None:  # to the end, where clauses belong
        end = _clause_end(tokens, window)
        tokens = [*tokens[:window], *tokens[end:], *tokens[window:end]]
    first = next((i for i in _outside_brackets(tokens) if _is_clause(tokens, i)), len(tokens))
    clauses = Clauses(tokens[:first])
    i = first
    while i < len(tokens):
        if not _is_clause(tokens, i):
            text = f"is not understood here; see docs/sql.md for what may follow {form.before}"
            report.add(token_position(tokens[i]), text)
            break
        end = _clause_end(tokens, i)
        _read_clause(tokens[i:end], clauses, report, form)
        i = end
    return clauses


def _read_clause(clause: list[Token], clauses: Clauses, report: Report, form: Form) -> None:
    word, following = keyword(clause, 0), keyword(clause, 1)
    if word == "WITH":
        clauses.options += clause[2:-1]
    elif word == "WINDOW" and clauses.window is not None:
        report.add(token_position(clause[1]), "a second WINDOW; keep one")
    elif word == "WINDOW":
        clauses.window = window = WindowClause(WINDOW_KINDS[following], token_position(clause[1]))
        if problem := _read_lengths(window, clause[2:], report):
            report.add(window.at, f"{problem}; {_EXAMPLES[window.kind]}")
    elif following == "FINAL":
        text = f"EMIT {following} is not supported: {form.final}; write EMIT CHANGES"
        report.add(token_position(clause[0]), text)


def _clause_end(tokens: list[Token], i: int) -> int:
    """Return the position after the clause that starts at `i`: two words, or words followed by a bracket."""
    if keyword(tokens, i) == "EMIT":
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
    word, following = keyword(tokens, i), keyword(tokens, i + 1)
    return (
        (word == "EMIT" and following in {"CHANGES", "FINAL"})
        or (word == "WITH" and following == "(")
        or (word == "WINDOW" and following in WINDOW_KINDS)
    )


def keyword(tokens: Sequence[Token], i: int) -> str:
    """Return the token in capitals; empty for a quoted one and after the end."""
    quoted = {TokenType.STRING, TokenType.IDENTIFIER}
    return tokens[i].text.upper() if i < len(tokens) and tokens[i].token_type not in quoted else ""


# --- WINDOW -------------------------------------------------------------------------------------------------------

WindowKind = Literal["tumbling", "hopping", "session"]

WINDOW_KINDS: dict[str, WindowKind] = {
    "TUMBLING": "tumbling",
    "SLIDING": "hopping",
    "HOPPING": "hopping",
    "SESSION": "session",
}
_LENGTHS: dict[WindowKind, tuple[str, ...]] = {"tumbling": ("SIZE",), "hopping": ("SIZE", "SLIDE"), "session": ("GAP",)}
_EXAMPLES: dict[WindowKind, str] = {
    "tumbling": "write WINDOW TUMBLING(INTERVAL '1' HOUR)",
    "hopping": "write WINDOW SLIDING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE)",
    "session": "write WINDOW SESSION(INTERVAL '30' SECOND)",
}


class _BadLengthError(ValueError):
    """A length is rejected; the text says why."""


@dataclass(slots=True)
class WindowClause:
    """The clause. `lengths` are milliseconds by SIZE, SLIDE or GAP."""

    kind: WindowKind
    at: TextPosition
    lengths: dict[str, int] = field(default_factory=dict)


def _read_lengths(window: WindowClause, brackets: Sequence[Token], report: Report) -> str:
    """Read the arguments into the window, and return what is wrong with all of them together."""
    opened = brackets and brackets[0].token_type == TokenType.L_PAREN
    for position, argument in enumerate(_arguments(brackets) if opened else ()):
        try:
            _read(argument, position, window)
        except (_BadLengthError, NotALengthError) as error:
            report.add(token_position(argument[0]), f"{error}; {_EXAMPLES[window.kind]}")
            return ""
    if len(window.lengths) < len(_LENGTHS[window.kind]):
        return f"needs {' and '.join(_LENGTHS[window.kind])}"
    if window.lengths.get("SLIDE", 0) > window.lengths.get("SIZE", 0):
        return "SLIDE is longer than SIZE, so rows between two windows would match nothing"
    return ""


def _arguments(brackets: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at the commas. Calls are not allowed there, so brackets do not nest."""
    argument: list[Token] = []
    for token in brackets[1:]:
        if token.token_type in {TokenType.COMMA, TokenType.R_PAREN}:
            yield from [argument] if argument else []
            argument = []
        else:
            argument.append(token)


def _read(argument: list[Token], position: int, window: WindowClause) -> None:
    names = _LENGTHS[window.kind]
    word = argument[0].text.upper()
    named = word in {"SIZE", "SLIDE", "GAP"}
    name = word if named else names[position] if position < len(names) else ""
    if name not in names or name in window.lengths:
        raise _BadLengthError("is not expected here")
    window.lengths[name] = _length(argument[named:])


def _length(tokens: list[Token]) -> int:
    if len(tokens) == 2 and tokens[0].token_type == TokenType.NUMBER:  # as in ksqlDB: 30 SECONDS
        tokens = [Token(TokenType.INTERVAL, "INTERVAL"), *tokens]
    try:
        nodes = Dialect.get_or_raise(None).parser().parse(tokens, "")
    except ParseError:
        nodes = []
    if len(nodes) != 1 or not isinstance(nodes[0], exp.Interval):
        raise _BadLengthError("the length of a window is an INTERVAL")
    ms = interval_ms(nodes[0])
    if problem := length_problem(ms):
        raise _BadLengthError(f"the length of a window {problem}")
    return int(ms)


def length_problem(ms: Fraction) -> str:
    """Say why this is no length of a window; empty if it is one."""
    if ms.denominator != 1 or ms <= 0:
        return "must be whole milliseconds, more than none"
    return "" if ms <= MAX_MS else "must be at most 292 years"


# --- WITH: the options of a join ----------------------------------------------------------------------------------

JoinKind = WindowKind | Literal["interval", "asof"]

TYPE, LOWER, UPPER, RETENTION = "join.type", "join.lower_bound", "join.upper_bound", "join.retention"
LATENESS, LATE_DATA, BROADCAST = "join.allowed_lateness", "join.late_data", "join.broadcast"
HISTORY, GRACE = "join.history_retention", "join.grace"

MAX_DURATION, AGGREGATE_LATENESS = "aggregate.max_duration", "aggregate.allowed_lateness"
AGGREGATE_LATE_DATA, RETRACTIONS = "aggregate.late_data", "aggregate.emit_retractions"
EMIT_EVERY, VALUES_LIMIT = "aggregate.emit_every", "aggregate.limit"
_OF_AGGREGATE = (MAX_DURATION, AGGREGATE_LATENESS, AGGREGATE_LATE_DATA, RETRACTIONS, EMIT_EVERY, VALUES_LIMIT)

_MAY_BE_NEGATIVE, _MORE_THAN_NONE = {LOWER, UPPER}, {HISTORY, MAX_DURATION, EMIT_EVERY}
_INTERVAL = (TYPE, LOWER, UPPER, RETENTION, LATENESS, LATE_DATA, BROADCAST)
_WINDOW = (TYPE, LATENESS, LATE_DATA)
_OF_KIND: Mapping[JoinKind, tuple[str, ...]] = {
    "interval": _INTERVAL, "asof": (TYPE, HISTORY, GRACE),
    "tumbling": _WINDOW, "hopping": _WINDOW, "session": _WINDOW,
}  # fmt: skip
_KNOWN = (*dict.fromkeys(name for names in _OF_KIND.values() for name in names), *_OF_AGGREGATE)
_CLAUSES: Mapping[str, tuple[JoinKind, str]] = {
    "interval": ("interval", "leave the window or FOR SYSTEM_TIME out"),
    "tumbling": ("tumbling", "write WINDOW TUMBLING(INTERVAL '1' HOUR)"),
    "sliding": ("hopping", "write WINDOW SLIDING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE)"),
    "hopping": ("hopping", "write WINDOW HOPPING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE)"),
    "session": ("session", "write WINDOW SESSION(INTERVAL '30' SECOND)"),
    "asof": ("asof", "write JOIN <table> FOR SYSTEM_TIME AS OF <stream>.<event time>"),
}


@dataclass(slots=True)
class Options:
    """The options. `ms` holds the durations, in milliseconds; bounds are those of the second input of the SQL, counted
    from the first. `broadcast` holds names or aliases. `values_limit` is that of each aggregate that keeps values. `at`
    is the place of each option's value; `broken`: one was rejected."""

    ms: dict[str, int] = field(default_factory=dict)
    late_data: str = "drop"
    aggregate_late_data: str = "drop"
    retractions: bool = False
    broadcast: tuple[str, ...] = ()
    values_limit: int | None = None
    at: dict[str, TextPosition] = field(default_factory=dict)
    broken: bool = False


def read_options(tokens: Sequence[Token], kinds: Sequence[JoinKind], report: Report, *, grouped: bool) -> Options:
    """Read the options. `kinds` are those of the joins in the SQL, which 'join.type' must not contradict. `grouped`:
    there is a GROUP BY."""
    before = len(report.problems)
    options = Options()
    for name, value in _pairs(tokens, report):
        problem = _name_problem(name.text, kinds, options, grouped=grouped)
        if problem:
            report.add(token_position(name), problem)
            continue
        options.at[name.text] = token_position(value)
        try:
            _take(name.text, value.text, kinds, options)
        except ValueError as error:
            report.add(token_position(value), str(error))
    if RETENTION in options.at and LATENESS in options.at:
        report.add(options.at[LATENESS], f"{RETENTION!r} says the same in another way; keep one of the two")
    options.broken = len(report.problems) > before
    return options


def _name_problem(name: str, kinds: Sequence[JoinKind], options: Options, *, grouped: bool) -> str:
    if name not in _KNOWN:
        return f"is not an option{suggestion(name, _KNOWN)}; options are {listed(_KNOWN)}"
    usable = tuple(dict.fromkeys(option for kind in kinds for option in _OF_KIND[kind]))
    if name in _OF_AGGREGATE:
        if not grouped:
            return "is an option of GROUP BY, and there is none; leave it out"
    elif not kinds:
        return "is an option of a JOIN, and there is none; leave it out"
    elif name not in usable:
        kind_text = "this kind" if len(kinds) == 1 else "these kinds"
        return f"is not an option of {kind_text} of join ({listed(kinds)}); its options are {listed(usable)}"
    return "is given twice; keep one" if name in options.at else ""


def _take(name: str, text: str, kinds: Sequence[JoinKind], options: Options) -> None:
    """Take one option. Raises ValueError, which says what is wrong with the value."""
    if name == TYPE:
        _check_type(text, kinds)
    elif name in {LATE_DATA, AGGREGATE_LATE_DATA}:
        if text not in {"drop", "reopen", "dlq"}:
            raise ValueError("is drop, reopen or dlq")
        if name == LATE_DATA:
            options.late_data = text
        else:
            options.aggregate_late_data = text
    elif name == RETRACTIONS:
        if text not in {"true", "false"}:
            raise ValueError("is true or false")
        options.retractions = text == "true"
    elif name == VALUES_LIMIT:
        if not text.isdecimal() or int(text) == 0:
            raise ValueError("is a number of values, 1 or more")
        options.values_limit = int(text)
    elif name == BROADCAST:
        options.broadcast = tuple(part.strip() for part in text.split(","))
    else:
        options.ms[name] = parse_duration(text)
        if options.ms[name] < 0 and name not in _MAY_BE_NEGATIVE:
            raise ValueError("is a length of time, it must not be negative")
        if options.ms[name] == 0 and name in _MORE_THAN_NONE:
            raise ValueError("must be more than 0")


def _check_type(text: str, kinds: Sequence[JoinKind]) -> None:
    """Raise ValueError if the joins are not of the kind that an option names."""
    if text.lower() not in _CLAUSES:
        hint = suggestion(text.lower(), _CLAUSES)
        raise ValueError(f"is not a kind of join{hint}; write {listed(map(repr, _CLAUSES))}")
    written_kind, todo = _CLAUSES[text.lower()]
    if (written_kind,) != tuple(kinds):
        raise ValueError(f"the SQL says {listed(kinds)}; {todo}, or leave {TYPE!r} out")


def _pairs(tokens: Sequence[Token], report: Report) -> list[tuple[Token, Token]]:
    pairs: list[tuple[Token, Token]] = []
    expected_types = (TokenType.STRING, TokenType.EQ, TokenType.STRING, TokenType.COMMA)
    for i, token in enumerate(tokens):
        if token.token_type != expected_types[i % 4]:
            report.add(token_position(token), "options are written WITH ('name' = 'value', ...)")
            return []
        if i % 4 == 2:
            pairs.append((tokens[i - 2], token))
    if tokens and len(tokens) % 4 != 3:
        report.add(token_position(tokens[-1]), "an option is not complete; write WITH ('name' = 'value', ...)")
    return pairs
