"""What the API server does to objects (nulls, defaults, validation; not CEL), beside what the models do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from budget import examples
from job import chains
from job.join.test_step_rules import GOOD_STEPS
from job.resources import GOOD, edited
from joinery_runtime.job import StreamJoin, format_duration, parse_duration
from joinery_runtime.job.crd import KINDS, Status, custom_resource_definition

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
TOPIC = "        topic: orders\n"
STEP = "      lateData: drop\n"
OUTPUT = "    postgres: {table: joined}\n"
KINDS_OF_VALUES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
SCHEMAS: dict[str, Any] = {
    kind.name: custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind in KINDS
}
SCHEMA = SCHEMAS["StreamJoin"]
SPEC, STATUS = SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]


def stored(value: Any, schema: dict[str, Any]) -> Any:
    """As the API server would store it: without nulls, with defaults. Unknown fields stay, for `wrong` to find."""
    if isinstance(value, list):
        return [stored(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    present = {name: inner for name, inner in value.items() if inner is not None}
    for name, field in fields.items():
        if "default" in field:
            present.setdefault(name, deepcopy(field["default"]))
    other = schema.get("additionalProperties", {})
    return {name: stored(inner, fields.get(name, other)) for name, inner in present.items()}


def wrong(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Every place that does not conform. As in Kubernetes, a validation says nothing about values of other types."""
    if not is_type(value, schema):
        yield at
        return
    if "enum" in schema and value not in schema["enum"]:
        yield at
    branches = () if schema.get("x-kubernetes-int-or-string") else schema.get("anyOf", ())
    if branches and all(list(wrong(value, branch)) for branch in branches):
        yield at
    if "not" in schema and not list(wrong(value, schema["not"])):
        yield at
    if isinstance(value, dict):
        yield from wrong_mapping(value, schema, at)
    elif isinstance(value, list):
        yield from out_of_bounds(len(value), schema, "Items", at)
        for i, item in enumerate(value):
            yield from wrong(item, schema.get("items", {}), f"{at}[{i}]")
        for key in schema.get("x-kubernetes-list-map-keys", ()):
            names = [item.get(key) for item in value]
            yield from [at] * (len(names) != len(set(names)))
    elif isinstance(value, str):
        yield from out_of_bounds(len(value), schema, "Length", at)
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield at
    elif not isinstance(value, bool) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield at


def wrong_mapping(value: dict[str, Any], schema: dict[str, Any], at: str) -> Iterator[str]:
    yield from out_of_bounds(len(value), schema, "Properties", at)
    yield from (f"{at}.{name}" for name in schema.get("required", ()) if name not in value)
    for name, inner in value.items():
        field = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if field is not None:
            yield from wrong(inner, field, f"{at}.{name}")
        elif "type" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{at}.{name}"


def out_of_bounds(size: int, schema: dict[str, Any], what: str, at: str) -> Iterator[str]:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size):
        yield at


def is_type(value: Any, schema: dict[str, Any]) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, int | str) and not isinstance(value, bool)
    if "type" not in schema:
        return True
    return isinstance(value, KINDS_OF_VALUES[schema["type"]]) and not (
        schema["type"] == "integer" and isinstance(value, bool)
    )


def document(text: str) -> dict[str, Any]:
    return YAML(typ="safe").load(text)


def after(anchor: str, text: str) -> tuple[str, str]:
    return anchor, anchor + text


def kafka(text: str) -> tuple[str, str]:
    return after(TOPIC, f"        {text}\n")


def history(text: str) -> tuple[str, str]:
    return after(TOPIC, f"      history: {{path: /in, {text}}}\n")


