"""The CRDs as Kubernetes reads them: the rules of structural schemas, what CEL may refer to, sizes, and no drift."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from ruamel.yaml import YAML

from joinery_runtime.job.crd import KINDS, RESOURCE_KINDS, ResourceKind, custom_resource_definition, file_name, to_yaml
from joinery_runtime.job.crd.rules import RULES
from joinery_runtime.job.crd.shapes import FIELDS
from joinery_runtime.job.crd.structural import description
from joinery_runtime.job.model.base import Model, PositiveDuration
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.outputs import DeadLetter, Output, StoreSpec

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "crds"
CHART = ROOT / "charts" / "joinery"
Node = tuple[str, dict[str, Any]]
LOGIC = ("allOf", "anyOf", "oneOf", "not")
NUMBER_OR_TEXT = [{"type": "integer"}, {"type": "string"}]


@cache
def definition(kind: ResourceKind = KINDS[0]) -> dict[str, Any]:
    return custom_resource_definition(kind)


def root(kind: ResourceKind = KINDS[0]) -> dict[str, Any]:
    return definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def inside(schema: dict[str, Any]) -> Iterator[Node]:
    for name, inner in schema.get("properties", {}).items():
        yield f".{name}", inner
    for part, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if part in schema:
            yield mark, schema[part]


def walk(schema: dict[str, Any], at: str = "") -> Iterator[Node]:
    yield at, schema
    for step, inner in inside(schema):
        yield from walk(inner, at + step)


def offenders(mistakes: Callable[[dict[str, Any]], Iterator[str]], *below: str) -> list[str]:
    """What a rule finds wrong, in every kind; below these fields only, if any are given."""
    return [
        f"{kind.short}{at}: {what}"
        for kind in RESOURCE_KINDS
        for at, schema in walk(root(kind))
        if not below or at.startswith(below)
        for what in mistakes(schema)
    ]


def junctions(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in LOGIC:
        schemas = schema.get(word, [])
        yield from schemas if isinstance(schemas, list) else [schemas]


# --- the files ----------------------------------------------------------------------------------------------------


def test_the_chart_has_the_same_files():
    """Flux's source controller leaves links out when it packs a folder."""
    files = CHART / "files" / "crds"
    assert {path.name: path.read_text() for path in files.iterdir()} == {
        path.name: path.read_text() for path in FOLDER.iterdir()
    }, "run `make crds` and commit charts/joinery/files/crds/"
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]


def test_the_files_are_what_the_models_say():
    assert {path.name for path in FOLDER.iterdir()} == {file_name(kind) for kind in RESOURCE_KINDS}
    for kind in RESOURCE_KINDS:
        text = (FOLDER / file_name(kind)).read_text(encoding="utf-8")
        assert text == to_yaml(definition(kind)), "run `make crds` and commit crds/"
        assert YAML(typ="safe").load(text) == definition(kind)
        # `kubectl apply` keeps it as JSON in an annotation, and all annotations together take 256 KiB.
        assert len(json.dumps(definition(kind)).encode()) < 240 * 1024


@pytest.mark.parametrize(("kind", "name", "short"), [(KINDS[0], "StreamJoin", "sj"), (KINDS[1], "SessionWindow", "sw")])
def test_how_kubectl_knows_the_kind(kind, name, short):
    spec = definition(kind)["spec"]
    assert definition(kind)["metadata"]["name"] == f"{name.lower()}s.joinery.dev"
    assert spec["names"] == {
        "kind": name,
        "listKind": f"{name}List",
        "plural": f"{name.lower()}s",
        "singular": name.lower(),
        "shortNames": [short],
        "categories": ["joinery"],
    }
    (version,) = spec["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Phase", "Ready", "Reason", "Rows/s", "Lag", "Watermark delay", "Page", "Age"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_paths_of_columns_and_scale_are_fields_of_their_type(kind):
    (version,) = definition(kind)["spec"]["versions"]
    fields = {at: schema["type"] for at, schema in walk(root(kind)) if "type" in schema}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].replace('[?(@.type=="Ready")]', "[]")
        if not path.startswith(".metadata"):
            assert fields[path] == column["type"], sorted(at for at in fields if "conditions" in at)
    scale = version["subresources"]["scale"]
    replicas, running, selector = (scale[f"{name}Path"] for name in ("specReplicas", "statusReplicas", "labelSelector"))
    assert [fields[replicas], fields[running], fields[selector]] == ["integer", "integer", "string"]
    assert replicas.startswith(".spec.")
    assert {running.split(".")[1], selector.split(".")[1]} == {"status"}


# --- structural schemas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_there_is_much_to_judge(kind):
    assert sum(at.startswith((".spec", ".status")) for at, _ in walk(root(kind))) > 200


def test_every_place_is_structural():
    assert offenders(not_structural) == []


