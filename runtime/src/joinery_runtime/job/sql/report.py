"""Collects the problems of an SQL text, each with its place in the text."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from joinery_runtime.job.model.expression_tree import TOO_DEEP

_LONGEST = 80  # characters of a fragment that are shown


class Report:
    """Problems of one SQL text. Lines and columns count from 1."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._problems: list[tuple[int, str]] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems in the order of their places, each once."""
        return tuple(dict.fromkeys(message for _, message in sorted(self._problems, key=lambda problem: problem[0])))

    def add(self, at: TextPosition, message: str) -> None:
        self._problems.append((at.start, f"{self._where(at)}: {message}"))

    def _where(self, at: TextPosition) -> str:
        before = self._sql[: at.start]
        line, column = before.count("\n") + 1, at.start - (before.rfind("\n") + 1) + 1
        shown = at.fragment if len(at.fragment) <= _LONGEST else at.fragment[: _LONGEST - 3] + "..."
        return f"line {line}, column {column}, `{shown}`"


def problems_of(sql: str, read: Callable[[str, Report], object]) -> tuple[str, ...]:
    """What `read` finds wrong with the text."""
    report = Report(sql)
    try:
        read(sql, report)
    except RecursionError:
        return (TOO_DEEP,)
    return report.problems


class TextPosition:
    """`start` is an offset in the text, in characters."""

    def __init__(self, start: int, fragment: str) -> None:
        self.start, self.fragment = start, fragment


def place_of(node: exp.Expr) -> TextPosition:
    """The place of the node's first name or number, since sqlglot keeps no other places."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return TextPosition(min(starts, default=0), node.sql(comments=False))


def token_place(token: Token) -> TextPosition:
    return TextPosition(token.start, token.text)
