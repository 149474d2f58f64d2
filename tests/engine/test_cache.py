"""The segment cache: loads once, maps after, lets go of what is not live."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from joinery_runtime.core.table.blob import to_blob
from joinery_runtime.core.table.columns import ENGINE_FIELDS
from joinery_runtime.core.table.segment import Run, SegmentMeta, describe, encode
from joinery_runtime.engine import cache as cache_module
from joinery_runtime.engine.cache import SegmentCache
from joinery_runtime.errors import StateError
from joinery_runtime.state.store import StateStore


class Blobs:
    """As much of a state store as the cache uses; remembers what it was asked for."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.requested_keys: list[str] = []
        self.calls = 0

    def read_segments(self, job: str, keys: Iterable[str]) -> dict[str, bytes]:
        listed = list(keys)
        self.requested_keys += listed
        self.calls += 1
        return {key: self.blobs[key] for key in listed}


def add(store: Blobs, key: str, epoch: int, hashes: list[int], encoded: Callable[..., bytes] = to_blob) -> SegmentMeta:
    columns = [pa.array(hashes), pa.array(hashes), pa.array([0] * len(hashes)), pa.array(range(len(hashes)))]
    arrays = [column.cast(field.type) for column, field in zip(columns, ENGINE_FIELDS, strict=True)]
    run = Run.sort(pa.record_batch(arrays, schema=pa.schema(ENGINE_FIELDS)))
    store.blobs[key] = encoded(run.batch)
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
    assert store.requested_keys == [meta.key]


def test_segments_of_an_earlier_process_are_taken_over_and_stay_when_its_folder_goes(tmp_path: Path) -> None:
    store, earlier = opened(tmp_path / "driver")
    metas = [add(store, f"left/1-1-0-a/{n}", 1, [n]) for n in range(3)]
    earlier.get(metas)
    cache = SegmentCache(tmp_path / "worker", cast(StateStore, store), "job", earlier=tmp_path / "driver")
    assert [run.hash.tolist() for run in cache.get(metas[:2])] == [[0], [1]]
    shutil.rmtree(tmp_path / "driver")
    again = SegmentCache(tmp_path / "worker", cast(StateStore, store), "job", earlier=tmp_path / "driver")
    assert [run.hash.tolist() for run in again.get(metas)] == [[0], [1], [2]]
    assert store.requested_keys == [*(meta.key for meta in metas), metas[2].key]


def test_what_is_missing_is_read_together_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = opened(tmp_path)
    metas = [add(store, f"left/1-1-0-a/{n}", 1, [n]) for n in range(7)]
    cache.get(metas[:1])
    assert [run.hash.tolist() for run in cache.get(metas[:4])] == [[0], [1], [2], [3]]
    assert (store.calls, len(store.requested_keys)) == (2, 4)
    monkeypatch.setattr(cache_module, "READ_BYTES", 2 * metas[0].bytes)
    cache.get(metas)
    assert (store.calls, len(store.requested_keys)) == (4, 7), "two and one"


def test_what_a_late_attempt_lets_go_of_while_others_are_read_stays_good(tmp_path: Path) -> None:
    """A full cache evicts once for each epoch, and an attempt of an epoch that is over is one more."""
    store = Blobs()
    metas = [add(store, f"left/1-1-0-a/{n}", 1, [n]) for n in range(3)]
    cache = SegmentCache(tmp_path, cast(StateStore, store), "job", max_bytes=0)
    cache.get(metas[:2])
    read = store.read_segments

    def meanwhile(job: str, keys: Iterable[str]) -> dict[str, bytes]:
        cache.retain({meta.key for meta in metas}, epoch=1)
        return read(job, keys)

    store.read_segments = meanwhile  # type: ignore[method-assign]
    assert [run.hash.tolist() for run in cache.get(metas)] == [[0], [1], [2]]


def test_a_segment_whose_hashes_come_out_differently_is_refused(tmp_path: Path) -> None:
    """Rows under another hash would silently match nothing."""
    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [3, 1, 2])
    facts = r"left/1-1-0-a/0 of job job is damaged: 3 rows with hashes 1 to 3, where 3 with 1 to 4 were noted"
    with pytest.raises(StateError, match=facts):
        cache.get([replace(meta, hash_max=4)])
    assert list(tmp_path.iterdir()) == [], "or another process would map it"


