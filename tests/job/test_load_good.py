import json
import pickle

import pytest
from pydantic import ValidationError

from job.resources import GOOD, edited, job
from joinery_runtime.job import (
    AtOffsets,
    AtTimestamp,
    KeyPair,
    Reference,
    StreamJoin,
    definition,
    load_job,
    parse_job,
    same_rows,
    under_definition,
)


def test_views_of_a_plain_job():
    plain = job()
    assert plain.name == "orders-payments"
    (step,) = plain.joins
    assert (plain.left_inputs(0), step.right, step.kind) == (("orders",), "payments", "interval")
    assert plain.keys_of(step) == (KeyPair(Reference("orders", "order_id"), Reference("payments", "order_id")),)
    assert step.interval is not None
    assert (step.interval.of, step.interval.lower, step.interval.upper) == ("orders", -60_000, 3_600_000)
    types = plain.input("orders").types
    assert [str(kind) for kind in types.values()] == ["string", "int32", "decimal(12,2)", "timestamp"]


def first(job):
    return job.spec.inputs[0]


def second(job):
    return job.spec.inputs[1]


def bounds(job):
    return job.joins[0].interval.lower, job.joins[0].interval.upper


def test_defaults():
    spec = job().spec
    assert spec.shards == 8
    assert (spec.trigger.max_records_per_epoch, spec.trigger.max_bytes_per_epoch) == (None, None)
    assert spec.delivery == "exactlyOnce"
    assert spec.state_store.kind == "embedded"
    assert spec.state_store.checkpoint_interval == 60_000
    assert spec.joins[0].late_data == "drop"
    assert spec.joins[0].allowed_lateness == 0
    right = spec.inputs[1]
    assert (right.watermark.delay, right.watermark.idle_timeout, right.watermark.on_idle) == (0, 60_000, "hold")
    assert right.kafka is not None
    assert (right.kafka.start_from, right.kafka.stop_at, right.kafka.on_data_loss) == ("earliest", None, "fail")


TOPIC = "topic: orders\n"
STEP = "      lateData: drop"
OUTPUT = "    postgres: {table: joined}"


