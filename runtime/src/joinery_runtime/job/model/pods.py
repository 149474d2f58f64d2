"""Models of `spec.spark`: the pods that the operator makes, and Spark's own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from joinery_runtime.job.model.base import Int, Length, Model, SecretName, SecretRef, Setting, Text

Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]{1,3})?)$", max_length=16)]
JvmMemory = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}[mMgG]$")]


class Toleration(Model):
    """As in a pod."""

    key: Text | None = Field(default=None, examples=["dedicated"])
    """The taint's key; if absent, every taint is tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists` takes any value, `Equal` only `value`."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = Field(default=None, examples=["streams"])
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; if absent, every effect is tolerated."""
    toleration_seconds: Int | None = Field(default=None, examples=[300])
    """For `NoExecute`: how many seconds the pod stays."""


class PodTemplate(Model):
    """A pod, in a ConfigMap (`name`) or written here (`inline`): whatever it says beyond what the operator sets is kept
    (volumes, affinity, environment, annotations)."""

    name: SecretName | None = Field(default=None, examples=["orders-paid"])
    """The name of a ConfigMap in the job's namespace."""
    key: Text = Field(default="pod.yaml", examples=["driver.yaml"])
    """The key in the ConfigMap."""
    # A text, since an object without a schema may be nested deeper than kopf and the operator can parse.
    inline: Text | None = Field(default=None, examples=["spec: {priorityClassName: streams}"])
    """The pod itself as YAML, with `metadata` and `spec`."""


class DriverSpec(Model):
    """For the operator; without meaning on a laptop."""

    cores: Annotated[Int, Field(ge=1)] = Field(default=1, examples=[2])
    """Cores that Spark counts with: how many tasks run at once."""
    core_request: Quantity | None = Field(default=None, examples=["500m"])
    """CPU that the pod requests, for example 200m; if absent, `cores`."""
    memory: JvmMemory = Field(default="1g", examples=["4g"])
    """Heap of the JVM, for example 1g. The pod asks for more (docs/operator.md)."""
    node_selector: dict[str, Setting] = Field(default_factory=dict, examples=[{"disk": "ssd"}])
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pod tolerates."""
    pod_template: PodTemplate | None = None
    """A pod, in a ConfigMap or written here; whatever it says beyond what the operator sets is kept."""


class ExecutorSpec(DriverSpec):
    """For the operator; without meaning on a laptop. With `maxInstances`, Spark adds executors up to that while
    tasks wait, and takes idle ones away down to `instances`."""

    instances: Annotated[Int, Field(ge=1)] = Field(default=2, examples=[4])
    """How many executors run; at least so many with `maxInstances`. It may change while the job runs (`kubectl scale`):
    executors come and go, and nothing restarts. With `maxInstances`, a change is a rollout."""
    max_instances: Annotated[Int, Field(ge=1)] | None = Field(default=None, examples=[8])
    """How many executors Spark may run while tasks wait."""


class Autoscale(Model):
    """The driver decides how many executors run, by what arrives, what waits and what records have cost. Shards follow,
    so that all executors get as many. For the operator; without meaning on a laptop."""

    min_instances: Annotated[Int, Field(ge=1)] = Field(default=1, examples=[2])
    """Minimum number of executors."""
    max_instances: Annotated[Int, Field(ge=1)] = Field(examples=[8])
    """Maximum number of executors."""
    target_busy: Annotated[Int, Field(ge=1, le=100)] = Field(default=70, examples=[60])
    """Target share of time that executors spend on arriving records, in percent."""
    target_lag: Length = Field(default=60_000, examples=["2m"])
    """Target time to read the backlog while records keep arriving, a duration."""
    up_after: Length = Field(default=30_000, examples=["1m"])
    """How long the load must call for more executors before the driver requests them, a duration."""
    down_after: Length = Field(default=300_000, examples=["15m"])
    """How long fewer executors must suffice before the driver ends the others, a duration."""


class LocalRef(SecretRef):
    """An object of the job's namespace, by name."""


class SparkSpec(Model):
    """`conf` counts everywhere; all else is for the operator."""

    image: Text | None = Field(default=None, examples=["registry.example.com/joinery-runtime:0.1.0"])
    """The image of driver and executors; if absent, the operator's default."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: tuple[LocalRef, ...] = ()
    """Secrets for the image's registry."""
    service_account: Text | None = Field(default=None, examples=["shop-driver"])
    """The driver's service account; if absent, the operator's setting (`joinery-driver`)."""
    driver: DriverSpec = DriverSpec()
    """The driver's pod."""
    executor: ExecutorSpec = ExecutorSpec()
    """The executors' pods."""
    conf: dict[str, Setting] = Field(default_factory=dict, examples=[{"spark.executor.memoryOverhead": "1g"}])
    """Spark's settings by their names. The operator sets those of the cluster itself."""
