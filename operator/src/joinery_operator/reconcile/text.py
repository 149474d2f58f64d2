"""Texts of a status, bounded: what others said may be of any length."""

from __future__ import annotations

from collections.abc import Sequence

MESSAGE = 1024
"""Characters of one message."""
_PROBLEMS = 16


def cut(text: str, limit: int = MESSAGE) -> str:
    """At most `limit` characters; what is left out is left out in the middle, because ends of errors tell most."""
    text = text.strip()
    if len(text) <= limit:
        return text
    kept = limit - 5
    return f"{text[: kept // 2]} ... {text[-(kept - kept // 2) :]}"


def sentence(*parts: str) -> str:
    """The parts that are not empty, joined by ": "."""
    return ": ".join(part for part in parts if part)


def listed(problems: Sequence[str]) -> str:
    """One a line; of many, how many more there are."""
    shown = [cut(problem, MESSAGE // 4) for problem in problems[:_PROBLEMS]]
    more = len(problems) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)
