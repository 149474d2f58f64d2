"""Every type in every format, at the ends of its range, against what other libraries wrote: Python's json and csv,
DuckDB for Parquet, Google's for Protobuf, and for Avro the numbers themselves. What a column can hold is exact; what it
cannot is a bad record of its own; a field that no column names may hold anything."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import message_factory

from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for
from joinery_runtime.connectors.source import StoredOffsets
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded, records_of
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema
from joinery_runtime.job import Input
from stores import STORE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Around the range of 64-bit nanoseconds, the changes of calendars, and the first and the last year.
TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 4, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(1677, 9, 21, 0, 12, 43, 145_000, tzinfo=UTC),
    datetime(1677, 9, 21, 0, 12, 43, 144_000, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(2262, 4, 11, 23, 47, 16, 854_000, tzinfo=UTC),
    datetime(2262, 4, 11, 23, 47, 16, 855_000, tzinfo=UTC),
    datetime(2400, 2, 29, 12, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
]
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int32": [-(2**31), 2**31 - 1, 0],
    "int64": [-(2**63), 2**63 - 1, 2**53 + 1],
    "float": [float(np.float32(3.4028235e38)), -0.5],
    "double": [5e-324, 1.7976931348623157e308, -0.1, 1e22],
    "decimal(38,10)": [
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("-0.0000000001"),
        Decimal("0.0000000000"),
        Decimal(7),
    ],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("0.01")],
    "string": ["", "a", "\u00e9\U0001f600", '12" pipe', '"', "a,b;c", "two\nlines", "\u0085\u2028\x0b", " blanks "],
    "binary": [b"\xff\x00", b"PAR1"],
    "date": [time.date() for time in TIMES],
    "timestamp": TIMES,
}


def model(kind: str, **more: Any) -> Input:
    schema = [{"name": "c", "type": kind}, {"name": "ts", "type": "int64"}]
    kafka = {"kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "t"}} if "file" not in more else {}
    return Input.model_validate({"name": "in", "schema": schema, "eventTime": "ts", **kafka, **more})


def decode(side: Input, *records: bytes) -> Decoded:
    values = pa.array(records, pa.binary())
    return decoder_for(side).decode_batch(RawBatch(PartitionRef("in", "t", 0), np.arange(len(values)), values))


def rows(side: Input) -> list[Decoded]:
    """What the input's file is decoded to."""
    (bounds,) = planner_for(side, "job", STORE).bounds(StoredOffsets())
    planned = planner_for(side, "job", STORE)
    planned.bounds(StoredOffsets())
    batches = reader_for(side).read(planned.cut(bounds, 1_000_000))
    decoder, decoded = decoder_for(side), []
    for raw in batches:
        decoded.append(decoder.decode_batch(raw))
        assert len(records_of(raw, range(len(raw.offsets)))) == len(raw.offsets), "any row can be a dead letter"
    return decoded


def column(*decoded: Decoded) -> list[Any]:
    assert [bad.reason for part in decoded for bad in part.bad] == []
    return [value for part in decoded for value in part.rows["c"].to_pylist()]


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case _:
            return value


