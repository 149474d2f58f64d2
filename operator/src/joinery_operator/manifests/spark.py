"""How Spark runs a revision: settings, memory, and the template of its executor pods.

A revision's settings are in its `spark-defaults.conf`; those of one attempt are arguments of its JVM.

The runtime puts each setting of the job's own `spark.conf` on the JVM's command line. So they override the file, even
launch settings (memory, Java options, class path), and need not be in it. No credentials are set: in a pod Spark's
client finds the service account's token by itself, and reads it again when it is rotated.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from typing import Any

from joinery_operator.manifests.pod_base import (
    CONFIG,
    CONTAINER_SECURITY,
    EXECUTOR_CONTAINER,
    JOB_FILE,
    KEY_ENV,
    KEY_MOUNT,
    KEY_VOLUME,
    RACK_ENV,
    SCRATCH_ENV,
    SCRATCH_MOUNT,
    SCRATCH_VOLUME,
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
from joinery_operator.names import ATTEMPT_LABEL, ChildNames, labels
from joinery_operator.revision import JobRevision, ManifestError
from joinery_runtime.errors import Problem
from joinery_runtime.job.crd import Scale
from joinery_runtime.job.model.base import format_bytes, parse_bytes
from joinery_runtime.job.model.pods import SparkSpec
from joinery_runtime.job.model.resource import PROCESS_BYTES

# Request and limit of memory are equal, so that no pod is killed for the memory that others use.
# What a JVM needs beside its heap, by Spark's own rule for JVM jobs.
_LEAST_OVERHEAD = 384
_OVERHEAD_FACTOR = 0.10
# The driver's Python process (Arrow, Polars, librdkafka, libpq). No rows pass through it.
_DRIVER_PYTHON = 512
# Those of an executor (docs/operations.md#memory). One of them may have all rows of an epoch, if these have one key.
# Segments of the state are mapped files, which the kernel drops under memory pressure.
_CORES_OF_PROCESS, _PYTHON_PROCESS, _PYTHON_THREAD, _EPOCHS_IN_MEMORY = 8, 400, 80, 8

_SIZE = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}


def mebibytes(text: str, setting: str) -> int:
    """Parse a size as in Spark's memory settings: 512m, 2g; a plain number is MiB. Raises ManifestError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ManifestError(
            f"{setting} is no size", facts=f"it is {text!r}", todo="Write a whole number and k, m, g or t, as 512m"
        )
    return int(int(match[1]) * _MIB[match[2].lower()])


def _jvm_overhead(heap: int) -> int:
    return max(_LEAST_OVERHEAD, int(heap * _OVERHEAD_FACTOR))


def executor_overhead(heap: int, cores: int, bytes_per_epoch: int) -> int:
    """Return the memory in MiB that an executor needs beside a heap of `heap` MiB."""
    processes = _PYTHON_PROCESS * math.ceil(cores / _CORES_OF_PROCESS) + _PYTHON_THREAD * cores
    return _jvm_overhead(heap) + processes + _EPOCHS_IN_MEMORY * math.ceil(bytes_per_epoch / 2**20)


MASTER = "k8s://https://kubernetes.default.svc"
EXECUTOR_FILE = "executor.yaml"
DEFAULTS_FILE = "spark-defaults.conf"
MOUNTED_FILES = (JOB_FILE, DEFAULTS_FILE, EXECUTOR_FILE)
UI_PORT = 4040
# Spark's own defaults on Kubernetes, set explicitly so that a NetworkPolicy can name them.
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079
# A value of a Java properties file ends at the end of the line, and may hold backslashes.
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def defaults_file(revision: JobRevision) -> str:
    """Return the revision's `spark-defaults.conf`, a file of Java properties."""
    settings = _spark_settings(revision).items()
    lines = [(key, "\\" if value.startswith(" ") else "", value.translate(_ESCAPES)) for key, value in settings]
    return "".join(f"{key}={first}{text}\n" for key, first, text in lines)


def submit_arguments(revision: JobRevision, attempt: int, scale: Scale, executors: int | None = None) -> str:
    """`PYSPARK_SUBMIT_ARGS` of one attempt. Its pod owns the executors, as many as are asked for at its start. An
    autoscaled job continues with the number of `executors` that its last driver asked for."""
    names = ChildNames(revision.resource)
    instances = scale.instances or revision.job.spec.spark.executor.instances
    if scale.autoscale is not None:
        instances = min(max(executors or instances, scale.autoscale.min_instances), scale.autoscale.max_instances)
    settings = {
        "spark.executor.instances": str(instances),
        "spark.kubernetes.driver.pod.name": names.driver(attempt),
        "spark.kubernetes.executor.podNamePrefix": names.executor_prefix(attempt),
        f"spark.kubernetes.executor.label.{ATTEMPT_LABEL}": str(attempt),
    }
    return shlex.join([part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]) + (
        " pyspark-shell"
    )


