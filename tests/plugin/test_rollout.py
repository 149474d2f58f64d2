"""`kubectl joinery rollout` with a kubectl that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from plugin.conftest import FakeKubectl, Manifest, Run, sleep_by
from plugin.test_plugin import REFERENCE, _job

NAME = "orders-payments"
PAST = {"since": "2026-11-21T10:00:00Z", "until": "2026-11-22T10:00:00Z"}


def condition(type_: str, status: str, reason: str) -> Manifest:
    return {"type": type_, "status": status, "reason": reason, "message": f"{reason} it is"}


def job(*conditions: Manifest, **status: Any) -> Manifest:
    return _job(conditions=list(conditions), **status)


def stored(kubectl: FakeKubectl, revision: str, spec: Manifest) -> None:
    config_map = {"data": {"job.yaml": yaml.safe_dump({"spec": spec})}}
    words = ("get", "configmaps", f"--field-selector=metadata.name={NAME}-job-{revision}")
    kubectl.answer(*words, out={"items": [config_map]})


def patched(kubectl: FakeKubectl) -> Manifest:
    """The spec that the last call sets, which must be a patch of what was read."""
    *call, patch = kubectl.calls[-1]
    assert call == ["patch", REFERENCE, "--namespace=jobs", "--type=json"]
    test, replace = json.loads(patch.removeprefix("--patch="))
    assert test == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert (replace["op"], replace["path"]) == ("replace", "/spec")
    spec: Manifest = replace["value"]
    return spec


@pytest.mark.parametrize(
    ("conditions", "status", "code"),
    [
        ([condition("UpToDate", "True", "RolledOut"), condition("Ready", "False", "BackOff")], {}, 0),
        ([condition("UpToDate", "False", "Invalid"), condition("Stalled", "True", "Invalid")], {}, 1),
        (
            [condition("UpToDate", "False", "StartFailed"), condition("Stalled", "True", "StartFailed")],
            {"phase": "RollingBack", "rollout": {"stage": "RollingBack"}},
            3,
        ),
        (
            [condition("UpToDate", "False", "StartFailed"), condition("Stalled", "True", "RollbackFailed")],
            {"phase": "Failed", "rollout": {"stage": "RollingBack"}},
            1,
        ),
        ([condition("UpToDate", "False", "RolloutChecking"), condition("Stalled", "False", "Running")], {}, 3),
        ([condition("UpToDate", "True", "RolledOut")], {"observedGeneration": 2}, 3),
        ([], {}, 3),
        ([condition("UpToDate", "False", "RolloutsPaused"), condition("Paused", "True", "Rollouts")], {}, 4),
        ([condition("UpToDate", "False", "Suspended")], {}, 4),
        ([condition("UpToDate", "True", "RolledOut"), condition("Paused", "True", "Rollouts")], {}, 0),
        (
            [condition("UpToDate", "True", "RolledOut"), condition("Paused", "True", "Everything")],
            {"observedGeneration": 2},
            4,
        ),
    ],
)
def test_the_exit_code_says_how_far_the_rollout_is(
    kubectl: FakeKubectl, plugin: Run, conditions: list[Manifest], status: Manifest, code: int
) -> None:
    kubectl.knows(job(*conditions, **status))
    assert plugin("rollout", "status", NAME, "--no-wait").code == code


def test_status_waits_and_says_each_step_once(
    kubectl: FakeKubectl, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ["RolloutChecking", "RolloutChecking", "RolloutStarting", "RolledOut"]
    shown: list[str] = []

    def show_next(_: float = 0) -> None:
        reason = steps[len(shown)]
        shown.append(reason)
        kubectl._write([])
        kubectl.knows(job(condition("UpToDate", str(reason == "RolledOut"), reason)))

    sleep_by(monkeypatch, show_next)
    show_next()
    ended = plugin("rollout", "status", NAME)
    assert (ended.code, shown) == (0, steps)
    assert [line.split(": ")[1] for line in ended.out.splitlines()] == list(dict.fromkeys(steps))


def test_a_wait_ends_in_time(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(job())
    assert plugin("rollout", "status", NAME, "--timeout", "0s").code == 3
    ended = plugin("rollout", "status", NAME, "--timeout", "soon")
    assert ended.code == 1
    assert ended.err.startswith("joinery: --timeout soon: ")


def test_history_is_newest_first(kubectl: FakeKubectl, plugin: Run) -> None:
    history = [{"revision": "r1", "image": "i:1", **PAST}, {"revision": "r2", "image": "i:2", **PAST}]
    refused = {"revision": "r4", "reason": "RowsDiffer", "message": "rows differ"}
    kubectl.knows(job(revision="r3", image="i:3", proved=PAST["until"], history=history, refused=refused))
    stored(kubectl, "r1", {"sql": "SELECT 1"})
    lines = [line.split() for line in plugin("rollout", "history", NAME).out.splitlines()]
    assert lines == [
        ["REVISION", "STATE", "SINCE", "UNTIL", "IMAGE"],
        ["r4", "RowsDiffer", "-", "-", "-"],
        ["r3", "current", PAST["until"], "-", "i:3"],
        ["r2", "earlier", PAST["since"], PAST["until"], "i:2"],
        ["r1", "earlier", PAST["since"], PAST["until"], "i:1"],
    ]
    assert yaml.safe_load(plugin("rollout", "history", NAME, "--revision", "r1").out)["spec"] == {"sql": "SELECT 1"}


def _with_history(**status: Any) -> tuple[Manifest, Manifest]:
    """A job, and its spec before the last edit."""
    resource = job(revision="r3", targetRevision="r3", image="i:3", **status)
    resource["metadata"]["resourceVersion"] = "7"
    before = {**resource["spec"], "trigger": {"maxRecordsPerEpoch": 5}}
    before.pop("suspend", None)
    return resource, before


def test_undo_restores_the_job_and_leaves_what_is_no_part_of_a_revision(kubectl: FakeKubectl, plugin: Run) -> None:
    resource, before = _with_history(history=[{"revision": "r2", "image": "i:2", **PAST}])
    resource["spec"] |= {"suspend": True, "shards": 16, "spark": {"image": "i:3", "executor": {"instances": 9}}}
    old = {**before, "cleanup": "deleteState", "shards": 2, "spark": {"image": "i:2", "executor": {"instances": 1}}}
    kubectl.knows(resource)
    stored(kubectl, "r2", old)
    kubectl.answer("patch")
    ended = plugin("rollout", "undo", NAME)
    assert (ended.code, ended.out) == (0, f"jobs/{NAME}: back to the job of revision r2\n"), ended.err
    expected = {**before, "suspend": True, "shards": 16, "spark": {"image": "i:2", "executor": {"instances": 9}}}
    expected.pop("cleanup", None)
    assert patched(kubectl) == expected | {
        name: resource["spec"][name] for name in ("cleanup", "upgrade") if name in resource["spec"]
    }


def test_undo_of_a_rejected_edit_returns_to_the_current_revision(kubectl: FakeKubectl, plugin: Run) -> None:
    resource, before = _with_history(history=[{"revision": "r2", "image": "i:2", **PAST}])
    resource["status"]["targetRevision"] = "r4"
    kubectl.knows(resource)
    stored(kubectl, "r3", before)
    kubectl.answer("patch")
    assert plugin("rollout", "undo", NAME).code == 0
    assert patched(kubectl)["trigger"] == {"maxRecordsPerEpoch": 5}
    assert patched(kubectl).get("spark") == resource["spec"].get("spark"), "the operator knows its image"


def test_undo_names_the_image_that_a_revision_ran_without_naming_one(kubectl: FakeKubectl, plugin: Run) -> None:
    """Revisions that only a restart made are passed over."""
    history = [{"revision": "r1", "image": "i:1", **PAST}, {"revision": "r2", "image": "i:3", **PAST}]
    resource, _ = _with_history(history=history)
    resource["spec"].pop("spark", None)
    kubectl.knows(resource)
    for revision in ("r1", "r2"):
        stored(kubectl, revision, resource["spec"])
    kubectl.answer("patch")
    ended = plugin("rollout", "undo", NAME)
    assert patched(kubectl)["spark"] == {"image": "i:1"}
    assert "spec.spark.image is i:1" in ended.err


@pytest.mark.parametrize(
    ("options", "history", "message"),
    [
        ([], [], "has no earlier revision"),
        (["--to-revision", "r9"], ["r2"], "has no revision r9: it has r3, r2"),
        (["--to-revision", "r3"], [], "has the spec of revision r3 already"),
        (["--to-revision", "r2"], ["r2"], "ConfigMap orders-payments-job-r2 is missing in namespace jobs"),
    ],
)
def test_undo_says_why_it_cannot(
    kubectl: FakeKubectl, plugin: Run, options: list[str], history: list[str], message: str
) -> None:
    resource, _ = _with_history(history=[{"revision": revision, "image": "i:3", **PAST} for revision in history])
    kubectl.knows(resource)
    stored(kubectl, "r3", resource["spec"])
    kubectl.answer("get", "configmaps", out={"items": []})
    ended = plugin("rollout", "undo", NAME, *options)
    assert ended.code == 1
    assert message in ended.err


def test_pause_and_resume_annotate(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(job())
    kubectl.answer("annotate", REFERENCE)
    for command, annotation in (("pause", "joinery.dev/pause=rollouts"), ("resume", "joinery.dev/pause-")):
        assert plugin("rollout", command, NAME).code == 0
        assert kubectl.calls[-1] == ["annotate", REFERENCE, "--namespace=jobs", "--overwrite", annotation]