@pytest.mark.usefixtures("json_way")
@pytest.mark.parametrize("kind", VALUES)
def test_json(kind: str) -> None:
    texts = [
        json.dumps({"c": plain(value), "ts": 1, "other": value if isinstance(value, int) else None})
        for value in VALUES[kind]
    ]
    assert column(decode(model(kind, format="json"), *(text.encode() for text in texts))) == VALUES[kind]
    if kind == "timestamp":
        numbers = [json.dumps({"c": (time - EPOCH) // timedelta(milliseconds=1), "ts": 1}) for time in TIMES]
        assert column(decode(model(kind, format="json"), *(text.encode() for text in numbers))) == TIMES


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", VALUES)
def test_csv(tmp_path: Path, kind: str, end: str) -> None:
    text = io.StringIO(newline="")
    # Python puts a field with LF in quotes only where lines end with it.
    quoted = end == "\r"
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL)
    writer.writerow(["other", "c", "ts"])
    writer.writerows([['"', plain(value), 1] for value in VALUES[kind]])
    (tmp_path / "in").write_bytes(text.getvalue().encode())
    side = model(kind, format="csv", file={"path": str(tmp_path / "in")})
    expected = [None if value == "" and not quoted else value for value in VALUES[kind]]
    assert column(*rows(side)) == expected


TYPES = {
    "boolean": ["BOOLEAN"],
    "int32": ["INTEGER", "BIGINT", "DECIMAL(18,0)"],
    "int64": ["BIGINT", "DECIMAL(38,0)"],
    "float": ["FLOAT", "DOUBLE"],
    "double": ["DOUBLE"],
    "decimal(38,10)": ["DECIMAL(38,10)"],
    "decimal(5,2)": ["DECIMAL(5,2)", "DECIMAL(38,20)"],
    "string": ["VARCHAR", "BLOB"],
    "binary": ["BLOB"],
    "date": ["DATE"],
    "timestamp": ["TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_MS"],
}


@pytest.mark.parametrize(("kind", "written"), [(kind, written) for kind, all_of in TYPES.items() for written in all_of])
def test_parquet_of_duckdb(tmp_path: Path, kind: str, written: str) -> None:
    path = tmp_path / "in"
    values = [value.encode() if written == "BLOB" and kind == "string" else value for value in VALUES[kind]]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(f"CREATE TABLE t (c {written}, ts BIGINT, far TIMESTAMP, day DATE, nothing {written})")
        for value in values:
            naive = value.replace(tzinfo=None) if isinstance(value, datetime) and written != "TIMESTAMPTZ" else value
            far = "TIMESTAMP '290000-01-01', DATE '5000000-01-01'"
            database.execute(f"INSERT INTO t VALUES (?, 1, {far}, NULL)", [naive])
        database.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    side = model(kind, format="parquet", file={"path": str(path)})
    assert column(*rows(side)) == VALUES[kind]


@pytest.mark.parametrize("kind", ["timestamp", "string"])
def test_parquet_with_times_of_older_writers(tmp_path: Path, kind: str) -> None:
    """INT96, as Spark 2, Impala and Hive write: Arrow's default reads it as nanoseconds, which wrap."""
    table = pa.table({"c": pa.array(TIMES, pa.timestamp("us", "UTC")), "ts": pa.array([1] * len(TIMES), pa.int64())})
    pq.write_table(table, tmp_path / "in", use_deprecated_int96_timestamps=True)
    values = column(*rows(model(kind, format="parquet", file={"path": str(tmp_path / "in")})))
    assert [
        value if kind == "timestamp" else datetime.fromisoformat(value).replace(tzinfo=UTC) for value in values
    ] == TIMES


FAR: list[tuple[pa.DataType, list[int]]] = [
    (pa.timestamp("ms"), [253_402_300_800_000, -62_135_596_800_001, 2**63 - 1, -(2**63)]),
    (pa.timestamp("us", "UTC"), [253_402_300_800_000_000, 2**63 - 1, -(2**63)]),
    (pa.timestamp("us", "Europe/Berlin"), [253_402_300_800_000_000, 2**63 - 1]),
    (pa.date32(), [2_932_897, -719_163, 2**31 - 1, -(2**31)]),
]


@pytest.mark.parametrize(("arrow", "numbers"), FAR, ids=str)
def test_parquet_of_years_that_no_column_has(tmp_path: Path, arrow: pa.DataType, numbers: list[int]) -> None:
    raw = pa.array([0, *numbers], pa.int32() if pa.types.is_date(arrow) else pa.int64()).view(arrow)
    deep = pa.StructArray.from_arrays(
        [raw, pa.ListArray.from_arrays(pa.array(range(len(raw) + 1), pa.int32()), raw)], ["t", "l"]
    )
    table = pa.table({"c": raw, "deep": deep, "ts": pa.array([1] * len(raw), pa.int64())})
    pq.write_table(table, tmp_path / "in")
    file = {"path": str(tmp_path / "in")}
    ((decoded),) = rows(model("date" if pa.types.is_date(arrow) else "timestamp", format="parquet", file=file))
    assert decoded.index.tolist() == [0]
    assert [bad.index for bad in decoded.bad] == list(range(1, len(raw)))
    assert all("column c: " in bad.reason for bad in decoded.bad)
    texts = column(*rows(model("string", format="parquet", file=file)))
    assert len(texts) == len(raw)
    assert texts[0].startswith("1970-01-01")
    schema = [{"name": "c", "type": "string", "path": "deep"}, {"name": "ts", "type": "int64"}]
    nested = column(*rows(model("string", format="parquet", file=file, schema=schema)))
    assert json.loads(nested[0])["t"].startswith("1970-01-01")
    assert len(nested) == len(raw)


def test_parquet_decimals_as_text_and_in_other_scales(tmp_path: Path) -> None:
    values = [Decimal("0E-10"), Decimal("1E-10"), Decimal("1.5000000000"), Decimal("-" + "9" * 28 + "." + "9" * 10)]
    table = pa.table({"c": pa.array(values, pa.decimal128(38, 10)), "ts": pa.array([1] * 4, pa.int64())})
    pq.write_table(table, tmp_path / "in")
    file = {"path": str(tmp_path / "in")}
    assert column(*rows(model("string", format="parquet", file=file))) == [format(value, "f") for value in values]
    (decoded,) = rows(model("decimal(10,2)", format="parquet", file=file))
    assert decoded.rows["c"].to_pylist() == [Decimal("0.00"), Decimal("1.50")]
    assert [bad.index for bad in decoded.bad] == [1, 3]


def avro(kind: Any, *numbers: int) -> tuple[Any, list[bytes]]:
    """Records of a number of this type, written as the number that it is, and in a field that no column names again."""
    base = kind["type"]
    fields = [{"name": "c", "type": base}, {"name": "ts", "type": "long"}, {"name": "other", "type": base}]
    plain_schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    records = []
    for number in numbers:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, plain_schema, {"c": number, "ts": 1, "other": number})
        records.append(target.getvalue())
    typed = [{"name": "c", "type": kind}, {"name": "ts", "type": "long"}, {"name": "other", "type": kind}]
    return {"type": "record", "name": "R", "fields": typed}, records


PER_MS = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}


