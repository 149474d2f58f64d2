"""The pods that the operator makes for a job: its driver, the check of a changed job, and the end of its state."""

from __future__ import annotations

from typing import Any

from joinery_operator.children.config import FILES, JOB_FILE
from joinery_operator.children.parts import (
    CONTAINER_SECURITY,
    SCRATCH_ENV,
    SCRATCH_MOUNT,
    SCRATCH_VOLUME,
    field_env,
    identity,
    placed,
)
from joinery_operator.children.secrets import secret_mounts, secret_names, secret_volumes
from joinery_operator.children.spark import CONFIG, MASTER, UI_PORT, driver_memory, submit_arguments
from joinery_operator.children.template import Templates, merged_pod, template_of
from joinery_operator.names import Names, Role, labels, owner_reference
from joinery_operator.observed import Manifest
from joinery_operator.settings import Settings
from joinery_runtime.job import Job
from joinery_runtime.job.crd import ENDING_FILE

MAIN_CONTAINER = "joinery"
"""In every pod that the operator makes; a pod template's container of this name is merged with it."""
MIGRATE_CONTAINER, RESTORE_CONTAINER = "migrate", "restore"

_COMMAND = "joinery"
_JOB = f"{CONFIG}/{JOB_FILE}"
_ENDING = "/dev/termination-log"
# A command that looks at the state: one Python process without Spark, and the segments that it tries to migrate.
_STATE_MEMORY, _STATE_CPU = 1024, "100m"
_STARTS_WITHIN, _DEAD_AFTER, _READY_EVERY = 600, 60, 5  # seconds
_PROBE_EVERY, _PROBE_TIMEOUT = 10, 5


def driver_pod(
    job: Job,
    resource: Manifest,
    attempt: int,
    revision: str,
    image: str,
    settings: Settings,
    templates: Templates,
    *,
    migrate: str | None = None,
    anew: bool = False,
    restore: str | None = None,
) -> Manifest:
    """One attempt. `migrate` names the savepoint that is pinned before the state is migrated (`anew`: left behind),
    `restore` the one that is returned to; at most one of them. Raises ChildError."""
    if migrate is not None and restore is not None:
        raise ValueError("an attempt either migrates or restores")
    container = {
        **_container(job, image, revision),
        "args": [_COMMAND, "run", _JOB, "--master", MASTER, "--status-port", str(settings.status_port)],
        "ports": [_port("status", settings.status_port), _port("spark-ui", UI_PORT)],
        "resources": _resources(
            job.spec.spark.driver.core_request or job.spec.spark.driver.cores, driver_memory(job.spec.spark)
        ),
        **_probes(),
    }
    container["env"] = [*container["env"], *_spark_env(resource, attempt)]
    pod = _pod(job, resource, revision, settings, templates, "driver", container, attempt)
    pod["spec"]["terminationGracePeriodSeconds"] = settings.stop_grace_seconds
    command = _before(migrate, anew, restore)
    if command:
        name, arguments = command
        pod["spec"].setdefault("initContainers", []).append(_initial(pod["spec"]["containers"][0], name, arguments))
    return pod


def check_pod(
    job: Job, resource: Manifest, revision: str, image: str, settings: Settings, templates: Templates
) -> Manifest:
    """Whether a changed job fits its state, and its migration works. Needs the revision's ConfigMap. Raises
    ChildError."""
    container = _state_container(job, image, revision, [_COMMAND, "state", "check", _JOB])
    return _pod(job, resource, revision, settings, templates, "check", container)


def delete_state_pod(
    job: Job, resource: Manifest, revision: str, image: str, settings: Settings, templates: Templates
) -> Manifest:
    """Deletes the state of a job that is being deleted. Needs the revision's ConfigMap. Raises ChildError."""
    container = _state_container(job, image, revision, [_COMMAND, "state", "delete", _JOB, "--yes"])
    return _pod(job, resource, revision, settings, templates, "delete-state", container)


