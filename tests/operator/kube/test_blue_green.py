"""The jobs of a BlueGreenJob on the API server, with the real reconcile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from joinery_devkit.processes import free_port
from joinery_operator.decision import Create, Decision, Observed, ObservedBlueGreen
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.process import PERMISSIONS, check_environment, watches_blue_green
from joinery_operator.kube.reconciler import Reconcile
from joinery_operator.kube.resources import BLUE_GREEN, BY_KIND, JOBS, SAVEPOINT, WATCHED, ApiResource
from joinery_operator.names import owner_reference
from joinery_operator.reconcile import reconcile
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.blue_green_world import blue_green, topic
from simulated_cluster.memory_server import NOW, MemoryApi, MemoryServer, controller_on, settled, tell
from simulated_cluster.resources import resource_of


@dataclass
class Shop:
    """An API server with BlueGreenJob orders, and the operator that works on it."""

    server: MemoryServer
    controller: Controller

    async def tell(self, manifest: Any, *, deleted: bool = False) -> None:
        """Let a watch report an object, and the operator do what follows."""
        await tell(self.controller, manifest, deleted=deleted)
        await settled(self.controller)

    async def edit(self, kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        await self.tell(self.server.change(kind, "shop", name, change))

    async def move(self, output: str) -> None:
        """Edit the template so that it names another topic."""
        await self.edit("BlueGreenJob", "orders", lambda it: it["spec"]["template"]["spec"].update(topic(output)))

    async def look_again(self) -> None:
        await self.edit("BlueGreenJob", "orders", lambda it: None)

    def get(self, kind: str, name: str, namespace: str = "shop") -> dict[str, Any]:
        manifest = self.server.get(kind, namespace, name)
        assert manifest is not None
        return manifest

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("BlueGreenJob", "orders")["status"]
        return status

    def condition(self, type_: str) -> dict[str, Any]:
        """The condition of this type; empty if there is none."""
        return next((condition for condition in self.status["conditions"] if condition["type"] == type_), {})

    def jobs(self) -> dict[str, str]:
        """The jobs' names, by the topic that each writes."""
        jobs = {name: self.get("StreamJoin", name) for name in self.server.names("StreamJoin")}
        return {job["spec"]["output"]["kafka"]["topic"]: name for name, job in jobs.items()}


@asynccontextmanager
async def open_shop(decide: Reconcile = reconcile) -> AsyncIterator[tuple[Shop, str]]:
    """A shop, and the name of the first job, which runs."""
    server = MemoryServer()
    async with controller_on(server, decide) as controller:
        shop = Shop(server, controller)
        await shop.tell(server.add(blue_green()))
        (name,) = server.names("StreamJoin")
        yield shop, name


def test_a_job_is_created_watched_and_deleted() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, blue):
            assert shop.jobs() == {"blue": blue}
            assert shop.status["active"] == blue
            assert shop.get("StreamJoin", blue)["status"]["conditions"], "the operator works on it as on any other job"
            # An event of a job makes its BlueGreenJob due.
            await shop.edit("StreamJoin", blue, lambda it: it["spec"].update(shards=2))
            assert shop.get("StreamJoin", blue)["spec"]["shards"] == 4

            await shop.move("green")
            green = shop.jobs()["green"]
            assert shop.status["candidate"]["name"] == green

            await shop.move("blue")
            assert shop.jobs() == {"blue": blue}
            assert [past["name"] for past in shop.status["retired"]] == [green]

    asyncio.run(lives())


def test_a_job_that_is_gone_is_created_again_at_once() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):
            before = shop.get("StreamJoin", name)["metadata"]["uid"]
            await shop.tell(shop.server.remove("StreamJoin", "shop", name), deleted=True)
            assert shop.get("StreamJoin", name)["metadata"]["uid"] != before

    asyncio.run(lives())


def test_a_strangers_job_of_that_name_is_left_alone_and_named() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):
            ours = shop.server.remove("StreamJoin", "shop", name)
            stranger = copy.deepcopy(ours)
            del stranger["metadata"]["ownerReferences"]
            shop.server.add(stranger)
            await shop.tell(ours, deleted=True)
            await shop.look_again()
            assert shop.condition("Degraded")["reason"] == "CreateRefused"
            assert "ownerReferences" not in shop.get("StreamJoin", name)["metadata"]

    asyncio.run(lives())


def _reference(owner: Any, **fields: Any) -> dict[str, Any]:
    return {**owner_reference({"apiVersion": API_VERSION, **owner}), **fields}


FORGED: dict[str, Callable[[Any, Any], tuple[str, list[dict[str, Any]]]]] = {
    "a job owned by a job": lambda job, blue_green: ("StreamJoin", [_reference(job)]),
    "a job owned by itself": lambda job, blue_green: ("StreamJoin", [_reference(job, uid="uid-1")]),
    "a job owned by the BlueGreenJob": lambda job, blue_green: ("SessionWindow", [_reference(blue_green)]),
    "a pod owned by the BlueGreenJob": lambda job, blue_green: ("Pod", [_reference(blue_green)]),
    "a savepoint owned by a job": lambda job, blue_green: ("Savepoint", [_reference(job)]),
    "a job owned by a kind that is none": lambda job, blue_green: (
        "StreamJoin",
        [_reference(job, kind="BlueGreenJob")],
    ),
}