@pytest.mark.parametrize(
    ("edit", "value", "expected"),
    [
        ((TOPIC, TOPIC + "        startFrom: latest\n"), lambda j: first(j).kafka.start_from, "latest"),
        (
            (TOPIC, "topicPattern: orders-(eu|us)\n        startFrom: {timestamp: 5}\n        stopAt: latest\n"),
            lambda j: (
                first(j).kafka.topic,
                first(j).kafka.topic_pattern,
                first(j).kafka.source_name,
            ),
            (None, "orders-(eu|us)", "topics like 'orders-(eu|us)'"),
        ),
        (
            (TOPIC, "topics: [orders-eu, orders-us]\n        startFrom: latest\n"),
            lambda j: (first(j).kafka.topic, first(j).kafka.named_topics, first(j).kafka.source_name),
            (None, {"orders-eu", "orders-us"}, "topics orders-eu and orders-us"),
        ),
        (
            (TOPIC, TOPIC + '        startFrom: {offsets: {"0": 5, 1: 7}}\n'),
            lambda j: first(j).kafka.start_from,
            AtOffsets(offsets={0: 5, 1: 7}),
        ),
        (
            (TOPIC, TOPIC + "        startFrom: {timestamp: 2026-01-15T10:00:00Z}\n"),
            lambda j: first(j).kafka.start_from,
            AtTimestamp(timestamp=1_768_471_200_000),
        ),
        (
            (TOPIC, TOPIC + "        stopAt: {timestamp: 2026-01-15T11:00:00.250+01:00}\n"),
            lambda j: first(j).kafka.stop_at,
            AtTimestamp(timestamp=1_768_471_200_250),
        ),
        ((TOPIC, TOPIC + "        stopAt: {timestamp: 17}\n"), lambda j: first(j).kafka.stop_at.timestamp, 17),
        (
            (TOPIC, TOPIC + "        stopAt: latest\n"),
            lambda j: (first(j).bounded, second(j).bounded),
            (True, False),
        ),
        (
            (TOPIC, TOPIC + "        stopAt: {}\n"),
            lambda j: (first(j).kafka.stop_at, first(j).bounded),
            (None, False),
        ),
        ((TOPIC, TOPIC + "        onDataLoss: continue\n"), lambda j: first(j).kafka.on_data_loss, "continue"),
        (
            (TOPIC, TOPIC + "        properties: {a.b: SSL, c: 5, d: true}\n"),
            lambda j: first(j).kafka.properties,
            {"a.b": "SSL", "c": "5", "d": "true"},
        ),
        (("format: json", "format: csv"), lambda j: first(j).format, "csv"),
        (("delay: 10s", "delay: 10s"), lambda j: first(j).watermark.max_future, 86_400_000),
        (("delay: 10s", "maxFuture: 36h"), lambda j: first(j).watermark.max_future, 129_600_000),
        (("delay: 10s", 'maxFuture: "off"'), lambda j: first(j).watermark.max_future, None),
        (("delay: 10s", "maxFuture: off"), lambda j: first(j).watermark.max_future, None),
        (("delay: 10s", "delay: 2m, idleTimeout: 0"), lambda j: first(j).watermark.idle_timeout, 0),
        (
            ("delay: 10s", "explicit: true, onIdle: advance"),
            lambda j: (first(j).watermark.explicit, first(j).watermark.on_idle),
            (True, "advance"),
        ),
        (("lateData: drop", "lateData: reopen"), lambda j: j.joins[0].late_data, "reopen"),
        ((STEP, STEP + "\n      allowedLateness: 90s"), lambda j: j.joins[0].allowed_lateness, 90_000),
        ((STEP, STEP + '\n      where: "orders.amount > 10"'), lambda j: j.joins[0].where, "orders.amount > 10"),
        (
            (STEP, STEP + "\n      coPartitioned: true"),
            lambda j: (j.joins[0].co_partitioned, j.joins[0].partitioner),
            (True, "murmur2"),
        ),
        (
            (STEP, STEP + "\n      coPartitioned: true\n      partitioner: crc32"),
            lambda j: j.joins[0].partitioner,
            "crc32",
        ),
        (("upper: 1h", "upper: 500ms"), lambda j: j.joins[0].interval.upper, 500),
        (
            ("lower: -1m, upper: 1h", "lower: 0s, upper: 0s"),
            bounds,
            (0, 0),
        ),
        (("order_id}", "order_id, orders.country: payments.country}"), lambda j: len(j.keys_of(j.joins[0])), 2),
        ((OUTPUT, OUTPUT + "\n  shards: 3\n  suspend: true"), lambda j: (j.spec.shards, j.spec.suspend), (3, True)),
        ((OUTPUT, OUTPUT + "\n  cleanup: deleteState"), lambda j: j.spec.cleanup, "deleteState"),
        (
            (OUTPUT, OUTPUT + "\n  upgrade: {mode: stateful, rollback: automatic}"),
            lambda j: j.spec.upgrade.mode,
            "stateful",
        ),
        (
            (OUTPUT, OUTPUT + "\n  stateStore: {postgres: {dsn: host=a, schema: s}, checkpointInterval: 5s}"),
            lambda j: (j.spec.state_store.kind, j.spec.state_store.postgres.schema_name),
            ("postgres", "s"),
        ),
        (
            (OUTPUT, "    postgres: {table: t, dsn: host=a}\n  stateStore: {postgres: {dsn: host=a}}"),
            lambda j: j.spec.output.postgres.dsn,
            "host=a",
        ),
        (
            (OUTPUT, "    postgres: {table: t, dsn: host=b}\n  stateStore: {postgres: {dsn: host=a}}"),
            lambda j: j.spec.output.postgres.dsn,
            "host=b",
        ),
        (
            (OUTPUT, "    file: {path: out}\n  stateStore: {memory: {}}"),
            lambda j: j.spec.state_store.kind,
            "memory",
        ),
        (
            (OUTPUT, "    postgres: {table: t, upsertKey: [left_ts]}"),
            lambda j: j.spec.output.postgres.upsert_key,
            ("left_ts",),
        ),
        (
            (
                OUTPUT,
                "    kafka: {bootstrapServers: k, topic: t, key: [right_ts]}\n  delivery: atLeastOnce",
            ),
            lambda j: j.spec.output.kafka.key,
            ("right_ts",),
        ),
        (
            (OUTPUT, "    kafka: {bootstrapServers: k, topic: t}\n  stateStore: {memory: {}}"),
            lambda j: (j.spec.output.kafka.topic, j.spec.delivery),
            ("t", "exactlyOnce"),
        ),
        (
            (
                OUTPUT,
                OUTPUT
                + "\n  spark: {image: x, driver: {memory: 2g}, executor: {instances: 2, cores: 1}, conf: {a: 1}}",
            ),
            lambda j: (j.spec.spark.executor.instances, j.spec.spark.conf),
            (2, {"a": "1"}),
        ),
        ((OUTPUT, OUTPUT + "\n  trigger: {maxRecordsPerEpoch: 7}"), lambda j: j.spec.trigger.max_records_per_epoch, 7),
        (
            (OUTPUT, OUTPUT + "\n  trigger: {maxBytesPerEpoch: 16Mi}"),
            lambda j: j.spec.trigger.max_bytes_per_epoch,
            2**24,
        ),
        ((OUTPUT, OUTPUT + "\n  deadLetter: {file: {path: dead}}"), lambda j: j.spec.dead_letter.file.path, "dead"),
        (("name: orders-payments", "name: a.b-c\n  namespace: ns\n  uid: x"), lambda j: j.name, "ns/a.b-c"),
    ],
)
def test_every_built_field_parses(edit, value, expected):
    assert value(job(edit)) == expected


