"""Random histories of window joins through the kernels, epoch by epoch the same rows as by nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budget import examples
from core.kinds.window_brute_force import SessionBruteForce, TumblingBruteForce
from core.kinds.window_steps import PRESERVED, Joined, Row, Shard, WindowRule, one_hash, real_hash, window_step
from core.random_windows import CHANGES, HOUR
from core.random_windows import LOCAL_WINDOWS as ANY_LOCAL_WINDOWS
from joinery_runtime.core.kinds import cells, window
from joinery_runtime.core.kinds import rows as core_rows
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, END_OF_TIME

LOCAL_WINDOWS = [window for window in ANY_LOCAL_WINDOWS if "cumulative" not in window]
RESIDUAL = "l.v % 3 <> r.v % 3"
# v is the position in the history: unique.
Facts = tuple[int, str | None, int, bool]  # side, key, ts, good
facts = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["a", "a", "b", None]),
    st.integers(-12, 25),
    st.sampled_from([True] * 5 + [False]),
)
epochs = st.lists(st.tuples(st.integers(0, 9), st.lists(facts, max_size=7), st.booleans()), min_size=1, max_size=6)
tumbling = st.builds(
    lambda slide, more, offset: WindowJoin(Windows(slide + more, slide, offset)),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(0, 4),
)
sessions = st.builds(SessionWindowJoin, st.integers(1, 6))
kinds = st.sampled_from(sorted(PRESERVED))
hashers = st.sampled_from([real_hash, one_hash])
QUICK = settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])


def brute_force(rule: WindowRule, kind: str, differ: bool) -> Any:
    return (
        TumblingBruteForce(rule, kind, differ)
        if isinstance(rule, WindowJoin)
        else SessionBruteForce(rule, kind, differ)
    )


def arrivals(row_facts: Sequence[Facts], first: int) -> tuple[list[Row], list[Row]]:
    rows: tuple[list[Row], list[Row]] = ([], [])
    for v, (side, key, ts, good) in enumerate(row_facts, first):
        rows[side].append(Row(key, ts, v, good))
    return rows


@QUICK
@given(
    rule=tumbling | sessions, kind=kinds, differ=st.booleans(), hasher=hashers, history=epochs, most=st.integers(1, 9)
)
def test_every_epoch_puts_out_the_same(
    rule: Any, kind: str, differ: bool, hasher: Any, history: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cells, window, core_rows):
        monkeypatch.setattr(module, "PROJECTED_ROWS", most)
    shard = Shard(window_step(rule, kind, RESIDUAL if differ else None), hasher)
    expected = brute_force(rule, kind, differ)
    now, seen = -15, 0
    for step, row_facts, compact in [*history, (END_OF_TIME, [], False)]:
        now = min(now + step, END_OF_TIME)
        rows = arrivals(row_facts, seen)
        seen += len(row_facts)
        assert shard.epoch(now, *rows) == expected.epoch(now, rows)
        assert shard.late() == tuple(expected.late)
        assert all(batch.num_rows <= most for batch in shard.last.output)
        if compact:
            shard.compact()
    if isinstance(rule, SessionWindowJoin):
        assert shard.segments == ([], []), "what has gone out is finished"


@QUICK
@given(window=st.sampled_from(LOCAL_WINDOWS), change=st.sampled_from(CHANGES), kind=kinds, history=epochs)
def test_windows_of_a_zone_also_around_a_change_of_its_clocks(
    window: Any, change: tuple[str, str], kind: str, history: Any
) -> None:
    lengths = {name: hours * HOUR for name, hours in next(iter(window.values())).items()}
    size, zone = lengths["size"], change[0]
    rule = WindowJoin(Windows(size, lengths.get("slide", size), lengths.get("offset", 0), zone=zone))
    changed = round(datetime.fromisoformat(change[1]).timestamp() * 1000)
    shard, expected = Shard(window_step(rule, kind)), brute_force(rule, kind, differ=False)
    now, seen = changed - 15 * HOUR, 0
    for step, row_facts, _ in [*history, (END_OF_TIME, [], False)]:
        now = min(now + step * HOUR, END_OF_TIME)
        rows = arrivals([(side, key, changed + ts * HOUR, good) for side, key, ts, good in row_facts], seen)
        seen += len(row_facts)
        assert shard.epoch(now, *rows) == expected.epoch(now, rows)
        assert shard.late() == tuple(expected.late)


@QUICK
@given(rule=tumbling | sessions, kind=kinds, row_facts=st.lists(facts, max_size=20), cuts=st.sets(st.integers(0, 20)))
def test_where_epochs_are_cut_changes_nothing_in_all_when_no_row_is_late(
    rule: Any, kind: str, row_facts: Any, cuts: Any
) -> None:
    row_facts = sorted(row_facts, key=lambda f: f[2])
    pieces = [row_facts[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 99], strict=True)]
    assert in_all(rule, kind, pieces) == in_all(rule, kind, [row_facts])


def in_all(rule: WindowRule, kind: str, pieces: Sequence[Sequence[Facts]]) -> Counter[Joined]:
    """Rows come in order of time, each epoch's horizon is what the epochs before have reached."""
    shard, seen, now, out = Shard(window_step(rule, kind)), 0, BEGIN_OF_TIME, Counter[Joined]()
    for piece in pieces:
        out += shard.epoch(now, *arrivals(piece, seen))
        assert shard.late() == (0, 0)
        seen += len(piece)
        now = max([now, *(ts for _, _, ts, _ in piece)])
    return out + shard.epoch(END_OF_TIME)
