"""Problems of an SQL text, each with its position in the text, and the words for the SQL of each kind of job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from joinery_runtime.job.model.expression_tree import TOO_DEEP, TooDeepError

_LONGEST = 80  # characters of a fragment that are shown


class TextPosition:
    """`start` is an offset in the text, in characters."""

    def __init__(self, start: int, fragment: str) -> None:
        self.start, self.fragment = start, fragment


class Report:
    """Problems of one SQL text. Lines and columns count from 1."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._problems: list[tuple[int, str]] = []

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems in the order of their positions, each once."""
        return tuple(dict.fromkeys(message for _, message in sorted(self._problems, key=lambda problem: problem[0])))

    def add(self, at: TextPosition, message: str) -> None:
        self._problems.append((at.start, f"{self.place_text(at)}: {message}"))

    def place_text(self, at: TextPosition) -> str:
        """Return the words for a position, which stand before a message."""
        before = self._sql[: at.start]
        line, column = before.count("\n") + 1, at.start - (before.rfind("\n") + 1) + 1
        shown = at.fragment if len(at.fragment) <= _LONGEST else at.fragment[: _LONGEST - 3] + "..."
        return f"line {line}, column {column}, `{shown}`"


def problems_of(sql: str, read: Callable[[str, Report], object]) -> tuple[str, ...]:
    """Collect what `read` reports about the text."""
    report = Report(sql)
    try:
        read(sql, report)
    except (RecursionError, TooDeepError):
        return (TOO_DEEP,)
    return report.problems


def node_position(node: exp.Expr) -> TextPosition:
    """Return the position of the node's first name or number, since sqlglot keeps no other positions."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return TextPosition(min(starts, default=0), node.sql(comments=False))


def column_at(name: str, node: exp.Expr) -> exp.Column:
    """Return a column without an input that stands in the text where the node does."""
    column = exp.column(name)
    column.this.meta.update(next((part.meta for part in node.walk() if "start" in part.meta), {}))
    return column


def token_position(token: Token) -> TextPosition:
    return TextPosition(token.start, token.text)


# --- the kinds of job ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """What the SQL of one kind of job may have, and the words for it. `example` is its shape, `before` what the clauses
    follow, `final` says why EMIT FINAL has no meaning. `parts` are the parts of a SELECT that are read, by sqlglot's
    names. `rejected` says why other parts are not, `rest` why any part without a reason of its own is not.
    `rejected_of_groups` counts before `rejected` in a SELECT with GROUP BY.
    `tests_existence`: sub-queries in WHERE may be semi and anti joins."""

    example: str
    before: str
    final: str
    parts: frozenset[str]
    rest: str
    rejected: Mapping[str, str] = field(default_factory=dict)
    rejected_of_groups: Mapping[str, str] = field(default_factory=dict)
    tests_existence: bool = False


UNION = (
    "for topics of one cluster and schema, name them in one input: kafka: {topics: [a, b]}; for files of one schema, "
    "write a pattern: file: {path: 'orders-*.csv'}; otherwise let a job for each branch write to one topic, and read "
    "that"
)
"""What to write for a UNION of inputs, unless `StreamJoin` knows that they differ in their topics alone."""

NO_LATERAL = (
    "a job makes no row of each element of a list, and calls no function for each row in FROM; let the producer write "
    "a record of each, and name that input"
)
_FIRST_ROWS = (
    "for the first rows of each window write QUALIFY ROW_NUMBER() OVER (PARTITION BY TUMBLE(<event time>, "
    "INTERVAL '1' HOUR) ORDER BY <value>) <= 10"
)
_FIRST_GROUPS = (
    "leave it out, or for the first groups of each window write QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, "
    "window_end ORDER BY <aggregate> DESC) <= 10"
)
JOINS = Form(
    example="write SELECT <columns> FROM <input> JOIN <input> ON <conditions>",
    before="the join",
    final="pairs are emitted as they are found",
    parts=frozenset({"expressions", "from_", "joins", "where", "group", "having", "qualify"}),
    rest="a job has no such part; leave it out",
    rejected={
        "distinct": "an equal row may come at any time; write GROUP BY <columns> with a window, or select window_start "
        "and window_end of TABLE(TUMBLE(TABLE <input>, DESCRIPTOR(<event time>), INTERVAL '1' HOUR)) as well, or write "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY <columns> ORDER BY <event time>) = 1, and deduplicate: {within: 1h} "
        "beside sql",
        "order": f"rows are emitted as they are found, in no order; leave it out, or {_FIRST_ROWS}",
        "limit": f"rows have no end; leave it out, or {_FIRST_ROWS}",
        "offset": f"rows have no end; leave it out, or {_FIRST_ROWS}",
        "laterals": NO_LATERAL,
    },
    rejected_of_groups={
        "order": f"the groups of a window are emitted when it closes, in no order; {_FIRST_GROUPS}",
        "limit": f"windows have no end; {_FIRST_GROUPS}",
        "offset": f"windows have no end; {_FIRST_GROUPS}",
    },
    tests_existence=True,
)
_NO_SORT = "sessions are emitted as they end, in no order and without a last one; leave it out"
SESSIONS = Form(
    example="write SELECT <groups and aggregates> FROM <input> GROUP BY <columns>, "
    "SESSION(<event time>, INTERVAL '30' SECOND)",
    before="GROUP BY",
    final="lateData says when sessions are emitted, and whether again",
    parts=frozenset({"expressions", "from_", "where", "group", "having", "joins"}),
    rest="a job of sessions has no such part; leave it out",
    rejected={
        "order": _NO_SORT,
        "limit": _NO_SORT,
        "offset": _NO_SORT,
        "distinct": "sessions differ in any case; leave it out",
        "with_": "name an input of the job in FROM",
    },
)
