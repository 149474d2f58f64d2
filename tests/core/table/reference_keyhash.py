"""The key hash written a second time, value by value in plain Python, from the definition in docs/key-hash.md."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import xxhash

MASK = 2**64 - 1


def reference_hash(key: Sequence[Any]) -> int:
    state = 1
    for value in key:
        state = mix(((state * 0x9E3779B97F4A7C15) & MASK) ^ word(value))
    return state


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def word(value: Any) -> int:
    match value:
        case None:
            return 0x6E756C6C6E756C6C
        case bool() | int():
            return int(value) & MASK
        case float():
            return double_bits(value)
        case str():
            return xxhash.xxh3_64_intdigest(value.encode())
        case bytes():
            return xxhash.xxh3_64_intdigest(value)
        case Decimal():
            return xxhash.xxh3_64_intdigest(decimal_bytes(value))
        case datetime():
            return round((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) & MASK
        case date():
            return (value - date(1970, 1, 1)).days & MASK
    raise TypeError(type(value))


def double_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8000000000000
    bits: int = struct.unpack("<Q", struct.pack("<d", 0.0 if value == 0 else value))[0]
    return bits


def decimal_bytes(value: Decimal) -> bytes:
    with localcontext(prec=100):
        return int(value * 10**38).to_bytes(32, "little", signed=True)
