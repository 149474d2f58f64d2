"""Tells in words what differs between two signatures of the newest layout (rule M2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from joinery_runtime.job.join.steps import STEP_KINDS
from joinery_runtime.job.kinds.aggregate.windows import signed_window_text
from joinery_runtime.job.kinds.ranking import RANKING_KINDS, Deduplication, RankingKind
from joinery_runtime.job.kinds.session.signature import aggregate_incompatibilities, aggregate_warnings
from joinery_runtime.job.model.duration import format_duration, format_time
from joinery_runtime.job.model.references import EXISTENCE
from joinery_runtime.job.model.wording import agreeing, listed

Signed = Mapping[str, Any]
Check = Callable[[Signed, Signed], Iterator[str]]
_NAMED = 8  # columns in one warning
_PRESERVED: Mapping[str, set[str]] = {
    **{"inner": set(), "left": {"left"}, "right": {"right"}, "full": {"left", "right"}},
    **{kind: set() for kind in EXISTENCE},
}
_FIXED = {field: words for kind in STEP_KINDS for field, words in kind.fixed.items()}


def incompatibilities(old: Signed, new: Signed) -> Iterator[str]:
    """Say why the state cannot be used. Leaves out differences that only follow from an earlier one."""
    stages: Sequence[Sequence[Check]]
    if new["kind"] == "SessionWindow":
        stages = ((_compare_kinds,), (_compare_inputs,), (_compare_times_and_tables, aggregate_incompatibilities))
    else:
        stages = (
            (_compare_kinds,),
            (_compare_inputs, _compare_branches),
            (_compare_shape,),
            (_compare_times_and_tables, _compare_steps, _compare_behind_joins),
        )
    for checks in stages:
        reasons = [text for check in checks for text in check(old, new)]
        if reasons:
            yield from reasons
            return


def warnings(old: Signed, new: Signed) -> Iterator[str]:
    """Yield what stays gone, or is lost, if the state can be used."""
    if new["kind"] == "SessionWindow":
        yield from aggregate_warnings(old, new)
        return
    if "aggregate" in new:
        yield from aggregate_warnings(old["aggregate"], new["aggregate"])
    for kind in RANKING_KINDS:
        if kind.field in new:
            yield from _ranking_warnings(kind, old[kind.field], new[kind.field])
    field = Deduplication.field
    if "aggregate" in new and field in new and new[field]["keep"] == "last":
        # A shorter span hands on rows behind the watermark which it now hands on (N3, D5).
        before, after = old[field]["within"], new[field]["within"]
        if after < before:
            facts = f"{field}.within went from {format_duration(before)} to {format_duration(after)}"
            yield f"{facts}: the last rows of spans that are open may be late for the aggregate, and are counted"
    for number, (was, now, where) in enumerate(_pair_steps(old, new)):
        yield from (f"{text}{where}" for text in _step_warnings(was, now, new, number))


def _compare_kinds(old: Signed, new: Signed) -> Iterator[str]:
    if old["kind"] != new["kind"]:
        yield f"the kind of job was {old['kind']}, it is now {new['kind']}"


def _compare_inputs(old: Signed, new: Signed) -> Iterator[str]:
    before, after = ([side["name"] for side in signature["inputs"]] for signature in (old, new))
    if before != after:
        yield f"the inputs were {listed(before)}, they are now {listed(after)}; they keep their names and order"


def _compare_branches(old: Signed, new: Signed) -> Iterator[str]:
    """Compare, for aliases that both texts have, what the SELECTs of unions read. A state that is older than the field
    says nothing of its aliases."""
    for source, was in old.get("branches", {}).items():
        now = new.get("branches", {}).get(source, {})
        for alias, name in was.items():
            if now.get(alias, name) != name:
                facts = f"FROM {source} {alias} in a union was input {name}, it is now {now[alias]}"
                todo = f"keep the SELECTs that read {source}, and their aliases"
                yield f"{facts}: records would come twice or be missing; {todo}"


def _compare_shape(old: Signed, new: Signed) -> Iterator[str]:
    before, after = len(old["steps"]), len(new["steps"])
    if before != after:
        yield f"there were {before} steps, there are now {after}; steps are neither added nor removed"
    if ("aggregate" in old) != ("aggregate" in new):
        change = "is now" if "aggregate" in new else "was"
        yield f"there {change} an aggregate; it is neither added to a state nor removed from one"
    elif "aggregate" in new:
        for field, words in (("window", "the kind of window"), ("of", "the input whose event time windows count")):
            if old["aggregate"][field] != new["aggregate"][field]:
                yield f"{words} was {old['aggregate'][field]}, it is now {new['aggregate'][field]}"
        yield from _compare_next(old["aggregate"].get("then"), new["aggregate"].get("then"))
    for kind in RANKING_KINDS:
        name = kind.field
        if (name in old) != (name in new):
            change = "is now" if name in new else "was"
            yield f"there {change} a {name} step; it is neither added to a state nor removed from one"
        elif name in new and old[name]["of"] != new[name]["of"]:
            facts = f"the input whose event time counts for {name} was {old[name]['of']}"
            yield f"{facts}, it is now {new[name]['of']}"
    for was, now, where in _pair_steps(old, new):
        for field, words in (("right", "right input"), ("kind", "kind of step")):
            if was[field] != now[field]:
                yield f"the {words} was {was[field]}, it is now {now[field]}{where}"


def _compare_next(was: Signed | None, now: Signed | None) -> Iterator[str]:
    field, default = "window", "that of the first aggregate"
    if (was is None) != (now is None):
        change = "is now" if was is None else "was"
        yield f"there {change} a second aggregate (then); it is neither added to a state nor removed from one"
    elif was is not None and now is not None and was.get(field) != now.get(field):
        yield f"the kind of window of then was {was.get(field, default)}, it is now {now.get(field, default)}"


def _compare_steps(old: Signed, new: Signed) -> Iterator[str]:
    for number, (was, now, where) in enumerate(_pair_steps(old, new)):
        yield from (f"{text}{where}" for text in _compare_step(was, now, new, number))


def _compare_behind_joins(old: Signed, new: Signed) -> Iterator[str]:
    if "aggregate" in new:
        yield from aggregate_incompatibilities(old["aggregate"], new["aggregate"])
        if "then" in new["aggregate"]:
            for text in aggregate_incompatibilities(old["aggregate"]["then"], new["aggregate"]["then"]):
                yield f"{text} (then)"
    for kind in RANKING_KINDS:
        was, now = old.get(kind.field), new.get(kind.field)
        if was is None or now is None:
            continue
        if was["keys"] != now["keys"]:
            keys = [listed(f"{name} ({type_})" for name, type_ in signed["keys"]) for signed in (was, now)]
            yield f"{kind.field}.by was {keys[0]}, it is now {keys[1]}"
        for field, words in kind.fixed.items():
            if was.get(field) != now.get(field):
                yield f"{words} was {kind.signed_text(was.get(field))}, it is now {kind.signed_text(now.get(field))}"
        yield from _compare_types(was["stored"], now["stored"], "")


def _ranking_warnings(kind: type[RankingKind], was: Signed, now: Signed) -> Iterator[str]:
    """Warn of longer times and more rows, which bring nothing back, and of columns that are new."""
    for field in ("within", "allowedLateness", "rows"):
        if now.get(field, 0) > was.get(field, 0):
            before, after = (
                str(signed[field]) if field == "rows" else format_duration(signed[field]) for signed in (was, now)
            )
            yield f"{field} went from {before} to {after}: rows that left the state before stay gone, {kind.lost}"
    yield from _null_before([column for column in now["stored"] if column not in was["stored"]])


def _compare_times_and_tables(old: Signed, new: Signed) -> Iterator[str]:
    for was, now in zip(old["inputs"], new["inputs"], strict=True):
        if was["eventTime"] != now["eventTime"]:
            yield f"the event time of {now['name']} was {was['eventTime']}, it is now {now['eventTime']}"
        if was["table"] != now["table"]:
            before, after = ("none" if side["table"] is None else listed(side["table"]) for side in (was, now))
            yield f"the table key of {now['name']} was {before}, it is now {after}"
        if was.get("union") != now.get("union"):
            before, after = ("a union" if side.get("union") else "one input" for side in (was, now))
            facts = f"{now['name']} was {before}, it is now {after}"
            yield f"{facts}: records that were read would come twice; give it another name and start with new state"
        if was.get("history") != now.get("history"):
            before, after = (
                f"one until {format_time(side['history'])}" if side.get("history") is not None else "none"
                for side in (was, now)
            )
            facts = f"the history of {now['name']} was {before}, it is now {after}"
            yield f"{facts}: rows that the files or the topic have would be missing or come twice"


def _pair_steps(old: Signed, new: Signed) -> Iterator[tuple[Signed, Signed, str]]:
    """Yield each step as it was and as it is, and words for its place in a chain."""
    for number, (was, now) in enumerate(zip(old["steps"], new["steps"], strict=False), start=1):
        yield was, now, f" (step {number})" if len(new["steps"]) > 1 else ""


# --- one step -----------------------------------------------------------------------------------------------------


def _compare_step(was: Signed, now: Signed, new: Signed, number: int) -> Iterator[str]:
    if was["keys"] != now["keys"]:
        yield f"the keys were {_keys_text(was)}, they are now {_keys_text(now)}"
    facts = f"the join type was {was['type']}, it is now {now['type']}"
    if was["type"] != now["type"] and {was["type"], now["type"]} & {*EXISTENCE}:
        yield f"{facts}, and a semi or anti join keeps other rows and columns than any other type"
    elif _PRESERVED[now["type"]] - _PRESERVED[was["type"]]:
        yield f"{facts}, and of the rows that are kept nobody wrote down which had a match"
    if was["broadcast"] != now["broadcast"]:
        yield f"the broadcast side was {was['broadcast'] or 'none'}, it is now {now['broadcast'] or 'none'}"
    if was.get("coPartitioned") != now.get("coPartitioned"):
        before, after = (step.get("coPartitioned", "off") for step in (was, now))
        yield f"coPartitioned was {before}, it is now {after}, and it says where rows are in the state"
    before, after = (step.get("of", new["inputs"][0]["name"]) for step in (was, now))
    if before != after:
        yield f"the step counted from the time of {before}, it now counts from that of {after}"
    for field, words in _FIXED.items():
        if was.get(field) != now.get(field):
            texts = [signed_window_text(field, step.get(field, 0)) for step in (was, now)]
            yield f"the {words} was {texts[0]}, it is now {texts[1]}, which would cut windows that are open"
    for side, prefix in _name_prefixes(now, new, number).items():
        yield from _compare_types(was["stored"][side], now["stored"][side], prefix)


def _keys_text(step: Signed) -> str:
    return listed(f"{left} = {right} ({kind})" for left, right, kind in step["keys"])


def _name_prefixes(now: Signed, new: Signed, number: int) -> Mapping[str, str]:
    """Return the prefix of a stored column's name on each side of a step; empty if its input's name is already part of
    it."""
    return {"left": "" if number > 0 else f"{new['inputs'][0]['name']}.", "right": f"{now['right']}."}


def _compare_types(was: Mapping[str, str], now: Mapping[str, str], prefix: str) -> Iterator[str]:
    for column, kind in now.items():
        before = was.get(column)
        if before not in {None, kind}:
            yield f"column {prefix}{column} is stored as {before}, the job now declares {kind}"


def _null_before(added: Sequence[str]) -> Iterator[str]:
    if added:
        more = [f"{len(added) - _NAMED} more"] if len(added) > _NAMED else []
        verb = agreeing(len(added), "are")
        yield f"{listed([*added[:_NAMED], *more])} {verb} null in rows that were stored before"


_WIDENS = {
    **{field: widening for kind in STEP_KINDS for field, widening in kind.widens.items()},
    "allowedLateness": ("allowedLateness", 1),
}


def _step_warnings(was: Signed, now: Signed, new: Signed, number: int) -> Iterator[str]:
    """Yield wider bounds and longer retention, which bring nothing back, rows that are not emitted any more, and new
    columns."""
    for field, (words, direction) in _WIDENS.items():
        if field in now and (now[field] - was[field]) * direction > 0:
            yield (
                f"{words} went from {format_duration(was[field])} to {format_duration(now[field])}: "
                "rows that were evicted before stay gone, so matches with them will be missing"
            )
    lost = _PRESERVED[was["type"]] - _PRESERVED[now["type"]]
    if lost:
        facts = f"the join type went from {was['type']} to {now['type']}"
        sides = listed(f"{side} side" for side in sorted(lost))
        yield f"{facts}: rows of the {sides} that wait without a match will not be emitted"
    # Every stored row has the time from which its step's bounds count, as its own.
    times = {f"{side['name']}.{side['eventTime']}" for side in new["inputs"] if side["name"] == now.get("of")}
    for side, prefix in _name_prefixes(now, new, number).items():
        fresh = [f"{prefix}{column}" for column in now["stored"][side] if column not in was["stored"][side]]
        yield from _null_before([column for column in fresh if column not in times])
