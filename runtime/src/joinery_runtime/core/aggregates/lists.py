"""The values of a group, up to a limit: all of them, as a JSON array or as one text, or the number of distinct ones.

A group with more values than the limit has no list, and never gets one again: its state is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates.base import Accumulator, Groups, Make, Present, States

_AS_JSON = (  # as JSON outputs are encoded
    cs.date().dt.to_string("iso"),
    cs.datetime().dt.epoch("ms"),
    cs.decimal().cast(pl.String),
    cs.binary().bin.encode("base64"),
)
_SORTED_AS = {
    **{kind: kind for kind in (pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())},
    pa.date32(): pa.int32(),
    pa.timestamp("ms", tz="UTC"): pa.int64(),
}
_PACKED_BITS = 62


def limited_lists(
    fields: Sequence[pa.Field],
    elements: Sequence[pa.Array],
    offsets: np.ndarray,
    limit: int | None,
    before: np.ndarray | None = None,
) -> States:
    """Cut the elements of each field into lists at `offsets` (int64[m + 1]). Lists of more than `limit` elements are
    NULL, and so are those of groups that had too many `before` (bool[m])."""
    sizes = np.diff(offsets)
    over = np.zeros(len(sizes), dtype=bool) if limit is None else sizes > limit
    if before is not None:
        over |= before
    mask = None
    if over.any():
        mask, within = pa.array(over), pa.array(np.repeat(~over, sizes))
        elements = [column.filter(within) for column in elements]
        offsets = np.append(0, np.cumsum(np.where(over, 0, sizes)))
    return tuple(
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column, type=field.type, mask=mask)
        for field, column in zip(fields, elements, strict=True)
    )


def list_sizes(lists: pa.Array) -> np.ndarray:
    """int64[n]: the number of elements; 0 for NULL."""
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64))


def lacks_lists(states: States, groups: Groups) -> np.ndarray:
    """bool[m]: the groups of states of which one has had too many values."""
    return np.logical_or.reduceat(states[0].is_null().to_numpy(zero_copy_only=False), groups.starts)


def misfits_of_lists(lists: pa.Array, limit: int, values: str) -> Mapping[int, str]:
    """`Accumulator.find_misfits` of lists; `values` names what they hold."""
    numbers = np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False))
    return dict.fromkeys(numbers.tolist(), f"there are more than {limit:,} {values}, the `limit`")


@dataclass(frozen=True, slots=True)
class Values(Accumulator):
    """The values of a group by event time, then by arrival: joined with `separator`, or as a JSON array if that is
    None. The state is the list of values and that of their event times."""

    name: str
    type: pa.DataType
    limit: int
    separator: str | None

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.list_(self.type)), pa.field(f"{self.name}.times", pa.list_(pa.int64())))

    @property
    def result_type(self) -> pa.DataType:
        return pa.string()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        return self._lists(present.values, times[present.rows], groups.number[present.rows], groups.count)

    def merge(self, states: States, groups: Groups) -> States:
        times, number = states[1].flatten().to_numpy(), np.repeat(groups.number, list_sizes(states[0]))
        order = np.lexsort((times, number))
        values = states[0].flatten().take(pa.array(order))
        return self._lists(values, times[order], number, groups.count, lacks_lists(states, groups))

    def result(self, states: States) -> pa.Array:
        lists = states[0]
        filled = pc.if_else(pc.greater(pc.list_value_length(lists), 0), lists, None)
        if self.separator is not None:
            return pc.binary_join(filled, self.separator)
        elements = pl.DataFrame({"v": pl.from_arrow(lists.flatten())}).with_columns(_AS_JSON)["v"].to_arrow()
        offsets = pa.array(np.append(0, np.cumsum(list_sizes(lists))), pa.int64())
        rows = pl.DataFrame({"v": pl.from_arrow(pa.LargeListArray.from_arrays(offsets, elements))})
        objects = rows.select(pl.struct("v").struct.json_encode().str.strip_prefix('{"v":').str.strip_suffix("}"))
        return pc.if_else(filled.is_valid(), objects.to_series().to_arrow().cast(pa.string()), None)

    def find_misfits(self, states: States) -> Mapping[int, str]:
        return misfits_of_lists(states[0], self.limit, "values")

    def _lists(
        self, values: pa.Array, times: np.ndarray, number: np.ndarray, count: int, before: np.ndarray | None = None
    ) -> States:
        """Return states from values in order; `number` (int64[n], ascending) is the group of each. For `before` see
        `limited_lists`."""
        offsets = np.searchsorted(number, np.arange(count + 1))
        return limited_lists(self.fields, (values, pa.array(times)), offsets, self.limit, before)


FUNCTIONS: Mapping[str, Make] = {
    "array_agg": lambda _, call: Values(f"$array_agg({call.arguments})", call.type, call.limit or 0, None),
    "string_agg": lambda _, call: Values(f"$array_agg({call.arguments})", call.type, call.limit or 0, call.separator),
}


# --- distinct values --------------------------------------------------------------------------------------------------


def distinct(values: pa.Array, group: np.ndarray, groups: int) -> tuple[np.ndarray, pa.Array]:
    """Return offsets (int64[m + 1]) and the distinct values of m groups: sorted within each group, which begins and
    ends at its offsets. `group` (int64[n]) is the group of each value; there are no NULLs. Floating-point numbers are
    equal if their bits are."""
    if values.type in _SORTED_AS:
        return _distinct_numbers(values, group, groups)
    encoded = values.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    count = max(1, len(order))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    pairs = np.sort(group * count + rank[encoded.indices.to_numpy()], kind="stable")
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    offsets = np.searchsorted(pairs, np.arange(groups + 1) * count)
    return offsets, encoded.dictionary.take(order.take(pa.array(pairs % count)))


def _distinct_numbers(values: pa.Array, group: np.ndarray, groups: int) -> tuple[np.ndarray, pa.Array]:
    """`distinct` for numbers, which sorts them: that is faster than dictionary encoding."""
    plain = values.view(_SORTED_AS[values.type])
    if pa.types.is_signed_integer(plain.type) and len(plain):
        numbers = plain.to_numpy().astype(np.int64, copy=False)
        lowest, bits = int(numbers.min()), (int(numbers.max()) - int(numbers.min())).bit_length()
        if bits + groups.bit_length() <= _PACKED_BITS:
            # Group and number are sorted as one number. A group's states are sorted lists, which NumPy's stable sort
            # merges instead of sorting them again.
            pairs = np.sort(group << bits | numbers - lowest, kind="stable")
            pairs = pairs[np.diff(pairs, prepend=-1) != 0]
            offsets = np.searchsorted(pairs, np.arange(groups + 1) << bits)
            restored = ((pairs & ((1 << bits) - 1)) + lowest).astype(plain.type.to_pandas_dtype(), copy=False)
            return offsets, pa.array(restored).view(values.type)
    rows = pl.DataFrame({"group": group, "value": pl.from_arrow(plain)}).sort("group", "value")
    number, sorted_values = rows["group"].to_numpy(), rows["value"].to_arrow().view(values.type)
    first = (np.diff(number, prepend=-1) != 0) | (np.diff(as_integers(sorted_values), prepend=0) != 0)
    return np.searchsorted(number[first], np.arange(groups + 1)), sorted_values.filter(pa.array(first))


@dataclass(frozen=True, slots=True)
class Distinct(Accumulator):
    """`count_distinct` with `method: exact`. NaN counts as one value, and so do 0.0 and -0.0 together. The state is the
    sorted list of values."""

    name: str
    type: pa.DataType
    limit: int

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(self.name, pa.list_(self.type)),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def fold(self, values: pa.Array | None, times: np.ndarray, groups: Groups) -> States:
        present = Present.of(values, groups)
        number = groups.number[present.rows]
        return self._lists(unify_zeros(present.values), number, groups.count)

    def merge(self, states: States, groups: Groups) -> States:
        number = np.repeat(groups.number, list_sizes(states[0]))
        return self._lists(states[0].flatten(), number, groups.count, lacks_lists(states, groups))

    def result(self, states: States) -> pa.Array:
        return pc.list_value_length(states[0]).cast(pa.int64())

    def find_misfits(self, states: States) -> Mapping[int, str]:
        return misfits_of_lists(states[0], self.limit, "distinct values")

    def _lists(self, values: pa.Array, group: np.ndarray, groups: int, before: np.ndarray | None = None) -> States:
        offsets, distinct_values = distinct(values, group, groups)
        return limited_lists(self.fields, (distinct_values,), offsets, self.limit, before)


def as_integers(values: pa.Array) -> np.ndarray:
    """Return the bits of values of 32 or 64 bits as int32[n] or int64[n]."""
    return np.asarray(values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_numpy())


def unify_zeros(values: pa.Array) -> pa.Array:
    """Replace floating-point numbers so that there is one zero and one NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy() + values.type.to_pandas_dtype()(0)
    return pa.array(np.where(np.isnan(numbers), np.nan, numbers), values.type)
