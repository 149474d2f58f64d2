"""JSON decoding: every type of rule V3, every kind of bad record, and that rows never change places."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.json.faults import Explainer
from joinery_runtime.formats.records import Decoded

pytestmark = pytest.mark.usefixtures("json_way")


TIMESTAMP = pa.timestamp("ms", tz="UTC")
ALL_TYPES = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int32(),
        "big": pa.int64(),
        "half": pa.float32(),
        "real": pa.float64(),
        "text": pa.string(),
        "raw": pa.binary(),
        "price": pa.decimal128(20, 4),
        "day": pa.date32(),
        "at": TIMESTAMP,
    }
)
NOON = datetime(2024, 5, 6, 12, 0, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def decode(schema: pa.Schema, *records: bytes | None) -> Decoded:
    return JsonDecoder(schema).decode(pa.array(records, pa.binary()))


def one(arrow: pa.DataType, written: str) -> Any:
    """The value that a column of this type gets from one JSON literal."""
    decoded = decode(pa.schema({"a": arrow}), f'{{"a": {written}}}'.encode())
    assert not decoded.bad
    return decoded.rows["a"][0].as_py()


def reason(arrow: pa.DataType, written: str | bytes) -> str:
    value = written.encode() if isinstance(written, str) else written
    decoded = decode(pa.schema({"a": arrow}), b'{"a": ' + value + b"}")
    assert decoded.rows.num_rows == 0
    return decoded.bad[0].reason


@pytest.mark.parametrize(
    ("arrow", "written", "value"),
    [
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int64(), "-9223372036854775808", -(2**63)),
        (pa.int64(), "9007199254740993", 2**53 + 1),
        (pa.int32(), "-2147483648", -(2**31)),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "0.1", 0.1),
        (pa.bool_(), "true", True),
        (pa.string(), r'"\u00e9\ud83d\ude00\n"', "é😀\n"),
        (pa.string(), r'"\\ud83d"', r"\ud83d"),
        (pa.string(), "12", "12"),
        (pa.string(), "1.10", "1.10"),
        (pa.string(), "12345678901234567890.5", "12345678901234567890.5"),
        (pa.string(), "-0", "-0"),
        (pa.string(), "1E+3", "1E+3"),
        (pa.string(), '"1.10"', "1.10"),
        (pa.string(), "true", "true"),
        (pa.string(), '{"b": [1]}', '{"b": [1]}'),
        (pa.binary(), '"/wA="', b"\xff\x00"),
        (pa.decimal128(20, 4), "0.1", Decimal("0.1000")),
        (pa.decimal128(20, 4), '"1234567890123456.7890"', Decimal("1234567890123456.7890")),
        (pa.decimal128(20, 4), "1234567890123456.7891", Decimal("1234567890123456.7891")),
        (pa.decimal128(38, 0), "99999999999999999999999999999999999999", Decimal("9" * 38)),
        (pa.decimal128(20, 4), "1.5e3", Decimal("1500")),
        (pa.decimal128(20, 4), "1500e-5", Decimal("0.0150")),
        (pa.decimal128(20, 4), '"-1.50E-02"', Decimal("-0.0150")),
        (pa.decimal128(20, 4), r'"1500\u0065\u002d5"', Decimal("0.0150")),
        (pa.decimal128(20, 4), "0e-999999999", Decimal("0")),
        (pa.decimal128(20, 4), '"0.00e-99"', Decimal("0")),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (TIMESTAMP, str(NOON_MS), NOON),
        (TIMESTAMP, '"2024-05-06T12:00:00Z"', NOON),
        (TIMESTAMP, '"2024-05-06t17:30:00.0009+05:30"', NOON),
        (TIMESTAMP, f'"{NOON_MS}"', NOON),
        (TIMESTAMP, '"2024-05-06T12:00:00.0001234567890123456789Z"', NOON),
        (TIMESTAMP, '"2024-05-06 14:00:00.000999999999999+02:00"', NOON),
    ],
)
def test_reads_a_value_exactly(arrow: pa.DataType, written: str, value: object) -> None:
    assert one(arrow, written) == value


@pytest.mark.parametrize("arrow", ALL_TYPES.types, ids=str)
def test_null_and_missing_are_null(arrow: pa.DataType) -> None:
    decoded = decode(pa.schema({"a": arrow}), b'{"a": null}', b"{}", b'{"b": 1}')
    assert decoded.rows["a"].to_pylist() == [None, None, None]


@pytest.mark.parametrize(
    ("arrow", "written"),
    [
        (pa.int64(), "1.5"),
        (pa.int64(), "1.0"),
        (pa.int64(), "9223372036854775808"),
        (pa.int64(), '"1"'),
        (pa.int64(), "true"),
        (pa.int32(), "2147483648"),
        (pa.float64(), '"1"'),
        (pa.float64(), "[1]"),
        (pa.float32(), "1e300"),
        (pa.bool_(), '"true"'),
        (pa.bool_(), "1"),
        (pa.binary(), '"YW"'),
        (pa.binary(), '"!!!!"'),
        (pa.decimal128(6, 2), "12345"),
        (pa.decimal128(6, 2), "1.234"),
        (pa.decimal128(38, 4), "9" * 38),
        (pa.decimal128(38, 4), "9" * 75),
        # Arrow's reader of decimals ends the process at an exponent far below 0.
        (pa.decimal128(6, 2), "1e-999999999"),
        (pa.decimal128(6, 2), '"1e-999999999"'),
        (pa.decimal128(6, 2), r'"1\u0065-999999999"'),
        (pa.decimal128(6, 2), "1e-99"),
        (pa.decimal128(6, 2), f"1.{'0' * 70}1e-9"),
        (pa.decimal128(6, 2), '"abc"'),
        (pa.decimal128(6, 2), "true"),
        (pa.date32(), '"2024-02-30"'),
        (pa.date32(), '"2024-1-1"'),
        (pa.date32(), "20240101"),
        (TIMESTAMP, "1.5"),
        (TIMESTAMP, '"2024-05-06T12:00:00"'),
        (TIMESTAMP, '"2024-05-06"'),
        (TIMESTAMP, '"soon"'),
        (TIMESTAMP, "9223372036854775807"),
    ],
)
def test_names_the_column_of_a_wrong_value(arrow: pa.DataType, written: str) -> None:
    assert reason(arrow, written).startswith("column a: ")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (None, "null value"),
        (b"", "empty record"),
        (b" \r\n ", "empty record"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON: it begins with a byte order mark"),
        (b"null", "not a JSON object but null"),
        (b"[]", "not a JSON object but an array"),
        (b"1", "not a JSON object but a number"),
        (b'{"a": 1', "not JSON: "),
        (b"{", "not JSON: Expecting property name enclosed in double quotes at character 1; it may be a line of "),
        (b'[{"a": 1},', "not JSON: Expecting value at character 10; it may be a line of an array or of an object on "),
        (b'{"a": 1} {"a": 2}', "not JSON: Extra data"),
        (b'{"a": 1}\n{"a": 2}', "not JSON: Extra data"),
        (b'{"a": 1}\n\n', None),
        (b'{"a":\n1}', None),
        (b'{"a": NaN}', "not JSON: NaN"),
        (b'{"b": "\xff"}', "not UTF-8: byte 0xff at position 7"),
        (rb'{"b": "\ud83d!"}', "not JSON: half of a surrogate pair"),
        (rb'{"b": "\ude00"}', "not JSON: half of a surrogate pair"),
        (b'{"a": 1, "b": 1e999}', None),
        (b'{"a": 1, "b": 1e99999999999999999999}', None),
        (b'{"a": 1, "b": ' + b"9" * 39 + b"}", None),
        (b'{"a": 1, "b": -' + b"9" * 5000 + b"}", None),
        (b'{"a": 1, "b": [{"c": ' + b"9" * 60 + b"}]}", None),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "not readable as JSON"),
    ],
)
def test_a_bad_record_among_good_ones(record: bytes | None, expected: str | None) -> None:
    decoded = decode(pa.schema({"a": pa.int64()}), b'{"a": 7}', record, b'{"a": 8}')
    if expected is None:
        assert decoded.rows["a"].to_pylist() == [7, 1, 8]
        assert not decoded.bad
        return
    assert decoded.rows["a"].to_pylist() == [7, 8]
    assert decoded.index.tolist() == [0, 2]
    assert [bad.index for bad in decoded.bad] == [1]
    assert decoded.bad[0].reason.startswith(expected)


def test_blank_records_and_line_breaks_do_not_make_up_for_each_other() -> None:
    decoded = decode(pa.schema({"a": pa.int64()}), b"", b'{"a": 1}\n{"a": 2}', b'{"a": 3}')
    assert decoded.rows["a"].to_pylist() == [3]
    assert decoded.index.tolist() == [2]


def test_timestamps_of_all_forms_in_one_batch_and_the_next_batch_of_integers() -> None:
    decoder = JsonDecoder(pa.schema({"at": TIMESTAMP}))
    mixed = [b'{"at": %d}' % NOON_MS, b'{"at": "2024-05-06T14:00:00+02:00"}', b'{"at": null}', b'{"at": "x"}']
    for _ in range(2):
        decoded = decoder.decode(pa.array(mixed, pa.binary()))
        assert decoded.rows["at"].to_pylist() == [NOON, NOON, None]
        assert [bad.index for bad in decoded.bad] == [3]
    integers = decoder.decode(pa.array([mixed[0]] * 3, pa.binary()))
    assert integers.rows["at"].to_pylist() == [NOON] * 3


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b'{"a": 1, "a": 2}', 2),
        (b'{"a": "x", "a": 2}', 2),
        (rb'{"a": 1, "\u0061": 2}', 2),
        (b'{"a": 1, "a": null}', None),
        (b'{"a": 1, "b": {"a": 3}}', 1),
        (b'{"a": 1, "b": "\\"a\\": 3"}', 1),
        (b'{"b": "a", "a": 1}', 1),
        (b"{" + b"".join(b'"f%d": 0, ' % i for i in range(40)) + b'"a": 1, "a": 2}', 2),
    ],
)
def test_the_last_of_two_equal_names_counts_whatever_its_neighbours_are(record: bytes, expected: int | None) -> None:
    schema = pa.schema({"a": pa.int64()})
    assert decode(schema, record).rows["a"].to_pylist() == [expected]
    assert decode(schema, record, b"bad", b'{"a": 7}').rows["a"].to_pylist() == [expected, 7]
    assert decode(schema, record, rb'{"\u0061": 7}').rows["a"].to_pylist() == [expected, 7]
    assert decode(pa.schema({"a": pa.decimal128(5, 2)}), record).rows["a"].to_pylist() == [expected]
    (bad,) = decode(schema, b'{"a": 1, "a": "x"}').bad
    assert bad.reason == "column a: 'x' is not a valid int64"


def test_of_two_equal_objects_the_last_one_is_the_value_as_a_whole() -> None:
    record = b'{"a": {"x": 1, "y": 1}, "a": {"y": 2, "y": 3}}'
    schema = pa.schema({"x": pa.int64(), "y": pa.int64()})
    decoded = JsonDecoder(schema, {"x": ("a", "x"), "y": ("a", "y")}).decode(pa.array([record], pa.binary()))
    assert decoded.rows.to_pylist() == [{"x": None, "y": 3}]


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        (pa.float64(), "9" * 40, 1e40),
        (pa.float64(), "-1" + "0" * 300, -1e300),
        (pa.float64(), "1" + "0" * 309, "is not a valid double"),
        (pa.float64(), "1e309", "is not a valid double"),
        (pa.string(), "9" * 40, "9" * 40),
        (pa.int64(), "9" * 40, "is not a valid int64"),
        (TIMESTAMP, "9" * 40, "is not a valid timestamp"),
        (pa.date32(), "9" * 40, "is not a valid date"),
    ],
)
def test_a_long_number_in_a_column_is_its_value_or_named(kind: pa.DataType, number: str, expected: Any) -> None:
    decoded = decode(pa.schema({"a": kind}), f'{{"a": {number}}}'.encode(), b"{}")
    reasons = [bad.reason for bad in decoded.bad]
    if isinstance(expected, str) and kind != pa.string():
        assert len(reasons) == 1
        assert "column a: " in reasons[0]
        assert expected in reasons[0]
    else:
        assert (decoded.rows["a"].to_pylist(), reasons) == ([expected, None], [])


def test_a_slice_of_a_larger_array() -> None:
    values = pa.array([b'{"a": 1}\n{"a": 2}', b'{"a": 3}', None], pa.binary())
    decoded = JsonDecoder(pa.schema({"a": pa.int64()})).decode(values[1:2])
    assert decoded.rows["a"].to_pylist() == [3]


def test_an_empty_batch() -> None:
    decoded = decode(ALL_TYPES)
    assert decoded.rows.schema == ALL_TYPES
    assert decoded.rows.num_rows == len(decoded.index) == len(decoded.bad) == 0


def test_only_decimals() -> None:
    schema = pa.schema({"p": pa.decimal128(10, 2)})
    decoded = decode(schema, b'{"p": 1.25}', b"null", b'{"p": "2"}')
    assert decoded.rows["p"].to_pylist() == [Decimal("1.25"), Decimal("2.00")]
    assert decoded.bad[0].reason == "not a JSON object but null"


def test_narrows_a_large_batch_down_to_its_bad_records() -> None:
    records: list[bytes] = [b'{"a": %d}' % i for i in range(5_000)]
    wrong = [0, 17, 1024, 1025, 4_999]
    for position in wrong:
        records[position] = b'{"a": "x"}'
    decoded = decode(pa.schema({"a": pa.int64()}), *records)
    assert [bad.index for bad in decoded.bad] == wrong
    assert decoded.rows["a"].to_pylist() == decoded.index.tolist()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
rows = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "half": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "text": st.none() | texts,
        "raw": st.none() | st.binary(max_size=8),
        "price": st.none() | st.decimals(-(10**15), 10**15, places=4),
        "day": st.none() | st.dates(),
        # Not such as are taken for seconds.
        "at": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).filter(lambda at: at.year != 1970),
    }
)


def as_json(row: dict[str, Any], *, times_as_text: bool, ascii_only: bool) -> bytes:
    """One row as a producer may write it."""
    price, at = row["price"], row["at"]
    written = dict(row)
    if row["raw"] is not None:
        written["raw"] = base64.b64encode(row["raw"]).decode()
    if row["day"] is not None:
        written["day"] = row["day"].isoformat()
    if price is not None:
        written["price"] = "PRICE"
    if at is not None:
        written["at"] = at.isoformat() + "Z" if times_as_text else milliseconds(at)
    text = json.dumps(written, ensure_ascii=ascii_only)
    return text.replace('"price": "PRICE"', f'"price": {price}').encode()


def milliseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1)) // (datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1))


def expected(row: dict[str, Any]) -> dict[str, Any]:
    value = dict(row)
    if row["at"] is not None:
        value["at"] = milliseconds(row["at"])
    return value


bad_records = st.sampled_from(
    [None, b"", b"\n", b"null", b"{", b"\xff", b'{"big": "x"}', b'{"raw": "x"}', b'{"at": "x"}', b'{"price": 1.23456}']
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(rows, st.booleans(), st.booleans()) | bad_records, max_size=12))
def test_rows_and_bad_records_partition_the_batch(batch: list[Any]) -> None:
    records = [
        as_json(item[0], times_as_text=item[1], ascii_only=item[2]) if isinstance(item, tuple) else item
        for item in batch
    ]
    decoded = JsonDecoder(ALL_TYPES).decode(pa.array(records, pa.binary()))
    good = [i for i, item in enumerate(batch) if isinstance(item, tuple)]
    assert decoded.index.tolist() == good
    assert [bad.index for bad in decoded.bad] == [i for i in range(len(batch)) if i not in good]
    at = ALL_TYPES.get_field_index("at")
    decoded_rows = decoded.rows.set_column(at, "at", decoded.rows["at"].cast(pa.int64())).to_pylist()
    assert decoded_rows == [expected(batch[i][0]) for i in good]


fragments = st.sampled_from(
    [b'{"a":', b'"b"', b":", b",", b"}", b"{", b"[", b"]", b"1", b"-", b".5", b"e9", b"0", b"true", b"null", b"NaN",
     b'"', b"\\", b"\\u00", b"\\ud83d", b"\\ude00", b"\n", b"\r", b" ", b"\x00", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf"]
)  # fmt: skip
junk = st.binary(max_size=20) | st.lists(fragments, max_size=12).map(b"".join)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.none() | junk, max_size=6), st.sampled_from([pa.int64(), pa.decimal128(5, 2), TIMESTAMP, pa.string()])
)
def test_any_bytes_are_a_row_or_a_bad_record(records: list[bytes | None], arrow: pa.DataType) -> None:
    schema = pa.schema({"a": arrow, "b": pa.string()})
    good = b'{"a": null, "b": "here"}'
    decoded = JsonDecoder(schema).decode(pa.array([good, *records, good], pa.binary()))
    assert decoded.rows.num_rows == len(decoded.index)
    assert sorted([*decoded.index.tolist(), *(bad.index for bad in decoded.bad)]) == list(range(len(records) + 2))
    assert decoded.rows["b"][0].as_py() == decoded.rows["b"][-1].as_py() == "here"


values = st.sampled_from(
    [b"1", b"1.10", b"-0", b"1e3", b'"x"', b'""', b"null", b"true", b'[1.0, "y"]', b'{"c": 1.50}', b'"1.10"', b'"12"']
)
objects = st.lists(st.tuples(st.sampled_from([b'"a":', b'"b": ', b'"c":']), values).map(b"".join), max_size=3)
before, after = st.sampled_from([b"", b" ", b"\xef\xbb\xbf"]), st.sampled_from([b"", b"\n", b"\r\n", b" \r"])
framed = st.tuples(before, objects, after)
written = framed.map(lambda parts: parts[0] + b"{" + b",".join(parts[1]) + b"}" + parts[2])


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.none() | junk | written, max_size=8),
    st.lists(st.integers(0, 8), max_size=3),
    st.sampled_from([pa.int64(), pa.float64(), pa.decimal128(5, 2), TIMESTAMP, pa.string(), pa.bool_()]),
)
def test_records_decode_the_same_however_they_are_cut_into_batches(
    records: list[bytes | None], cuts: list[int], arrow: pa.DataType
) -> None:
    schema = pa.schema({"a": arrow, "b": pa.string()})
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    parts = [(start, decode(schema, *records[start:stop])) for start, stop in pairwise(edges)]
    at_once = decode(schema, *records)
    assert at_once.rows.to_pylist() == [row for _, part in parts for row in part.rows.to_pylist()]
    assert at_once.index.tolist() == [start + i for start, part in parts for i in part.index.tolist()]
    assert [bad.index for bad in at_once.bad] == [start + bad.index for start, part in parts for bad in part.bad]


# --- numbers in string columns keep their text ------------------------------------------------------------------------

number_texts = st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?\Z")
quoted = st.text('ab1-9"\\{}[],: é\n', max_size=6).map(json.dumps)
scalars = number_texts | quoted | st.sampled_from(["true", "false", "null"])
spaces = st.sampled_from(["", " "])


@st.composite
def json_objects(draw: st.DrawFn, depth: int = 1) -> str:
    """An object as text, with names that repeat, have escapes, or look like a value's end."""
    names = ["a", "\u00e9", 'q"', "b", "{a"]
    members = []
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        written = draw(st.sampled_from([json.dumps(name), json.dumps(name, ensure_ascii=False), '"\\u0061"']))
        value = draw(scalars | (json_objects(depth - 1) if depth else scalars))
        members.append(f"{draw(spaces)}{written}{draw(spaces)}:{draw(spaces)}{value}{draw(spaces)}")
    return "{" + ",".join(members) + "}"


