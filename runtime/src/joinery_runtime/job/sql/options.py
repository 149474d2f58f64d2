"""The options of a join: WITH ('join.lower_bound' = '0s', ...)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from joinery_runtime.job.duration import parse_duration
from joinery_runtime.job.sql.parse import token_place
from joinery_runtime.job.sql.report import Place, Report
from joinery_runtime.job.wording import listed, suggestion

_TYPE, _LOWER, _UPPER, _RETENTION = "join.type", "join.lower_bound", "join.upper_bound", "join.retention"
_KNOWN = (_TYPE, _LOWER, _UPPER, _RETENTION)


@dataclass(frozen=True, slots=True)
class Options:
    """Milliseconds; bounds are of the second input of the SQL counted from its first. `retention_at` is the place of
    the retention; `broken` says that something was refused, which may have been a bound."""

    lower: int | None = None
    upper: int | None = None
    retention: int | None = None
    retention_at: Place | None = None
    broken: bool = False


def read_options(tokens: Sequence[Token], report: Report) -> Options:
    before = len(report.problems)
    found: dict[str, Token] = {}
    for name, value in _pairs(tokens, report):
        if name.text not in _KNOWN:
            hint = suggestion(name.text, _KNOWN)
            report.add(token_place(name), f"is not an option{hint}; options are {listed(_KNOWN)}")
        elif name.text in found:
            report.add(token_place(name), "is given twice; keep one")
        else:
            found[name.text] = value
    kind = found.get(_TYPE)
    if kind is not None and kind.text.lower() != "interval":
        report.add(token_place(kind), "this kind of join is not supported yet; write 'join.type' = 'interval'")
    lower, upper, retention = (_duration(found.get(name), report) for name in (_LOWER, _UPPER, _RETENTION))
    at = token_place(found[_RETENTION]) if _RETENTION in found else None
    return Options(lower, upper, retention, at, broken=len(report.problems) > before)


def _pairs(tokens: Sequence[Token], report: Report) -> list[tuple[Token, Token]]:
    pairs: list[tuple[Token, Token]] = []
    wanted = (TokenType.STRING, TokenType.EQ, TokenType.STRING, TokenType.COMMA)
    for i, token in enumerate(tokens):
        if token.token_type != wanted[i % 4]:
            report.add(token_place(token), "options are written WITH ('name' = 'value', ...)")
            return []
        if i % 4 == 2:
            pairs.append((tokens[i - 2], token))
    if tokens and len(tokens) % 4 != 3:
        report.add(token_place(tokens[-1]), "an option is not complete; write WITH ('name' = 'value', ...)")
    return pairs


def _duration(token: Token | None, report: Report) -> int | None:
    if token is None:
        return None
    try:
        return parse_duration(token.text)
    except ValueError as error:
        report.add(token_place(token), str(error))
        return None