# Accepted by the models; the plain one first.
ACCEPTED = [
    (),
    (("delay: 10s", "delay: 250ms"),),
    (("delay: 10s", "delay: 1.5h"),),
    (("delay: 10s", "delay: +1h0.5s"),),
    (("lower: -1m", "lower: -60000ms"),),
    (("lower: -1m", "lower: '0'"),),
    (kafka("startFrom: latest"),),
    (kafka("startFrom: {timestamp: 1700000000000}"),),
    (kafka("startFrom: {timestamp: '2026-01-15T10:00:00Z'}"),),
    (kafka("startFrom: {timestamp: '2026-01-15T10:00:00.250+01:00'}"),),
    (kafka("startFrom: {offsets: {'0': 5, '1': 0}}"),),
    (kafka("stopAt: {}"),),
    (history("format: parquet, until: 1700000000000"),),
    (history("format: csv, until: '2026-01-15T10:00:00Z', csv: {header: false}"),),
    (kafka("stopAt: latest"),),
    (kafka("stopAt: {offsets: {'0': 5}}"),),
    (kafka("stopAt: null"),),
    (kafka("properties: {a: text, b: 5, c: true, d: 0.5}"),),
    (kafka("propertiesSecretRef: {name: kafka-client}"),),
    ((TOPIC, "        topicPattern: orders-.*\n"),),
    ((TOPIC, "        topics: [orders-eu, orders-us]\n"),),
    (("decimal(12,2)", "decimal( 38 , 0 )"),),
    (
        after(
            STEP,
            "      coPartitioned: true\n      partitioner: crc32\n      window: null\n      where: orders.amount > 1\n",
        ),
    ),
    (after(OUTPUT, "  select: [{column: orders.order_id, as: id}, {column: payments.ts}]\n"),),
    (("type: inner", "type: full"),),
    (after(STEP, "      limits: {maxStateBytes: 10Gi, maxRecords: 5, onLimit: pause, hotKeyWarning: 7}\n"),),
    (after(STEP, "      limits: {maxStateBytes: 1024}\n"),),
    (after(OUTPUT, "  select: [{expression: orders.amount * 2, as: twice}]\n"),),
    (after(OUTPUT, "  stateStore: {postgres: {dsnSecretRef: {name: db, key: dsn}}, checkpointInterval: 5s}\n"),),
    ((OUTPUT, "    file: {path: x}\n  stateStore: {memory: {}}\n"),),
    (
        (
            OUTPUT,
            "    file: {path: x, rollSize: 64Mi, rollInterval: 5m}\n  deadLetter: {file: {path: y, rollSize: 1024}}\n",
        ),
    ),
    (
        (
            OUTPUT,
            "    kafka: {bootstrapServers: b, topic: t}\n    format: protobuf\n    schemaRegistry: {url: 'http://r'}\n",
        ),
    ),
    (after(OUTPUT, "  spark: {image: x, executor: {instances: 2, cores: 1, memory: 2g}, conf: {a: 1}}\n"),),
    (
        after(
            OUTPUT,
            "  shards: 4096\n  suspend: true\n  cleanup: deleteState\n  trigger: {interval: 10s}\n",
        ),
    ),
    (after(OUTPUT, "  spark: {driver: {podTemplate: {inline: 'spec: {volumes: [{name: a, emptyDir: {}}]}'}}}\n"),),
    (after(OUTPUT, "  autoscale: {minInstances: 1, maxInstances: 4, targetBusy: 80, targetLag: 1m, upAfter: 10s}\n"),),
    (after(OUTPUT, "  deadLetter: {kafka: {topic: dead}}\n  upgrade: {mode: stateful, rollback: automatic}\n"),),
]


@pytest.mark.parametrize("edits", ACCEPTED, ids=lambda edits: str(edits)[-60:])
def test_what_the_models_accept_is_stored_and_means_the_same(edits):
    written = document(edited(*edits))
    stored_spec = stored(written["spec"], SPEC)
    assert list(wrong(stored_spec, SPEC)) == []
    as_written = StreamJoin.model_validate(written, by_alias=True, by_name=False)
    as_stored = StreamJoin.model_validate({**written, "spec": stored_spec}, by_alias=True, by_name=False)
    assert as_stored == as_written


