"""Where records come from: Kafka topics and files, and decoding them into rows in whole batches."""

from joinery_runtime.sources.base import (
    Bounds,
    PartitionRef,
    Range,
    RawBatch,
    SourcePlanner,
    SourceReader,
    StoredOffsets,
)
from joinery_runtime.sources.factory import (
    check_registry,
    decoder_for,
    guarded,
    json_decoder_for,
    planner_for,
    reader_for,
)
from joinery_runtime.sources.files import line_number
from joinery_runtime.sources.formats.csv import CsvDecoder
from joinery_runtime.sources.formats.json import JsonDecoder
from joinery_runtime.sources.records import BadRecord, Decoded, Decoder, LeftOut
from joinery_runtime.sources.table_decoder import DELETE, TableDecoder

__all__ = [
    "DELETE",
    "BadRecord",
    "Bounds",
    "CsvDecoder",
    "Decoded",
    "Decoder",
    "JsonDecoder",
    "LeftOut",
    "PartitionRef",
    "Range",
    "RawBatch",
    "SourcePlanner",
    "SourceReader",
    "StoredOffsets",
    "TableDecoder",
    "check_registry",
    "decoder_for",
    "guarded",
    "json_decoder_for",
    "line_number",
    "planner_for",
    "reader_for",
]
