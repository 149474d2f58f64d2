"""Builds a job's pods: its driver, the check of a changed job, its savepoints, the deletion of its state, and questions
about it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any
from urllib.parse import urlsplit

from joinery_operator.decision import Manifest
from joinery_operator.manifests.objects import page_url
from joinery_operator.manifests.pod_base import (
    CONFIG,
    CONTAINER_SECURITY,
    JOB_FILE,
    KEY_ENV,
    KEY_MOUNT,
    KEY_VOLUME,
    MAIN_CONTAINER,
    RACK_ENV,
    SCRATCH_ENV,
    SCRATCH_MOUNT,
    SCRATCH_VOLUME,
    by_key,
    field_env,
    identity,
    job_mount,
    job_volume,
    merged_pod,
    placement_fields,
    secret_mounts,
    secret_volumes,
    template_of,
)
from joinery_operator.manifests.policy import forbidden_properties_env
from joinery_operator.manifests.spark import (
    MASTER,
    MOUNTED_FILES,
    UI_PORT,
    defaults_file,
    driver_memory,
    executor_template,
    submit_arguments,
)
from joinery_operator.names import CHILD_JOB_ANNOTATION, SCALE_ANNOTATION, ChildNames, Role, labels, owner_reference
from joinery_operator.revision import JobRevision, scale_of
from joinery_runtime.job import STORED_JOB
from joinery_runtime.job.crd import ENDING_FILE, OWN_GROUPS, SCALE_FILE, Scale
from joinery_runtime.job.model.owner import STATE_OWNER

MIGRATE_CONTAINER = "migrate"

_SCALE, _SCALE_FOLDER = "scale", f"{CONFIG}/scale"
# The kubelet rewrites the file when the annotation changes.
_SCALE_VOLUME = {
    "name": _SCALE,
    "downwardAPI": {
        "items": [{"path": _SCALE, "fieldRef": {"fieldPath": f"metadata.annotations['{SCALE_ANNOTATION}']"}}]
    },
}
_COMMAND = "joinery"
_JOB = f"{CONFIG}/{JOB_FILE}"
_ENDING = "/dev/termination-log"
_STARTS_WITHIN, _DEAD_AFTER, _READY_EVERY = 600, 60, 5  # seconds
_PROBE_EVERY, _PROBE_TIMEOUT = 10, 5
_ONLY_OF_DRIVER = {"ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"}
# What a driver writes to /tmp, usually: Spark's files and compiled kernels.
_USUAL_SCRATCH = "512Mi"


def driver_base(revision: JobRevision) -> Manifest:
    """Return what the driver pods of all attempts have in common: a pod merged of the job's template, the
    installation's defaults and what this release adds. Raises ManifestError."""
    settings = revision.settings
    alive, ready = _http_get("/healthz"), _http_get("/readyz")
    container = {
        **_build_container(revision),
        "args": [_COMMAND, "run", _JOB, "--master", MASTER, "--status-port", str(settings.status_port)],
        "ports": [_port_entry("status", settings.status_port), _port_entry("spark-ui", UI_PORT)],
        "resources": _driver_resources(revision),
        "startupProbe": {**alive, "periodSeconds": _READY_EVERY, "failureThreshold": _STARTS_WITHIN // _READY_EVERY},
        "livenessProbe": {**alive, "periodSeconds": _PROBE_EVERY, "failureThreshold": _DEAD_AFTER // _PROBE_EVERY},
        "readinessProbe": {**ready, "periodSeconds": _READY_EVERY, "failureThreshold": 2},
    }
    container["env"] = [
        *container["env"],
        {"name": "SPARK_CONF_DIR", "value": CONFIG},
        # Not SPARK_LOCAL_IP: Spark's UI would listen on that address alone, and `kubectl port-forward` connects to the
        # loopback address. The driver's other ports listen on the address by this name.
        *field_env(SPARK_LOCAL_HOSTNAME="status.podIP"),
        # A variable and not an argument, which an image of an earlier release would not know.
        *field_env(JOINERY_STATUS_HOST="status.podIP"),
        {"name": "JOINERY_STATUS_PORT", "value": str(settings.status_port)},
        {"name": SCALE_FILE, "value": f"{_SCALE_FOLDER}/{_SCALE}"},
        KEY_ENV,
        *_own_groups_env(revision),
    ]
    container["volumeMounts"] = [
        *container["volumeMounts"],
        KEY_MOUNT,
        {"name": _SCALE, "mountPath": _SCALE_FOLDER, "readOnly": True},
    ]
    pod = _merged_pod(revision, {"labels": {}}, container, runs_spark=True)
    pod["spec"]["terminationGracePeriodSeconds"] = settings.stop_grace_seconds
    pod["spec"]["volumes"].append(_SCALE_VOLUME)
    return pod


def driver_pod(
    revision: JobRevision,
    attempt: int,
    scale: Scale | None = None,
    *,
    executors: int | None = None,
    migrate: str | None = None,
    abandon_state: bool = False,
) -> Manifest:
    """Return the pod of one attempt: the revision's stored one, with what belongs to the attempt. `scale` is the scale
    asked for now (None: the revision's); `executors` is the number that the driver before it had asked Spark for.
    `migrate` names the savepoint that is pinned before the state is migrated (with `abandon_state`: left behind).
    Raises ManifestError."""
    scale = scale or scale_of(revision.job)
    stored = driver_base(revision) if revision.driver is None else deepcopy(dict(revision.driver))
    metadata, spec = stored["metadata"], stored["spec"]
    name = ChildNames(revision.resource).driver(attempt)
    own = _pod_metadata(revision, "driver", name, attempt)
    annotations = {**(metadata.get("annotations") or {}), **scale_annotation(scale)}
    own |= {"labels": {**(metadata.get("labels") or {}), **own["labels"]}, "annotations": annotations}
    container, *beside = spec["containers"]
    page_host = urlsplit(page_url(revision.resource, revision.settings) or "").hostname
    attempt_env = [
        {"name": "PYSPARK_SUBMIT_ARGS", "value": submit_arguments(revision, attempt, scale, executors)},
        *_owner_env(revision),
        # The name under which browsers see the job's page. Its Ingress follows the installation, so this does too.
        *([{"name": "JOINERY_STATUS_NAMES", "value": page_host}] if page_host else ()),
    ]
    container = {**container, "env": by_key(container.get("env") or (), attempt_env, "name")}
    # An account that was renamed does not exist under its old name.
    account = {"serviceAccountName": revision.job.spec.spark.service_account or revision.settings.service_account}
    pod = {**stored, "metadata": own, "spec": {**spec, **account, "containers": [container, *beside]}}
    if migrate is not None:
        arguments = [_COMMAND, "state", "migrate", _JOB, "--savepoint", migrate, *(["--anew"] if abandon_state else [])]
        # The driver's container with another command: it sees the same files, and needs as much of the pod's memory.
        container = {key: value for key, value in container.items() if key not in _ONLY_OF_DRIVER}
        container |= {"name": MIGRATE_CONTAINER, "args": arguments}
        pod["spec"]["initContainers"] = [*(spec.get("initContainers") or ()), container]
    return pod


def scale_annotation(scale: Scale) -> dict[str, str]:
    return {SCALE_ANNOTATION: scale.model_dump_json(exclude_none=True, by_alias=True)}


def restore_pod(revision: JobRevision, attempt: int, savepoint: str) -> Manifest:
    """Return the pod of an attempt that returns to a savepoint and ends; no driver runs in it. Raises ManifestError."""
    container = _state_container(revision, "restore", _JOB, "--savepoint", savepoint, "--before-first-commit")
    return _build_pod(revision, "driver", ChildNames(revision.resource).driver(attempt), container, attempt)


def check_pod(revision: JobRevision) -> Manifest:
    """Return the pod that checks whether a changed job fits its state, and whether its migration works. Needs the
    revision's ConfigMap. Raises ManifestError."""
    name = ChildNames(revision.resource).check(revision.revision, revision.mode)
    container = _state_container(revision, "check", _JOB)
    container["env"] = [*container["env"], *_own_groups_env(revision)]
    return _build_pod(revision, "check", name, container)


def delete_state_pod(revision: JobRevision) -> Manifest:
    """Return the pod that deletes the state of a job that is being deleted. Needs the revision's ConfigMap. Raises
    ManifestError."""
    name = ChildNames(revision.resource).delete_state
    return _build_pod(revision, "delete-state", name, _state_container(revision, "delete", _JOB, "--yes"))


def savepoint_pod(revision: JobRevision, savepoint: Manifest, *, delete: bool = False) -> Manifest:
    """Return the pod that pins the job's state under the Savepoint's name, or unpins it. Belongs to the Savepoint, and
    needs the revision's ConfigMap. Raises ManifestError."""
    name = ChildNames(savepoint).savepoint("delete" if delete else "create")
    arguments = ("savepoint", _JOB, savepoint["metadata"]["name"], "--idempotent", *(["--delete"] if delete else []))
    return _build_pod(revision, "savepoint", name, _state_container(revision, *arguments), owner=savepoint)


def question_pod(revision: JobRevision, name: str, arguments: Sequence[str]) -> Manifest:
    """Return the pod that runs `joinery ARGUMENTS` when no driver runs, with what a driver sees. It is deleted with the
    job, but the operator does not control it. Needs the revision's ConfigMap. Raises ManifestError."""
    container = {**_build_container(revision), "args": [_COMMAND, *arguments], "resources": _driver_resources(revision)}
    pod = _build_pod(revision, "question", name, container)
    pod["metadata"]["ownerReferences"] = [
        {**owner_reference(revision.resource), "controller": False, "blockOwnerDeletion": False}
    ]
    return pod


def check_manifests(revision: JobRevision) -> None:
    """Raise ManifestError for faults that neither the models nor the API server find."""
    defaults_file(revision)
    executor_template(revision)
    driver_base(revision)


def _build_pod(
    revision: JobRevision,
    role: Role,
    name: str,
    container: Manifest,
    attempt: int | None = None,
    *,
    owner: Manifest | None = None,
) -> dict[str, Any]:
    """Return a pod that works on the state and ends."""
    container = {**container, "env": [*container["env"], *_owner_env(revision)]}
    return _merged_pod(revision, _pod_metadata(revision, role, name, attempt, owner), container, runs_spark=False)


def _pod_metadata(
    revision: JobRevision, role: Role, name: str, attempt: int | None, owner: Manifest | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": revision.resource["metadata"]["namespace"],
        "labels": labels(revision.resource, role, attempt, revision.revision),
        "ownerReferences": [owner_reference(owner or revision.resource)],
    }


def _merged_pod(revision: JobRevision, metadata: Manifest, container: Manifest, *, runs_spark: bool) -> dict[str, Any]:
    spark = revision.job.spec.spark
    operator_pod = {
        "metadata": metadata,
        "spec": {
            **identity(spark, revision.settings, token=runs_spark),
            **placement_fields(spark.driver),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "volumes": [
                job_volume(ChildNames(revision.resource).config_map(revision.revision)),
                SCRATCH_VOLUME,
                *([KEY_VOLUME] if runs_spark else ()),
                *secret_volumes(revision.job.spec),
            ],
            "containers": [container],
        },
    }
    template = template_of(spark.driver.pod_template, revision.templates, "spec.spark.driver.podTemplate")
    # Containers beside ours need not end, but all pods except a driver's have to.
    return merged_pod(
        revision.pod_defaults, template, operator_pod, storage=_USUAL_SCRATCH, extra_containers=runs_spark
    )


def _owner_env(revision: JobRevision) -> list[dict[str, str]]:
    """For whom the pod works on the state. Without a cluster, a person asks (`kubectl joinery`)."""
    if not revision.settings.cluster:
        return []
    return [{"name": STATE_OWNER, "value": revision.owner_candidate.model_dump_json(exclude_defaults=True)}]


def _build_container(revision: JobRevision) -> dict[str, Any]:
    return {
        "name": MAIN_CONTAINER,
        "image": revision.image,
        "imagePullPolicy": revision.job.spec.spark.image_pull_policy,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": _ENDING,
        # If a process ends before it can write an ending (a package is missing, say), its last lines are the message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            *field_env(POD_NAME="metadata.name", POD_NAMESPACE="metadata.namespace", POD_IP="status.podIP"),
            *SCRATCH_ENV,
            {"name": ENDING_FILE, "value": _ENDING},
            {"name": "JOINERY_REVISION", "value": revision.revision},
            {"name": STORED_JOB, "value": "true"},
            forbidden_properties_env(revision.settings),
            RACK_ENV,
        ],
        "volumeMounts": [
            *(job_mount(file) for file in MOUNTED_FILES),
            SCRATCH_MOUNT,
            *secret_mounts(revision.job.spec),
        ],
    }


def _own_groups_env(revision: JobRevision) -> list[dict[str, str]]:
    """For pods that read the inputs, or decide whether an edit may: deleting a state needs no consumer group."""
    metadata = revision.resource["metadata"]
    is_one_of_several = (metadata.get("annotations") or {}).get(CHILD_JOB_ANNOTATION) == metadata["name"]
    return [{"name": OWN_GROUPS, "value": "true"}] if is_one_of_several else []


def _state_container(revision: JobRevision, *arguments: str) -> dict[str, Any]:
    return {
        **_build_container(revision),
        "args": [_COMMAND, "state", *arguments],
        "resources": _driver_resources(revision),
    }


def _driver_resources(revision: JobRevision) -> dict[str, Any]:
    """Return the driver's resources, for every container that works on the job's state. There is no CPU limit, which
    would only withhold CPU that nobody else uses."""
    spark = revision.job.spec.spark
    memory = f"{driver_memory(spark)}Mi"
    return {
        "requests": {"cpu": str(spark.driver.core_request or spark.driver.cores), "memory": memory},
        "limits": {"memory": memory},
    }


def _port_entry(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _http_get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "status"}, "timeoutSeconds": _PROBE_TIMEOUT}
