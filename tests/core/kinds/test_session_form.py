"""`form` against one row at a time, as rules S1 to S3 say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.core.kinds.session.form import Elements, form

Span = tuple[int, int]


def one_by_one(stored_spans: list[Span], rows: list[int], gap: int, cap: int) -> tuple[list[Span], list[Span]]:
    """Open sessions, and those that reached the cap, after these rows in order of event time."""
    sessions, forced = [list(span) for span in stored_spans], []
    for ts in sorted(rows):
        if any(start <= ts <= last for start, last in sessions):
            continue
        before = max((s for s in sessions if s[1] < ts and ts - s[1] <= gap), key=lambda s: s[1], default=None)
        after = min((s for s in sessions if s[0] > ts and s[0] - ts <= gap), key=lambda s: s[0], default=None)
        if before and after and after[1] - before[0] < cap:
            before[1] = after[1]
            sessions.remove(after)
        elif before and ts - before[0] < cap:
            before[1] = ts
        elif after and after[1] - ts < cap:
            after[0] = ts
        else:
            if before:
                sessions.remove(before)
                forced.append((before[0], before[1]))
            sessions.append([ts, ts])
    return sorted((start, last) for start, last in sessions), sorted(forced)


times = st.lists(st.integers(-20, 80), max_size=16)


@given(
    keys=st.lists(st.lists(times, min_size=1, max_size=3), min_size=1, max_size=4),
    gap=st.integers(0, 30),
    cap=st.integers(1, 60),
)
def test_arrays_give_what_rows_one_by_one_do(keys: list[list[list[int]]], gap: int, cap: int) -> None:
    """Per key some epochs; all but the last one make what is kept."""
    expected: list[tuple[int, int, int, bool]] = []
    elements: list[tuple[int, int, int, int]] = []
    for number, epochs in enumerate(keys):
        stored_spans: list[Span] = []
        for rows in epochs[:-1]:
            stored_spans, _ = one_by_one(stored_spans, rows, gap, cap)
        _expect(number, stored_spans, epochs[-1], (gap, cap), expected, elements)
    _check(elements, expected, gap, cap)


@given(
    keys=st.lists(st.tuples(st.lists(st.integers(-20, 80), max_size=8, unique=True), times), min_size=1, max_size=4),
    gap=st.integers(0, 30),
    cap=st.integers(1, 60),
)
def test_what_was_kept_under_another_gap_and_cap(keys: list[tuple[list[int], list[int]]], gap: int, cap: int) -> None:
    """Any sessions that do not overlap."""
    expected: list[tuple[int, int, int, bool]] = []
    elements: list[tuple[int, int, int, int]] = []
    for number, (ends, rows) in enumerate(keys):
        ends.sort()
        stored_spans = [(start, last) for start, last in zip(ends[::2], ends[1::2], strict=False)]
        _expect(number, stored_spans, rows, (gap, cap), expected, elements)
    _check(elements, expected, gap, cap)


def _expect(
    number: int,
    stored_spans: list[Span],
    rows: list[int],
    lengths: tuple[int, int],
    expected: list[tuple[int, int, int, bool]],
    elements: list[tuple[int, int, int, int]],
) -> None:
    opened, forced = one_by_one(stored_spans, rows, *lengths)
    expected += [(number, *span, False) for span in opened] + [(number, *span, True) for span in forced]
    elements += [(number, start, 0, last) for start, last in stored_spans]
    elements += [(number, ts, 1, ts) for ts in rows]


def _check(
    elements: list[tuple[int, int, int, int]], expected: list[tuple[int, int, int, bool]], gap: int, cap: int
) -> None:
    if not elements:
        return
    key, start, row, end = (np.array(column) for column in zip(*sorted(elements), strict=True))
    first = np.concatenate([[True], key[1:] != key[:-1]])
    formed = form(Elements(first, row == 1, start, end), gap, cap)
    columns = (key[formed.begin], formed.start, formed.last, formed.forced)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(expected)


def test_many_rows_of_one_key_cross_the_cap_many_times() -> None:
    n = 200_000
    start = np.arange(n)
    first = start == 0
    formed = form(Elements(first, np.ones(n, dtype=bool), start, start), gap=1, max_duration=3)
    assert formed.start.tolist() == list(range(0, n, 3))
    assert formed.forced.tolist() == [True] * (len(formed.start) - 1) + [False]


def test_event_times_far_apart_do_not_leave_the_range() -> None:
    """Chains whose lengths add up to more than int64 are cut a few at a time."""
    long = 2**50
    start = np.tile(np.array([0, long, 2 * long]), 20_000)
    first = np.tile(np.array([True, False, False]), 20_000)
    formed = form(Elements(first, np.ones(len(start), dtype=bool), start, start), gap=long, max_duration=long + 1)
    assert formed.last[:2].tolist() == [long, 2 * long]
    assert len(formed.begin) == 40_000
