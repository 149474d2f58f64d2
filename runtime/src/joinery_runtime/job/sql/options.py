"""The options of a join: WITH ('join.lower_bound' = '0s', ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.model.duration import parse_duration
from joinery_runtime.job.model.wording import listed, suggestion
from joinery_runtime.job.sql.report import Report, TextPosition, token_place
from joinery_runtime.job.sql.windows import WindowKind

JoinKind = WindowKind | Literal["interval", "asof"]

TYPE, LOWER, UPPER, RETENTION = "join.type", "join.lower_bound", "join.upper_bound", "join.retention"
LATENESS, LATE_DATA, BROADCAST = "join.allowed_lateness", "join.late_data", "join.broadcast"
HISTORY, GRACE = "join.history_retention", "join.grace"

_MAY_BE_NEGATIVE = {LOWER, UPPER}
_INTERVAL = (TYPE, LOWER, UPPER, RETENTION, LATENESS, LATE_DATA, BROADCAST)
_WINDOW = (TYPE, LATENESS, LATE_DATA)
_OF_KIND: Mapping[JoinKind, tuple[str, ...]] = {
    "interval": _INTERVAL, "asof": (TYPE, HISTORY, GRACE),
    "tumbling": _WINDOW, "hopping": _WINDOW, "session": _WINDOW,
}  # fmt: skip
_KNOWN = tuple(dict.fromkeys(name for names in _OF_KIND.values() for name in names))
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
    from the first. `broadcast` holds names or aliases. `at` is the place of each option's value; `broken`: one was
    refused."""

    ms: dict[str, int] = field(default_factory=dict)
    late_data: str = "drop"
    broadcast: tuple[str, ...] = ()
    at: dict[str, TextPosition] = field(default_factory=dict)
    broken: bool = False


def read_options(tokens: Sequence[Token], kind: JoinKind, report: Report) -> Options:
    """Reads the options. `kind` is what the clauses of the SQL say, which 'join.type' must not contradict."""
    before = len(report.problems)
    options = Options()
    for name, value in _pairs(tokens, report):
        problem = _name_problem(name.text, kind, options)
        if problem:
            report.add(token_place(name), problem)
            continue
        options.at[name.text] = token_place(value)
        try:
            _take(name.text, value.text, kind, options)
        except ValueError as error:
            report.add(token_place(value), str(error))
    if RETENTION in options.at and LATENESS in options.at:
        report.add(options.at[LATENESS], f"{RETENTION!r} says the same in another way; keep one of the two")
    options.broken = len(report.problems) > before
    return options


def _name_problem(name: str, kind: JoinKind, options: Options) -> str:
    if name not in _KNOWN:
        return f"is not an option{suggestion(name, _KNOWN)}; options are {listed(_KNOWN)}"
    if name not in _OF_KIND[kind]:
        return f"is not an option of this kind of join ({kind}); its options are {listed(_OF_KIND[kind])}"
    return "is given twice; keep one" if name in options.at else ""


def _take(name: str, text: str, kind: JoinKind, options: Options) -> None:
    """Takes one option. Raises ValueError, which says what is wrong with the value."""
    if name == TYPE:
        _check_type(text.lower(), kind)
    elif name == LATE_DATA:
        if text not in {"drop", "reopen", "dlq"}:
            raise ValueError("is drop, reopen or dlq")
        options.late_data = text
    elif name == BROADCAST:
        options.broadcast = tuple(part.strip() for part in text.split(","))
    else:
        options.ms[name] = parse_duration(text)
        if options.ms[name] < 0 and name not in _MAY_BE_NEGATIVE:
            raise ValueError("is a length of time, it must not be negative")


def _check_type(text: str, kind: JoinKind) -> None:
    if text not in _CLAUSES:
        raise ValueError(f"is not a kind of join{suggestion(text, _CLAUSES)}; write {listed(map(repr, _CLAUSES))}")
    meant, todo = _CLAUSES[text]
    if meant != kind:
        raise ValueError(f"the SQL says {kind}; {todo}, or leave {TYPE!r} out")


def _pairs(tokens: Sequence[Token], report: Report) -> list[tuple[Token, Token]]:
    pairs: list[tuple[Token, Token]] = []
    expected_types = (TokenType.STRING, TokenType.EQ, TokenType.STRING, TokenType.COMMA)
    for i, token in enumerate(tokens):
        if token.token_type != expected_types[i % 4]:
            report.add(token_place(token), "options are written WITH ('name' = 'value', ...)")
            return []
        if i % 4 == 2:
            pairs.append((tokens[i - 2], token))
    if tokens and len(tokens) % 4 != 3:
        report.add(token_place(tokens[-1]), "an option is not complete; write WITH ('name' = 'value', ...)")
    return pairs