@pytest.mark.parametrize("case", FORGED)
@pytest.mark.parametrize("namespace", ["shop", "other"])
def test_a_forged_owner_reference_stops_no_polls_and_changes_nothing(case: str, namespace: str) -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):
            job = shop.get("StreamJoin", name)
            kind, references = FORGED[case](job, shop.get("BlueGreenJob", "orders"))
            spec = {"job": {"kind": "StreamJoin", "name": "none"}} if kind == "Savepoint" else {"containers": []}
            forged = {
                "apiVersion": BY_KIND[kind].api_version,
                "kind": kind,
                "metadata": {"name": "forged", "namespace": namespace, "ownerReferences": references},
                "spec": spec,
            }
            await shop.tell(shop.server.add(forged))
            await shop.controller.poller.round()
            await shop.look_again()
            after = shop.get(kind, "forged", namespace)
            assert after["spec"] == spec
            assert after["metadata"]["ownerReferences"] == references
            assert shop.status["active"] == name
            assert [listed["name"] for listed in shop.status["jobs"]] == [name]
            assert shop.get("StreamJoin", name) == job

    asyncio.run(lives())


def test_a_change_that_the_api_server_rejects_is_a_condition_until_it_succeeds() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):

            def reject(method: str, path: str) -> tuple[int, Any] | None:
                message = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "admission webhook says no"}
                return (422, message) if method == "PATCH" and path.endswith(name) else None

            shop.server.before = reject
            await shop.edit("BlueGreenJob", "orders", lambda it: it["spec"]["template"]["spec"].update(shards=8))
            await shop.look_again()
            degraded = shop.condition("Degraded")
            assert degraded["reason"] == "PatchRefused"
            assert "admission webhook says no" in degraded["message"]
            shop.server.before = lambda method, path: None
            await shop.look_again()
            await shop.look_again()
            assert shop.condition("Degraded")["reason"] != "PatchRefused"

    asyncio.run(lives())


def test_another_replica_takes_over_in_the_middle() -> None:
    """After each write of the first one, which then loses its Lease."""

    async def lives(writes: int) -> dict[str, Any]:
        server = MemoryServer()
        server.add(blue_green())
        async with controller_on(server, reconcile) as first:
            await settled(first)
        server.change(
            "BlueGreenJob", "shop", "orders", lambda it: it["spec"]["template"]["spec"].update(topic("green"))
        )
        left = [writes]

        def fail(method: str, path: str) -> tuple[int, Any] | None:
            if method in {"POST", "PUT", "PATCH", "DELETE"}:
                left[0] -= 1
            return (409, {"reason": "Conflict", "message": "not the leader"}) if left[0] < 0 else None

        server.before = fail
        async with controller_on(server, reconcile) as first:
            for _ in range(200):
                await asyncio.sleep(0)
        server.before = lambda method, path: None
        async with controller_on(server, reconcile) as second:
            await settled(second)
            await tell(second, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
            await settled(second)
            shop = Shop(server, second)
            return {
                "jobs": shop.jobs(),
                "listed": sorted(listed["name"] for listed in shop.status["jobs"]),
                "suspended": [shop.get("StreamJoin", job)["spec"]["suspend"] for job in shop.jobs().values()],
                "candidate": shop.status["candidate"]["name"],
            }

    outcomes = [asyncio.run(lives(writes)) for writes in range(8)]
    assert outcomes[0]["suspended"] == [False, False]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_job_whose_end_no_watch_has_reported_is_created_again_after_an_audit() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):
            shop.server.remove("StreamJoin", "shop", name)
            await shop.controller.auditor.round()
            await settled(shop.controller)
            assert shop.server.names("StreamJoin") == [name]

    asyncio.run(lives())


def test_the_jobs_have_the_labels_that_select_the_operator() -> None:
    resource = blue_green()
    resource["metadata"]["labels"] = {"joinery.dev/class": "east", "team": "orders", "tier": "gold"}
    settings = Settings(job_class="east", job_selector="team in (orders)", runtime_image="joinery:1")
    action = reconcile(ObservedBlueGreen(resource=resource, jobs={}, now=NOW, settings=settings)).actions[0]
    assert isinstance(action, Create)
    assert settings.selects(action.manifest)
    assert "tier" not in action.manifest["metadata"]["labels"]


def test_a_job_that_lost_its_labels_is_another_operators_and_is_not_created_for_ever() -> None:
    async def lives() -> None:
        async with open_shop() as (shop, name):
            await shop.edit(
                "StreamJoin", name, lambda it: it["metadata"]["labels"].update({"joinery.dev/class": "east"})
            )
            await shop.look_again()
            assert shop.condition("Degraded")["reason"] == "CreateRefused"
            attempts = shop.server.calls.count("POST streamjoins")
            await settled(shop.controller)
            assert shop.server.calls.count("POST streamjoins") == attempts

    asyncio.run(lives())


