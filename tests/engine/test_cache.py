"""The segment cache: loads once, maps after, lets go of what is not live."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pyarrow as pa

from joinery_runtime.core.table.columns import ENGINE_FIELDS
from joinery_runtime.core.table.segment import Run, SegmentMeta, describe, encode
from joinery_runtime.engine.cache import SegmentCache
from joinery_runtime.state.store import StateStore


class Blobs:
    """As much of a state store as the cache uses; remembers what it was asked for."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        listed = list(keys)
        self.asked += listed
        return {key: self.blobs[key] for key in listed}


def add(store: Blobs, key: str, epoch: int, hashes: list[int]) -> SegmentMeta:
    columns = [pa.array(hashes), pa.array(hashes), pa.array([0] * len(hashes)), pa.array(range(len(hashes)))]
    arrays = [column.cast(field.type) for column, field in zip(columns, ENGINE_FIELDS, strict=True)]
    run = Run.sort(pa.record_batch(arrays, schema=pa.schema(ENGINE_FIELDS)))
    store.blobs[key] = encode(run.batch)
    return describe(run, key=key, part="left", epoch=epoch, blob=store.blobs[key])


def opened(tmp_path: Path) -> tuple[Blobs, SegmentCache]:
    store = Blobs()
    return store, SegmentCache(tmp_path, cast(StateStore, store), "job")


def test_a_segment_is_loaded_once_and_mapped_by_every_process_after(tmp_path: Path) -> None:
    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [3, 1, 2])
    (run,) = cache.get([meta])
    assert run.hash.tolist() == [1, 2, 3]
    cache.get([meta])
    (other,) = SegmentCache(tmp_path, cast(StateStore, store), "job").get([meta])
    assert other.hash.tolist() == [1, 2, 3]
    assert store.asked == [meta.key]


def test_what_is_not_live_goes_but_not_what_the_running_epoch_stages(tmp_path: Path) -> None:
    store, cache = opened(tmp_path)
    live, gone, new = (add(store, f"left/1-{e}-0-a/{n}", e, [n]) for n, e in enumerate((1, 1, 2)))
    cache.get([live, gone, new])
    cache.retain({live.key}, epoch=2)
    assert len(list(tmp_path.iterdir())) == 2
    cache.get([live, new])
    assert len(store.asked) == 3
    cache.retain({live.key}, epoch=3)
    assert len(list(tmp_path.iterdir())) == 1
