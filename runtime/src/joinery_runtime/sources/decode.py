"""Which decoder an input needs."""

from __future__ import annotations

from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.job.inputs import Input
from joinery_runtime.sources.csv_decoder import CsvDecoder
from joinery_runtime.sources.files import csv_header
from joinery_runtime.sources.json_decoder import JsonDecoder
from joinery_runtime.sources.records import Decoder


def decoder_for(model: Input) -> Decoder:
    """A decoder of the input's records. The header of a CSV file is read here: SourceError if it does not fit."""
    schema = arrow_schema(model.columns)
    if model.format == "json":
        return JsonDecoder(schema)
    if model.file is not None:
        return CsvDecoder(schema, csv_header(model.file.path, schema.names))
    return CsvDecoder(schema)
