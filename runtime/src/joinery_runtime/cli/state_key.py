"""The key that `joinery state show --key COLUMN=VALUE` asks for: of which steps it is one, and its values there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from joinery_runtime.core.keyhash import key_hash
from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import KeyPair, Reference, StreamJoin
from joinery_runtime.sinks.encode import rows_to_json
from joinery_runtime.sources import JsonDecoder

_BARE = {"boolean", "int32", "int64", "float", "double"}  # JSON values without quotes


@dataclass(frozen=True, slots=True)
class StepKey:
    """The key in one step (0 is the first): `values` holds per side an array of one value for each key column."""

    step: int
    hash: int
    values: tuple[tuple[pa.Array, ...], tuple[pa.Array, ...]]
    shown: Mapping[str, Any]


def step_keys(job: StreamJoin, texts: Sequence[str], number: int | None) -> list[StepKey]:
    """The steps whose key these COLUMN=VALUE texts are, all of it; `number` (1 is the first) asks for one of them.
    Raises JoineryError that says what is wrong with the texts."""
    steps = [index for index, step in enumerate(job.joins) if step.keys and number in {None, index + 1}]
    if not steps:
        raise _no_key(job, number)
    given = _given(job, texts)
    found = {index: _named(job.keys_of(job.joins[index]), given) for index in steps}
    whole = [_step_key(job, index, values) for index, values in found.items() if values is not None]
    if not whole:
        raise _not_a_key(job, texts, steps)
    return whole


def _given(job: StreamJoin, texts: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in given:
            raise JoineryError(
                f"--key {text} cannot be used",
                facts=_keys_text(job, range(len(job.joins))),
                todo="Give --key COLUMN=VALUE once for each column of a key",
            )
        given[name] = value
    return given


def _named(pairs: Sequence[KeyPair], given: Mapping[str, str]) -> list[str] | None:
    """The values in the key's order; None if the texts name other columns, or not all of these."""
    places = [_place(pairs, name) for name in given]
    if None in places or sorted(place for place in places if place is not None) != list(range(len(pairs))):
        return None
    return [value for _, value in sorted(zip(places, given.values(), strict=True))]


def _place(pairs: Sequence[KeyPair], name: str) -> int | None:
    """Which pair a name means: `input.column`, or `column`, of the left side first."""
    refs = [(pair.left, index) for index, pair in enumerate(pairs)]
    refs += [(pair.right, index) for index, pair in enumerate(pairs)]
    spelled = [index for ref, index in refs if str(ref) == name] + [index for ref, index in refs if ref.column == name]
    return spelled[0] if spelled else None


def _step_key(job: StreamJoin, index: int, values: Sequence[str]) -> StepKey:
    pairs = job.keys_of(job.joins[index])
    left = tuple(_value(job, pair.left, text) for pair, text in zip(pairs, values, strict=True))
    right = tuple(_value(job, pair.right, text) for pair, text in zip(pairs, values, strict=True))
    table = pa.table(dict(zip((_short(pair, index) for pair in pairs), left, strict=True)))
    return StepKey(index, int(key_hash(left)[0]), (left, right), json.loads(rows_to_json(table)[0]))


def _short(pair: KeyPair, step: int) -> str:
    return pair.left.column if step == 0 else str(pair.left)


def _value(job: StreamJoin, ref: Reference, text: str) -> pa.Array:
    """The value read as in a JSON record of that input (V3)."""
    side = job.input(ref.input)
    value = text if side.types[ref.column].name in _BARE else json.dumps(text)
    schema = arrow_schema(column for column in side.columns if column.name == ref.column)
    decoded = JsonDecoder(schema).decode(pa.array([f"{{{json.dumps(ref.column)}:{value}}}".encode()], pa.binary()))
    rows = decoded.rows.combine_chunks()
    if decoded.bad or rows.column(0).null_count:
        raise JoineryError(
            f"The key {ref.column}={text} cannot be read",
            facts=f"as input {side.name} declares it: {decoded.bad[0].reason if decoded.bad else 'it is null'}",
            todo="Write the values as they are in the records",
        )
    return rows.column(0).combine_chunks()


def _not_a_key(job: StreamJoin, texts: Sequence[str], steps: Sequence[int]) -> JoineryError:
    return JoineryError(
        f"--key {' '.join(texts)} cannot be used",
        facts=_keys_text(job, steps),
        todo="Give --key COLUMN=VALUE for each column of one of these keys",
    )


def _no_key(job: StreamJoin, number: int | None) -> JoineryError:
    if number is not None and not 1 <= number <= len(job.joins):
        return JoineryError(f"Job {job.name} has no step {number}", facts=f"it has {len(job.joins)}")
    which = "it joins" if number is None else f"step {number} joins"
    return JoineryError(
        f"Job {job.name} has no such key", facts=f"{which} on time only", todo="See `joinery state stats` instead"
    )


def _keys_text(job: StreamJoin, steps: Sequence[int]) -> str:
    if len(job.joins) == 1:
        return f"the key of job {job.name} is {_columns(job, 0)}"
    keys = (f"of step {index + 1} {_columns(job, index)}" for index in steps if job.joins[index].keys)
    return f"the keys of job {job.name} are {'; '.join(keys)}"


def _columns(job: StreamJoin, index: int) -> str:
    return ", ".join(_short(pair, index) for pair in job.keys_of(job.joins[index])) or "none, it joins on time only"
