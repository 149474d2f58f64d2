"""docs/reference.md has every field of the resources, as the models say them, each with an example that is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from joinery_devkit.reference import example, page
from joinery_runtime.job.crd import KINDS, RESOURCE_KINDS, ResourceKind, custom_resource_definition
from joinery_runtime.job.crd.shapes import Schema

PAGE = Path(__file__).parents[2] / "docs/reference.md"


def test_the_page_is_what_the_models_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make crds` and commit docs/reference.md"


def test_fields_at_every_depth_are_on_it_with_type_default_and_whether_they_are_required():
    text = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| duration | `1m` | `5m` |" in rows["| `watermark.idleTimeout`"]
    assert "| *required* | `orders-paid` |" in rows["| `kafka.propertiesSecretRef.name`"]
    assert "| `exactlyOnce` \\| `atLeastOnce` | `exactlyOnce` | `atLeastOnce` |" in rows["| `delivery`"]
    assert "| bytes |  | `256Mi` |" in rows["| `maxBytesPerEpoch`"]
    assert "| `{topic: orders-paid.dead}` |" in text


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_of(inner)


def fields_of(model: type[BaseModel], schema: Schema, at: str) -> Iterator[tuple[str, Schema, FieldInfo]]:
    """Every field below the model, with its schema in the CRD."""
    for name, info in model.model_fields.items():
        field = schema.get("properties", {}).get(info.alias or name)
        if field is not None:
            yield f"{at}.{info.alias or name}", field, info
            for inner in models_of(info.annotation):
                yield from fields_of(inner, field.get("items", field), f"{at}.{info.alias or name}")


@cache
def parts_of(kind: ResourceKind) -> dict[str, Schema]:
    """`spec` and `status`."""
    parts: dict[str, Schema] = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return parts["properties"]


@cache
def all_fields() -> list[tuple[str, Schema, FieldInfo]]:
    return [
        field
        for kind in RESOURCE_KINDS
        for part, model in (("spec", kind.model.model_fields["spec"].annotation), ("status", kind.status))
        for field in fields_of(model, parts_of(kind)[part], f"{kind.name}.{part}")
    ]


def test_every_field_has_an_example() -> None:
    assert [at for at, schema, _ in all_fields() if example(schema) is None] == []
    assert len(all_fields()) > 400


def test_examples_are_values_of_their_fields() -> None:
    for at, schema, info in all_fields():
        try:
            TypeAdapter(Annotated[info.annotation, *info.metadata, Field()]).validate_python(example(schema))  # type: ignore[name-defined]
        except ValidationError as error:
            raise AssertionError(f"{at}: {example(schema)!r}: {error}") from error
        if "pattern" in schema and isinstance(example(schema), str):
            assert re.search(schema["pattern"], example(schema)), at


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_examples_of_what_a_job_needs_are_a_job(kind: ResourceKind) -> None:
    spec = parts_of(kind)["spec"]
    needed = ["output", *(["joins"] if kind.name == "StreamJoin" else ["groupBy", "gap", "aggregates"])]
    fields = {name: example(spec["properties"][name]) for name in (*spec["required"], *needed)}
    kind.model.model_validate({"kind": kind.name, "metadata": {"name": "shop"}, "spec": fields})
