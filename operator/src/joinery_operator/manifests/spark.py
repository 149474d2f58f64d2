"""How Spark runs a revision: settings, memory, and the template of its executor pods.

A revision's settings are its `spark-defaults.conf`, those of one attempt are arguments of its JVM.

The runtime puts the job's own `spark.conf` on the JVM's command line, each setting as one argument, so it wins over the
file, launch settings (memory, Java options, class path) included, and need not be in it. No credentials are set: in a
pod Spark's client finds the service account's token by itself, and then reads it anew when it is rotated.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from joinery_operator.manifests.pod_base import (
    CONFIG,
    CONTAINER_SECURITY,
    JOB_FILE,
    SCRATCH_ENV,
    SCRATCH_MOUNT,
    SCRATCH_VOLUME,
    identity,
    job_mount,
    job_volume,
    merged_pod,
    placed,
    secret_mounts,
    secret_volumes,
    template_of,
)
from joinery_operator.names import ATTEMPT_LABEL, ChildNames, labels
from joinery_operator.revision import JobRevision, ManifestError
from joinery_runtime.errors import Problem
from joinery_runtime.job.crd import Scale
from joinery_runtime.job.model.pods import SparkSpec
from joinery_runtime.job.model.quantity import format_bytes, parse_bytes

# Request and limit of memory are the same, so that nothing is killed for what others use.
# What a JVM needs beside its heap: Spark's own rule for JVM jobs.
_LEAST_OVERHEAD = 384
_OVERHEAD_FACTOR = 0.10
# A Python process of Joinery (Arrow, Polars, librdkafka, libpq) and the data of what it works at: the driver is one,
# and an executor has one per core. Segments of the state are mapped files, which give way under pressure.
_PYTHON_PROCESS = 512

_SIZE = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}


def mebibytes(text: str, setting: str) -> int:
    """A size as Spark's memory settings have it: 512m, 2g, a plain number is MiB. Raises ManifestError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ManifestError(
            f"{setting} is no size", facts=f"it is {text!r}", todo="Write a whole number and k, m, g or t, as 512m"
        )
    return int(int(found[1]) * _MIB[found[2].lower()])


def overhead(heap: int, python_processes: int) -> int:
    """MiB beside a heap of `heap` MiB."""
    return max(_LEAST_OVERHEAD, int(heap * _OVERHEAD_FACTOR)) + _PYTHON_PROCESS * python_processes


MASTER = "k8s://https://kubernetes.default.svc"
EXECUTOR_FILE = "executor.yaml"
DEFAULTS_FILE = "spark-defaults.conf"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
UI_PORT = 4040
# Spark's own defaults on Kubernetes, said so that a NetworkPolicy can name them.
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079


