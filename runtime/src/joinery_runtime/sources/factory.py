"""Which planner, reader and decoder an input needs."""

from __future__ import annotations

from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.job.model.inputs import FileInput, Input, Table
from joinery_runtime.sources.base import SourcePlanner, SourceReader
from joinery_runtime.sources.csv_decoder import CsvDecoder
from joinery_runtime.sources.files import FilePlanner, FileReader, csv_header
from joinery_runtime.sources.json_decoder import JsonDecoder
from joinery_runtime.sources.kafka_planner import KafkaPlanner
from joinery_runtime.sources.kafka_reader import KafkaReader
from joinery_runtime.sources.records import Decoder
from joinery_runtime.sources.table_decoder import DELETE_FIELD, Changelog, TableDecoder


def planner_for(model: Input, job_name: str) -> SourcePlanner:
    """The driver half of an input of that job. Nothing is contacted or opened before its first use."""
    if model.kafka is not None:
        return KafkaPlanner(model.name, model.kafka, job_name)
    columns = [column.name for column in model.columns]
    return FilePlanner(model.name, _file(model).path, quoted=model.format == "csv", columns=columns)


def reader_for(model: Input) -> SourceReader:
    """The task half of an input: one per process, kept from epoch to epoch."""
    if model.kafka is not None:
        return KafkaReader(model.name, model.kafka, keyed=model.table is not None)
    return FileReader(quoted=model.format == "csv")


def decoder_for(model: Input) -> Decoder:
    """A decoder of the input's records. The header of a CSV file is read here: SourceError if it does not fit."""
    if model.format == "json":
        return json_decoder_for(model)
    schema = arrow_schema(model.columns)
    csv = CsvDecoder(schema, csv_header(model.file.path, schema.names) if model.file is not None else None)
    return csv if model.table is None else TableDecoder(_changelog(model, model.table), csv)


def json_decoder_for(model: Input) -> Decoder:
    """A decoder of the input's rows as JSON, whatever its format: so steps of a trace give them."""
    schema = arrow_schema(model.columns)
    if model.table is None:
        return JsonDecoder(schema)
    return TableDecoder(_changelog(model, model.table), JsonDecoder(schema.append(DELETE_FIELD)))


def _changelog(model: Input, table: Table) -> Changelog:
    return Changelog(arrow_schema(model.columns), table.key, model.event_time, table.key_format)


def _file(model: Input) -> FileInput:
    assert model.file is not None, "the job's validation sees to one of kafka and file"
    return model.file
