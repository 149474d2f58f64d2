"""Which jobs an operator works on, if several run in a cluster: by class and label selector."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from joinery_operator.decision import Decision, Observed, ObservedEnd, ObservedSavepoint
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.settings import LabelSelector, Settings, read_settings
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.memory_server import MemoryServer, controller_on, settled, tell
from simulated_cluster.small_reconcile import job, reconcile

JOB = ObjectKey("StreamJoin", "shop", "orders")


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("team", {"team": "risk"}, True),
        ("team", {}, False),
        ("!team", {}, True),
        ("! team", {"team": "risk"}, False),
        ("team=risk", {"team": "risk"}, True),
        ("team == risk", {"team": "fraud"}, False),
        ("team=", {"team": ""}, True),
        ("team!=risk", {}, True),
        ("team!=risk", {"team": "risk"}, False),
        ("team in (risk, fraud)", {"team": "fraud"}, True),
        ("team in (risk, fraud)", {}, False),
        ("team notin (risk,fraud)", {}, True),
        ("team notin (risk,fraud)", {"team": "risk"}, False),
        ("example.com/team in (risk), !test , tier=a", {"example.com/team": "risk", "tier": "a"}, True),
        ("example.com/team in (risk),!test,tier=a", {"example.com/team": "risk", "tier": "a", "test": ""}, False),
    ],
)
def test_a_selector_means_what_the_api_server_reads(text: str, labels: dict[str, str], matches: bool) -> None:
    assert LabelSelector.parsed(text).matches(labels) is matches


def _operator(**settings: str) -> Settings:
    return read_settings({f"JOINERY_OPERATOR_{name.upper()}": value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "labels", "selects"),
    [
        ({}, {}, True),
        ({}, {"joinery.dev/class": "blue"}, False),
        ({"job_class": "blue"}, {}, False),
        ({"job_class": "blue"}, {"joinery.dev/class": "blue"}, True),
        ({"job_class": "blue", "job_selector": "team=risk"}, {"joinery.dev/class": "blue"}, False),
        ({"job_selector": "team in (risk)"}, {"team": "risk"}, True),
    ],
)
def test_an_operator_works_on_jobs_of_its_class(settings: Any, labels: dict[str, str], selects: bool) -> None:
    assert _operator(**settings).selects({"metadata": {"labels": labels}}) is selects


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"job_class": "blue green"}, "must be a value of the label joinery.dev/class"),
        ({"job_selector": "team=risk,tier>2"}, "'tier>2' is no requirement of a label selector"),
        ({"job_selector": "team in risk"}, "'team in risk' is no requirement"),
        ({"job_selector": "!team=risk"}, "'!team=risk' is no requirement"),
    ],
)
def test_settings_that_select_nothing_name_what_is_wrong(settings: dict[str, str], message: str) -> None:
    with pytest.raises(EnvironmentProblem, match=message):
        _operator(**settings)


@pytest.mark.parametrize("tells", ["a watch that has lost sight of it", "an edit"])
def test_a_job_changes_hands_and_comes_back(tells: str) -> None:
    """Its label changes: it is not deleted, and nothing is done for it until it is this operator's again."""
    server = MemoryServer()
    server.add(job())

    def label(value: str | None) -> Any:
        labels = {"joinery.dev/class": value} if value else {}
        return server.change(
            "StreamJoin", "shop", "orders", lambda manifest: manifest["metadata"].update(labels=labels)
        )

    async def run() -> None:
        async with controller_on(server) as controller:
            await settled(controller)
            number = len(server.calls)
            before = server.get("StreamJoin", "shop", "orders")
            labelled = label("blue")
            # The API server tells of an object that no longer matches as it was when it still did.
            last_copy = {**(before or {}), "metadata": {**labelled["metadata"], "labels": {}}}
            await tell(controller, *((last_copy, True) if tells.startswith("a watch") else (labelled, False)))
            await settled(controller)
            assert controller.cache.get(JOB) is None
            assert [call for call in server.calls[number:] if not call.startswith("GET")] == []
            label(None)
            await tell(
                controller, server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["spec"].update(x=1))
            )
            await settled(controller)
            assert controller.cache.get(JOB) is not None

    asyncio.run(run())
    assert (server.get("StreamJoin", "shop", "orders") or {})["status"]["observedGeneration"] == 1
    assert server.names("Pod") == ["orders-driver-1"]


def test_a_job_that_changes_hands_while_it_is_being_deleted_is_not_gone() -> None:
    """It has a finalizer, so it exists: nothing is reported as left behind, and it may come back."""
    server = MemoryServer()
    server.add(job())
    ends: list[str] = []

    def decide(observed: Observed | ObservedSavepoint | ObservedEnd) -> Decision:
        if isinstance(observed, ObservedEnd):
            ends.append(observed.resource["metadata"]["name"])
            return Decision(None)
        return Decision(None) if observed.resource["metadata"].get("deletionTimestamp") else reconcile(observed)

    def change(**metadata: Any) -> Any:
        return server.change("StreamJoin", "shop", "orders", lambda resource: resource["metadata"].update(metadata))

    async def run() -> None:
        async with controller_on(server, decide) as controller:
            change(deletionTimestamp="2026-11-21T10:00:00Z", finalizers=["joinery.dev/delete-state"])
            relabelled = change(labels={"joinery.dev/class": "blue"})
            # The API server reports an object that no longer matches with its former labels.
            await tell(controller, {**relabelled, "metadata": {**relabelled["metadata"], "labels": {}}}, True)
            await settled(controller)
            assert (controller.cache.get(JOB), ends) == (None, [])
            await tell(controller, change(labels={}))
            assert controller.cache.get(JOB) is not None
            await tell(controller, server.remove("StreamJoin", "shop", "orders"), True)
            assert ends == ["orders"]

    asyncio.run(run())


@pytest.mark.parametrize("job_exists", [True, False])
def test_a_savepoint_that_is_deleted_learns_whether_its_job_is_another_operators(job_exists: bool) -> None:
    server = MemoryServer()
    savepoint = {
        "apiVersion": API_VERSION,
        "kind": "Savepoint",
        "metadata": {"name": "noon", "namespace": "shop", "finalizers": ["joinery.dev/delete-savepoint"]},
        "spec": {"job": {"kind": "StreamJoin", "name": "orders"}, "cleanup": "delete"},
    }
    server.add(savepoint)
    if job_exists:
        manifest = job()
        manifest["metadata"]["labels"] = {"joinery.dev/class": "blue"}
        server.add(manifest)
    observations: list[tuple[bool, bool]] = []

    def decide(observed: Observed | ObservedSavepoint | ObservedEnd) -> Decision:
        assert isinstance(observed, ObservedSavepoint)
        observations.append((observed.job is None, observed.job_is_anothers))
        return Decision(None)

    async def run() -> None:
        async with controller_on(server, decide) as controller:
            await settled(controller)
            assert set(observations) == {(True, False)}, "one that lives asks for nothing"
            observations.clear()
            deleted = {"deletionTimestamp": "2026-11-21T10:00:00Z"}
            await tell(
                controller,
                server.change("Savepoint", "shop", "noon", lambda resource: resource["metadata"].update(deleted)),
            )
            await settled(controller)

    asyncio.run(run())
    assert set(observations) == {(True, job_exists)}
