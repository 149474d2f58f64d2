"""What single stages cost: CPU microseconds per record of this process, all threads counted, compiled and not.

    python -m bench.kernels --runs 9

Prints one JSON object: of each stage and variant the median and the lowest of interleaved runs. Of a busy machine only
the ratio between variants of one stage says something.
"""

from __future__ import annotations

import argparse
import atexit
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import json_format, message_factory

from bench.topics import TOPICS, Workload
from joinery_runtime.connectors.files.parquet import ParquetReader
from joinery_runtime.connectors.files.sink import write_parquet
from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.prepare import DecodedRecords, prepare
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.table.blob import from_blob, to_blob
from joinery_runtime.core.table.segment import Run, encode
from joinery_runtime.formats.avro.decoder import AvroDecoder
from joinery_runtime.formats.avro.encode import AvroOutput, AvroRows
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.formats.compiled import kernels
from joinery_runtime.formats.csv.decoder import CsvDecoder
from joinery_runtime.formats.debezium.avro import DebeziumAvroDecoder
from joinery_runtime.formats.debezium.events import DebeziumJsonDecoder
from joinery_runtime.formats.json.decoder import JsonDecoder, JsonKernel
from joinery_runtime.formats.json.encode import json_lines
from joinery_runtime.formats.json.fallback import JsonFallbackDecoder
from joinery_runtime.formats.parquet.decoder import ParquetDecoder
from joinery_runtime.formats.protobuf.decoder import ProtobufDecoder
from joinery_runtime.formats.protobuf.encode import ProtobufOutput, ProtobufRows
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema
from joinery_runtime.job import Input

RECORDS = 200_000
BATCHES = (10_000, 50_000)  # records

TIMESTAMP = pa.timestamp("ms", tz="UTC")
ORDERS = pa.schema({"order_id": pa.string(), "customer": pa.string(), "amount": pa.float64(), "ts": TIMESTAMP})
PAYMENTS = pa.schema({"payment_id": pa.string(), "order_id": pa.string(), "method": pa.string(), "ts": TIMESTAMP})
Variants = dict[str, Callable[[], None]]  # each does a stage once for RECORDS records


def decode(topic: str, schema: pa.Schema, records: int) -> Variants:
    """JSON records into rows, in batches."""
    values = pa.array([record for _, _, record in TOPICS[topic](Workload(RECORDS, 1))], pa.binary())
    batches = [values.slice(first, records) for first in range(0, RECORDS, records)]
    module = kernels("json")
    if module is None:
        raise SystemExit("There is no kernel on this machine: what numba said is above")
    decoders = {"kernel": JsonKernel(module, schema).decode, "judge": JsonFallbackDecoder(schema).decode}
    return {name: lambda decode=decode: [decode(batch) for batch in batches] for name, decode in decoders.items()}


def other_formats() -> Variants:
    """Return the same orders as JSON, CSV, Avro and Protobuf, in Debezium's envelope, and in a Parquet file, whose
    reading is counted too."""
    flat = [record for _, _, record in TOPICS["orders"](Workload(RECORDS, 1))]
    around = b'{"before":null,"after":%s,"source":{"name":"db","ts_ms":1700000000000},"op":"c"}'
    changes = [around % record for record in flat]
    columns = {"order_id": "string", "customer": "string", "amount": "double", "ts": "long"}
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    written = fastavro.parse_schema({"type": "record", "name": "Order", "fields": fields})
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    of_change = {"before": ["null", written], "after": ["null", "Order"], "source": source, "op": "string"}
    envelope = {
        "type": "record",
        "name": "E",
        "fields": [{"name": name, "type": avro_type} for name, avro_type in of_change.items()],
    }
    avro = [in_avro(written, json.loads(record)) for record in flat]
    avro_changes = [in_avro(fastavro.parse_schema(envelope), json.loads(change)) for change in changes]
    csv = [",".join(str(json.loads(record)[name]) for name in columns).encode() for record in flat]
    kinds = {"long": "int64"}
    lines = [f"{kinds.get(kind, kind)} {name} = {n};" for n, (name, kind) in enumerate(columns.items(), 1)]
    order = compile_schema(f'syntax = "proto3"; message Order {{ {" ".join(lines)} }}', {}).message_at([0])
    protobuf = []
    for record in flat:
        message = json_format.Parse(record, message_factory.GetMessageClass(order)(), ignore_unknown_fields=True)
        protobuf.append(message.SerializeToString())
    side = {
        "name": "in",
        "kafka": {"bootstrapServers": "-", "topic": "t"},
        "eventTime": "ts",
        "format": "debezium-json",
    }
    types = {"order_id": "string", "customer": "string", "amount": "double", "ts": "timestamp"}
    model = Input.model_validate({**side, "schema": [{"name": name, "type": kind} for name, kind in types.items()]})
    of_avro = model.model_copy(update={"format": "debezium-avro", "avro_schema": json.dumps(envelope)})
    decoders: dict[str, tuple[Callable[[pa.BinaryArray], object], list[bytes]]] = {
        "json": (JsonDecoder(ORDERS).decode, flat),
        "json with paths": (JsonDecoder(ORDERS, {name: ("after", name) for name in ORDERS.names}).decode, changes),
        "debezium-json": (DebeziumJsonDecoder.of(ORDERS, model).decode, changes),
        "csv": (CsvDecoder(ORDERS).decode, csv),
        "avro": (AvroDecoder(ORDERS, {}, written).decode, avro),
        "debezium-avro": (DebeziumAvroDecoder.of(ORDERS, of_avro).decode, avro_changes),
        "protobuf": (ProtobufDecoder(ORDERS, {}, order).decode, protobuf),
    }

    def variant(decode: Callable[[pa.BinaryArray], object], records: list[bytes]) -> Callable[[], None]:
        values = pa.array(records, pa.binary())
        batches = [values.slice(first, BATCHES[0]) for first in range(0, RECORDS, BATCHES[0])]
        return lambda: void([decode(batch) for batch in batches])

    return {name: variant(*decoder) for name, decoder in decoders.items()} | {"parquet, read": from_parquet(flat)}


