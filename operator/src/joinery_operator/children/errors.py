"""What keeps a child from being made. The operator says it in a condition."""

from __future__ import annotations

from joinery_runtime.errors import JoineryError


class ChildError(JoineryError):
    """The resource, or what it refers to, does not give a child's manifest."""
