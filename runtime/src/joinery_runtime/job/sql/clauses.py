"""The clauses of streaming SQL, which sqlglot does not know.

* `WINDOW TUMBLING(...)`, `SLIDING(...)`, `HOPPING(...)` or `SESSION(...)`, there or behind FROM, as in ksqlDB;
* `WITHIN 1 HOUR GRACE PERIOD 5 MINUTES` behind the source of a JOIN, as in ksqlDB;
* `WITH ('join.lower_bound' = '0s', ...)`: the options of a join;
* `EMIT CHANGES`, which says nothing that a job does not do anyway, and `EMIT FINAL`, which is for groups, as is
  RisingWave's `EMIT ON WINDOW CLOSE`;
* `PARTITION BY`, which is ksqlDB's for the key of the output's records, and is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.duration import MAX_MS, parse_duration
from joinery_runtime.job.model.expression_tree import NotALengthError, interval_ms
from joinery_runtime.job.model.time_formats import alignment_fields
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import Form, Report, TextPosition, token_position


@dataclass(slots=True)
class Clauses:
    """`body` are the tokens of the SELECT itself, `options` those inside WITH ( ... ). `changes` and `final` are the
    places of EMIT CHANGES and EMIT FINAL."""

    body: list[Token]
    options: list[Token] = field(default_factory=list)
    window: WindowClause | None = None
    changes: TextPosition | None = None
    final: TextPosition | None = None


def split_clauses(tokens: list[Token], report: Report, form: Form) -> Clauses:
    """Split the tokens at the first streaming clause, and read the clauses."""
    starts = [i for i in _outside_brackets(tokens) if _is_clause(tokens, i)]
    window = next((i for i in starts if keyword(tokens, i) == "WINDOW"), None)
    if window is not None:  # to the end, where clauses belong
        end = _clause_end(tokens, window)
        tokens = [*tokens[:window], *tokens[end:], *tokens[window:end]]
    first = next((i for i in _outside_brackets(tokens) if _is_clause(tokens, i)), len(tokens))
    clauses = Clauses(tokens[:first])
    i = first
    while i < len(tokens):
        if not _is_clause(tokens, i):
            text = f"is not understood here; see docs/sql.md for what may follow {form.before}"
            if keyword(tokens, i) in {"LIMIT", "ORDER BY"}:
                text = f"{keyword(tokens, i)} is not supported: {form.rejected.get('limit', form.rest)}"
            report.add(token_position(tokens[i]), text)
            break
        end = _clause_end(tokens, i)
        _read_clause(tokens[i:end], clauses, report)
        i = end
    return clauses


def _read_clause(clause: list[Token], clauses: Clauses, report: Report) -> None:
    word, following = keyword(clause, 0), keyword(clause, 1)
    if word == "WITH" and clause[-1].token_type != TokenType.R_PAREN:
        report.add(token_position(clause[1]), "this bracket is not closed; write WITH ('name' = 'value', ...)")
    elif word == "WITH":
        clauses.options += clause[2:-1]
    elif word == "WINDOW" and clauses.window is not None:
        report.add(token_position(clause[1]), "a second WINDOW; keep one")
    elif word == "WINDOW":
        clauses.window = window = WindowClause(WINDOW_KINDS[following], token_position(clause[1]))
        if problem := _read_lengths(window, clause[2:], report):
            report.add(window.at, f"{problem}; {_EXAMPLES[window.kind]}")
    elif word == "PARTITION BY":
        facts = "PARTITION BY does not say the key of the output's records"
        report.add(token_position(clause[0]), f"{facts}; leave it out, and write output.kafka.key: [<columns>]")
    elif clauses.final is not None or clauses.changes is not None:
        report.add(token_position(clause[0]), "a second EMIT; keep one")
    elif following in {"FINAL", "ON"}:
        clauses.final = token_position(clause[0])
    else:
        clauses.changes = token_position(clause[0])


def _clause_end(tokens: list[Token], i: int) -> int:
    """Return the position after the clause that starts at `i`: two words, words followed by a bracket, or PARTITION BY
    with all up to the next clause."""
    if keyword(tokens, i) == "EMIT":
        return i + (4 if _closes_window(tokens, i) else 2)
    if keyword(tokens, i) == "PARTITION BY":
        return next((at for at in range(i + 1, len(tokens)) if _is_clause(tokens, at)), len(tokens))
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
        (word == "EMIT" and (following in {"CHANGES", "FINAL"} or _closes_window(tokens, i)))
        or (word == "WITH" and following == "(")
        or word == "PARTITION BY"
        or (word == "WINDOW" and following in WINDOW_KINDS)
    )


def _closes_window(tokens: list[Token], i: int) -> bool:
    """Say whether this is RisingWave's EMIT ON WINDOW CLOSE."""
    return [keyword(tokens, i + n) for n in range(1, 4)] == ["ON", "WINDOW", "CLOSE"]


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
_NAMES = {
    **{name: name for name in ("SIZE", "SLIDE", "GAP", "RETENTION")},
    **{"ADVANCE BY": "SLIDE", "GRACE PERIOD": "GRACE"},  # ksqlDB's
}
_EXAMPLES: dict[WindowKind, str] = {
    "tumbling": "write WINDOW TUMBLING(INTERVAL '1' HOUR)",
    "hopping": "write WINDOW SLIDING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE)",
    "session": "write WINDOW SESSION(INTERVAL '30' SECOND)",
}


