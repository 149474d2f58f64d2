"""Pods of the cluster's own tests: one container that runs a command."""

from __future__ import annotations

from typing import Any

from joinery_devkit.kubernetes.kubectl import Kubectl, wait_until


def pod(name: str, image: str, *command: str, labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    """`container` are further fields of the container."""
    fields = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command), **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [fields]},
    }


def phase(kubectl: Kubectl, name: str, namespace: str) -> str:
    found = kubectl.get("pod", name, namespace)
    assert found is not None
    return str(found["status"].get("phase"))


def log_of(kubectl: Kubectl, name: str, namespace: str) -> str:
    """The log of a pod, once it has ended well."""
    wait_until("the pod ends", lambda: phase(kubectl, name, namespace) in ("Succeeded", "Failed"))
    log = kubectl("logs", name, "-n", namespace)
    assert phase(kubectl, name, namespace) == "Succeeded", log
    return log
