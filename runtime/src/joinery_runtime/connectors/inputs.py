"""Makes the planner, reader and decoder that an input needs. What only records with a schema registry need is imported
for these. A format's decoder module has `DECODER`, its `FormatDecoder`."""

from __future__ import annotations

import pathlib
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from joinery_runtime.connectors.files.parquet import ParquetPlanner, ParquetReader
from joinery_runtime.connectors.files.source import FilePlanner, FileReader, ListedFiles
from joinery_runtime.connectors.files.watched import WINDOW, WatchedFiles
from joinery_runtime.connectors.history import HistoryDecoder, HistoryPlanner, HistoryReader
from joinery_runtime.connectors.kafka.planner import KafkaPlanner
from joinery_runtime.connectors.kafka.reader import KafkaReader
from joinery_runtime.connectors.source import SourcePlanner, SourceReader, StoreIdentity
from joinery_runtime.connectors.unions import UnionDecoder, UnionPlanner, UnionReader
from joinery_runtime.core.table.columns import UNAVAILABLE_FIELD, arrow_schema
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.debezium.events import OP, DebeziumJsonDecoder, WantedOps, leaves_out
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.metadata import MetadataDecoder
from joinery_runtime.formats.opened_files import MOST_FILES
from joinery_runtime.formats.records import ByValue, Decoder, FormatDecoder, Guarded
from joinery_runtime.formats.table_decoder import DELETE, DELETE_FIELD, DELETED_BY, Changelog, TableDecoder
from joinery_runtime.formats.text_columns import JsonColumns, TextDecoder, as_text
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.inputs import Column, FileInput, History, Input, KafkaInput
from joinery_runtime.job.model.references import Path
from joinery_runtime.job.model.unions import UnionInput

if TYPE_CHECKING:
    from joinery_runtime.formats.framed_keys import FramedKeys

# Decoders whose records may have a registry's frame, which is removed. Not their subclasses: these (Debezium as Avro)
# may need the number in the frame.
_FRAMED = (JsonDecoder, DebeziumJsonDecoder)
_BY_REGISTRY = ("avro", "protobuf", "debezium-avro")
DECODERS = {
    "avro": "avro.decoder",
    "csv": "csv.decoder",
    "debezium-avro": "debezium.avro",
    "debezium-json": "debezium.events",
    "json": "json.decoder",
    "parquet": "parquet.decoder",
    "protobuf": "protobuf.decoder",
}
"""The module of each format's decoder: for all formats of `Input.format` (tests/connectors/test_inputs.py)."""


def planner_for(model: Input, job_name: str, store: StoreIdentity, *, once: bool = False) -> SourcePlanner:
    """Return the driver half of an input of the job with this name and state store. `once`: the run ends at what exists
    at its start. Contacts and opens nothing before its first use."""
    match model:
        case UnionInput():
            branches = {part.name: planner_for(part, job_name, store, once=once) for part in model.parts}
            return UnionPlanner(model.name, branches)
        case Input(kafka=KafkaInput() as kafka, history=History() as history):
            topics = KafkaPlanner(model.name, kafka, job_name, store, since=history.until)
            files = _file_planner(_history_input(model, history))
            files.field = "history.path"
            return HistoryPlanner(model.name, history.until, files, topics)
        case Input(kafka=KafkaInput() as kafka):
            return KafkaPlanner(model.name, kafka, job_name, store)
        case Input(file=FileInput(watch=True) as file):
            window = MOST_FILES if once else WINDOW
            return WatchedFiles(model.name, file.path, _file_planner(model), window)
        case Input(file=FileInput()):
            return _file_planner(model)
        case _:
            raise _no_source(model)


def format_of(model: Input) -> type[FormatDecoder]:
    """Return the decoder class for the input's format. Raises SourceError for a format without a module here."""
    module = DECODERS.get(model.format)
    if module is None:
        raise SourceError(
            f"Input {model.name} has format {model.format}, and no decoder reads it",
            todo=f"Write {' or '.join(DECODERS)}",
        )
    decoder: type[FormatDecoder] = import_module(f"joinery_runtime.formats.{module}").DECODER
    return decoder


