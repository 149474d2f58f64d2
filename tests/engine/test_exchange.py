"""Parcels: what peers send each other holds every row once, for the shard that it was made for."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.engine import exchange
from joinery_runtime.engine.exchange import LocalParcels, Parcel, ParcelHeader, open_parcels, pack_blocks
from joinery_runtime.engine.messages import EpochWork, PartitionRead
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.read_report import ReadReport
from joinery_runtime.engine.tasks import WorkerProcesses
from joinery_runtime.engine.worker import RowBlock, Sent
from joinery_runtime.formats.batch import PartitionRef

REPORT = ReadReport(PartitionRead(PartitionRef("l", "t", 0)), None)


def numbered(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(first, first + count)), "t": [str(n) for n in range(count)]})


def work_of(epoch: int, generation: int = 1) -> EpochWork:
    return EpochWork(generation, EpochPlan(epoch=epoch, shards=4, ranges=(), watermarks={}), ())


def rows_by_shard(sent: Iterable[Sent]) -> dict[tuple[int, int, int, bool], list[int]]:
    """The numbers that each shard, step and side gets, in their order."""
    numbers = defaultdict(list)
    for shard, block in sent:
        assert isinstance(block, RowBlock)
        numbers[shard, block.step, block.side, block.read] += block.rows.column("n").to_pylist()
    return numbers


def delivered(items: Iterable[tuple[int, Parcel | Sent]], peers: WorkerProcesses, shards: int) -> Iterator[Sent]:
    for receiver, item in items:
        sent = pickle.loads(pickle.dumps(item)).blocks() if isinstance(item, Parcel) else [item]
        for shard, block in sent:
            assert peers.owner(shard, shards) == receiver
            yield shard, block


BLOCKS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 1), st.sampled_from([LEFT, RIGHT]), st.booleans(), st.integers(1, 5)),
    max_size=30,
)


@given(blocks=BLOCKS, peers=st.integers(1, 5), limit=st.sampled_from([1, 100, 1 << 20]))
def test_every_row_comes_once_in_its_order(
    blocks: list[tuple[int, int, int, bool, int]], peers: int, limit: int
) -> None:
    sent: list[Sent] = []
    for number, (shard, step, side, read, count) in enumerate(blocks):
        sent.append((shard, RowBlock(step, side, numbered(number * 10, count), read)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "PACKED_BYTES", limit)
        items = list(pack_blocks(sent, lambda shard: WorkerProcesses(peers).owner(shard, 8)))
    assert rows_by_shard(delivered(items, WorkerProcesses(peers), 8)) == rows_by_shard(sent)


def test_a_peer_gets_one_parcel_for_a_side_of_all_of_its_shards() -> None:
    sent: list[Sent] = [
        (shard, RowBlock(0, side, numbered(shard * 10, 3))) for side in (LEFT, RIGHT) for shard in range(512)
    ]
    receivers = [receiver for receiver, _ in pack_blocks(sent, lambda shard: WorkerProcesses(2).owner(shard, 512))]
    assert sorted(receivers) == [0, 0, 1, 1]


def test_rows_for_every_shard_travel_once() -> None:
    rows = numbered(0, 1000)
    sent: list[Sent] = [(shard, RowBlock(0, RIGHT, rows)) for shard in range(8)]
    items = list(pack_blocks(sent, lambda shard: WorkerProcesses(2).owner(shard, 8)))
    assert [len(pickle.dumps(item)) < 40_000 for _, item in items] == [True, True]
    assert rows_by_shard(delivered(items, WorkerProcesses(2), 8)) == rows_by_shard(sent)


def test_of_a_slice_only_its_own_rows_travel() -> None:
    parcel = Parcel(ParcelHeader(0, LEFT, True, ((0, 0, 5),)), numbered(0, 1000).slice(10, 5))
    assert len(pickle.dumps(parcel)) < 5_000


def test_reports_are_passed_on_to_the_peer_of_reports() -> None:
    assert list(pack_blocks([(4, REPORT)], lambda shard: WorkerProcesses(2).owner(shard, 4))) == [(0, (4, REPORT))]


# --- rows that stay in their executor ---------------------------------------------------------------------------------


def test_a_local_parcel_gives_its_rows_again_and_again(tmp_path: Path) -> None:
    parcel = Parcel(ParcelHeader(0, LEFT, True, ((0, 0, 2), (1, 2, 3))), numbered(0, 5))
    local = LocalParcels(tmp_path, work_of(1), "a").put(parcel)
    assert len(pickle.dumps(local)) < 500, "its rows do not travel"
    for _ in range(2):
        (again,) = open_parcels([pickle.loads(pickle.dumps(local))]) or []
        assert rows_by_shard(again.blocks()) == rows_by_shard(parcel.blocks())


def test_files_of_earlier_epochs_go(tmp_path: Path) -> None:
    parcel = Parcel(ParcelHeader(0, LEFT, True, ((0, 0, 5),)), numbered(0, 5))
    earlier = [LocalParcels(tmp_path, work_of(epoch), "a").put(parcel) for epoch in (1, 2)]
    beside = LocalParcels(tmp_path, work_of(2), "b").put(parcel)
    assert open_parcels(earlier) is None
    assert len(open_parcels([earlier[1], beside]) or []) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_rows_for_every_shard_travel_once_also_if_two_lanes_send_in_turn() -> None:
    first, second = numbered(0, 1000), numbered(5000, 1000)
    sent: list[Sent] = [(shard, RowBlock(0, RIGHT, rows)) for shard in range(8) for rows in (first, second)]
    items = [item for _, item in pack_blocks(sent, lambda shard: WorkerProcesses(2).owner(shard, 8))]
    assert [item.rows.num_rows for item in items if isinstance(item, Parcel)] == [2000, 2000]
    assert rows_by_shard(
        delivered(pack_blocks(sent, lambda shard: WorkerProcesses(2).owner(shard, 8)), WorkerProcesses(2), 8)
    ) == rows_by_shard(sent)


def test_a_zombie_of_an_earlier_epoch_leaves_the_files_of_a_later_one(tmp_path: Path) -> None:
    parcel = Parcel(ParcelHeader(0, LEFT, True, ((0, 0, 5),)), numbered(0, 5))
    later = LocalParcels(tmp_path, work_of(10), "a").put(parcel)
    LocalParcels(tmp_path, work_of(9), "zombie").put(parcel)
    assert open_parcels([later]) is not None


def test_a_file_that_is_no_parcel_counts_as_not_there(tmp_path: Path) -> None:
    local = LocalParcels(tmp_path, work_of(1), "a").put(
        Parcel(ParcelHeader(0, LEFT, True, ((0, 0, 5),)), numbered(0, 5))
    )
    local.path.write_bytes(b"of a failing disk")
    assert open_parcels([local]) is None
