"""What all pods of a job have in common: who they run as, where they may write, where they may be placed."""

from __future__ import annotations

from typing import Any

from joinery_operator.settings import Settings
from joinery_runtime.job.model.pods import Driver, SparkSpec

USER = 185
"""The images' user, and the group that mounted files belong to."""

SCRATCH = "/tmp"

POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # Volumes that belong to the group already are not walked through.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# The root is read-only; what looks for its home (caches of libraries, Spark) finds one that can be written.
SCRATCH_ENV = [{"name": "HOME", "value": SCRATCH}]
SCRATCH_VOLUME: dict[str, Any] = {"name": "tmp", "emptyDir": {}}
SCRATCH_MOUNT = {"name": "tmp", "mountPath": SCRATCH}


def placed(part: Driver) -> dict[str, Any]:
    """Fields of a pod's spec that say where it may run."""
    found: dict[str, Any] = {}
    if part.node_selector:
        found["nodeSelector"] = dict(part.node_selector)
    if part.tolerations:
        found["tolerations"] = [
            each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in part.tolerations
        ]
    return found


def identity(spark: SparkSpec, settings: Settings, *, token: bool) -> dict[str, Any]:
    """Fields of a pod's spec that say who it is. Only `token` lets it talk to the API server."""
    found: dict[str, Any] = {
        "serviceAccountName": spark.service_account or settings.service_account,
        "automountServiceAccountToken": token,
        "securityContext": POD_SECURITY,
    }
    if spark.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": secret.name} for secret in spark.image_pull_secrets]
    return found


def field_env(**paths: str) -> list[dict[str, Any]]:
    """Environment variables from fields of the pod itself."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]
