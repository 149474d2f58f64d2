"""All values of a group, up to a limit: as a JSON array, or as one text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates.base import Groups, Make, Present, States, require_within

_AS_JSON = (  # as JSON outputs are encoded
    cs.date().dt.to_string("iso"),
    cs.datetime().dt.epoch("ms"),
    cs.decimal().cast(pl.String),
    cs.binary().bin.encode("base64"),
)


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a group by event time, then by arrival: joined with `separator`, or as a JSON array if that is
    None. More than `limit` values in a group raise GroupError. The state is the list of values and that of their event
    times."""

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
        sizes = pc.list_value_length(states[0]).to_numpy()
        times, number = states[1].flatten().to_numpy(), np.repeat(groups.number, sizes)
        order = np.lexsort((times, number))
        return self._lists(states[0].flatten().take(pa.array(order)), times[order], number, groups.count)

    def result(self, states: States) -> pa.Array:
        lists = states[0]
        filled = pc.if_else(pc.greater(pc.list_value_length(lists), 0), lists, None)
        if self.separator is not None:
            return pc.binary_join(filled, self.separator)
        texts = self._json_texts(lists)
        return pc.if_else(filled.is_valid(), texts, None)

    def _json_texts(self, lists: pa.Array) -> pa.Array:
        elements = pl.DataFrame({"v": pl.from_arrow(lists.flatten())}).with_columns(_AS_JSON)["v"].to_arrow()
        sizes = pc.list_value_length(lists).to_numpy()
        offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int64())
        rows = pl.DataFrame({"v": pl.from_arrow(pa.LargeListArray.from_arrays(offsets, elements))})
        objects = rows.select(pl.struct("v").struct.json_encode().str.strip_prefix('{"v":').str.strip_suffix("}"))
        return objects.to_series().to_arrow().cast(pa.string())

    def _lists(self, values: pa.Array, times: np.ndarray, number: np.ndarray, count: int) -> States:
        """States from values in order; `number` (int64[n], ascending) is the group of each."""
        offsets = np.searchsorted(number, np.arange(count + 1))
        require_within(np.diff(offsets), self.limit, "values", "take fewer rows with the aggregate's `where`")
        lists = (values, pa.array(times))
        return tuple(
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=field.type)
            for field, elements in zip(self.fields, lists, strict=True)
        )


FUNCTIONS: Mapping[str, Make] = {
    "array_agg": lambda _, call: Values(f"$array_agg({call.arguments})", call.type, call.limit or 0, None),
    "string_agg": lambda _, call: Values(f"$array_agg({call.arguments})", call.type, call.limit or 0, call.separator),
}