def check_registry(model: Input) -> None:
    """Ask the registry that the input's records need, if there is one. Records name their schemas, so a wrong address
    would otherwise be found in the first epoch, where it is waited for. Raises SourceError."""
    for part in model.parts:
        if part.schema_registry is not None and part.format in _BY_REGISTRY:
            from joinery_runtime.formats.registry.schemas import Schemas  # noqa: PLC0415

            Schemas.of(part).check()


def _file_planner(model: Input) -> ListedFiles:
    assert model.file is not None, "an input of files"
    path = model.file.path
    if format_of(model).columnar:
        return ParquetPlanner(model.name, path, *_as_written(model), model.event_time)
    columns = [column.name for column in model.columns]
    return FilePlanner(model.name, path, cut=format_of(model).cut(model), columns=columns)


def reader_for(model: Input) -> SourceReader:
    """Return the task half of an input. A process has one and keeps it from epoch to epoch."""
    match model:
        case UnionInput():
            parts = {part.name: part for part in model.parts}
            return UnionReader(model.name, lambda name: reader_for(parts[name]))
        case Input(kafka=KafkaInput(), history=History() as history):
            return HistoryReader(reader_for(_history_input(model, history)), reader_for(_topics_input(model)))
        case Input(kafka=KafkaInput() as kafka):
            return KafkaReader(model.name, kafka, keyed=model.keyed, headers=model.headers)
        case Input(file=FileInput()) if format_of(model).columnar:
            return ParquetReader({path[0] for path in _as_written(model)[1].values()})
        case Input(file=FileInput()):
            return FileReader(format_of(model).cut(model))
        case _:
            raise _no_source(model)


def decoder_for(model: Input) -> Decoder:
    """Return a decoder of the input's records. Reads the header of a CSV file; raises SourceError if it does not
    fit."""
    if isinstance(model, UnionInput):
        return UnionDecoder(model, decoder_for)
    history = model.history
    if history is None:
        return _make_decoder(model, format_of(model))
    parts = [partial(decoder_for, part) for part in (_history_input(model, history), _topics_input(model))]
    return HistoryDecoder(model.event_time, history.until, *parts)


def with_record_boundary(model: Input, decoder: Decoder) -> Decoder:
    """Return the decoder of an input within the boundary that makes whatever a record does to it a bad record."""
    if isinstance(decoder, UnionDecoder):
        return decoder.within(with_record_boundary)
    if isinstance(decoder, HistoryDecoder):
        return decoder.within(lambda part: Guarded(model, part))
    return Guarded(model, decoder)


def json_decoder_for(model: Input) -> Decoder:
    """Return a decoder of the input's rows or change events as JSON, whatever its format: steps of a trace are in
    JSON."""
    if isinstance(model, UnionInput):
        return UnionDecoder(model, json_decoder_for)
    events = model.format.startswith("debezium")
    plain = model.model_copy(update={"schema_registry": None})
    decoder = _make_decoder(plain, DebeziumJsonDecoder if events else JsonDecoder)
    if model.history is None:
        return decoder
    return HistoryDecoder(model.event_time, model.history.until, lambda: decoder, lambda: decoder)


def _history_input(model: Input, history: History) -> Input:
    """Return the history as a separate input. What a Kafka record has besides its value is a field in the files."""
    events = history.format.startswith("debezium")
    return model.model_copy(
        update={
            "kafka": None,
            "history": None,
            # A slash in the name tells a file from a topic.
            "file": FileInput(path=str(pathlib.Path(history.path).absolute())),
            "format": history.format,
            "csv": history.csv,
            "schema_registry": None,
            "columns": tuple(
                column
                if column.origin is None or (events and column.origin == "envelope")
                else column.model_copy(update={"origin": None, "path": None})
                for column in model.columns
            ),
        }
    )


def _topics_input(model: Input) -> Input:
    """Return the part of the input after its history."""
    return model.model_copy(update={"history": None})