def not_structural(schema: dict[str, Any]) -> Iterator[str]:
    if keywords := schema.keys() & {"$ref", "$defs", "definitions", "title", "const", "discriminator", "nullable"}:
        yield f"has {sorted(keywords)}"
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not ("type" in schema or free):
        yield "has no type"
    if ("items" in schema) != (schema.get("type") == "array"):
        yield "is an array without items, or has items and is none"
    if {"properties", "additionalProperties"} <= schema.keys():
        yield "has properties and additionalProperties"
    if schema.get("additionalProperties", {}) is False:
        yield "forbids additionalProperties"
    if absent := set(schema.get("required", ())) - schema.get("properties", {}).keys():
        yield f"requires {sorted(absent)}, which are no properties"
    if schema.get("x-kubernetes-int-or-string"):
        if schema["anyOf"] != NUMBER_OR_TEXT:
            yield "is not a number or text in Kubernetes' way"
    else:
        for junction in junctions(schema):
            yield from bad_junction(junction, schema)


def bad_junction(junction: dict[str, Any], outside: dict[str, Any]) -> Iterator[str]:
    forbidden = {"type", "description", "default", "additionalProperties", "nullable"}
    if misplaced := [key for key in junction if key in forbidden or key.startswith("x-kubernetes-")]:
        yield f"a junction has {misplaced}"
    used = junction.get("properties", {}).keys() | set(junction.get("required", ()))
    if absent := used - outside.get("properties", {}).keys():
        yield f"a junction names {sorted(absent)}, which are no properties outside"
    for inner in junctions(junction):
        yield from bad_junction(inner, outside)


def test_every_size_is_bounded():
    assert offenders(unbounded, ".spec", ".status") == []


