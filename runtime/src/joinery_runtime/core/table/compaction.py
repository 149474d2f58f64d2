"""Which segments to merge: time-tiered, so that most expiry drops whole segments.

Segments are grouped by event-time bucket (an eighth of how long rows are kept), as in Cassandra's time-window
compaction; inside a bucket, segments of similar size merge when there are enough of them (size tiers), so a row is
rewritten O(log n) times. Segments of different buckets are never merged: an old one would be held back by a young one.
At a checkpoint, which bounds the number of segments that a recovery reads, fewer segments are enough; a large one takes
part only once what came after it is worth the rewriting.
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
# A merge holds its rows in memory, where they take five times what they take in the store.
MAX_MERGED_BYTES = 24 << 20
LARGE_BYTES = MAX_MERGED_BYTES // 2


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
    return [part for group in groups.values() if len(group) >= least for part in _cut(group) if len(part) > 1]


def _tier(size: int) -> int:
    tier = 0
    while size > SMALLEST_TIER_BYTES << (3 * tier):
        tier += 1
    return tier


def _cut(group: Sequence[SegmentMeta]) -> list[list[SegmentMeta]]:
    """Consecutive pieces whose bytes stay below the limit."""
    pieces: list[list[SegmentMeta]] = [[]]
    size = 0
    for segment in group:
        if pieces[-1] and size + segment.bytes > MAX_MERGED_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(segment)
        size += segment.bytes
    return pieces
