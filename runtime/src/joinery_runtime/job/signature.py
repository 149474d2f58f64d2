"""The fingerprint of a job's state, and whether a changed job may use that state (rule M2).

A signature is JSON and lives as long as the state that it describes. Its layout has a version of its own, and older
layouts are converted to the newest before they are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joinery_runtime.job.join.differences import incompatibilities, warnings
from joinery_runtime.job.join.steps import SIDES, JoinStep, part_names
from joinery_runtime.job.join.stream_join import StreamJoin, stored_type
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.ranking import RankingKind, TopN
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.kinds.session.sessions import SESSIONS_PART
from joinery_runtime.job.kinds.session.signature import aggregate_fields, called_functions, column_origins
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.references import ComputedKey, KeyPair
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.unions import UnionInput
from joinery_runtime.job.model.wording import listed

SIGNATURE_VERSION = 2
NEWER_VERSION = 3
"""The version for a job with co-partitioned inputs, or an input with a history. Older releases, which would look for
its rows elsewhere, or read the history's records from the topic again, reject it. The layout is that of version 2."""
NEWEST_VERSION = 4
"""The version for a job with a semi or anti join, with an aggregate or a ranking, without joins, with a key that is an
expression, with a union, or with windows in a chain, which release 0.1.0 does not know. The layout is that of version
2."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences in words: with any `refused` the state cannot be used; `warnings` do not stop the job."""

    refused: tuple[str, ...]
    warnings: tuple[str, ...]


