"""CustomResourceDefinitions, generated from the resource models.

What the models say (fields, types, bounds, defaults, docstrings) is read off them by `structural`; what JSON schema
cannot carry of them stands in `shapes` (patterns, sizes) and `rules` (CEL), by model class, so that a second kind that
shares models shares these too. `status` holds the models of the part that the operator writes.
"""

from joinery_runtime.job.crd.definition import KINDS, Kind, custom_resource_definition, file_name, to_yaml
from joinery_runtime.job.crd.status import Condition, HotKey, InputStatus, Savepoint, Status

__all__ = [
    "KINDS",
    "Condition",
    "HotKey",
    "InputStatus",
    "Kind",
    "Savepoint",
    "Status",
    "custom_resource_definition",
    "file_name",
    "to_yaml",
]
