"""What pydantic's JSON schema does not know about a field: patterns behind Python validators, and sizes.

Sizes bound what the API server stores and what CEL rules may cost; they are far above any real resource. A pattern may
reject less than its validator (the operator applies the models too), and more only for odd spellings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_runtime.job.join.spec import StreamJoinSpec
from joinery_runtime.job.join.steps import STEP_KINDS, JoinStep, SelectItem
from joinery_runtime.job.kinds.aggregate.model import AggregateWindow, Aggregation, NextAggregation
from joinery_runtime.job.kinds.ranking import RANKING_KINDS, TopN
from joinery_runtime.job.kinds.session.resource import SessionWindowSpec
from joinery_runtime.job.kinds.session.sessions import Aggregate, ComputedColumn, SessionColumn
from joinery_runtime.job.kinds.window_totals import RankOrder, WindowTotal
from joinery_runtime.job.model.base import SIMPLE_TYPES, Limits, SecretKeyRef, SecretRef
from joinery_runtime.job.model.function_calls import NAME
from joinery_runtime.job.model.inputs import AtOffsets, AtTimestamp, Column, History, Input, KafkaInput, Watermark
from joinery_runtime.job.model.outputs import FileOutput
from joinery_runtime.job.model.pods import PodTemplate
from joinery_runtime.job.model.resource import PYTHON_FUNCTION, PythonFunction, Trigger
from joinery_runtime.job.model.unions import Branch, BranchColumn, InputUnion

Schema = dict[str, Any]
Place = tuple[type, str]  # a model and the YAML name of one of its fields

# Bounds for everything without another bound: bytes of text, entries of a list or mapping.
MAX_TEXT, MAX_ENTRIES = 4096, 256
_LONG_TEXT = 65_536
INT_OR_STRING: Schema = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "maxLength": 64,
}
_LONGEST_MS = (2**63 - 1) // 1_000_000
_GO_DURATION = r"(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|ms|s|m|h))+"
_RFC_3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})"
_BYTES: Schema = {"pattern": r"^[0-9]{1,18}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$", "minimum": 1}
_SECRET_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_DECIMAL = r"decimal\(\s*[0-9]{1,9}\s*,\s*[0-9]{1,9}\s*\)"


def duration(minimum: int | None) -> Schema:
    """Return the schema of a Go duration; a `minimum` of 0 or more also rejects negative text. Numbers have bounds too:
    a stored resource may have one."""
    sign = "[+-]?" if minimum is None else r"\+?"
    return {
        **INT_OR_STRING,
        "pattern": f"^([+-]?0|{sign}{_GO_DURATION})$",
        "minimum": -_LONGEST_MS if minimum is None else minimum,
        "maximum": _LONGEST_MS,
    }


def scalar() -> Schema:
    """Return the schema of text, a number or a boolean, as settings are written. Kubernetes has no such type: the value
    may be anything, but contradictory bounds on the number of entries exclude mappings and lists."""
    return {
        "x-kubernetes-preserve-unknown-fields": True,
        "maxLength": MAX_TEXT,
        **{"minProperties": 1, "maxProperties": 0, "minItems": 1, "maxItems": 0},
    }


def list_map(key: str) -> Schema:
    """Return the schema of a list whose entries differ in `key`: the API server rejects duplicates, and merges by the
    key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


# Fields whose empty mapping means the same as absence, where absence is not a branch of their union.
EMPTY_IS_UNSET: frozenset[Place] = frozenset({(KafkaInput, "stopAt")})

