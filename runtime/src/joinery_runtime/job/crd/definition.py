"""The CustomResourceDefinition around a kind's schema, and its YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from io import StringIO
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from joinery_runtime.job.crd.blue_green import BlueGreenJob, BlueGreenSpec, BlueGreenState
from joinery_runtime.job.crd.rules import with_rules
from joinery_runtime.job.crd.savepoint import Savepoint, SavepointState
from joinery_runtime.job.crd.shapes import Schema
from joinery_runtime.job.crd.status import UNSEEN, Status
from joinery_runtime.job.crd.structural import description, object_schema
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.resource import API_VERSION

_GROUP, _, _VERSION = API_VERSION.partition("/")
_HEADER = "# Generated from the resource models by `make crds`; edit those.\n"
_SCALE = {
    "specReplicasPath": ".spec.spark.executor.instances",
    "statusReplicasPath": ".status.executors",
    "labelSelectorPath": ".status.selector",
}


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource: its model (whose name is the kind, and which has a field `spec`), its names in kubectl, and the model
    of its status, which is `Status` for jobs."""

    model: type[BaseModel]
    plural: str
    short: str
    status: type[BaseModel] = Status

    @property
    def name(self) -> str:
        return self.model.__name__


KINDS = (ResourceKind(StreamJoin, "streamjoins", "sj"), ResourceKind(SessionWindow, "sessionwindows", "sw"))
"""The kinds of job."""
SAVEPOINT = ResourceKind(Savepoint, "savepoints", "jsp", SavepointState)
BLUE_GREEN = ResourceKind(BlueGreenJob, "bluegreenjobs", "bgj", BlueGreenState)
RESOURCE_KINDS = (*KINDS, SAVEPOINT, BLUE_GREEN)
"""The kinds that have a definition."""

_PHASE = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
)
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_OF_JOBS: Sequence[Mapping[str, object]] = (
    *_PHASE,
    {"name": "Rows/s", "type": "integer", "jsonPath": ".status.rowsPerSecond"},
    {"name": "Lag", "type": "integer", "jsonPath": ".status.lag", "description": "Records not read yet."},
    {"name": "Watermark delay", "type": "string", "jsonPath": ".status.watermarkDelay"},
    {"name": "Page", "type": "string", "jsonPath": ".status.page", "priority": 1},
    _AGE,
)
_OF_SAVEPOINTS = (
    {"name": "Job", "type": "string", "jsonPath": ".spec.job.name"},
    *_PHASE,
    {"name": "Epoch", "type": "integer", "jsonPath": ".status.epoch"},
    {"name": "Rows", "type": "integer", "jsonPath": ".status.rows"},
    {"name": "Bytes", "type": "integer", "jsonPath": ".status.bytes"},
    _AGE,
)
_OF_BLUE_GREEN = (
    *_PHASE,
    {"name": "Active", "type": "string", "jsonPath": ".status.active"},
    {"name": "Candidate", "type": "string", "jsonPath": ".status.candidate.name"},
    {"name": "Stable since", "type": "date", "jsonPath": ".status.candidate.stableSince"},
    _AGE,
)
_COLUMNS: Mapping[type[BaseModel], Sequence[Mapping[str, object]]] = {
    Status: _OF_JOBS,
    SavepointState: _OF_SAVEPOINTS,
    BlueGreenState: _OF_BLUE_GREEN,
}


def file_name(kind: ResourceKind) -> str:
    """Return the name of the file, as in other CRD generators: `joinery.dev_streamjoins.yaml`."""
    return f"{_GROUP}_{kind.plural}.yaml"


def custom_resource_definition(kind: ResourceKind) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["joinery"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": _VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in _COLUMNS[kind.status]],
                    "subresources": {"status": {}, **({"scale": _SCALE} if kind.status is Status else {})},
                    "schema": {"openAPIV3Schema": _resource_schema(kind)},
                }
            ],
        },
    }


def to_yaml(definition: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.width = 4096  # patterns and rules stay in one piece
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _: True
    text = StringIO()
    yaml.dump(definition, text)
    return _HEADER + text.getvalue()


def _resource_schema(kind: ResourceKind) -> Schema:
    spec = kind.model.model_fields["spec"].annotation
    if not (isinstance(spec, type) and issubclass(spec, BaseModel)):
        raise TypeError(f"the spec of {kind.name} must be a model")
    spec_schema = object_schema(spec)
    if spec is BlueGreenSpec:
        template = spec_schema["properties"]["template"]["properties"]
        # The spec of a job of any kind: the API server takes no unknown field and no deep nesting. The rules and the
        # defaults are those of one kind, and apply when the job is created.
        specs = [object_schema(kind.model.model_fields["spec"].annotation) for kind in KINDS]  # type: ignore[arg-type]
        merged = reduce(_merge_schemas, map(_without_rules, specs))
        template["spec"] = {**merged, "description": template["spec"]["description"]}
    schema = {
        "type": "object",
        "description": description(kind.model.__doc__ or "", limit=0),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema,
            "status": {**object_schema(kind.status), "default": UNSEEN},
        },
    }
    return with_rules(schema, kind.model)


def _without_rules(schema: Any) -> Any:
    """Return the schema without rules and defaults."""
    if isinstance(schema, list):
        return [_without_rules(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {}
    for key, part in schema.items():
        if key == "properties":
            bare[key] = {name: _without_rules(field) for name, field in part.items()}
        elif key not in {"x-kubernetes-validations", "default"}:
            bare[key] = part if key == "enum" else _without_rules(part)
    return bare


def _merge_schemas(left: Schema, right: Schema) -> Schema:
    """Return the schema that allows what either allows, for two that differ in fields and bounds."""
    merged = {**right, **left}
    if "properties" in merged:
        fields = {**right.get("properties", {}), **left.get("properties", {})}
        merged["properties"] = {
            name: _merge_schemas(left["properties"].get(name, field), right["properties"].get(name, field))
            for name, field in fields.items()
        }
        merged["required"] = [name for name in left.get("required", ()) if name in right.get("required", ())]
        if not merged["required"]:
            del merged["required"]
    if "items" in merged:
        merged["items"] = _merge_schemas(left["items"], right["items"])
        merged["maxItems"] = max(left["maxItems"], right["maxItems"])
    return merged
