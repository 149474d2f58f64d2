"""Finds the key that `joinery state show --key COLUMN=VALUE` asks for: the steps that have such a key, and its values
there.

For a job of sessions the key is a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.partitioning import key_partitions, partition_addresses
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.job import Job, KeyPair, StreamJoin
from joinery_runtime.job.model.references import ComputedKey, computed_key, inputs_of, read_key


@dataclass(frozen=True, slots=True)
class StepKey:
    """The key in one step (0 is the first). `values` holds, per side (sessions have one), an array of one value for
    each key column."""

    step: int
    hash: int
    values: tuple[tuple[pa.Array, ...], ...]
    shown: Mapping[str, Any]


def keys_of(
    job: Job, pipeline: Pipeline, texts: Sequence[str], number: int | None, co_partitions: int = 0
) -> list[StepKey]:
    """Return the keys that these COLUMN=VALUE texts name. `number` (1 is the first) asks for one step. `co_partitions`
    is how many partitions the job's inputs have in common in its state. Raises JoineryError, which says what is wrong
    with the texts."""
    if pipeline.last.kind.stateless:
        raise JoineryError(
            f"Job {job.name} has no keys",
            facts="it keeps no rows, because each record makes its row by itself",
            todo="`joinery why --record` tells what became of a record",
        )
    if isinstance(job, StreamJoin) and sum(len(step.sides) == 1 for step in pipeline.steps) > 1:
        return _of_steps_behind_joins(job, pipeline, texts, number)
    if not isinstance(job, StreamJoin) or not job.joins:
        return [group_key(job, pipeline.last, texts, number)]
    if len(pipeline.last.sides) == 1:
        return _of_joins_and_groups(job, pipeline, texts, number)
    keys = step_keys(job, pipeline, texts, number)
    if not co_partitions:
        return keys
    addressed_keys = []
    for key in keys:
        partition = key_partitions(key.values[0][0], job.joins[key.step].partitioner, co_partitions)
        address = partition_addresses(partition, np.array([key.hash], dtype=np.uint64), co_partitions)
        addressed_keys.append(replace(key, hash=int(address[0])))
    return addressed_keys


def _of_steps_behind_joins(
    job: StreamJoin, pipeline: Pipeline, texts: Sequence[str], number: int | None
) -> list[StepKey]:
    """Return the keys of the joins, if there are any, and of each step behind them."""
    *before, last = pipeline.steps
    of_last = number in {None, last.number + 1} and _group_names(last.sides[0], texts) is not None
    keys = [group_key(job, last, texts, number)] if of_last or number == last.number + 1 else []
    if number == last.number + 1:
        return keys
    try:
        return [*keys_of(job, replace(pipeline, steps=tuple(before)), texts, number), *keys]
    except JoineryError:
        if not keys:
            raise
        return keys


def _of_joins_and_groups(
    job: StreamJoin, pipeline: Pipeline, texts: Sequence[str], number: int | None
) -> list[StepKey]:
    """Return the keys of the joins and of the aggregate or ranking behind them."""
    last = pipeline.last
    groups = _group_names(last.sides[0], texts)
    of_groups = groups is not None and number in {None, last.number + 1}
    keys = [group_key(job, last, texts, number)] if of_groups or number == last.number + 1 else []
    if number == last.number + 1:
        return keys
    try:
        return [*step_keys(job, pipeline, texts, number), *keys]
    except JoineryError as error:
        if keys:
            return keys
        groups_text = f"; that of step {last.number + 1} is {', '.join(last.sides[0].intake.keys)}"
        raise JoineryError(error.summary, facts=f"{error.facts}{groups_text}", todo=error.todo) from None


def step_keys(job: StreamJoin, pipeline: Pipeline, texts: Sequence[str], number: int | None) -> list[StepKey]:
    """Return the steps whose whole key these COLUMN=VALUE texts name; `number` (1 is the first) asks for one of them.
    Raises JoineryError, which says what is wrong with the texts."""
    steps = [index for index, step in enumerate(job.joins) if step.keys and number in {None, index + 1}]
    if not steps and number is not None and not 1 <= number <= len(job.joins):
        raise JoineryError(f"Job {job.name} has no step {number}", facts=f"it has {len(job.joins)}")
    if not steps:
        subject = "it joins" if number is None else f"step {number} joins"
        raise JoineryError(
            f"Job {job.name} has no such key", facts=f"{subject} on time only", todo="See `joinery state stats` instead"
        )
    texts_by_column = _texts_by_column(job, texts)
    complete_keys = []
    for index in steps:
        pairs = job.keys_of(job.joins[index])
        indexes = [_pair_index(pairs, name) for name in texts_by_column]
        # The texts may name other columns, or not all columns of the key.
        if len(indexes) == len(pairs) and {*indexes} == {*range(len(pairs))}:
            values = [value for _, value in sorted(zip(indexes, texts_by_column.values(), strict=True))]
            complete_keys.append(_step_key(job, pipeline, index, values))
    if not complete_keys:
        raise JoineryError(
            f"--key {' '.join(texts)} cannot be used",
            facts=_keys_text(job, steps),
            todo="Give --key COLUMN=VALUE for each column of one of these keys",
        )
    return complete_keys


def _texts_by_column(job: StreamJoin, texts: Sequence[str]) -> dict[str, str]:
    pairs = [pair for step in job.joins for pair in job.keys_of(step)]
    texts_by_column: dict[str, str] = {}
    for text in texts:
        name, equals, value = _split(pairs, text)
        if not equals or name in texts_by_column:
            raise JoineryError(
                f"--key {text} cannot be used",
                facts=_keys_text(job, range(len(job.joins))),
                todo="Give --key COLUMN=VALUE once for each column of a key",
            )
        texts_by_column[name] = value
    return texts_by_column


def _split(pairs: Sequence[KeyPair], text: str) -> tuple[str, str, str]:
    """COLUMN=VALUE in its parts. A computed key may hold the sign itself, as CASE does."""
    parts = text.split("=")
    for count in range(1, len(parts)):
        name = "=".join(parts[:count])
        if _pair_index(pairs, name) is not None:
            return name, "=", "=".join(parts[count:])
    return text.partition("=")


def _pair_index(pairs: Sequence[KeyPair], name: str) -> int | None:
    """Return the index of the pair that a name means: `input.column` or a computed key as the job writes it, or
    `column`, looked up on the left side first."""
    refs = [(pair.left, index) for index, pair in enumerate(pairs)]
    refs += [(pair.right, index) for index, pair in enumerate(pairs)]
    spelled = [index for ref, index in refs if str(ref) == name] + [index for ref, index in refs if ref.column == name]
    if not spelled and any(isinstance(ref, ComputedKey) for ref, _ in refs):
        tree = read_key(name, {})
        if isinstance(tree, exp.Expr) and len(inputs_of(tree)) == 1:
            written = computed_key(tree).text
            spelled = [index for ref, index in refs if written in {str(ref), ref.column}]
    return spelled[0] if spelled else None


def _step_key(job: StreamJoin, pipeline: Pipeline, index: int, texts: Sequence[str]) -> StepKey:
    pairs, sides = job.keys_of(job.joins[index]), pipeline.steps[index].sides
    fields = zip(*([side.intake.schema.field(name) for name in side.intake.keys] for side in sides), strict=True)
    columns = []
    for pair, (left, right), text in zip(pairs, fields, texts, strict=True):
        # In the wider of the pair's types (V2): a record of one side may have a key outside the range of the other
        # side's type. That of a computed key is what the expression gives.
        field, ref = (right, pair.right) if right.type == pa.int64() else (left, pair.left)
        columns.append(_read_value(field.with_name(ref.column), text, ref.input))
    values = tuple(columns)
    table = pa.table(dict(zip((_short_name(pair, index) for pair in pairs), values, strict=True)))
    return StepKey(index, int(key_hash(values)[0]), (values, values), json.loads(rows_to_json(table)[0]))


def _short_name(pair: KeyPair, step: int) -> str:
    return pair.left.column if step == 0 else str(pair.left)


def _read_value(field: pa.Field, text: str, name: str) -> pa.Array:
    """Return the value, read as if from a JSON record of that input (V3)."""
    kind = field.type
    unquoted = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    value = text if unquoted else json.dumps(text)
    record = f"{{{json.dumps(field.name)}:{value}}}".encode()
    decoded = JsonDecoder(pa.schema([field])).decode(pa.array([record], pa.binary()))
    rows = decoded.rows.combine_chunks()
    if decoded.bad or rows.column(0).null_count:
        raise JoineryError(
            f"The key {field.name}={text} cannot be read",
            facts=f"as input {name} declares it: {decoded.bad[0].reason if decoded.bad else 'it is null'}",
            todo="Write the values as they are in the records",
        )
    return rows.column(0).combine_chunks()


def _keys_text(job: StreamJoin, steps: Sequence[int]) -> str:
    if len(job.joins) == 1:
        return f"the key of job {job.name} is {_key_columns(job, 0)}"
    keys = (f"of step {index + 1} {_key_columns(job, index)}" for index in steps if job.joins[index].keys)
    return f"the keys of job {job.name} are {'; '.join(keys)}"


def _key_columns(job: StreamJoin, index: int) -> str:
    return (
        ", ".join(_short_name(pair, index) for pair in job.keys_of(job.joins[index])) or "none, it joins on time only"
    )


# --- groups of sessions -----------------------------------------------------------------------------------------------


def group_key(job: Job, step: StepSpec, texts: Sequence[str], number: int | None) -> StepKey:
    """Return the group that these texts name, by columns of inputs and computed ones: COLUMN=VALUE, or COLUMN alone for
    no value. `number` can only be that of the step. Raises JoineryError, which says what is wrong with the texts."""
    if number not in {None, step.number + 1}:
        raise JoineryError(f"Job {job.name} has no step {number}", facts=f"it has {step.number + 1}")
    intake = step.sides[0].intake
    groups, texts_by_column = intake.keys, _group_names(step.sides[0], texts)
    if not groups:
        raise JoineryError(
            f"Job {job.name} has no such key",
            facts="its windows have no groups",
            todo="See `joinery state stats` instead, or ask for a record with `joinery why --record`",
        )
    if texts_by_column is None:
        raise JoineryError(
            f"--key {' '.join(texts)} cannot be used",
            facts=f"the rows of job {job.name} are grouped by {', '.join(groups)}",
            todo="Give --key COLUMN=VALUE once for each of these columns, or COLUMN alone where it has no value (NULL)",
        )
    columns = []
    for name in groups:
        field, text = intake.schema.field(name), texts_by_column[name]
        if text is None:
            columns.append(pa.nulls(1, field.type))
        elif text == "NaN" and pa.types.is_floating(field.type):
            columns.append(pa.array([float("nan")], field.type))
        else:
            columns.append(_read_value(field, text, step.sides[0].time))
    values = tuple(columns)
    shown = json.loads(rows_to_json(pa.table(dict(zip(groups, values, strict=True))))[0])
    return StepKey(step.number, int(key_hash(values)[0]), (values,), shown)


def _group_names(side: SideSpec, texts: Sequence[str]) -> dict[str, str | None] | None:
    """Return the texts' values by group; None unless they name each group once. A column of an input may stand alone
    where no other group has its name, and with the input's name before it."""
    groups, chained = side.intake.keys, side.intake.chained
    aliases = [name.partition(".")[2] if chained else f"{side.time}.{name}" for name in groups]
    names = {alias: name for alias, name in zip(aliases, groups, strict=True) if aliases.count(alias) == 1}
    names |= {name: name for name in groups}
    read = [(names.get(name), value if equals else None) for name, equals, value in (t.partition("=") for t in texts)]
    named = {name: value for name, value in read if name is not None}
    return named if len(read) == len(named) == len(groups) else None
