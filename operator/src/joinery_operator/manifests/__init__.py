"""Manifests of a job's children: pure functions of a revision."""

from joinery_operator.manifests.objects import (
    network_policy,
    page_ingress,
    page_route,
    page_url,
    repair_patch,
    service,
)
from joinery_operator.manifests.pod_base import JOB_FILE, MAIN_CONTAINER, pods_in_templates
from joinery_operator.manifests.pods import (
    MIGRATE_CONTAINER,
    check_manifests,
    check_pod,
    delete_state_pod,
    driver_pod,
    question_pod,
    restore_pod,
    savepoint_pod,
    scale_annotation,
)
from joinery_operator.manifests.policy import forbidden_requests
from joinery_operator.manifests.spark import spark_problems
from joinery_operator.manifests.stored import (
    config_map,
    stored_driver,
    stored_job,
    stored_pod_defaults,
    stored_service_account,
    stored_templates,
)
from joinery_operator.revision import ManifestError

__all__ = [
    "JOB_FILE",
    "MAIN_CONTAINER",
    "MIGRATE_CONTAINER",
    "ManifestError",
    "check_manifests",
    "check_pod",
    "config_map",
    "delete_state_pod",
    "driver_pod",
    "forbidden_requests",
    "network_policy",
    "page_ingress",
    "page_route",
    "page_url",
    "pods_in_templates",
    "question_pod",
    "repair_patch",
    "restore_pod",
    "savepoint_pod",
    "scale_annotation",
    "service",
    "spark_problems",
    "stored_driver",
    "stored_job",
    "stored_pod_defaults",
    "stored_service_account",
    "stored_templates",
]