def in_avro(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, value)
    return target.getvalue()


def from_parquet(records: list[bytes]) -> Callable[[], None]:
    folder = Path(tempfile.mkdtemp(prefix="joinery-bench-"))
    atexit.register(shutil.rmtree, folder)
    pq.write_table(JsonDecoder(ORDERS).decode(pa.array(records, pa.binary())).rows, folder / "orders.parquet")
    paths = {name: (name,) for name in ORDERS.names}
    reader, decoder = ParquetReader(paths.values()), ParquetDecoder(ORDERS, paths)
    planned = Range(PartitionRef("in", str(folder / "orders.parquet"), 0), 0, len(records))
    return lambda: void([decoder.decode_batch(raw) for raw in reader.read(planned)])


def written() -> Variants:
    """Return orders as files and topics have them."""
    records = [record for _, _, record in TOPICS["orders"](Workload(RECORDS, 1))]
    batches = JsonDecoder(ORDERS).decode(pa.array(records, pa.binary())).rows.to_batches(max_chunksize=65_536)
    avro = AvroRows(AvroOutput("orders", ORDERS, "").schema(), 1)
    protobuf = ProtobufRows(ProtobufOutput("orders", ORDERS, "").schema({}), (), 1)
    return {"json": lambda: void([json_lines(batch) for batch in batches]),
            "avro": lambda: void([avro.encode(batch) for batch in batches]),
            "protobuf": lambda: void([protobuf.encode(batch) for batch in batches]),
            "parquet": lambda: void(write_parquet(io.BytesIO(), batches))}  # fmt: skip


def unusual() -> Variants:
    """Return records that the kernel gives up, each at its last field: what is lost where no record is usual."""
    records = [record.replace(b'"ts"', b'"t\\u0073"') for _, _, record in TOPICS["orders"](Workload(RECORDS, 1))]
    values = pa.array(records, pa.binary())
    batches = [values.slice(first, BATCHES[0]) for first in range(0, RECORDS, BATCHES[0])]
    decoders = {"kernel, then judge": JsonDecoder(ORDERS).decode, "judge": JsonFallbackDecoder(ORDERS).decode}
    return {name: lambda decode=decode: [decode(batch) for batch in batches] for name, decode in decoders.items()}


def segment(topic: str, schema: pa.Schema, *, written: bool) -> Variants:
    """Return a run of RECORDS rows into the bytes of a segment, or back: as version 1 stores it, and packed."""
    values = pa.array([record for _, _, record in TOPICS[topic](Workload(RECORDS, 1))], pa.binary())
    (rows,) = JsonFallbackDecoder(schema).decode(values).rows.combine_chunks().to_batches()
    stored = tuple(name for name in schema.names if name != "ts")
    intake = Intake(schema, "ts", ("order_id",), stored)
    run = Run.sort(prepare(intake, DecodedRecords(rows, 0, np.arange(RECORDS))).rows).batch
    if written:
        return {"version 1": lambda: void(encode(run)), "packed": lambda: void(to_blob(run, intake.keys))}
    plain, packed = encode(run), to_blob(run, intake.keys)
    return {"version 1": lambda: void(from_blob(plain)), "packed": lambda: void(from_blob(packed))}


def void(_: object) -> None:
    """Do nothing: what a stage makes is thrown away."""


SEGMENTS: dict[str, Callable[[], Variants]] = {
    f"{name} a segment of {topic}": lambda topic=topic, schema=schema, written=written: segment(
        topic, schema, written=written
    )
    for topic, schema in (("orders", ORDERS), ("payments", PAYMENTS))
    for name, written in (("write", True), ("read", False))
}
STAGES: dict[str, Callable[[], Variants]] = (
    SEGMENTS
    | {
        f"decode {topic}, batches of {records}": lambda topic=topic, schema=schema, records=records: decode(
            topic, schema, records
        )
        for topic, schema in (("orders", ORDERS), ("payments", PAYMENTS))
        for records in BATCHES
    }
    | {"decode unusual orders": unusual, "decode orders of each format": other_formats, "encode orders": written}
)


def measured(variants: Variants, runs: int) -> dict[str, Any]:
    microseconds: dict[str, list[float]] = {name: [] for name in variants}
    for run in range(runs + 1):
        for name, variant in variants.items():
            before = time.process_time()
            variant()
            if run:  # the first one warms up
                microseconds[name].append((time.process_time() - before) / RECORDS * 1e6)
    return {
        name: {"median": round(median(runs_us), 3), "lowest": round(min(runs_us), 3)}
        for name, runs_us in microseconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--stage", default="", help="only stages whose names begin so")
    arguments = parser.parse_args()
    stages = {name: prepare for name, prepare in STAGES.items() if name.startswith(arguments.stage)}
    print(json.dumps({name: measured(prepare(), arguments.runs) for name, prepare in stages.items()}, indent=2))


if __name__ == "__main__":
    main()
