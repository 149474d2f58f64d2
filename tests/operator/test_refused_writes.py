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
    for child in (*cluster.pods.values(), *cluster.services.values(), *cluster.config_maps.values()):
        child["metadata"]["labels"]["joinery.dev/role"] = "nobody's"


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
    owners = [owner for owner in (cluster.resource, cluster.savepoint) if owner is not None]
    children = [child for (plural, _, _), child in sorted(cluster.server.objects.items()) if plural in CHILDREN]
    return {
        "objects": sorted(f"{plural} {name}" for plural, _, name in cluster.server.objects if plural != "events"),
        "finalizers": [owner["metadata"].get("finalizers", []) for owner in owners],
        "phases": [owner["status"]["phase"] for owner in owners],
        "conditions": [
            (condition["type"], condition["status"], condition["reason"])
            for owner in owners
            for condition in owner["status"]["conditions"]
        ],
        "labels": [child["metadata"]["labels"] for child in children],
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
    return next(number for number, write in enumerate(writes) if call in write)


def ends_the_same(life: Life, troubles: Iterable[Trouble]) -> None:
    expected = end_of(asyncio.run(live(life)))
    for trouble in troubles:
        description = str(trouble)
        disturbed = asyncio.run(live(life, trouble))
        assert trouble.call
        assert end_of(disturbed) == expected, f"{description}: {trouble.call}"


@pytest.mark.search
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
        plurals = {plural for plural, _, _ in cluster.server.objects}
        return {*WAYS_IN} - {refused} <= plurals and cluster.status.phase == "Running"

    cluster = asyncio.run(live(LIVES["first start"], trouble, others_are_there))
    assert refused not in {plural for plural, _, _ in cluster.server.objects}


def degraded(cluster: WholeOperator) -> tuple[str, str, str]:
    condition = next(condition for condition in cluster.status.conditions if condition.type == "Degraded")
    return condition.status, condition.reason, condition.message


async def goes_on(
    cluster: WholeOperator, act: Act, until: Callable[[WholeOperator], bool] = lambda _: False
) -> WholeOperator:
    """The life of a cluster whose trouble stays."""
    async with cluster.api:
        act(cluster)
        await cluster.settle(lambda: until(cluster))
    return cluster


def trouble_ends(cluster: WholeOperator) -> None:
    cluster.server.trouble = None


def rolled_out(first: str | None) -> Callable[[WholeOperator], bool]:
    def is_so(cluster: WholeOperator) -> bool:
        status = cluster.status
        new = status.revision == status.target_revision != first
        return status.phase == "Running" and new and status.rollout is None

    return is_so


@pytest.mark.parametrize("code", [403, 409, 422, 429, 500])
def test_an_ended_driver_that_cannot_be_deleted_keeps_nothing_else_away(code: int) -> None:
    life = LIVES["restart after a failure"]
    trouble = Trouble(write_of(life, "DELETE /api/v1/namespaces/shop/pods/orders-driver-1"), code, FOR_EVER)

    def is_told(cluster: WholeOperator) -> bool:
        return cluster.status.phase == "Running" and "cannot be deleted" in degraded(cluster)[2]

    cluster = asyncio.run(live(life, trouble, is_told))
    condition = degraded(cluster)
    assert f"Pod shop/orders-driver-1 cannot be deleted: {code} Trouble" in condition[2]
    before, first = cluster.seconds, cluster.status.revision
    asyncio.run(goes_on(cluster, edit(trigger={"maxRecordsPerEpoch": 8}), rolled_out(first)))
    assert cluster.seconds - before < 120
    assert degraded(cluster)[1] == "DeleteRefused"
    assert "orders-driver-1" in cluster.pods
    asyncio.run(goes_on(cluster, trouble_ends))
    assert degraded(cluster)[0] == "False"
    assert "orders-driver-1" not in cluster.pods


def test_what_is_refused_for_ever_is_tried_again_ever_later() -> None:
    life = LIVES["restart after a failure"]
    call = "DELETE /api/v1/namespaces/shop/pods/orders-driver-1"
    trouble = Trouble(write_of(life, call), 403, FOR_EVER)
    cluster = asyncio.run(live(life, trouble, lambda cluster: cluster.seconds > 3600))
    assert 25 < sum(call in write for write in cluster.server.writes) < 60


def test_a_driver_that_cannot_be_stopped_is_named_with_the_way_out() -> None:
    life = LIVES["deletion with the state"]
    trouble = Trouble(write_of(life, "DELETE /api/v1/namespaces/shop/pods/orders-driver-1"), 403, FOR_EVER)
    cluster = asyncio.run(live(life, trouble, lambda cluster: degraded(cluster)[0] == "True"))
    condition = degraded(cluster)
    assert condition[1] == "DeleteRefused"
    assert "Pod shop/orders-driver-1 cannot be deleted" in condition[2]
    assert "set spec.cleanup to retainState" in condition[2]
    assert cluster.server.created_pods == []
    assert not cluster.database.deleted
    asyncio.run(goes_on(cluster, trouble_ends))
    assert cluster.database.deleted
    assert cluster.resource is None


def test_a_check_waits_until_the_file_of_another_mode_is_deleted() -> None:
    """Its pod would read how the job takes over from that file."""
    checks = Life(edit(trigger={"maxRecordsPerEpoch": 8}), (start,))

    def is_checked(cluster: WholeOperator) -> bool:
        return any("-check-" in name for name in cluster.pods)

    def gives_up_the_state(cluster: WholeOperator) -> None:
        cluster.server.writes.clear()
        cluster.server.trouble = trouble
        cluster.edit(upgrade={"mode": "stateless"})

    trouble = None
    usual = asyncio.run(goes_on(asyncio.run(live(checks, until=is_checked)), gives_up_the_state))
    delete = next(
        number for number, call in enumerate(usual.server.writes) if "DELETE" in call and "/configmaps/" in call
    )
    trouble = Trouble(delete, 403, FOR_EVER)
    cluster = asyncio.run(live(checks, until=is_checked))
    asyncio.run(goes_on(cluster, gives_up_the_state, lambda cluster: cluster.seconds > 60))
    assert not [name for name in cluster.server.created_pods if name.endswith("-stateless")]
    asyncio.run(goes_on(cluster, trouble_ends))
    assert [name for name in cluster.server.created_pods if name.endswith("-stateless")]
    assert cluster.database.dropped == usual.database.dropped != []


def test_no_driver_starts_before_the_finalizer_is_set() -> None:
    trouble = Trouble(write_of(LIVES["first start"], "PATCH"), 403, FOR_EVER)
    assert "streamjoins/orders" in asyncio.run(live(LIVES["first start"])).server.writes[trouble.write]
    cluster = asyncio.run(live(LIVES["first start"], trouble, lambda cluster: cluster.seconds > 3600))
    assert cluster.server.created_pods == []


def test_a_driver_that_is_refused_for_ever_keeps_the_check_of_its_correction_from_nothing() -> None:
    life = LIVES["restart after a failure"]
    trouble = Trouble(write_of(life, "/pods/orders-driver-2"), 403, FOR_EVER)
    cluster = asyncio.run(live(life, trouble, lambda cluster: degraded(cluster)[1] == "CreateRefused"))
    first = cluster.status.revision
    asyncio.run(goes_on(cluster, edit(trigger={"maxRecordsPerEpoch": 8}), rolled_out(first)))
    assert "orders-driver-2" not in cluster.server.created_pods


def test_a_savepoints_pod_that_cannot_be_deleted_is_named() -> None:
    life = LIVES["savepoint"]
    trouble = Trouble(write_of(life, "DELETE"), 403, FOR_EVER)

    def ready_message(cluster: WholeOperator) -> str:
        conditions = ((cluster.savepoint or {}).get("status") or {}).get("conditions", ())
        return "".join(condition["message"] for condition in conditions if condition["type"] == "Ready")

    cluster = asyncio.run(live(life, trouble, lambda cluster: "cannot be deleted" in ready_message(cluster)))
    assert cluster.savepoint is not None
    assert cluster.savepoint["status"]["phase"] == "Completed"
    asyncio.run(goes_on(cluster, trouble_ends))
    assert "cannot be deleted" not in ready_message(cluster)


def test_a_repair_that_is_refused_for_ever_keeps_no_rollout_from_its_end() -> None:
    """The pod's labels, as an admission policy may do."""
    life = Life(
        lambda cluster: (lose_labels(cluster), cluster.edit(trigger={"maxRecordsPerEpoch": 8})),  # type: ignore[func-returns-value]
        (start,),
    )
    trouble = Trouble(write_of(life, "PATCH /api/v1/namespaces/shop/pods/"), 422, FOR_EVER)
    first = asyncio.run(live(LIVES["first start"])).status.revision

    cluster = asyncio.run(live(life, trouble, rolled_out(first)))
    assert cluster.status.refused is None
