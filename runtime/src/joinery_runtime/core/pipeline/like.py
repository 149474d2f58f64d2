"""LIKE: `%` is any text, `_` any character, and the escape character takes the meaning off the character behind it.

The escape character is a backslash unless ESCAPE names another one, as in Postgres and Spark. At the end of a pattern
it stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import Value, text

_REGULAR = {"%": ".*", "_": "."}


def match_like(texts: Value, patterns: Value, escape: str, *, any_case: bool) -> Value:
    """Match the texts against patterns. One pattern for all rows is matched by Arrow, which needs no regular expression
    for those such as `a%`; `texts` may be binary then. Raises ArrowInvalid for a pattern that is too long."""
    if isinstance(patterns, pa.Scalar):
        if not patterns.is_valid:
            return pa.scalar(None, pa.bool_())
        written = "".join(
            f"\\{character}" if literal and character in "%_\\" else character
            for character, literal in _characters(patterns.as_py(), escape)
        )
        return pc.match_like(texts, written, ignore_case=any_case)
    distinct = patterns.dictionary_encode()
    expressions = [_expression(pattern, escape, any_case=any_case) for pattern in distinct.dictionary.to_pylist()]
    by_row = pa.array(expressions, pa.string()).take(distinct.indices)
    searched = pa.repeat(text(texts), len(patterns)) if isinstance(texts, pa.Scalar) else text(texts)
    table = pl.DataFrame({"text": searched, "pattern": by_row})
    try:
        return table.select(pl.col("text").str.contains(pl.col("pattern"))).to_series().to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a pattern of 50,000 characters
        raise pa.ArrowInvalid(str(error).strip().splitlines()[0]) from error


def _expression(pattern: str, escape: str, *, any_case: bool) -> str:
    """Write a pattern as a regular expression of the whole text."""
    parts = (
        re.escape(character) if literal else _REGULAR[character] for character, literal in _characters(pattern, escape)
    )
    return f"(?s{'i' if any_case else ''})^(?:{''.join(parts)})$"


def _characters(pattern: str, escape: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters of a pattern, each with whether it stands for itself."""
    position = 0
    while position < len(pattern):
        is_escape = pattern[position] == escape and position + 1 < len(pattern)
        position += is_escape
        yield pattern[position], is_escape or pattern[position] not in _REGULAR
        position += 1
