from __future__ import annotations

import ast
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.table.reference_keyhash import reference_hash
from joinery_runtime.core.table.columns import arrow_type
from joinery_runtime.core.table.keyhash import FEW, key_hash
from joinery_runtime.job import parse_type

DOCUMENT = Path(__file__).parents[3] / "docs" / "key-hash.md"


def hash_of(*columns: tuple[pa.DataType, Any]) -> int:
    """Few values are hashed in another way than many."""
    (value,) = {
        value
        for rows in (1, FEW + 1)
        for value in key_hash([pa.array([value] * rows, type=kind) for kind, value in columns]).tolist()
    }
    return int(value)


def parsed(kind: str, text: str) -> Any:
    if text == "NULL":
        return None
    base = kind.partition("(")[0]
    readers: dict[str, Any] = {
        "boolean": lambda t: t == "true",
        "int32": int,
        "int64": int,
        "float": float,
        "double": float,
        "string": ast.literal_eval,
        "binary": lambda t: bytes.fromhex(t[2:-1]),
        "decimal": Decimal,
        "date": date.fromisoformat,
        "timestamp": datetime.fromisoformat,
    }
    return readers[base](text)


def vectors() -> list[tuple[str, str, int]]:
    lines = DOCUMENT.read_text().partition("## Test vectors")[2].splitlines()
    cells = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    return [(kinds, key, int(value, 16)) for kinds, key, value in cells if value.startswith("0x")]


@pytest.mark.parametrize(("kinds", "text", "expected"), vectors())
def test_published_vectors(kinds: str, text: str, expected: int) -> None:
    names = split(kinds)
    key = [parsed(kind, part) for kind, part in zip(names, text.split(", "), strict=True)]
    assert reference_hash(key) == expected
    assert hash_of(*zip([arrow_type(parse_type(name)) for name in names], key, strict=True)) == expected


def split(kinds: str) -> list[str]:
    return kinds.split(", ")


def test_every_key_type_has_a_published_vector() -> None:
    published = {kind.partition("(")[0] for kinds, _, _ in vectors() for kind in split(kinds)}
    assert published == {
        "boolean", "int32", "int64", "float", "double", "string", "binary", "decimal", "date", "timestamp",
    }  # fmt: skip


def test_values_that_are_equal_hash_equal_whatever_their_type() -> None:
    assert hash_of((pa.int32(), -5)) == hash_of((pa.int64(), -5))
    assert hash_of((pa.float64(), -0.0)) == hash_of((pa.float64(), 0.0))
    assert hash_of((pa.float32(), 1.5)) == hash_of((pa.float64(), 1.5))
    assert hash_of((pa.decimal128(3, 1), Decimal("1.5"))) == hash_of((pa.decimal128(38, 20), Decimal("1.5")))
    assert hash_of((pa.string(), "a")) == hash_of((pa.large_string(), "a"))
    odd_nan = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0]
    assert hash_of((pa.float64(), odd_nan)) == hash_of((pa.float64(), math.nan))


def test_order_and_number_of_columns_count() -> None:
    a, b = (pa.int64(), 1), (pa.int64(), 2)
    assert len({hash_of(a, b), hash_of(b, a), hash_of(a), hash_of(a, a)}) == 4


SCALARS = st.one_of(
    st.tuples(st.just(pa.bool_()), st.booleans()),
    st.tuples(st.just(pa.int32()), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(pa.float32()), st.floats(width=32)),
    st.tuples(st.just(pa.float64()), st.floats()),
    st.tuples(st.just(pa.string()), st.text()),
    st.tuples(st.just(pa.binary()), st.binary(max_size=300)),
    st.tuples(st.just(pa.decimal128(38, 9)), st.decimals(-(10**28), 10**28, places=9)),
    st.tuples(st.just(pa.date32()), st.dates()),
    st.tuples(
        st.just(pa.timestamp("ms", "UTC")),
        st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
)


@settings(deadline=None)
@given(st.lists(SCALARS, min_size=1, max_size=3))
def test_agrees_with_the_reference(columns: list[tuple[pa.DataType, Any]]) -> None:
    assert hash_of(*columns) == reference_hash([value for _, value in columns])


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.decimal128(9, 2), pa.binary(), pa.float64(), pa.bool_()])
def test_nulls_slices_and_empty_columns(kind: pa.DataType) -> None:
    value = {pa.string(): "x", pa.binary(): b"x", pa.decimal128(9, 2): Decimal("1.00"), pa.bool_(): True}.get(kind, 1)
    column = pa.array([value, None, value, None, value], type=kind)
    hashes = key_hash([column])
    assert [int(h) for h in hashes] == [reference_hash([v]) for v in column.to_pylist()]
    assert np.array_equal(key_hash([column.slice(1, 3)]), hashes[1:4])
    assert key_hash([column.slice(0, 0)]).dtype == np.uint64
