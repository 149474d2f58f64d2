"""Cross-field rules of `spec.joins`: the bound (J8), the keys (J9, V2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joinery_runtime.job.duration import parse_duration
from joinery_runtime.job.parts import (
    Finding,
    InputPart,
    Loc,
    Parts,
    dig,
    items,
    reference,
    unknown_column,
)
from joinery_runtime.job.steps import Reference
from joinery_runtime.job.types import ColumnType
from joinery_runtime.job.wording import suggestion

_STEP: Loc = ("spec", "joins", 0)


def _number_of_steps(parts: Parts) -> Iterator[Finding]:
    count = len(items(parts.data, "spec", "joins"))
    if count > 1:
        yield ("spec", "joins", 1), f"more than one join step is not supported yet: there are {count}, keep the first"
    if count == 0 and dig(parts.data, "spec", "sql") is None:
        yield ("spec", "joins"), "there is no join step; write one that names `right`, `keys` and `interval`"


def _right(parts: Parts) -> Iterator[Finding]:
    right = parts.step.get("right")
    if not parts.all_named or not isinstance(right, str):
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
    interval: Any = parts.step.get("interval")
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
    if parts.all_named and isinstance(of, str) and of != (left := next(iter(parts.by_name))):
        swap = " (to count from the right input, negate the bounds and swap them)" if of in parts.by_name else ""
        yield (*at, "of"), f"{of!r} is not the left input; bounds count from {left!r}: write of: {left}{swap}"


def _keys(parts: Parts) -> Iterator[Finding]:
    keys = parts.step.get("keys")
    if not isinstance(keys, Mapping):
        return
    if not keys and parts.step.get("broadcast") is None:
        yield (*_STEP, "keys"), "there is no key, so every row would meet every row (rule J9); name at least one"
    if not parts.all_named:
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
        yield at, unknown_column(found.column, side)


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


def _ms(raw: Any) -> int | None:
    try:
        return parse_duration(raw)
    except ValueError:
        return None


def _type_of(found: Reference, side: InputPart) -> ColumnType | None:
    return side.types.get(found.column) if side.types is not None else None


RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    _number_of_steps,
    _right,
    _interval,
    _keys,
)
