"""Functions of text. Positions and lengths count Unicode code points, from 1, and nothing depends on a locale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import (
    MAX_CHARACTERS,
    Family,
    Parameter,
    by_polars,
    computed_by_polars,
    constant,
    integer,
    optional,
    repeated,
    require,
    string,
)
from joinery_runtime.core.pipeline.functions.patterns import part_at, split_at
from joinery_runtime.core.pipeline.operators import Value

TEXT = Family("Text")
_TOO_LONG = f"the text would be longer than {MAX_CHARACTERS:,} characters"
_BLANK = pa.scalar(" ")
_NO_INDEX = pa.scalar(2**63 - 1)
_WHITE_SPACE = pa.scalar(None, pa.string())  # Polars then strips that of Unicode
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_CHARACTER = np.dtype((np.str_, 1))  # one code point


def _position_in(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    before = split_at(text, part).list.get(0).str.len_chars().cast(pl.Int64)
    return pl.when(part == "").then(1).when(_occurrences(text, part) > 0).then(before + 1).otherwise(0)


def _occurrences(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    """Count the parts of a text. Where Polars has one row, its `contains` compiles the part as a pattern, which takes
    minutes for a long one."""
    return text.str.count_matches(part, literal=True).cast(pl.Int64)


# --- letters and blanks -----------------------------------------------------------------------------------------------

TEXT.define(
    "LOWER LCASE", string("text"), returns="string", meaning="small letters", example="LOWER('ÀB')", result="'àb'"
)(pc.utf8_lower)
TEXT.define(
    "UPPER UCASE", string("text"), returns="string", meaning="capital letters", example="UPPER('àb')", result="'ÀB'"
)(pc.utf8_upper)
TEXT.define(
    "INITCAP",
    string("text"),
    returns="string",
    meaning="a capital at the start of each run of letters and digits, small letters behind it",
    example="INITCAP('ann-MARIE 2nd')",
    result="'Ann-Marie 2nd'",
)(
    by_polars(
        lambda text: (
            text.str.to_lowercase()
            .str.extract_all(r"[\p{L}\p{N}]+|[^\p{L}\p{N}]+")
            .list.eval(pl.element().str.head(1).str.to_uppercase() + pl.element().str.slice(1))
            .list.join("")
        )
    )
)
TEXT.define(
    "LENGTH LEN CHAR_LENGTH CHARACTER_LENGTH",
    string("text"),
    returns="int32",
    meaning="its number of code points",
    example="LENGTH('añb')",
    result="3",
)(pc.utf8_length)
TEXT.define(
    "OCTET_LENGTH BYTE_LENGTH",
    Parameter("value", "bytes"),
    returns="int32",
    meaning="its number of bytes, in UTF-8",
    example="OCTET_LENGTH('añb')",
    result="4",
)(pc.binary_length)


def _trimmer(strip: str) -> Callable[..., Value]:
    """Make the kernel that strips by this method of Polars."""

    def trim(text: Value, characters: Value = _WHITE_SPACE) -> Value:
        return computed_by_polars(lambda text, characters: getattr(text.str, strip)(characters), text, characters)

    return trim


TEXT.define(
    "TRIM BTRIM",
    string("text"),
    optional(string("characters")),
    returns="string",
    meaning="without white space, or without any of these characters, at both ends; also `TRIM(BOTH 'x' FROM text)`",
    example="TRIM('xyaxbx', 'xy')",
    result="'axb'",
)(_trimmer("strip_chars"))
TEXT.define(
    "LTRIM",
    string("text"),
    optional(string("characters")),
    returns="string",
    meaning="likewise at the start; also `TRIM(LEADING 'x' FROM text)`",
    example="LTRIM('  a ')",
    result="'a '",
)(_trimmer("strip_chars_start"))
TEXT.define(
    "RTRIM",
    string("text"),
    optional(string("characters")),
    returns="string",
    meaning="likewise at the end; also `TRIM(TRAILING 'x' FROM text)`",
    example="RTRIM('a  ')",
    result="'a'",
)(_trimmer("strip_chars_end"))


@TEXT.define(
    "NORMALIZE",
    string("text"),
    optional(constant(string("form"))),
    returns="string",
    meaning="its Unicode normal form: NFC, NFD, NFKC or NFKD",
    example="LENGTH(NORMALIZE('e\u0301', NFC))",
    result="1",
)
def _normal_form(text: Value, form: str = "NFC") -> Value:
    if form.upper() not in {"NFC", "NFD", "NFKC", "NFKD"}:
        raise pa.ArrowTypeError(f"its form must be NFC, NFD, NFKC or NFKD, found {form!r}")
    return pc.utf8_normalize(text, form.upper())


# --- parts ------------------------------------------------------------------------------------------------------------


@TEXT.define(
    "SUBSTRING SUBSTR",
    string("text"),
    integer("start"),
    optional(integer("length")),
    returns="string",
    meaning="the part from `start`, of at most `length`; also `SUBSTRING(text FROM start FOR length)`. "
    "Fails if `start` is below 1 or `length` below 0",
    example="SUBSTRING('abc', 2, 1)",
    result="'b'",
    fails=True,
)
def _substring_from(text: Value, start: Value, length: Value | None = None) -> Value:
    require(pc.greater_equal(start, 1), "SUBSTRING counts from 1, and its start is lower")
    if length is None:
        return computed_by_polars(lambda text, start: text.str.slice(start - 1), text, start)
    require(pc.greater_equal(length, 0), "the length of SUBSTRING is negative")
    return computed_by_polars(lambda text, start, length: text.str.slice(start - 1, length), text, start, length)


TEXT.define(
    "LEFT",
    string("text"),
    integer("length"),
    returns="string",
    meaning="its first code points; all but the last ones if `length` is negative",
    example="LEFT('abcd', -1)",
    result="'abc'",
)(by_polars(lambda text, length: text.str.head(length)))
TEXT.define(
    "RIGHT",
    string("text"),
    integer("length"),
    returns="string",
    meaning="its last code points; all but the first ones if `length` is negative",
    example="RIGHT('abcd', 2)",
    result="'cd'",
)(by_polars(lambda text, length: text.str.tail(length)))


@TEXT.define(
    "SPLIT_PART",
    string("text"),
    string("separator"),
    integer("number"),
    returns="string",
    meaning="the part of this number between separators, from 1, or from the end if negative; empty if there is no "
    "such part. Fails for 0",
    example="SPLIT_PART('a-b-c', '-', -1)",
    result="'c'",
    fails=True,
)
def _split_part(text: Value, separator: Value, number: Value) -> Value:
    require(pc.not_equal(number, 0), "SPLIT_PART counts from 1, and its number is 0")
    index = pc.if_else(pc.greater(number, 0), pc.subtract(number, 1), number)
    return pc.fill_null(part_at(text, separator, index), "")


@TEXT.define(
    "SPLIT_INDEX",
    string("text"),
    string("separator"),
    integer("index"),
    returns="string",
    meaning="the part with this index between separators, from 0; NULL if there is no such part (as in Flink)",
    example="SPLIT_INDEX('a-b-c', '-', 1)",
    result="'b'",
)
def _split_index(text: Value, separator: Value, index: Value) -> Value:
    # A negative index would count from the end; no part has an index as large as this one.
    return part_at(text, separator, pc.if_else(pc.less(index, 0), _NO_INDEX, index))


# --- search -----------------------------------------------------------------------------------------------------------

TEXT.define(
    "STRPOS INSTR STR_POSITION",
    string("text"),
    string("part"),
    returns="int64",
    meaning="where the part first begins, from 1; 0 if nowhere",
    example="STRPOS('añb', 'b')",
    result="3",
)(by_polars(_position_in))
TEXT.define(
    "POSITION LOCATE",
    string("part"),
    string("text"),
    returns="int64",
    meaning="the same with the part first; also `POSITION(part IN text)`",
    example="POSITION('b' IN 'añb')",
    result="3",
)(by_polars(lambda part, text: _position_in(text, part)))
TEXT.define(
    "STARTS_WITH STARTSWITH",
    string("text"),
    string("part"),
    returns="boolean",
    meaning="whether it begins with the part",
    example="STARTS_WITH('abc', 'ab')",
    result="TRUE",
)(by_polars(lambda text, part: text.str.starts_with(part)))
TEXT.define(
    "ENDS_WITH ENDSWITH",
    string("text"),
    string("part"),
    returns="boolean",
    meaning="whether it ends with the part",
    example="ENDS_WITH('abc', 'ab')",
    result="FALSE",
)(by_polars(lambda text, part: text.str.ends_with(part)))
TEXT.define(
    "CONTAINS",
    string("text"),
    string("part"),
    returns="boolean",
    meaning="whether the part is in it",
    example="CONTAINS('abc', 'b')",
    result="TRUE",
)(by_polars(lambda text, part: (part == "") | (_occurrences(text, part) > 0)))


# --- new texts --------------------------------------------------------------------------------------------------------

TEXT.define(
    "CONCAT",
    repeated(string("text")),
    returns="string",
    meaning="all texts, one after the other, as `||`",
    example="CONCAT('a', 'b', 'c')",
    result="'abc'",
)(lambda *texts: pc.binary_join_element_wise(*texts, ""))
TEXT.define(
    "CONCAT_WS",
    string("separator"),
    repeated(string("text")),
    returns="string",
    meaning="all texts with the separator between them",
    example="CONCAT_WS('-', 'a', NULL, 'b')",
    result="'a-b'",
    nulls="leaves out NULL texts; NULL for a NULL separator",
)(lambda separator, *texts: pc.binary_join_element_wise(*texts, separator, null_handling="skip"))


@TEXT.define(
    "REPLACE",
    string("text"),
    string("part"),
    string("replacement"),
    returns="string",
    meaning="with every part replaced; the same text for an empty part. Fails if a part or replacement from a column "
    f"makes the text grow beyond {MAX_CHARACTERS:,} characters",
    example="REPLACE('banana', 'an', 'o')",
    result="'booa'",
    fails=True,
)
def _replace_part(text: Value, part: Value, replacement: Value) -> Value:
    if isinstance(part, pa.Scalar) and isinstance(replacement, pa.Scalar) and part.as_py():
        return pc.replace_substring(text, part.as_py(), replacement.as_py())
    growth = computed_by_polars(_growth, text, part, replacement)
    length = pc.add(pc.utf8_length(text).cast(pa.int64()), growth)
    require(pc.or_(pc.less_equal(growth, 0), pc.less_equal(length, MAX_CHARACTERS)), _TOO_LONG)
    return computed_by_polars(
        lambda text, part, replacement: split_at(text, part).list.join(replacement), text, part, replacement
    )


def _growth(text: pl.Expr, part: pl.Expr, replacement: pl.Expr) -> pl.Expr:
    """Count the code points by which replacing each part makes a text longer."""
    added = replacement.str.len_chars().cast(pl.Int64) - part.str.len_chars().cast(pl.Int64)
    return pl.when(part == "").then(0).otherwise(_occurrences(text, part) * added)


@TEXT.define(
    "TRANSLATE",
    string("text"),
    constant(string("characters")),
    constant(string("replacements")),
    returns="string",
    meaning="with each of these characters replaced by the one at the same position, or left out if there is none",
    example="TRANSLATE('a-b c', '- ', '_')",
    result="'a_bc'",
)
def _translate_characters(text: Value, characters: str, replacements: str) -> Value:
    by_character: dict[str, str] = {}
    for position, character in enumerate(characters):
        by_character.setdefault(character, replacements[position : position + 1])
    return computed_by_polars(lambda text: text.str.replace_many(by_character) if by_character else text, text)


@TEXT.define(
    "OVERLAY",
    string("text"),
    string("part"),
    integer("start"),
    optional(integer("length")),
    returns="string",
    meaning="with the part in place of `length` (or as many as it has) code points from `start`; also "
    "`OVERLAY(text PLACING part FROM start FOR length)`. Fails if `start` is below 1 or `length` below 0",
    example="OVERLAY('Txxxxas' PLACING 'hom' FROM 2 FOR 4)",
    result="'Thomas'",
    fails=True,
)
def _overlay_part(text: Value, part: Value, start: Value, length: Value | None = None) -> Value:
    length = pc.cast(pc.utf8_length(part), pa.int64()) if length is None else length
    require(pc.greater_equal(start, 1), "OVERLAY counts from 1, and its start is lower")
    require(pc.greater_equal(length, 0), "the length of OVERLAY is negative")
    return computed_by_polars(
        lambda text, part, start, length: pl.concat_str(
            text.str.slice(0, start - 1),
            part,
            # A position behind every text, where the sum of both would leave its type.
            text.str.slice(start.clip(upper_bound=2**32) - 1 + length.clip(upper_bound=2**32)),
        ),
        text,
        part,
        start,
        length,
    )


@TEXT.define(
    "REPEAT",
    string("text"),
    integer("times"),
    returns="string",
    meaning=f"the text so many times; fails above {MAX_CHARACTERS:,} characters",
    example="REPEAT('ab', 3)",
    result="'ababab'",
    fails=True,
)
def _repeat_text(text: Value, times: Value) -> Value:
    # At most as many times as a text may have characters, or its product could leave int64.
    fitting = pc.less_equal(times, MAX_CHARACTERS)
    length = pc.multiply(pc.utf8_length(text).cast(pa.int64()), pc.if_else(fitting, times, 0))
    require(pc.and_(pc.or_(fitting, pc.equal(text, "")), pc.less_equal(length, MAX_CHARACTERS)), _TOO_LONG)
    return pc.binary_repeat(text, pc.if_else(pc.and_(fitting, pc.greater(times, 0)), times, 0))


TEXT.define(
    "SPACE",
    integer("length"),
    returns="string",
    meaning="so many blanks",
    example="SPACE(3)",
    result="'   '",
    fails=True,
)(lambda length: _repeat_text(pa.scalar(" "), length))
TEXT.define(
    "LPAD",
    string("text"),
    integer("length"),
    optional(string("fill")),
    returns="string",
    meaning="filled up at the start to this length, with blanks unless `fill` says otherwise; longer text is cut off "
    f"at the end. Fails above {MAX_CHARACTERS:,}",
    example="LPAD('7', 3, '0')",
    result="'007'",
    fails=True,
)(lambda text, length, fill=_BLANK: _pad_text(text, length, fill, at_start=True))
TEXT.define(
    "RPAD",
    string("text"),
    integer("length"),
    optional(string("fill")),
    returns="string",
    meaning="likewise at the end",
    example="RPAD('a', 3)",
    result="'a  '",
    fails=True,
)(lambda text, length, fill=_BLANK: _pad_text(text, length, fill, at_start=False))
TEXT.define(
    "REVERSE",
    string("text"),
    returns="string",
    meaning="its code points in reverse order",
    example="REVERSE('añb')",
    result="'bña'",
)(pc.utf8_reverse)


def _pad_text(text: Value, length: Value, fill: Value, *, at_start: bool) -> Value:
    require(pc.less_equal(length, MAX_CHARACTERS), _TOO_LONG)
    length = pc.max_element_wise(length, 0, skip_nulls=False)
    missing = pc.max_element_wise(pc.subtract(length, pc.utf8_length(text).cast(pa.int64())), 0, skip_nulls=False)
    # One repetition more than needed, so that no division by the length of an empty fill is needed.
    repetitions = pc.add(pc.divide(missing, pc.max_element_wise(pc.utf8_length(fill).cast(pa.int64()), 1)), 1)
    return computed_by_polars(
        lambda text, length, missing, padding: (
            pl.concat_str(padding.str.head(missing), text.str.head(length))
            if at_start
            else pl.concat_str(text.str.head(length), padding.str.head(missing))
        ),
        text,
        length,
        missing,
        pc.binary_repeat(fill, repetitions),
    )


# --- characters -------------------------------------------------------------------------------------------------------


@TEXT.define(
    "ASCII UNICODE",
    string("text"),
    returns="int32",
    meaning="the number of its first code point; 0 if it is empty",
    example="ASCII('añb')",
    result="97",
)
def _first_code_point(text: Value) -> Value:
    first = pc.fill_null(pc.utf8_slice_codeunits(text, 0, 1), "").to_numpy(zero_copy_only=False)
    return pa.array(first.astype(_CHARACTER).view(np.uint32), pa.uint32()).cast(pa.int32())


@TEXT.define(
    "CHR CHAR",
    integer("number"),
    returns="string",
    meaning="the character with this number; fails for a number that Unicode does not have",
    example="CHR(241)",
    result="'ñ'",
    fails=True,
)
def _character_of(number: Value) -> Value:
    code_points = pc.fill_null(number, 1).to_numpy(zero_copy_only=False)
    valid = (code_points > 0) & (code_points <= _LAST_CODE_POINT)
    valid &= (code_points < _SURROGATES[0]) | (code_points > _SURROGATES[1])
    require(pa.array(valid), "Unicode has no character of this number")
    return pa.array(code_points.astype(np.uint32).view(_CHARACTER), pa.string())
