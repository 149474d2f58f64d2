"""Which planner, reader and decoder an input needs."""

from __future__ import annotations

from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import SourceError
from joinery_runtime.job.model.inputs import FileInput, Input, KafkaInput, Table
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
    match model:
        case Input(kafka=KafkaInput() as kafka):
            return KafkaPlanner(model.name, kafka, job_name)
        case Input(file=FileInput() as file):
            columns = [column.name for column in model.columns]
            return FilePlanner(model.name, file.path, quoted=model.format == "csv", columns=columns)
        case _:
            raise _no_source(model)


def reader_for(model: Input) -> SourceReader:
    """The task half of an input: one per process, kept from epoch to epoch."""
    match model:
        case Input(kafka=KafkaInput() as kafka):
            return KafkaReader(model.name, kafka, keyed=model.table is not None)
        case Input(file=FileInput()):
            return FileReader(quoted=model.format == "csv")
        case _:
            raise _no_source(model)


def decoder_for(model: Input) -> Decoder:
    """A decoder of the input's records. The header of a CSV file is read here: SourceError if it does not fit."""
    match model.format:
        case "json":
            return json_decoder_for(model)
        case "csv":
            schema = arrow_schema(model.columns)
            csv = CsvDecoder(schema, csv_header(model.file.path, schema.names) if model.file is not None else None)
            return csv if model.table is None else TableDecoder(_changelog(model, model.table), csv)
        case unknown:
            raise SourceError(
                f"Input {model.name} has format {unknown}, and no decoder reads it", todo="Write json or csv"
            )


def json_decoder_for(model: Input) -> Decoder:
    """A decoder of the input's rows as JSON, whatever its format: so steps of a trace give them."""
    schema = arrow_schema(model.columns)
    if model.table is None:
        return JsonDecoder(schema)
    return TableDecoder(_changelog(model, model.table), JsonDecoder(schema.append(DELETE_FIELD)))


def _changelog(model: Input, table: Table) -> Changelog:
    return Changelog(arrow_schema(model.columns), table.key, model.event_time, table.key_format)


def _no_source(model: Input) -> SourceError:
    """A kind of input that the model knows and nothing reads."""
    return SourceError(f"Nothing reads input {model.name}: it names neither kafka nor file", todo="Name one of them")