def test_every_column_has_its_side_as_prefix_if_always():
    names = [column.name for column in job(("  output:", "  prefixes: always\n  output:")).output_columns]
    assert names == [
        *("left_order_id", "left_country", "left_amount", "left_ts"),
        *("right_order_id", "right_country", "right_ts"),
    ]


def test_only_what_both_inputs_have_needs_a_prefix():
    loaded = job(("  output:", "  prefixes: whenNeeded\n  output:"))
    assert [column.name for column in loaded.output_columns] == [
        *("orders_order_id", "orders_country", "amount", "orders_ts"),
        *("payments_order_id", "payments_country", "payments_ts"),
    ]
    assert under_definition(loaded, definition(loaded)).output_columns == loaded.output_columns
    assert same_rows(definition(loaded), definition(job())), "a job without state names its columns so"
    assert not same_rows(definition(loaded), definition(job(("  output:", "  prefixes: always\n  output:"))))


def test_a_form_of_timestamps_is_part_of_the_definition():
    loaded = job((OUTPUT, "    file: {path: x}\n    timestamps: rfc3339"))
    assert under_definition(loaded, definition(loaded)).spec.output.timestamps == "rfc3339"


def test_select_names_and_types_the_output():
    text = "  select: [{column: orders.amount}, {column: payments.ts, as: paid}]\n  output:"
    columns = job(("  output:", text)).output_columns
    assert [(c.name, str(c.source), str(c.type)) for c in columns] == [
        ("amount", "orders.amount", "decimal(12,2)"),
        ("paid", "payments.ts", "int64"),
    ]


def test_column_names_may_hold_dots():
    dotted = edited(("name: country, type: int32", 'name: "geo.country", type: int64')).replace(
        "{orders.order_id: payments.order_id}", '{"orders.geo.country": payments.country}'
    )
    job = parse_job(dotted, "x")
    assert job.keys_of(job.joins[0]) == (KeyPair(Reference("orders", "geo.country"), Reference("payments", "country")),)


