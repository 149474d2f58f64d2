"""`spec.sql`: translates a SELECT with a join to `spec.joins` and `spec.select`, and one with sessions to the fields of
a SessionWindow. docs/sql.md lists what they accept."""

from joinery_runtime.job.sql.names import SqlInput
from joinery_runtime.job.sql.sessions import SessionTranslation, check_session_shape, translate_sessions
from joinery_runtime.job.sql.translate import Translation, check_shape, translate

__all__ = [
    "SessionTranslation",
    "SqlInput",
    "Translation",
    "check_session_shape",
    "check_shape",
    "translate",
    "translate_sessions",
]
