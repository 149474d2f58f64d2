"""How each scalar function is compared with DuckDB: a call over the columns a, b, c, d, and the same in DuckDB's words.

`columns` are the kinds of values of a, b, c, d (`VALUES`). `duckdb` None: DuckDB has no such function, and `expected`
computes a value in Python, from the row's values, none of which is NULL; it raises ValueError where the row fails.
"""

# ruff: noqa: E501

from __future__ import annotations

import base64
import hashlib
import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import xxhash

VALUES: dict[str, list[Any]] = {
    "string": [
        None, "", " ", "a", "A", "abc", "abcabc", "ñ", "aÑb", "e\u0301", "ﬁ", "日本語", "\U0001f600x", "-", "a-b-c", "--", "x  y",
        "\t a \n", "it's 2nd-rate", "%_\\", "$1", ".", "a.b", "0", "-12", "Straße", "İ", "\u00a0x\u00a0",
    ],
    "part": [None, "", "a", "b", "abc", "-", "--", "ñ", " ", ".", "語"],
    "count": [None, 0, 1, 2, 3, 7, 40, -1, -3, 2**31, 2**63 - 1, -(2**63)],
    "small": [None, 0, 1, 2, 3, 7, 40, -1, -3],
    "integer": [None, 0, 1, -1, 2, 7, 12, -18, 63, 64, 10**12, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)],
    "double": [
        None, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.14159, 1e-300, 1e300, -1e300, 123456.789, 9.0, 8.0, 2.0**53,
        math.inf, -math.inf, math.nan, 5e-324,
    ],
    "timestamp": [
        None, *(
            datetime.fromisoformat(text)
            for text in (
                "0001-01-01", "0001-01-01 00:00:00.001", "0999-12-31 23:59:59.999", "1582-10-10", "1969-12-31 23:59:59.999", "1970-01-01",
                "2000-02-29 12:00", "2023-12-31 23:30", "2024-01-01", "2024-02-29 08:15:30.25", "2024-03-31 00:59:59.999",
                "2024-03-31 01:00", "2024-03-31 02:30", "2024-10-27 00:30", "2024-10-27 01:30", "2024-12-30 10:00", "2025-01-31 10:00", "2150-07-01 12:00",
                "9999-01-01", "9999-12-30 12:00", "9999-12-31 23:59:59.999",
            )
        ),
    ],
    "json": [
        None, "", "nope", "{", "null", " null ", "3", '"t"', "[1, [2, 3]]", '{"a": {"b": [1, "x", null, true, 1.50, {"c": "é"}]}}',
        '{"a": null}', '{"a": "q\\"u\\u00e9"}', '{"a": {}}', '{"a": []}', '{"a": -0.0}', '{"a": 9007199254740993}', '{"a":1}x', "'a'", '{"b": 1, "a": ""}',
    ],
    "month": [None, 0, 1, 2, 4, 12, 13, -1, 2**63 - 1],
    "day": [None, 0, 1, 28, 29, 30, 31, 32, -1, -(2**63)],
    "year": [None, 0, 1, 1900, 2000, 2023, 2024, 9999, 10000, -(2**63), 2**63 - 1],
    "clock": [None, "2024-07-01 12:30", "2024-7-1 2:03", "2024-02-30 00:00", "0000-01-01 00:00", "0001-01-01 00:00", "9999-12-31 23:59",
              "2024-07-01 24:00", "2024-07-01 12:30 ", "+2024-07-01 12:30", "", "x", "12024-07-01 12:30", "2024-07-01  12:30"],
    "decimal": [
        None, Decimal("0.000"), Decimal("1.005"), Decimal("-1.005"), Decimal("2.500"), Decimal("-2.500"), Decimal("99999999.999"),
        Decimal("-99999999.999"), Decimal("0.001"),
    ],
}  # fmt: skip

VALUES["inside"] = [time for time in VALUES["timestamp"] if time is None or 1 < time.year < 9999]  # in every zone


@dataclass(frozen=True)
class Case:
    ours: str
    columns: tuple[str, ...]
    duckdb: str | None = ""
    expected: Callable[..., Any] | None = None

    @property
    def theirs(self) -> str | None:
        return self.ours if self.duckdb == "" else self.duckdb


def _word(run: str) -> str:
    return run[:1].upper() + run[1:] if run[:1].isalnum() else run


def _overlay(text: str, part: str, start: int, length: int) -> str:
    if start < 1 or length < 0:
        raise ValueError
    return text[: start - 1] + part + text[start - 1 + length :]


def _substring(text: str, start: int, length: int) -> str:
    if start < 1 or length < 0:
        raise ValueError
    return text[start - 1 : start - 1 + length]


