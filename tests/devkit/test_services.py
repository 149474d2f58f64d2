"""One process owns the servers of a run: each is started once, some while others start, and all end with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from joinery_devkit import services
from joinery_devkit.services import SharedServices, address_of


@pytest.fixture(autouse=True)
def another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of this test itself."""
    monkeypatch.setattr(services, "_SOCKET", "JOINERY_TEST_OF_SERVICES")


def test_each_is_started_once_may_ask_for_another_and_ends_before_it() -> None:
    events: list[str] = []

    @contextmanager
    def lower() -> Iterator[str]:
        events.append("lower starts")
        yield "below"
        events.append("lower ends")

    @contextmanager
    def upper() -> Iterator[str]:
        events.append("upper starts")
        yield f"on {address_of('lower')}"
        events.append("upper ends")

    shared = SharedServices({"lower": lower, "upper": upper})
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(address_of, ["upper"] * 4)) == ["on below"] * 4
    shared.close()

    assert events == ["upper starts", "lower starts", "upper ends", "lower ends"]


def test_two_start_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    @contextmanager
    def starts_beside_the_other() -> Iterator[str]:
        both.wait()
        yield "up"

    shared = SharedServices({"left": starts_beside_the_other, "right": starts_beside_the_other})
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(address_of, ["left", "right"])) == ["up", "up"]
    shared.close()


def test_one_that_does_not_start_says_why_to_who_asks() -> None:
    @contextmanager
    def broken() -> Iterator[str]:
        raise ValueError("no such program")
        yield ""

    shared = SharedServices({"broken": broken})
    with pytest.raises(RuntimeError, match="the shared broken does not start: ValueError: no such program"):
        address_of("broken")
    shared.close()
