"""Runs a command on a job's state when no driver runs: in a pod of its own, with the image, the file and the secrets of
the current revision. The pod is deleted once it has answered."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

from joinery_operator.manifests import (
    MAIN_CONTAINER,
    question_pod,
    stored_job,
    stored_pod_defaults,
    stored_service_account,
    stored_templates,
)
from joinery_operator.names import ChildNames
from joinery_operator.plugin.kubectl import JobResource, KubectlTarget, read_config_map
from joinery_operator.revision import JobRevision, PodTemplates
from joinery_operator.settings import Settings
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import KINDS

_STARTS_WITHIN, _POLL = 180.0, 0.5  # seconds


def ask(target: KubectlTarget, job: JobResource, no_driver_reason: str, command: Sequence[str]) -> int:
    """Run `joinery COMMAND` in a pod of its own, and return its exit code. `no_driver_reason` says why no driver
    runs. Raises JoineryError, which says what to do, if there is no state to look at, or the pod does not start."""
    revision = _current_revision(target, job, no_driver_reason)
    name = ChildNames(job.resource).question(secrets.token_hex(3))
    namespace_option = f"--namespace={job.namespace}"
    sys.stderr.write(f"joinery: {no_driver_reason}. This is asked in a pod of its own, {name}\n")
    target.read("create", "--filename=-", namespace_option, stdin=json.dumps(question_pod(revision, name, command)))
    try:
        _wait_until_started(target, name, namespace_option)
        code = target.run("logs", name, namespace_option, f"--container={MAIN_CONTAINER}", "--follow")
        if code != 0:
            facts = f"kubectl logs {name} ended with {code}"
            raise JoineryError("The answer may not be whole", facts=facts, todo="Ask again")
        return _exit_code(target, name, namespace_option)
    finally:
        target.do("delete", "pod", name, namespace_option, "--wait=false", "--ignore-not-found")


def _current_revision(target: KubectlTarget, job: JobResource, no_driver_reason: str) -> JobRevision:
    status, status_command = job.status, f"`kubectl joinery status {job.resource['metadata']['name']}`"
    if not status.get("revision") or not status.get("image"):
        facts = "no driver of it has started yet, so it has no state"
        raise JoineryError(no_driver_reason, facts=facts, todo=f"{status_command} says what it waits for")
    config_map = ChildNames(job.resource).config_map(status["revision"])
    (kind,) = (job_kind for job_kind in KINDS if job_kind.name == job.resource["kind"])
    manifest = read_config_map(target, job, config_map)
    stored, account = stored_job(manifest, kind, job.resource), stored_service_account(manifest)
    if stored is None or account is None:
        facts = f"ConfigMap {config_map} of its current revision is missing, or of no use to this kubectl-joinery"
        raise JoineryError(no_driver_reason, facts=facts, todo=f"{status_command} says what brings it back")
    spec = stored[0].spec
    if spec.state_store.kind != "postgres":
        facts = f"spec.stateStore is {spec.state_store.kind}, so its state was lost with the driver"
        raise JoineryError(no_driver_reason, facts=facts, todo="Name a Postgres (stateStore.postgres) to keep it")
    ref = spec.spark.driver.pod_template
    templates: PodTemplates | None = stored_templates(manifest)
    if templates is None:  # there is none, or an earlier release stored the revision
        names = [ref.name] if ref is not None and ref.name is not None else []
        templates = {name: read_config_map(target, job, name) for name in names}
    settings, defaults = Settings(service_account=account), stored_pod_defaults(manifest)
    return JobRevision(*stored, status["revision"], status["image"], settings, templates, defaults)


def _wait_until_started(target: KubectlTarget, name: str, namespace_option: str) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        pod = target.read("get", "pod", name, namespace_option)
        if pod["status"].get("phase") in {"Running", "Succeeded", "Failed"}:
            return
        if time.monotonic() > deadline:
            status = pod["status"]
            waiting = [container.get("state", {}).get("waiting") for container in status.get("containerStatuses", ())]
            unmet = [condition for condition in status.get("conditions", ()) if condition["status"] == "False"]
            causes = [f"{cause.get('reason', '')}: {cause.get('message', '')}" for cause in [*waiting, *unmet] if cause]
            facts = "; ".join(causes) or f"it is {status.get('phase')} after {_STARTS_WITHIN:.0f} s"
            raise JoineryError(f"Pod {name} does not start", facts=facts, todo="Mend that, and ask again")
        time.sleep(_POLL)


def _exit_code(target: KubectlTarget, name: str, namespace_option: str) -> int:
    """Wait for the container's exit code, which the kubelet may report a moment after the end of the log."""
    while True:
        pod: Any = target.read("get", "pod", name, namespace_option)
        states = [
            container["state"]
            for container in pod["status"].get("containerStatuses", ())
            if container["name"] == MAIN_CONTAINER
        ]
        if ended := next((state["terminated"] for state in states if "terminated" in state), None):
            return int(ended["exitCode"])
        if pod["status"].get("phase") == "Failed":  # it was evicted
            raise JoineryError(f"Pod {name} was ended", facts=pod["status"].get("message", ""), todo="Ask again")
        time.sleep(_POLL)
