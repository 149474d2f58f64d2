"""Where rows go: Kafka topics, tables (Postgres, Iceberg, Delta), files of JSON lines and Parquet, the console."""

from joinery_runtime.sinks.base import Attempt, AttemptId, Receipt, RecoveryContext, Sink, SinkWriter
from joinery_runtime.sinks.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_rows
from joinery_runtime.sinks.encode import json_lines, rows_to_json
from joinery_runtime.sinks.factory import (
    StoreDatabase,
    dead_letter_content,
    dead_letter_sink,
    forget_output,
    lake_table,
    output_content,
    output_topic,
    replaces_rows,
    row_limit,
    sink_for,
    topic_row_limit,
)

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "Attempt",
    "AttemptId",
    "Receipt",
    "RecoveryContext",
    "Sink",
    "SinkWriter",
    "StoreDatabase",
    "dead_letter_content",
    "dead_letter_rows",
    "dead_letter_sink",
    "forget_output",
    "json_lines",
    "lake_table",
    "output_content",
    "output_topic",
    "replaces_rows",
    "row_limit",
    "rows_to_json",
    "sink_for",
    "topic_row_limit",
]