FIELDS: Mapping[Place, Schema] = {
    (StreamJoinSpec, "inputs"): {**list_map("name"), "maxItems": 16},
    (StreamJoinSpec, "unions"): {**list_map("name"), "maxItems": 8},
    (StreamJoinSpec, "joins"): {"maxItems": 16},
    (StreamJoinSpec, "select"): {"maxItems": 1024},
    (StreamJoinSpec, "sql"): {"maxLength": _LONG_TEXT},
    (Aggregation, "groupBy"): {"x-kubernetes-list-type": "set", "maxItems": 64},
    (Aggregation, "compute"): {**list_map("as"), "maxItems": 256},
    (Aggregation, "aggregates"): {**list_map("as"), "maxItems": 256},
    (NextAggregation, "groupBy"): {"x-kubernetes-list-type": "set", "maxItems": 64},
    (NextAggregation, "compute"): {**list_map("as"), "maxItems": 256},
    (NextAggregation, "aggregates"): {**list_map("as"), "maxItems": 256},
    (AggregateWindow, "of"): {"maxLength": 253},
    **{(kind, "by"): {"x-kubernetes-list-type": "set", "maxItems": 64} for kind in RANKING_KINDS},
    **{(kind, "of"): {"maxLength": 253} for kind in RANKING_KINDS},
    (TopN, "orderBy"): {"maxItems": 64},
    (TopN, "totals"): {"maxItems": 64},
    (WindowTotal, "orderBy"): {"maxItems": 64},
    (WindowTotal, "expression"): {"maxLength": _LONG_TEXT},
    (RankOrder, "expression"): {"maxLength": _LONG_TEXT},
    (SessionWindowSpec, "groupBy"): {"x-kubernetes-list-type": "set", "maxItems": 64},
    (SessionWindowSpec, "compute"): {**list_map("as"), "maxItems": 256},
    (SessionWindowSpec, "where"): {"maxLength": _LONG_TEXT},
    (SessionWindowSpec, "aggregates"): {**list_map("as"), "maxItems": 256},
    (SessionWindowSpec, "select"): {"maxItems": 1024},
    (SessionWindowSpec, "sql"): {"maxLength": _LONG_TEXT},
    (SessionColumn, "expression"): {"maxLength": _LONG_TEXT},
    (ComputedColumn, "expression"): {"maxLength": _LONG_TEXT},
    (ComputedColumn, "as"): {"maxLength": 1024},
    (Aggregate, "column"): {"maxLength": 1024},
    (Aggregate, "by"): {"maxLength": 1024},
    (Aggregate, "separator"): {"maxLength": 1024},
    (Aggregate, "where"): {"maxLength": _LONG_TEXT},
    (Aggregate, "as"): {"maxLength": 1024},
    (PythonFunction, "name"): {"pattern": f"^{NAME}$", "maxLength": 253},
    (PythonFunction, "python"): {"pattern": f"^{PYTHON_FUNCTION}$", "maxLength": 253},
    (PythonFunction, "returns"): {"pattern": f"^({'|'.join(SIMPLE_TYPES)}|{_DECIMAL})$", "maxLength": 64},
    (StreamJoinSpec, "functions"): {**list_map("name"), "maxItems": 64},
    (SessionWindowSpec, "functions"): {**list_map("name"), "maxItems": 64},
    (InputUnion, "name"): {"maxLength": 253},
    (InputUnion, "branches"): {**list_map("input"), "maxItems": 16},
    (InputUnion, "where"): {"maxLength": _LONG_TEXT},
    (Branch, "input"): {"maxLength": 253},
    (Branch, "select"): {"maxItems": 256},
    (Branch, "where"): {"maxLength": _LONG_TEXT},
    (BranchColumn, "expression"): {"maxLength": _LONG_TEXT},
    (BranchColumn, "as"): {"maxLength": 1024},
    (Input, "name"): {"maxLength": 253},
    (Input, "schema"): {**list_map("name"), "maxItems": 1024},
    (Input, "eventTime"): {"maxLength": 1024},
    (Input, "where"): {"maxLength": _LONG_TEXT},
    (KafkaInput, "bootstrapServers"): {"maxLength": MAX_TEXT},
    (KafkaInput, "topics"): {"x-kubernetes-list-type": "set", "maxItems": 256},
    (Column, "name"): {"maxLength": 1024},
    (Column, "type"): {"pattern": f"^({'|'.join(SIMPLE_TYPES)}|{_DECIMAL})$", "maxLength": 64},
    (AtTimestamp, "timestamp"): {"pattern": f"^{_RFC_3339}$"},
    (History, "until"): {"pattern": f"^{_RFC_3339}$"},
    (AtOffsets, "offsets"): {"maxProperties": 10_000},
    (JoinStep, "where"): {"maxLength": _LONG_TEXT},
    (JoinStep, "right"): {"maxLength": 253},
    (JoinStep, "broadcast"): {"maxLength": 253},
    (JoinStep, "keys"): {"maxProperties": 64},
    **{field: schema for kind in STEP_KINDS for field, schema in kind.schemas.items()},
    **dict.fromkeys(((Limits, "maxStateBytes"), (Trigger, "maxBytesPerEpoch"), (FileOutput, "rollSize")), _BYTES),
    (Watermark, "maxFuture"): {"pattern": rf"^(off|\+?0|\+?{_GO_DURATION})$", "minimum": 0, "maximum": _LONGEST_MS},
    (SelectItem, "expression"): {"maxLength": _LONG_TEXT},
    (SecretRef, "name"): {"pattern": _SECRET_NAME, "maxLength": 253},
    (SecretKeyRef, "name"): {"pattern": _SECRET_NAME, "maxLength": 253},
    (PodTemplate, "name"): {"pattern": _SECRET_NAME, "maxLength": 253},
    (PodTemplate, "inline"): {"maxLength": _LONG_TEXT},
    (SecretKeyRef, "key"): {"pattern": "^[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", "maxLength": 253},
}
