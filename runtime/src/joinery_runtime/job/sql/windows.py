"""Reads the clause WINDOW TUMBLING(...), SLIDING(...), HOPPING(...) or SESSION(...) of a join as a step's `window`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.sql.interval import NoBoundError, interval_ms
from joinery_runtime.job.sql.report import Report, TextPosition, token_place

WindowKind = Literal["tumbling", "hopping", "session"]

KINDS: dict[str, WindowKind] = {
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
    """A length is refused; the text says why."""


@dataclass(slots=True)
class WindowClause:
    """The clause. `lengths` are milliseconds by SIZE, SLIDE or GAP."""

    kind: WindowKind
    at: TextPosition
    lengths: dict[str, int] = field(default_factory=dict)

    def as_field(self) -> dict[str, Any]:
        lengths = {name.lower(): ms for name, ms in self.lengths.items()}
        return {self.kind: lengths.get("size") if self.kind == "tumbling" else lengths}


def read_window(clause: Sequence[Token], report: Report) -> WindowClause:
    """Reads a clause, which starts with the two words WINDOW and one of KINDS."""
    window = WindowClause(KINDS[clause[1].text.upper()], token_place(clause[1]))
    problem = _problem(window, clause[2:], report)
    if problem:
        report.add(window.at, f"{problem}; {_EXAMPLES[window.kind]}")
    return window


def _problem(window: WindowClause, brackets: Sequence[Token], report: Report) -> str:
    opened = brackets and brackets[0].token_type == TokenType.L_PAREN
    for position, argument in enumerate(_arguments(brackets) if opened else ()):
        try:
            _read(argument, position, window)
        except (_BadLengthError, NoBoundError) as error:
            report.add(token_place(argument[0]), f"{error}; {_EXAMPLES[window.kind]}")
            return ""
    if len(window.lengths) < len(_LENGTHS[window.kind]):
        return f"needs {' and '.join(_LENGTHS[window.kind])}"
    if window.lengths.get("SLIDE", 0) > window.lengths.get("SIZE", 0):
        return "SLIDE is longer than SIZE, so rows between two windows would match nothing"
    return ""


def _arguments(brackets: Sequence[Token]) -> Iterator[list[Token]]:
    """The arguments between the commas. Calls are not allowed there, so brackets do not nest."""
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
    if ms <= 0 or ms.denominator != 1:
        raise _BadLengthError("the length of a window must be whole milliseconds, more than none")
    return int(ms)
