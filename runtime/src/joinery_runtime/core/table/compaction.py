"""Decides which segments to merge: time-tiered, so that most expiry drops whole segments.

Segments are grouped by event-time bucket (an eighth of the time that rows are kept), as in Cassandra's time-window
compaction. Inside a bucket, segments of similar size merge once there are enough of them (size tiers), so a row is
rewritten O(log n) times. Segments of different buckets never merge, because a young one would hold back an old one. At
a checkpoint, which bounds the number of segments that a recovery reads, fewer segments are enough for a merge. A large
segment takes part only once the segments after it are worth the rewriting.

The rows of an epoch wait for its merges, and after an hour of large epochs a checkpoint may want to merge all of the
state. An epoch therefore merges a limited amount (`limit_to_one_epoch`), and the next ones continue.

A segment has two sizes. `choose` goes by its size in the store, which is always known. `split_to_fit` goes by the
memory that its rows take, which is known once it has been read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from joinery_runtime.core.table.keyhash import HashRange
from joinery_runtime.core.table.segment import SegmentMeta

FAN_IN = 8
CHECKPOINT_FAN_IN = 4
TIME_BUCKETS = 8
# Rows that are kept for a short time pile up only while the other input is silent. Finer buckets than this would keep
# them apart for nothing.
NARROWEST_BUCKET_MS = 60_000
SMALLEST_TIER_BYTES = 64 << 10
MAX_MERGED_BYTES = 24 << 20
LARGE_BYTES = MAX_MERGED_BYTES // 2
EPOCH_BYTES = 4 << 20
"""The most bytes of stored segments that a shard merges in one epoch (or one group): about 0.1 s."""
MAX_DECODED_BYTES = 64 << 20
"""The most bytes of the rows of a merged segment: a merge holds them in memory twice, plus their blob."""


def choose(
    segments: Iterable[SegmentMeta], owned: HashRange, *, kept_for_ms: int | None, checkpoint: bool
) -> list[list[SegmentMeta]]:
    """Choose groups of two or more segments of one part to merge, each into one segment per range of `pieces`.

    Rows kept without end (`kept_for_ms` None) have no time to be grouped by, and only a merge drops superseded ones. So
    their large segments merge too, once enough of them overlap. Only segments that lie entirely in `owned` take part:
    after a rescale, no shard may drop rows of another.
    """
    least = CHECKPOINT_FAN_IN if checkpoint else FAN_IN
    owned_segments = [s for s in segments if owned.contains(s.hash_min, s.hash_max)]
    if kept_for_ms is not None:
        width = max(NARROWEST_BUCKET_MS, kept_for_ms // TIME_BUCKETS)
        return _tier_groups((s for s in owned_segments if s.bytes < MAX_MERGED_BYTES), least, width)
    large = [s for s in owned_segments if s.bytes > LARGE_BYTES]
    # The greatest number of segments whose hash ranges overlap at one hash.
    ends = sorted(end for s in large for end in ((s.hash_min, 1), (s.hash_max + 1, -1)))
    depth = max(accumulate(change for _, change in ends), default=0)
    large_groups = [large] if len(large) > 1 and depth >= least else []
    return [*_tier_groups((s for s in owned_segments if s.bytes <= LARGE_BYTES), least, None), *large_groups]


def limit_to_one_epoch(groups: Sequence[list[SegmentMeta]]) -> list[list[SegmentMeta]]:
    """Return the groups that a shard merges in one epoch. Those with the youngest segments come first: their rows stay
    longest."""
    chosen: list[list[SegmentMeta]] = []
    total = 0
    for group in sorted(groups, key=lambda group: -max(s.ts_max for s in group)):
        total += sum(s.bytes for s in group)
        if chosen and total > EPOCH_BYTES:
            break
        chosen.append(group)
    return chosen


def split_to_fit(group: Sequence[SegmentMeta], decoded: Sequence[int]) -> list[list[SegmentMeta]]:
    """Split a group from `choose` by the now known sizes of the segments' rows in bytes. Not for rows kept without
    end: a segment that is never merged would never lose its superseded rows."""
    return _cut(group, decoded, MAX_DECODED_BYTES)


def pieces(group: Sequence[SegmentMeta], owned: HashRange) -> list[HashRange]:
    """Return the hash ranges at which to cut a merged group, so that each resulting segment stays below the limit."""
    count = max(1, -(-sum(s.bytes for s in group) // MAX_MERGED_BYTES))
    size = owned.last - owned.first + 1
    edges = [owned.first + size * i // count for i in range(count + 1)]
    return [HashRange(first, last - 1) for first, last in pairwise(edges)]


def _tier_groups(segments: Iterable[SegmentMeta], least: int, width: int | None) -> list[list[SegmentMeta]]:
    groups: dict[tuple[int, int], list[SegmentMeta]] = defaultdict(list)
    for segment in sorted(segments, key=lambda s: (s.ts_max, s.key)):
        bucket = segment.ts_max // width if width is not None else 0
        tier = 0
        while segment.bytes > SMALLEST_TIER_BYTES << (3 * tier):
            tier += 1
        groups[bucket, tier].append(segment)
    enough = (group for group in groups.values() if len(group) >= least)
    return [part for group in enough for part in _cut(group, [s.bytes for s in group], MAX_MERGED_BYTES)]


def _cut(group: Iterable[SegmentMeta], sizes: Iterable[int], most: int) -> list[list[SegmentMeta]]:
    """Cut a group into consecutive parts of two or more segments whose total size stays below the limit."""
    parts: list[list[SegmentMeta]] = [[]]
    total = 0
    for segment, size in zip(group, sizes, strict=True):
        if parts[-1] and total + size > most:
            parts.append([])
            total = 0
        parts[-1].append(segment)
        total += size
    return [part for part in parts if len(part) > 1]
