"""Cross-field rules of `spec.joins`: which inputs a step joins, by which keys (J9, V2), and when
rows match (J8, W4): what the kinds of step share, then the rules of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp

from joinery_runtime.job.join.steps import FIELDS, STEP_KINDS, JoinStep
from joinery_runtime.job.kinds.base import Rules, StepKind
from joinery_runtime.job.kinds.ranking import RANKING_KINDS
from joinery_runtime.job.model.draft import (
    Finding,
    InputDraft,
    JobDraft,
    Loc,
    StepDraft,
    dig,
    no_key,
    reference,
    unknown_column,
)
from joinery_runtime.job.model.function_calls import wrong_calls
from joinery_runtime.job.model.output_rules import late_without_dead_letters
from joinery_runtime.job.model.references import EXISTENCE, Columns, Reference, computed_key, inputs_of, read_key
from joinery_runtime.job.model.wording import either, listed, suggestion

_PARTITIONED_BY = ("string", "binary", "int32", "int64")


def _check_number_of_steps(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    if draft.steps or (dig(spec, "sql") is not None and dig(spec, "aggregate") is None) or len(draft.inputs) < 2:
        return
    if dig(spec, "aggregate") is None:
        yield ("spec", "joins"), "there is no join step; write one that names `right`, `keys` and `interval`"
        return
    for source in draft.inputs[1:]:
        facts = f"no step joins input {source.name!r}; add a step with right: {source.name}, or drop the input"
        yield source.at, facts


def _check_inputs_of_steps(draft: JobDraft) -> Iterator[Finding]:
    """Check that the chain starts at the first input, and that each other input is the right side of one step."""
    wrong = False
    for step in draft.steps:
        name = step.data.get("right")
        if not step.left or step.right is not None or not isinstance(name, str):
            continue
        wrong = True
        absent_names = {absent.source.name for absent in step.absent}
        candidates = [other for other in draft.by_name if other not in {*step.left_names, *absent_names}]
        at, todo = (*step.at, "right"), f"write {either(candidates)}" if candidates else "drop this step"
        if name == step.left[0].name:
            yield at, f"{name!r} is the left input (the first one), where the steps begin; {todo}"
        elif name in step.left_names or name in absent_names:
            yield at, f"a step before joins {name!r} already, and each input is joined once; {todo}"
        else:
            yield at, f"{name!r} is not an input{suggestion(name, candidates)}; {todo}"
    if wrong or not draft.steps or not all(step.sides_known for step in draft.steps):
        return
    joined = {source.name for step in draft.steps for source in (*step.left, step.right) if source is not None}
    for source in draft.inputs:
        if source.name not in joined:
            yield (
                source.at,
                f"no step joins input {source.name!r}; add a step with right: {source.name}, or drop the input",
            )


# --- keys ---------------------------------------------------------------------------------------------------------


def _check_keys(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        keys = step.data.get("keys")
        if not isinstance(keys, Mapping):
            continue
        if not keys and step.data.get("broadcast") is None:
            todo = "name at least one"
            if any(step.data.get(kind.field) is not None for kind in STEP_KINDS if kind.without_keys):
                todo += f", or for a join on time only the small side: broadcast: {step.data.get('right')}"
            yield (*step.at, "keys"), f"there is no key, so every row would meet every row (rule J9); {todo}"
        for left, right in keys.items():
            yield from _check_key((*step.at, "keys", left), (left, right), step)


def _check_key(at: Loc, texts: tuple[Any, Any], step: StepDraft) -> Iterator[Finding]:
    if step.right is None or not step.left:
        return
    columns = _columns_of(step)
    sides = [read_key(text, columns) if isinstance(text, str) else None for text in texts]
    expressions = {text: side for text, side in zip(texts, sides, strict=True) if isinstance(side, exp.Expr)}
    problems = [problem for text, tree in expressions.items() for problem in _expression_problems(text, tree, step)]
    if problems:
        yield from ((at, problem) for problem in problems)
        return
    first, second = (computed_key(side) if isinstance(side, exp.Expr) else side for side in sides)
    if first is None or second is None:
        text = texts[0] if first is None else texts[1]
        todo = f"a key is written {either(step.left_names)}.<column>: {step.right.name}.<column>"
        yield at, f"{text!r} is neither a column nor an expression over columns of one input (rule J12); {todo}"
    elif first.input == step.right.name and second.input in step.left_names:
        yield at, f"the left input comes first; swap it: {second}: {first}"
    else:
        wrong = [*_check_side(at, first, step.left, step), *_check_side(at, second, (step.right,), step)]
        yield from wrong
        sides_of_keys = [(step.side_of(ref.input), ref.column) for ref in (first, second)]
        left, right = (side.types.get(column) if side and side.types else None for side, column in sides_of_keys)
        if not wrong and left is not None and right is not None and left.key_type != right.key_type:
            facts = f"key types differ: {first} is {left}, {second} is {right}"
            yield at, f"{facts}; declare the same type (int32 and int64 may meet, rule V2)"


def _expression_problems(text: str, tree: exp.Expr, step: StepDraft) -> Iterator[str]:
    """Say why an expression is no side of a key. Only the core knows its type."""
    yield from (f"{text!r}: {call.sql()!r}: {reason}" for call, reason in wrong_calls(tree))
    inputs = inputs_of(tree)
    if not inputs:
        yield f"{text!r} reads no column, so every row would have the same key (rule J12); compare a column"
    elif "" in inputs:
        names = either(f"{source.name}.<column>" for source in (*step.left, step.right) if source is not None)
        yield f"{text!r} has a column without its input; write {names}"
    elif len(inputs) > 1:
        facts = f"{text!r} reads columns of {listed(inputs)}, and a side of a key is computed of one input (rule J12)"
        yield f"{facts}; write the equality into `where`, beside a key of one input on each side"
    elif (key := computed_key(tree)).column in _columns_of(step).get(key.input, ()):
        yield f"{text!r} is also the name of a column of {key.input!r}; rename the column"


def _columns_of(step: StepDraft) -> Columns:
    """Return the columns that the step's keys can name."""
    return {source.name or "": source.types or {} for source in (*step.left, step.right) if source is not None}