@pytest.mark.parametrize(("steps", "more"), GOOD_STEPS)
def test_every_form_of_step_is_stored_and_means_the_same(steps, more):
    written = chains.document(*steps, **more)
    stored_spec = stored(written["spec"], SPEC)
    assert list(wrong(stored_spec, SPEC)) == []
    assert chains.parsed({**written, "spec": stored_spec}) == chains.parsed(written)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_conform(path):
    written = document(path.read_text())
    spec = SCHEMAS[written["kind"]]["properties"]["spec"]
    assert list(wrong(stored(written["spec"], spec), spec)) == []


def test_the_stored_object_holds_every_constant_default():
    written = document(edited(after(OUTPUT, "  stateStore: {postgres: {dsn: x}}\n")))
    job = StreamJoin.model_validate(written, by_alias=True, by_name=False)
    every = without_nothing(job.model_dump(mode="json", by_alias=True)["spec"])
    assert without_nothing(normal(stored(written["spec"], SPEC))) == every


def normal(spec: dict[str, Any]) -> Any:
    job = StreamJoin.model_validate({**document(GOOD), "spec": spec}, by_alias=True, by_name=False)
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]


def without_nothing(value: Any) -> Any:
    """Without None and empty collections, which say what absence says."""
    if isinstance(value, dict):
        inner = {key: without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, [], {})}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


