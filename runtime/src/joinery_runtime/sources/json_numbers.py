"""Numbers in string columns keep the text that the record has: Polars prints them anew, through a double.

Few columns have any. So records are looked at only where a value begins like a number, and taken apart in Python only
where patterns cannot tell which of several names counts.
"""

from __future__ import annotations

import json
import re

import polars as pl
import pyarrow as pa

_NUMBER = r"-?[0-9][-+.0-9eE]*"  # in what is JSON, a token that begins like a number is one
_ESCAPED_NAME = r'\\[^"\\]*"\s*:'  # in JSON only a name is followed by a colon


def with_number_texts(name: str, column: pl.Series, values: pa.BinaryArray) -> pl.Series:
    """A text column of n rows that Polars has read from n records, with the numbers as the records have them."""
    looks = column.is_between("-", ":", closed="left").fill_null(False)
    if not looks.any():
        return column
    written = re.escape(json.dumps(name, ensure_ascii=False))
    rows = pl.DataFrame({"record": pl.Series(values.cast(pa.string())), "value": column}).with_row_index("row")
    record = pl.col("record").str
    found = rows.filter(looks).filter(
        record.contains(rf"{written}\s*:\s*[-0-9]") | record.contains(rf"{_ESCAPED_NAME}\s*[-0-9]")
    )
    if not found.height:
        return column
    once = (record.count_matches(rf"{written}\s*:") == 1) & ~record.contains(_ESCAPED_NAME)
    found = found.with_columns(once=once, text=record.extract(rf"[{{,]\s*{written}\s*:\s*({_NUMBER})"))
    several = found.filter(~pl.col("once"))
    taken = several.with_columns(text=pl.Series([_number(text, name) for text in several["record"]], dtype=pl.String))
    texts = pl.concat([found.filter("once"), taken]).drop_nulls("text")
    return column.scatter(texts["row"], texts["text"])


class _Number(str):
    __slots__ = ()


_DECODER = json.JSONDecoder(
    parse_float=_Number, parse_int=_Number, object_pairs_hook=lambda pairs: dict(reversed(pairs)), strict=False
)


def _number(record: str, name: str) -> str | None:
    """The number under this name in a JSON object; None where it is none. Of equal names the first counts."""
    value = _DECODER.decode(record).get(name)
    return str(value) if isinstance(value, _Number) else None
