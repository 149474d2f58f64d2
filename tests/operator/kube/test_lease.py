"""Replicas that share a Lease, on an API server in memory, by a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from joinery_operator.kube.lease import LEASE_SECONDS, POLL_SECONDS, OperatorLease
from simulated_cluster.memory_server import MemoryApi, MemoryServer

START = datetime(2026, 11, 28, tzinfo=UTC)


class Replicas:
    """Their clocks start at different times, as those of machines do. `wait` is all that lets time pass."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.seconds = 0.0
        self._changed = asyncio.Event()

    def replica(self, name: str, clock_ahead: float = 0.0) -> OperatorLease:
        api = MemoryApi(self.server)
        now = lambda: START + timedelta(seconds=self.seconds - clock_ahead)  # noqa: E731
        return OperatorLease(
            api, "joinery", "operator", name, now, clock=lambda: self.seconds + clock_ahead, sleep=self._sleep
        )

    async def _sleep(self, seconds: float) -> None:
        end = self.seconds + seconds
        while self.seconds < end:
            self._changed.clear()
            await self._changed.wait()

    async def pass_time(self, seconds: float) -> None:
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += 0.5
            self._changed.set()
            for _ in range(20):
                await asyncio.sleep(0)

    @property
    def holder(self) -> str:
        lease = self.server.get("Lease", "joinery", "operator")
        return "" if lease is None else lease["spec"]["holderIdentity"]


def run(test: Callable[[Replicas], Awaitable[None]]) -> None:
    async def with_replicas() -> None:
        await test(Replicas())

    asyncio.run(with_replicas())


async def both(replicas: Replicas) -> tuple[OperatorLease, OperatorLease, asyncio.Task[None]]:
    """One that works, one that stands by, and the wait of that one."""
    first, second = replicas.replica("first"), replicas.replica("second", clock_ahead=3600)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await replicas.pass_time(LEASE_SECONDS * 3)
    assert (replicas.holder, waiting.done(), first.lost.done()) == ("first", False, False)
    return first, second, waiting


def test_a_standby_takes_over_once_the_holder_renews_no_more() -> None:
    async def test(replicas: Replicas) -> None:
        first, second, waiting = await both(replicas)
        first.lost.cancel()  # its process was killed
        await replicas.pass_time(LEASE_SECONDS - POLL_SECONDS - 3)
        assert not waiting.done()
        await replicas.pass_time(POLL_SECONDS * 2 + 3)
        assert (replicas.holder, waiting.done()) == ("second", True)
        lease = replicas.server.get("Lease", "joinery", "operator")
        assert lease is not None
        assert lease["spec"]["leaseTransitions"] == 2
        await second.release()

    run(test)


def test_a_holder_that_ends_leaves_the_lease_at_once() -> None:
    async def test(replicas: Replicas) -> None:
        first, second, waiting = await both(replicas)
        await first.release()
        await replicas.pass_time(POLL_SECONDS)
        assert (replicas.holder, waiting.done()) == ("second", True)
        await second.release()

    run(test)


def test_a_holder_that_was_cut_off_stands_by_when_it_is_back() -> None:
    async def test(replicas: Replicas) -> None:
        first, second, waiting = await both(replicas)
        cut_off = True

        async def send(*arguments: object) -> object:
            return await (unreachable if cut_off else reachable)(*arguments)

        async def unreachable(*_: object) -> object:
            raise TimeoutError

        reachable = first._api._send
        first._api._send = send  # type: ignore[method-assign, assignment]
        await replicas.pass_time(LEASE_SECONDS + POLL_SECONDS)
        assert (replicas.holder, waiting.done(), first.lost.done()) == ("second", True, False)
        cut_off = False
        await replicas.pass_time(7)
        assert first.lost.done()
        again = asyncio.create_task(first.acquire())
        await replicas.pass_time(LEASE_SECONDS * 2)
        assert (replicas.holder, again.done()) == ("second", False)
        again.cancel()
        await second.release()

    run(test)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_lease_that_a_person_changes_or_deletes_is_renewed_again(deletes: bool) -> None:
    async def test(replicas: Replicas) -> None:
        first, _, waiting = await both(replicas)
        if deletes:
            replicas.server.remove("Lease", "joinery", "operator")
        else:
            replicas.server.change("Lease", "joinery", "operator", lambda lease: lease["metadata"].update(labels={}))
        waiting.cancel()
        await replicas.pass_time(LEASE_SECONDS)
        assert (replicas.holder, first.lost.done()) == ("first", False)
        await first.release()

    run(test)


def test_two_that_start_at_once_agree() -> None:
    async def test(replicas: Replicas) -> None:
        leases = [replicas.replica(name) for name in ("first", "second")]
        waits = [asyncio.create_task(lease.acquire()) for lease in leases]
        await replicas.pass_time(LEASE_SECONDS)
        assert sorted(wait.done() for wait in waits) == [False, True]
        for wait, lease in zip(waits, leases, strict=True):
            wait.cancel()
            await lease.release()

    run(test)


def test_how_often_it_writes() -> None:
    """A standby only reads."""

    async def test(replicas: Replicas) -> None:
        first, _, waiting = await both(replicas)
        replicas.server.calls.clear()
        await replicas.pass_time(60)
        assert replicas.server.calls.count("PUT leases") == 20
        assert replicas.server.calls.count("GET leases") == 30
        waiting.cancel()
        await first.release()

    run(test)
