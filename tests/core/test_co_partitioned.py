"""Co-partitioned inputs against the oracle: random histories whose rows are where a partitioner puts their keys, run by
peers that see nothing of each other's rows."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples, rest_in_search
from core import harness
from core.cases import HISTORIES, Case, cases
from core.harness import PeersHost, Result, check_against_oracle, few_hashes, merge_early
from core.random_jobs import Job
from job import resources
from joinery_devkit.oracle import Oracle
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.core.pipeline.prepare import DecodedRecords, RecordChecks, prepare
from joinery_runtime.core.table import blob
from joinery_runtime.core.table.columns import HASH
from joinery_runtime.inspect.state_key import keys_of
from joinery_runtime.job import StreamJoin

KINDS = ("interval", "fixed", "session", "asof")
TYPES = {"string", "binary", "int32", "int64"}
# Of both inputs: the same number, a multiple, numbers that have a divisor only.
PARTITIONS = [(2, 2), (2, 2), (2, 4), (4, 6), (1, 1)]


@pytest.fixture(autouse=True)
def eager_compaction_of_packed_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment of a short history would be packed either."""
    merge_early(monkeypatch)
    monkeypatch.setattr(blob, "FEW_ROWS", 0)


@dataclass(frozen=True)
class CoPartitioned:
    """The job of a case with `coPartitioned: true`."""

    plain: Job
    job: StreamJoin

    def oracle(self) -> Oracle:
        return self.plain.oracle()


def key_columns(job: Job) -> list[tuple[str, str, str]]:
    """Input, column and type of each key column."""
    pairs = job.job.keys_of(job.job.joins[0])
    return [
        (ref.input, ref.column, job.job.input(ref.input).types[ref.column].name)
        for pair in pairs
        for ref in (pair.left, pair.right)
    ]


def has_known_key(job: Job) -> bool:
    """Of one step, by one key whose bytes are known."""
    columns = key_columns(job) if len(job.job.joins) == 1 else []
    return len(columns) == 2 and all(kind in TYPES for _, _, kind in columns)


def key_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def co_partitioned(case: Case, counts: tuple[int, int]) -> Case:
    """The same history with every row in its key's partition, by crc32; one without a key stays in any."""
    assert isinstance(case.job, Job)
    job = case.job.job
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for side in document["spec"]["inputs"]:
        side.pop("file", None)
        side["kafka"] = {"bootstrapServers": "nowhere:1", "topic": side["name"]}
    document["spec"]["joins"][0] |= {"coPartitioned": True, "partitioner": "crc32"}
    column = {name: column for name, column, _ in key_columns(case.job)}
    partitions = dict(zip(column, counts, strict=True))
    offsets: Counter[tuple[str, int]] = Counter()

    def moved(name: str, row: Any) -> Any:
        key = row.values[column[name]]
        number = row.partition if key is None else zlib.crc32(key_bytes(key))
        input_partition = (name, number % partitions[name])
        offsets[input_partition] += 1
        return replace(row, partition=input_partition[1], offset=offsets[input_partition] - 1)

    epochs = [
        replace(
            epoch,
            rows={name: [moved(name, row) for row in rows] for name, rows in epoch.rows.items()},
            added={},
            elsewhere={},
            job=None,
        )
        for epoch in case.epochs
    ]
    partition_numbers = {name: tuple(range(count)) for name, count in partitions.items()}
    return Case(CoPartitioned(case.job, StreamJoin.model_validate(document)), partition_numbers, tuple(epochs))


def search(kind: str, count: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Mapping[str, int]:
    """How many epochs the peers ran apart, and how many rows went out."""
    hosts: list[PeersHost] = []
    monkeypatch.setattr(harness, "PeersHost", lambda workers: hosts.append(PeersHost(workers)) or hosts[-1])
    seen: Counter[str] = Counter()

    @settings(HISTORIES, max_examples=examples(count))
    @given(
        case=cases(kind, eligible=has_known_key),
        counts=st.sampled_from(PARTITIONS),
        shards=st.lists(st.sampled_from([2, 4, 6, 8, 8, 3, 1]), min_size=9, max_size=9),
    )
    def every(case: Case, counts: tuple[int, int], shards: list[int]) -> None:
        moved = co_partitioned(case, counts)
        epochs = [replace(epoch, shards=shard_count) for epoch, shard_count in zip(moved.epochs, shards, strict=False)]
        results: list[Result] = check_against_oracle(replace(moved, epochs=tuple(epochs)), peers=2, **how)
        seen["rows"] += sum(len(result.rows) for result in results)

    every()
    return {"apart": sum(host.apart for host in hosts), "rows": seen["rows"]}


@pytest.mark.parametrize("kind", rest_in_search(KINDS, ("interval",)))
def test_peers_that_see_nothing_of_each_other_give_the_oracles_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = search(kind, 25, monkeypatch)
    assert seen["apart"] > 0
    assert seen["rows"] > 0


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_colliding_hashes_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(kind, 8, monkeypatch, hasher=few_hashes(2))["apart"] > 0


def test_the_command_line_looks_for_a_key_where_its_rows_are_stored() -> None:
    job = resources.job(("lateData: drop", "coPartitioned: true"))
    pipeline = compile_job(job)
    intake = pipeline.intake("orders")
    for name in ("a", "order-42", "\u00e9"):
        row = pa.RecordBatch.from_pylist([{"order_id": name, "ts": 5}], schema=intake.schema)
        checks = RecordChecks(co_partitions=6)
        stored = [prepare(intake, DecodedRecords(row, p, np.arange(1)), checks).rows.column(HASH) for p in range(6)]
        (address,) = [stored_hash for column in stored for stored_hash in column.to_pylist()]
        (key,) = keys_of(job, pipeline, [f"order_id={name}"], None, 6)
        assert key.hash == address