@pytest.mark.parametrize("owner", [None, "payments"])
def test_a_job_of_others_that_writes_to_the_same_topic_is_named_until_it_does_not(owner: str | None) -> None:
    """Another one's, and one of another BlueGreenJob."""

    async def lives() -> None:
        async with open_shop() as (shop, name):
            assert shop.condition("OutputsShared") == {}
            degraded = shop.condition("Degraded")
            other = copy.deepcopy(shop.get("StreamJoin", name))
            other["metadata"] = {"name": "other", "namespace": "shop"}
            if owner is not None:
                reference = {"apiVersion": API_VERSION, "kind": "BlueGreenJob", "name": owner, "uid": "uid-payments"}
                other["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
            other["spec"]["output"]["kafka"]["bootstrapServers"] = "kafka-2:9092, KAFKA:9092"
            await shop.tell(shop.server.add(other))
            of_another = "" if owner is None else ", a job of BlueGreenJob payments,"
            shared = shop.condition("OutputsShared")
            assert shared["status"] == "True"
            assert shared["message"].startswith(
                f"StreamJoin shop/other{of_another} writes to kafka blue as well as job {name}: readers get the rows of"
            )
            assert shop.condition("Degraded") == degraded, "it may be intended"
            await shop.edit("StreamJoin", "other", lambda it: it["spec"].update(topic("of its own")))
            await shop.look_again()
            assert shop.condition("OutputsShared") == {}

    asyncio.run(lives())


@pytest.mark.parametrize("has_candidate", [False, True])
def test_figures_of_a_job_concern_its_blue_green_job_only_if_they_are_compared(has_candidate: bool) -> None:
    decided: list[object] = []

    def decide(observed: Any) -> Decision:
        decided.append(observed)
        return reconcile(observed)

    async def lives() -> None:
        async with open_shop(decide) as (shop, name):
            other = copy.deepcopy(shop.get("StreamJoin", name))
            other["metadata"] = {"name": "other", "namespace": "shop"}
            await shop.tell(shop.server.add(other))
            if has_candidate:
                await shop.move("green")

            async def concerns(job: str, **status: Any) -> bool:
                decided.clear()
                await shop.edit("StreamJoin", job, lambda it: it["status"].update(status))
                assert any(isinstance(observed, Observed) for observed in decided)
                return any(isinstance(observed, ObservedBlueGreen) for observed in decided)

            inputs = [{"name": "l", "lag": 9}]
            assert not await concerns(name, epoch=7, lag=9, rowsPerSecond=3)
            assert await concerns(name, inputs=inputs) == has_candidate
            assert await concerns(name, observedGeneration=7)
            assert not await concerns("other", epoch=7, inputs=inputs)
            decided.clear()
            await shop.edit("StreamJoin", "other", lambda it: it["spec"].update(shards=2))
            assert any(isinstance(observed, ObservedBlueGreen) for observed in decided)

    asyncio.run(lives())


def test_without_the_definition_or_the_permissions_nothing_is_asked_of_blue_green_jobs() -> None:
    """An installation of an earlier release, whose operator alone is upgraded."""

    async def watched_and_usable(lacks: Callable[[str, str], tuple[int, Any] | None]) -> tuple[bool, tuple[str, ...]]:
        server = MemoryServer()
        server.before = lacks
        async with MemoryApi(server) as api:
            usable = await check_environment(api, (), Metrics())
            return await watches_blue_green(api, Settings()), usable

    plurals = [resource.plural for resource in (*JOBS, SAVEPOINT)]
    kinds = {"resources": [{"name": plural} for plural in plurals]}
    undefined = asyncio.run(
        watched_and_usable(lambda method, path: (200, kinds) if path.endswith("v1alpha1") else None)
    )
    assert undefined == (False, ())
    assert asyncio.run(watched_and_usable(lambda method, path: None)) == (True, ())
    assert not any(permission.resource == BLUE_GREEN for permission in PERMISSIONS)
    assert not any(
        permission.resource in JOBS and permission.verb in {"create", "delete"} for permission in PERMISSIONS
    )


def test_jobs_without_a_blue_green_job_cause_the_calls_that_they_always_caused() -> None:
    async def calls(watched: Sequence[ApiResource]) -> list[str]:
        server = MemoryServer()
        server.add(resource_of(KINDS[0]))
        metrics = Metrics()
        async with MemoryApi(server, metrics) as api:
            settings = Settings(metrics_port=free_port(), poll_seconds=1000.0, runtime_image="joinery:1")
            async with Controller(settings, api, reconcile, metrics, now=lambda: NOW, watched=watched) as controller:
                await settled(controller)
                await controller.poller.round()
        return server.calls

    with_kind = asyncio.run(calls(WATCHED))
    without = asyncio.run(calls(tuple(resource for resource in WATCHED if resource != BLUE_GREEN)))
    assert [call for call in with_kind if call != "GET bluegreenjobs"] == without
    assert "POST pods" in without