class _BadLengthError(ValueError):
    """A length is rejected; the text says why."""


@dataclass(slots=True)
class WindowClause:
    """The clause. `lengths` are milliseconds by SIZE, SLIDE or GAP; `offset` (ms) and `zone` say from where windows
    count (None: from midnight UTC); `grace` is how long late rows count, in milliseconds, and `grace_at` its place
    (None: it is not said)."""

    kind: WindowKind
    at: TextPosition
    lengths: dict[str, int] = field(default_factory=dict)
    grace: int = 0
    grace_at: TextPosition | None = None
    offset: int = 0
    zone: str | None = None

    @property
    def alignment(self) -> dict[str, Any]:
        """The fields of a window of YAML that say from where windows count."""
        return alignment_fields(self.offset, self.zone)


def _read_lengths(window: WindowClause, brackets: Sequence[Token], report: Report) -> str:
    """Read the arguments into the window, and return what is wrong with all of them together."""
    opened = brackets and brackets[0].token_type == TokenType.L_PAREN
    if opened and brackets[-1].token_type != TokenType.R_PAREN:
        return "its bracket is not closed"
    for position, argument in enumerate(_split_arguments(brackets) if opened else ()):
        try:
            _read_argument(argument, position, window)
        except (_BadLengthError, NotALengthError) as error:
            report.add(token_position(argument[0]), f"{error}; {_EXAMPLES[window.kind]}")
            return ""
    if len(window.lengths) < len(_LENGTHS[window.kind]):
        return f"needs {' and '.join(_LENGTHS[window.kind])}"
    if window.lengths.get("SLIDE", 0) > window.lengths.get("SIZE", 0):
        return "SLIDE is longer than SIZE, so rows between two windows would match nothing"
    return ""