@pytest.mark.parametrize(
    ("output", "dead", "expected"),
    [
        (OUTPUT.strip(), "{topic: dead}", ("kafka:9092", {"a": "in"})),
        (OUTPUT.strip(), "{topic: dead, bootstrapServers: other}", ("other", {})),
        ("kafka: {bootstrapServers: k2, topic: t, properties: {a: out}}", "{topic: dead}", ("k2", {"a": "out"})),
        (OUTPUT.strip(), "{topic: dead, properties: {b: own}}", ("kafka:9092", {"b": "own"})),
    ],
)
def test_dead_letters_take_their_kafka_from_the_job(output, dead, expected):
    loaded = job(
        (TOPIC, TOPIC + "        properties: {a: in}\n"),
        (OUTPUT, f"    {output}\n  delivery: atLeastOnce\n  deadLetter: {{kafka: {dead}}}"),
    )
    target = loaded.dead_letter_kafka
    assert target is not None
    assert (target.bootstrap_servers, target.properties) == expected


def test_no_dead_letter_topic():
    assert job().dead_letter_kafka is None


def test_json_reads_like_yaml_and_dumps_read_back():
    loaded = job()
    assert parse_job(loaded.model_dump_json(by_alias=True), "x.json") == loaded
    tabs = json.dumps(loaded.model_dump(mode="json", by_alias=True), indent="\t")
    assert parse_job(tabs, "x.json") == loaded


def test_what_kubectl_prints_can_be_read_back():
    assert parse_job(GOOD + "status: {phase: Running}\n", "x") == job()


def test_other_kinds_in_the_file_are_left_alone():
    text = f"---\napiVersion: v1\nkind: Secret\nmetadata: {{name: x}}\n---\n{GOOD}---\n"
    assert parse_job(text, "x") == job()


def test_python_takes_snake_case_and_applies_the_same_rules():
    data = job().model_dump()
    assert StreamJoin(**data) == job()
    data["spec"]["joins"][0]["keys"] = {}
    with pytest.raises(ValidationError, match=r"spec\.joins\[0\]\.keys: there is no key"):
        StreamJoin(**data)


def test_yaml_takes_camel_case_only():
    with pytest.raises(Exception, match=r"kafka\.start_from: is not a field \(did you mean 'startFrom'\?\)"):
        job((TOPIC, TOPIC + "        start_from: latest\n"))


def test_jobs_are_frozen_and_travel_between_processes():
    loaded = job()
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    with pytest.raises(ValidationError, match="frozen"):
        loaded.spec = loaded.spec


def test_secrets_are_not_in_repr():
    loaded = job(
        (TOPIC, TOPIC + "        properties: {sasl.password: hush1}\n"),
        (OUTPUT, OUTPUT + '\n  stateStore: {postgres: {dsn: "password=hush2"}}'),
    )
    assert "hush" not in repr(loaded)
    assert loaded.input("orders").kafka is not None
    assert loaded.input("orders").kafka.properties == {"sasl.password": "hush1"}


def test_relative_paths_count_from_the_job_file(tmp_path):
    text = edited(
        ("kafka:\n        bootstrapServers: kafka:9092\n        topic: orders\n", "file: {path: in/orders.jsonl}\n"),
        (OUTPUT, "    file: {path: /abs/out}\n  deadLetter: {file: {path: dead}}"),
    )
    (tmp_path / "job.yaml").write_text(text)
    loaded = load_job(tmp_path / "job.yaml")
    assert loaded.input("orders").file is not None
    assert loaded.input("orders").bounded
    assert loaded.input("orders").file.path == str(tmp_path / "in/orders.jsonl")
    assert loaded.spec.output.file is not None
    assert loaded.spec.output.file.path == "/abs/out"
    assert loaded.spec.dead_letter is not None
    assert loaded.spec.dead_letter.file is not None
    assert loaded.spec.dead_letter.file.path == str(tmp_path / "dead")
    in_text = parse_job(text, "x").input("orders").file
    assert in_text is not None
    assert in_text.path == "in/orders.jsonl"
