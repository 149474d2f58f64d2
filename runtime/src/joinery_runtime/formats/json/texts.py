"""Finds the original texts of values in JSON records, by their paths.

String columns keep the original text of numbers, arrays and objects, which Polars would reformat (numbers through a
double). Few columns have such values. So records are searched only where a value begins like one, and parsed in Python
only where patterns cannot tell which of several names counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

import polars as pl
import pyarrow as pa

from joinery_runtime.job.model.references import Path

_NUMBER = r"-?[0-9][-+.0-9eE]*"  # in valid JSON, a token that begins like a number is one
ESCAPED_NAME = r'\\[^"\\]*"\s*:'  # in JSON, only a name is followed by a colon


def with_own_texts(name: str, column: pl.Series, values: pa.BinaryArray) -> pl.Series:
    """Restore the original texts of numbers, arrays and objects in a text column that Polars has read from `values`,
    one row per record."""
    looks = (
        column.is_between("-", ":", closed="left")
        | column.is_between("[", "\\", closed="left")
        | column.is_between("{", "|", closed="left")
    ).fill_null(False)
    if not looks.any():
        return column
    written = re.escape(json.dumps(name, ensure_ascii=False))
    rows = pl.DataFrame({"record": pl.Series(values.cast(pa.string())), "value": column}).with_row_index("row")
    record = pl.col("record").str
    candidates = rows.filter(looks).filter(
        record.contains(rf"{written}\s*:\s*[-0-9\[{{]") | record.contains(rf"{ESCAPED_NAME}\s*[-0-9\[{{]")
    )
    if not candidates.height:
        return column
    once = (record.count_matches(rf"{written}\s*:") == 1) & ~record.contains(ESCAPED_NAME)
    candidates = candidates.with_columns(
        text=pl.when(once).then(record.extract(rf"[{{,]\s*{written}\s*:\s*({_NUMBER})"))
    )
    several, root = candidates.filter(pl.col("text").is_null()), wanted_tree([(name,)])
    parsed = several.with_columns(
        text=pl.Series([_own_text(text, root) for text in several["record"]], dtype=pl.String)
    )
    own = pl.concat([candidates, parsed]).drop_nulls("text")
    return column.scatter(own["row"], own["text"])


def _own_text(record: str, root: WantedValue) -> str | None:
    """Return the wanted value's text if it is a number, an array or an object, else None."""
    try:
        text = (texts(record, root) or {}).get(0, '"')
    except (ValueError, IndexError, RecursionError):
        return None  # Polars reads some records that this parser does not
    return text if text[0] in "-0123456789[{" else None


@dataclass(frozen=True, slots=True)
class WantedValue:
    """What is wanted of a value: the value itself, for these columns, and inner values by name or position."""

    columns: list[int] = field(default_factory=list)
    inner: dict[str | int, WantedValue] = field(default_factory=dict)

    def forget(self, texts: dict[int, str]) -> None:
        """Remove all that was taken from an earlier value of the same name."""
        for column in self.columns:
            texts.pop(column, None)
        for inner in self.inner.values():
            inner.forget(texts)


def wanted_tree(paths: Sequence[Path]) -> WantedValue:
    """Make a tree, with the record as its root, of the paths of columns 0, 1, ..."""
    root = WantedValue()
    for column, path in enumerate(paths):
        node = root
        for step in path:
            node = node.inner.setdefault(step, WantedValue())
        node.columns.append(column)
    return root


def texts(record: str, root: WantedValue) -> dict[int, str] | None:
    """Return, by column, the JSON text of its value; missing columns are omitted. The last of equal names counts. None
    if the record is not an object. Raises ValueError, IndexError or RecursionError if it is not JSON."""
    texts_by_column: dict[int, str] = {}
    at = _skip_space(record, 0)
    if record[at] != "{":
        return None
    at = _skip_space(record, _take_value(record, at, root, texts_by_column))
    if at != len(record):
        raise ValueError("text after the object")
    return texts_by_column


def is_number_in_json(record: bytes, path: Path) -> bool:
    """Return whether the value at this path of a record is a number, and no text of one."""
    with suppress(UnicodeDecodeError):
        text = _own_text(record.decode(), wanted_tree([path]))
        return text is not None and text[0] in "-0123456789"
    return False


_WHITE = " \t\r\n"


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITE and at < len(text):
        at += 1
    return at


def _take_value(text: str, at: int, node: WantedValue, texts_by_column: dict[int, str]) -> int:
    """Extract what is wanted of the value at this position. Returns the position after the value."""
    begin = at
    opening = text[at]
    if opening == "{" and any(isinstance(step, str) for step in node.inner):
        at = _take_fields(text, at, node, texts_by_column)
    elif opening == "[" and any(isinstance(step, int) for step in node.inner):
        at = _take_items(text, at, node, texts_by_column)
    else:
        at = _skip_value(text, at)
    for column in node.columns:
        texts_by_column[column] = text[begin:at]
    return at


def _take_fields(text: str, at: int, node: WantedValue, texts_by_column: dict[int, str]) -> int:
    at = _skip_space(text, at + 1)
    if text[at] == "}":
        return at + 1
    seen: set[str] = set()
    while True:
        if text[at] != '"':
            raise ValueError("no name")
        name, at = scanstring(text, at + 1, False)
        at = _skip_space(text, at)
        if text[at] != ":":
            raise ValueError("no colon")
        at = _skip_space(text, at + 1)
        inner = node.inner.get(name)
        if inner is not None and name in seen:
            inner.forget(texts_by_column)
        seen.add(name)
        at = _skip_space(
            text, _skip_value(text, at) if inner is None else _take_value(text, at, inner, texts_by_column)
        )
        if text[at] == "}":
            return at + 1
        if text[at] != ",":
            raise ValueError("no comma")
        at = _skip_space(text, at + 1)


def _take_items(text: str, at: int, node: WantedValue, texts_by_column: dict[int, str]) -> int:
    at = _skip_space(text, at + 1)
    if text[at] == "]":
        return at + 1
    position = 0
    while True:
        inner = node.inner.get(position)
        at = _skip_space(
            text, _skip_value(text, at) if inner is None else _take_value(text, at, inner, texts_by_column)
        )
        if text[at] == "]":
            return at + 1
        if text[at] != ",":
            raise ValueError("no comma")
        at, position = _skip_space(text, at + 1), position + 1


def reject_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's decoder reads and JSON lacks. Raises ValueError."""
    raise ValueError(f"{name} is not a JSON number")


# Numbers are not converted, so none is too long to be skipped.
_SCANNER: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_float=str, parse_int=str, parse_constant=reject_constant, strict=False
).scan_once  # type: ignore[attr-defined]


def _skip_value(text: str, at: int) -> int:
    try:
        return _SCANNER(text, at)[1]
    except StopIteration as error:
        raise ValueError("no value") from error
