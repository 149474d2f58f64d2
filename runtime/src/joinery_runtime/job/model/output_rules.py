"""Cross-field rules of outputs, dead letters, the state store and autoscaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from joinery_runtime.job.model.draft import Finding, JobDraft, Loc, dig, exactly_one, items
from joinery_runtime.job.model.outputs import LAKES, DeadLetter, Output, StoreSpec
from joinery_runtime.job.model.wording import listed, suggestion

_REGISTERED = ("avro", "protobuf")  # formats with a schema in a registry


def unknown_columns(draft: JobDraft, columns: Sequence[str] | None) -> Iterator[Finding]:
    """Finds keys and headers that do not name an output column. `columns` are all output columns; None while a mistake
    hides one."""
    if columns is None:
        return
    for at, name in named_columns(draft.data):
        if isinstance(name, str) and name not in columns:
            yield (
                at,
                f"{name!r} is not an output column{suggestion(name, columns)}; output columns are {listed(columns)}",
            )


def named_columns(data: object) -> Iterator[tuple[Loc, object]]:
    """Yields the places in a resource that name an output column, and the names."""
    output = dig(data, "spec", "output")
    for steps in (("kafka", "key"), ("postgres", "upsertKey")):
        for i, name in enumerate(items(output, *steps)):
            yield ("spec", "output", *steps, i), name
    headers = dig(output, "kafka", "headers")
    if isinstance(headers, Mapping):
        yield from ((("spec", "output", "kafka", "headers", header), name) for header, name in headers.items())


def late_without_dead_letters(draft: JobDraft, at: Loc) -> Iterator[Finding]:
    """Reject `lateData: dlq` without dead letters; `at` is the path of the `lateData`."""
    if dig(draft.data, *at) == "dlq" and dig(draft.data, "spec", "deadLetter") is None:
        yield at, "dlq writes late records to the dead letters, and the job has none; name `deadLetter`, or write drop"


def _one_target(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    yield from exactly_one(dig(spec, "output"), ("spec", "output"), Output.KINDS)
    yield from exactly_one(dig(spec, "deadLetter"), ("spec", "deadLetter"), DeadLetter.KINDS)
    for pair in combinations(StoreSpec.KINDS, 2):
        if all(dig(spec, "stateStore", name) is not None for name in pair):
            yield ("spec", "stateStore"), f"{listed(pair)} are both named; keep one"
    if all(dig(spec, "stateStore", name) is not None for name in ("memory", "startFrom")):
        yield ("spec", "stateStore", "startFrom"), "a store in memory has no savepoint of another job; drop `startFrom`"
    yield from exactly_one(
        dig(spec, "stateStore", "postgres"), ("spec", "stateStore", "postgres"), ("dsn", "dsnSecretRef")
    )


def _formats(draft: JobDraft) -> Iterator[Finding]:
    output = dig(draft.data, "spec", "output")
    if dig(output, "format") == "parquet" and dig(output, "file") is None:
        yield ("spec", "output", "format"), "parquet is a format of files; leave it out, or name file: {path: ...}"
    named, registry = dig(output, "format"), dig(output, "schemaRegistry") is not None
    if named in _REGISTERED and dig(output, "kafka") is None:
        yield ("spec", "output", "format"), f"{named} is a format of Kafka; leave it out, or name kafka: {{topic: ...}}"
    elif named in _REGISTERED and not registry:
        needs = "needs schemaRegistry: {url: ...} beside it, where its schema will be"
        yield ("spec", "output", "format"), f"{named} {needs}"
    elif registry and named not in _REGISTERED:
        yield ("spec", "output", "schemaRegistry"), "schemaRegistry belongs to format avro and protobuf; leave it out"
    typed = [name for name in ("postgres", *LAKES) if dig(output, name)]
    if dig(output, "timestamps") == "rfc3339" and (named in ("parquet", *_REGISTERED) or typed):
        reason = "is of JSON; Parquet, Avro, Protobuf and tables have a type for timestamps"
        yield ("spec", "output", "timestamps"), reason


def _rolled_apart(draft: JobDraft) -> Iterator[Finding]:
    """Reject rolling files of output and dead letters in one folder: each would merge what the other holds."""
    spec = dig(draft.data, "spec")
    output, dead = dig(spec, "output", "file"), dig(spec, "deadLetter", "file")
    if dig(output, "path") is None or dig(output, "path") != dig(dead, "path"):
        return
    for at, target in (("output", output), ("deadLetter", dead)):
        for field in ("rollSize", "rollInterval"):
            if dig(target, field) is not None:
                yield ("spec", at, "file", field), "output and dead letters are in one folder; name two to hold files"
                return


def _lakes(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    for name in LAKES:
        if dig(spec, "output", name) is None:
            continue
        if dig(spec, "stateStore", "memory") is not None:
            reason = "a job that has lost its state would append all rows again"
            yield ("spec", "output", name), f"cannot be exactly once with the memory store: {reason}; drop `memory`"
        if dig(spec, "lateData") == "reopen":
            facts = f"reopen replaces rows that are out already, and {name} tables are only appended to"
            yield ("spec", "lateData"), f"{facts}; write drop or dlq, or write to output.postgres"


def _postgres(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    output, at = dig(spec, "output", "postgres"), ("spec", "output", "postgres")
    if not isinstance(output, Mapping):
        return
    if dig(spec, "stateStore", "memory") is not None:
        reason = "the table would know more than the state"
        yield (
            at,
            f"a Postgres output cannot be exactly once with the memory store: {reason}; name a Postgres stateStore",
        )
    if all(output.get(name) is not None for name in ("dsn", "dsnSecretRef")):
        yield (*at, "dsn"), "dsn and dsnSecretRef are both named; keep one"


def _dead_letter_address(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    target = dig(spec, "deadLetter", "kafka")
    if not isinstance(target, Mapping) or target.get("bootstrapServers") is not None:
        return
    addresses = [dig(source.data, "kafka", "bootstrapServers") for source in draft.inputs]
    of_inputs = {address for address in addresses if isinstance(address, str)}
    if dig(spec, "output", "kafka", "bootstrapServers") is None and len(of_inputs) != 1:
        facts = f"the inputs name {listed(sorted(of_inputs))}" if of_inputs else "nothing else names Kafka"
        yield ("spec", "deadLetter", "kafka"), f"it is not clear which Kafka is meant: {facts}; write bootstrapServers"


def _autoscale(draft: JobDraft) -> Iterator[Finding]:
    spec, at = dig(draft.data, "spec"), ("spec", "autoscale")
    least, most = dig(spec, *at[1:], "minInstances"), dig(spec, *at[1:], "maxInstances")
    if isinstance(least, int) and isinstance(most, int) and most < least:
        yield (*at, "maxInstances"), f"is {most}, less than the {least} of `minInstances`"
    if most is not None and dig(spec, "spark", "executor", "maxInstances") is not None:
        yield at, "it and spark.executor.maxInstances (Spark's own allocation) both decide on executors; keep one"


RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (
    _one_target,
    _formats,
    _rolled_apart,
    _postgres,
    _lakes,
    _dead_letter_address,
    _autoscale,
)