class AsWritten(str):
    pass


AS_WRITTEN = json.JSONDecoder(parse_float=AsWritten, parse_int=AsWritten, strict=False)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(json_objects(), min_size=1, max_size=6))
@example(['{"x": {"a": 1.10}, "a": 2.20}', '{"a": "3.30", "x": {"a": 1.0}}'])
@example(['{"\\u0061": 1.10}', '{"a": 1.0, "a": 2.0}', '{"b": "\\"a\\": 5", "a": "6"}'])
def test_a_number_in_a_string_column_keeps_its_text(records: list[str]) -> None:
    schema = pa.schema({name: pa.string() for name in ("a", "\u00e9", 'q"', "{a")})
    decoded = decode(schema, *(record.encode() for record in records))
    assert not decoded.bad
    for record, row in zip(records, decoded.rows.to_pylist(), strict=True):
        for name, value in AS_WRITTEN.decode(record).items():
            if name in row and isinstance(value, str):
                assert row[name] == value


@settings(max_examples=examples(400), deadline=None)
@given(junk, st.sampled_from([pa.int64(), pa.float64(), pa.bool_(), pa.decimal128(5, 2)]))
def test_the_explainer_never_blames_what_the_parsers_accept(record: bytes, arrow: pa.DataType) -> None:
    """Else a record would be good or bad by its neighbours' faults."""
    schema = pa.schema({"a": arrow})
    if JsonDecoder(schema).decode(pa.array([record], pa.binary())).rows.num_rows:
        assert Explainer(schema).explain(record) is None


@pytest.mark.parametrize("packed", [gzip.compress, zlib.compress, lambda value: b"\x1f\x8b" + value])
def test_a_compressed_record_is_no_json_and_does_not_hurt_others(packed: Callable[[bytes], bytes]) -> None:
    """Polars would unpack the batch that begins with it."""
    schema = pa.schema([("a", pa.int64())])
    decoded = decode(schema, packed(b'{"a": 1}'), b'{"a": 2}')
    assert decoded.rows.to_pylist() == [{"a": 2}]
    assert [bad.index for bad in decoded.bad] == [0]


@pytest.mark.parametrize("number", ["1.5E+31800925586", "-1e999999999", "1e400"])
def test_a_number_beyond_doubles_is_a_bad_record(number: str) -> None:
    schema = pa.schema([("a", pa.float64())])
    (bad,) = decode(schema, f'{{"a": {number}}}'.encode(), b'{"a": 2}').bad
    assert bad.index == 0
    assert "is not a valid double" in bad.reason
