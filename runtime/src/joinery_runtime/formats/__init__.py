"""The formats of records: their decoders and encoders, in a package for each, and what they share.

A format's decoder module has `DECODER`, its `FormatDecoder`.
"""

from __future__ import annotations

from importlib import import_module

from joinery_runtime.errors import SourceError
from joinery_runtime.formats.records import FormatDecoder
from joinery_runtime.job.model.inputs import Input

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


def format_of(model: Input) -> type[FormatDecoder]:
    """The decoder class for the input's format. Raises SourceError for a format without a module here."""
    module = DECODERS.get(model.format)
    if module is None:
        raise SourceError(
            f"Input {model.name} has format {model.format}, and no decoder reads it",
            todo=f"Write {' or '.join(DECODERS)}",
        )
    decoder: type[FormatDecoder] = import_module(f"{__name__}.{module}").DECODER
    return decoder
