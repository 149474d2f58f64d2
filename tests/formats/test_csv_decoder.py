"""CSV decoding: quotes and line breaks, nulls, types, and that rows never change places."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.formats.csv.decoder import CsvDecoder
from joinery_runtime.formats.records import BadRecord, Decoded
from joinery_runtime.job.model.inputs import CsvDialect

TIMESTAMP = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema({"name": pa.string(), "count": pa.int64(), "real": pa.float64(), "at": TIMESTAMP})


OUT_OF_PLACE = "not CSV: a quote or a line break out of place"


def decode(schema: pa.Schema, *records: bytes | None) -> Decoded:
    return CsvDecoder(schema).decode(pa.array(records, pa.binary()))


@pytest.mark.parametrize(
    ("arrow", "written", "value"),
    [
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int32(), "+7", 7),
        (pa.float64(), "1e3", 1000.0),
        (pa.float64(), "-inf", float("-inf")),
        (pa.float32(), "0.5", 0.5),
        (pa.bool_(), "TRUE", True),
        (pa.string(), " a ", " a "),
        (pa.string(), '"a,""b""\r\nc"', 'a,"b"\r\nc'),
        (pa.string(), '""', ""),
        (pa.binary(), '""', b""),
        (pa.binary(), "/wA=", b"\xff\x00"),
        (pa.decimal128(6, 2), "1234.5600", Decimal("1234.56")),
        (pa.decimal128(6, 2), "-.5", Decimal("-0.50")),
        (pa.decimal128(38, 38), "0." + "9" * 38, Decimal("0." + "9" * 38)),
        (pa.date32(), "2024-02-29", date(2024, 2, 29)),
        (TIMESTAMP, "-1", datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        (TIMESTAMP, "2024-05-06 12:00:00.5+02:00", datetime(2024, 5, 6, 10, 0, 0, 500000, tzinfo=UTC)),
        (pa.int64(), '""', None),
        (TIMESTAMP, "", None),
        (pa.string(), "", None),
    ],
)
def test_reads_a_value(arrow: pa.DataType, written: str, value: object) -> None:
    decoded = decode(pa.schema({"key": pa.string(), "a": arrow}), f"k,{written}".encode())
    assert not decoded.bad
    assert decoded.rows["a"].to_pylist() == [value]


@pytest.mark.parametrize(
    ("arrow", "written"),
    [
        (pa.int64(), " 1"),
        (pa.int64(), "1.0"),
        (pa.int32(), "2147483648"),
        (pa.float64(), "1e999"),
        (pa.float64(), "one"),
        (pa.float32(), "1e300"),
        (pa.bool_(), "1"),
        (pa.binary(), "YW"),
        (pa.decimal128(6, 2), "1.234"),
        (pa.decimal128(6, 2), "12345"),
        (pa.decimal128(6, 2), "1e2"),
        (pa.date32(), "06.05.2024"),
        (TIMESTAMP, "2024-05-06T12:00:00"),
        (TIMESTAMP, "0000-01-01T00:00:00Z"),
        (TIMESTAMP, "253402300800000"),
    ],
)
def test_names_the_column_of_a_wrong_value(arrow: pa.DataType, written: str) -> None:
    decoded = decode(pa.schema({"key": pa.string(), "a": arrow}), f"k,{written}".encode(), b"k,")
    assert decoded.index.tolist() == [1]
    assert decoded.bad[0].index == 0
    assert decoded.bad[0].reason.startswith("column a: ")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "null value"),
        (b"", "empty record"),
        (b"\r\n", "empty record"),
        (b"x,1", "not CSV: 2 fields instead of 4"),
        (b"x,1,2,3,4", "not CSV: 5 fields instead of 4"),
        (b'"x,1,2,3', OUT_OF_PLACE),
        (b'x,1,2,"3', OUT_OF_PLACE),
        (b'"x"y,1,2,3', OUT_OF_PLACE),
        (b"x,1,2,3\ny,1,2,3", OUT_OF_PLACE),
        (b"x,1,2,3\ry,1,2,3", OUT_OF_PLACE),
        (b"\xff,1,2,3", "not UTF-8"),
    ],
)
def test_a_bad_record_among_good_ones(record: bytes | None, reason: str) -> None:
    decoded = decode(SCHEMA, b"a,1,,", b'"x\ny",2,,', record, b"c,3,,\r\n")
    assert decoded.rows["name"].to_pylist() == ["a", "x\ny", "c"]
    assert decoded.index.tolist() == [0, 1, 3]
    assert [bad.index for bad in decoded.bad] == [2]
    assert decoded.bad[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("record", "row"),
    [
        (b'12" pipe,a"b"', ('12" pipe', 'a"b"')),
        (b'a"""b,""', ('a"""b', "")),
        (b'"12"" pipe","a,""b"""', ('12" pipe', 'a,"b"')),
        (b' "a",b "', (' "a"', 'b "')),
    ],
)
def test_a_quote_inside_a_field_without_quotes_is_text(record: bytes, row: tuple[str, str]) -> None:
    decoded = decode(pa.schema({"a": pa.string(), "b": pa.string()}), b"x,y", record, b"c,d")
    assert [tuple(decoded_row.values()) for decoded_row in decoded.rows.to_pylist()] == [("x", "y"), row, ("c", "d")]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(8, 2)])
