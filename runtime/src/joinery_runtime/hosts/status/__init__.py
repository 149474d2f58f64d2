"""What a running job shows to those who look into it: status, metrics and probes over HTTP."""

from joinery_runtime.hosts.status.board import Board
from joinery_runtime.hosts.status.server import migration_served, serve_status

__all__ = ["Board", "migration_served", "serve_status"]
