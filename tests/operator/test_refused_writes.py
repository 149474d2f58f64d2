"""Whatever the API server answers to a write of the operator's, once or five times, a job ends where it would have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest

from budget import LARGE
from joinery_operator.kube.resources import ALL_CHILDREN
from joinery_operator.settings import Settings
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.simulation import IMAGE, resource
from simulated_cluster.whole_operator import BROKEN_TRIGGER, Trouble, WholeOperator

ROUTE = {"parentRefs": [{"name": "public", "namespace": "edge"}]}
SETTINGS = Settings(
    runtime_image=IMAGE,
    status_from="[]",
    page_url="https://joinery.example.com/{namespace}/{name}/",
    page_ingress="{}",
    page_route=json.dumps(ROUTE),
)
SAVEPOINT = {
    "apiVersion": API_VERSION,
    "kind": "Savepoint",
    "metadata": {"name": "noon", "namespace": "shop"},
    "spec": {"job": {"kind": "StreamJoin", "name": "orders"}, "cleanup": "delete"},
}
CHILDREN = {resource.plural for resource in ALL_CHILDREN}
Act = Callable[[WholeOperator], object]


@dataclass(frozen=True)
class Life:
    """What has happened before, and the part whose writes are answered otherwise."""

    act: Act
    before: tuple[Act, ...] = ()


def lose_labels(cluster: WholeOperator) -> None:
    for found in (*cluster.pods.values(), *cluster.services.values(), *cluster.config_maps.values()):
        found["metadata"]["labels"]["joinery.dev/role"] = "nobody's"


def start(cluster: WholeOperator) -> None:
    cluster.apply(resource(cleanup="deleteState"))


def edit(**spec: Any) -> Act:
    return lambda cluster: cluster.edit(**spec)


def fails(cluster: WholeOperator) -> None:
    (name,) = cluster.pods
    cluster.end(name, None)


LIVES = {
    "first start": Life(start),
    "restart after a failure": Life(fails, (start,)),
    "rollout": Life(edit(trigger={"maxRecordsPerEpoch": 8}), (start,)),
    "rollback": Life(edit(trigger={"maxRecordsPerEpoch": BROKEN_TRIGGER}), (start,)),
    "scale": Life(edit(shards=16), (start,)),
    "suspension": Life(edit(suspend=True), (start,)),
    "resumption": Life(edit(suspend=False), (start, edit(suspend=True))),
    "state given up": Life(edit(upgrade={"mode": "stateless"}, trigger={"maxRecordsPerEpoch": 8}), (start,)),
    "repair": Life(lose_labels, (start,)),
    "deletion with the state": Life(lambda cluster: cluster.delete_owner("StreamJoin", "orders"), (start,)),
    "state that is kept after all": Life(edit(cleanup="retainState"), (start,)),
    "savepoint": Life(lambda cluster: cluster.apply(SAVEPOINT), (start,)),
    "savepoint that goes": Life(
        lambda cluster: cluster.delete_owner("Savepoint", "noon"), (start, lambda cluster: cluster.apply(SAVEPOINT))
    ),
}
ANSWERS = {
    "conflict": (409, False),
    "invalid": (422, False),
    "forbidden": (403, False),
    "too many requests": (429, False),
    "error": (500, False),
    "away": (503, False),
    "no answer": (0, False),
    "no answer, and done": (0, True),
    "error, and done": (500, True),
}


async def live(
    life: Life, trouble: Trouble | None = None, until: Callable[[WholeOperator], bool] = lambda _: False
) -> WholeOperator:
    cluster = WholeOperator(None, settings=SETTINGS)
    async with cluster.api:
        for act in life.before:
            act(cluster)
            await cluster.settle()
        cluster.server.writes.clear()
        cluster.server.created_pods.clear()
        cluster.server.trouble = trouble
        life.act(cluster)
        await cluster.settle(lambda: until(cluster))
    return cluster


def end_of(cluster: WholeOperator) -> dict[str, Any]:
    """What must be the same whatever happened on the way."""
    owners = [each for each in (cluster.resource, cluster.savepoint) if each is not None]
    children = [found for (plural, _, _), found in sorted(cluster.server.objects.items()) if plural in CHILDREN]
    return {
        "objects": sorted(f"{plural} {name}" for plural, _, name in cluster.server.objects if plural != "events"),
        "finalizers": [each["metadata"].get("finalizers", []) for each in owners],
        "phases": [each["status"]["phase"] for each in owners],
        "conditions": [
            (each["type"], each["status"], each["reason"]) for owner in owners for each in owner["status"]["conditions"]
        ],
        "labels": [found["metadata"]["labels"] for found in children],
        "annotations": [pod["metadata"].get("annotations") for pod in cluster.pods.values()],
        "created": cluster.server.created_pods,
        "deleted": cluster.database.deleted,
        "dropped": cluster.database.dropped,
        "rolled back": sorted(cluster.database.rolled_back),
        "misread": cluster.database.misread,
    }


def write_of(life: Life, call: str) -> int:
    """The number of the first such write."""
    writes = asyncio.run(live(life)).server.writes
    return next(number for number, each in enumerate(writes) if call in each)


def ends_the_same(life: Life, troubles: Iterable[Trouble]) -> None:
    expected = end_of(asyncio.run(live(life)))
    for trouble in troubles:
        told = str(trouble)
        disturbed = asyncio.run(live(life, trouble))
        assert trouble.call
        assert end_of(disturbed) == expected, f"{told}: {trouble.call}"


@pytest.mark.parametrize("name", LIVES)
def test_it_ends_the_same(name: str) -> None:
    """All writes with all answers are some 2,000 lives: the small budget draws the same few of them on every run."""
    writes = range(len(asyncio.run(live(LIVES[name])).server.writes))
    assert writes
    every = [
        Trouble(write, code, times, takes_effect)
        for write, (code, takes_effect), times in product(writes, ANSWERS.values(), (1, 5))
    ]
    ends_the_same(LIVES[name], every if LARGE else Random(name).sample(every, 6))


@pytest.mark.parametrize("refused", ["networkpolicies", "services", "ingresses", "httproutes"])
def test_a_way_in_that_was_refused_for_a_while_is_no_fault_any_more(refused: str) -> None:
    """The driver runs, and no watch reports anything after the operator's own write."""
    life = LIVES["first start"]
    ends_the_same(life, [Trouble(write_of(life, f"/{refused}/"), 422, 5)])


