"""Compiles a job, as its user wrote it, to the `Pipeline` that runs it."""

from joinery_runtime.core.compile.aggregates import compile_session
from joinery_runtime.core.compile.jobs import compile_job, compile_join, stored_columns

__all__ = ["compile_job", "compile_join", "compile_session", "stored_columns"]
