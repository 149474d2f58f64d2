"""Functions that find parts of texts: by regular expressions, by paths in JSON, and between separators. Also LIKE.

Regular expressions have the syntax of RE2: linear in the text, without look-around and back references in patterns.
Patterns and paths are constants, and Joinery checks them when it loads the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline import operators
from joinery_runtime.core.pipeline.functions.base import (
    Family,
    computed_by_polars,
    constant,
    integer,
    optional,
    string,
)
from joinery_runtime.core.pipeline.operators import Value

PATTERNS, JSON = Family("Regular expressions"), Family("JSON")
_FLAGS = {"i": "i", "c": "", "m": "m", "n": "m", "s": "s", "g": ""}
_PATTERN, _OPTIONAL_FLAGS = constant(string("pattern")), optional(constant(string("flags")))


def _with_flags(pattern: str, flags: str) -> str:
    unknown = sorted(set(flags) - set(_FLAGS))
    if unknown:
        raise pa.ArrowTypeError(f"its flags are i (any case), m (^ and $ at lines), s (. takes line breaks), found "
                                f"{unknown[0]!r}")  # fmt: skip
    letters = "".join(dict.fromkeys(_FLAGS[flag] for flag in flags))
    return f"(?{letters}){pattern}" if letters else pattern


def _with_checked_pattern(run: Callable[[], Value]) -> Value:
    """Run a kernel whose only fault can be the pattern, which is wrong whatever the rows."""
    try:
        return run()
    except pa.ArrowInvalid as error:
        raise pa.ArrowTypeError(f"its pattern is none that RE2 understands: {error}") from error


PATTERNS.define(
    "REGEXP_LIKE REGEXP_MATCHES RLIKE REGEXP",
    string("text"),
    _PATTERN,
    _OPTIONAL_FLAGS,
    returns="boolean",
    meaning="whether a part of the text matches. Flags: `i` any case, `m` lines, `s` the point takes line "
    "breaks. Also "
    "`text RLIKE pattern`",
    example="REGEXP_LIKE('ABC', '^a.', 'i')",
    result="TRUE",
)(
    lambda text, pattern, flags="": _with_checked_pattern(
        lambda: pc.match_substring_regex(text, _with_flags(pattern, flags))
    )
)
PATTERNS.define(
    "REGEXP_COUNT",
    string("text"),
    _PATTERN,
    returns="int32",
    meaning="how many parts match, which do not overlap",
    example="REGEXP_COUNT('banana', 'an')",
    result="2",
)(lambda text, pattern: _with_checked_pattern(lambda: pc.count_substring_regex(text, pattern).cast(pa.int32())))
PATTERNS.define(
    "REGEXP_REPLACE",
    string("text"),
    _PATTERN,
    constant(string("replacement")),
    _OPTIONAL_FLAGS,
    returns="string",
    meaning="with every part that matches replaced (as in Spark and Flink); `\\1` or `$1` is what the first group "
    "matches",
    example="REGEXP_REPLACE('John Smith', '(\\w+) (\\w+)', '$2 $1')",
    result="'Smith John'",
)(
    lambda text, pattern, replacement, flags="": _with_checked_pattern(
        lambda: pc.replace_substring_regex(text, _with_flags(pattern, flags), _re2_replacement(replacement))
    )
)


@PATTERNS.define(
    "REGEXP_EXTRACT",
    string("text"),
    _PATTERN,
    optional(constant(integer("group"))),
    returns="string",
    meaning="what this group (0: the whole pattern) matches in the first part that matches; NULL if nothing matches. "
    "Without `group` the first group, or the whole pattern if it has none",
    example="REGEXP_EXTRACT('a=1;b=22', 'b=(\\d+)')",
    result="'22'",
)
def _extract_group(text: Value, pattern: str, group: int | None = None) -> Value:
    starts = _group_starts(pattern)
    group_number = min(1, len(starts)) if group is None else group
    if not 0 <= group_number <= len(starts):
        raise pa.ArrowTypeError(f"its pattern has {len(starts)} groups, and its group is {group_number}")
    named = pattern
    for number in range(len(starts), 0, -1):
        start, end = starts[number - 1]
        named = f"{named[:start]}(?P<g{number}>{named[end:]}"
    groups = _with_checked_pattern(lambda: pc.extract_regex(text, f"(?P<g0>{named})"))
    # An optional group that matched nothing is the empty text, as in every system.
    return pc.if_else(pc.is_valid(groups), pc.struct_field(groups, f"g{group_number}"), pa.scalar(None, pa.string()))


def _group_starts(pattern: str) -> list[tuple[int, int]]:
    """Find the start of each capturing group, and where what it matches starts."""
    starts: list[tuple[int, int]] = []
    position, in_class = 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif in_class:
            if pattern.startswith("[:", position):
                position = max(pattern.find(":]", position), position) + 1
            in_class = character != "]"
        elif character == "[":
            in_class = True
            position += pattern[position + 1 : position + 2] == "^"
            position += pattern[position + 1 : position + 2] == "]"
        elif character == "(":
            rest = pattern[position + 1 :]
            if not rest.startswith("?"):
                starts.append((position, position + 1))
            elif rest.startswith(("?P<", "?<")):
                starts.append((position, pattern.find(">", position) + 1))
        position += 1
    return starts


@PATTERNS.define(
    "REGEXP_SUBSTR",
    string("text"),
    _PATTERN,
    returns="string",
    meaning="the first part that matches; NULL if none",
    example="REGEXP_SUBSTR('a1b22', '\\d+')",
    result="'1'",
)
def _extract_match(text: Value, pattern: str) -> Value:
    return _extract_group(text, pattern, 0)


@PATTERNS.define(
    "REGEXP_INSTR",
    string("text"),
    _PATTERN,
    returns="int64",
    meaning="where the first part that matches begins, from 1; 0 if none does",
    example="REGEXP_INSTR('añ1', '\\d')",
    result="3",
)
def _position_of_match(text: Value, pattern: str) -> Value:
    byte = _with_checked_pattern(lambda: pc.find_substring_regex(text, pattern))
    return computed_by_polars(
        lambda text, byte: (
            pl.when(byte < 0)
            .then(0)
            .otherwise(text.cast(pl.Binary).bin.head(byte).cast(pl.String).str.len_chars().cast(pl.Int64) + 1)
        ),
        text,
        byte,
    )


def _re2_replacement(replacement: str) -> str:
    """Write `$1`, Spark's and Flink's name of a group, as RE2's `\\1`; `\\$` is a dollar sign."""
    text, position = "", 0
    while position < len(replacement):
        character, following = replacement[position], replacement[position + 1 : position + 2]
        if character == "\\" and following == "$":
            text, position = text + "$", position + 2
        elif character == "\\" and following:
            text, position = text + character + following, position + 2
        elif character == "$" and following.isdigit():
            text, position = f"{text}\\{following}", position + 2
        else:
            text, position = text + character, position + 1
    return text


