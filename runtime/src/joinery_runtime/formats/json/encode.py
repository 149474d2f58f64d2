"""Encodes output rows as JSON, one object per row, in whole batches.

Values are written as the sources read them (rule V3), so that a job can read another's output: int64 and uint64 as
exact integers, decimals as text, binary as base64, dates as `YYYY-MM-DD`. A job chooses the rest with its `JsonStyle`.
NaN and infinity, which JSON lacks, become null. A null is written as null, never omitted.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from joinery_runtime.job import Job
from joinery_runtime.job.model.outputs import NamedOutput, Timestamps

_TIMESTAMPS: dict[Timestamps, pl.Expr] = {
    "epochMillis": cs.datetime().dt.epoch("ms"),
    "rfc3339": cs.datetime().dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"),
}
_OTHERS = (
    cs.date().dt.to_string("iso"),
    cs.decimal().cast(pl.String),
    cs.binary().bin.encode("base64"),
)

_FEW_ROWS = 256


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The choices for an output's JSON: `timestamps` as integer milliseconds or as RFC 3339, and the `nested`
    columns, which hold JSON and are embedded unchanged."""

    timestamps: Timestamps = "epochMillis"
    nested: frozenset[str] = frozenset()

    @classmethod
    def of(cls, job: Job, output: NamedOutput) -> Self:
        return cls(output.timestamps, job.nested_columns(output))


PLAIN = JsonStyle()


def json_lines(rows: pa.Table | pa.RecordBatch, style: JsonStyle = PLAIN) -> bytes:
    """Encode all rows, each followed by a newline."""
    if not rows.num_rows:
        return b""
    frame = pl.DataFrame(rows).with_columns(_TIMESTAMPS[style.timestamps], *_OTHERS)
    if not style.nested.isdisjoint(frame.columns):
        # Builds the objects, with JSON columns embedded, from comma-separated pieces.
        pieces: list[pl.Expr] = []
        for embedded, names in groupby(frame.columns, key=lambda name: name in style.nested):
            if embedded:
                for name in names:
                    member = json.dumps(name, ensure_ascii=False) + ":"
                    pieces.append(pl.concat_str(pl.lit(member), pl.col(name).fill_null("null")))
            else:
                group = pl.struct(list(names)).struct.json_encode()
                pieces.append(group.str.strip_prefix("{").str.strip_suffix("}"))
        texts = frame.select(line=pl.lit("{") + pl.concat_str(pieces, separator=",") + pl.lit("}"))["line"]
        return "\n".join([*texts, ""]).encode()
    if 0 < len(frame) < _FEW_ROWS:  # starting a query that writes a file takes 0.2 ms
        return "\n".join([*frame.to_struct().struct.json_encode(), ""]).encode()
    # Into a buffer: if asked for text, Polars fills one anyway, and two copies of it cost as much as the encoding.
    lines = io.BytesIO()
    frame.write_ndjson(lines)
    return lines.getvalue()


def as_texts(rows: pa.Table | pa.RecordBatch, column: str, style: JsonStyle = PLAIN) -> list[str | bytes | None]:
    """Return the values of one column: text and bytes unchanged, others as in JSON."""
    if pa.types.is_binary(rows.schema.field(column).type):
        values: list[str | bytes | None] = rows[column].to_pylist()
        return values
    plain = pl.DataFrame(rows.select([column])).with_columns(_TIMESTAMPS[style.timestamps], *_OTHERS)
    return list(plain[column].cast(pl.String))


def rows_to_json(rows: pa.Table | pa.RecordBatch, style: JsonStyle = PLAIN) -> list[bytes]:
    """Encode one JSON object per row. JSON escapes a newline inside a text, so splitting at newlines is safe."""
    return json_lines(rows, style).split(b"\n")[:-1]
