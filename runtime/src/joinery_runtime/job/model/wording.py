"""Small pieces of error messages that several modules share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def listed(words: Iterable[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    *most, last = list(words) or ["(none)"]
    return f"{', '.join(most)} and {last}" if most else last


def suggestion(word: object, options: Iterable[str]) -> str:
    """Write ` (did you mean 'x'?)` when one of the options is close to the word, else nothing."""
    close = difflib.get_close_matches(str(word).lower(), {option.lower(): option for option in options}, n=1)
    by_lower = {option.lower(): option for option in options}
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


_RULE = re.compile(r"\brule ([A-Z]\d+)\b")


def linked(message: str) -> str:
    """Return the message, followed by links to the rules that it names on the page of the rules."""
    links = dict.fromkeys(f"docs/semantics.md#{rule.lower()}" for rule in _RULE.findall(message))
    return f"{message}; see {listed(links)}" if links else message


def either(words: Iterable[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    *most, last = list(words) or ["(none)"]
    return f"{', '.join(most)} or {last}" if most else last


_OF_ONE = {"are": "is", "were": "was", "stay": "stays", "go": "goes"}


def counted(count: int, noun: str, verb: str = "") -> str:
    """Write `1 row` or `2 rows`; with a verb, `1 row was` or `2 rows were`. `verb` is one of `_OF_ONE`."""
    amount = f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
    return f"{amount} {agreeing(count, verb)}" if verb else amount


def agreeing(count: int, verb: str) -> str:
    """Return the form of the verb (one of `_OF_ONE`) that agrees with a count: `1 row of it was`, `2 rows of it
    were`."""
    return _OF_ONE[verb] if count == 1 else verb


def changelog_text(key: Iterable[str] | None) -> str:
    """Return what rows are: `append-only`, or `changelog by currency, session_id`."""
    return "append-only" if key is None else f"changelog by {', '.join(key)}: a row replaces the one before"


def size_text(count: float) -> str:
    """Return a number of bytes in a fitting unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
