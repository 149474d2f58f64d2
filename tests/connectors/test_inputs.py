"""Which planner, reader and decoder an input gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pyarrow as pa
import pytest

from joinery_runtime.connectors.inputs import (
    DECODERS,
    decoder_for,
    format_of,
    json_decoder_for,
    planner_for,
    reader_for,
)
from joinery_runtime.connectors.unions import UnionPlanner, union_ref
from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.formats.csv.decoder import CsvDecoder
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.table_decoder import TableDecoder
from joinery_runtime.job import Input
from stores import STORE

TYPES = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal(12,2)": pa.decimal128(12, 2),
    "date": pa.date32(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}


KAFKA = {"kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "t"}}
HISTORY = {"history": {"path": "t.json", "format": "json", "until": 100}}


def model(file_format: str, source: Mapping[str, Any] = KAFKA, **more: Any) -> Input:
    schema = [{"name": f"c{i}", "type": name} for i, name in enumerate(TYPES)]
    return Input.model_validate(
        {"name": "in", **source, "format": file_format, "schema": schema, "eventTime": "c9", **more}
    )


def test_every_column_type_has_its_arrow_type() -> None:
    assert arrow_schema(model("json").columns).types == list(TYPES.values())


def test_every_format_that_a_job_may_name_has_a_module_and_every_module_a_name() -> None:
    named = get_args(Input.model_fields["format"].annotation)
    assert sorted(named) == sorted(DECODERS)
    for name in named:
        assert format_of(model(name)).__module__ == f"joinery_runtime.formats.{DECODERS[name]}"


def test_the_decoder_goes_by_the_format_and_gives_the_schema() -> None:
    for file_format, kind, record in (("json", JsonDecoder, b"{}"), ("csv", CsvDecoder, b"," * 9)):
        decoder = decoder_for(model(file_format))
        assert isinstance(decoder, kind)
        decoded = decoder.decode(pa.array([record], pa.binary()))
        assert decoded.rows.schema == arrow_schema(model(file_format).columns)
        assert decoded.rows.to_pylist() == [dict.fromkeys(f"c{i}" for i in range(10))]


def test_a_table_has_a_decoder_of_its_own_in_every_format() -> None:
    for file_format in ("json", "csv"):
        table = model(file_format, table={"key": ["c5"]})
        assert isinstance(decoder_for(table), TableDecoder)
        assert isinstance(json_decoder_for(table), TableDecoder)
        assert isinstance(json_decoder_for(model(file_format)), JsonDecoder)


def test_a_reader_connects_to_nothing_before_its_first_use() -> None:
    reader_for(model("json")).close()


@pytest.mark.parametrize(
    ("source", "file_format", "topic", "reads_file"),
    [
        (KAFKA, "json", "t", False),
        ({"file": {"path": "t.json.gz"}}, "json", "t.json.gz", True),
        ({"file": {"path": "t.parquet"}}, "parquet", "t.parquet", True),
        ({"file": {"path": "inbox", "watch": True}}, "json", "/inbox/t.json", True),
        (KAFKA | HISTORY, "json", "/t.json", True),
        (KAFKA | HISTORY, "json", "t", False),
    ],
    ids=["topic", "packed file", "Parquet", "watched", "file of a history", "topic with a history"],
)
def test_a_planner_knows_which_partitions_are_files(
    source: Mapping[str, Any], file_format: str, topic: str, reads_file: bool
) -> None:
    planner, own = planner_for(model(file_format, source), "j", STORE), PartitionRef("in", topic, 0)
    assert planner.reads_file(own) is reads_file
    assert UnionPlanner("all", {"in": planner}).reads_file(union_ref("all", own)) is reads_file


def test_what_nothing_reads_is_an_error_and_never_a_file_or_csv() -> None:
    unknown = model("json").model_copy(update={"kafka": None})
    for make in (lambda: planner_for(unknown, "j", STORE), lambda: reader_for(unknown)):
        with pytest.raises(SourceError, match="Nothing reads input in"):
            make()
    with pytest.raises(SourceError, match=r"has format orc, and no decoder reads it(.|\n)*Write avro or csv"):
        decoder_for(model("json").model_copy(update={"format": "orc"}))
