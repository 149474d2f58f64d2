"""The JSON messages from a job's pods to the operator, and back: the driver's `/status`, a container's termination
message (at most 4096 bytes), the answer of `joinery state check`, and the scale that a driver follows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from joinery_runtime.job.crd.status import Count, HotKey, InputStatus, SavepointStatus, ScalingStatus, Words
from joinery_runtime.job.model.base import Model
from joinery_runtime.job.model.pods import Autoscale
from joinery_runtime.job.model.resource import MOST_SHARDS

STATUS_PORT = 8998
"""Where a driver serves `/status`, `/metrics`, `/healthz` (alive) and `/readyz` (commits)."""

ENDING_FILE = "JOINERY_ENDING_FILE"
"""The environment variable that names the file for an `Ending` (in a pod: /dev/termination-log)."""
MESSAGE_BYTES = 4096  # the most that Kubernetes keeps of a termination message

FORBIDDEN_PROPERTIES = "JOINERY_FORBIDDEN_PROPERTIES"
"""The environment variable with the names, separated by commas, of client settings that no secret of a job may have."""

OWN_GROUPS = "JOINERY_OWN_GROUPS"
"""The environment variable without which a job's secrets may name its inputs' consumer groups. A job of a BlueGreenJob
has it: others read the same topics with the same secrets."""

UNSAFE_PROPERTIES = frozenset(
    {
        # librdkafka
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "sasl.oauthbearer.assertion.file",
        "ssl.engine.location",
        "ssl.providers",
        # pyiceberg
        "gcp.bigquery.credential-file",
        "py-catalog-impl",
        "py-io-impl",
        "s3.retry-strategy-impl",
        # delta-rs: its object stores and Unity catalog, whose names may lack their prefix
        *(
            f"{prefix}{name}"
            for prefix in ("aws_", "")
            for name in (
                "container_authorization_token_file",
                "container_credentials_full_uri",
                "container_credentials_relative_uri",
                "endpoint_url_sts",
                "metadata_endpoint",
                "web_identity_token_file",
            )
        ),
        *(
            f"{prefix}{name}"
            for prefix in ("azure_", "azure_storage_", "databricks_", "unity_", "")
            for name in (
                "authority_host",
                "fabric_token_service_url",
                "federated_token_file",
                "identity_endpoint",
                "msi_endpoint",
                "use_azure_cli",
            )
        ),
        *(
            f"{prefix}{name}"
            for prefix in ("google_", "")
            for name in ("application_credentials", "service_account", "service_account_path")
        ),
    }
)
"""Settings of clients, in lower case, that load a library, run a command, or name a file or an address for the driver's
own credentials, and so may send a file's content elsewhere."""

SCALE_FILE = "JOINERY_SCALE_FILE"
"""The environment variable that names the file with a `Scale`, which may change while the job runs."""


class Message(Model):
    # A newer driver may report more than an older operator knows.
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


def _without_unknown_fields(model: type[Model]) -> Any:
    """Return a validator that drops fields which this release does not know, for a model that is strict elsewhere."""
    names = {name for key, field in model.model_fields.items() for name in (key, field.alias)}

    def drop(value: object) -> object:
        return {key: value[key] for key in value if key in names} if isinstance(value, dict) else value

    return BeforeValidator(drop)


class SideStatus(Message):
    """One side of a step (1 is the first), sessions, an aggregate or a ranking: what is kept of it now, and what has
    happened since the job's state began. `stored` rows have joined it, `expired` ones have left it; `peak` is the most
    after an epoch."""

    step: Count
    side: Literal["left", "right", "sessions", "aggregate", "deduplicate", "topN"]
    inputs: tuple[str, ...]
    rows: Count
    bytes: Count
    stored: Count = 0
    expired: Count = 0
    lookups: Count = 0
    """Arrivals of the other side that were looked up here."""
    matches: Count = 0
    """Matches that the step has found."""
    peak: Count = 0


class HotKeyWarning(Message):
    """A join key of a step (1 is the first) with more rows in the state than its `hotKeyWarning`."""

    step: Count
    key: Words
    rows: Count


class Paused(Message):
    """An input that is not read because a side's state is over its limit."""

    name: str
    reason: Words


class Waiting(Message):
    """An outside system that is unavailable: Kafka of an input or an output, the state store, or Spark's executors."""

    system: str
    """One of executors, input, output and store."""
    since: datetime
    reason: Words


class DriverStatus(Message):
    """`GET /status`. Totals count since the job's state began; `committed` are this driver's own epochs. A migration
    before the driver answers as well, with what it has done."""

    revision: str = ""
    ready: bool = False
    """It commits: it has committed an epoch, or has nothing that it may read and its executors have run a task."""
    job_generation: Count | None = None
    epoch: Count | None = None
    committed: Count = 0
    migrated: Count | None = None
    """Segments that a migration before the driver has written so far."""
    tasks: Count | None = None
    """Tasks of Spark that have ended: of epochs that this driver has committed, and of the running one."""
    inputs: tuple[Annotated[InputStatus, _without_unknown_fields(InputStatus)], ...] = ()
    rows_per_second: Count | None = None
    rows_in: Count | None = None
    rows_out: Count | None = None
    rows_held: Count | None = None
    """Of these, rows of committed epochs that the output does not show yet."""
    late: Count | None = None
    state_bytes: Count | None = None
    sides: tuple[SideStatus, ...] = ()
    amplification: float | None = None
    """Rows out per record in, of the newest epoch."""
    hottest_keys: tuple[Annotated[HotKey, _without_unknown_fields(HotKey)], ...] = ()
    too_hot: tuple[HotKeyWarning, ...] = ()
    paused: tuple[Paused, ...] = ()
    waiting: Waiting | None = None
    last_savepoint: Annotated[SavepointStatus | None, _without_unknown_fields(SavepointStatus)] = None
    last_error: Words | None = None
    runs_on: str | None = None
    """Where the newest epoch ran: `spark`, or `driver` for the driver's own process."""
    executors: Count | None = None
    scaling: Annotated[ScalingStatus | None, _without_unknown_fields(ScalingStatus)] = None


class Scale(Message):
    """How wide a job is to run: shards of the next epochs (with `autoscale`, at least), and executors. None: as it
    started. With `autoscale`, the driver decides on executors."""

    shards: Annotated[int, Field(ge=1, le=MOST_SHARDS)] | None = None
    instances: Annotated[int, Field(ge=1)] | None = None
    autoscale: Annotated[Autoscale | None, _without_unknown_fields(Autoscale)] = None


class Ending(Message):
    """How a container of the runtime image ended."""

    outcome: Literal["finished", "stopped", "failed"]
    error: Words = ""
    kind: str = ""
    """The error's class, as IncompatibleState."""
    retry: bool = True
    """Whether the same again may go better."""


class StateCheck(Message):
    """Whether a job fits its state, and what its migration would do (`joinery state check`). Bounded."""

    fits: bool
    rows_differ: bool = False
    """`upgrade.mode: shadow`: it gives other rows than the job that runs. `fits` is false then: an earlier operator
    rejects it too."""
    refused: tuple[Words, ...] = ()
    warnings: tuple[Words, ...] = ()
    epoch: Count | None = None
    state_versions: tuple[Count, ...] = ()
    target_version: Count
    to_migrate: Count = 0
    """Segments that are older than the target."""
