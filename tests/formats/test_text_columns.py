"""Times in the forms that producers write, and numbers in quotes: columns with a `format`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.convert import convert, fault
from joinery_runtime.formats.records import Decoded
from joinery_runtime.job import Input

pytestmark = pytest.mark.usefixtures("json_way")


def decode(column: dict[str, Any], *literals: str) -> Decoded:
    """What a column of an input makes of these JSON literals."""
    schema = [{"name": "c", **column}, {"name": "ts", "type": "int64"}]
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    side = Input.model_validate({"name": "in", "kafka": kafka, "format": "json", "schema": schema, "eventTime": "ts"})
    values = pa.array([f'{{"c":{literal},"ts":1}}'.encode() for literal in literals], pa.binary())
    raw = RawBatch(PartitionRef("in", "t", 0), np.arange(len(values)), values)
    return decoder_for(side).decode_batch(raw)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("column", "literal", "expected"),
    [
        ({"format": "s"}, "1700000000", "2023-11-14T22:13:20Z"),
        ({"format": "s"}, '"1700000000"', "2023-11-14T22:13:20Z"),
        ({"format": "s"}, "1700000000.123456789", "2023-11-14T22:13:20.123Z"),
        ({"format": "s"}, "-1.5", "1969-12-31T23:59:58.500Z"),
        ({"format": "s"}, "1.700000000123E9", "2023-11-14T22:13:20.123Z"),
        ({"format": "ms"}, "1700000000", "1970-01-20T16:13:20Z"),
        ({"format": "us"}, "1700000000123456", "2023-11-14T22:13:20.123Z"),
        ({"format": "ns"}, "1700000000123456789", "2023-11-14T22:13:20.123Z"),
        ({"format": "iso"}, '"2024-05-06T12:00:00.123456Z"', "2024-05-06T12:00:00.123Z"),
        ({"format": "iso"}, '"2024-05-06 12:00:00+02"', "2024-05-06T10:00:00Z"),
        ({"format": "iso"}, '"2024-05-06 12:00:00 +0200"', "2024-05-06T10:00:00Z"),
        ({"format": "iso", "zone": "UTC"}, '"2024-05-06 12:00"', "2024-05-06T12:00:00Z"),
        ({"format": "iso", "zone": "UTC"}, '"2024-05-06"', "2024-05-06T00:00:00Z"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2024-05-06 12:00:00.5"', "2024-05-06T10:00:00.500Z"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2024-05-06 12:00:00Z"', "2024-05-06T12:00:00Z"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2024-10-27 02:30:00"', "2024-10-27T00:30:00Z"),
        ({"format": "%d/%m/%Y %H:%M:%S", "zone": "UTC"}, '"06/05/2024 12:00:00"', "2024-05-06T12:00:00Z"),
        ({"format": "%d.%m.%Y %H:%M:%S.%f", "zone": "UTC"}, '"06.05.2024 12:00:00.25"', "2024-05-06T12:00:00.250Z"),
        ({"format": "%Y-%m-%d %H:%M:%S,%f", "zone": "UTC"}, '"2024-05-06 12:00:00,9"', "2024-05-06T12:00:00.900Z"),
        ({"format": "%Y-%m-%d %H:%M:%S,%f", "zone": "UTC"}, '"2024-05-06 12:00:00"', "2024-05-06T12:00:00Z"),
        ({"format": "%Y-%m-%d %H:%M:%S:%f", "zone": "UTC"}, '"2024-05-06 12:00:00:009"', "2024-05-06T12:00:00.009Z"),
        (
            {"format": "%d %b %Y %I:%M:%S %f %p", "zone": "UTC"},
            '"6 May 2024 12:00:00 25 am"',
            "2024-05-06T00:00:00.250Z",
        ),
        ({"format": "%Y%m%d%H%M%S%f", "zone": "UTC"}, '"20240506120000123456789012"', "2024-05-06T12:00:00.123Z"),
        ({"format": "%Y%m%d%H%M%S%3f", "zone": "UTC"}, '"20240506120000123"', "2024-05-06T12:00:00.123Z"),
        ({"format": "%s.%f"}, '"-1.5"', "1969-12-31T23:59:58.500Z"),
        ({"format": "%Y-%m-%d %H:%M:%S.%f", "zone": "Europe/Berlin"}, '"2150-07-01 12:00:00"', "2150-07-01T10:00:00Z"),
        ({"format": "iso", "zone": "America/New_York"}, '"9999-07-01 12:00:00"', "9999-07-01T16:00:00Z"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2100-10-31 02:30:00"', "2100-10-31T00:30:00Z"),
        ({"format": "%d/%b/%Y:%H:%M:%S %z"}, '"06/May/2024:12:00:00 +0200"', "2024-05-06T10:00:00Z"),
    ],
)
def test_times_are_read_as_the_format_says(column: dict[str, Any], literal: str, expected: str) -> None:
    decoded = decode({"type": "timestamp", **column}, literal, "null")
    assert decoded.bad == []
    assert decoded.rows["c"].to_pylist() == [moment(expected), None]


@pytest.mark.parametrize(
    ("column", "literal", "reason"),
    [
        ({"format": "s"}, '"x"', "'x' is no time of format s"),
        ({"format": "s"}, "true", "'true' is no time of format s"),
        ({"format": "s"}, "999999999999999", "'999999999999999' is no time of format s"),
        ({"format": "s"}, "{}", "'{}' is no time of format s"),
        (
            {"format": "iso"},
            '"2024-05-06 12:00:00"',
            "is no time of format iso without a zone: name the column's `zone`",
        ),
        ({"format": "iso"}, '"2024-02-30T12:00:00Z"', "'2024-02-30T12:00:00Z' is no time of format iso"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2024-03-31 02:30:00"', "is no time of format iso"),
        ({"format": "iso", "zone": "Europe/Berlin"}, '"2100-03-28 02:30:00"', "is no time of format iso"),
        ({"format": "%d/%m/%Y", "zone": "UTC"}, '"06/05"', "'06/05' is no time of format %d/%m/%Y"),
        ({"format": "%d/%m/%Y", "zone": "UTC"}, '"30/02/2024"', "'30/02/2024' is no time of format %d/%m/%Y"),
    ],
)
def test_what_the_format_does_not_fit_is_a_bad_record(column: dict[str, Any], literal: str, reason: str) -> None:
    decoded = decode({"type": "timestamp", **column}, literal)
    (bad,) = decoded.bad
    assert bad.reason.startswith("column c: ")
    assert bad.reason.endswith(reason)


def test_a_guess_that_yields_1970_is_refused() -> None:
    decoded = decode(
        {"type": "timestamp"}, "1700000000", '"1700000000"', "1700000000000", "5", '"1970-01-20T16:13:20Z"'
    )
    assert len(decoded.rows) == 3
    assert [bad.index for bad in decoded.bad] == [0, 1]
    reason = "column c: 1700000000 is 1970 if it counts milliseconds, and 2023-11-14 if it counts seconds"
    assert {bad.reason for bad in decoded.bad} == {f"{reason}; write the column's format: s or ms"}


@pytest.mark.parametrize(("unit", "digits"), [("us", "1715000000000000"), ("ns", "1715000000000000000")])
def test_a_finer_unit_than_milliseconds_is_recognised(unit: str, digits: str) -> None:
    what = f"column c: {digits} is no time in milliseconds, and 2024-05-06 if it counts {unit}"
    message = f"{what}; write the column's format: {unit}"
    assert {bad.reason for bad in decode({"type": "timestamp"}, digits, f'"{digits}"').bad} == {message}
    assert decode({"type": "timestamp", "format": unit}, digits).bad == []


@pytest.mark.parametrize(
    ("kind", "literals", "expected"),
    [
        ("int64", ["7", '"7"'], [7, 7]),
        ("int32", ['"-7"'], [-7]),
        ("double", ["1.5", '"1.5"', '"1e3"'], [1.5, 1.5, 1000.0]),
        ("boolean", ["true", '"True"'], [True, True]),
    ],
)
def test_numbers_in_quotes_are_taken_where_the_job_says_so(kind: str, literals: list[str], expected: list[Any]) -> None:
    assert decode({"type": kind, "format": "text"}, *literals).rows["c"].to_pylist() == expected
    plain = decode({"type": kind}, *literals)
    assert [bad.index for bad in plain.bad] == [i for i, literal in enumerate(literals) if literal.startswith('"')]
    (bad,) = decode({"type": kind, "format": "text"}, '"x"').bad
    assert bad.reason == f"column c: 'x' is not a valid {kind}"


def test_a_date_may_have_a_pattern() -> None:
    decoded = decode({"type": "date", "format": "%d.%m.%Y"}, '"06.05.2024"', '"2024-05-06"')
    assert [str(day) for day in decoded.rows["c"].to_pylist()] == ["2024-05-06"]
    assert [bad.reason for bad in decoded.bad] == ["column c: '2024-05-06' is no time of format %d.%m.%Y"]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("2026-01-15 10:00:00", "years 1 to 9999); write the column's format: iso and its zone"),
        ("2026-01-15", "years 1 to 9999); write the column's format: iso and its zone"),
        ("2026-01-15T10:00:00+01", "years 1 to 9999); write the column's format: iso"),
        ("15.01.2026", "years 1 to 9999)"),
    ],
)
def test_a_time_that_only_a_format_reads_is_refused_with_that_formats_name(value: str, hint: str) -> None:
    _, faults = convert("ts", pl.Series([value]), pa.timestamp("ms", tz="UTC"))
    ((_, (reason,)),) = faults
    assert reason.endswith(hint)


@pytest.mark.parametrize(
    ("value", "kind", "hinted"),
    [
        ("3", pa.int64(), True),
        ("-3", pa.int32(), True),
        ("3000000000", pa.int32(), False),
        ("3.5", pa.int64(), False),
        ("3.5e2", pa.float64(), True),
        ("3.5e400", pa.float64(), False),
        ("\u0661", pa.int64(), False),
        ("3,5", pa.float64(), False),
        ("true", pa.bool_(), True),
        ("yes", pa.bool_(), False),
        (" 3", pa.int64(), False),
        (3.5, pa.int64(), False),
        ("3", pa.string(), False),
    ],
)
def test_a_value_that_format_text_would_read_says_so(value: object, kind: pa.DataType, *, hinted: bool) -> None:
    assert fault("n", value, kind).endswith("write the column's format: text") == hinted