def _split_part(text: str, separator: str, number: int) -> str:
    if number == 0:
        raise ValueError
    parts = text.split(separator) if separator else [text]
    index = number - 1 if number > 0 else number
    return parts[index] if -len(parts) <= index < len(parts) else ""


def _split_index(text: str, separator: str, index: int) -> str | None:
    parts = text.split(separator) if separator else [text]
    return parts[index] if 0 <= index < len(parts) else None


def _repeat(text: str, times: int) -> str:
    if len(text) * times > 65_535:
        raise ValueError
    return text * times if times > 0 else ""


def _pad(text: str, length: int, fill: str, *, at_start: bool) -> str:
    if length > 65_535:
        raise ValueError
    length = max(length, 0)
    missing = max(length - len(text), 0)
    padding = (fill * (missing + 1))[:missing] if fill else ""
    return padding + text[:length] if at_start else text[:length] + padding


def _chr(number: int) -> str:
    if number <= 0 or number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError
    return chr(number)


def _shift(number: int, count: int, shift: Callable[[int, int], int]) -> int:
    if not 0 <= count < 64:
        raise ValueError
    return (shift(number, count) + 2**63) % 2**64 - 2**63


def _gcd(x: int, y: int) -> int:
    if -(2**63) in {x, y}:
        raise ValueError
    return math.gcd(x, y)


def _lcm(x: int, y: int) -> int:
    if -(2**63) in {x, y} or math.lcm(x, y) >= 2**63:
        raise ValueError
    return math.lcm(x, y)


def _unsigned(number: int) -> int:
    return number % 2**64


def _found(pattern: str, text: str, group: int = 0) -> str | None:
    match = re.search(pattern, text, re.ASCII)
    return None if match is None else match[group] or ""


def _or_infinite(function: Callable[[float], float], x: float) -> float:
    try:
        return function(x)
    except OverflowError:
        return math.inf


def _quantized(number: Decimal, digits: int, rounding: str) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-digits), rounding=rounding)


