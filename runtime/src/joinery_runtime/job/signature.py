"""The fingerprint of a job's state, and what a changed job may do with it (rule M2).

A signature is JSON and lasts as long as the state it describes: its layout carries a version of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joinery_runtime.job.duration import format_duration
from joinery_runtime.job.inputs import Input
from joinery_runtime.job.resource import StreamJoin
from joinery_runtime.job.wording import listed

SIGNATURE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Readable differences: with any `refused` the state cannot be used, `warnings` do not stop the job."""

    refused: tuple[str, ...]
    warnings: tuple[str, ...]


def signature(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the job's state depends on. `stored` names, per input, the columns that segments keep; durations are
    milliseconds."""
    return {
        "version": SIGNATURE_VERSION,
        "kind": job.kind,
        "step": "interval",
        "type": job.step.type,
        "inputs": [_input(side, stored[side.name]) for side in (job.left, job.right)],
        "keys": [[pair.left, pair.right, job.left.types[pair.left].key_type] for pair in job.key_pairs],
        "lower": job.interval.lower,
        "upper": job.interval.upper,
        "allowedLateness": job.step.allowed_lateness,
    }


def _input(side: Input, stored: Sequence[str]) -> dict[str, Any]:
    return {"name": side.name, "eventTime": side.event_time, "stored": {c: str(side.types[c]) for c in stored}}


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Whether state written under `old` can go on under `new`."""
    if old.get("version") != new["version"]:
        facts = f"version {old.get('version')}, this release writes version {new['version']}"
        return Comparison((f"the state's signature has another layout: {facts}",), ())
    refused = list(_kind(old, new)) or list(_inputs(old, new)) or [*_keys(old, new), *_columns(old, new)]
    return Comparison(tuple(refused), tuple(_longer(old, new)) if not refused else ())


def _kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for field, words in (("kind", "kind of job"), ("step", "kind of step"), ("type", "join type")):
        if old[field] != new[field]:
            yield f"the {words} was {old[field]}, it is now {new[field]}"


def _inputs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = ([side["name"] for side in jobs["inputs"]] for jobs in (old, new))
    if before != after:
        yield f"the inputs were {listed(before)}, they are now {listed(after)}; they keep their names and order"


def _keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = ([tuple(key) for key in jobs["keys"]] for jobs in (old, new))
    if before != after:
        yield f"the keys were {_key_text(old)}, they are now {_key_text(new)}"


def _key_text(jobs: Mapping[str, Any]) -> str:
    left, right = (side["name"] for side in jobs["inputs"])
    return listed(f"{left}.{a} = {right}.{b} ({kind})" for a, b, kind in jobs["keys"])


def _columns(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for before, after in zip(old["inputs"], new["inputs"], strict=True):
        if before["eventTime"] != after["eventTime"]:
            yield f"the event time of {after['name']} was {before['eventTime']}, it is now {after['eventTime']}"
        for column, kind in after["stored"].items():
            kept = before["stored"].get(column)
            if kept is None:
                yield f"column {after['name']}.{column} is not in the stored rows, and the job now needs it"
            elif kept != kind:
                yield f"column {after['name']}.{column} is stored as {kept}, the job now declares {kind}"


def _longer(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    changes = (("lower", "lower bound", -1), ("upper", "upper bound", 1), ("allowedLateness", "allowedLateness", 1))
    for field, words, direction in changes:
        if (new[field] - old[field]) * direction > 0:
            yield (
                f"{words} went from {format_duration(old[field])} to {format_duration(new[field])}: "
                "rows that were evicted before stay gone, so matches with them will be missing"
            )
