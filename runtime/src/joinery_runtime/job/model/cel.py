"""What CEL rules of several kinds share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from joinery_runtime.job.model.base import FILLED_IN_MS
from joinery_runtime.job.model.outputs import LAKES
from joinery_runtime.job.model.wording import linked, listed


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule. `rule` is true for valid resources; `at` is the field, below the rule's own place, to which a finding
    points."""

    rule: str
    message: str
    at: str = ""
    shown: str = ""
    """The message as a CEL expression, where it shows the value."""

    def schema(self) -> dict[str, Any]:
        schema = {"rule": self.rule, "message": linked(self.message)}
        if self.at:
            schema["fieldPath"] = self.at
        if self.shown:
            schema["messageExpression"] = self.shown
        return schema


def exactly_one(*names: str) -> Rule:
    presence_checks = ", ".join(f"has(self.{name})" for name in names)
    return Rule(f"[{presence_checks}].exists_one(named, named)", f"needs exactly one of {listed(names)}")


def names_input(value: str) -> str:
    """Return the rule that the value is the name of an input. In a job with unions only the loader knows which names
    there are."""
    return f"(has(self.unions) || self.inputs.exists(i, i.name == {value}))"


def time(name: str) -> str:
    return f"(type(self.{name}) == int ? duration(string(self.{name}) + 'ms') : duration(string(self.{name})))"


HAS_UNIT = Rule(
    "type(self) != int || self == 0",
    "a number has no unit; write for example 30s or 30ms",
    shown="string(self) + ' has no unit; write ' + string(self) + 's or ' + string(self) + 'ms'",
)
"""A rule for every duration. The API server does not apply it to a field that an update leaves as it is."""

HAS_UNIT_OR_FILLED_IN = replace(HAS_UNIT, rule=f"{HAS_UNIT.rule} || self == {FILLED_IN_MS}")


def positive() -> tuple[Rule, ...]:
    """Return a rule for durations, because the schema's minimum applies to numbers only."""
    return (Rule("type(self) == int || string(self).matches('[1-9]')", "must be more than 0"),)


def dead_letter_rules(field: str) -> tuple[Rule, ...]:
    """Return the rules over all of `spec` for the `lateData: dlq` of a field behind the joins."""
    no_dead_letters = f"!has(self.{field}) || self.{field}.lateData != 'dlq'"
    return (
        Rule(
            f"{no_dead_letters} || !has(self.joins) || size(self.joins) == 0",
            "the rows that joins make are no records, so none can be a dead letter; write drop, and lateData: dlq in "
            "the steps, which read records",
            f".{field}.lateData",
        ),
        Rule(
            f"{no_dead_letters} || has(self.deadLetter)",
            "dlq writes late records to the dead letters, and the job has none; name `deadLetter`, or write drop",
            f".{field}.lateData",
        ),
    )


def any_output(kind: str) -> str:
    """Say whether an output of this kind is named."""
    several = f"(has(self.outputs) && self.outputs.exists(output, has(output.{kind})))"
    return f"(has(self.output) && has(self.output.{kind})) || {several}"


TARGETS = (
    Rule("has(self.output) || has(self.outputs)", "is missing: name where rows go", ".output"),
    Rule("!has(self.output) || !has(self.outputs)", "output and outputs are both named; keep one", ".outputs"),
    Rule(
        f"!({any_output('postgres')}) || !has(self.stateStore) || !has(self.stateStore.memory)",
        "a Postgres output cannot be exactly once with the memory store: the table would know more than the state; "
        "name a Postgres stateStore",
    ),
    *(
        Rule(
            f"!({any_output(lake)}) || !has(self.stateStore) || !has(self.stateStore.memory)",
            f"{lake} cannot be exactly once with the memory store: a job that has lost its state would append all "
            "rows again; drop `memory`",
        )
        for lake in LAKES
    ),
    Rule(
        "!has(self.autoscale) || !has(self.spark) || !has(self.spark.executor) || "
        "!has(self.spark.executor.maxInstances)",
        "it and spark.executor.maxInstances (Spark's own allocation) both decide on executors; keep one",
        ".autoscale",
    ),
)
"""Rules on the spec of every kind: an output, the state store, autoscaling."""
