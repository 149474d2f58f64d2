"""Cross-field rules of outputs, dead letters, the state store and autoscaling.

A job's rows are appended only, or they are a changelog, in which a row replaces an earlier one with the same key. A
step or an output that needs rows that stay rejects a changelog: the rules here are the only ones that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from joinery_runtime.job.model.cel import Rule, any_output
from joinery_runtime.job.model.draft import Finding, JobDraft, Loc, dig, exactly_one, items, repeats
from joinery_runtime.job.model.outputs import LAKES, ONLY_OUTPUT, DeadLetter, Output, StoreSpec
from joinery_runtime.job.model.wording import listed, suggestion


class ChangelogSource(NamedTuple):
    """A field of what a job aggregates that makes its rows a changelog. `facts` say how, `todo` how to do without;
    `condition` is the CEL that tells, with `{}` for the object that has the field."""

    field: str
    facts: str
    todo: str
    condition: str


CHANGELOG_SOURCES = (
    ChangelogSource("lateData", "reopen replaces rows that are out already", "write drop", "{}.lateData == 'reopen'"),
    ChangelogSource("emit", "emit replaces rows that are out already", "leave it out", "has({}.emit)"),
)


def changelog_sources(data: object, at: Loc) -> Iterator[ChangelogSource]:
    """Yield the fields of what is aggregated, which is at `at`, that make the rows a changelog."""
    for source in CHANGELOG_SOURCES:
        value = dig(data, *at, source.field)
        if value == "reopen" or (source.field == "emit" and value is not None):
            yield source


def into_lake(data: object, at: Loc, lake: str) -> Iterator[Finding]:
    """Reject a changelog into tables of this kind, which are only appended to."""
    for source in changelog_sources(data, at):
        yield (*at, source.field), _appended_only(source, lake)


def lake_rules(owner: str, path: str) -> tuple[Rule, ...]:
    """Return the same in CEL. `owner` is the object that has the fields, which may be absent, and `path` is its
    path."""
    absent = "" if owner == "self" else f"!has({owner}) || "
    return tuple(
        Rule(
            f"{absent}!({source.condition.format(owner)}) || !({any_output(lake)})",
            _appended_only(source, lake),
            f"{path}.{source.field}",
        )
        for source in CHANGELOG_SOURCES
        for lake in LAKES
    )


def _appended_only(source: ChangelogSource, lake: str) -> str:
    return f"{source.facts}, and {lake} tables are only appended to; {source.todo}, or write to output.postgres"


_REGISTERED = ("avro", "protobuf")  # formats with a schema in a registry
_RESERVED = (ONLY_OUTPUT, "epochs")


def unknown_columns(draft: JobDraft, columns: Sequence[str] | None) -> Iterator[Finding]:
    """Find keys, headers and selected columns that do not name an output column. `columns` are those of the job's rows;
    None while a mistake hides one."""
    if columns is None:
        return
    for output_at, output in outputs(draft.data):
        for i, item in enumerate(items(output, "select")):
            if isinstance(name := dig(item, "column"), str) and name not in columns:
                yield (*output_at, "select", i, "column"), _unknown_column_text(name, columns)
        chosen = items(output, "select")
        own_columns = [dig(item, "as") or dig(item, "column") for item in chosen if dig(item, "column") in columns]
        for at, name in named_columns(output):
            if isinstance(name, str) and name not in (own_columns if chosen else columns):
                yield (*output_at, *at), _unknown_column_text(name, own_columns if chosen else columns)


def _unknown_column_text(name: str, columns: Sequence[str]) -> str:
    return f"{name!r} is not an output column{suggestion(name, columns)}; output columns are {listed(columns)}"


def outputs(data: object) -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    """Yield the place and the fields of each output that a resource names, in `output` or in `outputs`."""
    spec = dig(data, "spec")
    if isinstance(output := dig(spec, "output"), Mapping):
        yield ("spec", "output"), output
    for i, output in enumerate(items(spec, "outputs")):
        if isinstance(output, Mapping):
            yield ("spec", "outputs", i), output


def named_columns(output: Mapping[str, Any]) -> Iterator[tuple[Loc, object]]:
    """Yield the places in an output, below its own, that name one of its columns, and the names."""
    for steps in (("kafka", "key"), ("postgres", "upsertKey")):
        for i, name in enumerate(items(output, *steps)):
            yield (*steps, i), name
    headers = dig(output, "kafka", "headers")
    if isinstance(headers, Mapping):
        yield from ((("kafka", "headers", header), name) for header, name in headers.items())


def row_columns(data: object) -> Iterator[object]:
    """Yield the columns of the job's rows that outputs name."""
    for _, output in outputs(data):
        if output.get("select") is not None:
            yield from (dig(item, "column") for item in items(output, "select"))
        else:
            yield from (name for _, name in named_columns(output))