# Settings that Joinery decides in a cluster, and where a job states them instead. The models cannot reject these: on a
# laptop `spark.conf` may set a master.
_OWN_SETTINGS = {
    "spark.master": "leave it out: the operator starts executors in its own cluster",
    "spark.submit.deployMode": "leave it out: the driver runs in the job's pod",
    "spark.kubernetes.namespace": "leave it out: pods run in the job's namespace",
    "spark.kubernetes.driver.pod.name": "leave it out: the operator names the pods",
    "spark.kubernetes.executor.podNamePrefix": "leave it out: the operator names the pods",
    "spark.kubernetes.executor.podTemplateFile": "name a template in spec.spark.executor.podTemplate",
    "spark.kubernetes.executor.podTemplateContainerName": "name a template in spec.spark.executor.podTemplate",
    "spark.kubernetes.executor.disableConfigMap": "leave it out: drivers have no permission for ConfigMaps",
    "spark.kubernetes.container.image": "write spec.spark.image",
    "spark.kubernetes.driver.container.image": "write spec.spark.image",
    "spark.kubernetes.executor.container.image": "write spec.spark.image",
    "spark.executor.instances": "write spec.spark.executor.instances",
    "spark.executor.cores": "write spec.spark.executor.cores",
    "spark.dynamicAllocation.enabled": "write spec.autoscale, or spec.spark.executor.maxInstances",
    "spark.dynamicAllocation.initialExecutors": "write spec.spark.executor.instances",
    "spark.dynamicAllocation.minExecutors": "write spec.spark.executor.instances",
    "spark.dynamicAllocation.maxExecutors": "write spec.spark.executor.maxInstances",
    "spark.driver.port": "leave it out: the job's NetworkPolicy names the port",
    "spark.driver.blockManager.port": "leave it out: the job's NetworkPolicy names the port",
    "spark.blockManager.port": "leave it out: the job's NetworkPolicy names the port",
}
_SETTING = re.compile(r"[A-Za-z0-9._/:*-]+")
_OWN_LABEL = "spark.kubernetes.executor.label.joinery.dev/"


def spark_problems(spark: SparkSpec) -> Iterator[Problem]:
    """Yield settings in `spec.spark` with which no driver could run, or which override what the operator relies on."""
    for name in spark.conf:
        if not _SETTING.fullmatch(name):  # spark-submit splits at the first "="
            yield Problem(f'spec.spark.conf["{name}"]', "is no name of a setting; write letters, digits and . _ - / :")
        todo = "leave it out: the operator finds executors by it" if name.startswith(_OWN_LABEL) else None
        if todo := todo or _OWN_SETTINGS.get(name):
            yield Problem(f'spec.spark.conf["{name}"]', f"is not for a job to set in a cluster; {todo}")
    executor = spark.executor
    if executor.max_instances is not None and executor.max_instances < executor.instances:
        facts = f"is {executor.max_instances}, less than the {executor.instances} of `instances`"
        todo = f"write at least {executor.instances}, or leave it out"
        yield Problem("spec.spark.executor.maxInstances", f"{facts}; {todo}")


def driver_memory(spark: SparkSpec) -> int:
    """Return the memory in MiB that the driver's pod needs. The job's `spark.conf` may set heap and overhead. Raises
    ManifestError."""
    heap_setting, overhead_setting = "spark.driver.memory", "spark.driver.memoryOverhead"
    heap = mebibytes(spark.conf.get(heap_setting, spark.driver.memory), heap_setting)
    beside = spark.conf.get(overhead_setting)
    return heap + (_jvm_overhead(heap) + _DRIVER_PYTHON if beside is None else mebibytes(beside, overhead_setting))


def _spark_settings(revision: JobRevision) -> dict[str, str]:
    spark = revision.job.spec.spark
    heap = mebibytes(spark.conf.get("spark.executor.memory", spark.executor.memory), "spark.executor.memory")
    bytes_per_epoch = revision.job.spec.trigger.max_bytes_per_epoch or PROCESS_BYTES
    settings: dict[str, Any] = {
        "spark.kubernetes.namespace": revision.resource["metadata"]["namespace"],
        "spark.kubernetes.container.image": revision.image,
        "spark.kubernetes.container.image.pullPolicy": spark.image_pull_policy,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # Executors need none of Spark's files, and without this ConfigMap the driver needs permissions for pods only.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.driver.memory": spark.driver.memory,
        "spark.driver.port": DRIVER_PORT,
        "spark.driver.blockManager.port": BLOCK_MANAGER_PORT,
        "spark.blockManager.port": BLOCK_MANAGER_PORT,
        "spark.ui.port": UI_PORT,
        # Anybody who reaches the port sees this page, so it must not offer to end what runs.
        "spark.ui.killEnabled": "false",
        "spark.executor.cores": spark.executor.cores,
        "spark.executor.memory": spark.executor.memory,
        "spark.executor.memoryOverhead": f"{executor_overhead(heap, spark.executor.cores, bytes_per_epoch)}m",
        # If spark.conf limits the executors that may be lost (spark.executor.maxNumFailures), Spark would otherwise
        # count them over the driver's whole life.
        "spark.executor.failuresValidityInterval": "10m",
        # An emptyDir goes with its pod.
        "spark.io.encryption.enabled": str(_blocks_outlive_pods(revision)).lower(),
        # Beside the template that mounts it: a driver makes a key only if its executors can take it.
        f"spark.executorEnv.{KEY_ENV['name']}": KEY_ENV["value"],
    }
    if spark.image_pull_secrets:
        names = ",".join(secret.name for secret in spark.image_pull_secrets)
        settings["spark.kubernetes.container.image.pullSecrets"] = names
    executor = spark.executor
    if executor.max_instances is not None and executor.max_instances > executor.instances:
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            # There is no external shuffle service on Kubernetes.
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": executor.instances,
            "spark.dynamicAllocation.maxExecutors": executor.max_instances,
        }
    if not _LIVENESS_SETTINGS & spark.conf.keys():
        settings |= _LIVENESS
    if spark.executor.core_request is not None:
        settings["spark.kubernetes.executor.request.cores"] = spark.executor.core_request
    return {key: str(value) for key, value in settings.items()}


