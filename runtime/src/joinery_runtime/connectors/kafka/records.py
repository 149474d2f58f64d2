"""Turns rows into Kafka records: all values in one buffer, all keys in another, so that no record is a Python object.

A value is the row as JSON, Avro or Protobuf; columns may also be headers. The record key is the plain text if `key`
names a single string column, else a JSON object of the key columns. A record has no key if `key` is empty, or if its
single string column is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joinery_runtime.formats.json.encode import PLAIN, JsonStyle, as_texts, json_lines

Headers = list[tuple[str, str | bytes]]

_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in one buffer. Text i begins at `starts[i]` and has `sizes[i]` bytes; a size of -1 means null."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of_lines(cls, lines: bytes) -> Texts:
        """Split lines. Each ends with a newline. JSON escapes newlines inside a text."""
        data = np.frombuffer(lines, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        starts = np.concatenate(([0], ends + 1))[:-1]
        return cls(data, starts, ends - starts)

    @classmethod
    def of_list(cls, texts: Sequence[bytes]) -> Texts:
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        return cls(np.frombuffer(b"".join(texts), np.uint8), np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def of_column(cls, column: pa.Array) -> Texts:
        """Take the texts of a column of strings or bytes."""
        _, offsets, data = column.buffers()
        if offsets is None:
            return cls.of_list([])
        ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
        sizes = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, np.diff(ends))
        return cls(np.frombuffer(data or b"", np.uint8), ends[:-1], sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def to_pylist(self, start: int, end: int) -> list[bytes | None]:
        """Return texts `start` to `end` (exclusive)."""
        data, starts, sizes = self.data.data, self.starts[start:end].tolist(), self.sizes[start:end].tolist()
        return [None if size < 0 else bytes(data[at : at + size]) for at, size in zip(starts, sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class Records:
    """Records to write. `keys` is None if no record has a key, `headers` if none has a header."""

    values: Texts
    keys: Texts | None = None
    headers: Sequence[Headers] | None = None

    @classmethod
    def of(
        cls,
        rows: pa.Table | pa.RecordBatch,
        key: Sequence[str],
        headers: Mapping[str, str] = MappingProxyType({}),
        style: JsonStyle = PLAIN,
        values: Sequence[bytes] | Texts | None = None,
    ) -> Records:
        """Make one record per row, with these values, or with the rows as JSON."""
        if values is None:
            texts = Texts.of_lines(json_lines(rows, style))
        else:
            texts = values if isinstance(values, Texts) else Texts.of_list(values)
        keys = None
        if key:
            if len(key) == 1 and pa.types.is_string(rows.schema.field(key[0]).type):
                column = rows[key[0]]
                keys = Texts.of_column(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
            else:
                keys = Texts.of_lines(json_lines(rows.select(list(key)), style))
        if not headers:
            return cls(texts, keys)
        columns = zip(*(as_texts(rows, column, style) for column in headers.values()), strict=True)
        named = (zip(headers, values_of_row, strict=True) for values_of_row in columns)
        return cls(texts, keys, [[(name, value) for name, value in row if value is not None] for row in named])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """int64[n]: the bytes of each record's value, key and headers."""
        sizes: npt.NDArray[np.int64] = self.values.sizes.clip(0)
        if self.keys is not None:
            sizes = sizes + self.keys.sizes.clip(0)
        if self.headers is not None:
            sizes = sizes + np.array([sum(len(name) + len(text) for name, text in row) for row in self.headers])
        return sizes

    def only(self, row: int) -> Records:
        """Return a copy of one of the records."""
        value, key = (None if texts is None else texts.to_pylist(row, row + 1)[0] for texts in (self.values, self.keys))
        return Records(
            Texts.of_list([value or b""]),
            None if key is None else Texts.of_list([key]),
            None if self.headers is None else [self.headers[row]],
        )

    def messages(self, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        """Return records `start` to `end` (exclusive), as Python's client takes them."""
        end = len(self) if end is None else end
        messages: list[dict[str, Any]] = [{"value": value} for value in self.values.to_pylist(start, end)]
        if self.keys is not None:
            for message, key in zip(messages, self.keys.to_pylist(start, end), strict=True):
                message["key"] = key
        if self.headers is not None:
            for message, headers in zip(messages, self.headers[start:end], strict=True):
                message["headers"] = headers
        return messages
