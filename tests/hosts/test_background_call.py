"""Calls that several threads make at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from joinery_runtime.hosts.background_call import run_at_once


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_all_calls_run_at_once_and_their_results_have_their_order(threads: ThreadPoolExecutor) -> None:
    all_are_running = threading.Barrier(3, timeout=30)

    def number(n: int) -> int:
        all_are_running.wait()
        return n

    assert run_at_once(threads, [partial(number, n) for n in range(3)]) == [0, 1, 2]


@pytest.mark.parametrize("failing", [[0], [0, 1], [1, 2], [2]])
def test_the_first_error_is_raised_when_no_call_runs_any_more(threads: ThreadPoolExecutor, failing: list[int]) -> None:
    """The next plan uses the same sources."""
    begun, ended = threading.Barrier(3, timeout=30), list[int]()

    def call(n: int) -> None:
        begun.wait()
        ended.append(n)
        if n in failing:
            raise ValueError(n)

    with pytest.raises(ValueError, match=str(failing[0])):
        run_at_once(threads, [partial(call, n) for n in range(3)])
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("calls", [[], [lambda: 1]])
def test_a_job_of_one_input_needs_no_thread(threads: ThreadPoolExecutor, calls: list[Callable[[], int]]) -> None:
    assert run_at_once(threads, calls) == [call() for call in calls]
    assert not threads._threads