def unbounded(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") == "string" and not schema.keys() & {"maxLength", "enum", "format"}:
        yield "text of any length"
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield "an array of any length"
    if "additionalProperties" in schema and "maxProperties" not in schema:
        yield "a mapping of any size"
    words, _, example = schema.get("description", "").partition(" Example: ")
    if len(words) > 300 or len(example) > 400:
        yield "its description is too long"


def test_list_maps_have_keys_that_are_always_there():
    assert offenders(bad_list_map) == []


def bad_list_map(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("x-kubernetes-list-type") == "map":
        for key in schema["x-kubernetes-list-map-keys"]:
            if key not in schema["items"]["required"] or schema["items"]["properties"][key]["type"] != "string":
                yield f"its key {key} is optional or no text"


def test_lists_that_are_maps():
    of_joins, of_sessions = (
        {at for at, schema in walk(root(kind)) if schema.get("x-kubernetes-list-type") == "map"} for kind in KINDS
    )
    status = {".status.conditions", ".status.inputs", ".status.outputs"}
    of_aggregate = {f".spec.aggregate.{name}" for name in ("compute", "aggregates", "then.aggregates", "then.compute")}
    shared = {".spec.functions", *status}
    of_unions = {".spec.unions", ".spec.unions[].branches"}
    assert of_joins == {".spec.inputs", ".spec.inputs[].schema", *of_unions, *of_aggregate, *shared}
    assert of_sessions == {".spec.input.schema", ".spec.compute", ".spec.aggregates", *shared}


def test_a_list_that_is_a_set_holds_text():
    groups = dict(walk(root(KINDS[1])))[".spec.groupBy"]
    assert groups["x-kubernetes-list-type"] == "set"
    assert groups["items"]["type"] == "string"


# --- CEL ----------------------------------------------------------------------------------------------------------


def test_rules_name_fields_that_are_there():
    assert offenders(rules_about_nothing) == []


def rules_about_nothing(schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "\n" in rule["rule"] + rule["message"]:
            yield f"more than a line: {rule}"
        paths = [dotted.split(".") for dotted in re.findall(r"has\(self\.([\w.]+)\)", rule["rule"])]
        paths += [rule["fieldPath"].split(".")[1:]] if "fieldPath" in rule else []
        for path in paths:
            node = schema
            for step in path:
                node = node.get("properties", {}).get(step)
                if node is None:
                    yield f"no {'.'.join(path)}: {rule['rule']}"
                    break


@pytest.mark.parametrize(
    ("broken", "mistakes"),
    [
        ({"title": "x", "type": "object"}, not_structural),
        ({}, not_structural),
        ({"type": "array"}, not_structural),
        ({"type": "object", "properties": {}, "additionalProperties": {}}, not_structural),
        ({"type": "object", "additionalProperties": False}, not_structural),
        ({"type": "object", "required": ["x"]}, not_structural),
        ({"x-kubernetes-int-or-string": True, "anyOf": []}, not_structural),
        ({"type": "object", "anyOf": [{"type": "object"}]}, not_structural),
        ({"type": "object", "not": {"anyOf": [{"required": ["x"]}]}}, not_structural),
        ({"type": "string"}, unbounded),
        ({"type": "array"}, unbounded),
        ({"additionalProperties": {}}, unbounded),
        ({"description": "x" * 301}, unbounded),
        (
            {
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {"required": [], "properties": {"k": {"type": "string"}}},
            },
            bad_list_map,
        ),
        ({"x-kubernetes-validations": [{"rule": "has(self.x)", "message": ""}]}, rules_about_nothing),
        ({"x-kubernetes-validations": [{"rule": "a\nb", "message": ""}]}, rules_about_nothing),
        ({"x-kubernetes-validations": [{"rule": "", "message": "", "fieldPath": ".x"}]}, rules_about_nothing),
    ],
)
def test_each_rule_finds_what_breaks_it(broken, mistakes):
    assert len([*mistakes(broken)]) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_rule_stands_where_cel_knows_no_types(kind):
    for at, schema in walk(root(kind)):
        if "type" not in schema and not schema.get("x-kubernetes-int-or-string"):
            assert not any("x-kubernetes-validations" in inner for _, inner in walk(schema)), at


def test_every_rule_and_shape_belongs_to_a_field():
    targets = {target if isinstance(target, tuple) else (target, None) for target in (*RULES, *FIELDS)}
    for model, name in targets:
        assert name is None or name in {info.alias for info in model.model_fields.values()}
    schemas = [schema for kind in RESOURCE_KINDS for _, schema in walk(root(kind))]
    written = [rule["rule"] for schema in schemas for rule in schema.get("x-kubernetes-validations", ())]
    assert {rule.rule for rules in RULES.values() for rule in rules} <= set(written)


# --- the generator ------------------------------------------------------------------------------------------------


class ProbeSpec(Model):
    source: Input
    output: Output
    mode: Literal["a", "b"] = "a"
    gap: PositiveDuration
    longest: Annotated[PositiveDuration, Field(gt=0)] | None = None


class Probe(Model):
    """A second kind. With more to say."""

    spec: ProbeSpec


def test_a_second_kind_shares_models_and_their_rules():
    kind = ResourceKind(Probe, "probes", "pb")
    first, second = root(), root(kind)
    assert file_name(kind) == "joinery.dev_probes.yaml"
    assert definition(kind)["spec"]["names"]["kind"] == "Probe"
    assert second["description"] == "A second kind."
    assert (
        second["properties"]["spec"]["properties"]["source"]
        == first["properties"]["spec"]["properties"]["inputs"]["items"]
    )
    assert second["properties"]["status"] == first["properties"]["status"]


def test_durations_are_known_wherever_they_stand():
    fields = root(ResourceKind(Probe, "probes", "pb"))["properties"]["spec"]["properties"]
    delay = fields["source"]["properties"]["watermark"]["properties"]["delay"]
    assert fields["gap"] == {key: value for key, value in delay.items() if key not in {"default", "description"}}
    assert fields["longest"] == {**fields["gap"], "minimum": 1}


def test_a_field_without_a_value_is_an_error():
    class Wordless(Model):
        nothing: None = None

    class Bad(Model):
        spec: Wordless

    with pytest.raises(TypeError, match="structural"):
        definition(ResourceKind(Bad, "bads", "b"))


def test_amounts_of_memory_are_numbers_or_text_with_a_unit():
    limits = dict(walk(root()))[".spec.joins[].limits.maxStateBytes"]
    assert limits["anyOf"] == NUMBER_OR_TEXT
    good, bad = ["10Gi", "500M", "1.5G", "77"], ["10GB", "-1", "Gi", "1 Gi", ""]
    assert [bool(re.search(limits["pattern"], text)) for text in (*good, *bad)] == [True] * 4 + [False] * 5


def test_a_field_that_kubernetes_has_no_type_for_is_an_error():
    class Mixed(Model):
        either: bool | int

    class Bad(Model):
        spec: Mixed

    with pytest.raises(TypeError, match="structural"):
        definition(ResourceKind(Bad, "bads", "b"))


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Exactly one of `a` and\n    `event_time`.", "Exactly one of `a` and `eventTime`."),
        ("From a file (`hosts/secrets.py` merges them). More.", "From a file. More."),
        ("One. " + "Two " * 80 + ".", "One."),
    ],
)
def test_docstrings_become_short_descriptions(docstring, expected):
    assert description(docstring) == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_says_what_it_is(kind):
    """`kubectl explain` shows nothing else. Entries of lists and mappings are described by the field that has them."""
    fields = {
        at: schema for at, schema in walk(root(kind)) if at.startswith((".spec.", ".status.")) and at[-1] not in "]}"
    }
    assert len(fields) > 200
    assert [at for at, schema in fields.items() if not schema.get("description")] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_choice_names_all_that_there_is_to_choose(kind):
    described = {at: schema.get("description", "") for at, schema in walk(root(kind))}
    for field, choice in {".output": Output, ".deadLetter": DeadLetter, ".stateStore": StoreSpec}.items():
        assert [variant for variant in choice.KINDS if f"`{variant}`" not in described[f".spec{field}"]] == []


def test_default_and_example_are_said_as_people_write_them():
    described = {at: schema.get("description", "") for at, schema in walk(root())}
    assert described[".spec.inputs[].watermark.idleTimeout"].endswith(" Default: 1m. Example: 5m.")
    assert described[".spec.inputs[].watermark.maxFuture"].endswith(" Default: 24h. Example: 1h.")
    assert described[".spec.trigger.maxBytesPerEpoch"].endswith(" in the same way. Example: 256Mi.")
    assert described[".spec.suspend"].endswith(" Default: false.")
    assert described[".spec.shards"].endswith(" Default: 8. Example: 32.")
