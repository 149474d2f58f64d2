"""Two jobs of different kinds with one name: a store knows a state by namespace and name only."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from joinery_operator.names import ChildNames
from joinery_operator.reconcile import FINALIZER
from joinery_runtime.job.crd import KINDS, ResourceKind
from simulated_cluster.simulation import Manifest, SimulatedCluster, resource

OLDER, YOUNGER = "2026-11-21T08:00:00Z", "2026-11-21T09:00:00Z"
REFUSED = {
    "outcome": "failed",
    "kind": "IncompatibleState",
    "error": "the state of job shop/orders does not fit the job as it is now: the kind of job was another",
    "retry": False,
}
PAIRS = list(permutations(KINDS, 2))
IDS = [f"{mine.name}-after-{other.name}" for mine, other in PAIRS]


def job_of_age(kind: ResourceKind, created: str, **spec: Any) -> Manifest:
    manifest = resource(kind, **spec)
    manifest["metadata"]["creationTimestamp"] = created
    return manifest


@pytest.fixture(params=PAIRS, ids=IDS)
def pair(request: pytest.FixtureRequest) -> tuple[ResourceKind, ResourceKind]:
    kinds: tuple[ResourceKind, ResourceKind] = request.param
    return kinds


def second(pair: tuple[ResourceKind, ResourceKind], **spec: Any) -> SimulatedCluster:
    """The younger of two, with the older one beside it."""
    mine, other = pair
    return SimulatedCluster(job_of_age(mine, YOUNGER, **spec), name_conflicts=[job_of_age(other, OLDER)])


def test_there_are_two_kinds_to_be_told_apart() -> None:
    assert len(PAIRS) >= 2


def test_the_younger_one_asks_for_nothing_and_says_whose_the_state_is(pair: tuple[ResourceKind, ResourceKind]) -> None:
    cluster = second(pair)
    cluster.step()
    assert not cluster.pods
    assert cluster.status.phase == "Failed"
    assert cluster.condition("Valid") == ("False", "StateTaken")
    assert cluster.condition("Degraded") == ("True", "StateTaken")
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "Valid")
    assert f"{pair[1].name} shop/orders is older" in message
    assert "another spec.stateStore.postgres.schema" in message
    assert cluster.step().status is None


def test_the_older_one_runs(pair: tuple[ResourceKind, ResourceKind]) -> None:
    mine, other = pair
    cluster = SimulatedCluster(job_of_age(mine, OLDER), name_conflicts=[job_of_age(other, YOUNGER)])
    cluster.started(1)
    assert cluster.status.phase == "Running"


def test_of_two_of_the_same_second_one_runs() -> None:
    running = []
    for mine, other in PAIRS:
        cluster = SimulatedCluster(job_of_age(mine, OLDER), name_conflicts=[job_of_age(other, OLDER)])
        cluster.step()
        running += [mine.name] if cluster.pods else []
    assert len(running) == len(PAIRS) / 2


def test_it_runs_when_it_is_alone(pair: tuple[ResourceKind, ResourceKind]) -> None:
    cluster = second(pair)
    cluster.step()
    cluster.name_conflicts.clear()
    cluster.started(1)
    assert cluster.condition("Valid") == ("True", "Valid")
    assert cluster.status.phase == "Running"


@pytest.mark.parametrize(
    "store",
    [
        {"postgres": {"dsnSecretRef": {"name": "state-db", "key": "dsn"}, "schema": "sessions"}},
        {"postgres": {"dsnSecretRef": {"name": "other-db", "key": "dsn"}}},
        {"postgres": {"dsn": "postgresql://elsewhere/state"}},
    ],
)
def test_with_another_store_both_run(pair: tuple[ResourceKind, ResourceKind], store: Manifest) -> None:
    cluster = second(pair, stateStore=store)
    cluster.started(1)
    assert cluster.status.phase == "Running"


@pytest.mark.parametrize("broken", [None, {"stateStore": None}, {"stateStore": {"postgres": "yes"}}])
def test_a_job_of_the_same_name_that_is_no_valid_job_is_in_nobodys_way(
    pair: tuple[ResourceKind, ResourceKind], broken: Any
) -> None:
    cluster = second(pair)
    cluster.name_conflicts[0]["spec"] = broken
    cluster.started(1)
    assert cluster.status.phase == "Running"


def test_a_default_that_is_spelled_out_is_no_other_store(pair: tuple[ResourceKind, ResourceKind]) -> None:
    cluster = second(pair)
    cluster.name_conflicts[0]["spec"]["stateStore"]["postgres"]["schema"] = "joinery"
    cluster.step()
    assert cluster.condition("Valid") == ("False", "StateTaken")


def test_the_state_of_the_older_one_is_not_deleted_with_the_younger_one(
    pair: tuple[ResourceKind, ResourceKind],
) -> None:
    cluster = second(pair, cleanup="deleteState", upgrade={"mode": "stateless"})
    cluster.step()
    assert cluster.resource is not None
    assert FINALIZER in cluster.resource["metadata"]["finalizers"]
    cluster.delete()
    cluster.step()
    assert cluster.resource is None
    assert not cluster.created
    assert not cluster.database.deleted


def test_a_job_that_runs_keeps_running_when_its_edit_asks_for_the_others_state(
    pair: tuple[ResourceKind, ResourceKind],
) -> None:
    cluster = second(pair, stateStore=OWN)
    cluster.started(1)
    before = cluster.status.revision
    cluster.edit(stateStore={"postgres": OWN["postgres"] | {"schema": "joinery"}})
    cluster.step()
    assert (cluster.status.revision, cluster.status.phase) == (before, "Running")
    assert cluster.condition("Valid") == ("False", "StateTaken")


OWN = {"postgres": {"dsnSecretRef": {"name": "state-db", "key": "dsn"}, "schema": "own"}}


def in_force(manifest: Manifest, schema: str) -> Manifest:
    return {**manifest, "status": {"statePlace": f"schema {schema} of dsnSecretRef state-db/dsn"}}


def test_the_older_one_does_not_take_what_the_younger_one_has(pair: tuple[ResourceKind, ResourceKind]) -> None:
    """Without the state it would leave behind, or delete, the state of a job that runs."""
    mine, other = pair
    cluster = SimulatedCluster(job_of_age(mine, OLDER, stateStore=OWN))
    cluster.started(1)
    before = cluster.status.revision
    cluster.name_conflicts = [in_force(job_of_age(other, YOUNGER), "joinery")]
    cluster.edit(stateStore=resource(mine)["spec"]["stateStore"], upgrade={"mode": "stateless"})
    cluster.step()
    assert (cluster.status.revision, cluster.status.rollout) == (before, None)
    assert cluster.condition("Valid") == ("False", "StateTaken")
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "Valid")
    assert f"{other.name} shop/orders has its state in the same Postgres and schema" in message
    cluster.name_conflicts = [in_force(job_of_age(other, YOUNGER), "elsewhere")]
    cluster.step()
    assert cluster.condition("Valid") == ("True", "Valid")


def test_the_younger_one_keeps_what_it_has_when_an_edit_of_the_older_one_names_it(
    pair: tuple[ResourceKind, ResourceKind],
) -> None:
    mine, other = pair
    cluster = SimulatedCluster(job_of_age(mine, YOUNGER))
    cluster.started(1)
    cluster.name_conflicts = [in_force(job_of_age(other, OLDER), "own")]
    cluster.step()
    assert cluster.condition("Valid") == ("True", "Valid")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_deleted_job_of_the_same_name_left_behind_is_refused_by_the_driver(kind: ResourceKind) -> None:
    cluster = SimulatedCluster(resource(kind))
    cluster.step()
    name = ChildNames(resource(kind)).driver(1)
    cluster.run(name)
    cluster.end(name, REFUSED)
    cluster.step()
    assert cluster.status.phase == "Failed"
    assert cluster.condition("StateCompatible") == ("False", "IncompatibleState")
    assert cluster.condition("Degraded") == ("True", "IncompatibleState")
    for type_ in ("StateCompatible", "Ready"):
        message = next(condition.message for condition in cluster.status.conditions if condition.type == type_)
        assert REFUSED["error"] in message
