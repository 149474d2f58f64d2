"""Which ports of a job's pods another pod connects to."""

from __future__ import annotations

import json
from collections.abc import Mapping

from e2e.node.cluster_job import ClusterJob
from joinery_devkit.kubernetes.kubectl import pod
from joinery_operator.manifests.spark import BLOCK_MANAGER_PORT, DRIVER_PORT, UI_PORT
from joinery_runtime.job.crd import STATUS_PORT

STATUS = "status"
_STRANGER = "stranger"
_CONNECT = """
import json, socket, sys

def connects(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        return False
    return True

print(json.dumps([connects(address) for address in sys.argv[1:]]))
"""
_RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def ports(job: ClusterJob) -> Mapping[str, str]:
    """Addresses of its driver, and of one executor, by what they are for."""
    driver, executor = (each["status"]["podIP"] for each in (job.driver(), job.running("executor")[0]))
    return {
        "RPC": f"{driver}:{DRIVER_PORT}",
        "blocks": f"{driver}:{BLOCK_MANAGER_PORT}",
        "Spark's page": f"{driver}:{UI_PORT}",
        STATUS: f"{driver}:{STATUS_PORT}",
        "an executor's blocks": f"{executor}:{BLOCK_MANAGER_PORT}",
    }


def reached_from(job: ClusterJob, name: str, namespace: str) -> set[str]:
    """Those of `ports` to which a pod with Python connects."""
    addresses = ports(job)
    command = ["python3", "-c", _CONNECT, *addresses.values()]
    answers = json.loads(job.kubectl("exec", name, "-n", namespace, "--", *command))
    return {what for what, connects in zip(addresses, answers, strict=True) if connects}


def reached_by_stranger(job: ClusterJob) -> set[str]:
    """Those that a pod of its namespace which is no job's connects to; the pod is made when it is not there."""
    if job.kubectl.get("pod", _STRANGER, job.namespace) is None:
        sleeper = pod(_STRANGER, job.image, "sleep", "infinity", securityContext=_RESTRICTED)
        job.kubectl.apply(sleeper, job.namespace)
        job.kubectl("wait", f"pod/{_STRANGER}", "--for=condition=Ready", "--timeout=60s", "-n", job.namespace)
    return reached_from(job, _STRANGER, job.namespace)
