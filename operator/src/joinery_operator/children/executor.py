"""The template of which Spark makes executor pods: it adds image, environment, resources, owner, name and `args`."""

from __future__ import annotations

from typing import Any

from joinery_operator.children.parts import (
    CONTAINER_SECURITY,
    SCRATCH_ENV,
    SCRATCH_MOUNT,
    SCRATCH_VOLUME,
    identity,
    placed,
)
from joinery_operator.children.spark import EXECUTOR_CONTAINER
from joinery_operator.children.template import Templates, merged_pod, template_of
from joinery_operator.names import labels
from joinery_operator.observed import Manifest
from joinery_operator.settings import Settings
from joinery_runtime.job import Job

# Spark takes a volume of this name for its blocks instead of one that it adds by itself.
_BLOCKS = "spark-local-dir-1"


def executor_template(
    job: Job, resource: Manifest, revision: str, settings: Settings, templates: Templates
) -> dict[str, Any]:
    """A pod without a name. Executors need no secrets and no rights: the driver gives them what they work with."""
    spark = job.spec.spark
    ours = {
        "metadata": {"labels": labels(resource, "executor", revision=revision)},
        "spec": {
            **identity(spark, settings, token=False),
            **placed(spark.executor),
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "volumes": [SCRATCH_VOLUME, {"name": _BLOCKS, "emptyDir": {}}],
            "containers": [
                {
                    "name": EXECUTOR_CONTAINER,
                    "securityContext": CONTAINER_SECURITY,
                    "env": SCRATCH_ENV,
                    "volumeMounts": [SCRATCH_MOUNT, {"name": _BLOCKS, "mountPath": "/var/data/spark"}],
                }
            ],
        },
    }
    template = template_of(spark.executor.pod_template, templates, "spec.spark.executor.podTemplate")
    return merged_pod(template, ours, main=EXECUTOR_CONTAINER, extra_containers=True)
