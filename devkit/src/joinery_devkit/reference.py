"""docs/reference.md: every field of all resources, from the CRDs' schemas.

`python -m joinery_devkit.reference` prints the page: a table for the fields of `spec`, and one for each field that is a
mapping, with everything below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ruamel.yaml import YAML

from joinery_runtime.job.crd.definition import RESOURCE_KINDS, custom_resource_definition
from joinery_runtime.job.crd.shapes import Schema
from joinery_runtime.job.crd.structural import flow

_HEAD = """# Reference of the resources

Generated from the resource models by `make crds`. `kubectl explain streamjoin.spec` prints the same.

A *duration* is text such as `250ms`, `10s` or `1h30m`, with a unit (but 0). *Bytes* are a number, or text such as
`500M` or `10Gi`. A field without a default may be left out unless it is *required*; a field inside a mapping that is
left out is not. The *example* of a mapping has the fields that are required in it, or the first one.
"""
_parse_example = cache(YAML(typ="safe", pure=True).load)
"""Cached, because the example of each mapping around a field repeats that of the field. Do not change the value."""
_TABLE = "| field | type | default | example | is |\n|---|---|---|---|---|"


def page() -> str:
    lines, printed = [_HEAD], list[list[str]]()
    for kind in RESOURCE_KINDS:
        lines += _kind(custom_resource_definition(kind), printed)
    return "\n".join(lines)


def _kind(definition: dict[str, Any], printed: list[list[str]]) -> Iterator[str]:
    """Yield the lines about a kind. `printed` are the tables that are already on the page, to which it only refers."""
    name = definition["spec"]["names"]["kind"]
    parts = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    yield f"## {name}\n\n### {name}: `spec`\n\n{_TABLE}"
    for field, schema in parts["spec"]["properties"].items():
        yield _row(field, schema, parts["spec"])
    yield ""
    repeated = []
    for path, schema in [
        *((f"spec.{n}", s) for n, s in parts["spec"]["properties"].items()),
        ("status", parts["status"]),
    ]:
        rows = list(_rows("", schema))
        if not rows:
            continue
        if rows in printed:
            repeated.append(f"`{path}`")
            continue
        printed.append(rows)
        yield f"### {name}: `{path}`\n\n{_TABLE}"
        yield from rows
        yield ""
    if repeated:
        yield f"The same as above: {', '.join(repeated)}.\n"


def _rows(path: str, schema: Schema) -> Iterator[str]:
    """Yield a row for each field below a mapping, outer fields first."""
    inner = schema.get("items", schema)
    for name, field in inner.get("properties", {}).items():
        yield _row(f"{path}{name}", field, inner)
        yield from _rows(f"{path}{name}{'[]' if 'items' in field else ''}.", field)


def _row(path: str, schema: Schema, parent: Schema) -> str:
    description, _, default = schema["description"].partition(" Example: ")[0].partition(" Default: ")
    default = _code(default.removesuffix(".")) if default else ""
    if path.rpartition(".")[2] in parent.get("required", ()):
        default = "*required*"
    return f"| `{path}` | {_type(schema)} | {default} | {_code(flow(example(schema)))} | {_cell(description)} |"


def example(schema: Schema) -> Any:
    """Return an example value of the field: the one at the end of its description; else a word other than the default,
    or a mapping of the required fields. None: there is no example."""
    _, named, text = schema.get("description", "").partition(" Example: ")
    if named:
        return _parse_example(text.removesuffix("."))
    words = schema.get("enum", [True, False] if schema.get("type") == "boolean" else [])
    if words:
        return next(word for word in words if word != schema.get("default"))
    if "items" in schema:
        inner = example(schema["items"])
        return None if inner is None else [inner]
    if "properties" in schema:
        fields = schema["properties"]
        return {name: example(fields[name]) for name in schema.get("required", list(fields)[:1])}
    return (
        {}
        if schema == {"type": "object"} | {key: schema[key] for key in ("description", "default") if key in schema}
        else None
    )


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return _cell(" | ".join(f"`{word}`" for word in schema["enum"]))
    if schema.get("x-kubernetes-int-or-string"):
        pattern = schema["pattern"]
        return "duration" if "|ms|" in pattern else "bytes" if "|Mi|" in pattern else "time"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        words = [word for branch in schema["anyOf"] for word in branch.get("enum", ()) if word != {}]
        return _cell(" | ".join([*(f"`{word}`" for word in words), "mapping"]))
    match schema["type"]:
        case "array":
            return f"list of {_type(schema['items'])}s" if schema["items"].get("type") != "string" else "list of text"
        case "object":
            return "mapping"
        case "string":
            return "time" if schema.get("format") == "date-time" else "text"
        case other:
            return str(other)


if __name__ == "__main__":
    print(page(), end="")