def test_numbers_with_a_decimal_comma(kind: pa.DataType) -> None:
    schema = pa.schema({"n": kind, "i": pa.int64(), "t": pa.string()})
    records = [b"1,5;7;1,5", b'"-0,25";;', b"12;1;", b"1.5;1;", b"1.234,5;1;", b"1,2,3;1;", b";1;"]
    values = pa.array(records, pa.binary())
    decoded = CsvDecoder(schema, dialect=CsvDialect(separator=";", decimal=",")).decode(values)
    assert [float(n) for n in decoded.rows["n"].to_pylist()[:3]] == [1.5, -0.25, 12]
    assert decoded.index.tolist() == [0, 1, 2, 6]
    assert decoded.rows["t"][0].as_py() == "1,5"
    plain = CsvDecoder(schema, dialect=CsvDialect(separator=";")).decode(values)
    assert [bad.index for bad in plain.bad if bad.reason.endswith('for a decimal comma write csv: {decimal: ","}')] == [
        0, 1, 4
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b'{"name":"a","count":1}', "JSON; write format: json"),
        (b' [{"name":"a"},"b"]\n', "JSON; write format: json"),
        (b"\0\0\0\0\x07\x02a\x02", "Confluent Avro of schema 7; write format: avro and its schemaRegistry"),
        (b"\0\0\0\0\x07,,,", "Confluent Avro of schema 7; write format: avro and its schemaRegistry"),
        (b'\0\0\0\0\x07{"id":"a"}', "Confluent JSON of schema 7; name its schemaRegistry"),
        (gzip.compress(b"a,1,2,3", mtime=0), "gzip inside of the value"),
        ("a,1,,".encode("utf-16"), "UTF-16; let the producer write UTF-8"),
        ("a,1,,".encode("utf-16-le"), "UTF-16; let the producer write UTF-8"),
        ("a,1,,".encode("utf-16-be"), "UTF-16; let the producer write UTF-8"),
    ],
)
def test_csv_that_is_something_else_is_recognised(columns: int, record: bytes, says: str) -> None:
    schema = pa.schema([pa.field(name, pa.string()) for name in SCHEMA.names[:columns]])
    decoded = decode(schema, b",".join([b"a"] * columns), record, b",".join([b"b"] * columns))
    assert decoded.rows["name"].to_pylist() == ["a", "b"]
    (bad,) = decoded.bad
    assert bad.index == 1
    assert bad.reason.startswith(f"not CSV: it looks like {says}")


def test_a_record_in_brackets_that_is_no_json_has_its_own_reason() -> None:
    (bad,) = decode(pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]), b"[x],q,[y]").bad
    assert bad.reason == "column b: 'q' is not a valid int64"


def test_a_zero_in_text_is_text() -> None:
    assert decode(pa.schema({"a": pa.string()}), b"a\0b").rows["a"].to_pylist() == ["a\0b"]


def test_records_that_would_swallow_each_other_stay_apart() -> None:
    """Read as one text, the number of rows would be right and the rows wrong."""
    decoded = decode(pa.schema({"a": pa.string(), "b": pa.string()}), b'a"b","c', b'"x\ny",1', b'z"\n"', b"last,2")
    assert decoded.rows["a"].to_pylist() == ["x\ny", "last"]
    assert decoded.index.tolist() == [1, 3]


def test_columns_of_a_file_in_another_order_and_with_one_more() -> None:
    decoder = CsvDecoder(pa.schema({"b": pa.int64(), "a": pa.string()}), ["a", "ignored", "b"])
    decoded = decoder.decode(pa.array([b"x,y,1"], pa.binary()))
    assert decoded.rows.to_pylist() == [{"b": 1, "a": "x"}]


