"""CEL rules: the cross-field rules that the API server can check with the resource alone, by model.

They repeat `input_rules`, `step_rules`, `select_rules` and `output_rules` in another language, with much the same
words; the kinds of step bring their own. The models remain the authority, and the operator reports in a condition what
no rule here can express. Kubernetes puts the path before each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from joinery_runtime.job.crd.blue_green import BlueGreenJob
from joinery_runtime.job.crd.savepoint import Savepoint, SavepointOf
from joinery_runtime.job.crd.shapes import Place, Schema
from joinery_runtime.job.join.spec import StreamJoinSpec
from joinery_runtime.job.join.steps import FIELDS, STEP_KINDS, JoinStep, SelectItem
from joinery_runtime.job.kinds.aggregate.model import AGGREGATE_MODEL_RULES, AGGREGATE_RULES
from joinery_runtime.job.kinds.ranking import RANKING_MODEL_RULES, RANKING_RULES
from joinery_runtime.job.kinds.session.cel import SESSION_RULES
from joinery_runtime.job.model.cel import TARGETS, Rule, any_output, exactly_one, positive
from joinery_runtime.job.model.inputs import History, Input, KafkaInput
from joinery_runtime.job.model.outputs import (
    DeadLetter,
    NamedOutput,
    Output,
    PeriodicSavepoints,
    PostgresOutput,
    PostgresStoreSpec,
    StoreSpec,
)
from joinery_runtime.job.model.pods import Autoscale, PodTemplate
from joinery_runtime.job.model.references import RANK_COLUMNS, WINDOW_COLUMNS
from joinery_runtime.job.model.unions import BranchColumn
from joinery_runtime.job.model.wording import listed

# The models analyse the steps only once every input has a unique name; before that, rules on names are silent.
_STEPS = "has(self.sql) || !has(self.joins) || "
# Only the loader knows what unions join in the place of inputs.
_OF_INPUTS = f"has(self.unions) || {_STEPS}"
_ADDRESS = "i.kafka.bootstrapServers == j.kafka.bootstrapServers"
_SAME_ADDRESS = f"self.inputs.all(i, !has(i.kafka) || self.inputs.all(j, !has(j.kafka) || {_ADDRESS}))"

_FIELDS = [f"has(self.{field})" for field in FIELDS]
_LAST_PATHS = [kind.path() for kind in STEP_KINDS if kind.why_last]
_LAST = " || ".join(
    " && ".join(f"has(step.{'.'.join(path[:length])})" for length in range(1, len(path) + 1)) for path in _LAST_PATHS
)
_KEYED = dict.fromkeys(kind.field for kind in STEP_KINDS if not kind.without_keys)
_FINAL = dict.fromkeys(kind.field for kind in STEP_KINDS if kind.what_is_final)
_TIMES = f"[{', '.join(map(repr, WINDOW_COLUMNS))}]"
_RANKS = f"[{', '.join(map(repr, RANK_COLUMNS))}]"
_WINDOWED = "has(self.joins) && self.joins.exists(step, has(step.window)) && "

_OUTPUT = (
    exactly_one(*Output.KINDS),
    Rule(
        "self.format != 'parquet' || has(self.file)",
        "parquet is a format of files; leave it out, or name file: {path: ...}",
        ".format",
    ),
)
_NAMED_OUTPUT = (
    Rule(
        "!(self.name in ['output', 'epochs']) && !self.name.startsWith('state_')",
        "is a table of its own in `joinery sql`; choose another name",
        ".name",
    ),
)

RULES: Mapping[type | Place, tuple[Rule, ...]] = {
    StreamJoinSpec: (
        Rule(
            "has(self.sql) || has(self.aggregate) || (has(self.joins) && size(self.joins) > 0) || "
            "size(self.inputs) == 1 || has(self.unions)",
            "there is no join step; write one that names `right`, `keys` and `interval`",
            ".joins",
        ),
        Rule(
            "size(self.inputs) >= 2 || (size(self.inputs) == 1 && (!has(self.joins) || size(self.joins) == 0))",
            "a join needs two inputs; write at least two",
            ".inputs",
        ),
        *AGGREGATE_RULES,
        *RANKING_RULES,
        Rule("!has(self.sql) || !has(self.joins) || size(self.joins) == 0", "joins and sql are both named; keep one"),
        Rule("!has(self.sql) || !has(self.select)", "select and sql are both named; keep one"),
        Rule(
            "!has(self.prefixes) || self.prefixes == 'always' || !(has(self.select) || has(self.sql))",
            "`select` or `sql` names the columns; drop `prefixes`",
            ".prefixes",
        ),
        Rule(
            _OF_INPUTS + "self.joins.all(step, step.right != self.inputs[0].name && "
            "self.inputs.exists(i, i.name == step.right))",
            "`right` must name an input other than the first, where the steps begin",
            ".joins",
        ),
        Rule(
            _STEPS + "self.joins.all(step, self.joins.exists_one(other, other.right == step.right))",
            "two steps have the same `right`; each input is joined once",
            ".joins",
        ),
        Rule(
            _OF_INPUTS + "size(self.inputs) <= size(self.joins) + 1",
            "there is an input that no step joins; add a step whose `right` it is, or drop the input",
            ".inputs",
        ),
        *dict.fromkeys(rule for kind in STEP_KINDS for rule in kind.cel_of_job),
        Rule(
            # The loader checks the right side: the API server estimates `step.keys[left].contains(step.right)` at 17
            # times what a rule may cost.
            _STEPS + "self.joins.all(step, step.keys.all(left, !left.startsWith(step.right + '.')))",
            "a key is written <input joined before>.<column>: <right>.<column>, or as expressions over these",
            ".joins",
        ),
        Rule(
            _OF_INPUTS + "self.joins.all(step, !has(step.broadcast) || step.broadcast == step.right || "
            "(step.broadcast == self.inputs[0].name && self.joins[0].right == step.right))",
            "`broadcast` must name a side of its step that is an input: the right one, or in the first step the left",
            ".joins",
        ),
        Rule(
            _STEPS + "self.joins.all(step, !has(step.asOf) || "
            "self.inputs.all(i, i.name != step.right || has(i.table)))",
            "the right input of an asOf step must be a table; write table: {key: [...]} in that input",
            ".joins",
        ),
        Rule(
            _STEPS + "self.inputs.all(i, !has(i.table) || "
            "self.joins.all(step, step.right != i.name || has(step.asOf)))",
            "a table must be the right input of an asOf step; drop `table`, or write asOf in that step",
            ".inputs",
        ),
        Rule(
            "!has(self.inputs[0].table)",
            "the first input is the left side and cannot be a table; drop `table`",
            ".inputs",
        ),
        Rule(
            "!has(self.select) || has(self.aggregate) || self.select.all(item, !has(item.column) || "
            f"({_WINDOWED}item.column in {_TIMES}) || (has(self.topN) && item.column in {_RANKS}) || "
            "has(self.unions) || self.inputs.exists(i, item.column.startsWith(i.name + '.')))",
            "a column is written <input>.<column>, and one here does not begin with the name of an input",
            ".select",
        ),
        Rule(
            "has(self.deadLetter) || !has(self.joins) || self.joins.all(step, step.lateData != 'dlq')",
            "lateData: dlq writes late records to the dead letters, and the job has none; name `deadLetter`",
            ".joins",
        ),
        *TARGETS,
        Rule(
            "!has(self.deadLetter) || !has(self.deadLetter.kafka) || has(self.deadLetter.kafka.bootstrapServers) || "
            f"{any_output('kafka')} || (self.inputs.exists(i, has(i.kafka)) && {_SAME_ADDRESS})",
            "it is not clear which Kafka is meant: the inputs do not name one and the same; write bootstrapServers",
            ".deadLetter.kafka",
        ),
    ),
    (StreamJoinSpec, "joins"): (
        Rule(
            f"size(self.filter(step, {_LAST})) == 0 || (size(self.filter(step, {_LAST})) == 1 && "
            f"[self[size(self) - 1]].all(step, {_LAST}))",
            "no step can follow a session step, whose rows have no bound on time; make it the last step, or a job of "
            "its own",
        ),
    ),
    Input: (
        exactly_one("kafka", "file"),
        Rule(
            "!has(self.history) || has(self.kafka)",
            "a history is what comes before a topic; name kafka, or leave the history out",
            ".history",
        ),
        Rule(
            "!has(self.where) || !has(self.table)",
            "a table's version that is left out would leave an older one valid (rule A1); write the condition into the "
            "step's `where`",
            ".where",
        ),
        Rule(
            "self.format != 'parquet' || !has(self.kafka)",
            "parquet is a format of files; name file: {path: ...} instead of kafka",
            ".format",
        ),
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
    KafkaInput: (exactly_one("topic", "topics", "topicPattern"),),
    History: (
        Rule(
            "!has(self.csv) || self.format == 'csv'",
            "csv says how CSV is written, and the format is another one; leave it out",
            ".csv",
        ),
    ),
    JoinStep: (
        Rule(
            " || ".join(_FIELDS),
            "the join has no bound on time, so its state would grow for ever (rule J8); "
            "write interval: {of: <left input>, lower: 0s, upper: 1h}",
            ".interval",
        ),
        Rule(
            f"[{', '.join(_FIELDS)}].filter(named, named).size() <= 1",
            f"needs exactly one of {listed(FIELDS)}",
        ),
        Rule(
            "size(self.keys) > 0 || has(self.broadcast)",
            "there is no key, so every row would meet every row (rule J9); name at least one, or for a join on time "
            "only the small side in `broadcast`",
            ".keys",
        ),
        Rule(
            "size(self.keys) == 0 || !has(self.broadcast)",
            "is for a join without keys (rule J9); drop broadcast, or the keys",
            ".broadcast",
        ),
        Rule(
            f"!has(self.broadcast) || ({' && '.join(f'!has(self.{field})' for field in _KEYED)})",
            "only an interval step can do without keys; drop broadcast and name a key",
            ".broadcast",
        ),
        Rule(
            "!has(self.broadcast) || self.type == 'inner' || "
            "(self.type in ['left', 'semi', 'anti'] && self.broadcast == self.right) || "
            "(self.type == 'right' && self.broadcast != self.right)",
            "the join keeps unmatched rows of this side, or emits each of its rows once, which a broadcast side cannot "
            "(rule J9); broadcast the other side, or write type: inner",
            ".broadcast",
        ),
        Rule(
            f"self.lateData != 'reopen' || ({' && '.join(f'!has(self.{field})' for field in _FINAL)})",
            "reopen is for interval steps; write drop",
            ".lateData",
        ),
        Rule(
            "self.lateData != 'dlq' || !has(self.asOf)",
            "no row of an asOf step is late (rule A3); leave it out",
            ".lateData",
        ),
        *dict.fromkeys(rule for kind in STEP_KINDS for rule in kind.cel_of_step),
    ),
    **{target: rules for kind in STEP_KINDS for target, rules in kind.cel.items()},
    SelectItem: (
        exactly_one("column", "expression"),
        Rule("!has(self.expression) || has(self.as)", "an expression has no name of its own; add one: as: <name>"),
    ),
    BranchColumn: (
        exactly_one("column", "expression"),
        Rule("!has(self.expression) || has(self.as)", "an expression has no name of its own; add one: as: <name>"),
    ),
    (SelectItem, "as"): (
        Rule("!self.startsWith('$')", "starts with `$`, which engine columns do; choose another name"),
    ),
    Output: _OUTPUT,
    NamedOutput: (*_OUTPUT, *_NAMED_OUTPUT),
    PostgresOutput: (
        Rule("!has(self.dsn) || !has(self.dsnSecretRef)", "dsn and dsnSecretRef are both named; keep one", ".dsn"),
    ),
    DeadLetter: (exactly_one(*DeadLetter.KINDS),),
    StoreSpec: (
        *(
            Rule(f"!has(self.{first}) || !has(self.{second})", f"{first} and {second} are both named; keep one")
            for first, second in combinations(StoreSpec.KINDS, 2)
        ),
        Rule(
            "!has(self.memory) || !has(self.startFrom)",
            "a store in memory has no savepoint of another job; drop `startFrom`",
            ".startFrom",
        ),
    ),
    (StoreSpec, "checkpointInterval"): positive(),
    (PeriodicSavepoints, "every"): positive(),
    Autoscale: (
        Rule(
            "!has(self.minInstances) || self.minInstances <= self.maxInstances",
            "is less than `minInstances`",
            ".maxInstances",
        ),
    ),
    PodTemplate: (
        exactly_one("name", "inline"),
        Rule("!has(self.inline) || self.key == 'pod.yaml'", "is a key of a ConfigMap; leave it out", ".key"),
    ),
    PostgresStoreSpec: (exactly_one("dsn", "dsnSecretRef"),),
    Savepoint: (
        Rule(
            "!self.metadata.name.matches('^(rollout-|before-state-version-|periodic-[0-9]+$)')",
            "savepoints of rollouts, migrations and drivers have such names, and are deleted by those; "
            "choose another name",
        ),
    ),
    BlueGreenJob: (
        Rule(
            "self.metadata.name.size() <= 242",
            "the names of its jobs add eleven characters, and may have 253; choose a name of at most 242",
        ),
    ),
    SavepointOf: (Rule("self == oldSelf", "cannot be changed; make another Savepoint"),),
    **SESSION_RULES,
    **AGGREGATE_MODEL_RULES,
    **RANKING_MODEL_RULES,
}


def with_rules(schema: Schema, target: type | Place) -> Schema:
    rules = [*schema.get("x-kubernetes-validations", ()), *(rule.schema() for rule in RULES.get(target, ()))]
    return {**schema, "x-kubernetes-validations": rules} if rules else schema
