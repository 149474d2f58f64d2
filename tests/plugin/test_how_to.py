"""The how-to pages of a first job and of a rollout show what `kubectl joinery` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.blocks import blocks_of
from joinery_operator.reconcile.reasons import sentence
from plugin.conftest import FakeKubectl, Manifest, Run, sleep_by
from plugin.test_plugin import _attempt, _job
from plugin.test_rollout import stored
from simulated_cluster.blue_green_world import BlueGreenWorld, blue_green, topic

PAGES = Path(__file__).parents[2] / "docs/how-to"
NAME, SINCE, UNTIL = "orders-payments", "2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z"
IMAGE = "joinery-runtime:0.1.0"


def printed_on(page: str, command: str) -> str:
    """What the page shows below the command, up to the next one."""
    text = "".join(block.text for block in blocks_of(PAGES / page) if block.language == "console")
    shown = text.partition(f"$ kubectl joinery {command} -n jobs")[2].partition("\n")[2]
    assert shown, command
    return shown.partition("$ ")[0]


def up_to_date(status: str, reason: str, message: str) -> Manifest:
    return {"type": "UpToDate", "status": status, "reason": reason, "message": message}


def test_the_status_of_a_first_job(kubectl: FakeKubectl, plugin: Run) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": SINCE, "reason": "Running", "message": "Epoch 41"}
    inputs = [
        {"name": name, "lag": lag, "rowsPerSecond": rate, "watermark": SINCE, "watermarkDelay": "12s"}
        for name, lag, rate in (("orders", 7, 1200), ("payments", 0, 900))
    ]
    figures: dict[str, Any] = {"epoch": 41, "stateBytes": 5_000_000, "rowsIn": 1234567, "rowsOut": 99}
    kubectl.knows(_job(phase="Running", image=IMAGE, driver=_attempt(1), inputs=inputs, conditions=[ready], **figures))
    ended = plugin("status", NAME, "-n", "jobs")
    assert ended.out == printed_on("first-job.md", f"status {NAME}")


def test_the_stages_of_a_rollout(kubectl: FakeKubectl, plugin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    target = "revision 4d5e6f"
    steps = [
        up_to_date("False", "RolloutChecking", sentence(target, "")),
        up_to_date("False", "RolloutStarting", sentence(target, "")),
        up_to_date("True", "RolledOut", f"{target} is current"),
    ]
    waiting = iter(steps)

    def show_next(_: float = 0) -> None:
        kubectl._write([])
        kubectl.knows(_job(conditions=[next(waiting)]))

    sleep_by(monkeypatch, show_next)
    show_next()
    ended = plugin("rollout", "status", NAME, "-n", "jobs", "--timeout", "30m")
    assert ended.out == printed_on("roll-out.md", f"rollout status {NAME}")


def test_the_history_and_the_way_back(kubectl: FakeKubectl, plugin: Run) -> None:
    past = [{"revision": "1a2b3c", "image": IMAGE, "since": SINCE, "until": UNTIL}]
    job = _job(revision="4d5e6f", targetRevision="4d5e6f", image=IMAGE, proved=UNTIL, history=past)
    job["metadata"]["resourceVersion"] = "7"
    kubectl.knows(job)
    stored(kubectl, "1a2b3c", {**job["spec"], "shards": 2, "trigger": {"maxRecordsPerEpoch": 5}})
    kubectl.answer("patch")
    assert plugin("rollout", "history", NAME, "-n", "jobs").out == printed_on("roll-out.md", f"rollout history {NAME}")
    assert plugin("rollout", "undo", NAME, "-n", "jobs").out == printed_on("roll-out.md", f"rollout undo {NAME}")


def test_an_edit_beside_the_job(kubectl: FakeKubectl, plugin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's texts are those of the operator's reconcile."""
    resource = blue_green(output="paid-v1")
    resource["metadata"] |= {"name": "paid", "namespace": "jobs", "resourceVersion": "7"}
    world = BlueGreenWorld(resource)
    world.settle()
    world.edit(**topic("paid-v2"))
    world.settle()

    def show() -> None:
        kubectl._write([])
        types = "bluegreenjobs.joinery.dev"
        kubectl.answer("get", types, out={"items": [world.resource]})
        kubectl.knows(*world.jobs().values())
        for verb, text in (("annotate", "annotated"), ("patch", "patched")):
            kubectl.answer(verb, out=f"bluegreenjob.joinery.dev/paid {text}\n")

    def wait(_: float) -> None:
        world.settle(600)
        show()

    sleep_by(monkeypatch, wait)
    show()
    ended = plugin("rollout", "status", "paid", "-n", "jobs")
    assert (ended.code, ended.out) == (4, printed_on("roll-out.md", "rollout status paid"))
    world.switch()
    world.settle()
    show()
    shown = plugin("rollout", "status", "paid", "-n", "jobs")
    page = (PAGES / "roll-out.md").read_text()
    after = page.partition("$ kubectl joinery rollout switch paid -n jobs")[2]
    line = after.partition("$ kubectl joinery rollout status paid -n jobs\n")[2].partition("\n")[0].strip()
    revision = world.clusters[world.state.active or ""].status.revision
    assert (shown.code, shown.out) == (0, line.replace("4d5e6f", str(revision)) + "\n")
    assert [output.target for output in world.state.outputs] == ["paid-v2"]
    assert plugin("rollout", "undo", "paid", "-n", "jobs").out == printed_on("roll-out.md", "rollout undo paid")
