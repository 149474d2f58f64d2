"""The `session_id` that a trace leaves out of an output row, from the definition in rule V1 and docs/key-hash.md.

It is worked out in plain Python (core/reference_keyhash.py), not by the product; traces that cover V1 write numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from core.table.reference_keyhash import reference_hash

_WORDS: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "binary": base64.b64decode,
    "date": date.fromisoformat,
    "timestamp": lambda ms: datetime.fromtimestamp(ms / 1000, UTC),
}


def with_session_id(spec: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """An output row of the job of sessions with this `spec`; an id goes behind `window_end`, where it belongs (S6). One
    that the trace has written itself stays; a row without a window's times shows what was selected."""
    if "session_id" in row or "window_start" not in row:
        return dict(row)
    names = list(row)
    groups, behind = names[: names.index("window_start")], names.index("window_end") + 1
    session_id = reference_hash([*_values(_types(spec), groups, row), row["window_start"]])
    rest = {name: row[name] for name in names[behind:]}
    return {**{name: row[name] for name in names[:behind]}, "session_id": session_id, **rest}


def _types(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """The types of columns that groups may be, by their names in the output."""
    if "input" in spec:
        return {column["name"]: column["type"] for column in spec["input"]["schema"]}
    types = {f"{side['name']}.{column['name']}": column["type"] for side in spec["inputs"] for column in side["schema"]}
    return {name.partition(".")[2]: types[name] for name in spec["aggregate"]["groupBy"] if name in types}


def _values(types: Mapping[str, str], groups: Sequence[str], row: Mapping[str, Any]) -> list[Any]:
    """What the JSON of a row's group columns stands for. A computed column is what its JSON says."""
    return [_value(types.get(name, ""), row[name]) for name in groups]


def _value(kind: str, value: Any) -> Any:
    if value is None:
        return None
    return (Decimal if kind.startswith("decimal") else _WORDS.get(kind, lambda same: same))(value)
