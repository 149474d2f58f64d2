"""The jobs of a BlueGreenJob on the API server, with the real reconcile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from joinery_devkit.processes import free_port
from joinery_operator.decision import Create, ObservedBlueGreen
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.process import PERMISSIONS, check_environment, watches_blue_green
from joinery_operator.kube.resources import BLUE_GREEN, BY_KIND, JOBS, SAVEPOINT, WATCHED, ApiResource
from joinery_operator.names import owner_reference
from joinery_operator.reconcile import reconcile
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.blue_green_world import blue_green, topic
from simulated_cluster.memory_server import NOW, MemoryApi, MemoryServer, controller_on, settled, tell
from simulated_cluster.resources import resource_of


def _jobs(server: MemoryServer) -> dict[str, str]:
    """The jobs' names, by the topic that each writes."""
    jobs = {name: server.get("StreamJoin", "shop", name) for name in server.names("StreamJoin")}
    return {job["spec"]["output"]["kafka"]["topic"]: name for name, job in jobs.items() if job is not None}


def _status(server: MemoryServer) -> Any:
    resource = server.get("BlueGreenJob", "shop", "orders")
    assert resource is not None
    return resource["status"]


def test_a_job_is_created_watched_and_deleted() -> None:
    async def lives() -> None:
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:

            async def edit(kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
                await tell(controller, server.change(kind, "shop", name, change))
                await settled(controller)

            await tell(controller, server.add(blue_green()))
            await settled(controller)
            blue = _jobs(server)["blue"]
            assert _status(server)["active"] == blue
            job = server.get("StreamJoin", "shop", blue)
            assert job is not None
            assert job["status"]["conditions"], "the operator works on the job as on any other"
            # An event of a job makes its BlueGreenJob due.
            await edit("StreamJoin", blue, lambda it: it["spec"].update(shards=2))
            job = server.get("StreamJoin", "shop", blue)
            assert job is not None
            assert job["spec"]["shards"] == 4

            await edit("BlueGreenJob", "orders", lambda it: it["spec"]["template"]["spec"].update(topic("green")))
            green = _jobs(server)["green"]
            assert _status(server)["candidate"]["name"] == green

            await edit("BlueGreenJob", "orders", lambda it: it["spec"]["template"]["spec"].update(topic("blue")))
            assert _jobs(server) == {"blue": blue}
            assert [past["name"] for past in _status(server)["retired"]] == [green]

    asyncio.run(lives())


def test_a_job_that_is_gone_is_created_again_at_once() -> None:
    async def lives() -> None:
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")
            before = server.get("StreamJoin", "shop", name)
            await tell(controller, server.remove("StreamJoin", "shop", name), deleted=True)
            await settled(controller)
            after = server.get("StreamJoin", "shop", name)
            assert before is not None
            assert after is not None
            assert before["metadata"]["uid"] != after["metadata"]["uid"]

    asyncio.run(lives())


def test_a_strangers_job_of_that_name_is_left_alone_and_named() -> None:
    async def lives() -> None:
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")
            ours = server.remove("StreamJoin", "shop", name)
            stranger = copy.deepcopy(ours)
            del stranger["metadata"]["ownerReferences"]
            server.add(stranger)
            await tell(controller, ours, deleted=True)
            await settled(controller)
            await tell(controller, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
            await settled(controller)
            assert _reason(server, "Degraded") == "CreateRefused"
            job = server.get("StreamJoin", "shop", name)
            assert job is not None
            assert "ownerReferences" not in job["metadata"]

    asyncio.run(lives())


def _reason(server: MemoryServer, type_: str) -> str:
    return next(str(told["reason"]) for told in _status(server)["conditions"] if told["type"] == type_)


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
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")
            job, resource = server.get("StreamJoin", "shop", name), server.get("BlueGreenJob", "shop", "orders")
            kind, references = FORGED[case](job, resource)
            spec = {"job": {"kind": "StreamJoin", "name": "none"}} if kind == "Savepoint" else {"containers": []}
            forged = {
                "apiVersion": BY_KIND[kind].api_version,
                "kind": kind,
                "metadata": {"name": "forged", "namespace": namespace, "ownerReferences": references},
                "spec": spec,
            }
            await tell(controller, server.add(forged))
            await settled(controller)
            await controller.poller.round()
            await tell(controller, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
            await settled(controller)
            after = server.get(kind, namespace, "forged")
            assert after is not None
            assert after["spec"] == spec
            assert after["metadata"]["ownerReferences"] == references
            assert _status(server)["active"] == name
            assert [listed["name"] for listed in _status(server)["jobs"]] == [name]
            assert server.get("StreamJoin", "shop", name) == job

    asyncio.run(lives())


def test_a_change_that_the_api_server_rejects_is_a_condition_until_it_succeeds() -> None:
    async def lives() -> None:
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")

            def reject(method: str, path: str) -> tuple[int, Any] | None:
                message = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "admission webhook says no"}
                return (422, message) if method == "PATCH" and path.endswith(name) else None

            server.before = reject

            def edit(it: dict[str, Any]) -> None:
                it["spec"]["template"]["spec"]["shards"] = 8

            await tell(controller, server.change("BlueGreenJob", "shop", "orders", edit))
            await settled(controller)
            await tell(controller, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
            await settled(controller)
            assert _reason(server, "Degraded") == "PatchRefused"
            degraded = next(told for told in _status(server)["conditions"] if told["type"] == "Degraded")
            assert "admission webhook says no" in degraded["message"]
            server.before = lambda method, path: None
            for _ in range(2):
                await tell(controller, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
                await settled(controller)
            assert _reason(server, "Degraded") != "PatchRefused"

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
        return {
            "jobs": _jobs(server),
            "listed": sorted(listed["name"] for listed in _status(server)["jobs"]),
            "suspended": [server.get("StreamJoin", "shop", job)["spec"]["suspend"] for job in _jobs(server).values()],  # type: ignore[index]
            "candidate": _status(server)["candidate"]["name"],
        }

    outcomes = [asyncio.run(lives(writes)) for writes in range(8)]
    assert outcomes[0]["suspended"] == [False, False]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_job_whose_end_no_watch_has_reported_is_created_again_after_an_audit() -> None:
    async def lives() -> None:
        server = MemoryServer()
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")
            server.remove("StreamJoin", "shop", name)
            await controller.auditor.round()
            await settled(controller)
            assert server.names("StreamJoin") == [name]

    asyncio.run(lives())


def test_the_jobs_have_the_labels_that_select_the_operator() -> None:
    async def lives() -> None:
        server = MemoryServer()
        resource = blue_green()
        resource["metadata"]["labels"] = {"joinery.dev/class": "east", "team": "orders", "tier": "gold"}
        settings = Settings(job_class="east", job_selector="team in (orders)", runtime_image="joinery:1")
        action = next(
            action
            for action in reconcile(
                ObservedBlueGreen(
                    resource={**resource, "metadata": {**resource["metadata"], "uid": "u"}},
                    jobs={},
                    now=NOW,
                    settings=settings,
                )
            ).actions
        )
        assert isinstance(action, Create)
        assert settings.selects(action.manifest)
        assert "tier" not in action.manifest["metadata"]["labels"]
        # One that lost them is another operator's: it is not created for ever.
        async with controller_on(server, reconcile) as controller:
            await tell(controller, server.add(blue_green()))
            await settled(controller)
            (name,) = server.names("StreamJoin")

            def relabel(it: dict[str, Any]) -> None:
                it["metadata"]["labels"]["joinery.dev/class"] = "east"

            await tell(controller, server.change("StreamJoin", "shop", name, relabel))
            await settled(controller)
            await tell(controller, server.change("BlueGreenJob", "shop", "orders", lambda it: None))
            await settled(controller)
            assert _reason(server, "Degraded") == "CreateRefused"
            asked = server.calls.count("POST streamjoins")
            await settled(controller)
            assert server.calls.count("POST streamjoins") == asked

    asyncio.run(lives())


def test_without_the_definition_or_the_permissions_nothing_is_asked_of_blue_green_jobs() -> None:
    """An installation of an earlier release, whose operator alone is upgraded."""

    async def asked(lacks: Callable[[str, str], tuple[int, Any] | None]) -> tuple[bool, tuple[str, ...]]:
        server = MemoryServer()
        server.before = lacks
        async with MemoryApi(server) as api:
            usable = await check_environment(api, (), Metrics())
            return await watches_blue_green(api, Settings()), usable

    plurals = [resource.plural for resource in (*JOBS, SAVEPOINT)]
    kinds = {"resources": [{"name": plural} for plural in plurals]}
    undefined = asyncio.run(asked(lambda method, path: (200, kinds) if path.endswith("v1alpha1") else None))
    assert undefined == (False, ())
    assert asyncio.run(asked(lambda method, path: None)) == (True, ())
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
