from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.core.table.compaction import (
    CHECKPOINT_FAN_IN,
    EPOCH_BYTES,
    FAN_IN,
    MAX_DECODED_BYTES,
    MAX_MERGED_BYTES,
    NARROWEST_BUCKET_MS,
    TIME_BUCKETS,
    choose,
    limit_to_one_epoch,
    pieces,
    split_to_fit,
)
from joinery_runtime.core.table.keyhash import HASH_SPACE, HashRange, shard_range
from joinery_runtime.core.table.segment import STATE_VERSION, SegmentMeta

EVERYTHING = shard_range(0, 1)


def segment(
    key: object, ts_max: int, size: int = 1000, first: int = 0, last: int = HASH_SPACE - 1, ts_min: int = 0
) -> SegmentMeta:
    return SegmentMeta(str(key), "left", first, last, min(ts_min, ts_max), ts_max, 10, size, 1, STATE_VERSION)


def keys(groups: Iterable[Iterable[SegmentMeta]]) -> list[list[str]]:
    return [[s.key for s in group] for group in groups]


def test_small_segments_wait_until_there_are_enough_of_one_bucket_and_tier() -> None:
    segments = [segment(i, ts_max=i) for i in range(FAN_IN)]
    assert choose(segments[1:], EVERYTHING, kept_for_ms=8_000, checkpoint=False) == []
    assert keys(choose(segments, EVERYTHING, kept_for_ms=8_000, checkpoint=False)) == [list("01234567")]


def test_at_a_checkpoint_fewer_segments_are_enough() -> None:
    segments = [segment(i, ts_max=i) for i in range(CHECKPOINT_FAN_IN)]
    assert choose(segments, EVERYTHING, kept_for_ms=8_000, checkpoint=False) == []
    assert choose(segments[1:], EVERYTHING, kept_for_ms=8_000, checkpoint=True) == []
    assert keys(choose(segments, EVERYTHING, kept_for_ms=8_000, checkpoint=True)) == [list("0123")]


def test_rows_that_are_kept_briefly_merge_all_the_same_while_the_other_input_is_silent() -> None:
    live = [segment(i, i * 400) for i in range(9_000)]
    for _ in range(8):
        groups = choose(live, EVERYTHING, kept_for_ms=0, checkpoint=False)
        merged_keys = {s.key for group in groups for s in group}
        live = [s for s in live if s.key not in merged_keys] + [_merged(0, n, group) for n, group in enumerate(groups)]
    assert len(live) <= 60 * FAN_IN  # an hour of minutes


def test_sizes_of_different_tiers_do_not_mix() -> None:
    small = [segment(i, 0) for i in range(FAN_IN - 1)]
    assert choose([*small, segment("big", 0, size=1 << 20)], EVERYTHING, kept_for_ms=8_000, checkpoint=False) == []


def test_no_merge_grows_past_the_limit() -> None:
    size = MAX_MERGED_BYTES // 3
    segments = [segment(i, i, size=size) for i in range(7)] + [segment("full", 0, size=MAX_MERGED_BYTES)]
    groups = choose(segments, EVERYTHING, kept_for_ms=8_000, checkpoint=True)
    assert keys(groups) == [["0", "1", "2"], ["3", "4", "5"]]