def _split_arguments(brackets: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at the commas. Calls are not allowed there, so brackets do not nest."""
    argument: list[Token] = []
    for token in brackets[1:]:
        if token.token_type in {TokenType.COMMA, TokenType.R_PAREN}:
            yield from [argument] if argument else []
            argument = []
        else:
            argument.append(token)


def _read_argument(argument: list[Token], position: int, window: WindowClause) -> None:
    names = _LENGTHS[window.kind]
    words = [name for name in _NAMES if [keyword(argument, i) for i in range(name.count(" ") + 1)] == name.split()]
    written, name = (words[0], _NAMES[words[0]]) if words else ("", names[position] if position < len(names) else "")
    length = argument[len(written.split()) :]
    if name == "RETENTION":
        raise _BadLengthError("keeps windows for ksqlDB's pull queries, which a job does not have; leave it out")
    if name == "GRACE" and window.grace_at is None:
        window.grace, window.grace_at = _parse_length(length, least=0), token_position(argument[0])
        return
    if name not in names or name in window.lengths:
        raise _BadLengthError("is not expected here")
    window.lengths[name] = _parse_length(length)


def _parse_length(tokens: list[Token], least: int = 1) -> int:
    if len(tokens) == 2 and tokens[0].token_type == TokenType.NUMBER:  # as in ksqlDB: 30 SECONDS
        tokens = [Token(TokenType.INTERVAL, "INTERVAL"), *tokens]
    try:
        nodes = Dialect.get_or_raise(None).parser().parse(tokens, "")
    except ParseError:
        nodes = []
    if len(nodes) != 1 or not isinstance(nodes[0], exp.Interval):
        raise _BadLengthError("the length is no INTERVAL and no number with a unit")
    ms = interval_ms(nodes[0])
    if problem := length_problem(ms, least):
        raise _BadLengthError(f"the length {problem}")
    return int(ms)


def window_ms(name: str, interval: exp.Interval) -> int:
    """Return the milliseconds of an INTERVAL in a function of windows. `name` is size, slide, gap, or offset, which may
    be negative. Raises NotALengthError."""
    ms = interval_ms(interval)
    problem = "" if ms.denominator == 1 else "must be whole milliseconds"
    if name != "offset":
        problem = length_problem(ms)
    if problem:
        raise NotALengthError(f"the {name} {problem}")
    return int(ms)


def length_problem(ms: Fraction, least: int = 1) -> str:
    """Say why this is no length of a window, of at least as many milliseconds; empty if it is one."""
    if ms.denominator != 1 or ms < least:
        return "must be whole milliseconds, more than none" if least else "must be whole milliseconds, none or more"
    return "" if ms <= MAX_MS else "must be at most 292 years"


# --- WITHIN, ksqlDB's bound of a join -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Within:
    """`WITHIN (<before>, <after>) GRACE PERIOD <grace>`, in milliseconds: the right row comes at most `before` earlier
    and `after` later than the left one. `grace_at` is the place of the grace (None: it is not said)."""

    at: TextPosition
    before: int
    after: int
    grace: int = 0
    grace_at: TextPosition | None = None


_BEHIND_WITHIN = {"ON", "USING", "WHERE", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "GROUP BY"}


def take_withins(tokens: Sequence[Token], report: Report) -> tuple[list[Token], list[Within]]:
    """Take the clauses WITHIN off the joins, and read them."""
    rest: list[Token] = []
    withins: list[Within] = []
    i = 0
    while i < len(tokens):
        following = keyword(tokens, i + 1)
        bound = following in {"(", "INTERVAL"} or following[:1].isdigit()
        if not bound or keyword(tokens, i) != "WITHIN" or (i and tokens[i - 1].text == "."):
            rest.append(tokens[i])
            i += 1
            continue
        end = next((at for at in range(i, len(tokens)) if keyword(tokens, at) in _BEHIND_WITHIN), len(tokens))
        withins.append(_read_within(tokens[i:end], report))
        i = end
    return rest, withins


def _read_within(clause: Sequence[Token], report: Report) -> Within:
    """Read the words up to ON; lengths that the report rejects are 0."""
    grace = next((i for i in range(len(clause)) if keyword(clause, i) == "GRACE"), len(clause))
    sizes, of_grace = [*clause[1:grace]], [*clause[grace + 2 :]]
    at = token_position(clause[0])
    try:
        if sizes[0].token_type == TokenType.L_PAREN:
            if sizes[-1].token_type != TokenType.R_PAREN:
                raise _BadLengthError("its bracket is not closed")
            lengths = [_parse_length(size, least=0) for size in _split_arguments(sizes)]
        else:
            lengths = [_parse_length(sizes, least=0)]
        if not 1 <= len(lengths) <= 2:
            raise _BadLengthError("its brackets hold one length, or two, before and after")
        grace_ms = _parse_length(of_grace, least=0) if grace < len(clause) else 0
    except (_BadLengthError, NotALengthError) as error:
        todo = "write JOIN b WITHIN 1 HOUR ON ..., WITHIN (1 HOUR, 2 HOURS), or either with GRACE PERIOD 5 MINUTES"
        report.add(at, f"{error}; {todo}")
        return Within(at, 0, 0)
    grace_at = token_position(clause[grace]) if grace < len(clause) else None
    return Within(at, lengths[0], lengths[-1], grace_ms, grace_at)


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
    for name, value in _pair_options(tokens, report):
        problem = _name_problem(name.text, kinds, options, grouped=grouped)
        if problem:
            report.add(token_position(name), problem)
            continue
        options.at[name.text] = token_position(value)
        try:
            _take_option(name.text, value.text, kinds, options)
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


def _take_option(name: str, text: str, kinds: Sequence[JoinKind], options: Options) -> None:
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


def _pair_options(tokens: Sequence[Token], report: Report) -> list[tuple[Token, Token]]:
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
