"""A BlueGreenJob as kubectl's user sees it: the real reconcile on a real API server, with pods that only pretend and no
more permissions than the chart's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_operator.names import ChildNames
from simulated_cluster.blue_green_world import blue_green, topic
from simulated_cluster.fake_node import ApiServerClient, FakeKubelet, end_pod

pytestmark = pytest.mark.services


def test_an_edit_runs_beside_the_job_and_is_given_up(
    with_crds: ApiServer, cluster: ApiServerClient, shop: str, start: Any
) -> None:
    written = blue_green()
    written["metadata"] = {"name": "orders"}

    def jobs() -> dict[str, Any]:
        """By the topic that each writes."""
        stream_joins = cluster.list("StreamJoin", shop)
        return {job["spec"]["output"]["kafka"]["topic"]: job for job in stream_joins}

    def status() -> Any:
        resource = cluster.get("BlueGreenJob", shop, "orders")
        return (resource or {}).get("status") or {}

    def pods() -> list[str]:
        return cluster.ours(shop)["Pod"]

    def edit(output: str) -> None:
        written["spec"]["template"]["spec"] |= topic(output)
        with_crds.kubectl.apply(written, shop)

    with FakeKubelet(cluster.kubeconfig, shop), start() as operator:
        operator.wait_until_ready()
        with_crds.kubectl.apply(written, shop)
        wait_until("the driver of the first job", lambda: len(pods()) == 1)
        blue = jobs()["blue"]
        assert blue["spec"]["suspend"] is False
        wait_until("the status", lambda: status().get("active") == blue["metadata"]["name"])
        assert [listed["uid"] for listed in status()["jobs"]] == [blue["metadata"]["uid"]]
        assert [output["target"] for output in status()["outputs"]] == ["blue"]

        cluster.patch("StreamJoin", shop, blue["metadata"]["name"], {"metadata": {"ownerReferences": None}})
        wait_until("the owner", lambda: "ownerReferences" in jobs()["blue"]["metadata"])
        generation = jobs()["blue"]["metadata"]["generation"]

        edit("green")
        wait_until("the driver of the second job", lambda: len(pods()) == 2)
        assert status()["candidate"]["name"] == jobs()["green"]["metadata"]["name"]
        roles = {name: job["metadata"]["labels"]["joinery.dev/blue-green-role"] for name, job in jobs().items()}
        assert roles == {"blue": "active", "green": "candidate"}
        assert jobs()["blue"]["metadata"]["generation"] == generation, "the active job is not touched"

        deletes_state = ChildNames(jobs()["green"]).delete_state
        edit("blue")
        wait_until("the pod that deletes the state", lambda: runs(cluster.get("Pod", shop, deletes_state)))
        end_pod(cluster, cluster.get("Pod", shop, deletes_state) or {}, 0, json.dumps({"outcome": "finished"}))
        wait_until("the end of the second job", lambda: list(jobs()) == ["blue"])
        assert [past["outputs"][0]["target"] for past in status()["retired"]] == ["green"]
        edit("green")
        wait_until("Valid", lambda: {"type": "Valid", "status": "False"}.items() <= valid(status()).items())
        assert "writes to kafka green" in valid(status())["message"]

        cluster.delete("BlueGreenJob", shop, "orders")
        wait_until("nothing is left", lambda: not jobs() and not any(cluster.ours(shop).values()))
        assert operator.stop() == 0, operator.log
        assert "Traceback" not in operator.log


def runs(pod: Any) -> bool:
    return pod is not None and pod["status"].get("phase") == "Running"


def valid(status: Any) -> dict[str, Any]:
    return next(dict(condition) for condition in status["conditions"] if condition["type"] == "Valid")
