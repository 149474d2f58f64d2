"""The definition of a job: the part that decides an epoch's rows and where they go. It is stored with every plan.

A plan is replayed under the job that made it, even after an edit of the job, because part of its output may already be
visible. Settings that only say how (secrets, shards of later plans, Spark) are those of the job as it is now.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job.join.stream_join import StoredNames, StreamJoin
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.ranking import RANKING_KINDS
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.base import AS_STORED
from joinery_runtime.job.model.draft import dig
from joinery_runtime.job.model.outputs import Output
from joinery_runtime.job.model.references import Naming, namings, parse_reference
from joinery_runtime.job.model.resource import Job
from joinery_runtime.job.model.wording import listed

_SECRET = {"properties", "propertiesSecretRef", "dsn", "dsnSecretRef"}
# Fields that say how a place is reached, not which place, or what to do when it fails or grows too large. As long as
# the job still has the place, the present values apply.
_HOW = {*_SECRET, "bootstrapServers", "onDataLoss", "limits", "limit", "lateWarning", "tableOwner", "allowTriggers"}
_HASH_VERSION = "1"
# What a definition says of how columns are named, if nothing else names them. Definitions of earlier releases, which
# are as durable as their jobs' state, have no such field for `always`, and `whenNeeded` with another meaning.
_NAMINGS: Mapping[str | None, Naming] = {None: "always", "whenNeeded": "sidesWhenNeeded", "byInput": "whenNeeded"}
_NAMES = {"prefixes", "names"}
_ANY_JOB = TypeVar("_ANY_JOB", bound=Job)


def definition(job: Job) -> dict[str, Any]:
    """Return the definition as JSON without secrets; equal for jobs that make the same rows from the same plan.
    Defaults are omitted, so that a release with more of them finds the definitions of an earlier release equal. SQL
    counts as the fields that it stands for."""
    spec = job.spec.model_copy(update=job.without_sql)
    fields = spec.model_dump(mode="json", by_alias=True, include=set(_defining(job)), exclude_defaults=True)
    document: dict[str, Any] = json.loads(json.dumps(_without(_SECRET, fields)))
    for function in document.get("functions", ()):
        if function["name"] in job.function_sources:
            function["source"] = job.function_sources[function["name"]]
    document = _without_names(document)
    # How columns are named; nothing if the job names them, or has them as earlier releases had.
    if isinstance(job, StreamJoin) and job.has_default_names:
        prefixes = next(name for name, naming in _NAMINGS.items() if naming == job.naming)
        names = job.kept_names
        document |= {**({"prefixes": prefixes} if prefixes is not None else {}), **({"names": names} if names else {})}
    return document


def _without_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition's fields without those that say how columns are named."""
    return {key: value for key, value in fields.items() if key not in _NAMES}


def _defining(job: Job) -> Set[str]:
    return job.row_fields | {"functions", "output", "outputs", "dead_letter"}


