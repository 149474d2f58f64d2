"""CEL rules: the cross-field rules that the API server can check by the resource alone, by the model they belong to.

They repeat `input_rules`, `step_rules` and `output_rules` in another language, with the same words; the models stay
the judge, and the operator says in a condition what no rule here can. Kubernetes puts the path before each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinery_runtime.job.crd.shapes import Place, Schema
from joinery_runtime.job.inputs import Input, KafkaInput
from joinery_runtime.job.outputs import DeadLetter, Output, PostgresStore, StoreSpec
from joinery_runtime.job.resource import StreamJoinSpec
from joinery_runtime.job.steps import Interval, JoinStep, SelectItem
from joinery_runtime.job.wording import listed


@dataclass(frozen=True, slots=True)
class Rule:
    """`rule` holds for good resources; `at` is the field below the rule's own place that a finding points to."""

    rule: str
    message: str
    at: str = ""

    def schema(self) -> Schema:
        return {"rule": self.rule, "message": self.message, **({"fieldPath": self.at} if self.at else {})}


def _exactly_one(*names: str) -> Rule:
    given = ", ".join(f"has(self.{name})" for name in names)
    return Rule(f"[{given}].exists_one(named, named)", f"needs exactly one of {listed(names)}")


def _time(name: str) -> str:
    return f"(type(self.{name}) == int ? duration(string(self.{name}) + 'ms') : duration(string(self.{name})))"


_TWO = "size(self.inputs) != 2 || !has(self.joins) || "
_ADDRESS = "i.kafka.bootstrapServers == j.kafka.bootstrapServers"
_SAME_ADDRESS = f"self.inputs.all(i, !has(i.kafka) || self.inputs.all(j, !has(j.kafka) || {_ADDRESS}))"
_STATE_DSN = "has(self.stateStore) && has(self.stateStore.postgres) && has(self.stateStore.postgres.dsn)"

RULES: Mapping[type | Place, tuple[Rule, ...]] = {
    StreamJoinSpec: (
        Rule(
            "has(self.sql) || (has(self.joins) && size(self.joins) > 0)",
            "there is no join step; write one that names `right`, `keys` and `interval`",
            ".joins",
        ),
        Rule("!has(self.sql) || !has(self.joins) || size(self.joins) == 0", "joins and sql are both named; keep one"),
        Rule("!has(self.sql) || !has(self.select)", "select and sql are both named; keep one"),
        Rule(
            _TWO + "self.joins.all(step, step.right == self.inputs[1].name)",
            "`right` must name the second input; the left input is the first one",
            ".joins",
        ),
        Rule(
            _TWO + "self.joins.all(step, !has(step.interval) || step.interval.of == self.inputs[0].name)",
            "bounds count from the left input: `interval.of` must name the first input "
            "(to count from the right input, negate the bounds and swap them)",
            ".joins",
        ),
        Rule(
            _TWO + "self.joins.all(step, step.keys.all(left, left.startsWith(self.inputs[0].name + '.') "
            "&& step.keys[left].startsWith(self.inputs[1].name + '.')))",
            "a key is written <first input>.<column>: <second input>.<column>",
            ".joins",
        ),
        Rule(
            "!has(self.select) || self.select.all(item, self.inputs.exists(i, item.column.startsWith(i.name + '.')))",
            "a column is written <input>.<column>, and one here does not begin with the name of an input",
            ".select",
        ),
        Rule(
            "!has(self.output.postgres) || !has(self.stateStore) || !has(self.stateStore.memory)",
            "a Postgres output cannot be exactly once with the memory store: its rows are committed in one transaction "
            "with the state; name a Postgres stateStore",
            ".output.postgres",
        ),
        Rule(
            "!has(self.output.postgres) || !has(self.output.postgres.dsn) || "
            f"({_STATE_DSN} && self.output.postgres.dsn == self.stateStore.postgres.dsn)",
            "an output in another database than the state's cannot be exactly once: its rows are committed in one "
            "transaction with the state; leave dsn out and let stateStore.postgres name that database",
            ".output.postgres.dsn",
        ),
        Rule(
            "!has(self.deadLetter) || !has(self.deadLetter.kafka) || has(self.deadLetter.kafka.bootstrapServers) || "
            f"has(self.output.kafka) || (self.inputs.exists(i, has(i.kafka)) && {_SAME_ADDRESS})",
            "it is not clear which Kafka is meant: the inputs do not name one and the same; write bootstrapServers",
            ".deadLetter.kafka",
        ),
    ),
    (StreamJoinSpec, "inputs"): (
        Rule("size(self) >= 2", "a join needs two inputs; write exactly two"),
        Rule("size(self) <= 2", "joining more than two inputs is not supported yet; write exactly two"),
    ),
    (StreamJoinSpec, "joins"): (
        Rule("size(self) <= 1", "more than one join step is not supported yet; keep the first"),
    ),
    Input: (
        _exactly_one("kafka", "file"),
        Rule(
            "self.schema.exists(column, column.name == self.eventTime)",
            "event time must name a column of the schema",
            ".eventTime",
        ),
        Rule(
            "self.schema.all(column, column.name != self.eventTime || column.type in ['timestamp', 'int64'])",
            "the event time column must be timestamp, or int64 milliseconds since 1970",
            ".eventTime",
        ),
    ),
    KafkaInput: (_exactly_one("topic", "topicPattern"),),
    JoinStep: (
        Rule(
            "has(self.interval) || has(self.window) || has(self.asOf)",
            "the join has no bound on time, so its state would grow for ever (rule J8); "
            "write interval: {of: <left input>, lower: 0s, upper: 1h}",
            ".interval",
        ),
        Rule(
            "size(self.keys) > 0 || has(self.broadcast)",
            "there is no key, so every row would meet every row (rule J9); name at least one",
            ".keys",
        ),
    ),
    Interval: (Rule(f"{_time('lower')} <= {_time('upper')}", "lower is above upper, so nothing can match; swap them"),),
    (SelectItem, "as"): (
        Rule("!self.startsWith('$')", "starts with `$`, which engine columns do; choose another name"),
    ),
    Output: (_exactly_one("kafka", "postgres", "file"),),
    DeadLetter: (_exactly_one("kafka", "file"),),
    StoreSpec: (Rule("!has(self.postgres) || !has(self.memory)", "postgres and memory are both named; keep one"),),
    (StoreSpec, "checkpointInterval"): (
        Rule("type(self) == int || string(self).matches('[1-9]')", "must be more than 0"),
    ),
    PostgresStore: (_exactly_one("dsn", "dsnSecretRef"),),
}


def with_rules(schema: Schema, of: type | Place) -> Schema:
    found = RULES.get(of)
    return {**schema, "x-kubernetes-validations": [rule.schema() for rule in found]} if found else schema
