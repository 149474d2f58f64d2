"""Cross-field rules of how a step matches rows in time: interval (J8), window (W1, W4), as-of (A1, A3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joinery_runtime.job.model.duration import parse_duration
from joinery_runtime.job.model.parts import Finding, Parts, StepPart, dig, exactly_one, items, reference
from joinery_runtime.job.model.wording import either, listed

_WAYS = ("interval", "window", "asOf")


def _one_way(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        named = [way for way in _WAYS if step.data.get(way) is not None]
        if step.data and not named:
            yield (
                (*step.at, "interval"),
                "the join has no bound on time, so its state would grow for ever (rule J8); "
                "write interval: {of: <left input>, lower: 0s, upper: 1h}",
            )
        if len(named) > 1:
            yield step.at, f"needs exactly one of {listed(_WAYS)}: {listed(named)} are named"


def _interval(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        interval, at = step.data.get("interval"), (*step.at, "interval")
        lower, upper = _ms(dig(interval, "lower")), _ms(dig(interval, "upper"))
        if lower is not None and upper is not None and lower > upper:
            facts = f"lower ({dig(interval, 'lower')}) is above upper ({dig(interval, 'upper')})"
            yield at, f"{facts}, so nothing can match; swap them"
        of = dig(interval, "of")
        if step.left and isinstance(of, str) and of not in step.left_names:
            yield (*at, "of"), _not_before(of, step)


def _not_before(of: str, step: StepPart) -> str:
    names = step.left_names
    swap = " (to count from the right input, negate the bounds and swap them)" if of == step.data.get("right") else ""
    if len(names) == 1:
        return f"{of!r} is not the left input; bounds count from {names[0]!r}: write of: {names[0]}{swap}"
    return f"{of!r} is not joined before this step; bounds count from an input that is: write {either(names)}{swap}"


def _alone(parts: Parts) -> Iterator[Finding]:
    """Window and as-of steps are no part of a chain (W4)."""
    count = len(parts.steps)
    for step in parts.steps:
        for way, rule in (("window", " (rule W4)"), ("asOf", "")):
            if count > 1 and step.data.get(way) is not None:
                facts = f"{way} steps do not take part in chains{rule}, and there are {count} steps"
                yield (*step.at, way), f"{facts}; write interval, or make it a job of its own"


def _window(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        window, at = step.data.get("window"), (*step.at, "window")
        yield from exactly_one(window, at, ("tumbling", "hopping", "session"))
        size, slide = (_ms(dig(window, "hopping", name)) for name in ("size", "slide"))
        if size is not None and slide is not None and slide > size:
            raw = dig(window, "hopping")
            facts = f"slide ({raw['slide']}) is longer than size ({raw['size']}), so rows between windows would be lost"
            yield (*at, "hopping", "slide"), f"{facts}; write at most the size"


def _lateness(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        way = next((way for way in ("window", "asOf") if step.data.get(way) is not None), None)
        if way is not None and step.data.get("lateData") == "reopen":
            facts = "a window that has closed" if way == "window" else "a row that has gone out"
            yield (*step.at, "lateData"), f"reopen is for interval steps, {facts} stays as it is; write drop"
        if way == "asOf" and (_ms(step.data.get("allowedLateness")) or 0) > 0:
            facts = "an asOf step drops no row as late (rule A3)"
            yield (*step.at, "allowedLateness"), f"{facts}; to wait for late versions write asOf.grace instead"


# --- as-of ----------------------------------------------------------------------------------------------------------


def _as_of(parts: Parts) -> Iterator[Finding]:
    for step in parts.steps:
        if isinstance(step.data.get("asOf"), Mapping):
            yield from _grace(step)
            yield from _table(step)
            kind = step.data.get("type", "inner")
            if kind in ("right", "full"):
                facts = f"a {kind} join would keep unmatched versions of the table, of which there is no last moment"
                yield (*step.at, "type"), f"{facts} (rule A4); write inner or left"


def _grace(step: StepPart) -> Iterator[Finding]:
    raw = step.data["asOf"]
    grace, retention = _ms(raw.get("grace")), _ms(raw.get("historyRetention"))
    if grace is not None and retention is not None and grace >= retention > 0:
        facts = f"grace ({raw['grace']}) is not below historyRetention ({raw['historyRetention']})"
        yield (*step.at, "asOf", "grace"), f"{facts}, so versions would go before the rows that wait; keep them longer"


def _table(step: StepPart) -> Iterator[Finding]:
    if step.right is None:
        return
    keys, name = step.data.get("keys"), step.right.name
    named = [found.column for text in _values(keys) if (found := reference(text)) is not None]
    if step.right.data.get("table") is None:
        todo = f"write table: {{key: [{', '.join(named)}]}} in that input"
        yield (*step.at, "asOf"), f"{name!r} is not a table: its versions have no key; {todo}"
        return
    wanted = [column for column in items(step.right.data, "table", "key") if isinstance(column, str)]
    if keys and wanted and sorted(named) != sorted(wanted):
        facts = f"the keys name {listed(named)} of {name!r}, whose table key is {listed(wanted)}"
        yield (*step.at, "keys"), f"{facts}; a version is looked up by the whole key and nothing else: name just that"


def _values(keys: Any) -> list[Any]:
    return list(keys.values()) if isinstance(keys, Mapping) else []


def _tables_elsewhere(parts: Parts) -> Iterator[Finding]:
    """A table is read as versions, which only an as-of step understands."""
    if not parts.steps or not all(step.sides_known for step in parts.steps):
        return
    looked_up = {step.data.get("right") for step in parts.steps if step.data.get("asOf") is not None}
    for part in parts.inputs:
        if part.data.get("table") is not None and part.name not in looked_up:
            facts = f"{part.name!r} is a table, but not the right input of an asOf step"
            yield (*part.at, "table"), f"{facts}; drop `table`, or write asOf in the step whose right it is"


def _ms(raw: Any) -> int | None:
    try:
        return parse_duration(raw)
    except ValueError:
        return None


RULES: tuple[Callable[[Parts], Iterator[Finding]], ...] = (
    _one_way,
    _interval,
    _alone,
    _window,
    _lateness,
    _as_of,
    _tables_elsewhere,
)
