"""What a running job exposes over HTTP: status, metrics and probes."""

from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.server import migration_served, serve_status

__all__ = ["Board", "migration_served", "serve_status"]
