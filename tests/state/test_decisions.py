from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.state.decisions import (
    SegmentStatus,
    StoredSegment,
    is_committable,
    is_readable,
    is_sweepable,
    name_keys,
)

segments = st.builds(StoredSegment, st.sampled_from(SegmentStatus), st.integers(1, 4), st.integers(1, 4))


@given(segments, st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_what_may_be_swept_can_never_be_committed_nor_read_later(
    segment: StoredSegment, generation: int, epoch: int, later_drivers: int, later_epochs: int, pinned: bool
) -> None:
    if is_sweepable(segment, generation, epoch, pinned=pinned):
        assert not is_committable(segment, generation + later_drivers, epoch + 1 + later_epochs)
        assert not is_readable(segment, pinned=pinned)


@given(segments, st.integers(1, 4), st.integers(0, 4))
def test_what_is_staged_for_the_next_epoch_is_committable_or_garbage(
    segment: StoredSegment, generation: int, committed: int
) -> None:
    garbage = is_sweepable(segment, generation, committed, pinned=False)
    if segment.status is SegmentStatus.STAGED:
        assert is_committable(segment, generation, committed + 1) is not garbage


@pytest.mark.parametrize("pinned", [True, False])
def test_live_segments_are_never_swept(pinned: bool) -> None:
    assert not is_sweepable(StoredSegment(SegmentStatus.LIVE, 1, 1), 9, 9, pinned=pinned)


def test_long_lists_of_keys_are_cut() -> None:
    assert name_keys(f"k{number}" for number in range(8)) == "k0, k1, k2, k3, k4 and 3 more"