# How long an executor may be silent, and how often Spark looks; executors report every 10 s. By default Spark takes two
# to three minutes to give up an executor whose node is lost.
_LIVENESS = {"spark.network.timeout": "60s", "spark.network.timeoutInterval": "10s"}
# Spark does not start if they do not fit each other. A job that sets one of them sets them all.
_LIVENESS_SETTINGS = {
    *_LIVENESS,
    "spark.executor.heartbeatInterval",
    "spark.storage.blockManagerHeartbeatTimeoutMs",
    "spark.storage.blockManagerTimeoutIntervalMs",
}


# Spark uses volumes with names of this kind for its blocks, instead of adding one itself.
_BLOCKS_PREFIX = "spark-local-dir-"
_BLOCKS = f"{_BLOCKS_PREFIX}1"
_VOLUME_SETTING = re.compile(rf"spark[.]kubernetes[.]executor[.]volumes[.](\w+)[.]{_BLOCKS_PREFIX}")


def _blocks_outlive_pods(revision: JobRevision) -> bool:
    """Return whether Spark writes blocks to a volume that is no emptyDir, as a template or the job's `spark.conf` may
    say."""
    volumes = executor_template(revision)["spec"]["volumes"]
    persistent_volumes = [
        volume for volume in volumes if volume["name"].startswith(_BLOCKS_PREFIX) and "emptyDir" not in volume
    ]
    kinds = {match[1] for name in revision.job.spec.spark.conf if (match := _VOLUME_SETTING.match(name))}
    return bool(persistent_volumes) or bool(kinds - {"emptyDir"})


_CACHE_SETTING, _CACHE_BYTES = "spark.executorEnv.JOINERY_CACHE_BYTES", 10 * 2**30
_SHUFFLE_BYTES = 20 * 2**30
# Most states fill a small part of the cache; the scheduler should not turn an executor away for the rest.
_USUAL_BLOCKS = 2 * 2**30


def _cache_bytes(spark: SparkSpec, default: int) -> int:
    """Return the size of the cache that the job asks for. Raises ManifestError."""
    try:
        return parse_bytes(spark.conf.get(_CACHE_SETTING, default))
    except ValueError as error:
        raise ManifestError(f"{_CACHE_SETTING} is no size", facts=str(error), todo="Correct spec.spark.conf") from error


def executor_template(revision: JobRevision) -> dict[str, Any]:
    """Return the template of executor pods, to which Spark adds image, environment, resources, owner, name and `args`.
    Executors mount the job's file and secrets like the driver, because the driver sends none of its secrets. They need
    no permissions. Raises ManifestError."""
    spark = revision.job.spec.spark
    operator_pod = {
        "metadata": {"labels": labels(revision.resource, "executor", revision=revision.revision)},
        "spec": {
            **identity(spark, revision.settings, token=False),
            **placement_fields(spark.executor),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "volumes": [
                job_volume(ChildNames(revision.resource).config_map(revision.revision)),
                SCRATCH_VOLUME,
                KEY_VOLUME,
                {
                    # The cache of the state, plus shuffled blocks and what one worker writes while another makes room.
                    "name": _BLOCKS,
                    "emptyDir": {"sizeLimit": format_bytes(_cache_bytes(spark, _CACHE_BYTES) + _SHUFFLE_BYTES)},
                },
                *secret_volumes(revision.job.spec),
            ],
            "containers": [
                {
                    "name": EXECUTOR_CONTAINER,
                    "securityContext": CONTAINER_SECURITY,
                    "env": [*SCRATCH_ENV, forbidden_properties_env(revision.settings), RACK_ENV],
                    "volumeMounts": [
                        job_mount(JOB_FILE),
                        SCRATCH_MOUNT,
                        KEY_MOUNT,
                        {"name": _BLOCKS, "mountPath": "/var/data/spark"},
                        *secret_mounts(revision.job.spec),
                    ],
                }
            ],
        },
    }
    template = template_of(spark.executor.pod_template, revision.templates, "spec.spark.executor.podTemplate")
    storage = format_bytes(_cache_bytes(spark, _USUAL_BLOCKS))
    return merged_pod(revision.pod_defaults, template, operator_pod, storage=storage, extra_containers=True)
