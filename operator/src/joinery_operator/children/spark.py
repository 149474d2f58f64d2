"""Spark's settings: those of a revision as `spark-defaults.conf`, those of one attempt as arguments of its JVM.

The runtime puts the job's own `spark.conf` on the JVM's command line, each setting as one argument, so it wins over the
file, launch settings (memory, Java options, class path) included, and need not be in it. No credentials are set: in a
pod Spark's client finds the service account's token by itself, and then reads it anew when it is rotated.
"""

from __future__ import annotations

import shlex
from typing import Any

from joinery_operator.children.memory import mebibytes, overhead
from joinery_operator.names import ATTEMPT_LABEL, Names
from joinery_operator.observed import Manifest
from joinery_runtime.job import Job
from joinery_runtime.job.model.pods import SparkSpec

MASTER = "k8s://https://kubernetes.default.svc"
CONFIG = "/etc/joinery"
EXECUTOR_FILE = "executor.yaml"
DEFAULTS_FILE = "spark-defaults.conf"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
UI_PORT = 4040
# Spark's own defaults on Kubernetes, said so that a NetworkPolicy can name them.
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079


def defaults_file(job: Job, resource: Manifest, image: str) -> str:
    """A file of Java properties."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in _settings(job, resource, image).items())


def submit_arguments(resource: Manifest, attempt: int) -> str:
    """`PYSPARK_SUBMIT_ARGS` of one attempt: its pod owns the executors."""
    names = Names(resource)
    settings = {
        "spark.kubernetes.driver.pod.name": names.driver(attempt),
        "spark.kubernetes.executor.podNamePrefix": names.executor_prefix(attempt),
        f"spark.kubernetes.executor.label.{ATTEMPT_LABEL}": str(attempt),
    }
    return shlex.join([part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]) + (
        " pyspark-shell"
    )


def driver_memory(spark: SparkSpec) -> int:
    """MiB that the driver's pod needs. The job's `spark.conf` may set heap and overhead. Raises ChildError."""
    heap_setting, overhead_setting = "spark.driver.memory", "spark.driver.memoryOverhead"
    heap = mebibytes(spark.conf.get(heap_setting, spark.driver.memory), heap_setting)
    beside = spark.conf.get(overhead_setting)
    return heap + (overhead(heap, 1) if beside is None else mebibytes(beside, overhead_setting))


def _settings(job: Job, resource: Manifest, image: str) -> dict[str, str]:
    spark = job.spec.spark
    heap = mebibytes(spark.conf.get("spark.executor.memory", spark.executor.memory), "spark.executor.memory")
    settings: dict[str, Any] = {
        "spark.kubernetes.namespace": resource["metadata"]["namespace"],
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": spark.image_pull_policy,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # Executors need no files of the driver's, which hold the job; and the driver then needs rights on pods only.
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
        "spark.executor.instances": spark.executor.instances,
        "spark.executor.cores": spark.executor.cores,
        "spark.executor.memory": spark.executor.memory,
        "spark.executor.memoryOverhead": f"{overhead(heap, spark.executor.cores)}m",
        **_pull_secrets(spark),
        **_dynamic(spark),
    }
    if spark.executor.core_request is not None:
        settings["spark.kubernetes.executor.request.cores"] = spark.executor.core_request
    return {key: str(value) for key, value in settings.items()}


def _pull_secrets(spark: SparkSpec) -> dict[str, str]:
    names = ",".join(secret.name for secret in spark.image_pull_secrets)
    return {"spark.kubernetes.container.image.pullSecrets": names} if names else {}


def _dynamic(spark: SparkSpec) -> dict[str, Any]:
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
