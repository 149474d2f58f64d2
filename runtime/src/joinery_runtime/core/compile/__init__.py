"""Compiles a job, as its user wrote it, to the `Pipeline` that runs it."""

from joinery_runtime.core.compile.aggregates import compile_session
from joinery_runtime.core.compile.jobs import compile_job, compile_join, compile_with_functions, stored_columns

__all__ = ["compile_job", "compile_join", "compile_session", "compile_with_functions", "stored_columns"]
