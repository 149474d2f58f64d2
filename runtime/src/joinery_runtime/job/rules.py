"""Cross-field rules of a StreamJoin: each yields the places it finds wrong, and is silent where parts are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from joinery_runtime.job.duration import parse_duration
from joinery_runtime.job.parts import Finding, InputPart, Loc, Parts, dig, items, reference, take_apart
from joinery_runtime.job.steps import Reference
from joinery_runtime.job.types import ColumnType
from joinery_runtime.job.wording import listed, suggestion

_STEP: Loc = ("spec", "joins", 0)
_EVENT_TIME_TYPES = ("timestamp", "int64")


def broken_rules(data: Mapping[str, Any]) -> list[Finding]:
    """Every finding as (path, message), for a resource with its YAML field names."""
    parts = take_apart(data)
    return [finding for rule in _RULES for finding in rule(parts)]


def _number_of_inputs(parts: Parts) -> Iterator[Finding]:
    count = len(parts.inputs)
    if isinstance(dig(parts.data, "spec", "inputs"), list | tuple) and count != 2:
        more = "joining more than two inputs is not supported yet" if count > 2 else "a join needs two inputs"
        yield ("spec", "inputs"), f"{more}: there are {count}, write exactly two"


def _number_of_steps(parts: Parts) -> Iterator[Finding]:
    count = len(items(parts.data, "spec", "joins"))
    if count > 1:
        yield ("spec", "joins", 1), f"more than one join step is not supported yet: there are {count}, keep the first"
    if count == 0 and dig(parts.data, "spec", "sql") is None:
        yield ("spec", "joins"), "there is no join step; write one that names `right`, `keys` and `interval`"


def _distinct_inputs(parts: Parts) -> Iterator[Finding]:
    for i, name in _repeats([part.name for part in parts.inputs]):
        yield ("spec", "inputs", i, "name"), f"two inputs are named {name!r}; give each its own name"


def _distinct_columns(parts: Parts) -> Iterator[Finding]:
    for part in parts.inputs:
        columns = items(part.data, "schema")
        for i, name in _repeats([dig(column, "name") for column in columns]):
            yield (*part.at, "schema", i, "name"), f"the schema has two columns named {name!r}; rename or drop one"


def _event_time(parts: Parts) -> Iterator[Finding]:
    for part in parts.inputs:
        name = part.data.get("eventTime")
        if part.types is None or not isinstance(name, str) or not name:
            continue
        at = (*part.at, "eventTime")
        kind = part.types.get(name)
        if name not in part.types:
            yield at, _unknown_column(name, part)
        elif kind is not None and kind.name not in _EVENT_TIME_TYPES:
            yield at, f"column {name!r} is {kind}; event time must be timestamp, or int64 milliseconds since 1970"


def _one_place(parts: Parts) -> Iterator[Finding]:
    for part in parts.inputs:
        yield from _exactly_one(part.data, part.at, ("kafka", "file"))
    spec = dig(parts.data, "spec")
    yield from _exactly_one(dig(spec, "output"), ("spec", "output"), ("kafka", "postgres", "file"))
    yield from _exactly_one(dig(spec, "deadLetter"), ("spec", "deadLetter"), ("kafka", "file"))
    if _named(dig(spec, "stateStore"), ("postgres", "memory")) == ["postgres", "memory"]:
        yield ("spec", "stateStore"), "postgres and memory are both named; keep one"


def _exactly_one(data: object, at: Loc, options: Sequence[str]) -> Iterator[Finding]:
    named = _named(data, options)
    if isinstance(data, Mapping) and len(named) != 1:
        facts = f"{listed(named)} are named" if named else "none of them is named"
        yield at, f"needs exactly one of {listed(options)}: {facts}"


def _right(parts: Parts) -> Iterator[Finding]:
    right = parts.step.get("right")
    if not parts.two_named or not isinstance(right, str):
        return
    left_name, right_name = parts.by_name
    if right == left_name:
        yield (*_STEP, "right"), f"{right!r} is the left input (the first one); the right one is {right_name!r}"
    elif right != right_name:
        hint = suggestion(right, [right_name])
        yield (*_STEP, "right"), f"{right!r} is not an input{hint}; inputs are {left_name} and {right_name}"


def _interval(parts: Parts) -> Iterator[Finding]:
    if not parts.step:
        return
    at = (*_STEP, "interval")
    interval = parts.step.get("interval")
    if interval is None and parts.step.get("window") is None and parts.step.get("asOf") is None:
        yield (
            at,
            (
                "the join has no bound on time, so its state would grow for ever (rule J8); "
                "write interval: {of: <left input>, lower: 0s, upper: 1h}"
            ),
        )
    lower, upper = _ms(dig(interval, "lower")), _ms(dig(interval, "upper"))
    if lower is not None and upper is not None and lower > upper:
        yield at, f"lower ({interval['lower']}) is above upper ({interval['upper']}), so nothing can match; swap them"
    of = dig(interval, "of")
    if parts.two_named and isinstance(of, str) and of != (left := next(iter(parts.by_name))):
        swap = " (to count from the right input, negate the bounds and swap them)" if of in parts.by_name else ""
        yield (*at, "of"), f"{of!r} is not the left input; bounds count from {left!r}: write of: {left}{swap}"


def _keys(parts: Parts) -> Iterator[Finding]:
    keys = parts.step.get("keys")
    if not isinstance(keys, Mapping):
        return
    if not keys and parts.step.get("broadcast") is None:
        yield (*_STEP, "keys"), "there is no key, so every row would meet every row (rule J9); name at least one"
    if not parts.two_named:
        return
    left, right = parts.inputs
    for left_text, right_text in keys.items():
        yield from _key((*_STEP, "keys", left_text), (left_text, right_text), left, right)


def _key(at: Loc, texts: tuple[Any, Any], left: InputPart, right: InputPart) -> Iterator[Finding]:
    first, second = (reference(text) for text in texts)
    if first is None or second is None:
        yield at, f"a key is written {left.name}.<column>: {right.name}.<column>"
    elif (first.input, second.input) == (right.name, left.name):
        yield at, f"the left input comes first; swap it: {second}: {first}"
    else:
        wrong = list(_side_problems(at, first, left)) + list(_side_problems(at, second, right))
        yield from wrong or _different_types(at, _type_of(first, left), _type_of(second, right), texts)


def _side_problems(at: Loc, found: Reference, side: InputPart) -> Iterator[Finding]:
    if found.input != side.name:
        yield at, f"{str(found)!r} must be a column of {side.name!r}{suggestion(found.input, [side.name or ''])}"
    elif side.types is not None and found.column not in side.types:
        yield at, _unknown_column(found.column, side)


def _different_types(
    at: Loc, left: ColumnType | None, right: ColumnType | None, texts: tuple[str, str]
) -> Iterator[Finding]:
    if left is not None and right is not None and left.key_type != right.key_type:
        yield (
            at,
            (
                f"key types differ: {texts[0]} is {left}, {texts[1]} is {right}; "
                "declare the same type (int32 and int64 may meet, rule V2)"
            ),
        )


def _select(parts: Parts) -> Iterator[Finding]:
    for i, item in enumerate(items(parts.data, "spec", "select")):
        text, at = dig(item, "column"), ("spec", "select", i, "column")
        found = reference(text)
        if isinstance(text, str) and text and found is None:
            yield at, f"{text!r} does not name its input; write <input>.{text}"
        if found is None or not parts.two_named:
            continue
        side = parts.by_name.get(found.input)
        if side is None:
            hint = suggestion(found.input, parts.by_name)
            yield at, f"{found.input!r} is not an input{hint}; inputs are {listed(parts.by_name)}"
        elif side.types is not None and found.column not in side.types:
            yield at, _unknown_column(found.column, side)


def _output_names(parts: Parts) -> Iterator[Finding]:
    select = items(parts.data, "spec", "select")
    names = [_output_name(item) for item in select]
    for i, name in _repeats(names):
        yield (
            ("spec", "select", i),
            f"two output columns are named {name!r} (rule J10); rename one with `as`",
        )
    for i, name in enumerate(names):
        if name is not None and name.startswith("$"):
            yield ("spec", "select", i), f"{name!r} starts with `$`, which engine columns do; rename it with `as`"


def _output_columns_known(parts: Parts) -> Iterator[Finding]:
    known = _all_output_names(parts)
    if known is None:
        return
    for steps in (("kafka", "key"), ("postgres", "upsertKey")):
        for i, name in enumerate(items(parts.data, "spec", "output", *steps)):
            if isinstance(name, str) and name not in known:
                hint = suggestion(name, known)
                at = ("spec", "output", *steps, i)
                yield at, f"{name!r} is not an output column{hint}; output columns are {listed(known)}"


def _delivery(parts: Parts) -> Iterator[Finding]:
    delivery = dig(parts.data, "spec", "delivery")
    if isinstance(dig(parts.data, "spec", "output", "kafka"), Mapping) and delivery in {None, "exactlyOnce"}:
        at: Loc = ("spec", "output", "kafka") if delivery is None else ("spec", "delivery")
        default = ", the default," if delivery is None else ""
        yield at, f"exactlyOnce{default} into Kafka is not supported yet; write delivery: atLeastOnce"


def _postgres_beside_the_state(parts: Parts) -> Iterator[Finding]:
    spec = dig(parts.data, "spec")
    output, at = dig(spec, "output", "postgres"), ("spec", "output", "postgres")
    if not isinstance(output, Mapping):
        return
    why = "its rows are committed in one transaction with the state"
    if dig(spec, "stateStore", "memory") is not None:
        yield at, f"a Postgres output cannot be exactly once with the memory store: {why}; name a Postgres stateStore"
    elif output.get("dsn") is not None and output["dsn"] != dig(spec, "stateStore", "postgres", "dsn"):
        yield (
            (*at, "dsn"),
            f"an output in another database than the state's cannot be exactly once: {why}; "
            "leave dsn out and let stateStore.postgres.dsn name that database",
        )


def _dead_letter_address(parts: Parts) -> Iterator[Finding]:
    spec = dig(parts.data, "spec")
    target = dig(spec, "deadLetter", "kafka")
    if not isinstance(target, Mapping) or target.get("bootstrapServers") is not None:
        return
    of_inputs = {dig(part.data, "kafka", "bootstrapServers") for part in parts.inputs} - {None}
    if dig(spec, "output", "kafka", "bootstrapServers") is None and len(of_inputs) != 1:
        facts = f"the inputs name {listed(sorted(map(str, of_inputs)))}" if of_inputs else "nothing else names Kafka"
        yield ("spec", "deadLetter", "kafka"), f"it is not clear which Kafka is meant: {facts}; write bootstrapServers"


_RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    _number_of_inputs,
    _number_of_steps,
    _distinct_inputs,
    _distinct_columns,
    _event_time,
    _one_place,
    _right,
    _interval,
    _keys,
    _select,
    _output_names,
    _output_columns_known,
    _delivery,
    _postgres_beside_the_state,
    _dead_letter_address,
)


def _repeats(names: Sequence[object]) -> list[tuple[int, object]]:
    """Positions after the first of every name that occurs more than once."""
    seen: Counter[object] = Counter()
    repeats = []
    for i, name in enumerate(names):
        if isinstance(name, str) and seen[name]:
            repeats.append((i, name))
        if isinstance(name, str):
            seen[name] += 1
    return repeats


def _named(data: object, options: Sequence[str]) -> list[str]:
    return [option for option in options if dig(data, option) is not None]


def _ms(raw: Any) -> int | None:
    try:
        return parse_duration(raw)
    except ValueError:
        return None


def _type_of(found: Reference, side: InputPart) -> ColumnType | None:
    return side.types.get(found.column) if side.types is not None else None


def _unknown_column(name: str, side: InputPart) -> str:
    known = side.types or {}
    return f"{side.name!r} has no column {name!r}{suggestion(name, known)}; its columns are {listed(known)}"


def _output_name(item: object) -> str | None:
    renamed, source = dig(item, "as"), reference(dig(item, "column"))
    if isinstance(renamed, str):
        return renamed
    return source.column if source is not None else None


def _all_output_names(parts: Parts) -> list[str] | None:
    if dig(parts.data, "spec", "select") is not None:
        names = [_output_name(item) for item in items(parts.data, "spec", "select")]
        return [name for name in names if name is not None] if None not in names else None
    if not parts.two_named or any(part.types is None for part in parts.inputs):
        return None
    sides = zip(("left", "right"), parts.inputs, strict=True)
    return [f"{prefix}_{column}" for prefix, part in sides for column in part.types or ()]