def signature(job: Job, stored: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Everything that the job's state depends on. `stored` names, per part of the state, the columns that segments keep
    (in `left.2` and later as `<input>.<column>`, for sessions as in `aggregate_fields`). Durations are milliseconds."""
    match job:
        case StreamJoin():
            steps = [_sign_step(job, index, step, stored) for index, step in enumerate(job.joins)]
            branches = {"branches": aliases} if (aliases := job.branch_aliases) else {}
            fields_of_kind = {**branches, "steps": steps, **_sign_aggregate(job, stored), **_sign_rankings(job, stored)}
        case SessionWindow():
            types = {**job.spec.input.types, **job.function_types}
            fields_of_kind = aggregate_fields(job.aggregation, types, stored[SESSIONS_PART])
        case _:
            raise TypeError(f"no signature of {job.kind}")
    return {
        "version": _signature_version(job),
        "kind": job.kind,
        "inputs": [
            {
                "name": side.name,
                "eventTime": side.event_time,
                "table": list(side.table.key) if side.table else None,
                **({"history": side.history.until} if side.history else {}),
                **({"union": True} if isinstance(side, UnionInput) else {}),
            }
            for side in job.inputs
        ],
        **fields_of_kind,
    }


def _signature_version(job: Job) -> int:
    if isinstance(job, StreamJoin):
        existence = not all(step.emits_right for step in job.joins)
        windows_in_chain = job.windowed and len(job.joins) > 1
        if job.behind_joins or existence or windows_in_chain or not job.joins or job.computed_keys or job.unions:
            return NEWEST_VERSION
    newer = job.co_partitioned or any(side.history is not None for side in job.read_inputs)
    return NEWER_VERSION if newer else SIGNATURE_VERSION


def _sign_aggregate(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    aggregation, types = job.aggregation, {**job.aggregated_types, **job.function_types}
    if aggregation is None:
        return {}
    window = {"window": aggregation.form.field, "of": job.aggregated_time}
    parts = [part for part, step in job.behind_joins.items() if isinstance(step, Aggregation)]
    fields = {**window, **aggregate_fields(aggregation, types, stored[parts[0]])}
    if (following := aggregation.next) is not None and aggregation.then is not None:
        handed_on = column_origins(aggregation, types)
        signed = aggregate_fields(following, handed_on, stored[parts[1]])
        if aggregation.then.same_windows:  # its windows are those of the first aggregate, which is compared
            signed = {name: value for name, value in signed.items() if name not in following.form.durations()}
        else:
            signed = {"window": following.form.field, **signed}
        fields["then"] = signed
    return {"aggregate": fields}


def _sign_rankings(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    types, rankings = job.aggregated_types, dict[str, Any]()
    for part, step in job.behind_joins.items():
        if not isinstance(step, RankingKind):
            continue
        if isinstance(step, TopN) and job.top_of_windows is not None:
            origins: Mapping[str, Any] = {**types, **job.function_types}
            for aggregation in job.aggregations:  # each reads the columns of the one before
                origins = column_origins(aggregation, origins)
            keys, kinds, time = [[name, origins[name]] for name in step.keys], origins, job.aggregated_time
        else:
            keys = [[name, types[name].key_type] for name in step.keys]
            kinds, time = {name: str(kind) for name, kind in types.items()}, job.ranked_time(step)
        rankings[step.field] = {
            "keys": keys,
            "of": time,
            **step.signed(),
            "allowedLateness": step.allowed_lateness,
            "stored": {name: kinds[name] for name in stored[part]},
        }
    return rankings


def _sign_step(job: StreamJoin, index: int, step: JoinStep, stored: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "right": step.right,
        "type": step.type,
        "keys": [[str(pair.left), str(pair.right), _key_type(job, pair)] for pair in job.keys_of(step)],
        "broadcast": step.broadcast,
        **({"coPartitioned": step.partitioner} if step.co_partitioned else {}),
        **step.matching.durations(),
        **({"allowedLateness": step.allowed_lateness} if step.matching.adds_lateness else {}),
        "stored": {
            side: {name: _stored_text(job, stored_type(job, index, side, name)) for name in stored[part]}
            for side, part in zip(SIDES, part_names(index), strict=True)
        },
    }


def _key_type(job: StreamJoin, pair: KeyPair) -> str:
    """Return the type of a key. Only the core knows that of an expression, which the types of what it reads decide."""
    for ref in (pair.left, pair.right):
        if not isinstance(ref, ComputedKey):
            return job.input(ref.input).types[ref.column].key_type
    return " = ".join(_stored_text(job, ref) for ref in (pair.left, pair.right) if isinstance(ref, ComputedKey))


def _stored_text(job: StreamJoin, kind: ColumnType | ComputedKey) -> str:
    if isinstance(kind, ColumnType):
        return str(kind)
    reads = listed(
        [
            *(f"{ref} {job.input(ref.input).types[ref.column]}" for ref in kind.reads),
            *(f"{name} {returns}" for name, returns in called_functions(kind.text, job.function_types)),
        ]
    )
    return f"an expression of {reads}"


# --- comparison ---------------------------------------------------------------------------------------------------


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Say whether state written under `old`, of any version up to this release's, can continue under `new`."""
    if old.get("version") not in {1, SIGNATURE_VERSION, NEWER_VERSION, NEWEST_VERSION}:
        facts = f"version {old.get('version')}, this release writes version {new['version']}"
        return Comparison((f"the state's signature has another layout: {facts}",), ())
    current = _lift_version_1(old) if old["version"] == 1 else old
    refused = tuple(incompatibilities(current, new))
    return Comparison(refused, tuple(warnings(current, new)) if not refused else ())


def _lift_version_1(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert version 1, which described one inner interval step of two inputs, to version 2."""
    left, right = old["inputs"]
    return {
        "version": SIGNATURE_VERSION,
        "kind": old["kind"],
        "inputs": [{"name": side["name"], "eventTime": side["eventTime"], "table": None} for side in (left, right)],
        "steps": [
            {
                "kind": old["step"],
                "right": right["name"],
                "type": old["type"],
                "keys": [[f"{left['name']}.{a}", f"{right['name']}.{b}", kind] for a, b, kind in old["keys"]],
                "broadcast": None,
                "of": left["name"],
                **{name: old[name] for name in ("lower", "upper", "allowedLateness")},
                "stored": {name: side["stored"] for name, side in zip(SIDES, (left, right), strict=True)},
            }
        ],
    }
