"""A resource model as a Kubernetes structural schema: no references, every field typed, defaults as values."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from io import StringIO
from itertools import pairwise
from typing import Any, cast, get_args

from annotated_types import Ge, Gt
from pydantic import BaseModel, PlainSerializer
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from joinery_runtime.job.crd.rules import with_rules
from joinery_runtime.job.crd.shapes import (
    EMPTY_IS_UNSET,
    FIELDS,
    INT_OR_STRING,
    MAX_ENTRIES,
    MAX_TEXT,
    Place,
    Schema,
    duration,
    scalar,
)
from joinery_runtime.job.model.base import Setting, format_duration_or_off
from joinery_runtime.job.model.cel import HAS_UNIT, HAS_UNIT_OR_FILLED_IN
from joinery_runtime.job.model.duration import format_duration

_STRUCTURAL = (
    *("type", "format", "enum", "pattern", "default", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
)
_DESCRIPTION = 300  # characters
_OF_THE_CODE = re.compile(r" \([^()]*`(?:StreamJoin\.|[^`]*\.py)[^()]*\)")
_SNAKE = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")

Models = Mapping[str, type[BaseModel]]


def object_schema(model: type[BaseModel]) -> Schema:
    """Return the model's fields by their YAML names. Unknown fields need no mention: the API server rejects or prunes
    them."""
    raw = model.model_json_schema(by_alias=True)
    models = {
        nested.__name__: nested for info in model.model_fields.values() for nested in _nested_models(info.annotation)
    }
    docstrings = dict(_field_descriptions(model))
    schema: Schema = {"type": "object", **_describe(raw)}
    if model.model_fields:
        schema["properties"] = {}
        for attribute, info in model.model_fields.items():
            name = info.alias or attribute
            field_key, field = (model, name), {**docstrings.get(attribute, {}), **raw["properties"][name]}
            shape = {**_field_schema(field_key, info, field, models), **FIELDS.get(field_key, {})}
            schema["properties"][name] = with_rules({**_with_size(shape), **_describe(field, info)}, field_key)
    if raw.get("required"):
        schema["required"] = raw["required"]
    return with_rules(schema, model)


def _field_descriptions(model: type[BaseModel]) -> Iterator[tuple[str, Schema]]:
    """Yield the texts under the fields of the model, as descriptions.

    pydantic's `use_attribute_docstrings` reads the source of each model whenever it is imported, which took an eighth
    of a job's start."""
    for kind in reversed(model.__mro__):
        if kind is not BaseModel and issubclass(kind, BaseModel):
            for field, text in pairwise(_classes_of_module(kind.__module__)[kind.__qualname__].body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                        yield name, {"description": inspect.cleandoc(docstring)}


@cache
def _classes_of_module(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module's source by qualified name."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield f"{prefix}{child.name}", child
                yield from below(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                yield from below(child, f"{prefix}{child.name}.<locals>.")

    return dict(below(ast.parse(inspect.getsource(sys.modules[module])), ""))


def description(text: str, limit: int = _DESCRIPTION) -> str:
    """Return a docstring with names as in YAML: its first sentence, and those after it that fit the limit."""
    text = _SNAKE.sub(lambda match: f"`{to_camel(match[1])}`", _OF_THE_CODE.sub("", " ".join(text.split())))
    short, *more = re.split(r"(?<=[.])\s+(?=[A-Z`])", text)
    for sentence in more:
        if len(short) + 1 + len(sentence) > limit:
            break
        short += f" {sentence}"
    return short


def _field_schema(field_key: Place, info: FieldInfo, raw: Schema, models: Models) -> Schema:
    if any(isinstance(hint, PlainSerializer) and hint.func is format_duration for hint in _field_annotations(info)):
        default = {"default": format_duration(info.default)} if isinstance(info.default, int) else {}
        bounds = [cast(int, bound.ge) for bound in _field_annotations(info) if isinstance(bound, Ge)]
        bounds += [cast(int, bound.gt) + 1 for bound in _field_annotations(info) if isinstance(bound, Gt)]
        least = max(bounds, default=None)
        return {**duration(least), **default, "x-kubernetes-validations": [HAS_UNIT.schema()]}
    schema = _translate_schema(raw, models)
    if any(
        isinstance(hint, PlainSerializer) and hint.func is format_duration_or_off for hint in _field_annotations(info)
    ):
        schema["default"] = format_duration_or_off(info.default)
        schema["x-kubernetes-validations"] = [HAS_UNIT_OR_FILLED_IN.schema()]
    if _mentions_type(info.annotation, Setting):
        schema["additionalProperties"] = scalar()
        # A server-side apply treats the map as one value. If it merged by key, an owner that gives up the last key
        # would leave a null, which is rejected.
        schema["x-kubernetes-map-type"] = "atomic"
    if field_key in EMPTY_IS_UNSET:
        schema["anyOf"][0]["enum"].append({})
    return schema


def _translate_schema(raw: Schema, models: Models) -> Schema:
    """Translate pydantic's JSON schema to the structural subset. In Kubernetes null means absence."""
    # An empty list means the same as absence; a model's defaults are at its own fields.
    value = raw.get("default")
    default = {} if value is None or value == [] else {"default": {} if isinstance(value, dict) else value}
    if "$ref" in raw:
        return {**object_schema(models[raw["$ref"].rpartition("/")[2]]), **default}
    branches = [branch for branch in raw.get("anyOf", ()) if branch.get("type") != "null"]
    if branches == INT_OR_STRING["anyOf"]:
        return {**INT_OR_STRING, **default}
    if len(branches) == 1:
        return {**_translate_schema(branches[0], models), **default}
    if "oneOf" in raw:
        return {**_union_schema(raw["oneOf"], models), **default}
    if raw.get("type", "null") == "null":
        raise TypeError(f"Kubernetes has no structural schema for {raw}")
    schema = {key: raw[key] for key in _STRUCTURAL if key in raw and key != "default"} | default
    if "const" in raw:
        schema["enum"] = [raw["const"]]
    if schema["type"] == "integer":
        schema["format"] = "int64"
    for part in ("items", "additionalProperties"):
        if part in raw:
            schema[part] = _with_size(_translate_schema(raw[part], models))
    return schema


def _union_schema(branches: list[Schema], models: Models) -> Schema:
    """Return the schema of words or mappings, for which Kubernetes has no type: the value may be anything, and
    validations narrow it. Validations of mappings also hold for any other value (`required` says nothing about text),
    so each branch has to require a mapping itself, by requiring at least one entry."""
    words = [word for branch in branches for word in branch.get("enum", [branch.get("const")]) if word is not None]
    mappings = [_translate_schema(branch, models) for branch in branches if "$ref" in branch]
    return {
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {name: schema for mapping in mappings for name, schema in mapping["properties"].items()},
        "maxProperties": max(len(mapping["properties"]) for mapping in mappings),
        "anyOf": [
            {"enum": words},
            *({"required": mapping["required"], "not": {"maxProperties": 0}} for mapping in mappings),
        ],
    }


def _with_size(schema: Schema) -> Schema:
    """Return the schema with an upper bound, if it has none of its own."""
    if schema.get("type") == "string" and not schema.keys() & {"enum", "format"}:
        return {**schema, "maxLength": schema.get("maxLength", MAX_TEXT)}
    if schema.get("type") == "array":
        return {**schema, "maxItems": schema.get("maxItems", MAX_ENTRIES)}
    if "additionalProperties" in schema:
        return {**schema, "maxProperties": schema.get("maxProperties", MAX_ENTRIES)}
    return schema


def _describe(raw: Schema, info: FieldInfo | None = None) -> Schema:
    """Return the description with the field's default and an example, as people write them, because `kubectl explain`
    shows neither by itself."""
    if "description" not in raw:
        return {}
    value = None if info is None else info.default
    for annotation in () if info is None else _field_annotations(info):
        if isinstance(annotation, PlainSerializer) and isinstance(value, int):
            value = annotation.func(value)  # type: ignore[call-arg]
    has_default = isinstance(value, str | int) and value != ""
    default = f" Default: {str(value).lower() if value is False else value}." if has_default else ""
    example = f" Example: {flow(raw['examples'][0])}." if "examples" in raw else ""
    return {"description": description(raw["description"], _DESCRIPTION - len(default)) + default + example}


def flow(value: Any) -> str:
    """Return the value in one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(inner) for inner in value) + "]"
    yaml, text = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style, yaml.width = True, 4096
    yaml.dump([value], text)  # in a list, so that commas and brackets are quoted
    return text.getvalue().strip()[1:-1]


def _field_annotations(info: FieldInfo) -> Iterator[Any]:
    """Yield the annotations of the field and, if it may be None, those of its value."""
    yield from info.metadata
    inner = get_args(info.annotation)
    for branch in inner if type(None) in inner else ():
        for annotation in getattr(branch, "__metadata__", ()):
            yield from annotation.metadata if isinstance(annotation, FieldInfo) else (annotation,)


def _mentions_type(annotation: Any, target: Any) -> bool:
    return annotation == target or any(_mentions_type(inner, target) for inner in get_args(annotation))


def _nested_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _nested_models(inner)
