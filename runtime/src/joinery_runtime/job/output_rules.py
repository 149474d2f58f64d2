"""Cross-field rules of `spec.select` and outputs (J10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joinery_runtime.job.parts import (
    Finding,
    Parts,
    dig,
    exactly_one,
    items,
    reference,
    repeats,
    unknown_column,
)
from joinery_runtime.job.steps import output_prefixes
from joinery_runtime.job.wording import listed, suggestion


def _select(parts: Parts) -> Iterator[Finding]:
    for i, item in enumerate(items(parts.data, "spec", "select")):
        text, at = dig(item, "column"), ("spec", "select", i, "column")
        found = reference(text)
        if isinstance(text, str) and text and found is None:
            yield at, f"{text!r} does not name its input; write <input>.{text}"
        if found is None or not parts.all_named:
            continue
        side = parts.by_name.get(found.input)
        if side is None:
            hint = suggestion(found.input, parts.by_name)
            yield at, f"{found.input!r} is not an input{hint}; inputs are {listed(parts.by_name)}"
        elif side.types is not None and found.column not in side.types:
            yield at, unknown_column(found.column, side)


def _output_names(parts: Parts) -> Iterator[Finding]:
    select = items(parts.data, "spec", "select")
    names = [_output_name(item) for item in select]
    for i, name in repeats(names):
        yield ("spec", "select", i), f"two output columns are named {name!r} (rule J10); rename one with `as`"
    for i, output in enumerate(names):
        if output is not None and output.startswith("$"):
            yield ("spec", "select", i), f"{output!r} starts with `$`, which engine columns do; rename it with `as`"


def _output_columns_known(parts: Parts) -> Iterator[Finding]:
    known = _all_output_names(parts)
    if known is None:
        return
    for steps in (("kafka", "key"), ("postgres", "upsertKey")):
        for i, name in enumerate(items(parts.data, "spec", "output", *steps)):
            if isinstance(name, str) and name not in known:
                hint = suggestion(name, known)
                at = ("spec", "output", *steps, i)
                yield at, f"{name!r} is not an output column{hint}; output columns are {listed(known)}"


def _one_target(parts: Parts) -> Iterator[Finding]:
    spec = dig(parts.data, "spec")
    yield from exactly_one(dig(spec, "output"), ("spec", "output"), ("kafka", "postgres", "file"))
    yield from exactly_one(dig(spec, "deadLetter"), ("spec", "deadLetter"), ("kafka", "file"))
    if dig(spec, "stateStore", "postgres") is not None and dig(spec, "stateStore", "memory") is not None:
        yield ("spec", "stateStore"), "postgres and memory are both named; keep one"
    yield from exactly_one(
        dig(spec, "stateStore", "postgres"), ("spec", "stateStore", "postgres"), ("dsn", "dsnSecretRef")
    )


def _postgres_beside_the_state(parts: Parts) -> Iterator[Finding]:
    spec = dig(parts.data, "spec")
    output, at = dig(spec, "output", "postgres"), ("spec", "output", "postgres")
    if not isinstance(output, Mapping):
        return
    why = "its rows are committed in one transaction with the state"
    if dig(spec, "stateStore", "memory") is not None:
        yield at, f"a Postgres output cannot be exactly once with the memory store: {why}; name a Postgres stateStore"
    elif output.get("dsn") is not None and output["dsn"] != dig(spec, "stateStore", "postgres", "dsn"):
        yield (
            (*at, "dsn"),
            f"an output in another database than the state's cannot be exactly once: {why}; "
            "leave dsn out and let stateStore.postgres name that database",
        )


def _dead_letter_address(parts: Parts) -> Iterator[Finding]:
    spec = dig(parts.data, "spec")
    target = dig(spec, "deadLetter", "kafka")
    if not isinstance(target, Mapping) or target.get("bootstrapServers") is not None:
        return
    addresses = [dig(part.data, "kafka", "bootstrapServers") for part in parts.inputs]
    of_inputs = {address for address in addresses if isinstance(address, str)}
    if dig(spec, "output", "kafka", "bootstrapServers") is None and len(of_inputs) != 1:
        facts = f"the inputs name {listed(sorted(of_inputs))}" if of_inputs else "nothing else names Kafka"
        yield ("spec", "deadLetter", "kafka"), f"it is not clear which Kafka is meant: {facts}; write bootstrapServers"


def _output_name(item: object) -> str | None:
    renamed, source = dig(item, "as"), reference(dig(item, "column"))
    if isinstance(renamed, str):
        return renamed
    return source.column if source is not None else None


def _all_output_names(parts: Parts) -> list[str] | None:
    if dig(parts.data, "spec", "select") is not None:
        names = [_output_name(item) for item in items(parts.data, "spec", "select")]
        return [name for name in names if name is not None] if None not in names else None
    if not parts.all_named or any(part.types is None for part in parts.inputs):
        return None
    prefixes = output_prefixes([part.name or "" for part in parts.inputs])
    sides = zip(prefixes, parts.inputs, strict=True)
    return [f"{prefix}_{column}" for prefix, part in sides for column in part.types or ()]


RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    _select,
    _output_names,
    _output_columns_known,
    _one_target,
    _postgres_beside_the_state,
    _dead_letter_address,
)