@pytest.mark.parametrize("encoded", [encode, to_blob])
def test_a_damaged_segment_is_refused_and_not_cached(tmp_path: Path, encoded: Callable[..., bytes]) -> None:
    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [3, 1, 2], encoded)
    store.blobs[meta.key] = store.blobs[meta.key][:-9]
    with pytest.raises(StateError, match=r"Segment left/1-1-0-a/0 of job job is damaged: .*Restore a savepoint"):
        cache.get([meta])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_file_with_a_flipped_bit_is_loaded_again(tmp_path: Path, share: float) -> None:
    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [3, 1, 2])
    cache.get([meta])
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 4
    path.write_bytes(content)
    for reads in (2, 2):
        (run,) = SegmentCache(tmp_path, cast(StateStore, store), "job").get([meta])
        assert run.hash.tolist() == [1, 2, 3]
        assert len(store.requested_keys) == reads


@pytest.mark.parametrize("size", [0, 3, 8, 200])
def test_a_file_that_a_crash_of_the_machine_cut_is_loaded_again(tmp_path: Path, size: int) -> None:
    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [3, 1, 2])
    cache.get([meta])
    (path,) = tmp_path.iterdir()
    os.truncate(path, size)
    (run,) = SegmentCache(tmp_path, cast(StateStore, store), "job").get([meta])
    assert run.hash.tolist() == [1, 2, 3]


def test_what_is_not_live_goes_but_not_what_the_running_epoch_stages(tmp_path: Path) -> None:
    store, cache = opened(tmp_path)
    live, obsolete, new = (add(store, f"left/1-{e}-0-a/{n}", e, [n]) for n, e in enumerate((1, 1, 2)))
    cache.get([live, obsolete, new])
    cache.retain({live.key}, epoch=2)
    assert len(list(tmp_path.iterdir())) == 2
    cache.get([live, new])
    assert len(store.requested_keys) == 3
    cache.retain({live.key}, epoch=3)
    assert len(list(tmp_path.iterdir())) == 1


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def bounded(tmp_path: Path, segments: int) -> tuple[Blobs, SegmentCache, list[SegmentMeta]]:
    """A cache with room for so many of the segments, which are one larger than that and were last used in order."""
    store, cache = opened(tmp_path / "sizes")
    metas = [add(store, f"left/1-1-0-a/{n}", 1, [n]) for n in range(segments + 1)]
    cache.get(metas[:1])
    (one,) = (path.stat().st_size for path in (tmp_path / "sizes").iterdir())
    directory = tmp_path / "cache"
    cache = SegmentCache(directory, cast(StateStore, store), "job", max_bytes=one * segments)
    for age, meta in enumerate(reversed(metas)):
        cache.get([meta])
        (path,) = (path for path in directory.iterdir() if path.name.endswith(f".{meta.key[-1]}.checked"))
        os.utime(path, (1_000 - age, 1_000 - age))
    store.requested_keys.clear()
    return store, cache, metas


def test_the_least_recently_used_goes_when_there_is_too_much(tmp_path: Path) -> None:
    store, cache, metas = bounded(tmp_path, segments=3)
    cache.get(metas[:1])  # which was the oldest
    cache.retain({meta.key for meta in metas}, epoch=2)
    assert len(files(tmp_path / "cache")) == 3
    assert [run.hash.tolist() for run in cache.get(metas)] == [[0], [1], [2], [3]]
    assert store.requested_keys == [metas[1].key]


def test_the_files_are_looked_at_once_in_an_epoch_however_many_shards_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cache, metas = bounded(tmp_path, segments=3)
    scans: list[object] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or scandir(path))
    for epoch in (2, 2, 2, 3):
        cache.retain({meta.key for meta in metas}, epoch)
    assert len(scans) == 2


def test_what_another_process_evicted_is_let_go_and_loaded_again(tmp_path: Path) -> None:
    store, cache, metas = bounded(tmp_path, segments=3)
    other = SegmentCache(tmp_path / "cache", cast(StateStore, store), "job")
    (mapped,) = other.get(metas[:1])
    cache.retain({meta.key for meta in metas}, epoch=2)
    assert mapped.hash.tolist() == [0]
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    other.retain({meta.key for meta in metas}, epoch=2)
    assert other.get(metas[:1])[0].hash.tolist() == [0]
    assert store.requested_keys == [metas[0].key]


def test_a_file_that_a_dead_process_left_half_written_goes_at_the_start(tmp_path: Path) -> None:
    dead, alive = tmp_path / "left.1-1-0-a.0.abc", tmp_path / "left.1-1-0-a.1.def"
    dead.write_bytes(b"half")
    alive.write_bytes(b"half")
    os.utime(dead, (1_000, 1_000))
    opened(tmp_path)
    assert files(tmp_path) == {alive.name}


def test_a_file_that_cannot_be_written_whole_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    store, cache = opened(tmp_path)
    meta = add(store, "left/1-1-0-a/0", 1, [1])
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        cache.get([meta])
    assert files(tmp_path) == set()
