from __future__ import annotations

import pytest

from joinery_runtime.errors import IncompatibleState
from joinery_runtime.state.migrations import (
    CURRENT_STATE_VERSION,
    MIGRATIONS,
    check_chain,
    migrate,
    readable_from,
    unchanged,
)

CHAIN = {number: lambda blob, number=number: blob + bytes([number]) for number in (1, 2, 3)}


def test_the_steps_run_in_order() -> None:
    assert migrate(b"", 1, 4, CHAIN) == b"\x01\x02\x03"
    assert migrate(b"x", 2, 3, CHAIN) == b"x\x02"
    assert migrate(b"x", 3, 3, CHAIN) == b"x"


def test_a_missing_step_is_named_before_any_runs() -> None:
    def never(blob: bytes) -> bytes:
        raise AssertionError

    with pytest.raises(IncompatibleState, match=r"from state_version 2 to 3: .* has versions \[1\], .* needs 4"):
        migrate(b"", 1, 4, {1: never, 3: never})


def test_newer_state_is_refused() -> None:
    with pytest.raises(IncompatibleState, match=r"newer than this release: it has state_version 4: .* up to 3"):
        migrate(b"", 4, 3, CHAIN)


def test_the_oldest_blob_decides_which_steps_are_needed() -> None:
    check_chain([], 4, {})
    check_chain([4, 3, 4], 4, {3: CHAIN[3]})
    with pytest.raises(IncompatibleState, match="from state_version 1 to 2"):
        check_chain([3, 1], 4, {3: CHAIN[3]})


def test_versions_that_are_read_as_they_are_reach_back_to_the_last_step_that_changes_something() -> None:
    assert readable_from(4, CHAIN) == 4
    assert readable_from(4, {**CHAIN, 3: unchanged}) == 3
    assert readable_from(4, {**CHAIN, 2: unchanged}) == 4
    assert readable_from(4, dict.fromkeys((1, 2, 3), unchanged)) == 1
    assert migrate(b"x", 1, 4, {1: unchanged, 2: CHAIN[2], 3: unchanged}) == b"x\x02"


def test_this_release_reads_every_version_that_was_released_as_it_is() -> None:
    assert readable_from(CURRENT_STATE_VERSION, MIGRATIONS) == 1


def test_this_release_migrates_every_version_that_was_released() -> None:
    check_chain([1], CURRENT_STATE_VERSION, MIGRATIONS)