def _make_decoder(model: Input, decoder: type[FormatDecoder]) -> Decoder:
    schema = arrow_schema(model.columns)
    if model.table is None:
        if model.debezium is not None and leaves_out(model) and issubclass(decoder, DebeziumJsonDecoder):
            time = next(column for column in model.columns if column.name == model.event_time)

            def events(*columns: Column) -> Decoder:
                with_op = model.model_copy(update={"columns": (*columns, OP)})
                return _with_formats(with_op, decoder, arrow_schema(with_op.columns))

            return WantedOps(model.debezium.ops, model.event_time, events(*model.columns), events(time), events())
        return _with_formats(model, decoder, schema)
    changelog = Changelog(schema, model.table.key, model.event_time, model.table.key_format)
    mark, by = _deletion_column(model), model.table.deleted_by
    if mark is not None and mark.name not in schema.names:
        model = model.model_copy(update={"columns": (*model.columns, mark)})
    versions = arrow_schema(model.columns)
    if issubclass(decoder, DebeziumJsonDecoder):
        versions = versions.append(UNAVAILABLE_FIELD)
    values = _with_formats(model, decoder, versions.append(DELETE_FIELD) if decoder.tells_deletions else versions)
    named = None if mark is None or by is None else (mark.name, by.value)
    repeat = decoder.tombstones_repeat
    return TableDecoder(changelog, values, deleted_by=named, tombstones_repeat=repeat, framed=_framed_keys(model))


def _deletion_column(model: Input) -> Column | None:
    """Return the column that tells a table's deletions, as text: one of the input's, or one more. A field of the record
    itself keeps its name, because flat records are read faster."""
    by = None if model.table is None else model.table.deleted_by
    if by is None:
        return None
    plain = ColumnType("string")
    candidates = [column for column in model.columns if column.origin is None and column.steps == by.steps]
    usable = [column for column in candidates if column.type == plain and column.format is None]
    name = str(by.steps[0]) if len(by.steps) == 1 and by.steps[0] not in model.types else DELETED_BY
    path = None if name != DELETED_BY else by.path
    return usable[0] if usable else Column.model_construct(name=name, type=plain, path=path)


def _as_written(model: Input) -> tuple[pa.Schema, dict[str, Path]]:
    """Return the columns to read from columnar files: their types (text if a column has its own format) and their
    paths."""
    schema = as_text(arrow_schema(model.columns), [column for column in model.columns if column.format is not None])
    paths = {column.name: column.steps for column in model.columns}
    if model.table is None:
        return schema, paths
    mark = _deletion_column(model)
    if mark is not None and mark.name not in schema.names:
        schema, paths = schema.append(pa.field(mark.name, pa.string())), {**paths, mark.name: mark.steps}
    return schema.append(DELETE_FIELD), {**paths, DELETE: (DELETE,)}


def _with_formats(model: Input, decoder: type[FormatDecoder], schema: pa.Schema) -> Decoder:
    """Return a decoder of rows of `schema`, in which columns may have their own format or be JSON."""
    nested = [column.name for column in model.columns if column.type.name == "json"]
    written = [column for column in model.columns if column.format is not None]
    inner = _with_metadata(model, decoder, as_text(schema, written) if written else schema)
    if written:
        inner = TextDecoder(schema, written, inner)
    return JsonColumns(nested, inner) if nested else inner


def _with_metadata(model: Input, decoder: type[FormatDecoder], schema: pa.Schema) -> Decoder:
    """Return a decoder of rows of `schema`, in which columns may not come from the value."""
    elsewhere = [column for column in model.columns if column.origin not in (None, "envelope")]
    if not elsewhere:
        return _value_decoder(model, decoder, schema)
    names = {column.name for column in elsewhere}
    value_schema = pa.schema([field for field in schema if field.name not in names])
    values = _value_decoder(model, decoder, value_schema) if len(value_schema) else None
    return MetadataDecoder(schema, elsewhere, values, framed=_framed_keys(model))


def _framed_keys(model: Input) -> FramedKeys | None:
    if model.schema_registry is None:
        return None
    from joinery_runtime.formats.framed_keys import FramedKeys  # noqa: PLC0415

    return FramedKeys(model)


def _value_decoder(model: Input, decoder: type[FormatDecoder], schema: pa.Schema) -> Decoder:
    """Return a decoder of rows of `schema` from the records' values."""
    value_decoder = decoder.of(schema, model)
    if model.schema_registry is not None and decoder in _FRAMED and isinstance(value_decoder, ByValue):
        from joinery_runtime.formats.registry.schemas import Framed  # noqa: PLC0415

        return Framed(value_decoder)
    return value_decoder


def _no_source(model: Input) -> SourceError:
    """Return the error for a kind of input that the model knows but nothing reads."""
    return SourceError(f"Nothing reads input {model.name}: it names neither kafka nor file", todo="Name one of them")
