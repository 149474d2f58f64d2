"""Rows of Parquet files, which come as columns. `parquet_columns` says which types can be read as which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.parquet.columns import column_at, read_as
from joinery_runtime.formats.records import Decoded, Fault, FormatDecoder, drop_rows
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.paths import Path


class ParquetDecoder(FormatDecoder):
    """Decodes batches of columns into rows of `schema`. `paths` maps columns to paths. Other columns are found by
    name."""

    columnar: ClassVar[bool] = True
    tells_deletions: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns})

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._schema, self._paths = schema, paths

    def decode_batch(self, raw: RawBatch) -> Decoded:
        assert raw.columns is not None, "the reader of Parquet gives columns"
        columns: list[pa.Array] = []
        faults: list[Fault] = []
        for field in self._schema:
            values = column_at(raw.columns, self._paths.get(field.name, (field.name,)))
            column, fault = read_as(field.name, values, field.type)
            columns.append(column)
            faults += fault
        return drop_rows(pa.table(columns, schema=self._schema), np.arange(len(raw.offsets), dtype=np.int64), faults)


DECODER = ParquetDecoder