def same_rows(stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Say whether a plan made under `stored` gives the same rows in the same places under `now`. If there was no
    dead-letter output, nothing can have gone to one, so one may be added for a plan that bad records keep from
    ending."""
    return bool(_without(_HOW, {**_dead_letter(now), **stored}) == _without(_HOW, now))


def definition_hash(fields: Mapping[str, Any]) -> str:
    """Return a short name for a definition, stored in plans; before the colon its version. Equal names: epochs give the
    same rows in the same places from the same plan and records. Where records come from and how event time moves is in
    the plan itself. A name of another version says nothing."""
    rows = _without(_HOW, {**fields, **_as_read(fields)})
    return f"{_HASH_VERSION}:{hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]}"


def is_same_definition(name: str, now: Mapping[str, Any]) -> bool:
    """Say whether a plan with this name (see `definition_hash`) was made under the definition, as far as it can be
    told: earlier releases gave plans no name."""
    return name.partition(":")[0] != _HASH_VERSION or name == definition_hash(now)


def reads_alike(stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Say whether records are read in the same way under both definitions."""
    return bool(_without(_HOW, _as_read(stored)) == _without(_HOW, _as_read(now)))


def _as_read(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a definition without what a plan fixes."""
    return {
        key: _without({"watermark", "kafka", "file"}, fields[key])
        for key in ("inputs", "input", "unions")
        if key in fields
    }


def _dead_letter(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: fields[key] for key in ("deadLetter",) if key in fields}


def under_definition(job: _ANY_JOB, stored: Mapping[str, Any]) -> _ANY_JOB:
    """Return the job as it was under a stored definition, with the present settings of `job` for parts of the same
    name."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = document["spec"]
    targets: dict[str, Any] = {}
    functions = [dict(function) for function in stored.get("functions", ())]
    sources = {function["name"]: function.pop("source") for function in functions if "source" in function}
    if functions:
        targets["functions"] = functions
    if "output" in stored:
        targets["output"] = _with_settings_of(stored["output"], spec)
    if "outputs" in stored:
        targets["outputs"] = [_with_settings_of(output, spec) for output in stored["outputs"]]
    if "deadLetter" in stored:
        targets["deadLetter"] = _with_settings(stored["deadLetter"], spec.get("deadLetter"))
    replaced = {to_camel(name) for name in (*_defining(job), "sql")}
    remaining = {key: value for key, value in spec.items() if key not in replaced}
    match job:
        case StreamJoin():
            with_settings = _join_fields(job, spec, stored)
        case SessionWindow():
            now = spec["input"] if spec["input"]["name"] == stored["input"]["name"] else None
            source = _with_settings(stored["input"], now)
            with_settings = {"input": source, **_with_limits(stored, job.aggregation, spec)}
        case _:
            raise TypeError(f"no definition of {job.kind}")
    document["spec"] = {**remaining, **_dead_letter(spec), **_without_names(stored), **targets, **with_settings}
    try:
        before = type(job).model_validate(document, context=AS_STORED)
    except ValidationError as error:
        raise IncompatibleState(
            f"a plan of job {job.name} was made by a job that this release does not take",
            facts=str(error),
            todo="Run the release that made it until the job has stopped in order (SIGTERM), then this one",
        ) from error
    before = before.with_function_sources(sources)
    if isinstance(before, StreamJoin) and before.has_default_names:
        return before.with_stored_names(_stored_names(job.name, stored))
    return before


def with_stored_names(job: Job, stored: Mapping[str, Any] | None) -> Job:
    """Return the job with the names that its columns have in the definition that its store has (None: there is none),
    unless the job says otherwise. Columns that the definition does not have get names by the same rule. Raises
    IncompatibleState if a key or a header of the output names a column that is not among them, or two columns have one
    name."""
    if stored is None or not isinstance(job, StreamJoin) or "inputs" not in stored:
        return job
    if job.spec.sql is not None:
        of_state = job.with_stored_stars([item["as"] for item in stored.get("select", ()) if "as" in item])
        return job if of_state is job else _reject_other_names(of_state)
    if not job.has_default_names:
        return job
    if "select" in stored or "aggregate" in stored:
        return job
    names = _stored_names(job.name, stored)
    if names.naming not in namings(job.spec.prefixes):
        return job
    if definition(job)["inputs"] != stored["inputs"]:
        before = under_definition(job, stored).output_columns
        names = StoredNames(names.naming, {field.source: field.name for field in before if field.source is not None})
    return _reject_other_names(job.with_stored_names(names))


def _reject_other_names(named: StreamJoin) -> StreamJoin:
    """Return the job, whose columns have their stored names, unless its outputs name other ones."""
    counts = Counter(column.name for column in named.output_columns)
    if wrong := [name for name in (*named.named_columns, *counts) if counts[name] != 1]:
        raise IncompatibleState(
            f"Columns of job {named.name} keep the names that are stored with its state, and {listed(wrong)} is no "
            "name of one column",
            facts=f"output columns are {listed(counts)}",
            todo="Write these in the output's keys and headers, or name the columns with `select`",
        )
    return named


def _stored_names(job: str, stored: Mapping[str, Any]) -> StoredNames:
    """Say how a definition names columns that nothing else names."""
    naming = _NAMINGS.get(stored.get("prefixes"))
    if naming is None:
        raise IncompatibleState(
            f"the state of job {job} has columns named in a way that this release does not know",
            facts=f"it is called {stored['prefixes']}",
            todo="Run the release that made it, or a later one",
        )
    names_by_column = {parse_reference(text): name for text, name in stored.get("names", {}).items()}
    return StoredNames(naming, {column: name for column, name in names_by_column.items() if column is not None})


def _join_fields(job: StreamJoin, spec: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored inputs with their present settings, and the stored steps with their present limits: raising a
    limit that stops a plan must let the plan end."""
    now = {side.name: side.model_dump(mode="json", by_alias=True, exclude_unset=True) for side in job.read_inputs}
    inputs = [_with_settings(side, now.get(side["name"])) for side in stored["inputs"]]
    limits = {
        step.right: step.model_dump(mode="json", by_alias=True, include={"limits"}, exclude_defaults=True)
        for step in job.joins
    }
    joins = [{**_without({"limits"}, step), **limits.get(step.get("right"), {})} for step in stored.get("joins", ())]
    rankings = {
        kind.field: {**stored[kind.field], "limits": dig(spec, kind.field, "limits")}
        for kind in RANKING_KINDS
        if kind.field in stored
    }
    if "aggregate" not in stored:
        return {"inputs": inputs, "joins": joins, **rankings}
    aggregate = {**stored["aggregate"], **_with_limits(stored["aggregate"], job.aggregation, dig(spec, "aggregate"))}
    if "then" in aggregate:
        following = job.aggregation.next if job.aggregation is not None else None
        fields = dig(spec, "aggregate", "then")
        aggregate["then"] = {**aggregate["then"], **_with_limits(aggregate["then"], following, fields)}
    return {"inputs": inputs, "joins": joins, "aggregate": aggregate, **rankings}


def _with_limits(stored: Mapping[str, Any], now: Aggregation | None, fields: Any) -> dict[str, Any]:
    """Return the stored aggregates and the caps on their state, with the limits of the job as it is `now`: those of
    exact counts stop plans too. `fields` are what the job says beside its aggregates."""
    limits = {
        (call.function, call.column, call.as_): {"limit": call.limit}
        for call in (now.aggregates if now is not None else ())
        if call.limit
    }
    aggregates = [
        {**_without({"limit"}, call), **limits.get((call["function"], call.get("column"), call["as"]), {})}
        for call in stored.get("aggregates", ())
    ]
    return {"aggregates": aggregates, "limits": dig(fields, "limits")}


def _without(names: Set[str], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(names, inner) for key, inner in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(names, inner) for inner in value]
    return value


def _with_settings_of(stored: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return `stored`, an output, with the settings of the output that has the same target now, whatever its name."""
    outputs = [*(spec.get("outputs") or ()), *([spec["output"]] if spec.get("output") else ())]
    outputs.sort(key=lambda output: output.get("name") != stored.get("name"))  # a name decides between equal targets
    for output in outputs:
        kinds = [kind for kind in Output.KINDS if stored.get(kind) and output.get(kind)]
        if any(_is_same_place(stored[kind], output[kind]) for kind in kinds):
            return _with_settings(stored, output)
    return _with_settings(stored, spec.get("output"))


def _is_same_place(stored: Any, now: Any) -> bool:
    """Say whether these are the same topic, table or file. Another topic may be on another cluster."""
    names = ("topic", "topics", "topicPattern", "table", "path")
    both = isinstance(stored, Mapping) and isinstance(now, Mapping)
    return both and all(stored.get(name) == now.get(name) for name in names)


def _with_settings(stored: Mapping[str, Any], now: Any) -> dict[str, Any]:
    """Return `stored` with the settings of the same place in the job as it is now."""
    merged = dict(stored)
    for kind, inner in stored.items():
        current = now.get(kind) if isinstance(now, Mapping) else None
        if isinstance(current, Mapping) and _is_same_place(inner, current):
            merged[kind] = {**_without(_HOW, inner), **{key: current[key] for key in _HOW if key in current}}
    return merged
