"""Models of `spec.spark`: the pods that the operator makes, and Spark's own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from joinery_runtime.job.model.base import Int, Length, Model, Setting, Text
from joinery_runtime.job.model.secrets import SecretRef

Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)$", max_length=16)]
JvmMemory = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}[mMgG]$")]


class Toleration(Model):
    """As in a pod."""

    key: Text | None = None
    """The taint's key; if absent, every taint is tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists` takes any value, `Equal` only `value`."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; if absent, every effect is tolerated."""
    toleration_seconds: Int | None = None
    """For `NoExecute`: how many seconds the pod stays."""


class TemplateRef(SecretRef):
    """A ConfigMap that holds a pod under this key: whatever it says beyond what the operator sets is kept (volumes,
    affinity, environment, annotations)."""

    key: Text = "pod.yaml"
    """The key in the ConfigMap."""


class DriverSpec(Model):
    """For the operator; without meaning on a laptop."""

    cores: Annotated[Int, Field(ge=1)] = 1
    """Cores that Spark counts with: how many tasks run at once."""
    core_request: Quantity | None = None
    """CPU that the pod requests, for example 200m; if absent, `cores`."""
    memory: JvmMemory = "1g"
    """Heap of the JVM, for example 1g. The pod asks for more (docs/operator.md)."""
    node_selector: dict[str, Setting] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pod tolerates."""
    pod_template: TemplateRef | None = None
    """A ConfigMap with a pod; whatever that says beyond what the operator sets is kept."""


class ExecutorSpec(DriverSpec):
    """For the operator; without meaning on a laptop. With `maxInstances`, Spark adds executors up to that while
    tasks wait, and takes idle ones away down to `instances`."""

    instances: Annotated[Int, Field(ge=1)] = 2
    """How many executors run; at least so many with `maxInstances`. It may change while the job runs (`kubectl scale`):
    executors come and go, and nothing restarts. With `maxInstances`, a change is a rollout."""
    max_instances: Annotated[Int, Field(ge=1)] | None = None
    """How many executors Spark may run while tasks wait."""


class Autoscale(Model):
    """The driver decides how many executors run, by what arrives, what waits and what records have cost. Shards follow,
    so that all executors get as many. For the operator; without meaning on a laptop."""

    min_instances: Annotated[Int, Field(ge=1)] = 1
    """Fewest executors."""
    max_instances: Annotated[Int, Field(ge=1)]
    """Most executors."""
    target_busy: Annotated[Int, Field(ge=1, le=100)] = 70
    """Percent of their time that executors are to be busy with the records that arrive."""
    target_lag: Length = 60_000
    """How long it may take to read what waits, beside what arrives."""
    up_after: Length = 30_000
    """How long more executors must have been needed before they are asked for."""
    down_after: Length = 300_000
    """How long fewer executors must have been enough before others end."""


class LocalRef(SecretRef):
    """An object of the job's namespace, by name."""


class SparkSpec(Model):
    """`conf` counts everywhere; all else is for the operator."""

    image: Text | None = None
    """The image of driver and executors; if absent, the operator's default."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: tuple[LocalRef, ...] = ()
    """Secrets for the image's registry."""
    service_account: Text | None = None
    """The driver's service account; if absent, the operator's setting (`joinery-driver`)."""
    driver: DriverSpec = DriverSpec()
    """The driver's pod."""
    executor: ExecutorSpec = ExecutorSpec()
    """The executors' pods."""
    conf: dict[str, Setting] = Field(default_factory=dict)
    """Spark's settings by their names. The operator sets those of the cluster itself."""
