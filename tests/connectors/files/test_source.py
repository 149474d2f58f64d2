"""Files: every record once whatever the ranges, positions that mean the same later, and clear errors."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.connectors.files.source import line_number
from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for
from joinery_runtime.connectors.source import Range, StoredOffsets
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.record_ends import SAMPLE
from joinery_runtime.job import Input
from stores import STORE


def file_input(path: Path, file_format: str = "json", columns: tuple[str, ...] = ("a", "b"), **more: Any) -> Input:
    schema = [{"name": name, "type": "string"} for name in columns]
    data = {"name": "in", "file": {"path": str(path)}, "format": file_format, "schema": schema, "eventTime": "a"}
    return Input.model_validate({**data, **more})


def read_in_ranges(model: Input, records_per_range: int) -> list[tuple[int, bytes]]:
    """All records with their offsets, read as a job reads them: each range starts where the one before ended."""
    planner, reader = planner_for(model, "job", STORE), reader_for(model)
    records: list[tuple[int, bytes]] = []
    (bounds,) = planner.bounds(StoredOffsets())
    while bounds.start < bounds.end_exclusive:
        planned = planner.cut(bounds, records_per_range)
        assert planned.start < planned.end_exclusive <= bounds.end_exclusive
        for batch in reader.read(planned):
            records += zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True)
        (bounds,) = planner.bounds(StoredOffsets({bounds.partition: planned.end_exclusive}))
    assert bounds.final
    return records


lines = st.lists(st.sampled_from([b"", b"x", b"yy" * 40, b'{"a": 1}', b"\xff"]), max_size=20)


@settings(max_examples=examples(60), deadline=None)
@given(lines, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans(), st.integers(1, 6))
def test_json_lines(tmp_path_factory, texts: list[bytes], end: bytes, ended: bool, per_range: int) -> None:
    path = tmp_path_factory.mktemp("files") / "in.jsonl"
    data = end.join(texts) + (end if ended else b"")
    path.write_bytes(data)
    records_read = read_in_ranges(file_input(path), per_range)
    assert [record for _, record in records_read] == [text for text in texts if text]
    assert all(data[offset:].startswith(record) for offset, record in records_read)


fields = st.sampled_from([b"", b"x", b'"a\nb"', b'"a\r\n""b"""', b'"' + b"long\n" * 30 + b'"'])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(fields, fields), max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 5))
def test_csv_line_breaks_in_quotes(
    tmp_path_factory, rows: list[tuple[bytes, bytes]], end: bytes, per_range: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "in.csv"
    records = [b",".join(row) for row in rows]
    path.write_bytes(end.join([b'b,"a"', *records]))
    records_read = read_in_ranges(file_input(path, "csv"), per_range)
    assert [record for _, record in records_read] == records


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.lists(st.text('ab",;\n\r \u00e9', max_size=6), min_size=2, max_size=2), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.integers(1, 4),
    st.integers(4, 40),
)
def test_csv_rows_are_those_of_pythons_reader(
    tmp_path_factory, rows: list[list[str]], end: str, ended: bool, per_range: int, size: int
) -> None:
    """Whatever fields hold, with any line end, and however the file is cut."""
    path = tmp_path_factory.mktemp("files") / "in.csv"
    lines = [",".join(_written(field) for field in row) for row in [["a", "b"], *rows]]
    path.write_bytes((end.join(lines) + end * ended).encode())
    expected = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joinery_runtime.connectors.files.source._CHUNK", size)
        model = file_input(path, "csv")
        records_read = read_in_ranges(model, per_range)
    decoded = decoder_for(model).decode(pa.array([record for _, record in records_read], pa.binary()))
    assert decoded.bad == []
    assert [[row["a"] or "", row["b"] or ""] for row in decoded.rows.to_pylist()] == expected


def _written(field: str) -> str:
    """A field as a producer may write it: in quotes where it must be, with its quotes alone elsewhere."""
    if field.startswith('"') or any(sign in field for sign in ",\n\r"):
        return '"' + field.replace('"', '""') + '"'
    return field


