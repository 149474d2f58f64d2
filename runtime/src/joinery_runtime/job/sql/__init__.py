"""`spec.sql`: a SELECT with a join, as what `spec.joins` and `spec.select` say, or one with sessions, as the fields of
a SessionWindow. docs/sql.md lists what they take."""

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
