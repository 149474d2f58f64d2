"""`kubectl joinery` on a BlueGreenJob, with a kubectl that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joinery_operator.manifests import JOB_FILE
from joinery_operator.names import ChildNames
from joinery_runtime.job.model.resource import API_VERSION
from plugin.conftest import FakeKubectl, Manifest, Run

BLUE, GREEN = "orders-b1b1b1b1b1", "orders-9292929292"
_TYPE = "bluegreenjobs.joinery.dev"
REFERENCE = "bluegreenjob.joinery.dev/orders"


def child(name: str, topic: str) -> Manifest:
    spec = {"output": {"kafka": {"topic": topic}}, "suspend": False, "cleanup": "deleteState"}
    owner = {"kind": "BlueGreenJob", "name": "orders", "controller": True}
    metadata = {"name": name, "namespace": "jobs", "ownerReferences": [owner]}
    return {"apiVersion": API_VERSION, "kind": "StreamJoin", "metadata": metadata, "spec": spec}


def serve_job(
    kubectl: FakeKubectl, *conditions: tuple[str, str, str], blue: Manifest | None = None, **status: Any
) -> None:
    metadata = {"name": "orders", "namespace": "jobs", "resourceVersion": "7", "generation": 3}
    template = {"kind": "StreamJoin", "spec": {"output": {"kafka": {"topic": "green"}}, "cleanup": "retainState"}}
    status_conditions = [
        {"type": kind, "status": value, "reason": reason, "message": "m", "lastTransitionTime": "t"}
        for kind, value, reason in conditions
    ]
    resource = {
        "apiVersion": API_VERSION,
        "kind": "BlueGreenJob",
        "metadata": metadata,
        "spec": {"template": template},
        "status": {"observedGeneration": 3, "active": BLUE, "conditions": status_conditions, **status},
    }
    kubectl.answer("get", _TYPE, "--field-selector=metadata.name=orders", out={"items": [resource]})
    kubectl.knows(blue or child(BLUE, "blue"))
    for verb in ("patch", "annotate"):
        kubectl.answer(verb, REFERENCE)


def template_patch(kubectl: FakeKubectl) -> Manifest:
    *call, patch = kubectl.calls[-1]
    assert call == ["patch", REFERENCE, "--namespace=jobs", "--type=json"]
    test, replace = json.loads(patch.removeprefix("--patch="))
    assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert (replace["op"], replace["path"]) == ("replace", "/spec/template")
    value: Manifest = replace["value"]
    return value


@pytest.mark.parametrize(("reason", "code"), [("Beside", 3), ("AwaitingSwitch", 4)])
def test_the_exit_code_says_whether_the_switch_waits_for_a_person(
    kubectl: FakeKubectl, plugin: Run, reason: str, code: int
) -> None:
    serve_job(kubectl, ("UpToDate", "False", reason), candidate={"name": GREEN})
    ended = plugin("rollout", "status", "orders", "--no-wait")
    assert (ended.code, ended.out) == (code, f"BlueGreenJob jobs/orders: {reason}: m\n")


@pytest.mark.parametrize(("reason", "warns"), [("Beside", True), ("AwaitingSwitch", False)])
def test_switch_names_the_second_job(kubectl: FakeKubectl, plugin: Run, reason: str, warns: bool) -> None:
    serve_job(kubectl, ("UpToDate", "False", reason), candidate={"name": GREEN})
    ended = plugin("rollout", "switch", "orders")
    assert (ended.code, "not stable yet" in ended.err) == (0, warns)
    assert kubectl.calls[-1] == [
        "annotate", REFERENCE, "--namespace=jobs", "--overwrite", f"joinery.dev/switch={GREEN}@3",
    ]  # fmt: skip


def test_there_is_nothing_to_switch_to(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(kubectl)
    ended = plugin("rollout", "switch", "bgj/orders")
    assert (ended.code, "has no second job" in ended.err) == (1, True)


@pytest.mark.parametrize(
    "status",
    [
        {"candidate": {"name": GREEN}},
        {"active": GREEN, "old": [{"name": BLUE, "until": "2026-11-21T10:00:00Z"}]},
    ],
)
def test_undo_returns_to_the_other_jobs_template(kubectl: FakeKubectl, plugin: Run, status: Manifest) -> None:
    serve_job(kubectl, **status)
    assert plugin("rollout", "undo", "orders").code == 0
    assert template_patch(kubectl) == {
        "kind": "StreamJoin", "spec": {"output": {"kafka": {"topic": "blue"}}, "cleanup": "retainState"},
    }  # fmt: skip


def test_undo_returns_from_a_template_that_is_rejected(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(kubectl, ("Valid", "False", "Invalid"))
    assert plugin("rollout", "undo", "orders").code == 0
    assert template_patch(kubectl)["spec"]["output"] == {"kafka": {"topic": "blue"}}


def with_revisions(kubectl: FakeKubectl, **status: Any) -> None:
    """An active job whose current revision follows on the revision r1."""
    blue = child(BLUE, "blue")
    blue["spec"]["shards"] = 8
    past = {"revision": "r1", "image": "joinery:1", "since": "s", "until": "u"}
    blue["status"] = {"revision": "r2", "targetRevision": "r2", "image": "joinery:1", "history": [past]}
    earlier = {"spec": {**child(BLUE, "blue")["spec"], "shards": 4, "spark": {"image": "joinery:1"}}}
    name = ChildNames(blue).config_map("r1")
    config_map = {"metadata": {"name": name}, "data": {JOB_FILE: json.dumps(earlier)}}
    kubectl.answer("get", "configmaps", f"--field-selector=metadata.name={name}", out={"items": [config_map]})
    serve_job(kubectl, ("UpToDate", "True", "RolledOut"), blue=blue, **status)


@pytest.mark.parametrize("option", [[], ["--to-revision", "r1"]])
def test_without_another_job_undo_returns_to_the_active_jobs_revision_before(
    kubectl: FakeKubectl, plugin: Run, option: list[str]
) -> None:
    with_revisions(kubectl)
    ended = plugin("rollout", "undo", "orders", *option)
    assert (ended.code, "back to the job of revision r1" in ended.out) == (0, True)
    spec = template_patch(kubectl)["spec"]
    assert (spec["shards"], spec["cleanup"], "suspend" in spec) == (8, "retainState", False)


def test_without_another_job_or_revision_there_is_no_undo(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(kubectl, ("UpToDate", "True", "RolledOut"))
    ended = plugin("rollout", "undo", "orders")
    assert (ended.code, "has no earlier revision" in ended.err) == (1, True)


@pytest.mark.parametrize("command", [["rollout", "undo"], ["suspend"], ["resume"]])
def test_the_spec_of_its_job_is_the_templates(kubectl: FakeKubectl, plugin: Run, command: list[str]) -> None:
    serve_job(kubectl)
    ended = plugin(*command, BLUE)
    assert ended.code == 1
    assert f"`kubectl joinery {' '.join(command)} bgj/orders`" in ended.err


def test_the_history_lists_jobs_and_where_they_write(kubectl: FakeKubectl, plugin: Run) -> None:
    outputs = [{"name": "output", "kind": "kafka", "target": "red"}]
    retired = [{"name": "orders-3", "outputs": outputs, "ended": "2026-11-20T10:00:00Z"}]
    blue = [{"name": "output", "kind": "kafka", "target": "blue"}]
    old = [{"name": "orders-2", "until": "2026-11-21T10:00:00Z"}]
    serve_job(kubectl, candidate={"name": GREEN}, outputs=blue, old=old, retired=retired)
    lines = plugin("rollout", "history", "orders").out.splitlines()
    assert [line.split() for line in lines] == [
        ["JOB", "STATE", "UNTIL", "OUTPUTS"],
        [GREEN, "candidate", "-", "-"],
        [BLUE, "active", "-", "kafka", "blue"],
        ["orders-2", "old", "2026-11-21T10:00:00Z", "-"],
        ["orders-3", "retired", "2026-11-20T10:00:00Z", "kafka", "red"],
    ]
    assert "has no revisions" in plugin("rollout", "history", "orders", "--revision", "r1").err


LISTED = [{"kind": "StreamJoin", "name": name, "uid": name} for name in (GREEN, BLUE, "orders-3", "orders-2")]


def test_a_restart_restarts_all_jobs_that_run(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(
        kubectl, jobs=LISTED, candidate={"name": GREEN}, old=[{"name": "orders-2", "until": "2026-11-21T10:00:00Z"}]
    )
    references = [f"streamjoin.joinery.dev/{name}" for name in (BLUE, GREEN, "orders-2")]
    kubectl.answer("annotate", *references)
    assert plugin("restart", "orders").code == 0
    *call, annotation = kubectl.calls[-1]
    assert call == ["annotate", *references, "--namespace=jobs", "--overwrite"]
    assert annotation.startswith("joinery.dev/restartedAt=")


def test_without_a_job_there_is_nothing_to_restart(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(kubectl)
    ended = plugin("restart", "orders")
    assert (ended.code, "BlueGreenJob jobs/orders has no job yet" in ended.err) == (1, True)


def test_logs_are_those_of_the_job_that_readers_use(kubectl: FakeKubectl, plugin: Run) -> None:
    job = {**child(BLUE, "blue"), "status": {"driver": {"number": 4, "asked": "2026-11-21T10:00:00Z"}}}
    serve_job(kubectl, jobs=LISTED, blue=job)
    pod = ChildNames(job).driver(4)
    kubectl.has_pod(pod)
    kubectl.answer("logs", pod, out="of blue\n")
    assert plugin("logs", "orders").out == "of blue\n"


def test_status_suspend_and_pause_know_it(kubectl: FakeKubectl, plugin: Run) -> None:
    serve_job(kubectl, ("Ready", "True", "Running"), candidate={"name": GREEN})
    output = plugin("status", "orders").out
    assert BLUE in output
    assert GREEN in output
    assert plugin("suspend", "orders").code == 0
    assert kubectl.calls[-1][-1] == '--patch={"spec": {"suspend": true}}'
    assert plugin("rollout", "pause", "orders").code == 0
    assert kubectl.calls[-1][:2] == ["annotate", REFERENCE]
