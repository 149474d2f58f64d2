"""Functions of python-function-join.yaml: each takes Arrow arrays of one length, and returns one of that length."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def canonical(order_id: pa.Array) -> pa.Array:
    """Return the order number in one way of writing: `ord-1` and `ORD-001` give 1. Raises ValueError for other
    texts."""
    parts = pc.split_pattern(order_id, "-", max_splits=1)
    return pc.cast(pc.list_element(parts, 1), pa.int64())


def discount(total: pa.Array, rate: pa.Array) -> list[float | None]:
    """Return the discount on a total, row by row: what is easier in Python than in Arrow's kernels."""
    pairs = zip(total.to_pylist(), rate.to_pylist(), strict=True)
    return [None if value is None else float(value) * float(share) for value, share in pairs]
