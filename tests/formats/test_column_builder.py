"""Columns of Python values against the definition of what they mean: the same values, written as JSON and decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from budget import LARGE
from joinery_runtime.formats.json import decoder as json_format
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import BadRecord, Decoded, json_text, unreadable_reason, with_bad
from joinery_runtime.formats.registry.avro_bounds import Nanos
from joinery_runtime.formats.row_decoder import ColumnBuilder

TIMESTAMP = pa.timestamp("ms", tz="UTC")
TYPES = [
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.date32(), TIMESTAMP, pa.binary(),
    pa.decimal128(12, 2), pa.decimal128(38, 10), pa.decimal128(5, 5),
]  # fmt: skip
TEXTS = [
    "", "a", 'q"uote', "back\\slash", "line\nbreak", "\0", "\u00e9", "\U0001f600", "\ud800", "\ufeff", "{", "[1]",
    "-1", "123", "007", "-0", "1e3", "+5", "12.30", "12.345", "0.100000", "1.5", "\uff11\uff12", " 1", "1_0", "nan",
    "12345678901234567890.1234567890", "99999999999999999999", "null", "true", "aGk=", "aGk", "2026-01-15",
    "0000-01-01", '{"a":1}', "2026-13-01", "2026-01-15T10:00:00Z", "2026-01-15t10:00:00.123456789+01:00",
    "0001-01-01T00:00:00+01:00", "1700000000", "1700000000000",
]  # fmt: skip
EDGES = [
    2**31, 2**53, 2**63, 2**64, 10**18, 10**19, 10**38, 10**39, 10**309, 10**4400, 946_684_800, 4_102_444_800,
    253_402_300_800_000, -62_135_596_800_000, 1_700_000_000_000,
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 0.1, 1e16, 1e22, 1e300, 5e-324, 1e-40, 3.4028235677973362e38, 3.4028235677973366e38, math.inf, math.nan,
]  # fmt: skip
DECIMALS = [
    "0", "-0", "-0.00", "1.5", "1.500", "1.505", "12345678901.12", "1E+3", "1E+30", "1E-30", "0.00001", "NaN",
    "Infinity", "9999999999999999999999999999.9999999999",
]  # fmt: skip
FITTING: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int32(): [1, -(2**31)],
    pa.int64(): [1, 2**63 - 1],
    pa.float32(): [1.5, 0.1, 7],
    pa.float64(): [-0.0, 0.1, 2**53],
    pa.string(): ["a", "\u00e9", 7, {"a": [1.5, "x"]}],
    pa.binary(): [b"x", "aGk="],
    pa.date32(): [date(2026, 1, 2), "2026-03-04"],
    TIMESTAMP: [1_700_000_000_000, "2026-01-15T10:00:00Z", datetime(1969, 12, 31, 1, 2, 3, 4_567, UTC)],
}
ZONES = [None, UTC, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(seconds=30))]


def as_json(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> Decoded:
    records: list[bytes] = []
    positions: list[int] = []
    bad: list[BadRecord] = []
    for position, row in enumerate(rows):
        try:
            records.append(json_text(row).encode("utf-8", "surrogatepass"))
            positions.append(position)
        except (ValueError, TypeError, RecursionError) as error:
            bad.append(BadRecord(position, unreadable_reason(error)))
    decoded = JsonDecoder(schema).decode(pa.array(records, pa.binary()))
    return with_bad(decoded.at(np.array(positions, np.int64)), bad)


def outcomes(decoded: Decoded) -> tuple[list[int], list[str], Sequence[BadRecord]]:
    """Values by their text, in which 0.0 and -0.0 differ."""
    decoded.rows.validate(full=True)
    return decoded.index.tolist(), [repr(row) for row in decoded.rows.to_pylist()], decoded.bad


def any_datetime(random: Random) -> datetime:
    day = date(random.choice([1, 2, 1969, 1970, 2026, 9999]), random.randint(1, 12), random.randint(1, 28))
    moment = time(random.randrange(24), 59, random.randrange(60), random.choice([0, 999, 1_000, 123_456, 999_999]))
    return datetime.combine(day, moment, random.choice(ZONES))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def any_value(random: Random, depth: int = 0) -> Any:
    match random.randrange(12 if depth < 3 else 9):
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.choice([1, -1]) * (random.choice(EDGES) - random.randrange(3))
        case 2:
            return random.choice([*DOUBLES, random.gauss(0, 1e10), random.random() * 10 ** random.randint(-300, 300)])
        case 3 | 4:
            return random.choice(TEXTS)
        case 5:
            return random.choice([any_datetime(random), any_datetime(random).date(), time(1, 2, 3, 4)])
        case 6:
            near = Decimal(random.randint(-(10**17), 10**17)).scaleb(-random.randint(0, 12))
            return random.choice([Decimal(random.choice(DECIMALS)), near])
        case 7:
            return random.choice([b"", b"\0", bytes(range(200, 256))])
        case 8:
            return random.choice(
                [Nanos(10**18 + 7), {1: 2}, {(1,): 2}, (1, 2), nested(random.choice([5, 33, 300, 700]))]
            )
        case 9 | 10:
            return [any_value(random, depth + 1) for _ in range(random.randrange(3))]
        case _:
            return {random.choice(TEXTS): any_value(random, depth + 1) for _ in range(random.randrange(3))}


def fitting_value(random: Random, arrow: pa.DataType) -> Any:
    if pa.types.is_decimal(arrow):
        return Decimal(random.randint(-9_999, 9_999)).scaleb(-arrow.scale)
    return random.choice(FITTING[arrow])


@pytest.mark.parametrize("kernel_from", [0, 1_000], ids=["kernel", "judge"])
def test_values_become_what_they_are_as_json(kernel_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "_WORTHWHILE", kernel_from)
    random, unusual = Random(kernel_from), 0
    for _ in range(3_000 if LARGE else 150):
        schema = pa.schema([(f"c{number}", random.choice(TYPES)) for number in range(random.randint(1, 6))])
        rarely = random.choice([0.005, 0.1, 1])
        rows = [
            {
                field.name: any_value(random) if random.random() < rarely else fitting_value(random, field.type)
                for field in schema
            }
            for _ in range(random.choice([1, 3, 60]))
        ]
        expected = as_json(schema, rows)
        assert outcomes(ColumnBuilder(schema).decode(rows)) == outcomes(expected), (schema, rows)
        unusual += len(expected.bad)
    assert unusual, "some rows are bad"
