"""Which segments to merge: time-tiered, so that most expiry drops whole segments.

Segments are grouped by event-time bucket (an eighth of how long rows are kept), as in Cassandra's time-window
compaction; inside a bucket, segments of similar size merge when there are enough of them (size tiers), so a row is
rewritten O(log n) times. Segments of different buckets are never merged: an old one would be held back by a young one.
At a checkpoint, which bounds the number of segments that a recovery reads, fewer segments are enough; a large one takes
part only once what came after it is worth the rewriting.

Rows wait for what their epoch merges, and after an hour of large epochs a checkpoint may find all of the state to be
merged. So an epoch merges so much of it (`in_one_epoch`), and the next ones go on.

A segment has two sizes: `choose` goes by what it takes in the store, which is known of every segment. How much memory
its rows take is known once it was read: `that_fit` goes by that.
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
# Rows that are kept for a short time only pile up while the other input is silent; finer buckets than this would keep
# them apart for nothing.
NARROWEST_BUCKET_MS = 60_000
SMALLEST_TIER_BYTES = 64 << 10
MAX_MERGED_BYTES = 24 << 20
LARGE_BYTES = MAX_MERGED_BYTES // 2
EPOCH_BYTES = 4 << 20
"""Of stored segments that a shard merges in one epoch, or one group of them: some 0.1 s."""
MAX_DECODED_BYTES = 64 << 20
"""Of the rows of a merged segment: a merge has them in memory twice, and their blob."""


def choose(
    segments: Iterable[SegmentMeta], owned: HashRange, *, kept_for_ms: int | None, checkpoint: bool
) -> list[list[SegmentMeta]]:
    """Groups of two or more segments of one part to merge, each into one segment per `pieces`.

    Rows that are kept without end (`kept_for_ms` None) have no time to be grouped by, and only a merge drops what is
    superseded: there large segments are merged too, once enough of them lie above each other.
    Only segments that lie whole in `owned` take part: after a rescale, no shard may drop rows of another.
    """
    least = CHECKPOINT_FAN_IN if checkpoint else FAN_IN
    mine = [s for s in segments if owned.contains(s.hash_min, s.hash_max)]
    if kept_for_ms is not None:
        width = max(NARROWEST_BUCKET_MS, kept_for_ms // TIME_BUCKETS)
        return _tiered((s for s in mine if s.bytes < MAX_MERGED_BYTES), least, width)
    large = [s for s in mine if s.bytes > LARGE_BYTES]
    # The most of them that one hash can be in: they overlap where more begin than end.
    ends = sorted(end for s in large for end in ((s.hash_min, 1), (s.hash_max + 1, -1)))
    depth = max(accumulate(change for _, change in ends), default=0)
    whole = [large] if len(large) > 1 and depth >= least else []
    return [*_tiered((s for s in mine if s.bytes <= LARGE_BYTES), least, None), *whole]


def in_one_epoch(groups: Sequence[list[SegmentMeta]]) -> list[list[SegmentMeta]]:
    """Those that a shard merges in one epoch: rows of the youngest segments first, which stay for the longest time."""
    taken: list[list[SegmentMeta]] = []
    total = 0
    for group in sorted(groups, key=lambda group: -max(s.ts_max for s in group)):
        total += sum(s.bytes for s in group)
        if taken and total > EPOCH_BYTES:
            break
        taken.append(group)
    return taken


def that_fit(group: Sequence[SegmentMeta], decoded: Sequence[int]) -> list[list[SegmentMeta]]:
    """What to merge of a group that `choose` gave, now that it is known how many bytes each segment's rows have. Not
    for rows that are kept without end: segments of them that were left alone would never lose what is superseded."""
    return _cut(group, decoded, MAX_DECODED_BYTES)


def pieces(group: Sequence[SegmentMeta], owned: HashRange) -> list[HashRange]:
    """Hash ranges to cut the merged group at, so that what comes of each stays below the limit."""
    count = max(1, -(-sum(s.bytes for s in group) // MAX_MERGED_BYTES))
    size = owned.last - owned.first + 1
    edges = [owned.first + size * i // count for i in range(count + 1)]
    return [HashRange(first, last - 1) for first, last in pairwise(edges)]


def _tiered(segments: Iterable[SegmentMeta], least: int, width: int | None) -> list[list[SegmentMeta]]:
    groups: dict[tuple[int, int], list[SegmentMeta]] = defaultdict(list)
    for segment in sorted(segments, key=lambda s: (s.ts_max, s.key)):
        bucket = segment.ts_max // width if width is not None else 0
        groups[bucket, _tier(segment.bytes)].append(segment)
    enough = (group for group in groups.values() if len(group) >= least)
    return [part for group in enough for part in _cut(group, [s.bytes for s in group], MAX_MERGED_BYTES)]


def _tier(size: int) -> int:
    tier = 0
    while size > SMALLEST_TIER_BYTES << (3 * tier):
        tier += 1
    return tier


def _cut(group: Iterable[SegmentMeta], sizes: Iterable[int], most: int) -> list[list[SegmentMeta]]:
    """Consecutive parts of two or more whose sizes together stay below the limit."""
    parts: list[list[SegmentMeta]] = [[]]
    total = 0
    for segment, size in zip(group, sizes, strict=True):
        if parts[-1] and total + size > most:
            parts.append([])
            total = 0
        parts[-1].append(segment)
        total += size
    return [part for part in parts if len(part) > 1]
