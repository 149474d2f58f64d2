"""A comparison that cannot fail proves nothing: each of these one-off mistakes in the engine must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings

from budget import found_with
from core.cases import HISTORIES, Case, cases
from core.harness import check_against_oracle, few_hashes, merge_early
from core.random_counted import counted_cases
from core.random_deduplication import deduplicated_cases
from core.random_sessions import session_cases
from core.random_top_n import ranked_cases
from core.random_top_of_windows import top_of_windows_cases
from core.random_twice import twice_cases
from core.random_windows import windowed_cases
from joinery_runtime.core.aggregates import exact, lists, percentiles
from joinery_runtime.core.kinds import deduplicate, group_rows, grouping, interval, top_n
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.as_of import AsOfJoin
from joinery_runtime.core.kinds.deduplicate import Deduplicate
from joinery_runtime.core.kinds.folding import Folding
from joinery_runtime.core.kinds.group_rows import GroupOutput
from joinery_runtime.core.kinds.interval import IntervalJoin
from joinery_runtime.core.kinds.session import change as session_change
from joinery_runtime.core.kinds.session import form as session_form
from joinery_runtime.core.kinds.session import kind as session_kind
from joinery_runtime.core.kinds.session.kind import SessionAggregation
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.top_n import FirstRows
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.kinds.windowed import panes as window_panes
from joinery_runtime.core.kinds.windowed.kind import WindowAggregation
from joinery_runtime.core.pipeline import times
from joinery_runtime.core.pipeline.lateness import FutureRows
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.spec import StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StepRun, StepWork
from joinery_runtime.core.table.columns import EARLY, EARLY_FIELD, FORCED
from joinery_runtime.core.table.segment import Run
from joinery_runtime.engine.job_state import JobState

pytestmark = pytest.mark.search

Patch = pytest.MonkeyPatch
Kernel = Callable[[StepSpec, StepWork], StepRun]
KINDS: tuple[type[StepOperator], ...] = (
    *(IntervalJoin, WindowJoin, SessionWindowJoin, AsOfJoin, SessionAggregation, WindowAggregation),
    Deduplicate,
    FirstRows,
)


def kernel(wrapped: Callable[[Kernel, StepSpec, StepWork], StepRun]) -> Callable[[Patch], None]:
    """Every kernel, with this around it."""

    def breaks(patch: Patch) -> None:
        for kind in KINDS:
            patch.setattr(kind, "run", broken(kind.run))

    def broken(real: Any) -> Any:
        def run(step: StepSpec, work: StepWork) -> StepRun:
            return real(step.kind, step, work)

        return lambda self, step, work: wrapped(run, step, work)

    return breaks


def another_duration(**change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The kernel alone takes a duration for another."""

    def wrapped(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
        changed = {name: alter(getattr(step.kind, name)) for name, alter in change.items()}
        kind: Any = step.kind
        return run(replace(step, kind=replace(kind, **changed)), work)

    return kernel(wrapped)


def other_horizons(change: Callable[[Horizon], Horizon], *sides: int) -> Callable[[Patch], None]:
    def wrapped(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
        horizons = tuple(change(h) if side in sides else h for side, h in enumerate(work.horizons))
        return run(step, replace(work, horizons=horizons))

    return kernel(wrapped)


def forget_flags(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
    result = yield from run(step, work)
    return replace(result, flags=({},) * len(step.sides))


def keep_nothing_of_the_left(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
    result = yield from run(step, work)
    return replace(result, added=(None, result.added[RIGHT]))


def count_no_drops(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
    result = yield from run(step, work)
    return replace(result, dropped=({},) * len(step.sides))


def one_later(horizon: Horizon) -> Horizon:
    return horizon if horizon.current is None else Horizon(horizon.previous, min(horizon.current + 1, 2**63 - 1))


def without_before(horizon: Horizon) -> Horizon:
    return Horizon(None, horizon.current)


def late_by_one(patch: Patch) -> None:
    real = IntervalJoin.accept_from
    patch.setattr(
        IntervalJoin, "accept_from", lambda *arguments: tuple(None if at is None else at + 1 for at in real(*arguments))
    )


def nothing_is_still_to_go_out(patch: Patch) -> None:
    patch.setattr(interval, "_may_go_out", lambda side, horizons: horizons[side.part].current)


def greedy_compaction(patch: Patch) -> None:
    """Merges drop rows one millisecond early."""
    for kind in KINDS:
        patch.setattr(kind, "survivors", greedy(kind.survivors))


def greedy(real: Any) -> Any:
    return lambda self, step, side, runs, horizon: real(self, step, side, runs, one_later(horizon))


def forgetful_compaction(patch: Patch) -> None:
    """Merges lose the flags that came after a segment was written."""
    patch.setattr("joinery_runtime.engine.step_task.with_flags", lambda run, _: run)


def compaction_before_the_epoch(patch: Patch) -> None:
    """Merges lose the flags of the epoch that makes them."""
    patch.setattr("joinery_runtime.engine.step_task._with_new_flags", lambda state_run, _: state_run)


def horizons_go_back(patch: Patch) -> None:
    real = times.horizons
    patch.setattr(
        times,
        "horizons",
        lambda pipeline, now, floors: {
            part: replace(horizon, previous=floors.get(part)) for part, horizon in real(pipeline, now, {}).items()
        },
    )


def nothing_is_too_far_ahead(patch: Patch) -> None:
    patch.setattr(FutureRows, "find", lambda self, times, timestamps: {})


def no_following_epochs(patch: Patch) -> None:
    patch.setattr(JobState, "closes", lambda self, now: False)


# --- sessions ---------------------------------------------------------------------------------------------------------


def completes(change: Callable[[Horizon], Horizon]) -> Callable[[Patch], None]:
    """The horizon behind which sessions have gone out is taken for another."""
    return kernel(lambda run, step, work: run(step, replace(work, complete=change(work.complete))))


def nowhere(module: Any, name: str) -> Callable[[Patch], None]:
    """What the function says of each of some elements is never so."""
    real = getattr(module, name)
    return lambda patch: patch.setattr(module, name, lambda *arguments: real(*arguments) & False)


def other_changes(**change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    def breaks(patch: Patch) -> None:
        real = session_kind.change

        def changed(*arguments: Any) -> Any:
            original = real(*arguments)
            return replace(original, **{name: alter(getattr(original, name)) for name, alter in change.items()})

        patch.setattr(session_kind, "change", changed)

    return breaks


def never(flags: Any) -> Any:
    return flags & False


def every_row_passes(patch: Patch) -> None:
    """The condition on groups is true for all."""
    patch.setattr(group_rows, "filter_mask", lambda condition, columns, count, failures: np.ones(count, dtype=bool))


def nothing_is_too_large(patch: Patch) -> None:
    """A value that does not fit is NULL, and nobody is told."""
    patch.setattr(Folding, "find_misfits", lambda *_: {})


def unfit_rows_replace_nothing(patch: Patch) -> None:
    """A row that does not fit is not emitted in a changelog either."""
    real = GroupOutput._judge

    def judge(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        passes, unfit = real(*arguments)
        return passes & ~unfit, unfit

    patch.setattr(GroupOutput, "_judge", judge)


def conditions_read_null(patch: Patch) -> None:
    """A condition on a value that does not fit is not met."""
    real = GroupOutput._rows_with

    def rows_with(misfits: Any, names: Any, count: int) -> np.ndarray:
        return real(misfits, names if None in names else (), count)

    patch.setattr(GroupOutput, "_rows_with", staticmethod(rows_with))


def limits_are_forgotten(patch: Patch) -> None:
    """A group that has had too many values begins again."""
    for module in (lists, percentiles):
        patch.setattr(module, "lacks_lists", lambda states, groups: np.zeros(groups.count, dtype=bool))


def sums_lose_what_is_beyond(patch: Patch) -> None:
    """A sum keeps its lowest 64 bits."""
    real = exact.sums_of

    def sums_of(*arguments: Any) -> exact.Sums:
        low = real(*arguments).lower.low
        sign = low.view(np.int64) >> np.int64(63)
        return exact.Sums(exact.Wide(sign, low), sign)

    patch.setattr(exact, "sums_of", sums_of)


def takes_back_other_ids_only(patch: Patch) -> None:
    """A session is taken back under another id, but not because it no longer meets the condition."""
    real = session_kind._SessionEpoch._taken_back
    patch.setattr(
        session_kind._SessionEpoch,
        "_taken_back",
        lambda self, stored, changed: real(self, stored, changed) & changed.renamed,
    )


def windows_stay_as_emitted(patch: Patch) -> None:
    patch.setattr(WindowAggregation, "_emit_again", lambda *_: iter(()))


def early_results_again(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
    """What has not changed since the last early results is emitted with these, too."""
    return run(step, replace(work, early=without_before(work.early)))


def early_results_of_the_epoch(run: Kernel, step: StepSpec, work: StepWork) -> StepRun:
    """Rows count as emitted early by the epoch that they come with."""
    late = Horizon(work.early.previous, None if work.early.current is None else work.early.current + 1)
    result = yield from run(step, work)
    return replace(result, added=tuple(None if added is None else _written_at(added, late) for added in result.added))


def _written_at(added: Run, early: Horizon) -> Run:
    at = added.batch.schema.get_field_index(EARLY)
    before = pa.repeat(pa.scalar(-(2**63) if early.previous is None else early.previous - 1), len(added))
    return Run.view(added.batch.set_column(at, EARLY_FIELD, before))


def drops_what_was_kept(patch: Patch) -> None:
    """A session that grows counts its new rows only."""
    real = session_change._StateRows._kept_states

    def none_of(self: Any) -> Any:
        states, session_numbers = real(self)
        only_capped = ~self._sessions.filled[session_numbers]
        return states.filter(pa.array(only_capped)), session_numbers[only_capped]

    patch.setattr(session_change._StateRows, "_kept_states", none_of)


def emitted_is_forgotten(patch: Patch) -> None:
    real = session_kind.bool_column
    patch.setattr(session_kind, "bool_column", lambda rows, name: real(rows, name) & (name == FORCED))


# --- windows of aggregates --------------------------------------------------------------------------------------------


def counts_new_rows_only(patch: Patch) -> None:
    """A window that grows forgets what earlier epochs have counted."""
    real = window_panes.Panes.add

    def add(self: Any, rows: Any, stored: Any) -> Any:
        real(self, rows, stored)
        return self._fold(rows)

    patch.setattr(window_panes.Panes, "add", add)


def one_group_per_hash(patch: Patch) -> None:
    patch.setattr(grouping, "distinguish_keys", lambda hashes, _: np.zeros(len(hashes), dtype=np.int64))


# --- deduplication ----------------------------------------------------------------------------------------------------


def places_do_not_count(patch: Patch) -> None:
    """Of rows with one event time, any one is the first."""
    real = deduplicate.tie_breakers
    patch.setattr(deduplicate, "tie_breakers", lambda side, rows: [-tie_breaker for tie_breaker in real(side, rows)])


# --- top-N ------------------------------------------------------------------------------------------------------------


def turned_round(order: tuple[top_n.SortKey, ...]) -> tuple[top_n.SortKey, ...]:
    return tuple(replace(key, descending=not key.descending) for key in order)


def ranks_go_by_no_place(patch: Patch) -> None:
    real = top_n.tie_breakers
    patch.setattr(top_n, "tie_breakers", lambda side, rows: [-tie_breaker for tie_breaker in real(side, rows)])


def totals_of_first_rows(patch: Patch) -> None:
    """Rows that are not among the first ones leave although totals are of them."""
    real = top_n._RankedRows.first_of_panes

    def without_totals(ranked: Any) -> np.ndarray:
        kind = ranked._kind
        ranked._kind = replace(kind, totals=(), ordered=())
        first = real(ranked)
        ranked._kind = kind
        return first

    patch.setattr(top_n._RankedRows, "first_of_panes", without_totals)


# --- an aggregate of an aggregate -------------------------------------------------------------------------------------


def hands_on_its_own_horizon(kind: type[StepOperator]) -> Callable[[Patch], None]:
    """What an epoch emits is before the watermark that it hands on."""

    def output_watermarks(self: Any, step: StepSpec, lows: Any, horizons: Any, distance: Any) -> Any:
        return {**lows, step.sides[0].time: horizons[step.sides[0].part].current}

    return lambda patch: patch.setattr(kind, "output_watermarks", output_watermarks)


def next_window(patch: Patch) -> None:
    """A row of a window is in the window behind its own."""
    real = Windows.numbers_of

    def numbers_of(self: Windows, ts: np.ndarray) -> Any:
        first, last = real(self, ts)
        return (first + 1, last + 1) if self.of_windows else (first, last)

    patch.setattr(Windows, "numbers_of", numbers_of)


def panes_of_several_windows(patch: Patch) -> None:
    """A row of a window is in one pane with rows of the windows that overlap it."""
    patch.setattr(Windows, "pane", property(lambda self: self.size))


MISTAKES: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "a row is late one millisecond early": ("interval", late_by_one),
    "the upper bound is not included": ("interval", another_duration(upper=lambda ms: ms - 1)),
    "rows that matched are padded": ("interval", kernel(forget_flags)),
    "rows are padded again": ("interval", other_horizons(without_before, LEFT, RIGHT)),
    "a row is closed one millisecond early": ("interval", other_horizons(one_later, LEFT)),
    "rows do not wait": ("interval", kernel(keep_nothing_of_the_left)),
    "compaction drops a row too early": ("interval", greedy_compaction),
    "compaction forgets what matched": ("interval", forgetful_compaction),
    "padded rows wait for the next row": ("interval", no_following_epochs),
    "an edit brings back what was closed": ("interval", horizons_go_back),
    "rows that are too far ahead are let in": ("interval", nothing_is_too_far_ahead),
    "the broadcast side is closed early": ("broadcast", other_horizons(one_later, LEFT, RIGHT)),
    "a step closes what the step before still lets out": ("chain", nothing_is_still_to_go_out),
    "rows that matched are padded in a chain": ("chain", kernel(forget_flags)),
    "late rows of windows are not counted": ("fixed", kernel(count_no_drops)),
    "a window closes one millisecond early": ("fixed", other_horizons(one_later, LEFT, RIGHT)),
    "a window goes out again": ("fixed", other_horizons(without_before, LEFT, RIGHT)),
    "a gap is too small": ("session", another_duration(gap=lambda ms: ms - 1)),
    "a session goes out again": ("session", kernel(forget_flags)),
    "a version is gone one millisecond early": ("asof", other_horizons(one_later, RIGHT)),
    "a row goes out again": ("asof", other_horizons(without_before, LEFT)),
    "grace is not waited for": ("asof", another_duration(grace=lambda ms: 0)),
    "compaction drops a version too early": ("asof", greedy_compaction),
    "the gap of sessions is too small": ("sessions", another_duration(gap=lambda ms: ms - 1)),
    "the gap of sessions is too wide": ("sessions", another_duration(gap=lambda ms: ms + 1)),
    "sessions may reach the cap": ("sessions", another_duration(max_duration=lambda ms: ms + 1)),
    "a full session only ends": ("sessions", nowhere(session_form, "_forced")),
    "rows inside marks are let in": ("sessions", nowhere(session_form, "_inside_capped")),
    "late rows are let in": ("sessions", nowhere(session_form, "_touches_nothing")),
    "a session is forgotten one millisecond early": ("sessions", other_horizons(one_later, LEFT)),
    "a session is complete one millisecond early": ("sessions", completes(one_later)),
    "complete sessions go out again": ("sessions", completes(without_before)),
    "sessions that went out and grew go out again": ("sessions", emitted_is_forgotten),
    "sessions that changed do not go out again": ("sessions", other_changes(to_emit=never)),
    "nothing is taken back": ("sessions", other_changes(emitted=never)),
    "a session that does not meet the condition is emitted": ("sessions with having", every_row_passes),
    "a session that no longer meets the condition stays": ("sessions with having", takes_back_other_ids_only),
    "a session stays beside what it has become": ("sessions", kernel(forget_flags)),
    "a session forgets its rows when it grows": ("sessions", drops_what_was_kept),
    "one group takes the rows of another": ("sessions", one_group_per_hash),
    "compaction drops a session too early": ("sessions", greedy_compaction),
    "compaction keeps what a session was before": ("sessions", compaction_before_the_epoch),
    "complete sessions wait for the next row": ("sessions", no_following_epochs),
    "windows begin one millisecond later": (
        "windows",
        another_duration(windows=lambda windows: replace(windows, offset=windows.offset + 1)),
    ),
    "windows of aggregates are emitted one millisecond early": ("windows", other_horizons(one_later, LEFT)),
    "windows of aggregates are emitted again": ("windows", other_horizons(without_before, LEFT)),
    "late rows of aggregates are not counted": ("windows", kernel(count_no_drops)),
    "a window stays beside what it has become": ("windows", kernel(forget_flags)),
    "a window forgets its rows when it grows": ("windows", counts_new_rows_only),
    "one group's window takes the rows of another": ("windows", one_group_per_hash),
    "compaction drops a window too early": ("windows", greedy_compaction),
    "windows that end wait for the next row": ("windows", no_following_epochs),
    "a session that has not changed is emitted early again": ("early sessions", kernel(early_results_again)),
    "a session that changed is not emitted early": ("early sessions", kernel(early_results_of_the_epoch)),
    "an early result is not taken back": ("early sessions", other_changes(emitted=never)),
    "a window that has not changed is emitted early again": ("early windows", kernel(early_results_again)),
    "a window that changed is not emitted early": ("early windows", kernel(early_results_of_the_epoch)),
    "a window that reopens is not emitted again": ("reopened windows", windows_stay_as_emitted),
    "a window that does not meet the condition is emitted": ("windows with having", every_row_passes),
    "a value that does not fit is emitted": ("large windows", nothing_is_too_large),
    "a session whose value does not fit is emitted": ("large sessions", nothing_is_too_large),
    "a sum keeps its lowest 64 bits": ("large windows", sums_lose_what_is_beyond),
    "a group over its limit begins again": ("large sessions", limits_are_forgotten),
    "a row that does not fit leaves the one before": ("large reopened windows", unfit_rows_replace_nothing),
    "a condition on a value that does not fit is not met": ("large windows with having", conditions_read_null),
    "a span is one millisecond too long": ("deduplication", another_duration(within=lambda ms: ms + 1)),
    "rows are decided one millisecond early": ("deduplication", other_horizons(one_later, LEFT)),
    "what was decided is decided again": ("deduplication", other_horizons(without_before, LEFT)),
    "late rows of deduplication are not counted": ("deduplication", kernel(count_no_drops)),
    "repeats stay in the state": ("deduplication", kernel(forget_flags)),
    "one key takes the rows of another": ("deduplication", one_group_per_hash),
    "the order of places does not count": ("deduplication", places_do_not_count),
    "compaction drops the first row of a span too early": ("deduplication", greedy_compaction),
    "rows that are decided wait for the next row": ("deduplication", no_following_epochs),
    "one row more is emitted": ("top-N", another_duration(rows=lambda rows: rows + 1)),
    "the order is turned round": ("top-N", another_duration(order=turned_round)),
    "ranked windows are emitted one millisecond early": ("top-N", other_horizons(one_later, LEFT)),
    "ranked windows are emitted again": ("top-N", other_horizons(without_before, LEFT)),
    "late rows of top-N are not counted": ("top-N", kernel(count_no_drops)),
    "one key ranks the rows of another": ("top-N", one_group_per_hash),
    "rows that are equal are in any order": ("top-N", ranks_go_by_no_place),
    "compaction drops a ranked row too early": ("top-N", greedy_compaction),
    "ranked windows wait for the next row": ("top-N", no_following_epochs),
    "rows of windows are late": ("aggregates twice", hands_on_its_own_horizon(WindowAggregation)),
    "a row is in the window behind its own": ("aggregates twice", next_window),
    "the second windows are emitted again": ("aggregates twice", other_horizons(without_before, LEFT)),
    "one second group takes the rows of another": ("aggregates twice", one_group_per_hash),
    "second windows wait for the next row": ("aggregates twice", no_following_epochs),
    "first rows are handed on behind their watermark": (
        "aggregate behind deduplication",
        hands_on_its_own_horizon(Deduplicate),
    ),
    "counted rows wait for the next row": ("aggregate behind deduplication", no_following_epochs),
    "ranked rows of windows are late": ("top-N of windows", hands_on_its_own_horizon(WindowAggregation)),
    "a ranked row is in the window behind its own": ("top-N of windows", next_window),
    "equal rows of windows are in any order": ("top-N of windows", ranks_go_by_no_place),
    "rows of several windows displace each other": ("top-N of windows", panes_of_several_windows),
    "a total is of the first rows alone": ("top-N of windows", totals_of_first_rows),
    "ranked rows of windows wait for the next row": ("top-N of windows", no_following_epochs),
}

OF_ONE_INPUT = {
    "sessions": session_cases,
    "windows": windowed_cases,
    "deduplication": deduplicated_cases,
    "top-N": ranked_cases,
    "aggregates twice": twice_cases,
    "top-N of windows": top_of_windows_cases,
    "aggregate behind deduplication": counted_cases,
    "sessions with having": partial(session_cases, having=True),
    "windows with having": partial(windowed_cases, having=True),
    "early sessions": partial(session_cases, early=True),
    "early windows": partial(windowed_cases, early=True),
    "reopened windows": partial(windowed_cases, reopen=True),
    "large windows": partial(windowed_cases, large=True),
    "large sessions": partial(session_cases, large=True),
    "large reopened windows": partial(windowed_cases, large=True, reopen=True),
    "large windows with having": partial(windowed_cases, large=True, having=True),
}

# Seeds with which a mistake is found within a dozen examples; the others are with 1.
FOUND_WITH = {
    "equal rows of windows are in any order": 4,
    "a row is late one millisecond early": 2,
    "a row is closed one millisecond early": 3,
    "compaction drops a row too early": 23,
    "compaction forgets what matched": 6,
    "padded rows wait for the next row": 7,
    "an edit brings back what was closed": 4,
    "the broadcast side is closed early": 2,
    "rows that matched are padded in a chain": 2,
    "a version is gone one millisecond early": 3,
    "compaction drops a version too early": 5,
    "late rows are let in": 2,
    "a session is forgotten one millisecond early": 2,
    "a session is complete one millisecond early": 7,
    "nothing is taken back": 7,
    "one group takes the rows of another": 2,
    "compaction drops a session too early": 11,
    "compaction drops the first row of a span too early": 3,
}

# What the comparison says, not an assertion of the engine's own.
DIFFERENCE = (
    r"(?s)^(epoch \d+, .*(missing|unexpected) row|drops of epoch|rows wait|epochs without rows go on|versions go)"
)


# Found after half a minute, in `make test-slow`: few histories meet them.
RARE = {
    "compaction drops a session too early",
    "sessions that went out and grew go out again",
    "compaction drops a window too early",
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=[pytest.mark.slow] * (name in RARE)) for name in MISTAKES]
)
def test_the_oracle_finds_a_broken_engine(mistake: str, monkeypatch: Patch) -> None:
    merge_early(monkeypatch)
    kind, breaks = MISTAKES[mistake]
    breaks(monkeypatch)

    def check(case: Case) -> None:
        if kind in OF_ONE_INPUT:
            check_against_oracle(case, few_hashes(2))
        else:
            check_against_oracle(case)

    def search() -> None:
        # What is drawn depends on the number, too: with thousands the first histories are small.
        for number in (14, 3000):
            limits = settings(HISTORIES, max_examples=number, database=None, phases=[Phase.generate])
            histories = given(case=OF_ONE_INPUT[kind]() if kind in OF_ONE_INPUT else cases(kind))(check)
            found_with(FOUND_WITH.get(mistake, 1))(settings(limits, report_multiple_bugs=False)(histories))()

    with pytest.raises(AssertionError, match=DIFFERENCE):
        search()