FOR_EVER = 10**6


WAYS_IN = ("networkpolicies", "services", "ingresses", "httproutes")


@pytest.mark.parametrize("refused", WAYS_IN)
def test_a_way_in_that_is_refused_for_ever_keeps_no_other_away(refused: str) -> None:
    trouble = Trouble(write_of(LIVES["first start"], f"/{refused}/"), 403, FOR_EVER)

    def others_are_there(cluster: WholeOperator) -> bool:
        there = {plural for plural, _, _ in cluster.server.objects}
        return {*WAYS_IN} - {refused} <= there and cluster.status.phase == "Running"

    cluster = asyncio.run(live(LIVES["first start"], trouble, others_are_there))
    assert refused not in {plural for plural, _, _ in cluster.server.objects}


def test_a_repair_that_is_refused_for_ever_keeps_no_rollout_from_its_end() -> None:
    """The pod's labels, as an admission policy may do."""
    life = Life(
        lambda cluster: (lose_labels(cluster), cluster.edit(trigger={"maxRecordsPerEpoch": 8})),  # type: ignore[func-returns-value]
        (start,),
    )
    trouble = Trouble(write_of(life, "PATCH /api/v1/namespaces/shop/pods/"), 422, FOR_EVER)
    first = asyncio.run(live(LIVES["first start"])).status.revision

    def rolled_out(cluster: WholeOperator) -> bool:
        status = cluster.status
        new = status.revision == status.target_revision != first
        return status.phase == "Running" and new and status.rollout is None

    cluster = asyncio.run(live(life, trouble, rolled_out))
    assert cluster.status.refused is None
