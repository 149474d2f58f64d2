"""How an epoch's work is shared out, and what the threads of a process do when one of them fails."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.connectors.source import Range
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.table.keyhash import shard_starts
from joinery_runtime.core.table.partitioning import partition_addresses
from joinery_runtime.engine.messages import EpochWork, PartitionRead, ReadSummary, ShardSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.read_report import ReadReport
from joinery_runtime.engine.tasks import Threads, WorkerProcesses, read_own_rows, run_share
from joinery_runtime.engine.worker import Block, RowBlock, Sent
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef

PATIENCE_S = 60


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    threads = Threads(request.param)
    yield threads
    threads.close()


def counting(first: int, count: int) -> Iterator[int]:
    yield from range(first, first + count)


def test_all_that_the_parts_give_comes_once_and_each_parts_in_its_order(threads: Threads) -> None:
    merged = list(threads.merge([counting(part * 1000, 100) for part in range(7)]))
    assert sorted(merged) == [part * 1000 + n for part in range(7) for n in range(100)]
    for part in range(7):
        own = [n for n in merged if n // 1000 == part]
        assert own == sorted(own)


def test_nothing_to_do_is_done(threads: Threads) -> None:
    assert list(threads.merge([])) == []


def test_parts_run_at_the_same_time() -> None:
    """Each of the two waits for the other one."""
    threads, met = Threads(2), threading.Barrier(2, timeout=PATIENCE_S)

    def meeting(name: str) -> Iterator[str]:
        met.wait()
        yield name

    assert sorted(threads.merge([meeting("a"), meeting("b")])) == ["a", "b"]
    threads.close()


def test_an_error_is_raised_when_no_part_runs_any_more(threads: Threads) -> None:
    running, ended = threading.Event(), []

    def failing() -> Iterator[int]:
        if threads.count > 1:
            assert running.wait(PATIENCE_S)
        yield 1
        raise ValueError("as it was raised")

    def endless() -> Iterator[int]:
        try:
            while True:
                running.set()
                yield 0
        finally:
            ended.append(True)

    parts = [failing(), endless(), *(counting(0, 10) for _ in range(5))]
    with pytest.raises(ValueError, match="as it was raised"):
        list(threads.merge(parts))
    assert ended == ([True] if threads.count > 1 else [])


def test_who_stops_taking_stops_the_parts() -> None:
    threads, ended, running = Threads(2), [], (threading.Event(), threading.Event())

    def endless(runs: threading.Event) -> Iterator[int]:
        try:
            while True:
                runs.set()
                yield 0
        finally:
            ended.append(True)

    taking = threads.merge([endless(runs) for runs in running])
    assert next(taking) == 0
    assert all(runs.wait(PATIENCE_S) for runs in running)
    taking.close()
    assert ended == [True, True]
    threads.close()


def test_the_threads_outlive_an_error() -> None:
    """What is kept per thread, as a connection, is kept from epoch to epoch."""
    threads = Threads(2)

    def names() -> Iterator[str]:
        yield threading.current_thread().name

    def failing() -> Iterator[str]:
        raise ValueError("one fails")
        yield

    before = {*threads.merge([names() for _ in range(50)])}
    with pytest.raises(ValueError, match="one fails"):
        list(threads.merge([failing(), failing()]))
    assert len(before | {*threads.merge([names() for _ in range(50)])}) <= 2
    threads.close()


@given(count=st.integers(1, 12), shards=st.integers(1, 12))
def test_each_shard_has_one_peer_and_no_peer_many_more_than_another(count: int, shards: int) -> None:
    peers = WorkerProcesses(count)
    owned = [peers.shards_of(peer, shards) for peer in range(count)]
    assert [shard for of_peer in owned for shard in of_peer] == list(range(shards))
    sizes = [len(of_peer) for of_peer in owned]
    assert max(sizes) - min(sizes) <= 1


def test_the_reports_have_a_peer_too() -> None:
    assert WorkerProcesses(3).owner(5, 5) == 0


# --- peers ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 40))
def test_every_shard_has_one_owner_and_shards_stay_together(count: int, shards: int, co_partitions: int) -> None:
    peers = WorkerProcesses(count).without_exchange(co_partitions, shards)
    owners = [peers.owner(shard, shards) for shard in range(shards)]
    assert owners == sorted(owners)
    assert set(owners) <= set(range(count))
    assert [shard for peer in range(count) for shard in peers.shards_of(peer, shards)] == list(range(shards))


@given(st.integers(2, 9), st.integers(1, 40), st.integers(1, 40))
def test_peers_exchange_nothing_where_each_has_whole_shards_and_whole_partitions(
    count: int, shards: int, co_partitions: int
) -> None:
    peers = WorkerProcesses(count).without_exchange(co_partitions, shards)
    if not peers.co_partitions:
        assert math.gcd(shards, co_partitions) < count, "else they can"
        return
    edges = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    for partition in range(3 * co_partitions):  # a topic may have a multiple of the partitions that both have
        partitions = np.full(len(edges), partition, dtype=np.int32)
        addresses = partition_addresses(partitions, edges, co_partitions)
        owning_shards = np.searchsorted(shard_starts(shards), addresses, side="right") - 1
        assert {peers.owner(int(shard), shards) for shard in owning_shards} == {peers.reader(partition, shards)}
    assert {peers.reader(partition, shards) for partition in range(co_partitions)} == set(range(count)), "all read"


def test_one_peer_has_nobody_to_exchange_rows_with() -> None:
    assert WorkerProcesses(1).without_exchange(4, 8) == WorkerProcesses(1)
    assert WorkerProcesses(2).without_exchange(0, 8) == WorkerProcesses(2)
    assert WorkerProcesses(2, 3).without_exchange(4, 8) == WorkerProcesses(2, 3, 4)


class _Lost:
    """A worker that reads a row of shard 1."""

    steps = 1

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Sent]:
        yield 1, RowBlock(0, LEFT, pa.record_batch({"n": [1]}))

    def step(self, work: EpochWork, number: int, shard: int, blocks: Iterable[Block], attempt: str) -> Iterator[Sent]:
        yield work.plan.shards, ShardSummary(number, shard, rows_in=len(list(blocks)))

    def collect(self, work: EpochWork, reports: Iterable[object], attempt: str) -> ReadSummary:
        raise AssertionError("nothing is collected here")


def test_a_row_that_another_peer_should_have_read_is_not_lost_in_silence() -> None:
    ranges = [Range(PartitionRef("l", "t", 0), 0, 1)]
    work = EpochWork(1, EpochPlan(7, 2, tuple(ranges), {}, co_partitions=2), ())
    with pytest.raises(JoineryError, match=r"Epoch 7: rows of shards \[1\] were read by the peer of \[0\]"):
        run_share(_Lost(), work, ranges, [0], "a", Threads())
    (summary,) = run_share(_Lost(), work, ranges, [1], "a", Threads())
    assert summary == ShardSummary(0, 1, rows_in=1)


# --- peers that each read all -----------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12))
def test_peers_that_each_read_all_have_a_shard_each_and_the_one_that_they_have_else(count: int, shards: int) -> None:
    """A shard's owner has its state in the cache."""
    peers = WorkerProcesses(count, 3)
    reading_all = peers.each_reading_all(shards)
    assert replace(reading_all, reads_all=False) == peers
    if reading_all.reads_all:
        assert 1 < count <= 8
        assert all(peers.shards_of(peer, shards) for peer in range(count))
    else:
        assert count == 1 or count > 8 or count > shards


