"""The aggregates of sessions (S7): mergeable, durable, vectorised over groups of rows."""

from joinery_runtime.core.aggregates.base import Accumulator, AggregateCall, GroupError, Groups, States
from joinery_runtime.core.aggregates.registry import accumulator

__all__ = ["Accumulator", "AggregateCall", "GroupError", "Groups", "States", "accumulator"]