def _pod(
    job: Job,
    resource: Manifest,
    revision: str,
    settings: Settings,
    templates: Templates,
    role: Role,
    container: Manifest,
    attempt: int | None = None,
) -> dict[str, Any]:
    names, spark, secrets = Names(resource), job.spec.spark, secret_names(job.spec)
    is_driver = attempt is not None
    ours = {
        "metadata": {
            "name": names.driver(attempt) if attempt is not None else _name(names, role, revision, job),
            "namespace": resource["metadata"]["namespace"],
            "labels": labels(resource, role, attempt, revision),
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": {
            **identity(spark, settings, token=is_driver),
            **placed(spark.driver),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "volumes": [
                {"name": "job", "configMap": {"name": names.config_map(revision)}},
                SCRATCH_VOLUME,
                *secret_volumes(secrets),
            ],
            "containers": [container],
        },
    }
    template = template_of(spark.driver.pod_template, templates, "spec.spark.driver.podTemplate")
    # A container beside ours need not end, and a check has to.
    return merged_pod(template, ours, main=MAIN_CONTAINER, extra_containers=is_driver)


def _name(names: Names, role: Role, revision: str, job: Job) -> str:
    return names.check(revision, job.spec.upgrade.mode) if role == "check" else names.delete_state


def _container(job: Job, image: str, revision: str) -> dict[str, Any]:
    return {
        "name": MAIN_CONTAINER,
        "image": image,
        "imagePullPolicy": job.spec.spark.image_pull_policy,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": _ENDING,
        # What ends before it can write an ending (a package is missing, say) is told by its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            *field_env(POD_NAME="metadata.name", POD_NAMESPACE="metadata.namespace", POD_IP="status.podIP"),
            *SCRATCH_ENV,
            {"name": ENDING_FILE, "value": _ENDING},
            {"name": "JOINERY_REVISION", "value": revision},
        ],
        # Each file by itself: a directory that is a ConfigMap is read-only, and has no room for the secrets below it.
        "volumeMounts": [
            *({"name": "job", "mountPath": f"{CONFIG}/{file}", "subPath": file, "readOnly": True} for file in FILES),
            SCRATCH_MOUNT,
            *secret_mounts(secret_names(job.spec)),
        ],
    }


def _state_container(job: Job, image: str, revision: str, arguments: list[str]) -> dict[str, Any]:
    return {
        **_container(job, image, revision),
        "args": arguments,
        "resources": _resources(_STATE_CPU, _STATE_MEMORY),
    }


def _spark_env(resource: Manifest, attempt: int) -> list[dict[str, Any]]:
    return [
        {"name": "SPARK_CONF_DIR", "value": CONFIG},
        *field_env(SPARK_LOCAL_IP="status.podIP", SPARK_LOCAL_HOSTNAME="status.podIP"),
        {"name": "PYSPARK_SUBMIT_ARGS", "value": submit_arguments(resource, attempt)},
    ]


def _before(migrate: str | None, anew: bool, restore: str | None) -> tuple[str, list[str]] | None:
    """Name and arguments of what runs before the driver."""
    if migrate is not None:
        more = ["--anew"] if anew else []
        return MIGRATE_CONTAINER, [_COMMAND, "state", "migrate", _JOB, "--savepoint", migrate, *more]
    if restore is not None:
        return RESTORE_CONTAINER, [_COMMAND, "state", "restore", _JOB, "--savepoint", restore, "--before-first-commit"]
    return None


def _initial(main: Manifest, name: str, arguments: list[str]) -> dict[str, Any]:
    """The driver's container with another command: it sees the same files, and needs the pod's memory no less."""
    only_running = {"ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle"}
    return {**{key: value for key, value in main.items() if key not in only_running}, "name": name, "args": arguments}


def _resources(cpu: str | int, mebibytes: int) -> dict[str, Any]:
    """Without a limit of CPU, which would only slow down what nobody else uses."""
    memory = f"{mebibytes}Mi"
    return {"requests": {"cpu": str(cpu), "memory": memory}, "limits": {"memory": memory}}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probes() -> dict[str, Any]:
    alive, ready = _get("/healthz"), _get("/readyz")
    return {
        "startupProbe": {**alive, "periodSeconds": _READY_EVERY, "failureThreshold": _STARTS_WITHIN // _READY_EVERY},
        "livenessProbe": {**alive, "periodSeconds": _PROBE_EVERY, "failureThreshold": _DEAD_AFTER // _PROBE_EVERY},
        "readinessProbe": {**ready, "periodSeconds": _READY_EVERY, "failureThreshold": 2},
    }


def _get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "status"}, "timeoutSeconds": _PROBE_TIMEOUT}
