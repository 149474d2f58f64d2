"""What the operator learns from an answer of the API server is no news in a watch, and is acted on all the same: that a
pod that failed went at once when it was deleted, say, so that another one is made."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from simulated_cluster.simulation import resource
from simulated_cluster.whole_operator import Trouble, WholeOperator
from test_refused_writes import SAVEPOINT, Act, edit, start

AWAY = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}


@dataclass
class FailingOnce(WholeOperator):
    """The first pod with that in its name fails."""

    fails: str | None = None

    def _works(self, name: str) -> None:
        if self.fails is None or self.fails not in name:
            super()._works(name)
        else:
            self.fails = None
            self.end(name, AWAY)


async def live(fails: str, *acts: Act) -> FailingOnce:
    cluster = FailingOnce(None, fails=fails)
    async with cluster.api:
        for act in acts:
            act(cluster)
            await cluster.settle()
    assert cluster.fails is None
    assert cluster.seconds < 60
    return cluster


def test_the_pod_that_deletes_the_state() -> None:
    cluster = asyncio.run(live("delete-state", start, lambda cluster: cluster.delete_owner("StreamJoin", "orders")))
    assert cluster.database.deleted
    assert cluster.resource is None


def test_the_pod_of_a_savepoint() -> None:
    cluster = asyncio.run(live("-create", start, lambda cluster: cluster.apply(SAVEPOINT)))
    assert cluster.savepoint is not None
    assert cluster.savepoint["status"]["phase"] == "Completed"


def test_the_pod_that_deletes_a_savepoint() -> None:
    cluster = asyncio.run(
        live(
            "-delete",
            start,
            lambda cluster: cluster.apply(SAVEPOINT),
            lambda cluster: cluster.delete_owner("Savepoint", "noon"),
        )
    )
    assert cluster.savepoint is None


@pytest.mark.parametrize("suspended", [False, True])
def test_the_check_of_an_edit(suspended: bool) -> None:
    acts = [edit(suspend=True)] if suspended else []
    cluster = asyncio.run(live("-check-", start, *acts, edit(suspend=False, trigger={"maxRecordsPerEpoch": 8})))
    assert cluster.status.phase == "Running"
    assert cluster.status.revision == cluster.status.target_revision


def test_a_check_that_has_no_node_and_is_of_no_use_any_more() -> None:
    """An edit of how the job takes over needs another one."""
    cluster = WholeOperator(resource())

    async def act() -> None:
        async with cluster.api:
            await cluster.settle()
            cluster.edit(trigger={"maxRecordsPerEpoch": 8})
            await cluster.settle(lambda: any("-check-" in name for name in cluster.pods))
            cluster.edit(upgrade={"mode": "stateless"})
            await cluster.settle()

    asyncio.run(act())
    assert cluster.status.revision == cluster.status.target_revision
    assert len(cluster.database.dropped) == 1


def test_a_driver_that_ends_while_it_is_told_of_another_scale() -> None:
    cluster = WholeOperator(resource())

    def ends(method: str, path: str) -> None:
        if method == "PATCH" and "/pods/" in path and cluster.pods["orders-driver-1"]["status"]["phase"] == "Running":
            cluster.end("orders-driver-1", AWAY)
            cluster.server._touched(cluster.pods["orders-driver-1"])

    async def act() -> None:
        async with cluster.api:
            await cluster.settle()
            cluster.server.before = ends
            cluster.edit(shards=16)
            await cluster.settle()

    asyncio.run(act())
    assert cluster.status.phase == "Running"
    assert cluster.status.driver is not None
    assert cluster.status.driver.number == 2


def test_a_driver_that_ends_before_the_operator_has_the_answer_that_it_was_made() -> None:
    cluster = WholeOperator(resource())

    def takes_long(method: str, path: str) -> None:
        cluster._pull()
        driver = cluster.pods.get("orders-driver-2")
        if method == "GET" and path.endswith("/orders-driver-2") and driver and driver["status"]["phase"] == "Pending":
            cluster.run("orders-driver-2")
            cluster.end("orders-driver-2", AWAY)
            cluster.server._touched(driver)

    async def act() -> None:
        async with cluster.api:
            await cluster.settle()
            cluster.end("orders-driver-1", AWAY)
            await cluster.settle(lambda: cluster.status.phase == "Pending")
            cluster.server.writes.clear()
            # The status of the attempt, then its pod.
            cluster.server.trouble = Trouble(1, 0, takes_effect=True)
            cluster.server.before = takes_long
            await cluster.settle()

    asyncio.run(act())
    assert cluster.server.trouble is not None
    assert cluster.server.trouble.call.endswith("/pods/orders-driver-2")
    assert cluster.status.phase == "Running"
    assert [*cluster.pods] == ["orders-driver-3"]


def test_a_repair_that_a_webhook_undoes_is_not_tried_all_the_time() -> None:
    cluster = WholeOperator(resource())

    def undoes(method: str, path: str) -> tuple[int, Any] | None:
        name = path.rpartition("/")[2]
        if method != "PATCH" or "/pods/" not in path:
            return None
        cluster.server._touched(cluster.pods[name])
        return 200, deepcopy(cluster.pods[name])

    async def act() -> None:
        async with cluster.api:
            await cluster.settle()
            cluster.server.before = undoes
            cluster.pods["orders-driver-1"]["metadata"]["labels"].pop("joinery.dev/role")
            cluster.server.calls.clear()
            await cluster.settle(lambda: cluster.seconds > 600)

    asyncio.run(act())
    assert 1 <= cluster.server.calls.count("PATCH pods") < 5
