"""CEL rules of sessions: the part of `rules` that the API server can check."""

from __future__ import annotations

from collections.abc import Mapping

from joinery_runtime.job.kinds.session.resource import SessionWindowSpec
from joinery_runtime.job.kinds.session.sessions import (
    FROM_SQL,
    NEEDED,
    OPTIONS,
    Aggregate,
    ComputedColumn,
    SessionColumn,
)
from joinery_runtime.job.model.cel import TARGETS, Rule, any_output, exactly_one, positive
from joinery_runtime.job.model.output_rules import lake_rules
from joinery_runtime.job.model.references import RETRACTED, SESSION_COLUMNS
from joinery_runtime.job.model.wording import listed

_OWN = (*SESSION_COLUMNS, RETRACTED)
_NAMES = f"[{', '.join(map(repr, _OWN))}]"
_NOT_OURS = Rule("!self.startsWith('$')", "starts with `$`, which engine columns do; choose another name")


SESSION_RULES: Mapping[type | tuple[type, str], tuple[Rule, ...]] = {
    SessionWindowSpec: (
        Rule(
            "has(self.sql) || (has(self.groupBy) && size(self.groupBy) > 0)",
            "is missing or empty: one session of the whole stream would not be bounded by key (rule S1); name at least "
            "one column",
            ".groupBy",
        ),
        Rule(
            "has(self.sql) || has(self.gap)",
            "is missing: it says how far apart consecutive rows of a session may be (rule S1); write for example "
            "gap: 30s",
            ".gap",
        ),
        *(
            Rule(
                f"!has(self.sql) || !has(self.{name})"
                + ("" if name in {"gap", "where", "having"} else f" || size(self.{name}) == 0"),
                f"{name} and sql are both named; keep one",
            )
            for name in FROM_SQL
        ),
        Rule(
            "!has(self.input.table)",
            "versions of a table replace each other, a session holds events; drop `table`",
            ".input.table",
        ),
        Rule(
            "self.lateData != 'dlq' || has(self.deadLetter)",
            "dlq writes late records to the dead letters, and the job has none; name `deadLetter`, or write drop",
            ".lateData",
        ),
        Rule(
            "!has(self.having) || self.lateData != 'reopen' || (has(self.emitRetractions) && self.emitRetractions)",
            "lateData is reopen, so sessions that were emitted may stop meeting the condition, and nothing takes them "
            "back (rule G7); write emitRetractions: true",
            ".having",
        ),
        Rule(
            "!has(self.having) || !has(self.emit)",
            "sessions that were emitted early may stop meeting the condition, and what they were is not stored (rule "
            "G8); keep one of having and emit",
            ".having",
        ),
        *lake_rules("self", ""),
        *TARGETS,
        Rule(
            "!has(self.deadLetter) || !has(self.deadLetter.kafka) || has(self.deadLetter.kafka.bootstrapServers) || "
            f"{any_output('kafka')} || has(self.input.kafka)",
            "it is not clear which Kafka is meant: nothing else names Kafka; write bootstrapServers",
            ".deadLetter.kafka",
        ),
    ),
    (SessionWindowSpec, "groupBy"): (
        Rule(
            f"self.all(name, !(name in {_NAMES}))",
            f"sessions have columns {listed(_OWN)} of their own (rule S6); give this one another name with `compute`",
        ),
    ),
    (SessionWindowSpec, "gap"): positive(),
    (SessionWindowSpec, "maxDuration"): positive(),
    (ComputedColumn, "as"): (_NOT_OURS,),
    Aggregate: (
        Rule(
            "self.function != 'count' || !has(self.column)",
            "count counts rows and takes no column; drop it, or write function: count_col",
            ".column",
        ),
        Rule("self.function == 'count' || has(self.column)", "is missing: the function is of a column", ".column"),
        *(
            Rule(
                f"!has(self.{name}) || self.function in [{', '.join(map(repr, functions))}]",
                f"is for {listed(functions)}; drop it",
                f".{name}",
            )
            for name, functions in OPTIONS.items()
        ),
        *(
            Rule(
                f"has(self.{name}) || !(self.function in [{', '.join(map(repr, OPTIONS[name]))}])",
                f"is missing: {listed(OPTIONS[name])} need it",
                f".{name}",
            )
            for name in NEEDED
        ),
        Rule(
            "!has(self.limit) || !has(self.method) || self.method == 'exact'",
            "is for method: exact, a sketch takes any number of values; drop it",
            ".limit",
        ),
    ),
    SessionColumn: (
        exactly_one("column", "expression"),
        Rule("!has(self.expression) || has(self.as)", "an expression has no name of its own; add one: as: <name>"),
    ),
    (SessionColumn, "as"): (
        _NOT_OURS,
        Rule(f"self != '{RETRACTED}'", "emitRetractions adds this column (rule S6); choose another name"),
    ),
    (Aggregate, "as"): (
        _NOT_OURS,
        Rule(
            f"!(self in {_NAMES})",
            "sessions have a column of this name of their own (rule S6); choose another name",
        ),
    ),
}
