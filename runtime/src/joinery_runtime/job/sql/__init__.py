"""`spec.sql`: translates a SELECT with a join to `spec.joins` and `spec.select`, and one with sessions to the fields of
a SessionWindow. docs/sql.md lists what they accept.

A text goes through these modules:

1. `parse` makes sqlglot's tree of it, and `clauses` reads the streaming clauses that sqlglot does not know; `unions`
   takes UNION ALL off; `window_functions` and `window_joins` rewrite windows of other systems, and `derived` merges
   WITH and sub-queries in FROM (`select_tree` has what these do to a SELECT);
2. `query` takes the tree apart into one `Query`, whatever the kind of job;
3. `scope` resolves names; `conditions` places each condition at its join, and `matching` sorts those of one join into
   keys, a bound on time and the rest; `grouping` reads GROUP BY and aggregates, `group_rows` the select list and
   HAVING of groups, `select_list` that of joined rows, and `ranking` ROW_NUMBER;
4. `joins`, `aggregates` and `sessions` put these together into a job's fields.

Each step adds what it rejects to one `report`, so that all problems of a text are told at once.
"""

from joinery_runtime.job.sql.joins import Translation, check_shape, fitting_stars, translate
from joinery_runtime.job.sql.parse import placed, unions_of
from joinery_runtime.job.sql.ranking import SqlRanking
from joinery_runtime.job.sql.report import UNION
from joinery_runtime.job.sql.scope import SqlInput, table_of
from joinery_runtime.job.sql.sessions import SessionTranslation, check_session_shape, translate_sessions
from joinery_runtime.job.sql.unions import SqlUnion

__all__ = [
    "UNION",
    "SessionTranslation",
    "SqlInput",
    "SqlRanking",
    "SqlUnion",
    "Translation",
    "check_session_shape",
    "check_shape",
    "fitting_stars",
    "placed",
    "table_of",
    "translate",
    "translate_sessions",
    "unions_of",
]
