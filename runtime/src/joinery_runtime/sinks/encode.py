"""Output rows as JSON, one object per row, in whole batches.

Values mirror what the sources read (rule V3), so that a job can read another's output: int64 and uint64 as exact
integers, decimals as text, binary as base64, dates as `YYYY-MM-DD`, timestamps as integer milliseconds or, where the
job says so, as RFC 3339; columns that are JSON (`nested`) as what they are. JSON has no NaN and no infinity: they
become null. A null is written as null, never left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from itertools import groupby

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from joinery_runtime.job.model.outputs import Timestamps

_TIMESTAMPS: dict[Timestamps, pl.Expr] = {
    "epochMillis": cs.datetime().dt.epoch("ms"),
    "rfc3339": cs.datetime().dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
}
_PLAIN = (
    cs.date().dt.to_string("iso"),
    cs.decimal().cast(pl.String),
    cs.binary().bin.encode("base64"),
)

_FEW_ROWS = 256


def json_lines(
    rows: pa.Table | pa.RecordBatch, timestamps: Timestamps = "epochMillis", nested: Collection[str] = ()
) -> bytes:
    """All rows, each followed by a newline."""
    if not rows.num_rows:
        return b""
    frame = pl.DataFrame(rows).with_columns(_TIMESTAMPS[timestamps], *_PLAIN)
    if not frozenset(nested).isdisjoint(frame.columns):
        return "\n".join([*_with_nested(frame, nested), ""]).encode()
    if 0 < len(frame) < _FEW_ROWS:  # a query that writes a file takes 0.2 ms to begin
        return "\n".join([*frame.to_struct().struct.json_encode(), ""]).encode()
    # Into a buffer: asked for a text, Polars fills one all the same, and two copies of it cost as much as the encoding.
    lines = io.BytesIO()
    frame.write_ndjson(lines)
    return lines.getvalue()


def _with_nested(frame: pl.DataFrame, nested: Collection[str]) -> pl.Series:
    """Objects of the columns, those that are JSON among them, from pieces between commas."""
    pieces: list[pl.Expr] = []
    for embedded, names in groupby(frame.columns, key=lambda name: name in nested):
        if embedded:
            pieces += [_member(name) for name in names]
        else:
            group = pl.struct(list(names)).struct.json_encode()
            pieces.append(group.str.strip_prefix("{").str.strip_suffix("}"))
    return frame.select(line=pl.lit("{") + pl.concat_str(pieces, separator=",") + pl.lit("}"))["line"]


def _member(name: str) -> pl.Expr:
    written = json.dumps(name, ensure_ascii=False) + ":"
    return pl.concat_str(pl.lit(written), pl.col(name).fill_null("null"))


def as_texts(
    rows: pa.Table | pa.RecordBatch, column: str, timestamps: Timestamps = "epochMillis"
) -> list[str | bytes | None]:
    """The values of one column by themselves: text and bytes as they are, others as JSON has them."""
    if pa.types.is_binary(rows.schema.field(column).type):
        values: list[str | bytes | None] = rows[column].to_pylist()
        return values
    plain = pl.DataFrame(rows.select([column])).with_columns(_TIMESTAMPS[timestamps], *_PLAIN)
    return list(plain[column].cast(pl.String))


def rows_to_json(
    rows: pa.Table | pa.RecordBatch, timestamps: Timestamps = "epochMillis", nested: Collection[str] = ()
) -> list[bytes]:
    """One JSON object per row. A newline inside a text is escaped, so splitting at newlines is safe."""
    return json_lines(rows, timestamps, nested).split(b"\n")[:-1]