REFUSED = [
    (("delay: 10s", "delay: -1s"), ".inputs[0].watermark.delay"),
    (("delay: 10s", "delay: -1ms"), ".inputs[0].watermark.delay"),
    (("delay: 10s", "delay: 1d"), ".inputs[0].watermark.delay"),
    (("delay: 10s", "delay: 1.5"), ".inputs[0].watermark.delay"),
    (("lower: -1m", "lower: orders.due"), ".joins[0].interval.lower"),
    (("lower: -1m, ", ""), ".joins[0].interval.lower"),
    (("topic: orders", "topic: a b"), ".inputs[0].kafka.topic"),
    (("name: payments\n", "name: orders\n"), ".inputs"),
    (("name: country", "name: order_id"), ".inputs[0].schema"),
    (("name: country", "name: $country"), ".inputs[0].schema[1].name"),
    (("type: int32", "type: int23"), ".inputs[0].schema[1].type"),
    (("format: json", "format: orc"), ".inputs[0].format"),
    (("type: inner", "type: outer"), ".joins[0].type"),
    (after(STEP, "      limits: {maxStateBytes: 10GB}\n"), ".joins[0].limits.maxStateBytes"),
    (after(STEP, "      limits: {maxStateBytes: 0}\n"), ".joins[0].limits.maxStateBytes"),
    (after(STEP, "      limits: {onLimit: stop}\n"), ".joins[0].limits.onLimit"),
    (after(STEP, "      window: {tumbling: 0}\n"), ".joins[0].window.tumbling"),
    (after(STEP, "      window: {tumbling: 1d}\n"), ".joins[0].window.tumbling"),
    (after(STEP, "      window: {hopping: {size: 1h}}\n"), ".joins[0].window.hopping.slide"),
    (after(STEP, "      window: {sliding: 1h}\n"), ".joins[0].window.sliding"),
    (after(STEP, "      asOf: {grace: 1s}\n"), ".joins[0].asOf.historyRetention"),
    (kafka("startFrom: first"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: 5"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: []"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: {}"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: {offset: 5}"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: {timestamp: 5, offsets: {'0': 1}}"), ".inputs[0].kafka.startFrom"),
    (kafka("startFrom: {offsets: {'0': -1}}"), ".inputs[0].kafka.startFrom.offsets.0"),
    (kafka("startFrom: {timestamp: '2026-01-15'}"), ".inputs[0].kafka.startFrom.timestamp"),
    (kafka("stopAt: earliest"), ".inputs[0].kafka.stopAt"),
    (kafka("properties: {a: {b: c}}"), ".inputs[0].kafka.properties.a"),
    (kafka("properties: {a: {}}"), ".inputs[0].kafka.properties.a"),
    (kafka("properties: {a: [b]}"), ".inputs[0].kafka.properties.a"),
    (kafka("propertiesSecretRef: {name: ../etc}"), ".inputs[0].kafka.propertiesSecretRef.name"),
    (after(STEP, "      coPartitioned: 1\n"), ".joins[0].coPartitioned"),
    (after(STEP, "      coPartitioned: true\n      partitioner: random\n"), ".joins[0].partitioner"),
    (after(OUTPUT, "  shards: 0\n"), ".shards"),
    (after(OUTPUT, "  shards: '8'\n"), ".shards"),
    (after(OUTPUT, "  select: []\n"), ".select"),
    (after(OUTPUT, "  stateStore: {checkpointInterval: 0}\n"), ".stateStore.checkpointInterval"),
    ((OUTPUT, "    file: {path: x, rollSize: 64 MB}\n"), ".output.file.rollSize"),
    ((OUTPUT, "    file: {path: x, rollInterval: soon}\n"), ".output.file.rollInterval"),
    (after(OUTPUT, "  spark: {executer: {}}\n"), ".spark.executer"),
    (after(OUTPUT, "  autoscale: {minInstances: 1}\n"), ".autoscale.maxInstances"),
]


@pytest.mark.parametrize(("edit", "path"), REFUSED, ids=lambda value: str(value)[-60:])
def test_what_the_schema_refuses_the_models_refuse_too(edit, path):
    written = document(edited(edit))
    assert path in set(wrong(stored(written["spec"], SPEC), SPEC))
    with pytest.raises(ValueError, match="validation error"):
        StreamJoin.model_validate(written, by_alias=True, by_name=False)


DELAY = SPEC["properties"]["inputs"]["items"]["properties"]["watermark"]["properties"]["delay"]
BOUND = SPEC["properties"]["joins"]["items"]["properties"]["interval"]["properties"]["lower"]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_every_duration_is_a_bound_and_none_below_zero_a_delay(ms):
    text = format_duration(ms)
    assert list(wrong(text, BOUND)) == list(wrong(ms, BOUND)) == []
    assert bool(list(wrong(text, DELAY))) == bool(list(wrong(ms, DELAY))) == (ms < 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.from_regex(BOUND["pattern"].replace("$", r"\Z"), alphabet=st.characters(max_codepoint=255)))
def test_what_looks_like_a_duration_is_one_or_too_fine_or_too_long(text):
    try:
        parse_duration(text)
    except ValueError as error:
        assert re.search("not a whole number of milliseconds|longer than the longest", str(error))  # noqa: PT017


def test_a_full_status_conforms_and_fits():
    condition = {"type": "Ready", "status": "True", "reason": "Running", "message": "x" * 1000}
    condition["lastTransitionTime"] = "2026-01-15T10:00:00Z"
    status = {
        "phase": "Running",
        "observedGeneration": 3,
        "conditions": [{**condition, "type": kind, "observedGeneration": 3} for kind in ("Ready", "Progressing")],
        "jobGeneration": 7,
        "epoch": 1200,
        "inputs": [{"name": "orders", "lag": 5, "watermark": "2026-01-15T10:00:00Z", "watermarkDelay": "12s"}],
        **{"lag": 5, "rowsPerSecond": 1000, "watermarkDelay": "12s", "rowsIn": 10, "rowsOut": 9, "late": 1},
        **{"stateBytes": 10**12, "lastError": "x", "executors": 2},
        "hottestKeys": [{"key": '["a"]', "rows": 10}],
        "lastSavepoint": {"name": "before-2", "epoch": 1100, "time": "2026-01-15T10:00:00Z"},
    }
    assert list(wrong(status, STATUS)) == []
    again = Status.model_validate(status, by_alias=True).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == status
    assert list(wrong({**status, "phase": "Great", "epoch": -1}, STATUS)) == [".phase", ".epoch"]
