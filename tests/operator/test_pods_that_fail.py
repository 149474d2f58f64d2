"""A pod that fails is deleted and made again. The API server lets it go at once, and no watch has anything to tell that
the operator does not know from the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from simulated_cluster.simulation import resource
from simulated_cluster.whole_operator import WholeOperator
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