def _check_side(at: Loc, ref: Reference, side: tuple[InputDraft, ...], step: StepDraft) -> Iterator[Finding]:
    source = next((source for source in side if source.name == ref.input), None)
    absent = next((absent for absent in step.absent if absent.source.name == ref.input), None)
    if absent is not None:
        facts = f"{str(ref)!r} is not there any more: {absent.reason} (rule E1)"
        yield at, f"{facts}; write a column of {either(step.left_names)}"
    elif source is None:
        names = [source.name or "" for source in side]
        expected = either(map(repr, names))
        yield at, f"{str(ref)!r} must be a column of {expected}{suggestion(ref.input, names)}"
    elif source.types is not None:
        unknown = [read.column for read in ref.reads if read.column not in source.types]
        yield from ((at, unknown_column(name, source)) for name in unknown)
        if not unknown and (text := no_key(ref.column, source.types)):
            yield at, text


# --- broadcast ----------------------------------------------------------------------------------------------------


def _check_broadcast(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        name, at = step.data.get("broadcast"), (*step.at, "broadcast")
        if not isinstance(name, str):
            continue
        keys, join_type = step.data.get("keys"), step.data.get("type", "inner")
        if keys and isinstance(keys, Mapping):
            yield at, f"is for a join without keys (rule J9), and this has {len(keys)}; drop broadcast, or the keys"
        elif any(step.data.get(kind.field) is not None for kind in STEP_KINDS if not kind.without_keys):
            yield at, "only an interval step can do without keys; drop broadcast and name a key"
        elif not step.left or step.right is None:
            continue
        elif name in step.left_names and step.number > 0:
            facts = f"{name!r} is part of what the steps before made, which cannot be broadcast"
            yield at, f"{facts}; write {step.right.name}"
        elif step.side_of(name) is None:
            names = [*(step.left_names if step.number == 0 else []), step.right.name or ""]
            yield at, f"{name!r} is not a side of this step{suggestion(name, names)}; write {either(names)}"
        elif join_type in ("full", "right" if name == step.right.name else "left"):
            yield at, _preserved_side_text(name, str(join_type), step)
        elif join_type in EXISTENCE and name != step.right.name:
            facts = f"a {join_type} join emits each row of {name!r} once, and a broadcast side is in every shard"
            yield at, f"{facts} (rule J9); write broadcast: {step.right.name}, or name a key"


def _preserved_side_text(name: str, kind: str, step: StepDraft) -> str:
    facts = f"a {kind} join keeps unmatched rows of {name!r}, which a broadcast side cannot (rule J9)"
    right = str(step.data.get("right"))
    alternatives = [other for other in (right, *(step.left_names if step.number == 0 else ())) if other != name]
    if kind == "full" or not alternatives:
        return f"{facts}; write type: inner, or name a key"
    return f"{facts}; write broadcast: {alternatives[0]}, or type: inner"


# --- co-partitioned ---------------------------------------------------------------------------------------------------


def _check_co_partitioned(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        if step.data.get("coPartitioned") is True:
            yield from (((*step.at, "coPartitioned"), text) for text in _co_partitioning_problems(draft, step))
        elif step.data.get("partitioner") not in {None, JoinStep.model_fields["partitioner"].default}:
            yield (*step.at, "partitioner"), "is for coPartitioned: true, which is not set; set it, or leave this out"


_BEHIND_JOINS = ("aggregate", *(kind.field for kind in RANKING_KINDS))


def _co_partitioning_problems(draft: JobDraft, step: StepDraft) -> Iterator[str]:
    keys = step.data.get("keys")
    if len(draft.steps) > 1:
        yield f"is for a job of one step, and there are {len(draft.steps)}; leave it out"
    elif behind := [name for name in _BEHIND_JOINS if dig(draft.data, "spec", name) is not None]:
        facts = f"{behind[0]} is another step, whose rows are in no partition"
        yield f"is for a job of one step, and {facts}; leave it out"
    elif isinstance(keys, Mapping) and len(keys) != 1:
        yield f"is for one key column, whose bytes are the record's key, and there are {len(keys)}; leave it out"
    elif computed := [
        text
        for text in itertools.chain(*(keys.items() if isinstance(keys, Mapping) else ()))
        if isinstance(text, str) and isinstance(read_key(text, _columns_of(step)), exp.Expr)
    ]:
        yield f"is for a key that the records have as it is, and {computed[0]!r} is computed (rule J12); leave it out"
    elif step.sides_known:
        for source in (*step.left, step.right):
            if source is not None and source.data.get("kafka") is None:
                yield f"is for topics of Kafka, and {source.name!r} is none; leave it out"
            elif source is not None and source.data.get("history") is not None:
                facts = f"{source.name!r} has a history, whose files are in no partition"
                yield f"is for topics alone, and {facts}; leave it out"
        pair = next(iter(keys.items()), (None, None)) if isinstance(keys, Mapping) else (None, None)
        for ref in filter(None, map(reference, pair)):
            side = step.side_of(ref.input)
            kind = side.types.get(ref.column) if side is not None and side.types is not None else None
            if kind is not None and kind.name not in _PARTITIONED_BY:
                facts = f"the bytes that a producer makes of a {kind} ({ref}) are not known"
                yield f"{facts}; key by {either(_PARTITIONED_BY)}, or leave it out"


# --- how a step matches rows in time ----------------------------------------------------------------------------------


def _check_one_way(draft: JobDraft) -> Iterator[Finding]:
    for step in draft.steps:
        named = [way for way in FIELDS if step.data.get(way) is not None]
        if step.data and not named:
            yield (
                (*step.at, "interval"),
                "the join has no bound on time, so its state would grow for ever (rule J8); "
                "write interval: {of: <left input>, lower: 0s, upper: 1h}",
            )
        if len(named) > 1:
            yield step.at, f"needs exactly one of {listed(FIELDS)}: {listed(named)} are named"


def _check_steps_behind_the_last(draft: JobDraft) -> Iterator[Finding]:
    """Reject steps behind a kind of step that does not say which times it hands on (N3)."""
    for step in draft.steps[:-1]:
        for kind in STEP_KINDS:
            if kind.why_last and dig(step.data, *kind.path()) is not None:
                facts = f"no step can follow, because {kind.why_last} (rule N3)"
                yield (*step.at, *kind.path()), f"{facts}; make it the last step, or a job of its own"


def _check_counted_from(draft: JobDraft) -> Iterator[Finding]:
    """Check that a step counts from the time of an input that was joined before, and whose time the steps before
    bound."""
    unbounded: set[str] = set()
    for step in draft.steps:
        bounded = [name for name in step.left_names if name not in unbounded]
        for kind in {kind.field: kind for kind in STEP_KINDS}.values():
            origin, at = dig(step.data, kind.field, "of"), (*step.at, kind.field, "of")
            if step.left and isinstance(origin, str) and origin not in step.left_names:
                yield at, _not_before(origin, kind, step, bounded)
            elif step.left and isinstance(origin, str) and origin in unbounded:
                facts = f"a version of {origin!r} may be older than its row by any time, so rows would wait for ever"
                yield at, f"{facts} (rule N2); write of: {either(bounded)}"
            if step.data.get(kind.field) is not None and not kind.bounds_right and step.right is not None:
                unbounded.add(step.right.name or "")


def _not_before(origin: str, kind: type[StepKind], step: StepDraft, names: Sequence[str]) -> str:
    """Say why bounds cannot count from `origin`. `names` are the inputs from whose times the step can count."""
    absent = next((absent for absent in step.absent if absent.source.name == origin), None)
    if absent is not None:
        return f"{origin!r} has no time any more: {absent.reason} (rule E1); write {either(names)}"
    swap = ""
    if origin == step.data.get("right") and kind.bounds_right:
        swap = " (to count from the right input, negate the bounds and swap them)"
    if len(names) == 1:
        return f"{origin!r} is not the left input; {kind.counts} {names[0]!r}: write of: {names[0]}{swap}"
    facts = f"{origin!r} is not joined before this step; {kind.counts} an input that is"
    return f"{facts}: write {either(names)}{swap}"


def _check_lateness(draft: JobDraft) -> Iterator[Finding]:
    final = {kind.field: kind.what_is_final for kind in STEP_KINDS if kind.what_is_final}
    never = {kind.field: kind.never_late for kind in STEP_KINDS if kind.never_late}
    for step in draft.steps:
        facts = next((text for way, text in final.items() if step.data.get(way) is not None), None)
        never_late = next((text for way, text in never.items() if step.data.get(way) is not None), None)
        at, late_data = (*step.at, "lateData"), step.data.get("lateData")
        if facts is not None and late_data == "reopen":
            yield at, f"reopen is for interval steps, {facts} stays as it is; write drop"
        elif late_data == "dlq" and never_late is not None:
            yield at, f"{never_late}; leave it out"
        else:
            yield from late_without_dead_letters(draft, at)


RULES: Rules = (
    *(
        _check_number_of_steps,
        _check_inputs_of_steps,
        _check_keys,
        _check_broadcast,
        _check_co_partitioned,
        _check_one_way,
        _check_steps_behind_the_last,
    ),
    *(_check_counted_from, _check_lateness),
    *dict.fromkeys(rule for kind in STEP_KINDS for rule in kind.rules),
)