def _rounded(number: int, unit: int) -> int:
    rounded = (abs(number) + unit // 2) // unit * unit * (1 if number >= 0 else -1)
    if not -(2**63) <= rounded < 2**63:
        raise ValueError
    return rounded


def _bucket(x: float, low: float, high: float, count: int) -> int:
    if not low < high or count <= 0 or math.isnan(x):
        raise ValueError
    if x < low:
        return 0
    if x >= high:
        return count + 1
    share = (x - low) / (high - low) * count
    return min(max(math.floor(share), 0), count - 1) + 1 if math.isfinite(share) else count if share > 0 else 1


def _in_years(moment: Callable[[], datetime]) -> datetime:
    try:
        return moment()
    except OverflowError as error:
        raise ValueError from error


_EPOCH = datetime(1970, 1, 1)


def _by_clocks(time: datetime, zone: str) -> datetime:
    """What the zone's clocks show at a time of UTC."""
    near = min(max(time, datetime(1, 1, 3)), datetime(9999, 12, 29))
    offset = near.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return _in_years(lambda: time + offset)


def _of_clocks(local: datetime, zone: str) -> datetime:
    before, after = (local.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None
    assert after is not None
    if before < after:
        raise ValueError
    return _in_years(lambda: local - before)


def _day_by_clocks(time: datetime, zone: str) -> datetime:
    return _of_clocks(_by_clocks(time, zone).replace(hour=0, minute=0, second=0, microsecond=0), zone)


def _hour_by_clocks(time: datetime, zone: str) -> datetime:
    local = _by_clocks(time, zone)
    return _in_years(lambda: time - (local - local.replace(minute=0, second=0, microsecond=0)))


def _parsed(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}", text):
        raise ValueError
    return datetime.strptime(text, "%Y-%m-%d %H:%M")  # DuckDB's timestamps have no zone


def _padded(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}", text):
        raise ValueError
    return _parsed(text)


def _months_later(time: datetime, months: int) -> datetime:
    month = time.year * 12 + time.month - 1 + months
    if not 12 <= month < 10_000 * 12:
        raise ValueError
    first = date(month // 12, month % 12 + 1, 1)
    last = 31 if first.month == 12 else (date(first.year, first.month + 1, 1) - timedelta(days=1)).day
    return time.replace(year=first.year, month=first.month, day=min(time.day, last))


def _whole_months(start: datetime, stop: datetime) -> int:
    months = (stop.year - start.year) * 12 + stop.month - start.month
    rests = [time - time.replace(day=1, hour=0, minute=0, second=0, microsecond=0) for time in (start, stop)]
    if months > 0 and rests[1] < rests[0]:
        return months - 1
    return months + 1 if months < 0 and rests[1] > rests[0] else months


def _span(number: int, milliseconds: int) -> datetime:
    if abs(number) > 10**16:
        raise ValueError
    return _in_years(lambda: _EPOCH + timedelta(milliseconds=number * milliseconds))


def _seconds(number: float) -> datetime:
    if not math.isfinite(number):
        raise ValueError
    return _span(math.floor(number), 1000)


# What is NaN or infinite by IEEE 754 is an error in DuckDB.
_LOGARITHM = "CASE WHEN a = 0 THEN '-inf'::double WHEN a < 0 THEN 'nan'::double ELSE {log}(a) END"
_INVERSE = "CASE WHEN abs(a) > 1 AND NOT isnan(a) THEN 'nan'::double ELSE {function}(a) END"

_ORDERED = (
    *(("integer", "integer"), ("double", "double"), ("string", "part"), ("decimal", "integer")),
    ("timestamp", "timestamp"),
)

CASES: dict[str, list[Case]] = {
    # text
    "LOWER": [Case("LOWER(a)", ("string",))],
    "UPPER": [Case("UPPER(a)", ("string",))],
    "INITCAP": [
        Case(
            "INITCAP(a)",
            ("string",),
            None,
            lambda a: "".join(_word(run) for run in re.findall(r"[^\W_]+|[\W_]+", a.lower())),
        )
    ],
    "LENGTH": [Case("LENGTH(a)", ("string",), "length(a)")],
    "OCTET_LENGTH": [Case("OCTET_LENGTH(a)", ("string",), "strlen(a)")],
    "TRIM": [
        Case("TRIM(a, b)", ("string", "part")),
        Case("TRIM(BOTH 'a' FROM a)", ("string",), "trim(a, 'a')"),
        Case("TRIM(a)", ("string",), None, lambda a: a.strip()),
    ],
    "LTRIM": [
        Case("LTRIM(a, b)", ("string", "part")),
        Case("TRIM(LEADING b FROM a)", ("string", "part"), "ltrim(a, b)"),
    ],
    "RTRIM": [
        Case("RTRIM(a, b)", ("string", "part")),
        Case("TRIM(TRAILING b FROM a)", ("string", "part"), "rtrim(a, b)"),
    ],
    "NORMALIZE": [
        Case("NORMALIZE(a)", ("string",), "nfc_normalize(a)"),
        *(
            Case(f"NORMALIZE(a, {form})", ("string",), None, lambda a, form=form: unicodedata.normalize(form, a))
            for form in ("NFC", "NFD", "NFKC", "NFKD")
        ),
    ],
    "SUBSTRING": [
        Case("SUBSTRING(a, b, c)", ("string", "count", "count"), None, _substring),
        Case("SUBSTR(a, b)", ("string", "count"), None, lambda a, b: _substring(a, b, len(a))),
        Case("SUBSTRING(a FROM 2 FOR 3)", ("string",), "substring(a, 2, 3)"),
    ],
    "LEFT": [Case("LEFT(a, b)", ("string", "small"))],
    "RIGHT": [Case("RIGHT(a, b)", ("string", "small"))],
    "SPLIT_PART": [
        Case("SPLIT_PART(a, b, c)", ("string", "part", "count"), None, _split_part),
        Case("SPLIT_PART(a, '-', 2)", ("string",)),
        Case("SPLIT_PART(a, 'a-', 2)", ("string",)),
        Case("SPLIT_PART(a, '-', -1)", ("string",)),
        Case("SPLIT_PART(a, 'b', 1)", ("string",)),
    ],
    "SPLIT_INDEX": [
        Case("SPLIT_INDEX(a, b, c)", ("string", "part", "count"), None, _split_index),
        *(
            Case(f"SPLIT_INDEX(a, '-', {index})", ("string",), None, lambda text, at=index: _split_index(text, "-", at))
            for index in (0, 1, 2, 3, 2**63 - 1, -1)
        ),
    ],
    "STRPOS": [
        Case("STRPOS(a, b)", ("string", "part")),
        Case("INSTR(a, b)", ("string", "part")),
    ],
    "POSITION": [
        Case("POSITION(b IN a)", ("string", "part")),
        Case("LOCATE(b, a)", ("string", "part"), "strpos(a, b)"),
    ],
    "STARTS_WITH": [Case("STARTS_WITH(a, b)", ("string", "part"))],
    "ENDS_WITH": [Case("ENDS_WITH(a, b)", ("string", "part"))],
    "CONTAINS": [Case("CONTAINS(a, b)", ("string", "part"))],
    "CONCAT": [Case("CONCAT(a, b, a)", ("string", "part"), "a || b || a")],
    "CONCAT_WS": [Case("CONCAT_WS(b, a, b, a)", ("string", "part"))],
    "REPLACE": [
        Case("REPLACE(a, b, c)", ("string", "part", "part")),
        Case("REPLACE(a, 'a', '$1')", ("string",)),
    ],
    "TRANSLATE": [
        Case("TRANSLATE(a, 'abñ', 'xy')", ("string",)),
        Case("TRANSLATE(a, '', 'xy')", ("string",)),
        Case("TRANSLATE(a, 'ab', 'ba')", ("string",)),
    ],
    "OVERLAY": [
        Case("OVERLAY(a PLACING b FROM c FOR d)", ("string", "part", "count", "count"), None, _overlay),
        Case("OVERLAY(a PLACING b FROM 2)", ("string", "part"), None, lambda a, b: _overlay(a, b, 2, len(b))),
    ],
    "REPEAT": [
        Case("REPEAT(a, b)", ("string", "count"), None, _repeat),
        Case("REPEAT(a, b)", ("string", "small")),
    ],
    "SPACE": [Case("SPACE(a)", ("count",), None, lambda a: _repeat(" ", a))],
    "LPAD": [
        Case("LPAD(a, b, c)", ("string", "count", "part"), None, lambda a, b, c: _pad(a, b, c, at_start=True)),
        Case("LPAD(a, 5, '*+')", ("string",)),
        Case("LPAD(a, 5)", ("string",), "lpad(a, 5, ' ')"),
    ],
    "RPAD": [
        Case("RPAD(a, b, c)", ("string", "count", "part"), None, lambda a, b, c: _pad(a, b, c, at_start=False)),
        Case("RPAD(a, 5, '*+')", ("string",)),
    ],
    "REVERSE": [Case("REVERSE(a)", ("string",), None, lambda a: a[::-1])],
    "ASCII": [Case("ASCII(a)", ("string",)), Case("UNICODE(a)", ("string",), "ascii(a)")],
    "CHR": [Case("CHR(a)", ("integer",), None, _chr)],
    # regular expressions
    "REGEXP_LIKE": [
        *(
            Case(f"REGEXP_LIKE(a, '{pattern}')", ("string",), f"regexp_matches(a, '{pattern}')")
            for pattern in ("", "a", "^a", "b$", "[ab]{2}", "\\d", "(a|ñ)b", ".", "^$", "\\.")
        ),
        Case("REGEXP_LIKE(a, 'AB', 'i')", ("string",), "regexp_matches(a, 'AB', 'i')"),
        Case("a RLIKE '^a'", ("string",), "regexp_matches(a, '^a')"),
    ],
    "REGEXP_COUNT": [
        Case("REGEXP_COUNT(a, '[abñ]')", ("string",), "len(regexp_extract_all(a, '[abñ]'))"),
        Case("REGEXP_COUNT(a, 'a+')", ("string",), "len(regexp_extract_all(a, 'a+'))"),
    ],
    "REGEXP_REPLACE": [
        Case("REGEXP_REPLACE(a, '[ab]+', '<$0>')", ("string",), "regexp_replace(a, '[ab]+', '<\\0>', 'g')"),
        Case("REGEXP_REPLACE(a, '(.)-(.)', '\\2$1')", ("string",), "regexp_replace(a, '(.)-(.)', '\\2\\1', 'g')"),
        Case("REGEXP_REPLACE(a, 'A', '\\$', 'i')", ("string",), "regexp_replace(a, 'A', '$', 'gi')"),
    ],
    "REGEXP_EXTRACT": [
        Case("REGEXP_EXTRACT(a, '(a)(b)?')", ("string",), None, lambda a: _found("(a)(b)?", a, 1)),
        Case("REGEXP_EXTRACT(a, '(a)(?:b)([)(]|c)', 2)", ("string",), None, lambda a: _found("(a)(b)(c)", a, 3)),
        Case("REGEXP_EXTRACT(a, '[[:alpha:]()]+')", ("string",), None, lambda a: _found("[a-zA-Z()]+", a)),
        Case("REGEXP_EXTRACT(a, '(?P<x>\\w)(\\w)', 2)", ("string",), None, lambda a: _found("(\\w)(\\w)", a, 2)),
        Case("REGEXP_EXTRACT(a, '\\(?(b)', 0)", ("string",), None, lambda a: _found("\\(?(b)", a)),
    ],
    "REGEXP_SUBSTR": [Case("REGEXP_SUBSTR(a, '[bc]+')", ("string",), None, lambda a: _found("[bc]+", a))],
    "REGEXP_INSTR": [
        Case(
            "REGEXP_INSTR(a, '[bc語]')",
            ("string",),
            None,
            lambda a: match.start() + 1 if (match := re.search("[bc語]", a)) else 0,
        )
    ],
    "REGEXP_ESCAPE": [
        Case("REGEXP_LIKE('a.b', REGEXP_ESCAPE('a.b')) AND a = a", ("string",), "a = a"),
        Case("LENGTH(REGEXP_ESCAPE(a)) >= LENGTH(a)", ("string",), "a = a"),
    ],
    # JSON
    "JSON_VALUE": [
        *(
            Case(f"JSON_VALUE(a, '{path}')", ("json",), f"json_extract_string(a, '{path}')")
            for path in ("$", "$.a", "$.a.b", "$.a.b[1]", "$.a.b[4]", "$.a.b[5].c", "$[1][0]", "$.a.b[9]", "$.c")
        ),
        Case("a ->> '$.a'", ("json",), "json_extract_string(a, '$.a')"),
        Case("JSON_VALUE(a, '$[''a''].b[0]')", ("json",), "json_extract_string(a, '$.a.b[0]')"),
    ],
    "JSON_VALID": [Case("JSON_VALID(a)", ("json",), "json_valid(a)")],
    # hashes and encodings
    "MD5": [Case("MD5(a)", ("string",))],
    "SHA1": [Case("SHA1(a)", ("string",))],
    "SHA224": [Case("SHA224(a)", ("string",), None, lambda a: hashlib.sha224(a.encode()).hexdigest())],
    "SHA256": [Case("SHA256(a)", ("string",))],
    "SHA384": [Case("SHA384(a)", ("string",), None, lambda a: hashlib.sha384(a.encode()).hexdigest())],
    "SHA512": [Case("SHA512(a)", ("string",), None, lambda a: hashlib.sha512(a.encode()).hexdigest())],
    "SHA2": [
        Case("SHA2(a, 0)", ("string",), "sha256(a)"),
        Case("SHA2(a, 512)", ("string",), None, lambda a: hashlib.sha512(a.encode()).hexdigest()),
    ],
    "XXHASH64": [
        Case(
            "XXHASH64(a)",
            ("string",),
            None,
            lambda a: (xxhash.xxh64_intdigest(a.encode()) + 2**63) % 2**64 - 2**63,
        )
    ],
    "HEX": [Case("HEX(a)", ("string",))],
    "UNHEX": [
        Case("UNHEX(HEX(a))", ("string",)),
        Case("UNHEX(a)", ("string",), None, lambda a: base64.b16decode(a, casefold=True)),
    ],
    "TO_BASE64": [Case("TO_BASE64(a)", ("string",), "to_base64(encode(a))")],
    "FROM_BASE64": [
        Case("FROM_BASE64(TO_BASE64(a))", ("string",), "encode(a)"),
        Case("FROM_BASE64(a)", ("string",), None, lambda a: base64.b64decode(a, validate=True)),
    ],
    "TO_UTF8": [Case("TO_UTF8(a)", ("string",), "encode(a)")],
    "FROM_UTF8": [Case("FROM_UTF8(TO_UTF8(a))", ("string",), "decode(encode(a))")],
    # numbers
    "ABS": [Case("ABS(a)", (kind,)) for kind in ("integer", "double", "decimal")],
    "SIGN": [
        Case("SIGN(a)", ("integer",)),
        Case("SIGN(a)", ("double",), None, lambda a: a if math.isnan(a) else float((a > 0) - (a < 0))),
        Case("SIGN(a)", ("decimal",)),
    ],
    "ROUND": [
        Case("ROUND(a, 2)", ("decimal",)),
        Case("ROUND(a)", ("decimal",)),
        Case("ROUND(a, -2)", ("decimal",), None, lambda a: _quantized(a, -2, ROUND_HALF_UP)),
        Case("ROUND(a, -1)", ("integer",), None, lambda a: _rounded(a, 10)),
        Case("ROUND(a, 5)", ("integer",)),
        Case("ROUND(a)", ("double",)),
    ],
    "BROUND": [
        Case("BROUND(a, 2)", ("decimal",), None, lambda a: _quantized(a, 2, ROUND_HALF_EVEN)),
        Case("BROUND(a)", ("double",), "round_even(a, 0)"),
    ],
    "TRUNC": [
        Case("TRUNC(a, 2)", ("decimal",), None, lambda a: _quantized(a, 2, ROUND_DOWN)),
        Case("TRUNC(a, -12)", ("integer",), None, lambda a: math.trunc(Decimal(a) / 10**12) * 10**12),
        Case("TRUNC(a)", ("double",)),
    ],
    "FLOOR": [Case("FLOOR(a)", (kind,)) for kind in ("double", "decimal")] + [Case("FLOOR(a)", ("integer",), "a")],
    "CEIL": [Case("CEIL(a)", (kind,)) for kind in ("double", "decimal")] + [Case("CEIL(a)", ("integer",), "a")],
    "DIV": [Case("DIV(a, b)", ("integer", "integer"), "a // b")],
    "GREATEST": [Case("GREATEST(a, b)", (kind, other)) for kind, other in _ORDERED],
    "LEAST": [Case("LEAST(a, b)", (kind, other)) for kind, other in _ORDERED],
    "GCD": [Case("GCD(a, b)", ("integer", "integer"), None, _gcd)],
    "LCM": [Case("LCM(a, b)", ("integer", "integer"), None, _lcm)],
    "WIDTH_BUCKET": [
        Case(
            "WIDTH_BUCKET(a, b, c, d)",
            ("double", "double", "double", "small"),
            None,
            _bucket,
        )
    ],
    **{
        name: [Case(f"{name}(a)", ("double",))]
        for name in ("CBRT", "EXP", "SIN", "COS", "TAN", "ATAN", "SINH", "COSH", "TANH", "ASINH", "DEGREES", "RADIANS")
    },
    "SQRT": [Case("SQRT(a)", ("double",), "CASE WHEN a < 0 THEN 'NaN'::double ELSE sqrt(a) END")],
    "LN": [Case("LN(a)", ("double",), _LOGARITHM.format(log="ln"))],
    "LOG2": [Case("LOG2(a)", ("double",), _LOGARITHM.format(log="log2"))],
    "LOG10": [Case("LOG10(a)", ("double",), _LOGARITHM.format(log="log10"))],
    "EXPM1": [Case("EXPM1(a)", ("double",), None, lambda a: _or_infinite(math.expm1, a))],
    "LOG1P": [
        Case("LOG1P(a)", ("double",), None, lambda a: math.log1p(a) if a > -1 else -math.inf if a == -1 else math.nan)
    ],
    "LOG": [
        Case("LOG(2, a)", ("double",), _LOGARITHM.format(log="log2")),
        Case(
            "ROUND(LOG(a, 1000), 9)",
            ("small",),
            "CASE WHEN a = 0 THEN 0 WHEN a < 0 THEN 'nan'::double WHEN a = 1 THEN 'inf'::double ELSE round(ln(1000) / ln(a), 9) END",
        ),
    ],
    "POWER": [Case("POWER(a, b)", ("double", "double"))],
    "COT": [Case("COT(a)", ("double",), "1 / tan(a)")],
    "ASIN": [Case("ASIN(a)", ("double",), _INVERSE.format(function="asin"))],
    "ACOS": [Case("ACOS(a)", ("double",), _INVERSE.format(function="acos"))],
    "ATAN2": [Case("ATAN2(a, b)", ("double", "double"))],
    "ACOSH": [Case("ACOSH(a)", ("double",), "CASE WHEN a < 1 THEN 'nan'::double ELSE acosh(a) END")],
    "ATANH": [Case("ATANH(a)", ("double",), _INVERSE.format(function="atanh"))],
    "PI": [Case("PI() + a", ("double",))],
    "E": [Case("E() + a", ("double",), "exp(1) + a")],
    "ISNAN": [Case("ISNAN(a)", ("double",))],
    "ISINF": [Case("ISINF(a)", ("double",))],
    "ISFINITE": [Case("ISFINITE(a)", ("double",))],
    "NANVL": [Case("NANVL(a, b)", ("double", "double"), None, lambda a, b: b if math.isnan(a) else a)],
    # bits
    "BITAND": [Case("BITAND(a, b)", ("integer", "integer"), "a & b")],
    "BITOR": [Case("BITOR(a, b)", ("integer", "integer"), "a | b")],
    "BITXOR": [Case("BITXOR(a, b)", ("integer", "integer"), "xor(a, b)")],
    "BITNOT": [Case("BITNOT(a)", ("integer",), "~a")],
    "BIT_COUNT": [Case("BIT_COUNT(a)", ("integer",), None, lambda a: _unsigned(a).bit_count())],
    "SHIFTLEFT": [Case("SHIFTLEFT(a, b)", ("integer", "count"), None, lambda a, b: _shift(a, b, lambda x, n: x << n))],
    "SHIFTRIGHT": [
        Case("SHIFTRIGHT(a, b)", ("integer", "count"), None, lambda a, b: _shift(a, b, lambda x, n: x >> n))
    ],
    # times
    "DATE_PART": [
        *(
            Case(f"EXTRACT({unit} FROM a)", ("timestamp",), f"date_part('{unit}', a)")
            for unit in (
                "YEAR",
                "QUARTER",
                "MONTH",
                "WEEK",
                "DAY",
                "DOW",
                "ISODOW",
                "DOY",
                "ISOYEAR",
                "HOUR",
                "MINUTE",
                "SECOND",
                "MILLISECONDS",
            )
        ),
        Case("DATE_PART('epoch', a)", ("timestamp",), "floor(epoch(a))"),
        Case(
            "DATE_PART('hour', a, 'Europe/Berlin')",
            ("inside",),
            None,
            lambda a: (
                _by_clocks(max(a, datetime(1, 1, 2)), "Europe/Berlin").hour
                if a < datetime(9999, 12, 31)
                else (a.hour + 1) % 24
            ),
        ),
        Case("EXTRACT(MINUTE FROM a)", ("timestamp",), "minute(a)"),
    ],
    **{
        name: [Case(f"{name}(a)", ("timestamp",))]
        for name in (
            "YEAR",
            "QUARTER",
            "MONTH",
            "WEEK",
            "DAY",
            "DAYOFYEAR",
            "HOUR",
            "MINUTE",
            "SECOND",
            "DAYNAME",
            "MONTHNAME",
            "LAST_DAY",
        )
    },
    "DAYOFWEEK": [Case("DAYOFWEEK(a)", ("timestamp",), "dayofweek(a) + 1")],
    "DATE_TRUNC": [
        *(
            Case(f"DATE_TRUNC('{unit}', a)", ("timestamp",))
            for unit in ("millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
        ),
        Case("DATE_TRUNC('day', a, 'Europe/Berlin')", ("inside",), None, lambda a: _day_by_clocks(a, "Europe/Berlin")),
        Case(
            "DATE_TRUNC('hour', a, 'Asia/Kathmandu')",
            ("inside",),
            None,
            lambda a: _hour_by_clocks(a, "Asia/Kathmandu"),
        ),
    ],
    "DATE_BIN": [
        Case(
            "DATE_BIN(INTERVAL '7' MINUTE, a)",
            ("timestamp",),
            "CASE WHEN year(a) > 1 THEN time_bucket(INTERVAL 7 MINUTE, a, TIMESTAMP '1970-01-01') END",
        ),
    ],
    "TIME_BUCKET": [
        Case(
            "TIME_BUCKET(INTERVAL '7' MINUTE, a)",
            ("timestamp",),
            "time_bucket(INTERVAL 7 MINUTE, a)",
        ),
        Case(
            "TIME_BUCKET(INTERVAL '1' DAY, a, TIMESTAMP '2024-01-01 06:00:00')",
            ("timestamp",),
            None,
            lambda a: _in_years(lambda: a - (a - datetime(2024, 1, 1, 6)) % timedelta(days=1)),
        ),
    ],
    "TIMESTAMPADD": [
        Case("TIMESTAMPADD(MONTH, b, a)", ("timestamp", "small"), None, _months_later),
        Case("TIMESTAMPADD(QUARTER, b, a)", ("timestamp", "count"), None, lambda a, b: _months_later(a, 3 * b)),
        Case(
            "TIMESTAMPADD(HOUR, b, a)",
            ("timestamp", "count"),
            None,
            lambda a, b: _in_years(lambda: a + timedelta(hours=b)),
        ),
    ],
    "TIMESTAMPDIFF": [
        *(
            Case(f"TIMESTAMPDIFF({unit}, a, b)", ("timestamp", "timestamp"), f"date_sub('{unit}', a, b)")
            for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK")
        ),
        Case("TIMESTAMPDIFF(MONTH, a, b)", ("timestamp", "timestamp"), None, _whole_months),
        Case("TIMESTAMPDIFF(YEAR, a, b)", ("timestamp", "timestamp"), None, lambda a, b: int(_whole_months(a, b) / 12)),
    ],
    "EPOCH": [
        Case("EPOCH(a - b)", ("timestamp", "timestamp"), "(epoch_ms(a) - epoch_ms(b)) / 1000"),
        Case("EXTRACT(EPOCH FROM (a - b))", ("timestamp", "timestamp"), "(epoch_ms(a) - epoch_ms(b)) / 1000"),
    ],
    "DATEDIFF": [Case("DATEDIFF(a, b)", ("timestamp", "timestamp"), "date_diff('day', b, a)")],
    "DATE_ADD": [
        Case(
            "DATE_ADD(a, b)", ("timestamp", "count"), None, lambda a, b: _in_years(lambda: a + timedelta(days=b)).date()
        )
    ],
    "DATE_SUB": [
        Case(
            "DATE_SUB(a, b)", ("timestamp", "count"), None, lambda a, b: _in_years(lambda: a - timedelta(days=b)).date()
        )
    ],
    "MAKE_DATE": [
        Case("MAKE_DATE(a, b, c)", ("year", "month", "day"), None, lambda a, b, c: _in_years(lambda: date(a, b, c)))
    ],
    "TIMESTAMP_MILLIS": [Case("TIMESTAMP_MILLIS(a)", ("integer",), None, lambda a: _span(a, 1))],
    "TIMESTAMP_SECONDS": [Case("TIMESTAMP_SECONDS(a)", ("integer",), None, lambda a: _span(a, 1000))],
    "UNIX_MILLIS": [Case("UNIX_MILLIS(a)", ("timestamp",), "epoch_ms(a)")],
    "UNIX_SECONDS": [Case("UNIX_SECONDS(a)", ("timestamp",), "floor(epoch(a))")],
    "FROM_UTC_TIMESTAMP": [
        Case(f"FROM_UTC_TIMESTAMP(a, '{zone}')", ("timestamp",), None, lambda a, zone=zone: _by_clocks(a, zone))
        for zone in ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC")
    ],
    "TO_UTC_TIMESTAMP": [
        Case(f"TO_UTC_TIMESTAMP(a, '{zone}')", ("timestamp",), None, lambda a, zone=zone: _of_clocks(a, zone))
        for zone in ("Europe/Berlin", "America/New_York", "UTC")
    ],
    "DATE_FORMAT": [
        Case(
            "DATE_FORMAT(a, 'yyyy-MM-dd''T''HH:mm:ss.SSS')",
            ("timestamp",),
            None,
            lambda a: a.isoformat(timespec="milliseconds"),
        ),
        Case("DATE_FORMAT(a, 'hh a DDD MMM %')", ("timestamp",), None, lambda a: a.strftime("%I %p %j %b %%")),
    ],
    "STRFTIME": [
        Case(
            "STRFTIME(a, '%d.%m.%y %H:%M:%S %A %B %p')",
            ("timestamp",),
            None,
            lambda a: a.strftime("%d.%m.%y %H:%M:%S %A %B %p"),
        )
    ],
    "TO_TIMESTAMP": [
        Case("TO_TIMESTAMP(DATE_FORMAT(a, 'yyyyMMdd HHmmss.SSS'), 'yyyyMMdd HHmmss.SSS')", ("timestamp",), "a"),
        Case("TO_TIMESTAMP(a, 'yyyy-MM-dd HH:mm')", ("clock",), None, _parsed),
        Case("TO_TIMESTAMP(STRFTIME(a, '%Y-%m-%d %H:%M:%S.%3f'))", ("timestamp",), "a"),
        Case("TO_TIMESTAMP(a)", ("clock",), None, _padded),
    ],
    "FROM_UNIXTIME": [
        Case("FROM_UNIXTIME(a, 'yyyy-MM-dd')", ("double",), None, lambda a: _seconds(a).strftime("%Y-%m-%d")),
        Case("FROM_UNIXTIME(a)", ("count",), None, lambda a: _seconds(a).strftime("%Y-%m-%d %H:%M:%S")),
    ],
    "TO_TIMESTAMP_LTZ": [
        Case("TO_TIMESTAMP_LTZ(a)", ("count",), None, lambda a: _span(a, 1)),
        Case("TO_TIMESTAMP_LTZ(a, 0)", ("count",), None, lambda a: _span(a, 1000)),
    ],
    "STRPTIME": [
        Case("STRPTIME(STRFTIME(a, '%Y %j %I%p'), '%Y %j %I%p')", ("timestamp",), "date_trunc('hour', a)"),
        Case(
            "STRPTIME(a, '%Y-%m-%d %H:%M', 'Europe/Berlin')",
            ("clock",),
            None,
            lambda a: _of_clocks(_parsed(a), "Europe/Berlin"),
        ),
    ],
    "TO_DATE": [
        Case("TO_DATE(DATE_FORMAT(a, 'dd.MM.yyyy'), 'dd.MM.yyyy')", ("timestamp",), "a::date"),
        Case("TO_DATE(STRFTIME(a, '%Y-%m-%dT%H:%M'))", ("timestamp",), "a::date"),
    ],
    # conditionals
    "NULLIF": [
        Case("NULLIF(a, b)", (kind, other))
        for kind, other in (("integer", "integer"), ("string", "part"), ("decimal", "integer"))
    ],
    "ISNULL": [Case("ISNULL(a)", ("string",), "a IS NULL")],
    "ISNOTNULL": [Case("ISNOTNULL(a)", ("double",), "a IS NOT NULL")],
}
