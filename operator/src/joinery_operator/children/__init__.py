"""Manifests of a job's children: pure functions of the resource, the image and what the installation decides."""

from joinery_operator.children.config import config_map
from joinery_operator.children.drift import drifted
from joinery_operator.children.errors import ChildError
from joinery_operator.children.pods import (
    MAIN_CONTAINER,
    MIGRATE_CONTAINER,
    RESTORE_CONTAINER,
    check_pod,
    delete_state_pod,
    driver_pod,
)
from joinery_operator.children.service import service
from joinery_operator.children.template import Templates

__all__ = [
    "MAIN_CONTAINER",
    "MIGRATE_CONTAINER",
    "RESTORE_CONTAINER",
    "ChildError",
    "Templates",
    "check_pod",
    "config_map",
    "delete_state_pod",
    "drifted",
    "driver_pod",
    "service",
]
