"""How values become stored text: the same for every store, so that they cannot differ in what they accept.

Plans, results and definitions are kept as JSON *text*, not JSONB: a pending plan is replayed as it was written, and
JSONB would turn 1e16 into an integer and refuse a string that holds U+0000.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from joinery_runtime.errors import StateError
from joinery_runtime.state.store import Json, SegmentMeta


def encode_json(value: Json) -> str:
    """JSON text; raises StateError for what JSON cannot hold (NaN, infinity, bytes)."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StateError(
            "A plan, result, signature or definition is not JSON",
            facts=str(error),
            todo="Use null or text for such a value",
        ) from error


def decode_json(text: str) -> Any:
    return json.loads(text)


def decode_optional(text: str | None) -> Any:
    """None stays None."""
    return None if text is None else decode_json(text)


def meta_to_json(meta: SegmentMeta) -> dict[str, Any]:
    return dataclasses.asdict(meta)


def meta_from_json(value: Json) -> SegmentMeta:
    return SegmentMeta(**value)