def columns_of(output: Mapping[str, Any], columns: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the columns that an output has, each with its key in `columns`, which are those of the job's rows by name.
    None while a mistake hides one."""
    if columns is None or output.get("select") is None:
        return None if columns is None else dict(columns)
    pairs = [(dig(item, "as") or dig(item, "column"), dig(item, "column")) for item in items(output, "select")]
    return {name: columns[column] for name, column in pairs} if all(column in columns for _, column in pairs) else None


def late_without_dead_letters(draft: JobDraft, at: Loc) -> Iterator[Finding]:
    """Reject `lateData: dlq` without dead letters; `at` is the path of the `lateData`."""
    if dig(draft.data, *at) == "dlq" and dig(draft.data, "spec", "deadLetter") is None:
        yield at, "dlq writes late records to the dead letters, and the job has none; name `deadLetter`, or write drop"


def _check_one_target(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    named = [name for name in ("output", "outputs") if dig(spec, name) is not None]
    if not named:
        yield ("spec", "output"), "is missing: name where rows go, for example output: {file: {path: out}}"
    elif len(named) > 1:
        yield ("spec", "outputs"), "output and outputs are both named; keep one"
    for at, output in outputs(draft.data):
        yield from exactly_one(output, at, Output.KINDS)
    yield from exactly_one(dig(spec, "deadLetter"), ("spec", "deadLetter"), DeadLetter.KINDS)
    for pair in combinations(StoreSpec.KINDS, 2):
        if all(dig(spec, "stateStore", name) is not None for name in pair):
            yield ("spec", "stateStore"), f"{listed(pair)} are both named; keep one"
    if all(dig(spec, "stateStore", name) is not None for name in ("memory", "startFrom")):
        yield ("spec", "stateStore", "startFrom"), "a store in memory has no savepoint of another job; drop `startFrom`"
    yield from exactly_one(
        dig(spec, "stateStore", "postgres"), ("spec", "stateStore", "postgres"), ("dsn", "dsnSecretRef")
    )


def _check_formats(draft: JobDraft) -> Iterator[Finding]:
    for at, output in outputs(draft.data):
        named, registry = output.get("format"), output.get("schemaRegistry") is not None
        if named == "parquet" and output.get("file") is None:
            yield (*at, "format"), "parquet is a format of files; leave it out, or name file: {path: ...}"
        if named in _REGISTERED and output.get("kafka") is None:
            yield (*at, "format"), f"{named} is a format of Kafka; leave it out, or name kafka: {{topic: ...}}"
        elif named in _REGISTERED and not registry:
            yield (*at, "format"), f"{named} needs schemaRegistry: {{url: ...}} beside it, where its schema will be"
        elif registry and named not in _REGISTERED:
            yield (*at, "schemaRegistry"), "schemaRegistry belongs to format avro and protobuf; leave it out"
        typed = [name for name in ("postgres", *LAKES) if output.get(name)]
        if output.get("timestamps") == "rfc3339" and (named in ("parquet", *_REGISTERED) or typed):
            yield (*at, "timestamps"), "is of JSON; Parquet, Avro, Protobuf and tables have a type for timestamps"


def _check_several(draft: JobDraft) -> Iterator[Finding]:
    """Check what outputs must not share, and what they have to."""
    several = [(at, output) for at, output in outputs(draft.data) if at[1] == "outputs"]
    for i, repeated in repeats([output.get("name") for _, output in several]):
        yield (*several[i][0], "name"), f"two outputs are named {repeated!r}; rename one"
    for at, output in several:
        name = output.get("name")
        if isinstance(name, str) and (name in _RESERVED or name.startswith("state_")):
            yield (*at, "name"), f"{name!r} is a table of its own in `joinery sql`; choose another name"
    targets = [_target_of(output) for _, output in several]
    for i, target in enumerate(targets):
        if target is not None and (first := targets.index(target)) < i:
            name = several[first][1].get("name")
            yield several[i][0], f"it writes to {target[0]}, as {name!r} does; name another one"
    times = {at: output.get("windowTimes", "int64") for at, output in several}
    for at, kind in times.items():
        if kind != next(iter(times.values())):
            yield (*at, "windowTimes"), "is not that of the first output: a row has one type of times; write the same"
    for at, output in several:
        names = [dig(item, "as") or dig(item, "column") for item in items(output, "select")]
        for i, name in repeats(names):
            yield (*at, "select", i), f"two columns are named {name!r}; rename one with `as`"


def _check_key_order(draft: JobDraft) -> Iterator[Finding]:
    """Check that rows can be written by the keys of all topics with `keyOrder`."""
    ordered = [(at, output) for at, output in outputs(draft.data) if dig(output, "kafka", "keyOrder") is True]
    common: set[object] | None = None
    for at, output in ordered:
        pairs = [(dig(item, "as") or dig(item, "column"), dig(item, "column")) for item in items(output, "select")]
        in_rows = {name: column for name, column in pairs if isinstance(name, str)}
        key = {in_rows.get(name, name) for name in items(output, "kafka", "key") if isinstance(name, str)}
        if not key:
            yield (*at, "kafka", "keyOrder"), "orders the records of a key, and there is none; name `key`, or drop it"
            return
        if common is not None and not common & key:
            yield (
                (*at, "kafka", "keyOrder"),
                f"{output.get('name')!r} has no column of its key in common with the outputs before it that set "
                "keyOrder, and a row is written by one shard; drop it here, or write this topic with another job",
            )
            return
        common = key if common is None else common & key


def _target_of(output: Mapping[str, Any]) -> tuple[str, object] | None:
    """Say where an output writes, in words and with what they leave out. None: unknown, or a target that several
    outputs may have. A table counts without its database, which stored definitions do not name."""
    if (topic := dig(output, "kafka", "topic")) is not None:
        return f"topic {topic}", dig(output, "kafka", "bootstrapServers")
    if (table := dig(output, "postgres", "table")) is not None:
        return f"a table {table}", None
    if (folder := dig(output, "file", "path") or dig(output, "delta", "path")) is not None:
        return f"folder {folder}", None
    if (table := dig(output, "iceberg", "table")) is not None:
        catalog = dig(output, "iceberg", "catalog") or "default", dig(output, "iceberg", "properties")
        return f"Iceberg table {table}", catalog
    return None


def _check_rolled_apart(draft: JobDraft) -> Iterator[Finding]:
    """Reject rolling files of an output and dead letters in one folder: each would merge what the other holds."""
    dead = dig(draft.data, "spec", "deadLetter", "file")
    for output_at, output in outputs(draft.data):
        file = dig(output, "file")
        if dig(file, "path") is None or dig(file, "path") != dig(dead, "path"):
            continue
        for at, target in ((output_at, file), (("spec", "deadLetter"), dead)):
            for field in ("rollSize", "rollInterval"):
                if dig(target, field) is not None:
                    yield (*at, "file", field), "output and dead letters are in one folder; name two to hold files"
                    return


def _check_tables(draft: JobDraft) -> Iterator[Finding]:
    in_memory = dig(draft.data, "spec", "stateStore", "memory") is not None
    for at, output in outputs(draft.data):
        postgres = output.get("postgres")
        if isinstance(postgres, Mapping) and in_memory:
            reason = "the table would know more than the state"
            yield (
                (*at, "postgres"),
                f"a Postgres output cannot be exactly once with the memory store: {reason}; name a Postgres stateStore",
            )
        if isinstance(postgres, Mapping) and all(postgres.get(name) is not None for name in ("dsn", "dsnSecretRef")):
            yield (*at, "postgres", "dsn"), "dsn and dsnSecretRef are both named; keep one"
        for name in LAKES:
            if output.get(name) is None:
                continue
            if in_memory:
                reason = "a job that has lost its state would append all rows again"
                yield (*at, name), f"cannot be exactly once with the memory store: {reason}; drop `memory`"
            for aggregation in (("spec",), ("spec", "aggregate")):
                yield from into_lake(draft.data, aggregation, name)


def _check_dead_letter_address(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    target = dig(spec, "deadLetter", "kafka")
    if not isinstance(target, Mapping) or target.get("bootstrapServers") is not None:
        return
    addresses = [dig(source.data, "kafka", "bootstrapServers") for source in draft.sources]
    of_inputs = {address for address in addresses if isinstance(address, str)}
    named = any(dig(output, "kafka", "bootstrapServers") is not None for _, output in outputs(draft.data))
    if not named and len(of_inputs) != 1:
        facts = f"the inputs name {listed(sorted(of_inputs))}" if of_inputs else "nothing else names Kafka"
        yield ("spec", "deadLetter", "kafka"), f"it is not clear which Kafka is meant: {facts}; write bootstrapServers"


def _check_pods(draft: JobDraft) -> Iterator[Finding]:
    autoscale, executor = dig(draft.data, "spec", "autoscale"), dig(draft.data, "spec", "spark", "executor")
    least, most = dig(autoscale, "minInstances"), dig(autoscale, "maxInstances")
    if isinstance(least, int) and isinstance(most, int) and most < least:
        yield ("spec", "autoscale", "maxInstances"), f"is {most}, less than the {least} of `minInstances`"
    if most is not None and dig(executor, "maxInstances") is not None:
        facts = "it and spark.executor.maxInstances (Spark's own allocation) both decide on executors"
        yield ("spec", "autoscale"), f"{facts}; keep one"
    for part in ("driver", "executor"):
        at = ("spec", "spark", part, "podTemplate")
        template = dig(draft.data, *at)
        yield from exactly_one(template, at, ("name", "inline"))
        # The API server writes the default of `key` into every template.
        if isinstance(template, dict) and "inline" in template and template.get("key", "pod.yaml") != "pod.yaml":
            yield (*at, "key"), "is a key of a ConfigMap, and the pod stands in `inline`; leave it out"


RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (
    _check_one_target,
    _check_formats,
    _check_several,
    _check_key_order,
    _check_rolled_apart,
    _check_tables,
    _check_dead_letter_address,
    _check_pods,
)
