"""`spec.sql`: a SELECT with a join, as what `spec.joins` and `spec.select` say. docs/sql.md lists what it takes."""

from joinery_runtime.job.sql.names import Table
from joinery_runtime.job.sql.translate import Translation, check_shape, translate

__all__ = ["Table", "Translation", "check_shape", "translate"]