PATTERNS.define(
    "REGEXP_ESCAPE",
    string("text"),
    returns="string",
    meaning="the text as a pattern that matches it",
    example="REGEXP_ESCAPE('a.b')",
    result="'a\\.b'",
)(lambda text: computed_by_polars(lambda text: text.str.escape_regex(), text))

# --- JSON -------------------------------------------------------------------------------------------------------------

_PATH = re.compile(r"""\$(\.[^.\[\]"'*?@\s]+|\["[^"]*"\]|\['[^']*'\]|\[-?\d+\])*""")


@JSON.define(
    "JSON_VALUE GET_JSON_OBJECT JSON_EXTRACT_STRING JSON_EXTRACT_SCALAR EXTRACTJSONFIELD",
    string("text"),
    constant(string("path")),
    returns="string",
    meaning="what a path such as `$.a.b[0]` leads to: a text without its quotes, anything else as JSON; NULL for "
    "a null, a "
    "path that leads nowhere, and text that is not JSON. Also `text ->> path`",
    example="JSON_VALUE('{\"a\": {\"b\": [7, 8]}}', '$.a.b[1]')",
    result="'8'",
)
def _value_at(text: Value, path: str) -> Value:
    if not _PATH.fullmatch(path):
        raise pa.ArrowTypeError(f"""its path is like $.name, $["a name"] or $.names[0], found {path!r}""")
    return computed_by_polars(lambda text: text.str.json_path_match(path), text)


JSON.define(
    "JSON_VALID IS_JSON",
    string("text"),
    returns="boolean",
    meaning="whether the text is JSON",
    example="JSON_VALID('{')",
    result="FALSE",
)(
    lambda text: computed_by_polars(
        # A path finds nothing in a null.
        lambda text: text.str.json_path_match("$").is_not_null() | (text.str.strip_chars(" \t\n\r") == "null"),
        text,
    )
)


# --- LIKE -------------------------------------------------------------------------------------------------------------
#
# `%` is any text, `_` any character, and the escape character takes the meaning off the character behind it. It is a
# backslash unless ESCAPE names another one, as in Postgres and Spark. At the end of a pattern it stands for itself.