def defaults_file(revision: JobRevision) -> str:
    """A file of Java properties."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in _settings(revision).items())


def submit_arguments(revision: JobRevision, attempt: int, scale: Scale, executors: int | None = None) -> str:
    """`PYSPARK_SUBMIT_ARGS` of one attempt: its pod owns the executors, as many as are asked for at its start. An
    autoscaled job goes on with the `executors` that its last driver asked for."""
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


# What Joinery decides in a cluster, and where a job says it instead. The models cannot refuse these: on a laptop
# `spark.conf` may set a master.
_OWN_SETTINGS = {
    "spark.master": "leave it out: the operator starts executors in its own cluster",
    "spark.submit.deployMode": "leave it out: the driver runs in the job's pod",
    "spark.kubernetes.namespace": "leave it out: pods run in the job's namespace",
    "spark.kubernetes.driver.pod.name": "leave it out: the operator names the pods",
    "spark.kubernetes.executor.podNamePrefix": "leave it out: the operator names the pods",
    "spark.kubernetes.executor.podTemplateFile": "name a template in spec.spark.executor.podTemplate",
    "spark.kubernetes.executor.podTemplateContainerName": "name a template in spec.spark.executor.podTemplate",
    "spark.kubernetes.executor.disableConfigMap": "leave it out: drivers have no right on ConfigMaps",
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
_OWN_LABEL = "spark.kubernetes.executor.label.joinery.dev/"


def spark_problems(spark: SparkSpec) -> Iterator[Problem]:
    """What `spec.spark` says that no driver could run with, or that takes away what the operator relies on."""
    for name in spark.conf:
        todo = "leave it out: the operator finds executors by it" if name.startswith(_OWN_LABEL) else None
        if todo := todo or _OWN_SETTINGS.get(name):
            yield Problem(f'spec.spark.conf["{name}"]', f"is not for a job to set in a cluster; {todo}")
    executor = spark.executor
    if executor.max_instances is not None and executor.max_instances < executor.instances:
        facts = f"is {executor.max_instances}, less than the {executor.instances} of `instances`"
        todo = f"write at least {executor.instances}, or leave it out"
        yield Problem("spec.spark.executor.maxInstances", f"{facts}; {todo}")


def driver_memory(spark: SparkSpec) -> int:
    """MiB that the driver's pod needs. The job's `spark.conf` may set heap and overhead. Raises ManifestError."""
    heap_setting, overhead_setting = "spark.driver.memory", "spark.driver.memoryOverhead"
    heap = mebibytes(spark.conf.get(heap_setting, spark.driver.memory), heap_setting)
    beside = spark.conf.get(overhead_setting)
    return heap + (overhead(heap, 1) if beside is None else mebibytes(beside, overhead_setting))


def _settings(revision: JobRevision) -> dict[str, str]:
    spark = revision.job.spec.spark
    heap = mebibytes(spark.conf.get("spark.executor.memory", spark.executor.memory), "spark.executor.memory")
    settings: dict[str, Any] = {
        "spark.kubernetes.namespace": revision.resource["metadata"]["namespace"],
        "spark.kubernetes.container.image": revision.image,
        "spark.kubernetes.container.image.pullPolicy": spark.image_pull_policy,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # Executors need none of Spark's files; and the driver then needs rights on pods only.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.driver.memory": spark.driver.memory,
        "spark.driver.port": DRIVER_PORT,
        "spark.driver.blockManager.port": BLOCK_MANAGER_PORT,
        "spark.blockManager.port": BLOCK_MANAGER_PORT,
        "spark.ui.port": UI_PORT,
        # A page that anybody may see who reaches the port: not for ending what runs.
        "spark.ui.killEnabled": "false",
        "spark.executor.cores": spark.executor.cores,
        "spark.executor.memory": spark.executor.memory,
        "spark.executor.memoryOverhead": f"{overhead(heap, spark.executor.cores)}m",
        # Spark ends the driver after so many lost executors as the job has, and would count them over all of its life.
        "spark.executor.failuresValidityInterval": "10m",
    }
    if spark.image_pull_secrets:
        names = ",".join(secret.name for secret in spark.image_pull_secrets)
        settings["spark.kubernetes.container.image.pullSecrets"] = names
    settings |= _dynamic_allocation(spark)
    if spark.executor.core_request is not None:
        settings["spark.kubernetes.executor.request.cores"] = spark.executor.core_request
    return {key: str(value) for key, value in settings.items()}


def _dynamic_allocation(spark: SparkSpec) -> dict[str, Any]:
    executor = spark.executor
    if executor.max_instances is None or executor.max_instances <= executor.instances:
        return {}
    return {
        "spark.dynamicAllocation.enabled": "true",
        # There is no external shuffle service on Kubernetes.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": executor.instances,
        "spark.dynamicAllocation.maxExecutors": executor.max_instances,
    }


def _escaped(value: str) -> str:
    """A value of a Java properties file, which ends at a line's end and knows backslashes."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{text}" if text.startswith(" ") else text


# Spark takes a volume of this name for its blocks instead of one that it adds by itself.
_BLOCKS = "spark-local-dir-1"


_CACHE_SETTING, _CACHE_BYTES = "spark.executorEnv.JOINERY_CACHE_BYTES", 10 * 2**30
_SHUFFLE_BYTES = 20 * 2**30


def _blocks_limit(spark: SparkSpec) -> str:
    """Beside the cache of the state: shuffled blocks, and what one worker writes while another one makes room."""
    try:
        cache = parse_bytes(spark.conf.get(_CACHE_SETTING, _CACHE_BYTES))
    except ValueError as error:
        raise ManifestError(f"{_CACHE_SETTING} is no size", facts=str(error), todo="Correct spec.spark.conf") from error
    return format_bytes(cache + _SHUFFLE_BYTES)


def executor_template(revision: JobRevision) -> dict[str, Any]:
    """A pod without a name: Spark adds image, environment, resources, owner, name and `args`. Executors have the job's
    file and secrets as the driver does, because the driver sends none of its secrets; they need no rights. Raises
    ManifestError."""
    spark = revision.job.spec.spark
    ours = {
        "metadata": {"labels": labels(revision.resource, "executor", revision=revision.revision)},
        "spec": {
            **identity(spark, revision.settings, token=False),
            **placed(spark.executor),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "volumes": [
                job_volume(ChildNames(revision.resource).config_map(revision.revision)),
                SCRATCH_VOLUME,
                {"name": _BLOCKS, "emptyDir": {"sizeLimit": _blocks_limit(spark)}},
                *secret_volumes(revision.job.spec),
            ],
            "containers": [
                {
                    "name": EXECUTOR_CONTAINER,
                    "securityContext": CONTAINER_SECURITY,
                    "env": SCRATCH_ENV,
                    "volumeMounts": [
                        job_mount(JOB_FILE),
                        SCRATCH_MOUNT,
                        {"name": _BLOCKS, "mountPath": "/var/data/spark"},
                        *secret_mounts(revision.job.spec),
                    ],
                }
            ],
        },
    }
    template = template_of(spark.executor.pod_template, revision.templates, "spec.spark.executor.podTemplate")
    return merged_pod(template, ours, main=EXECUTOR_CONTAINER, extra_containers=True)