def test_peers_that_exchange_nothing_read_their_own_partitions() -> None:
    peers = WorkerProcesses(2).without_exchange(4, 8)
    assert peers.each_reading_all(8) == peers


class _ReadsAll(_Lost):
    """A worker that reads, of each range, a row for each shard."""

    def read(self, work: EpochWork, ranges: Iterable[Range], lane: int = 0) -> Iterator[Sent]:
        for planned in ranges:
            row = pa.record_batch({"partition": [planned.partition.partition]})
            yield from ((shard, RowBlock(0, LEFT, row)) for shard in range(work.plan.shards))
            yield work.plan.shards, ReadReport(PartitionRead(planned.partition, records=1, dead=1), b"letters")


@given(count=st.integers(2, 5), shards=st.integers(2, 8), ranges=st.integers(0, 7), threads=st.integers(1, 2))
def test_each_shard_gets_all_rows_once_and_each_range_is_reported_once(
    count: int, shards: int, ranges: int, threads: int
) -> None:
    planned = tuple(Range(PartitionRef("l", "t", partition), 0, 1 + partition) for partition in range(ranges))
    work = EpochWork(1, EpochPlan(7, shards, planned, {}), ())
    peers, pool = WorkerProcesses(count, reads_all=True), Threads(threads)
    blocks_by_peer = [list(read_own_rows(_ReadsAll(), work, peers, peer, pool)) for peer in range(peers.count)]
    pool.close()
    for peer, of_peer in enumerate(blocks_by_peer):
        rows = {(shard, *block.rows.column(0).to_pylist()) for shard, block in of_peer if isinstance(block, RowBlock)}
        own = peers.shards_of(peer, shards)
        assert rows == {(shard, partition) for shard in own for partition in range(ranges)}
        assert sum(isinstance(block, RowBlock) for _, block in of_peer) == len(rows)
    reports, *of_others = [
        [block.read.partition for _, block in of_peer if isinstance(block, ReadReport)] for of_peer in blocks_by_peer
    ]
    assert sorted(reports) == [reading.partition for reading in planned], "one peer can collect all dead letters"
    assert not any(of_others)
