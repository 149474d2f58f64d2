"""The jobs of a BlueGreenJob on the API server, with the real reconcile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from joinery_operator.reconcile import reconcile
from simulated_cluster.blue_green_world import blue_green, topic
from simulated_cluster.memory_server import MemoryServer, controller_on, settled, tell


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
            reasons = {condition["type"]: condition["reason"] for condition in _status(server)["conditions"]}
            assert reasons["Degraded"] == "CreateRefused"
            found = server.get("StreamJoin", "shop", name)
            assert found is not None
            assert "ownerReferences" not in found["metadata"]

    asyncio.run(lives())
