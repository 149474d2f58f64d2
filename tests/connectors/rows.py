"""One row of every output type, and helpers that all sink tests use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from joinery_runtime.connectors.sink import Attempt, AttemptId, RecoveryContext
from stores import STORE

EVERY_TYPE = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int32(),
        "big": pa.int64(),
        "session": pa.uint64(),
        "half": pa.float32(),
        "real": pa.float64(),
        "text": pa.string(),
        "raw": pa.binary(),
        "price": pa.decimal128(38, 4),
        "day": pa.date32(),
        "at": pa.timestamp("ms", tz="UTC"),
    }
)
FULL = {
    "flag": True,
    "small": -(2**31),
    "big": -(2**63),
    "session": 2**64 - 1,
    "half": 0.5,
    "real": 0.1,
    "text": 'a,"b"\n\\.\té😀',
    "raw": b"\xff\x00",
    "price": Decimal("1234567890123456789012345678901234.5678"),
    "day": date(1, 1, 1),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
}
EMPTY = dict.fromkeys(FULL)
ROWS = pa.Table.from_pylist([FULL, EMPTY], schema=EVERY_TYPE)


INCARNATION = "a-store-s-job"


def attempt(
    epoch: int = 1,
    shard: int = 0,
    generation: int = 1,
    name: str = "a",
    *,
    incarnation: str = INCARNATION,
    claim: Callable[[str, str, str | None], str | None] = lambda *_: None,
    reach: Callable[[str], None] = lambda _: None,
    former_names: bool = False,
) -> Attempt:
    """By default it is the first one that claims its part."""
    return Attempt(AttemptId(generation, epoch, shard, name), incarnation, claim, reach, former_names)


def recovery(generation: int = 2, committed_epoch: int = 0, **fields: Any) -> RecoveryContext:
    return RecoveryContext(generation, committed_epoch, **{"store": STORE, "incarnation": INCARNATION} | fields)
