"""CustomResourceDefinitions, generated from the resource models.

`structural` reads what the models declare (fields, types, bounds, defaults, docstrings). What JSON schema cannot
express is in `shapes` (patterns, sizes) and `rules` (CEL), by model class, so that a second kind which shares models
shares these too. `status` has the models of the part that the operator writes, `driver` those of what the job's pods
report to the operator.
"""

from joinery_runtime.job.crd.blue_green import (
    BlueGreenSpec,
    BlueGreenState,
    CandidateJob,
    ChildJob,
    OldJob,
    RetiredJob,
)
from joinery_runtime.job.crd.definition import (
    BLUE_GREEN,
    KINDS,
    RESOURCE_KINDS,
    SAVEPOINT,
    ResourceKind,
    custom_resource_definition,
    file_name,
    to_yaml,
)
from joinery_runtime.job.crd.driver import (
    ENDING_FILE,
    FORBIDDEN_PROPERTIES,
    MESSAGE_BYTES,
    OWN_GROUPS,
    SCALE_FILE,
    STATUS_PORT,
    UNSAFE_PROPERTIES,
    DriverStatus,
    Ending,
    Scale,
    StateCheck,
    Waiting,
)
from joinery_runtime.job.crd.savepoint import Savepoint, SavepointResult, SavepointState
from joinery_runtime.job.crd.status import (
    FIGURES,
    Condition,
    Deletion,
    DriverAttempt,
    HotKey,
    InputStatus,
    OutputStatus,
    PastRevision,
    Refusal,
    Rollout,
    SavepointStatus,
    ScalingStatus,
    Status,
)

__all__ = [
    "BLUE_GREEN",
    "ENDING_FILE",
    "FIGURES",
    "FORBIDDEN_PROPERTIES",
    "KINDS",
    "MESSAGE_BYTES",
    "OWN_GROUPS",
    "RESOURCE_KINDS",
    "SAVEPOINT",
    "SCALE_FILE",
    "STATUS_PORT",
    "UNSAFE_PROPERTIES",
    "BlueGreenSpec",
    "BlueGreenState",
    "CandidateJob",
    "ChildJob",
    "Condition",
    "Deletion",
    "DriverAttempt",
    "DriverStatus",
    "Ending",
    "HotKey",
    "InputStatus",
    "OldJob",
    "OutputStatus",
    "PastRevision",
    "Refusal",
    "ResourceKind",
    "RetiredJob",
    "Rollout",
    "Savepoint",
    "SavepointResult",
    "SavepointState",
    "SavepointStatus",
    "Scale",
    "ScalingStatus",
    "StateCheck",
    "Status",
    "Waiting",
    "custom_resource_definition",
    "file_name",
    "to_yaml",
]