def test_narrows_a_large_batch_down_to_its_bad_records() -> None:
    records = [b"n%d,%d,," % (i, i) for i in range(3_000)]
    wrong = {0: b"\xff,1,,", 17: b"x", 1_024: b"a,1,,\nb,1,,", 2_999: b"a,x,,"}
    for position, record in wrong.items():
        records[position] = record
    decoded = decode(SCHEMA, *records)
    assert [bad.index for bad in decoded.bad] == list(wrong)
    assert decoded.rows["count"].to_pylist() == decoded.index.tolist()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
rows = st.tuples(
    st.none() | texts,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False),
    # Not such as are taken for seconds.
    st.none() | st.integers(-62_135_596_800_000, 946_684_799) | st.integers(4_102_444_800, 253_402_300_799_999),
)


def as_csv(row: tuple[Any, ...]) -> bytes:
    line = io.StringIO()
    text = "" if row[0] is None else '"' + row[0].replace('"', '""') + '"'
    csv.writer(line).writerow(["" if value is None else repr(value) for value in row[1:]])
    return (text + "," + line.getvalue()).encode()


bad_records = st.sampled_from([None, b"", b"\n", b"x", b'"', b"\xff,1,1,1", b"a,x,,", b"a,,,x", b"a,,,\nb,,,"])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(rows | bad_records, max_size=12))
def test_rows_and_bad_records_partition_the_batch(batch: list[Any]) -> None:
    records = [as_csv(item) if isinstance(item, tuple) else item for item in batch]
    decoded = CsvDecoder(SCHEMA).decode(pa.array(records, pa.binary()))
    good = [i for i, item in enumerate(batch) if isinstance(item, tuple)]
    assert decoded.index.tolist() == good
    assert [bad.index for bad in decoded.bad] == [i for i in range(len(batch)) if i not in good]
    decoded_rows = decoded.rows.set_column(3, "at", decoded.rows["at"].cast(pa.int64())).to_pylist()
    assert [tuple(row.values()) for row in decoded_rows] == [batch[i] for i in good]


def test_an_empty_last_field_of_the_last_record_is_null() -> None:
    decoded = decode(pa.schema({"a": pa.string(), "b": pa.string()}), b'"x",', b'"x",')
    assert decoded.rows["b"].to_pylist() == [None, None]


def test_a_byte_order_mark_at_the_start_of_a_record_is_no_part_of_it() -> None:
    decoded = decode(pa.schema({"a": pa.string()}), b"\xef\xbb\xbfx", b'\xef\xbb\xbf"x"', b'"\xef\xbb\xbfx"')
    assert decoded.rows["a"].to_pylist() == ["x", "x", "\ufeffx"]


pieces = st.sampled_from([b",", b'"', b"\n", b"\r", b"a", b"1", b" ", b"\\", b"\x00", b"\xff", b"\xef\xbb\xbf"])
junk = st.binary(max_size=12) | st.lists(pieces, max_size=10).map(b"".join)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.none() | junk, max_size=6))
def test_any_bytes_are_a_row_or_a_bad_record(records: list[bytes | None]) -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.int64()})
    decoded = decode(schema, b"first,1", *records, b"last,2")
    assert decoded.rows.num_rows == len(decoded.index)
    assert sorted([*decoded.index.tolist(), *(bad.index for bad in decoded.bad)]) == list(range(len(records) + 2))
    assert decoded.rows["a"][0].as_py() == "first"
    assert decoded.rows["a"][-1].as_py() == "last"


written = st.sampled_from([b"", b'""', b"a", b'"a"', b'"a,\n"', b" ", b"1", b"\xef\xbb\xbf", b'"\xef\xbb\xbf"'])
lines = st.lists(written, min_size=3, max_size=3).map(b",".join)
ended = st.tuples(lines, st.sampled_from([b"", b"\n", b"\r\n", b"\r"])).map(b"".join)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.none() | junk | ended, max_size=8), st.lists(st.integers(0, 8), max_size=3))
@example([b'a,"b",', b'a,"b",'], [1])
@example([b"\n", b"\r"], [1])
@example([b"a,b,1", b"\xef\xbb\xbfa,b,1"], [1])
def test_records_decode_the_same_however_they_are_cut_into_batches(
    records: list[bytes | None], cuts: list[int]
) -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.string(), "c": pa.int64()})
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    parts = [(start, decode(schema, *records[start:stop])) for start, stop in pairwise(edges)]
    at_once = decode(schema, *records)
    assert at_once.rows.to_pylist() == [row for _, part in parts for row in part.rows.to_pylist()]
    assert at_once.index.tolist() == [start + i for start, part in parts for i in part.index.tolist()]
    assert list(at_once.bad) == [BadRecord(start + bad.index, bad.reason) for start, part in parts for bad in part.bad]