@pytest.mark.parametrize("unit", PER_MS)
@pytest.mark.parametrize("local", ["", "local-"])
def test_avro_times_of_any_year(unit: str, local: str) -> None:
    times = [time for time in TIMES if unit != "nanos" or 1678 < time.year < 2262]
    numbers = [(time - EPOCH) // timedelta(milliseconds=1) * PER_MS[unit] for time in times]
    far = [] if unit == "nanos" else [2**63 - 1, -(2**63), 253_402_300_800_000 * PER_MS[unit]]
    kind = {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
    schema, records = avro(kind, *numbers, *far)
    side = model("timestamp", format="avro", avroSchema=json.dumps(schema))
    decoded = decode(side, *records)
    assert decoded.rows["c"].to_pylist() == times
    assert [bad.index for bad in decoded.bad] == list(range(len(times), len(times) + len(far)))
    columns = [{"name": "ts", "type": "int64"}]
    assert len(
        decode(model("int64", format="avro", avroSchema=json.dumps(schema), schema=columns), *records).rows
    ) == len(records)


NS = 1_768_471_200_123_456_789
MOMENT = datetime(2026, 1, 15, 10, 0, 0, 123_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("logical", "number", "text"),
    [
        ("timestamp-millis", NS // 10**6, "2026-01-15T10:00:00.123000+00:00"),
        ("timestamp-micros", NS // 10**3, "2026-01-15T10:00:00.123456+00:00"),
        ("local-timestamp-micros", NS // 10**3, "2026-01-15T10:00:00.123456+00:00"),
        ("timestamp-micros", -1, "1969-12-31T23:59:59.999999+00:00"),
        ("timestamp-micros", 2**62, 2**62),
        ("timestamp-nanos", NS, NS),
        ("local-timestamp-nanos", -1, -1),
        ("time-micros", 86_399_999_999, "23:59:59.999999"),
        ("time-micros", 86_400_000_000, 86_400_000_000),
    ],
)
def test_avro_times_in_other_columns_than_timestamps_keep_all_their_digits(
    logical: str, number: int, text: str | int
) -> None:
    """Texts of times are keys: two instants must not become one."""
    kind = {"type": "long", "logicalType": logical}
    schema, records = avro(kind, number)
    schema["fields"][2]["type"] = {"type": "record", "name": "Other", "fields": [{"name": "t", "type": kind}]}
    columns = [{"name": "c", "type": "string"}, {"name": "ts", "type": "int64"}, {"name": "other", "type": "string"}]
    decoded = decode(model("string", format="avro", avroSchema=json.dumps(schema), schema=columns), *records)
    assert column(decoded) == [str(text)]
    assert json.loads(decoded.rows["other"][0].as_py()) == {"t": text}


@pytest.mark.parametrize("local", ["", "local-"])
def test_avro_nanoseconds_are_numbers_unless_a_timestamp_column_reads_them(local: str) -> None:
    schema, records = avro({"type": "long", "logicalType": f"{local}timestamp-nanos"}, NS)

    def read(kind: str, **more: str) -> list[Any]:
        columns = [{"name": "c", "type": kind, **more}, {"name": "ts", "type": "int64"}]
        return column(decode(model(kind, format="avro", avroSchema=json.dumps(schema), schema=columns), *records))

    assert read("int64") == [NS]
    assert read("timestamp") == read("timestamp", format="ns") == [MOMENT]
    assert read("timestamp", format="iso", zone="UTC") == [MOMENT]
    in_berlin = MOMENT - timedelta(hours=1) if local else MOMENT
    assert read("timestamp", format="iso", zone="Europe/Berlin") == [in_berlin]


@pytest.mark.parametrize("kind", [{"format": "iso"}, {"format": "%Y-%m-%dT%H:%M:%S.%f%z"}])
def test_a_local_time_of_avro_is_one_of_utc_where_its_column_names_no_zone(kind: dict[str, str]) -> None:
    schema, records = avro({"type": "long", "logicalType": "local-timestamp-millis"}, NS // 10**6)
    columns = [{"name": "c", "type": "timestamp", **kind}, {"name": "ts", "type": "int64"}]
    side = model("timestamp", format="avro", avroSchema=json.dumps(schema), schema=columns)
    assert column(decode(side, *records)) == [MOMENT]


def test_avro_dates_of_any_year() -> None:
    days = [time.date() for time in TIMES]
    numbers = [(day - date(1970, 1, 1)).days for day in days]
    schema, records = avro({"type": "int", "logicalType": "date"}, *numbers, 2**31 - 1, -(2**31))
    decoded = decode(model("date", format="avro", avroSchema=json.dumps(schema)), *records)
    assert decoded.rows["c"].to_pylist() == days
    assert len(decoded.bad) == 2


@pytest.mark.parametrize("logical", ["time-millis", "time-micros"])
def test_avro_times_of_day_beyond_a_day_are_in_nobodys_way(logical: str) -> None:
    schema, records = avro(
        {"type": "int" if logical == "time-millis" else "long", "logicalType": logical},
        0,
        86_400_000_000 if logical != "time-millis" else 2**31 - 1,
    )
    assert (
        decode(
            model("int64", format="avro", avroSchema=json.dumps(schema), schema=[{"name": "ts", "type": "int64"}]),
            *records,
        ).bad
        == []
    )
    assert column(decode(model("string", format="avro", avroSchema=json.dumps(schema)), *records))[0] == "00:00:00"


PROTOBUF = {
    "boolean": ["bool"],
    "int32": ["int32", "sint64", "sfixed32"],
    "int64": ["int64", "sint64", "sfixed64"],
    "float": ["float"],
    "double": ["double"],
    "decimal(38,10)": ["string"],
    "decimal(5,2)": ["string"],
    "string": ["string"],
    "binary": ["bytes"],
    "date": ["string"],
    "timestamp": ["google.protobuf.Timestamp", "string", "int64"],
}


@pytest.mark.usefixtures("json_way")
@pytest.mark.parametrize(("kind", "written"), [(kind, one) for kind, all_of in PROTOBUF.items() for one in all_of])
def test_protobuf(kind: str, written: str) -> None:
    text = f"""syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message M {{ {written} c = 1; int64 ts = 2; google.protobuf.Timestamp other = 3; }}"""
    get_message_class = message_factory.GetMessageClass(compile_schema(text, {}).message_named(None))

    def record(value: Any) -> bytes:
        message = get_message_class(ts=1)
        message.other.seconds = 2**62
        if written.endswith("Timestamp"):
            message.c.FromDatetime(value)
        elif isinstance(value, datetime) and written == "int64":
            message.c = (value - EPOCH) // timedelta(milliseconds=1)
        else:
            message.c = value if isinstance(value, bytes) else plain(value)
        serialized: bytes = message.SerializeToString()
        return serialized

    decoded = decode(model(kind, format="protobuf", protobufSchema=text), *map(record, VALUES[kind]))
    assert column(decoded) == VALUES[kind]


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**63 - 1, -(2**63)])
def test_protobuf_times_of_years_that_no_column_has(seconds: int) -> None:
    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message M { google.protobuf.Timestamp c = 1; int64 ts = 2; }"""
    message = message_factory.GetMessageClass(compile_schema(text, {}).message_named(None))(ts=1)
    message.c.seconds = seconds
    side = model("timestamp", format="protobuf", protobufSchema=text)
    assert len(decode(side, message.SerializeToString()).bad) == 1


LOCAL = datetime(2024, 7, 1, 12, 0)


@pytest.mark.parametrize("write", ["avro", "parquet", "json", "csv"])
def test_a_local_time_is_read_by_the_columns_zone(tmp_path: Path, write: str) -> None:
    columns = [
        {"name": "c", "type": "timestamp", "format": "iso", "zone": "Europe/Berlin"},
        {"name": "ts", "type": "int64"},
    ]
    number = (LOCAL - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    if write == "avro":
        schema, records = avro({"type": "long", "logicalType": "local-timestamp-millis"}, number)
        decoded = decode(model("timestamp", format="avro", avroSchema=json.dumps(schema), schema=columns), *records)
    elif write == "parquet":
        pq.write_table(pa.table({"c": pa.array([LOCAL], pa.timestamp("us")), "ts": [1]}), tmp_path / "in")
        (decoded,) = rows(model("timestamp", format="parquet", file={"path": str(tmp_path / "in")}, schema=columns))
    else:
        text = json.dumps({"c": LOCAL.isoformat(" "), "ts": 1}) if write == "json" else f"{LOCAL},1"
        decoded = decode(model("timestamp", format=write, schema=columns), text.encode())
    assert column(decoded) == [datetime(2024, 7, 1, 10, 0, tzinfo=UTC)]


UNFIT: list[tuple[str, Callable[[str], str]]] = [
    ("json", lambda text: json.dumps({"c": text, "ts": 1})),
    ("csv", lambda text: f"{text},1"),
]


@pytest.mark.parametrize(("kind", "write"), UNFIT, ids=["json", "csv"])
@pytest.mark.parametrize(
    "text",
    [
        "10000-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "99999-01-01",
        "2024-01-01T24:00:00Z",
        "1" * 40,
    ],
)
def test_text_of_a_year_that_no_column_has(kind: str, write: Callable[[str], str], text: str) -> None:
    for target in ("timestamp", "date"):
        (bad,) = decode(model(target, format=kind), write(text).encode()).bad
        assert bad.reason.startswith("column c: ")