def test_what_takes_more_memory_than_the_store_tells_is_merged_in_parts() -> None:
    group = [segment(i, i) for i in range(5)]
    assert keys(split_to_fit(group, [MAX_DECODED_BYTES // 2] * 5)) == [["0", "1"], ["2", "3"]]
    assert split_to_fit(group, [MAX_DECODED_BYTES // 5] * 5) == [group]
    assert split_to_fit(group, [MAX_DECODED_BYTES] * 5) == []


segments = st.builds(
    lambda key, ts, size, a, b: segment(key, ts, size, min(a, b), max(a, b)),
    st.uuids(),
    st.integers(-6_000_000, 6_000_000),
    st.sampled_from([100, 70_000, 1 << 20, MAX_MERGED_BYTES // 2, MAX_MERGED_BYTES]),
    st.integers(0, 7).map(lambda x: x * (HASH_SPACE // 8)),
    st.integers(0, 7).map(lambda x: x * (HASH_SPACE // 8) + 5),
)


@settings(deadline=None, max_examples=examples(200))
@given(
    live_segments=st.lists(segments, max_size=30),
    kept_for=st.sampled_from([0, 480_000, 960_000, 9_600_000]),
    shards=st.sampled_from([1, 2, 3, 8]),
    checkpoint=st.booleans(),
)
def test_groups_are_safe(live_segments: list[SegmentMeta], kept_for: int, shards: int, checkpoint: bool) -> None:
    chosen: list[str] = []
    for owned in (shard_range(t, shards) for t in range(shards)):
        for group in choose(live_segments, owned, kept_for_ms=kept_for, checkpoint=checkpoint):
            assert len(group) >= 2
            # One bucket of time, so that an old segment is not held back by a young one.
            width = max(NARROWEST_BUCKET_MS, kept_for // TIME_BUCKETS)
            assert len({s.ts_max // width for s in group}) == 1
            # Whole in the owner's range: nobody may drop rows of another shard.
            assert all(owned.first <= s.hash_min and s.hash_max <= owned.last for s in group)
            assert sum(s.bytes for s in group) <= MAX_MERGED_BYTES
            chosen += [s.key for s in group]
    assert len(chosen) == len(set(chosen))


def long_run(epochs: int, checkpoint_every: int) -> tuple[int, int]:
    """A stream in time order, one segment an epoch of 100 ms, kept for 80 s: (most segments, bytes rewritten)."""
    live: list[SegmentMeta] = []
    most = rewritten = 0
    for epoch in range(epochs):
        now = epoch * 100
        live = [s for s in live if s.ts_max >= now - 80_000]
        groups = choose(live, EVERYTHING, kept_for_ms=80_000, checkpoint=epoch % checkpoint_every == 0)
        merged_keys = {s.key for group in groups for s in group}
        live = [s for s in live if s.key not in merged_keys]
        live += [_merged(epoch, number, group) for number, group in enumerate(groups)]
        rewritten += sum(s.bytes for group in groups for s in group)
        live.append(segment(f"e{epoch}", now + 99, size=10_000, ts_min=now))
        most = max(most, len(live))
    return most, rewritten


def _merged(epoch: int, number: int, group: list[SegmentMeta]) -> SegmentMeta:
    size = sum(s.bytes for s in group)
    return segment(f"m{epoch}.{number}", max(s.ts_max for s in group), size, ts_min=min(s.ts_min for s in group))


def test_a_long_run_keeps_few_segments_and_rewrites_a_row_only_a_few_times() -> None:
    epochs = 5_000
    most, rewritten = long_run(epochs, checkpoint_every=10**9)
    # 800 epochs are live at a time: per bucket, less than FAN_IN in each of the three tiers that 1 MB reaches.
    assert most <= (TIME_BUCKETS + 2) * FAN_IN * 3
    assert rewritten <= 3 * epochs * 10_000


def test_checkpoints_keep_the_segments_of_a_recovery_fewer_still() -> None:
    most, _ = long_run(3_000, checkpoint_every=50)
    assert most <= TIME_BUCKETS + 2 + 50


def test_expiry_drops_whole_segments_soon_after_their_rows() -> None:
    """Merging never makes a segment outlive its youngest row's bucket."""
    kept_for = 8 * NARROWEST_BUCKET_MS * 2
    width = kept_for // TIME_BUCKETS
    live = [segment(i, i * 1_000) for i in range(1000)]
    groups = choose(live, EVERYTHING, kept_for_ms=kept_for, checkpoint=True)
    assert groups
    for group in groups:
        times: list[Any] = [s.ts_max for s in group]
        assert max(times) - min(times) < width


def test_segments_that_span_the_owners_range_wait() -> None:
    half = HashRange(0, HASH_SPACE // 2 - 1)
    mine = [segment(i, 0, last=5) for i in range(FAN_IN)]
    assert keys(choose([*mine, segment("wide", 0)], half, kept_for_ms=80, checkpoint=True)) == [list("01234567")]


def test_versions_are_merged_beyond_the_limit_and_cut_by_hash() -> None:
    large = [segment(i, 0, size=MAX_MERGED_BYTES - 1) for i in range(CHECKPOINT_FAN_IN)]
    assert choose(large[1:], EVERYTHING, kept_for_ms=None, checkpoint=True) == []
    (group,) = choose(large, EVERYTHING, kept_for_ms=None, checkpoint=True)
    assert {s.key for s in group} == {s.key for s in large}
    ranges = pieces(group, EVERYTHING)
    assert len(ranges) == CHECKPOINT_FAN_IN
    assert (ranges[0].first, ranges[-1].last) == (0, HASH_SPACE - 1)
    assert all(a.last + 1 == b.first for a, b in pairwise(ranges))


def test_versions_that_lie_side_by_side_are_left_alone() -> None:
    beside = [
        segment(i, 0, MAX_MERGED_BYTES - 1, first=owned.first, last=owned.last)
        for i, owned in enumerate(pieces([segment("all", 0, 20 * MAX_MERGED_BYTES)], EVERYTHING))
    ]
    assert len(beside) == 20
    assert choose(beside, EVERYTHING, kept_for_ms=None, checkpoint=True) == []


def test_a_table_that_changes_for_ever_stays_as_large_as_what_it_holds() -> None:
    megabyte, holds = 1 << 20, 150 << 20
    live: list[SegmentMeta] = []
    for epoch in range(3_000):
        live.append(segment(f"new-{epoch}", epoch, megabyte))
        for group in choose(live, EVERYTHING, kept_for_ms=None, checkpoint=epoch % 10 == 0):
            merged_keys = {s.key for s in group}
            live = [s for s in live if s.key not in merged_keys]
            left = min(sum(s.bytes for s in group), holds)
            cut = pieces(group, EVERYTHING)
            live += [
                segment(f"{epoch}-{len(live)}-{i}", epoch, left // len(cut), piece.first, piece.last)
                for i, piece in enumerate(cut)
            ]
        assert sum(s.bytes for s in live) < holds + 12 * MAX_MERGED_BYTES
        assert len(live) < 60


def test_a_small_group_is_one_piece() -> None:
    assert pieces([segment("small", 0)], EVERYTHING) == [EVERYTHING]


def test_an_epoch_merges_the_youngest_groups_first_and_no_more_than_rows_may_wait_for() -> None:
    groups = [[segment(f"{n}{m}", ts_max=n, size=EPOCH_BYTES // 4) for m in range(2)] for n in range(4)]
    assert keys(limit_to_one_epoch(groups)) == [["30", "31"], ["20", "21"]]
    assert keys(limit_to_one_epoch([[segment("a", 1, EPOCH_BYTES), segment("b", 1)]])) == [["a", "b"]], "one at least"
    assert limit_to_one_epoch([]) == []