_REGULAR = {"%": ".*", "_": "."}
_LONGEST_PATTERN = 10_000
"""Characters. One of twice as many `_` is too large for Polars, and takes seconds before that is known."""


def match_like(texts: Value, patterns: Value, escape: str, *, any_case: bool) -> Value:
    """Match the texts against patterns. One pattern for all rows is matched by Arrow, which needs no regular expression
    for those such as `a%`; `texts` may be binary then. Raises ArrowInvalid for a pattern that is too long."""
    if (longest := pc.max(pc.utf8_length(patterns)).as_py() or 0) > _LONGEST_PATTERN:
        raise pa.ArrowInvalid(f"a LIKE pattern has at most {_LONGEST_PATTERN:,} characters, and this one {longest:,}")
    if isinstance(patterns, pa.Scalar):
        if not patterns.is_valid:
            return pa.scalar(None, pa.bool_())
        written = "".join(
            f"\\{character}" if literal and character in "%_\\" else character
            for character, literal in _characters(patterns.as_py(), escape)
        )
        return pc.match_like(texts, written, ignore_case=any_case)
    distinct = patterns.dictionary_encode()
    expressions = list[str]()
    for pattern in distinct.dictionary.to_pylist():
        characters = _characters(pattern, escape)
        parts = (re.escape(character) if literal else _REGULAR[character] for character, literal in characters)
        expressions.append(f"(?s{'i' if any_case else ''})^(?:{''.join(parts)})$")
    by_row = pa.array(expressions, pa.string()).take(distinct.indices)
    searched = operators.text(texts)
    if isinstance(searched, pa.Scalar):
        searched = pa.repeat(searched, len(patterns))
    table = pl.DataFrame({"text": searched, "pattern": by_row})
    try:
        return table.select(pl.col("text").str.contains(pl.col("pattern"))).to_series().to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a pattern of 50,000 characters
        raise pa.ArrowInvalid(str(error).strip().splitlines()[0]) from error


def _characters(pattern: str, escape: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters of a pattern, each with whether it stands for itself."""
    position = 0
    while position < len(pattern):
        is_escape = pattern[position] == escape and position + 1 < len(pattern)
        position += is_escape
        yield pattern[position], is_escape or pattern[position] not in _REGULAR
        position += 1


# --- texts that are split at a separator, of which a row needs one part -----------------------------------------------


def split_at(text: pl.Expr, separator: pl.Expr) -> pl.Expr:
    """Split texts (a list per row). An empty separator splits nothing."""
    return pl.when(separator == "").then(pl.concat_list(text)).otherwise(text.str.split(separator))


def part_at(text: Value, separator: Value, index: Value) -> pa.Array:
    """Return the part of each text with this index, from 0 or from the end if negative; NULL if there is none."""
    # A byte below 128 is never a part of another character.
    if (
        isinstance(separator, pa.Scalar)
        and isinstance(index, pa.Scalar)
        and separator.as_py().isascii()
        and len(separator.as_py()) == 1
        and index.as_py() >= 0
        and len(text)
    ):
        return _cut_part(text, ord(separator.as_py()), index.as_py())
    return computed_by_polars(
        lambda text, separator, index: split_at(text, separator).list.get(index, null_on_oob=True),
        text,
        separator,
        index,
    )


def _cut_part(text: pa.Array, separator: int, index: int) -> pa.Array:
    """Cut the parts from the texts' buffer, without a list of all parts, which takes 2.7 times the CPU."""
    _, offsets, data = text.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(text) + 1, text.offset * 4)
    content = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    begins, ends = bounds[:-1], bounds[1:]
    # The last position is behind all texts, so that a part that begins after it is none.
    positions = np.append(np.flatnonzero(content == separator), len(content))
    first = np.searchsorted(positions, begins)
    starts = begins if index == 0 else _positions_at(positions, first, index - 1) + 1
    stops = np.minimum(_positions_at(positions, first, index), ends)
    # What is between two parts is cut as a text, too: so both bounds of each part are offsets into the same bytes.
    cuts = np.empty(2 * len(text), np.int32)
    cuts[0::2], cuts[1::2] = np.minimum(starts, ends), stops
    pieces = pa.StringArray.from_buffers(2 * len(text) - 1, pa.py_buffer(cuts), pa.py_buffer(content))
    missing = (starts > ends) | text.is_null().to_numpy(zero_copy_only=False)
    return pieces.take(pa.array(np.arange(0, 2 * len(text), 2), mask=missing))


def _positions_at(positions: npt.NDArray[np.int64], first: npt.NDArray[np.int64], index: int) -> npt.NDArray[np.int64]:
    return positions[np.minimum(first + min(index, len(positions)), len(positions) - 1)]
