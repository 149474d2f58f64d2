"""Reject an input whose key never has a value, before anything of the input is committed: most often the name or the
path of a column does not match the records, and no row would ever find another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.errors import MisreadInput
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.wording import listed

ENOUGH_RECORDS = 100

KeyParts = tuple[frozenset[str], ...]
"""Sets of an input's columns. Its key is null in a record in which all columns of one set are null."""


def key_parts(pipeline: Pipeline) -> dict[str, KeyParts]:
    """Return the columns on which the key of each source depends: of each input, or of each branch of a union. A set
    with a column that is the same for all records of a branch says nothing of the branch's key. A join's key is null if
    one of its columns is null; in the key of a group null is a value like others, unless nothing else is there."""
    by_input = _parts_by_input(pipeline)
    by_source: dict[str, KeyParts] = {}
    for spec in pipeline.inputs:
        parts = by_input.get(spec.name, ())
        if not spec.branches:
            by_source[spec.name] = parts
        for branch in spec.branches:
            by_source[branch.name] = tuple(part for part in parts if part <= branch.columns.keys())
    return by_source


def _parts_by_input(pipeline: Pipeline) -> dict[str, KeyParts]:
    parts: dict[str, set[frozenset[str]]] = {}
    inputs = {spec.name for spec in pipeline.inputs}
    for step in pipeline.steps:
        for side in step.sides:
            intake = side.intake
            by_input: dict[str, list[frozenset[str]]] = {}
            for key in intake.keys:
                name, _, column = key.partition(".") if intake.chained else (side.time, "", key)
                columns_read = frozenset[str]()
                if name in inputs:
                    columns_read = _read_columns(pipeline, name, column, grouped=intake.grouped)
                by_input.setdefault(name, []).append(columns_read)
            if intake.grouped and intake.chained and (len(by_input) > 1 or not by_input.keys() <= inputs):
                continue  # groups of joined rows that have a value of another input, or one that a step has computed
            for name, columns in by_input.items():
                needed = [frozenset().union(*columns)] if intake.grouped else columns
                parts.setdefault(name, set()).update(part for part in needed if part)
    return {name: tuple(sorted(key, key=sorted)) for name, key in parts.items()}


def _read_columns(pipeline: Pipeline, name: str, column: str, *, grouped: bool) -> frozenset[str]:
    """Return the columns of records that a key column is made of; none if a join's key has a value without them, as
    `COALESCE(k, '')` has."""
    intake = pipeline.intake(name)
    computed = dict(intake.computed)
    if column not in computed:
        return frozenset({column})
    expression = computed[column]
    if not grouped and not expression.is_null_of_nulls(intake.schema):
        return frozenset()
    return frozenset(ref.column for ref in expression.columns)


def missing_part(parts: KeyParts, empty: frozenset[str] | None) -> frozenset[str] | None:
    """Return a set of columns without which the key is null, if all of them are `empty`."""
    return None if empty is None else next((part for part in parts if part <= empty), None)


@dataclass(frozen=True, slots=True)
class ColumnsRead:
    """What a task has read of a source (an input or a union's branch) of which nothing is committed: how many `records`
    have a row, and which columns are `empty`, null in all of them (None: there are no such records). `paths` are those
    of the values in one of them, if the key looks wrong. `lowest` is the lowest event time with its partition,
    `highest` the highest.

    Each shard gets those of all tasks, so each judges the whole epoch, before it writes anything."""

    source: str
    records: int
    empty: frozenset[str] | None
    paths: tuple[str, ...] = ()
    lowest: tuple[int, PartitionRef] | None = None
    highest: int | None = None

    @classmethod
    def of(cls, name: str, reads: Sequence[PartitionRead]) -> ColumnsRead:
        """Sum up the ranges that a task has read of a source."""
        return cls(
            name,
            sum(read.decoded for read in reads),
            _empty_in_all(read.empty for read in reads),
            next((read.paths for read in reads if read.paths), ()),
            min(((read.lowest, read.partition) for read in reads if read.lowest is not None), default=None),
            max((read.highest for read in reads if read.highest is not None), default=None),
        )


def by_source(reads: Iterable[ColumnsRead]) -> dict[str, list[ColumnsRead]]:
    """Sort what all tasks have read by its source."""
    sources: dict[str, list[ColumnsRead]] = {}
    for read in reads:
        sources.setdefault(read.source, []).append(read)
    return dict(sorted(sources.items()))


def _empty_in_all(columns: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    """Return the columns that are null in all records; None if there are no records."""
    empty_by_read = [empty for empty in columns if empty is not None]
    return frozenset.intersection(*empty_by_read) if empty_by_read else None


def reject_null_keys(reads: Iterable[ColumnsRead], keys: Mapping[str, KeyParts], pipeline: Pipeline) -> None:
    """Raise MisreadInput if the key of a source is null in each of at least ENOUGH_RECORDS records. `reads` are those
    of the whole epoch, `keys` those of sources of which nothing is committed."""
    for name, source_reads in by_source(reads).items():
        empty = _empty_in_all(read.empty for read in source_reads)
        part, records = missing_part(keys.get(name, ()), empty), sum(read.records for read in source_reads)
        if part is not None and records >= ENOUGH_RECORDS:
            paths = min((read.paths for read in source_reads if read.paths), default=())
            columns = sorted(pipeline.message_name(name, column) for column in part)
            example = f"; a record has {', '.join(paths)}" if paths else ""
            are = "columns {} are" if len(columns) > 1 else "column {} is"
            raise MisreadInput(
                f"Input {name}: the key has no value in any of the {records:,} records read so far",
                facts=f"{are.format(listed(columns))} null in all of them{example}; nothing of the input was committed",
                todo="Correct the column's name or path in the schema; a value inside of an object is written as "
                "path: customer.id, of an array as path: items[0].sku. If the records are right, start the job once a "
                "record has the key and, if more come before it, with a larger trigger.maxRecordsPerEpoch; or leave "
                f"those without it out: where: {columns[0]} IS NOT NULL",
            )
