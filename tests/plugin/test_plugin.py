"""`kubectl joinery` with a kubectl that is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from joinery_operator.names import ChildNames
from joinery_operator.plugin import question
from joinery_runtime.job.crd import ENDING_FILE, KINDS, ResourceKind
from plugin.conftest import FakeKubectl, Manifest, Run
from simulated_cluster.resources import resource_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "kubernetes" / "orders-payments.yaml"
REFERENCE = "streamjoin.joinery.dev/orders-payments"


def _job(suspend: bool = False, **status: Any) -> Manifest:
    resource = yaml.safe_load(EXAMPLE.read_text())
    resource["metadata"] |= {"namespace": "jobs", "uid": "u", "generation": 3}
    resource["spec"]["suspend"] = suspend
    return {**resource, "status": {"observedGeneration": 3, **status}}


def _attempt(number: int) -> Manifest:
    return {"number": number, "revision": "1a2b", "image": "joinery-runtime:1", "created": "2026-11-21T10:00:00Z"}


def test_ls_is_a_get_of_the_category(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.answer("get", "joinery", out="NAME  PHASE\n")
    assert plugin("ls", "-A", "--context", "prod").out == "NAME  PHASE\n"
    assert kubectl.calls == [["--context=prod", "get", "joinery", "--all-namespaces"]]


def test_where_to_look_is_handed_on(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job())
    assert plugin("status", "orders-payments", "-n", "jobs", "--kubeconfig", "k").code == 0
    assert kubectl.calls[0][:2] == ["--namespace=jobs", "--kubeconfig=k"]


def test_logs_are_those_of_the_newest_driver_also_when_it_has_ended(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(driver=_attempt(4)))
    kubectl.has_pod("orders-payments-driver-4", "Failed")
    kubectl.answer("logs", out="line\n")
    assert plugin("logs", "orders-payments", "-f", "--tail", "5").out == "line\n"
    assert kubectl.calls[-1] == [
        "logs", "orders-payments-driver-4", "--namespace=jobs", "--container=joinery", "--follow", "--tail=5",
    ]  # fmt: skip


def test_state_commands_run_in_the_driver_with_the_job_after_the_command(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(driver=_attempt(4)))
    kubectl.has_pod("orders-payments-driver-4")
    kubectl.answer("exec", out="rows\n", code=1)
    ended = plugin("state", "sj/orders-payments", "show", "--key", "order_id=7", "--json", "-n", "jobs")
    assert (ended.code, ended.out) == (1, "rows\n")
    assert kubectl.calls[-1] == [
        "--namespace=jobs", "exec", "orders-payments-driver-4", "--namespace=jobs", "--container=joinery", "--",
        "env", f"--unset={ENDING_FILE}", "joinery", "state", "show", "/etc/joinery/job.yaml", "--key", "order_id=7",
        "--json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "more"),
    [("why", ["--key", "order_id=7"]), ("verify", ["--epochs", "3..5"]), ("sql", ["SELECT 1", "--rows", "5"])],
)
def test_questions_are_asked_in_the_driver(kubectl: FakeKubectl, plugin: Run, command: str, more: list[str]) -> None:
    kubectl.knows(_job(driver=_attempt(1)))
    kubectl.has_pod("orders-payments-driver-1")
    kubectl.answer("exec")
    assert plugin(command, "orders-payments", *more).code == 0
    assert kubectl.calls[-1][kubectl.calls[-1].index("joinery") :] == [
        "joinery",
        command,
        "/etc/joinery/job.yaml",
        *more,
    ]


def test_savepoint(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(driver=_attempt(1)))
    kubectl.has_pod("orders-payments-driver-1")
    kubectl.answer("exec")
    assert plugin("savepoint", "orders-payments", "before-sale").code == 0
    assert kubectl.calls[-1][-5:] == ["joinery", "state", "savepoint", "/etc/joinery/job.yaml", "before-sale"]


def _in_force(job: Manifest, **spec: Any) -> Manifest:
    """The ConfigMap of its revision."""
    about = {name: job[name] for name in ("apiVersion", "kind", "metadata")}
    now = {name: value for name, value in {**job["spec"], **spec}.items() if value is not None}
    written = yaml.safe_dump({**about, "spec": now})
    executor = yaml.safe_dump({"spec": {"serviceAccountName": "of-the-installation"}})
    data = {"job.yaml": written, "executor.yaml": executor}
    return {"metadata": {"name": "orders-payments-job-1a2b"}, "data": data}


IN_FORCE = {"revision": "1a2b", "image": "joinery-runtime:1"}
MEMORY = {"stateStore": {"memory": {}}, "output": {"file": {"path": "joined"}, "format": "json"}, "deadLetter": None}
ENDED = {"name": "joinery", "state": {"terminated": {"exitCode": 1}}}
NO_IMAGE = {"name": "joinery", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}


def _questions_are_pods(kubectl: FakeKubectl, phase: str, container: Manifest) -> None:
    kubectl.answer("create", "--filename=-", out={})
    kubectl.answer("get", "pod", out={"status": {"phase": phase, "containerStatuses": [container]}})
    kubectl.answer("logs", out="rows\n")
    kubectl.answer("delete", "pod")


@pytest.mark.parametrize(
    ("job", "pod", "why"),
    [
        (_job(suspend=True, phase="Suspended", **IN_FORCE), None, r"phase Suspended\)\."),
        (
            _job(phase="Starting", driver=_attempt(2), **IN_FORCE),
            {"phase": "Pending"},
            r"phase Starting\): driver pod orders-payments-driver-2 is Pending",
        ),
        (
            _job(phase="Stopping", driver=_attempt(2), **IN_FORCE),
            {"phase": "Running", "deletionTimestamp": "2026-11-21T10:00:00Z"},
            r"orders-payments-driver-2 is being stopped",
        ),
    ],
)
def test_where_no_driver_runs_a_question_has_a_pod_of_its_own(
    kubectl: FakeKubectl, plugin: Run, job: Manifest, pod: dict[str, str] | None, why: str
) -> None:
    """With what a driver sees: the image, the job, the secrets and the service account of the current revision.
    Nothing of it is left."""
    kubectl.knows(job)
    if pod is not None:
        kubectl.has_pod("orders-payments-driver-2", **pod)
    kubectl.answer(
        "get", "configmaps", "--field-selector=metadata.name=orders-payments-job-1a2b", out={"items": [_in_force(job)]}
    )
    _questions_are_pods(kubectl, "Succeeded", ENDED)
    ended = plugin("state", "orders-payments", "show", "--key", "order_id=7")
    assert (ended.code, ended.out) == (1, "rows\n"), ended.err
    assert re.search(why, ended.err)
    created_pod = kubectl.created
    name = created_pod["metadata"]["name"]
    assert re.fullmatch(r"orders-payments-question-[0-9a-f]{6}", name)
    assert name in ended.err
    (owner,) = created_pod["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("u", False), (
        "it goes with the job; the operator has not asked for it"
    )
    (container,) = created_pod["spec"]["containers"]
    assert created_pod["spec"]["serviceAccountName"] == "of-the-installation"
    assert container["image"] == "joinery-runtime:1"
    assert container["args"] == ["joinery", "state", "show", "/etc/joinery/job.yaml", "--key", "order_id=7"]
    secrets = {volume["secret"]["secretName"] for volume in created_pod["spec"]["volumes"] if "secret" in volume}
    assert job["spec"]["stateStore"]["postgres"]["dsnSecretRef"]["name"] in secrets
    assert kubectl.calls[-1] == ["delete", "pod", name, "--namespace=jobs", "--wait=false", "--ignore-not-found"]


@pytest.mark.parametrize(
    ("status", "current_revision", "message"),
    [
        ({}, None, r"has started yet, so it has no state. `kubectl joinery status orders-payments` says what"),
        (IN_FORCE, None, r"ConfigMap orders-payments-job-1a2b of its current revision is missing"),
        (IN_FORCE, MEMORY, r"stateStore is memory.* Name a Postgres"),
    ],
    ids=["never started", "ConfigMap lost", "memory"],
)
def test_where_there_is_nothing_to_ask_it_says_what_to_do(
    kubectl: FakeKubectl, plugin: Run, status: Manifest, current_revision: Manifest | None, message: str
) -> None:
    job = _job(phase="Pending", **status)
    kubectl.knows(job)
    kubectl.answer(
        "get", "configmaps", out={"items": [] if current_revision is None else [_in_force(job, **current_revision)]}
    )
    ended = plugin("state", "orders-payments", "ls")
    assert ended.code == 1
    assert re.search(message, ended.err)
    assert not [command for command in kubectl.calls if "create" in command]


def test_half_an_answer_is_not_taken_for_one(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(suspend=True, phase="Suspended", **IN_FORCE))
    kubectl.answer(
        "get",
        "configmaps",
        "--field-selector=metadata.name=orders-payments-job-1a2b",
        out={"items": [_in_force(_job())]},
    )
    kubectl.answer("logs", out="ro", code=1)
    _questions_are_pods(kubectl, "Succeeded", {"name": "joinery", "state": {"terminated": {"exitCode": 0}}})
    ended = plugin("state", "orders-payments", "show", "--key", "order_id=7")
    assert (ended.code, ended.out) == (1, "ro")
    assert re.search(r"The answer may not be whole: kubectl logs .* ended with 1\. Ask again", ended.err)


def test_a_pod_of_a_question_that_does_not_start_says_why_and_goes(
    kubectl: FakeKubectl, plugin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "_STARTS_WITHIN", -1.0)
    job = _job(phase="Failed", **IN_FORCE)
    kubectl.knows(job)
    kubectl.answer("get", "configmaps", out={"items": [_in_force(job)]})
    _questions_are_pods(kubectl, "Pending", NO_IMAGE)
    ended = plugin("why", "orders-payments", "--key", "order_id=7")
    assert ended.code == 1
    assert "does not start: ErrImagePull: no such image" in ended.err
    assert kubectl.calls[-1][0] == "delete"


def test_restart_annotates(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job())
    kubectl.answer("annotate", REFERENCE)
    assert plugin("restart", "orders-payments").code == 0
    *before, annotation = kubectl.calls[-1]
    assert before == ["annotate", REFERENCE, "--namespace=jobs", "--overwrite"]
    assert re.fullmatch(r"joinery\.dev/restartedAt=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", annotation)


@pytest.mark.parametrize(("command", "suspended"), [("suspend", True), ("resume", False)])
def test_suspend_and_resume(kubectl: FakeKubectl, plugin: Run, command: str, suspended: bool) -> None:
    kubectl.knows(_job())
    kubectl.answer("patch", REFERENCE)
    assert plugin(command, "orders-payments").code == 0
    assert kubectl.calls[-1][:4] == ["patch", REFERENCE, "--namespace=jobs", "--type=merge"]
    assert json.loads(kubectl.calls[-1][4].removeprefix("--patch=")) == {"spec": {"suspend": suspended}}


def test_explain_needs_no_driver(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(suspend=True))
    ended = plugin("explain", "orders-payments")
    assert ended.code == 0
    assert "bound: payments.ts in [orders.ts + 0s, orders.ts + 1h], both ends included" in ended.out


def test_an_invalid_job_is_explained_by_its_mistakes(kubectl: FakeKubectl, plugin: Run) -> None:
    job = _job()
    job["spec"]["inputs"][0]["eventTime"] = "time"
    kubectl.knows(job)
    ended = plugin("explain", "orders-payments")
    assert ended.code == 2
    assert "jobs/orders-payments" in ended.err
    assert "spec.inputs[0].eventTime" in ended.err


def test_status_is_readable(kubectl: FakeKubectl, plugin: Run) -> None:
    since = "2026-11-21T10:00:00Z"
    conditions = [
        {"type": "Ready", "status": "True", "lastTransitionTime": since, "reason": "Running", "message": "Epoch 41"},
        {"type": "StateCompatible", "status": "False", "lastTransitionTime": since, "reason": "IncompatibleState",
         "message": "keys differ:\nwas a, is b"},
    ]  # fmt: skip
    inputs = [
        {"name": "orders", "lag": 7, "watermark": since, "watermarkDelay": "12s"},
        {"name": "payments", "idle": True},
    ]
    kubectl.knows(
        _job(
            phase="Running", epoch=41, image="joinery-runtime:1", stateBytes=5_000_000, rowsIn=1234567, rowsOut=99,
            driver={**_attempt(2), "failures": 1}, conditions=conditions, inputs=inputs,
            refused={"revision": "ffff", "reason": "IncompatibleState", "message": "keys differ"},
        )
    )  # fmt: skip
    ended = plugin("status", "orders-payments")
    assert ended.out.splitlines() == [
        "StreamJoin jobs/orders-payments: Running",
        "  image:      joinery-runtime:1",
        "  driver:     attempt 2, 1 failures in a row",
        "  epoch:      41",
        "  rows:       1,234,567 in, 99 out",
        "  state:      4.768 MiB",
        "  INPUT     LAG  ROWS/S  WATERMARK             BEHIND  STATE",
        "  orders    7    -       2026-11-21T10:00:00Z  12s",
        "  payments  -    -       -                     -       idle",
        "  CONDITION                SINCE                 REASON",
        "  Ready             True   2026-11-21T10:00:00Z  Running",
        "      Epoch 41",
        "  !StateCompatible  False  2026-11-21T10:00:00Z  IncompatibleState",
        "      keys differ:",
        "      was a, is b",
        "  rejected: revision ffff (IncompatibleState): keys differ",
    ]


def test_a_job_that_the_operator_has_not_seen(kubectl: FakeKubectl, plugin: Run) -> None:
    job = _job()
    kubectl.knows({**job, "status": {}})
    assert plugin("status", "orders-payments").out == "StreamJoin jobs/orders-payments: not seen by the operator yet\n"


def test_a_status_of_the_job_before_the_change_says_so(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job(observedGeneration=2, phase="Running"))
    assert "has not seen the last change yet" in plugin("status", "orders-payments").out


def test_what_is_not_there_is_named(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(_job())
    assert "There is no job 'clicks'" in plugin("status", "clicks").err
    assert "'xy' is no kind of job: there are sj" in plugin("status", "xy/clicks").err


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_job_of_every_kind_is_found_by_its_name_and_with_its_kind(
    kubectl: FakeKubectl, plugin: Run, kind: ResourceKind
) -> None:
    kubectl.knows(resource_of(kind, "orders", "jobs"))
    for name in ("orders", f"{kind.short}/orders", f"{kind.name}/orders", f"{kind.name.lower()}.joinery.dev/orders"):
        assert plugin("status", name).out == f"{kind.name} jobs/orders: not seen by the operator yet\n"


def test_jobs_of_one_name_are_told_apart_by_their_kinds(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.knows(*(resource_of(kind, "orders", "jobs") for kind in KINDS))
    ended = plugin("status", "orders")
    assert ended.code == 1
    assert "Several jobs are called 'orders': SessionWindow and StreamJoin. Write sj/orders or sw/orders" in ended.err
    assert plugin("status", "sj/orders").out.startswith("StreamJoin jobs/orders:")
    assert plugin("status", "sw/orders").out.startswith("SessionWindow jobs/orders:")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_driver_of_every_kind_is_found(kubectl: FakeKubectl, plugin: Run, kind: ResourceKind) -> None:
    job = {**resource_of(kind, "orders", "jobs"), "status": {"driver": _attempt(2)}}
    driver = ChildNames(job).driver(2)
    kubectl.knows(job)
    kubectl.has_pod(driver)
    kubectl.answer("exec", out="rows\n")
    assert plugin("state", "orders", "stats").out == "rows\n"
    assert driver in kubectl.calls[-1]
    kubectl.answer("patch", f"{kind.name.lower()}.joinery.dev/orders")
    assert plugin("suspend", "orders").code == 0


def test_a_session_window_is_explained(kubectl: FakeKubectl, plugin: Run) -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "SessionWindow")
    kubectl.knows(resource_of(kind, "clicks", "jobs"))
    ended = plugin("explain", "clicks")
    assert ended.code == 0, ended.err
    assert "30s" in ended.out


def test_errors_of_kubectl_are_its_own(kubectl: FakeKubectl, plugin: Run) -> None:
    kubectl.answer("get", err="error: You must be logged in\n", code=7)
    ended = plugin("status", "orders-payments")
    assert (ended.code, ended.err) == (7, "error: You must be logged in\n")


def test_without_kubectl(plugin: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = plugin("ls")
    assert ended.code == 3
    assert "There is no kubectl on PATH" in ended.err
