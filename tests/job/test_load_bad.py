"""Each refusal: where (path and line), and the words that a user needs."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from budget import examples
from job.resources import GOOD, edited, problems
from joinery_runtime.errors import JobError
from joinery_runtime.job import load_job, parse_job

TOPIC = "        topic: orders\n"
OF_TOPIC = f"      kafka:\n        bootstrapServers: kafka:9092\n{TOPIC}"
STEP = "      lateData: drop\n"
KEYS = "{orders.order_id: payments.order_id}"
INTERVAL = "{of: orders, lower: -1m, upper: 1h}"
PATTERN = "        topicPattern: orders-.*\n"
OUTPUT = "    postgres: {table: joined}\n"
HISTORY = "{path: in, format: json, until: 2026-01-15T10:00:00Z}"
SCHEMA = "{name: country, type: int32}"


def after(anchor: str, text: str) -> tuple[str, str]:
    return anchor, anchor + text


NOT_YET = [
    ((OUTPUT, "    file: {path: x}\n    format: csv\n"), "output.format", "output format csv", 37),
]


@pytest.mark.parametrize(("edit", "path", "words", "line"), NOT_YET, ids=lambda value: str(value)[:40])
def test_what_is_not_built_is_refused_by_name(edit, path, words, line):
    reported = problems(edited(edit))
    mine = [problem for problem in reported if problem.path == f"spec.{path}"]
    assert len(mine) == 1, reported
    assert "not supported yet" in mine[0].message
    assert words in mine[0].message
    assert mine[0].line == line


BAD = [
    # times
    (("ts, type: timestamp}", "ts, type: timestamp, format: rfc}"), "spec.inputs[0].schema[3].format", "no format", 16),
    (("ts, type: timestamp}", "ts, type: timestamp, format: '%d.%Q'}"), "spec.inputs[0].schema[3].format", "'%Q'", 16),
    (
        ("ts, type: timestamp}", "ts, type: timestamp, format: '%d.%m.%Y'}"),
        "spec.inputs[0].schema[3].format",
        "write zone: UTC",
        16,
    ),
    (
        ("ts, type: timestamp}", "ts, type: timestamp, format: iso, zone: Mars}"),
        "spec.inputs[0].schema[3].zone",
        "'Mars' is no time zone",
        16,
    ),
    (
        ("ts, type: timestamp}", "ts, type: timestamp, format: s, zone: UTC}"),
        "spec.inputs[0].schema[3].zone",
        "belongs to times as text",
        16,
    ),
    ((SCHEMA, "{name: country, type: int32, format: iso}"), "spec.inputs[0].schema[1].format", "of timestamp", 14),
    (
        ("{name: order_id, type: string}\n        - " + SCHEMA, "{name: order_id, type: string, format: text}"),
        "spec.inputs[0].schema[0].format",
        "text is for boolean",
        13,
    ),
    # Directories that are watched
    (
        (OF_TOPIC + "      format: json", "      file: {path: in, watch: true}\n      format: csv"),
        "spec.inputs[0].file.watch",
        "csv: {header: false}",
        8,
    ),
    # A history, then live
    (
        (OF_TOPIC, f"      file: {{path: in}}\n      history: {HISTORY}\n"),
        "spec.inputs[0].history",
        "what comes before a topic; name kafka",
        9,
    ),
    (after(OF_TOPIC, "      history: {path: in, format: json}\n"), "spec.inputs[0].history.until", "is missing", 11),
    (
        after(OF_TOPIC, "      history: {path: in, format: json, until: 2026-01-15T10:00:00}\n"),
        "spec.inputs[0].history.until",
        "RFC 3339 text with its offset",
        11,
    ),
    (
        after(OF_TOPIC, "      history: {path: in, format: json, until: 5, watch: true}\n"),
        "spec.inputs[0].history.watch",
        "is not a field",
        11,
    ),
    (
        after(OF_TOPIC, "      history: {path: in, format: avro, until: 5}\n"),
        "spec.inputs[0].history.format",
        "write json, csv, parquet or debezium-json",
        11,
    ),
    (
        after(OF_TOPIC, "      history: {path: in, format: json, until: 5, csv: {header: false}}\n"),
        "spec.inputs[0].history.csv",
        "csv says how CSV is written",
        11,
    ),
    (
        after(OF_TOPIC, f"        startFrom: latest\n      history: {HISTORY}\n"),
        "spec.inputs[0].kafka.startFrom",
        "not later than `until`",
        11,
    ),
    (
        after(OF_TOPIC, f"        startFrom: {{timestamp: 2026-01-15T10:00:00.001Z}}\n      history: {HISTORY}\n"),
        "spec.inputs[0].kafka.startFrom",
        "would be missing",
        11,
    ),
    # Avro
    (("format: json", "format: parquet"), "spec.inputs[0].format", "parquet is a format of files", 11),
    (("format: json", "format: avro"), "spec.inputs[0].format", "name where its schema is", 11),
    (
        ("format: json\n", 'format: avro\n      avroSchema: "{}"\n      schemaRegistry: {url: "http://r"}\n'),
        "spec.inputs[0].format",
        "both are named",
        11,
    ),
    (("format: json\n", 'format: json\n      avroSchema: "{}"\n'), "spec.inputs[0].avroSchema", "leave it out", 12),
    (
        ("format: json\n", "format: avro\n      schemaRegistry: {url: registry}\n"),
        "spec.inputs[0].schemaRegistry.url",
        "is not allowed",
        12,
    ),
    # Protobuf
    (("format: json", "format: protobuf"), "spec.inputs[0].format", "schemaRegistry and protobufSchema: name", 11),
    (
        ("format: json\n", 'format: protobuf\n      protobufSchema: "x"\n      schemaRegistry: {url: "http://r"}\n'),
        "spec.inputs[0].format",
        "both are named",
        11,
    ),
    (
        ("format: json\n", 'format: protobuf\n      schemaRegistry: {url: "http://r"}\n      avroSchema: "{}"\n'),
        "spec.inputs[0].avroSchema",
        "belongs to format avro and debezium-avro; leave it out",
        13,
    ),
    (
        ("format: json\n", 'format: avro\n      avroSchema: "{}"\n      protobufSchema: "x"\n'),
        "spec.inputs[0].protobufSchema",
        "belongs to format protobuf; leave it out",
        13,
    ),
    (
        ("format: json\n", 'format: protobuf\n      schemaRegistry: {url: "http://r"}\n      protobufMessage: A\n'),
        "spec.inputs[0].protobufMessage",
        "leave it out: records name it",
        13,
    ),
    (
        ("format: json\n", "format: json\n      protobufMessage: A\n"),
        "spec.inputs[0].protobufMessage",
        "a message of protobufSchema; leave it out",
        12,
    ),
    # Debezium
    (
        (SCHEMA, "{name: country, type: int32, from: envelope, path: op}"),
        "spec.inputs[0].schema[1].from",
        "only change events of Debezium",
        14,
    ),
    (
        (
            "format: json\n      schema:\n        - {name: order_id, type: string}",
            "format: debezium-json\n      schema:\n        - {name: order_id, type: string, from: envelope}",
        ),
        "spec.inputs[0].schema[0].path",
        "is missing",
        13,
    ),
    # dialects
    (("format: json\n", "format: json\n      csv: {separator: ;}\n"), "spec.inputs[0].csv", "leave it out", 12),
    # metadata
    ((SCHEMA, "{name: country, type: int32, from: Key}"), "spec.inputs[0].schema[1].from", "write key, timesta", 14),
    ((SCHEMA, "{name: country, type: int32, from: topic}"), "spec.inputs[0].schema[1].type", "topic is string", 14),
    (
        (SCHEMA, "{name: country, type: int32, from: offset, path: a}"),
        "spec.inputs[0].schema[1].path",
        "offset has no parts",
        14,
    ),
    # paths
    (
        (
            f"format: json\n      schema:\n        - {{name: order_id, type: string}}\n        - {SCHEMA}",
            "format: csv\n      schema:\n        - {name: order_id, type: string, path: a.b}",
        ),
        "spec.inputs[0].schema[0].path",
        "records of format csv are flat",
        13,
    ),
    ((SCHEMA, "{name: country, type: int32, path: a..b}"), "spec.inputs[0].schema[1].path", "see character 2", 14),
    # shapes and names
    (("  name: orders-payments\n", "  namespace: x\n"), "metadata.name", "is missing", 3),
    (("name: orders-payments", "name: Orders_1"), "metadata.name", "lower-case letters", 4),
    (("  inputs:", "  inptus: []\n  inputs:"), "spec.inptus", "did you mean 'inputs'?", 6),
    (after(OUTPUT, "  shards: '8'\n"), "spec.shards", "must be a whole number, not text", 37),
    (after(OUTPUT, "  shards: 0\n"), "spec.shards", "must be at least 1, not the number 0", 37),
    (after(OUTPUT, "  shards: 5000\n"), "spec.shards", "must be at most 4096", 37),
    (after(OUTPUT, "  shards: 2.5\n"), "spec.shards", "must be a whole number", 37),
    (after(OUTPUT, "  suspend: 1\n"), "spec.suspend", "must be true or false", 37),
    (after(OUTPUT, "  delivery: exactlyonce\n"), "spec.delivery", "did you mean 'exactlyOnce'?", 37),
    (after(OUTPUT, "  cleanup: keep\n"), "spec.cleanup", "write retainState or deleteState", 37),
    (after(OUTPUT, "  trigger: {maxRecordsPerEpoch: 0}\n"), "spec.trigger.maxRecordsPerEpoch", "at least 1", 37),
    (after(OUTPUT, "  trigger: {maxBytesPerEpoch: 0}\n"), "spec.trigger.maxBytesPerEpoch", "at least 1", 37),
    (after(OUTPUT, "  trigger: {maxBytesPerEpoch: 1 MB}\n"), "spec.trigger.maxBytesPerEpoch", "write it as 10Gi", 37),
    (after(OUTPUT, "  spark: {executer: {}}\n"), "spec.spark.executer", "did you mean 'executor'?", 37),
    (after(OUTPUT, "  spark: []\n"), "spec.spark", "must be a mapping, not a list; fields here are image,", 37),
    (after(OUTPUT, "  upgrade: shadow\n"), "spec.upgrade", "not text; fields here are mode, shadow", 37),
    ((OUTPUT, "    file: {path: s3://bucket/out}\n"), "spec.output.file.path", "is an address (s3://)", 36),
    (
        (OUTPUT, "    kafka: {bootstrapServers: b, topic: t, headers: {x: amuont}}\n"),
        "spec.output.kafka.headers.x",
        "did you mean 'amount'",
        36,
    ),
    ((after(OUTPUT, "    format: parquet\n")), "spec.output.format", "parquet is a format of files", 37),
    ((after(OUTPUT, "    format: avro\n")), "spec.output.format", "avro is a format of Kafka", 37),
    (
        (OUTPUT, "    kafka: {bootstrapServers: b, topic: t}\n    format: avro\n"),
        "spec.output.format",
        "avro needs schemaRegistry",
        37,
    ),
    (
        (OUTPUT, "    kafka: {bootstrapServers: b, topic: t}\n    schemaRegistry: {url: 'http://r'}\n"),
        "spec.output.schemaRegistry",
        "belongs to format avro and protobuf; leave it out",
        37,
    ),
    ((after(OUTPUT, "    format: protobuf\n")), "spec.output.format", "protobuf is a format of Kafka", 37),
    (
        (OUTPUT, "    kafka: {bootstrapServers: b, topic: t}\n    format: protobuf\n"),
        "spec.output.format",
        "protobuf needs schemaRegistry",
        37,
    ),
    ((OUTPUT, "    file: {path: file:///out}\n"), "spec.output.file.path", "write /out", 36),
    ((OUTPUT, "    file: {path: /out, rollSize: 1 MB}\n"), "spec.output.file.rollSize", "write it as", 36),
    ((OUTPUT, "    file: {path: /out, rollInterval: 0s}\n"), "spec.output.file.rollInterval", "must be", 36),
    (
        (OUTPUT, "    file: {path: /out}\n  deadLetter: {file: {path: /out, rollInterval: 1m}}\n"),
        "spec.deadLetter.file.rollInterval",
        "output and dead letters are in one folder",
        37,
    ),
    # inputs
    (("name: payments\n", "name: orders\n"), "spec.inputs[1].name", "two inputs are named 'orders'", 19),
    (("name: orders\n", "name: or.ders\n"), "spec.inputs[0].name", "letters, digits and '_'", 7),
    (("topic: orders", "topic: a b"), "spec.inputs[0].kafka.topic", "a topic name has 1 to 249", 10),
    (("topic: orders", "topic: 5"), "spec.inputs[0].kafka.topic", "must be text", 10),
    ((TOPIC, ""), "spec.inputs[0].kafka", "exactly one of topic, topics and topicPattern: none", 8),
    (after(TOPIC, PATTERN), "spec.inputs[0].kafka", "topic and topicPattern are named", 8),
    ((TOPIC, "        topicPattern: orders-(\n"), "spec.inputs[0].kafka.topicPattern", "not a regular expression", 10),
    ((TOPIC, "        topicPattern: ''\n"), "spec.inputs[0].kafka.topicPattern", "is empty", 10),
    ((TOPIC, "        topicPattern: [a, b]\n"), "spec.inputs[0].kafka.topicPattern", "must be text", 10),
    ((TOPIC, "        topics: []\n"), "spec.inputs[0].kafka.topics", "is empty; write at least one entry", 10),
    ((TOPIC, "        topics: orders\n"), "spec.inputs[0].kafka.topics", "must be a list", 10),
    ((TOPIC, "        topics: [a, b c]\n"), "spec.inputs[0].kafka.topics[1]", "a topic name has 1 to 249", 10),
    ((TOPIC, "        topics: [a b]\n"), "spec.inputs[0].kafka.topics[0]", "a topic name has 1 to 249", 10),
    ((TOPIC, "        topics: [a, b, a]\n"), "spec.inputs[0].kafka.topics[2]", "topic 'a' is named twice", 10),
    (after(TOPIC, "        topics: [a, b]\n"), "spec.inputs[0].kafka", "topic and topics are named", 8),
    (
        (TOPIC, "        topics: [a, b]\n        startFrom: {offsets: {0: 5}}\n"),
        "spec.inputs[0].kafka.startFrom",
        "offsets belong to one topic, topics names several",
        11,
    ),
    (
        (TOPIC, PATTERN + "        startFrom: {offsets: {0: 5}}\n"),
        "spec.inputs[0].kafka.startFrom",
        "offsets belong to one topic",
        11,
    ),
    (
        (TOPIC, PATTERN + "        stopAt: {offsets: {0: 5}}\n"),
        "spec.inputs[0].kafka.stopAt",
        "offsets belong to one topic",
        11,
    ),
    (after(TOPIC, "        startFrom: first\n"), "spec.inputs[0].kafka.startFrom", "write earliest or latest", 11),
    (
        after(TOPIC, "        startFrom: {offset: 3}\n"),
        "spec.inputs[0].kafka.startFrom",
        "must be earliest, latest",
        11,
    ),
    (after(TOPIC, "        stopAt: earliest\n"), "spec.inputs[0].kafka.stopAt", "write latest", 11),
    (
        after(TOPIC, "        startFrom: {timestamp: 2026-01-15}\n"),
        "spec.inputs[0].kafka.startFrom.timestamp",
        "RFC 3339 text with its offset",
        11,
    ),
    (
        after(TOPIC, "        startFrom: {offsets: {x: 5}}\n"),
        "spec.inputs[0].kafka.startFrom.offsets.x",
        "must be a whole number",
        11,
    ),
    (
        after(TOPIC, "        startFrom: {offsets: {'0': -2}}\n"),
        'spec.inputs[0].kafka.startFrom.offsets["0"]',
        "must be at least 0",
        11,
    ),
    (
        after(TOPIC, "        startFrom: {offsets: {}}\n"),
        "spec.inputs[0].kafka.startFrom.offsets",
        "write at least one",
        11,
    ),
    (
        after(TOPIC, "        startFrom: {timestamp: 5, offsts: {}}\n"),
        "spec.inputs[0].kafka.startFrom.offsts",
        "is not a field; fields here are timestamp",
        11,
    ),
    (
        after(TOPIC, "        format: json\n"),
        "spec.inputs[0].kafka.format",
        "is not a field; format is one of spec.inputs[0]: write it beside kafka, not in it",
        11,
    ),
    (after(TOPIC, "      file: {path: x}\n"), "spec.inputs[0]", "exactly one of kafka and file", 7),
    (
        ("      kafka:\n        bootstrapServers: kafka:9092\n" + TOPIC, ""),
        "spec.inputs[0]",
        "none of them is named",
        7,
    ),
    (("type: int32", "type: int23"), "spec.inputs[0].schema[1].type", "did you mean 'int32'?", 14),
    (("decimal(12,2)", "decimal(39,2)"), "spec.inputs[0].schema[2].type", "1 <= precision <= 38", 15),
    (("name: country", "name: order_id"), "spec.inputs[0].schema[1].name", "two columns named 'order_id'", 14),
    (("name: country", "name: $country"), "spec.inputs[0].schema[1].name", "does not start with `$`", 14),
    ((SCHEMA, "{name: country}"), "spec.inputs[0].schema[1].type", "is missing", 14),
    (("eventTime: ts", "eventTime: tss"), "spec.inputs[0].eventTime", "did you mean 'ts'?", 17),
    (("eventTime: ts", "eventTime: order_id"), "spec.inputs[0].eventTime", "is string; event time must be", 17),
    (("delay: 10s", "delay: -1s"), "spec.inputs[0].watermark.delay", "must be at least 0", 18),
    (("delay: 10s", "maxFuture: -1s"), "spec.inputs[0].watermark.maxFuture", "must not be negative; write 'off'", 18),
    (("delay: 10s", "maxFuture: 1d"), "spec.inputs[0].watermark.maxFuture", "write hours: 24h, or off", 18),
    (("delay: 10s", "onIdle: wait"), "spec.inputs[0].watermark.onIdle", "write hold or advance", 18),
    # the step
    (("right: payments", "right: paymnets"), "spec.joins[0].right", "did you mean 'payments'?", 30),
    (("right: payments", "right: orders"), "spec.joins[0].right", "is the left input", 30),
    (("type: inner", "type: iner"), "spec.joins[0].type", "did you mean 'inner'?", 31),
    ((KEYS, "{}"), "spec.joins[0].keys", "rule J9", 32),
    ((KEYS, "{orders.order_id: null}"), 'spec.joins[0].keys["orders.order_id"]', "must be text", 32),
    (
        (KEYS, "{orders.orderid: payments.order_id}"),
        'spec.joins[0].keys["orders.orderid"]',
        "did you mean 'order_id'?",
        32,
    ),
    ((KEYS, "{orders.order_id: payments.x}"), 'spec.joins[0].keys["orders.order_id"]', "has no column 'x'", 32),
    (
        (KEYS, "{payments.order_id: orders.order_id}"),
        'spec.joins[0].keys["payments.order_id"]',
        "swap it: orders.order_id: payments.order_id",
        32,
    ),
    ((KEYS, "{order_id: order_id}"), "spec.joins[0].keys.order_id", "orders.<column>: payments.<column>", 32),
    (
        (KEYS, "{orders.amount: payments.country}"),
        'spec.joins[0].keys["orders.amount"]',
        "orders.amount is decimal(12,2), payments.country is int64",
        32,
    ),
    ((f"interval: {INTERVAL}", "lateData: drop"), "spec.joins[0].interval", "no bound on time", 30),
    (("lower: -1m, ", ""), "spec.joins[0].interval.lower", "one-sided bound", 33),
    ((", upper: 1h", ""), "spec.joins[0].interval.upper", "one-sided bound", 33),
    (("lower: -1m", "lower: 2h"), "spec.joins[0].interval", "lower (2h) is above upper (1h)", 33),
    (("upper: 1h", "upper: 1d"), "spec.joins[0].interval.upper", "write hours: 24h", 33),
    (("upper: 1h", "upper: orders.due"), "spec.joins[0].interval.upper", "a bound is constant", 33),
    (("of: orders", "of: payments"), "spec.joins[0].interval.of", "negate the bounds", 33),
    (("of: orders", "of: x"), "spec.joins[0].interval.of", "'x' is not the left input", 33),
    (("lateData: drop", "lateData: keep"), "spec.joins[0].lateData", "write drop, reopen or dlq", 34),
    (after(STEP, "      allowedLateness: -1s\n"), "spec.joins[0].allowedLateness", "must be at least 0", 35),
    # output and state
    (after(OUTPUT, "  select: []\n"), "spec.select", "write at least one entry", 37),
    (after(OUTPUT, "  select: [{column: orders.x}]\n"), "spec.select[0].column", "has no column 'x'", 37),
    (after(OUTPUT, "  select: [{column: amount}]\n"), "spec.select[0].column", "write <input>.amount", 37),
    (after(OUTPUT, "  select: [{column: order.ts}]\n"), "spec.select[0].column", "did you mean 'orders'?", 37),
    (
        after(OUTPUT, "  select:\n    - {column: orders.ts}\n    - {column: payments.ts}\n"),
        "spec.select[1]",
        "two output columns are named 'ts'",
        39,
    ),
    (
        after(OUTPUT, "  prefixes: whenNeeded\n  select: [{column: orders.ts}]\n"),
        "spec.prefixes",
        "drop `prefixes`",
        37,
    ),
    (after(OUTPUT, "  select: [{column: orders.ts, as: $ts}]\n"), "spec.select[0]", "starts with `$`", 37),
    (
        (OUTPUT, "    postgres: {table: t, upsertKey: [orders_tx]}\n"),
        "spec.output.postgres.upsertKey[0]",
        "'orders_ts'",
        36,
    ),
    (
        (OUTPUT, "    kafka: {bootstrapServers: k, topic: t, key: [ts]}\n  delivery: atLeastOnce\n"),
        "spec.output.kafka.key[0]",
        "output columns are orders_order_id",
        36,
    ),
    (after(OUTPUT, "    file: {path: x}\n"), "spec.output", "postgres and file are named", 35),
    ((OUTPUT, "    format: json\n"), "spec.output", "none of them is named", 35),
    (after(OUTPUT, "  stateStore: {memory: {}}\n"), "spec.output.postgres", "cannot be exactly once", 36),
    (
        (OUTPUT, "    postgres: {table: t, dsn: host=b, dsnSecretRef: {name: x, key: y}}\n"),
        "spec.output.postgres.dsn",
        "dsn and dsnSecretRef are both named",
        36,
    ),
    (
        (OUTPUT, "    file: {path: x}\n  stateStore: {memory: {}, startFrom: {job: a, savepoint: b}}\n"),
        "spec.stateStore.startFrom",
        "drop `startFrom`",
        37,
    ),
    (
        after(OUTPUT, "  stateStore: {memory: {}, postgres: {dsn: x}}\n"),
        "spec.stateStore",
        "postgres and memory are both named",
        37,
    ),
    (
        after(OUTPUT, "  stateStore: {postgres: {}}\n"),
        "spec.stateStore.postgres",
        "exactly one of dsn and dsnSecretRef: none of them is named",
        37,
    ),
    (
        after(OUTPUT, "  stateStore: {postgres: {dsn: x, dsnSecretRef: {name: x, key: y}}}\n"),
        "spec.stateStore.postgres",
        "dsn and dsnSecretRef are named",
        37,
    ),
    # secrets
    (
        after(TOPIC, "        propertiesSecretRef: {name: ../etc}\n"),
        "spec.inputs[0].kafka.propertiesSecretRef.name",
        "a secret's name has lower-case letters",
        11,
    ),
    (
        after(TOPIC, "        propertiesSecretRef: {name: x, key: y}\n"),
        "spec.inputs[0].kafka.propertiesSecretRef.key",
        "is not a field; fields here are name",
        11,
    ),
    (
        after(OUTPUT, "  stateStore: {postgres: {dsnSecretRef: {name: x, key: ../y}}}\n"),
        "spec.stateStore.postgres.dsnSecretRef.key",
        "a secret's key has letters",
        37,
    ),
    (
        after(OUTPUT, "  stateStore: {postgres: {dsnSecretRef: {name: x}}}\n"),
        "spec.stateStore.postgres.dsnSecretRef.key",
        "is missing",
        37,
    ),
    (after(OUTPUT, "  stateStore: {checkpointInterval: 0}\n"), "spec.stateStore.checkpointInterval", "more than 0", 37),
    (
        after(OUTPUT, "    timestamps: rfc3339\n    format: parquet\n"),
        "spec.output.timestamps",
        "is of JSON; Parquet, Avro, Protobuf and tables have a type for timestamps",
        37,
    ),
    (after(OUTPUT, "  deadLetter: {}\n"), "spec.deadLetter", "exactly one of kafka and file", 37),
    (
        after(OUTPUT, "  spark: {driver: {podTemplate: {name: mine, inline: 'spec: {}'}}}\n"),
        "spec.spark.driver.podTemplate",
        "needs exactly one of name and inline: name and inline are named",
        37,
    ),
    (
        after(OUTPUT, "  spark: {executor: {podTemplate: {key: pod.yaml}}}\n"),
        "spec.spark.executor.podTemplate",
        "needs exactly one of name and inline: none of them is named",
        37,
    ),
    (
        after(OUTPUT, "  spark: {driver: {podTemplate: {inline: [spec]}}}\n"),
        "spec.spark.driver.podTemplate.inline",
        "must be text (put it in quotes if it looks like something else), not a list",
        37,
    ),
    (
        after(OUTPUT, "  spark: {driver: {podTemplate: {inline: 'spec: {}', key: driver.yaml}}}\n"),
        "spec.spark.driver.podTemplate.key",
        "is a key of a ConfigMap, and the pod stands in `inline`; leave it out",
        37,
    ),
    (
        after(OUTPUT, "  autoscale: {minInstances: 3, maxInstances: 2}\n"),
        "spec.autoscale.maxInstances",
        "is 2, less than the 3 of `minInstances`",
        37,
    ),
    (
        after(OUTPUT, "  autoscale: {maxInstances: 2}\n  spark: {executor: {maxInstances: 4}}\n"),
        "spec.autoscale",
        "both decide on executors; keep one",
        37,
    ),
]


@pytest.mark.parametrize(("edit", "path", "words", "line"), BAD, ids=lambda value: str(value)[:40])
def test_each_mistake_is_named_with_its_place(edit, path, words, line):
    reported = problems(edited(edit))
    mine = [problem for problem in reported if problem.path == path and words in problem.message]
    assert len(mine) == 1, "\n".join(map(str, reported))
    assert mine[0].line == line


def test_dead_letter_kafka_must_be_clear():
    edits = [
        ("kafka:9092\n        topic: payments", "other:9092\n        topic: payments"),
        after(OUTPUT, "  deadLetter: {kafka: {topic: d}}\n"),
    ]
    (problem,) = problems(edited(*edits))
    assert problem.path == "spec.deadLetter.kafka"
    assert "the inputs name kafka:9092 and other:9092; write bootstrapServers" in problem.message


def test_two_inputs_in_one_group():
    """Members of a group share its partitions out: each input would read a part of its topic."""
    both = GOOD
    for topic in ("orders", "payments"):
        line = f"        topic: {topic}\n"
        assert line in both
        both = both.replace(line, line + "        properties: {group.id: mine}\n")
    (problem,) = problems(both)
    assert problem.path == 'spec.inputs[1].kafka.properties["group.id"]'
    assert "two inputs have group.id 'mine'" in problem.message


def test_one_input_is_too_few():
    start, end = GOOD.index("    - name: payments"), GOOD.index("  joins:")
    reported = problems(GOOD[:start] + GOOD[end:])
    assert ("spec.inputs", 6) in {(p.path, p.line) for p in reported}


@pytest.mark.parametrize("missing", ["  joins:", "  inputs:", "  output:"])
def test_whole_parts_missing(missing):
    name = missing.strip().strip(":")
    reported = problems(edited((missing, f"  x{name}:")))
    assert any(p.path == f"spec.{name}" for p in reported), reported
    assert any(p.path == f"spec.x{name}" and f"did you mean '{name}'?" in p.message for p in reported), reported


def test_all_mistakes_come_at_once_ordered_by_line():
    reported = problems(
        edited(
            ("type: int32", "type: int23"),
            ("eventTime: ts", "eventTime: tz"),
            ("delay: 10s", "delay: 1x"),
            (KEYS, "{orders.order_id: payments.nope}"),
            ("upper: 1h", "upper: 1d"),
            after(OUTPUT, "  shards: many\n  cleanup: x\n"),
        )
    )
    assert [(p.path, p.line) for p in reported] == [
        ("spec.inputs[0].schema[1].type", 14),
        ("spec.inputs[0].eventTime", 17),
        ("spec.inputs[0].watermark.delay", 18),
        ('spec.joins[0].keys["orders.order_id"]', 32),
        ("spec.joins[0].interval.upper", 33),
        ("spec.shards", 37),
        ("spec.cleanup", 38),
    ]


def test_the_error_prints_source_count_and_places():
    with pytest.raises(JobError) as caught:
        parse_job(edited(("upper: 1h", "upper: 1d")), "jobs/a.yaml")
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith("jobs/a.yaml: 1 problem(s)")
    assert "line 33: spec.joins[0].interval.upper: '1d'" in str(caught.value)


def test_secret_values_are_not_repeated():
    edits = [
        after(TOPIC, "        properties: {sasl.password: [hush]}\n"),
        after(OUTPUT, "  stateStore: {postgres: {dsn: [hush]}}\n"),
    ]
    reported = problems(edited(*edits))
    assert len(reported) == 2
    assert "hush" not in str(reported)


# --- text and documents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "words", "line"),
    [
        ("a: [1\nb: 2\n", "(file)", "column 2: this is not readable YAML", 2),
        ("a: {b: ${HOME}/c}\n", "(file)", 'quote a value that has a variable: "${NAME}"', 1),
        ("a: b: c\n", "(file)", "mapping values are not allowed", 1),
        ("a: *nope\n", "(file)", "undefined alias", 1),
        ("a: &x [*x]\n", "(file)", "not readable YAML", None),
        ("a: \x07\n", "(file)", "not readable YAML", None),
        ("", "(file)", "the file is empty", None),
        ("# nothing\n", "(file)", "the file is empty", None),
        ("- 1\n", "(file)", "a resource is a mapping", 1),
        ("just text\n", "(file)", "a resource is a mapping", 1),
        ("kind: Pod\n---\nkind: Job\n", "(file)", "2 documents, none a StreamJoin", None),
        (f"{GOOD}---\n{GOOD}", "(file)", "2 Joinery resources", 38),
        (GOOD.replace("apiVersion: joinery.dev/v1alpha1\n", ""), "apiVersion", "write apiVersion: joinery.dev", 1),
        (GOOD.replace("v1alpha1", "v2"), "apiVersion", "did you mean 'joinery.dev/v1alpha1'?", 1),
        (GOOD.replace("kind: StreamJoin\n", ""), "kind", "write kind: StreamJoin", 1),
        (GOOD.replace("kind: StreamJoin", "kind: StreamJion"), "kind", "did you mean 'StreamJoin'?", 2),
        (GOOD.replace("kind: StreamJoin", "kind: [StreamJoin]"), "kind", "write StreamJoin or SessionWindow", 2),
        (GOOD.replace("kind: StreamJoin", "kind: SessionWindow"), "spec.inputs", "did you mean 'input'?", 6),
        (GOOD.replace("spec:", "sepc:"), "sepc", "did you mean 'spec'?", 5),
    ],
)
def test_broken_files(text, path, words, line):
    mine = [p for p in problems(text) if p.path == path and words in p.message]
    assert len(mine) == 1, problems(text)
    assert mine[0].line == line


def test_every_repeated_key_is_reported_with_the_other_mistakes():
    reported = problems(
        edited(after(TOPIC, TOPIC), (f"keys: {KEYS}", f"keys: {{orders.order_id: a, {KEYS[1:]}"), ("1h", "1d"))
    )
    repeated = [(p.path, p.line) for p in reported if "is written twice in one mapping" in p.message]
    assert repeated == [("spec.inputs[0].kafka.topic", 11), ('spec.joins[0].keys["orders.order_id"]', 33)]
    assert "again at column 9" in reported[0].message
    assert "spec.joins[0].interval.upper" in {p.path for p in reported}


def test_a_repeated_key_alone_is_refused():
    (problem,) = problems(edited(after(TOPIC, TOPIC)))
    assert problem.path == "spec.inputs[0].kafka.topic"


def test_mistakes_in_json_have_their_lines():
    good = json.dumps(YAML(typ="safe", pure=True).load(GOOD), indent=1)
    repeated = good.replace('"kind"', '"kind": "SessionWindow",\n"kind"', 1)
    assert [(p.path, p.line) for p in problems(repeated)][-1] == ("kind", 4)
    assert [(p.path, p.line) for p in problems(good.replace('"spec"', '"sepc"'))][-1] == ("sepc", 7)
    (missing,) = problems(good.replace('"apiVersion": "joinery.dev/v1alpha1",', ""))
    assert (missing.path, missing.message) == ("apiVersion", "is missing; write apiVersion: joinery.dev/v1alpha1")
    (problem,) = problems(re.sub('"upper": ".*"', '"upper": NaN', good))
    assert (problem.path, "'NaN'" in problem.message) == ("spec.joins[0].interval.upper", True)


def test_aliases_cannot_blow_up_the_file():
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9))
    (problem,) = problems(f"l0: &l0 [1]\n{levels}\n")
    assert "more than 100000 values" in problem.message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(JobError, match="No such file or directory; check the path"):
        load_job(tmp_path / "absent.yaml")
    with pytest.raises(JobError, match="cannot be read"):
        load_job(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xff\n")
    with pytest.raises(JobError, match="is not UTF-8 text"):
        load_job(tmp_path / "latin.yaml")


# --- anything at all ----------------------------------------------------------------------------------------------

LINES = GOOD.splitlines()
JUNK = st.sampled_from(
    ["null", "5", "-1", "1.5", "true", "x", "[]", "{}", "[1]", "{a: 1}", "[[{}]]", "'$'", "", "2026-01-01"]
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(2, len(LINES) - 1), JUNK), min_size=1, max_size=3))
def test_no_value_anywhere_gives_anything_but_a_job_error(edits):
    lines = list(LINES)
    for i, junk in edits:
        head, colon, _ = lines[i].partition(":")
        lines[i] = f"{head}{colon} {junk}"
    for problem in problems("\n".join(lines)):
        assert problem.message
        assert problem.line is not None


@pytest.mark.parametrize("lake", ["iceberg: {table: db.out}", "delta: {path: out}"])
def test_a_lake_table_needs_a_state_that_lasts(lake):
    reported = problems(edited((OUTPUT, f"    {lake}\n  stateStore: {{memory: {{}}}}\n")))
    assert "would append all rows again" in " ".join(problem.message for problem in reported), reported
