"""Sessions: rows of one key of both sides together, each at most `gap` after the one before (rules W1, S1).

Keys are told apart by their values. The 64-bit hash alone decides only where nothing else has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.cells import changes, number_cells
from joinery_runtime.core.kinds.rows import Selection, gather
from joinery_runtime.core.pipeline.spec import LEFT, RIGHT, StepSpec
from joinery_runtime.core.table.columns import HASH, TS
from joinery_runtime.core.table.sort import sort_order

SideRows = tuple[int, Selection]  # rows of a side


@dataclass(frozen=True, slots=True)
class Sessions:
    """`number` is int64[n], the session of each row; `first` and `last` are int64[m], the event times of the first and
    the last row of each session."""

    number: np.ndarray
    first: np.ndarray
    last: np.ndarray


def form(step: StepSpec, rows: Sequence[SideRows], gap: int) -> Sessions:
    """The sessions of all these rows (at least one selection), numbered through in the order of the selections."""
    hashes = np.concatenate([chosen.numbers(HASH) for _, chosen in rows])
    times = np.concatenate([chosen.numbers(TS) for _, chosen in rows])
    keys = tell_apart(hashes, _key_columns(step, rows))
    order = sort_order(hashes, keys, times)
    begins = changes(hashes[order]) | changes(keys[order]) | _gaps(times[order], gap)
    ends = np.roll(begins, -1)
    return Sessions(number_cells(order, begins), times[order][begins], times[order][ends])


def _gaps(times: np.ndarray, gap: int) -> np.ndarray:
    return np.concatenate([np.zeros(min(len(times), 1), dtype=bool), np.diff(times) > gap])


def _key_columns(step: StepSpec, rows: Sequence[SideRows]) -> list[pa.Array]:
    """The values of each key of all rows; int32 and int64 become one type (V2)."""
    left, right = step.sides[LEFT].intake, step.sides[RIGHT].intake
    columns = []
    for names in zip(left.keys, right.keys, strict=True):
        types = {intake.schema.field(name).type for intake, name in zip((left, right), names, strict=True)}
        kind = pa.int64() if len(types) > 1 else types.pop()
        columns.append(pa.concat_arrays([gather(step.sides[i], chosen, names[i]).cast(kind) for i, chosen in rows]))
    return columns


# --- keys with one hash -----------------------------------------------------------------------------------------------


def tell_apart(hashes: np.ndarray, keys: Sequence[pa.Array]) -> np.ndarray:
    """int64[n]: 0 where a hash belongs to one key; where several keys have it, the number of the row's key. NULLs are
    equal here, and so are NaNs: what must not match them has left them out before."""
    numbers = np.zeros(len(hashes), dtype=np.int64)
    plain = [_canonical(key) for key in keys]
    among = np.flatnonzero(np.isin(hashes, _shared(hashes, plain)))
    if len(among):
        numbers[among] = _number_keys([key.take(pa.array(among)) for key in plain])
    return numbers


def mixed(hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray) -> bool:
    """Whether a hash belongs to several keys; `order` sorts by hash."""
    return len(_several(hashes, [_canonical(key) for key in keys], order)) > 0


def _shared(hashes: np.ndarray, keys: Sequence[pa.Array]) -> np.ndarray:
    """The hashes that several keys have."""
    return _several(hashes, keys, np.argsort(hashes, kind="stable"))


def _several(hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray) -> np.ndarray:
    """Among the rows of a hash that several keys have, in any order, some neighbours differ."""
    by_hash = hashes[order]
    differs = np.zeros(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        values = key.take(pa.array(order))
        differs |= _differ(values[1:], values[:-1])
    return np.asarray(by_hash[1:][differs & (by_hash[1:] == by_hash[:-1])])


def _differ(a: pa.Array, b: pa.Array) -> np.ndarray:
    differ = pc.fill_null(pc.not_equal(a, b), False).to_numpy(zero_copy_only=False)
    if a.null_count or b.null_count:
        differ = differ | pc.not_equal(a.is_null(), b.is_null()).to_numpy(zero_copy_only=False)
    return np.asarray(differ)


def _number_keys(keys: Sequence[pa.Array]) -> np.ndarray:
    numbers = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        together = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        numbers = np.unique(together, return_inverse=True)[1]
    return numbers


def _canonical(key: pa.Array) -> pa.Array:
    """Floats as the bits of one zero and one NaN."""
    if not pa.types.is_floating(key.type):
        return key
    values = pc.fill_null(key.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return pa.array(bits, mask=key.is_null().to_numpy(zero_copy_only=False))
