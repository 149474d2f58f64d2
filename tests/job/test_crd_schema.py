"""The CRDs as Kubernetes reads them: the rules of structural schemas, what CEL may refer to, sizes, and no drift."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from ruamel.yaml import YAML

from joinery_runtime.job.crd import KINDS, Kind, custom_resource_definition, file_name, to_yaml
from joinery_runtime.job.crd.rules import RULES
from joinery_runtime.job.crd.shapes import FIELDS
from joinery_runtime.job.crd.structural import description
from joinery_runtime.job.model.base import Model, PositiveDuration
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.outputs import Output

FOLDER = Path(__file__).parents[2] / "crds"
Node = tuple[str, dict[str, Any]]
LOGIC = ("allOf", "anyOf", "oneOf", "not")
NUMBER_OR_TEXT = [{"type": "integer"}, {"type": "string"}]


def definition(kind: Kind = KINDS[0]) -> dict[str, Any]:
    return custom_resource_definition(kind)


def root(kind: Kind = KINDS[0]) -> dict[str, Any]:
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


def nodes(below: tuple[str, ...] = ("",)) -> list[Any]:
    """Of all kinds."""
    return [
        pytest.param(schema, id=f"{kind.short}{at}")
        for kind in KINDS
        for at, schema in walk(root(kind))
        if at.startswith(below)
    ]


def junctions(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in LOGIC:
        found = schema.get(word, [])
        yield from found if isinstance(found, list) else [found]


# --- the files ----------------------------------------------------------------------------------------------------


def test_the_files_are_what_the_models_say():
    assert {path.name for path in FOLDER.iterdir()} == {file_name(kind) for kind in KINDS}
    for kind in KINDS:
        text = (FOLDER / file_name(kind)).read_text(encoding="utf-8")
        assert text == to_yaml(definition(kind)), "run `make crds` and commit crds/"
        assert YAML(typ="safe").load(text) == definition(kind)
        assert len(text.encode()) < 128 * 1024


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
    assert columns == ["Phase", "Rows/s", "Lag", "Watermark delay", "Age"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_paths_of_columns_and_scale_are_fields_of_their_type(kind):
    (version,) = definition(kind)["spec"]["versions"]
    fields = {at: schema["type"] for at, schema in walk(root(kind)) if "type" in schema}
    for column in version["additionalPrinterColumns"]:
        if not column["jsonPath"].startswith(".metadata"):
            assert fields[column["jsonPath"]] == column["type"]
    scale = version["subresources"]["scale"]
    assert {fields[path] for path in scale.values()} == {"integer"}
    assert scale["specReplicasPath"].startswith(".spec.")
    assert scale["statusReplicasPath"].startswith(".status.")


# --- structural schemas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", nodes())
def test_every_place_is_structural(schema):
    assert not schema.keys() & {"$ref", "$defs", "definitions", "title", "const", "discriminator", "nullable"}
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    assert "type" in schema or free
    assert ("items" in schema) == (schema.get("type") == "array")
    assert not {"properties", "additionalProperties"} <= schema.keys()
    assert schema.get("additionalProperties", {}) is not False
    assert set(schema.get("required", ())) <= schema.get("properties", {}).keys()
    if schema.get("x-kubernetes-int-or-string"):
        assert schema["anyOf"] == NUMBER_OR_TEXT
    else:
        for junction in junctions(schema):
            check_junction(junction, schema)


def check_junction(junction: dict[str, Any], outside: dict[str, Any]) -> None:
    forbidden = {"type", "description", "default", "additionalProperties", "nullable"}
    assert not junction.keys() & forbidden
    assert not any(key.startswith("x-kubernetes-") for key in junction)
    assert junction.get("properties", {}).keys() <= outside.get("properties", {}).keys()
    assert set(junction.get("required", ())) <= outside.get("properties", {}).keys()
    for inner in junctions(junction):
        check_junction(inner, outside)


@pytest.mark.parametrize("schema", nodes(below=(".spec", ".status")))
def test_every_size_is_bounded(schema):
    if schema.get("type") == "string":
        assert schema.keys() & {"maxLength", "enum", "format"}
    if schema.get("type") == "array":
        assert "maxItems" in schema
    if "additionalProperties" in schema:
        assert "maxProperties" in schema
    assert len(schema.get("description", "")) <= 300


@pytest.mark.parametrize("schema", nodes())
def test_list_maps_have_keys_that_are_always_there(schema):
    if schema.get("x-kubernetes-list-type") == "map":
        for key in schema["x-kubernetes-list-map-keys"]:
            assert key in schema["items"]["required"]
            assert schema["items"]["properties"][key]["type"] == "string"


def test_lists_that_are_maps():
    of_joins, of_sessions = (
        {at for at, schema in walk(root(kind)) if schema.get("x-kubernetes-list-type") == "map"} for kind in KINDS
    )
    status = {".status.conditions", ".status.inputs"}
    assert of_joins == {".spec.inputs", ".spec.inputs[].schema", *status}
    assert of_sessions == {".spec.input.schema", ".spec.compute", ".spec.aggregates", *status}


def test_a_list_that_is_a_set_holds_text():
    groups = dict(walk(root(KINDS[1])))[".spec.groupBy"]
    assert groups["x-kubernetes-list-type"] == "set"
    assert groups["items"]["type"] == "string"


# --- CEL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", nodes())
def test_rules_name_fields_that_are_there(schema):
    for rule in schema.get("x-kubernetes-validations", ()):
        assert "\n" not in rule["rule"] + rule["message"]
        paths = [found.split(".") for found in re.findall(r"has\(self\.([\w.]+)\)", rule["rule"])]
        paths += [rule["fieldPath"].split(".")[1:]] if "fieldPath" in rule else []
        for path in paths:
            place = schema
            for step in path:
                place = place["properties"][step]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_rule_stands_where_cel_knows_no_types(kind):
    for at, schema in walk(root(kind)):
        if "type" not in schema and not schema.get("x-kubernetes-int-or-string"):
            assert not any("x-kubernetes-validations" in inner for _, inner in walk(schema)), at


def test_every_rule_and_shape_belongs_to_a_field():
    places = {place if isinstance(place, tuple) else (place, None) for place in (*RULES, *FIELDS)}
    for model, name in places:
        assert name is None or name in {info.alias for info in model.model_fields.values()}
    schemas = [schema for kind in KINDS for _, schema in walk(root(kind))]
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
    kind = Kind(Probe, "probes", "pb")
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
    fields = root(Kind(Probe, "probes", "pb"))["properties"]["spec"]["properties"]
    delay = fields["source"]["properties"]["watermark"]["properties"]["delay"]
    assert fields["gap"] == {key: value for key, value in delay.items() if key != "default"}
    assert fields["longest"] == {**fields["gap"], "minimum": 1}


def test_a_field_without_a_value_is_an_error():
    class Wordless(Model):
        nothing: None = None

    class Bad(Model):
        spec: Wordless

    with pytest.raises(TypeError, match="structural"):
        definition(Kind(Bad, "bads", "b"))


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
        definition(Kind(Bad, "bads", "b"))


@pytest.mark.parametrize(
    ("docstring", "told"),
    [
        ("Exactly one of `a` and\n    `event_time`.", "Exactly one of `a` and `eventTime`."),
        ("From a file (`hosts/secrets.py` merges them). More.", "From a file. More."),
        ("One. " + "Two " * 80 + ".", "One."),
    ],
)
def test_docstrings_become_short_descriptions(docstring, told):
    assert description(docstring) == told