@settings(max_examples=examples(300), deadline=None)
@example(b'\r"\ra""",', 1, 3, 5, False)
@given(
    st.text('a",\n\r ', max_size=60).map(str.encode),
    st.integers(1, 5),
    st.integers(1, 30),
    st.sampled_from([5, 20, 16 * 2**20]),
    st.booleans(),
)
def test_records_are_the_same_however_a_file_is_cut(
    tmp_path_factory, data: bytes, per_range: int, size: int, longest: int, blanks: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "in.csv"
    path.write_bytes(data)
    model = file_input(path, "csv", csv={"header": False, "skipInitialSpace": blanks})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joinery_runtime.formats.record_ends._LONGEST_FIELD", longest)
        at_once = read_in_ranges(model, 1_000_000)
        patch.setattr("joinery_runtime.connectors.files.source._CHUNK", size)
        patch.setattr("joinery_runtime.connectors.files.source.SAMPLE", size)
        assert read_in_ranges(model, per_range) == at_once


def test_a_quote_that_is_out_of_place_spoils_its_own_line_only(tmp_path) -> None:
    path = tmp_path / "in.csv"
    lines = [
        b"a,b",
        b"1,plain",
        b'2,12" pipe',
        b'3,"12 pipe',
        b'4,"ok"',
        b'5,"x"y',
        b"6,ok",
        b'7,"two\nlines"',
        b'8,"end',
    ]
    path.write_bytes(b"\n".join(lines))
    records = [record for _, record in read_in_ranges(file_input(path, "csv"), 2)]
    assert records == lines[1:]
    decoded = decoder_for(file_input(path, "csv")).decode(pa.array(records, pa.binary()))
    assert [row["a"] for row in decoded.rows.to_pylist()] == ["1", "2", "4", "6", "7"]


def test_a_quote_without_another_one_does_not_take_the_file_with_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.formats.record_ends._LONGEST_FIELD", 1_000)
    monkeypatch.setattr("joinery_runtime.connectors.files.source._CHUNK", 64)
    path = tmp_path / "in.csv"
    lines = [b"%d,x" % i for i in range(2_000)]
    lines[3] = b'3,"x'
    lines[1_000] = b'1000,"' + b"y\n" * 400 + b'"'
    path.write_bytes(b"a,b\n" + b"\n".join(lines) + b"\n")
    assert [record for _, record in read_in_ranges(file_input(path, "csv"), 7)] == lines


@pytest.mark.parametrize("blank", [b"", b" ", b"\t \t", b" \r"])
@pytest.mark.parametrize(("kind", "row"), [("json", b'{"a":"1","b":"2"}'), ("csv", b"1,2")])
def test_a_line_of_blanks_is_no_record(tmp_path, kind: str, row: bytes, blank: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(
        b"\n".join(
            [b"a,b", row, blank, row, blank, blank, row, blank]
            if kind == "csv"
            else [blank, row, blank, row, row, blank]
        )
    )
    model = file_input(path, kind)
    records = read_in_ranges(model, 2)
    assert [record.strip() for _, record in records] == [row] * 3


def test_a_line_of_separators_is_a_record(tmp_path) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(b"a\tb\n1\t2\n\t\n \t \n")
    records = [record for _, record in read_in_ranges(file_input(path, "csv", csv={"separator": "\t"}), 9)]
    assert records == [b"1\t2", b"\t", b" \t "]


@pytest.mark.parametrize("size", [16, 17, 18, 19, 20])
def test_lines_end_with_cr_only_where_no_lf_follows(tmp_path, monkeypatch, size: int) -> None:
    monkeypatch.setattr("joinery_runtime.formats.record_ends.SAMPLE", size)
    for end in (b"\r\n", b"\r"):
        path = tmp_path / f"in{len(end)}.csv"
        path.write_bytes(b"a,b" + end + b"1,22222222222222" + end + b'"3\n",4' + end)
        records = [record for _, record in read_in_ranges(file_input(path, "csv"), 9)]
        assert records == [b"1,22222222222222", b'"3\n",4']
        assert line_number(str(path), len(b"a,b" + end)) == 2


@pytest.mark.parametrize("size", [SAMPLE // 2, SAMPLE, 20 * SAMPLE])
def test_a_cr_inside_a_long_first_record_ends_no_line_where_lf_follows(tmp_path, size: int) -> None:
    path = tmp_path / "in.jsonl"
    records = [b'{"id": 1,\r"s": "' + b"x" * size + b'"}', b'{"id": 2}']
    path.write_bytes(b"\n".join(records))
    assert [record for _, record in read_in_ranges(file_input(path), 9)] == records


def test_a_record_larger_than_what_is_read_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.files.source._CHUNK", 16)
    monkeypatch.setattr("joinery_runtime.connectors.files.source.SAMPLE", 16)
    records = [b"a" * 100, b"b", b"c" * 1000, b"d" * 15]
    (tmp_path / "in").write_bytes(b"\n".join(records))
    assert [record for _, record in read_in_ranges(file_input(tmp_path / "in"), 1)] == records


def test_cut_takes_about_as_many_records_as_asked(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"".join(b"%099d\n" % i for i in range(1_000)))
    planner = planner_for(file_input(tmp_path / "in"), "job", STORE)
    (bounds,) = planner.bounds(StoredOffsets())
    assert planner.cut(bounds, 250).end_exclusive == 25_000


def test_records_that_are_longer_than_a_sample_are_counted_too(tmp_path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes((b"x" * 199_999 + b"\n") * 10)
    planner = planner_for(file_input(path), "job", STORE)
    (bounds,) = planner.bounds(StoredOffsets())
    assert planner.cut(bounds, 3).end_exclusive == 600_000


def test_csv_columns_come_in_the_header_s_order(tmp_path) -> None:
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfb,unused,a\n1,2,3\n")
    model = file_input(tmp_path / "in.csv", "csv")
    ((_, record),) = read_in_ranges(model, 10)
    decoded = decoder_for(model).decode(pa.array([record], pa.binary()))
    assert decoded.rows.to_pylist() == [{"a": "3", "b": "1"}]


def test_a_byte_order_mark_is_no_part_of_the_first_json_record(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf{}\n{}")
    assert read_in_ranges(file_input(tmp_path / "in"), 10) == [(3, b"{}"), (6, b"{}")]


def test_an_empty_file(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"")
    assert read_in_ranges(file_input(tmp_path / "in"), 10) == []


def test_line_number(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"a\nb\n\nc\n")
    assert [line_number(str(tmp_path / "in"), offset) for offset in (0, 2, 5)] == [1, 2, 4]


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(SourceError, match=r"nope\.jsonl cannot be read: No such file"):
        planner_for(file_input(tmp_path / "nope.jsonl"), "job", STORE).bounds(StoredOffsets())


@pytest.mark.parametrize("header", [b"a,c\n1,2\n", b"", b"A,B\n"])
def test_a_header_without_a_column_of_the_schema(tmp_path, header: bytes) -> None:
    (tmp_path / "in.csv").write_bytes(header)
    model = file_input(tmp_path / "in.csv", "csv")
    with pytest.raises(SourceError, match=r"header of .*in\.csv .* no column (a, )?b"):
        planner_for(model, "job", STORE).bounds(StoredOffsets())
    with pytest.raises(SourceError, match="no column"):
        decoder_for(model)


@pytest.mark.parametrize(
    ("header", "todo"),
    [
        (b"a;b\n1;2\n", r'csv: \{separator: ";"\}$'),
        (b"\xef\xbb\xbf'b'\tid\t\"a\"\n", r'csv: \{separator: "\\t"\}$'),
        (b"a|b|c\n", r'csv: \{separator: "\|"\}$'),
        (b"a, b\n1, 2\n", r"blanks: write csv: \{skipInitialSpace: true\}$"),
        (b"b; a\n1; 2\n", r'another separator and blanks: write csv: \{separator: ";", skipInitialSpace: true\}$'),
        (b"a ,b \n1,2\n", r"take the blanks out of the header$"),
        (b"1;2\n", r"csv: \{header: false\}$"),
        (b"1,2\n", r"csv: \{header: false\}$"),
    ],
)
def test_a_header_of_another_dialect_says_what_to_write(tmp_path, header: bytes, todo: str) -> None:
    (tmp_path / "in.csv").write_bytes(header.replace(b"'", b""))
    with pytest.raises(SourceError, match=todo):
        planner_for(file_input(tmp_path / "in.csv", "csv"), "job", STORE).bounds(StoredOffsets())


def test_a_directory_of_hidden_files_says_so(tmp_path) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ".part-0").touch()
    with pytest.raises(SourceError, match=r"only hidden ones, such as \.part-0\. Names must not begin with"):
        planner_for(file_input(tmp_path / "in"), "job", STORE).bounds(StoredOffsets())


def test_a_header_that_names_a_column_twice(tmp_path) -> None:
    (tmp_path / "in.csv").write_bytes(b"a,b,a\n")
    with pytest.raises(SourceError, match="names a column twice"):
        planner_for(file_input(tmp_path / "in.csv", "csv"), "job", STORE).bounds(StoredOffsets())


def test_a_file_that_became_shorter(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"a\nb\n")
    model = file_input(tmp_path / "in")
    planner = planner_for(model, "job", STORE)
    (bounds,) = planner.bounds(StoredOffsets())
    (tmp_path / "in").write_bytes(b"a\n")
    with pytest.raises(SourceError, match="read up to byte 4 and has 2"):
        planner.bounds(StoredOffsets({bounds.partition: 4}))
    with pytest.raises(SourceError, match="cut short"):
        list(reader_for(model).read(Range(bounds.partition, 0, 4)))


# --- several files, compressed files, dialects ------------------------------------------------------------------------


def all_of(model: Input) -> dict[str, list[bytes]]:
    """The records of each file by its name."""
    planner, reader = planner_for(model, "job", STORE), reader_for(model)
    records_by_file = {}
    for bounds in planner.bounds(StoredOffsets()):
        batches = reader.read(Range(bounds.partition, bounds.start, bounds.end_exclusive))
        records_by_file[Path(bounds.partition.topic).name] = [
            value for batch in batches for value in batch.values.to_pylist()
        ]
        assert bounds.final
    return records_by_file


def packed(data: bytes, by: str) -> bytes:
    """In two pieces one after the other, as appending writers leave them."""
    pieces = (data[:5], data[5:])
    if by == "gzip":
        return b"".join(map(gzip.compress, pieces))
    return b"".join(pa.Codec("zstd").compress(piece, asbytes=True) for piece in pieces)


@pytest.mark.parametrize("by", ["gzip", "zstd"])
def test_a_compressed_file_is_read_by_what_is_in_it_and_in_ranges(tmp_path, by: str) -> None:
    data = b"".join(b'{"a":%d}\n' % number for number in range(50))
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed.log").write_bytes(packed(data, by))
    records_read = read_in_ranges(file_input(tmp_path / "packed.log"), 7)
    assert records_read == read_in_ranges(file_input(tmp_path / "plain"), 7)
    assert len(records_read) == 50


def test_a_compressed_file_that_is_not_complete_is_named(tmp_path) -> None:
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"x" * 9_000)[:-9])
    with pytest.raises(SourceError, match=r"in\.gz cannot be unpacked"):
        all_of(file_input(tmp_path / "in.gz"))


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (b"PAR1", "format: parquet"),
        (b"BZh91", "bzip2"),
        (b"Obj\x01", "Avro"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ],
)
def test_a_file_of_another_kind_is_recognised(tmp_path, begins: bytes, says: str) -> None:
    (tmp_path / "in").write_bytes(begins + b"...")
    with pytest.raises(SourceError, match=f"looks like .*{says}"):
        all_of(file_input(tmp_path / "in"))


def test_a_file_of_csv_that_is_json_is_recognised(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b'{"a":1,"b":2}\n{"a":2,"b":3}\n')
    with pytest.raises(SourceError, match=r"/in looks like JSON(.|\n)*Write format: json"):
        all_of(file_input(tmp_path / "in", format="csv"))


def test_a_directory_and_a_pattern_are_all_of_their_files(tmp_path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt", ".hidden", "_SUCCESS", "deep/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "e.jsonl").write_bytes(gzip.compress(b"e"))
    assert all_of(file_input(tmp_path)) == {
        "a.jsonl": [b"a.jsonl"], "b.jsonl": [b"b.jsonl"], "c.txt": [b"c.txt"], "e.jsonl": [b"e"]
    }  # fmt: skip
    assert list(all_of(file_input(tmp_path / "[ab].jsonl"))) == ["a.jsonl", "b.jsonl"]
    assert list(all_of(file_input(tmp_path / "**/*.jsonl"))) == ["a.jsonl", "b.jsonl", "d.jsonl", "e.jsonl"]
    with pytest.raises(SourceError, match=r"no input file in .*\*.csv"):
        all_of(file_input(tmp_path / "*.csv"))
    (tmp_path / "hive" / "day=1").mkdir(parents=True)
    with pytest.raises(SourceError, match=r'only directories, such as day=1\. .*path: ".*/hive/\*\*/\*\.<suffix>"'):
        all_of(file_input(tmp_path / "hive"))


@pytest.mark.parametrize(
    ("name", "says"), [("ordrs", "the input file .*/ordrs cannot be read"), ("ordrs*", "there is no input file in ")]
)
@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
def test_a_path_that_leads_nowhere_is_told_with_the_input(tmp_path, format_: str, name: str, says: str) -> None:
    side = file_input(tmp_path / name, format_)
    with pytest.raises(SourceError, match=f"^Input in: {says}"):
        planner_for(side, "job", STORE).bounds(StoredOffsets())
    if format_ == "csv":
        with pytest.raises(SourceError, match=f"^Input in: {says}"):
            decoder_for(side)


def test_files_are_those_of_the_start_and_one_that_goes_is_missed(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    (tmp_path / "b").write_bytes(b"2\n")
    planner = planner_for(file_input(tmp_path), "job", STORE)
    one, _ = planner.bounds(StoredOffsets())
    (tmp_path / "c").write_bytes(b"3\n")
    assert len(planner.bounds(StoredOffsets())) == 2
    (tmp_path / "a").unlink()
    again = planner_for(file_input(tmp_path), "job", STORE)
    with pytest.raises(SourceError, match="/a is not there any more"):
        again.bounds(StoredOffsets({one.partition: 2}))
    assert len(again.bounds(StoredOffsets())) == 2


def test_all_files_of_an_input_have_one_header(tmp_path) -> None:
    (tmp_path / "1.csv").write_bytes(b"a,b\n1,2\n")
    (tmp_path / "2.csv").write_bytes(b"b,a\n1,2\n")
    with pytest.raises(SourceError, match=r"header of .*2.csv is not that of .*1.csv"):
        all_of(file_input(tmp_path, "csv"))


@pytest.mark.parametrize(
    ("dialect", "text", "rows"),
    [
        ({"separator": ";"}, b'b;a\n"x;1";2\n', [("2", "x;1")]),
        ({"separator": "\t", "quote": "'"}, b"a\tb\n'1\n\t1'\t\"2\n", [("1\n\t1", '"2')]),
        ({"quote": "off"}, b'a,b\n"1,2"\n', [('"1', '2"')]),
        ({"skipInitialSpace": True}, b'a,  b\n1,  "2, ""x"""\n 3,4\n', [("1", '2, "x"'), ("3", "4")]),
        ({"header": False}, b"1,2\n3,4\n", [("1", "2"), ("3", "4")]),
    ],
)
def test_csv_dialects(tmp_path, dialect: dict[str, Any], text: bytes, rows: list[tuple[str, str]]) -> None:
    (tmp_path / "in.csv").write_bytes(text)
    model = file_input(tmp_path / "in.csv", "csv", csv=dialect)
    records = [record for _, record in read_in_ranges(model, 1)]
    decoded = decoder_for(model).decode(pa.array(records, pa.binary()))
    assert decoded.bad == []
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == rows


@pytest.mark.parametrize("dialect", [{"separator": ";;"}, {"quote": "\u00e9"}, {"separator": "\n"}])
def test_a_dialect_has_single_characters(tmp_path, dialect: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one ASCII character"):
        file_input(tmp_path, "csv", csv=dialect)
