"""Models of `spec.spark`: the pods that the operator makes, and Spark's own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from joinery_runtime.job.model.base import Int, Model, Setting, Text
from joinery_runtime.job.model.secrets import SecretRef

Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)$", max_length=16)]
JvmMemory = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}[mMgG]$")]


class Toleration(Model):
    """As in a pod."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Int | None = None


class TemplateRef(SecretRef):
    """A ConfigMap that holds a pod under this key: whatever it says beyond what the operator sets is kept (volumes,
    affinity, environment, annotations)."""

    key: Text = "pod.yaml"


class DriverSpec(Model):
    """For the operator; without meaning on a laptop. `memory` is the JVM's heap, as 1g; the pod asks for more."""

    cores: Annotated[Int, Field(ge=1)] = 1
    core_request: (
        Annotated[Quantity, Field(description="CPU that the pod requests, as 200m; default: cores.")] | None
    ) = None
    memory: JvmMemory = "1g"
    node_selector: dict[str, Setting] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    pod_template: TemplateRef | None = None


class ExecutorSpec(DriverSpec):
    """For the operator; without meaning on a laptop. With `maxInstances`, Spark adds executors up to that while
    tasks wait, and takes idle ones away down to `instances`."""

    instances: Annotated[Int, Field(ge=1)] = 2
    max_instances: Annotated[Int, Field(ge=1)] | None = None


class LocalRef(SecretRef):
    """An object of the job's namespace, by name."""


class SparkSpec(Model):
    """`conf` counts everywhere; all else is for the operator."""

    image: Text | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[LocalRef, ...] = ()
    service_account: Text | None = None
    driver: DriverSpec = DriverSpec()
    executor: ExecutorSpec = ExecutorSpec()
    conf: dict[str, Setting] = Field(default_factory=dict)
