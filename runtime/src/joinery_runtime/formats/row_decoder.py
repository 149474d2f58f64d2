"""The base of formats whose records are read one by one into flat JSON objects, which the JSON decoder then reads
(decisions 35 and 49)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.decoder import JsonDecoder
from joinery_runtime.formats.records import (
    NULL_VALUE,
    BadRecord,
    ByValue,
    Decoded,
    FormatDecoder,
    json_text,
    unreadable,
    with_bad,
)
from joinery_runtime.job.model.paths import Path


class RefusedRecord(Exception):
    """A record cannot be read. The text is the reason."""


class RowDecoder(ByValue, FormatDecoder):
    """Decodes records into rows of `schema`. `paths` maps columns to paths. Other columns are fields of the record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._columns = [(name, paths.get(name, (name,))) for name in schema.names]
        self._flat = JsonDecoder(schema)

    @abstractmethod
    def values_of(self, record: bytes) -> Mapping[str, Any]:
        """Reads the record's values by column, as `json_text` takes them. Raises RefusedRecord."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        flat: list[bytes] = []
        positions: list[int] = []
        bad: list[BadRecord] = []
        for position, record in enumerate(values.to_pylist()):
            try:
                if record is None:
                    raise RefusedRecord(NULL_VALUE)
                try:
                    text = self._text(record)
                except MemoryError:  # perhaps of another thread's doing
                    text = self._text(record)
                flat.append(text)
                positions.append(position)
            except RefusedRecord as refused:
                bad.append(BadRecord(position, str(refused)))
            except (JoineryError, OSError):  # of a registry that does not answer, or of the machine
                raise
            except Exception as error:  # whatever a record does to a library, it concerns this record only
                bad.append(BadRecord(position, unreadable(error)))
        decoded = self._flat.decode(pa.array(flat, pa.binary()))
        return with_bad(decoded.at(np.array(positions, np.int64)), bad)

    def _text(self, record: bytes) -> bytes:
        return json_text(self.values_of(record)).encode("utf-8", "surrogatepass")


def inside(value: Any, path: Path) -> Any:
    """The value at a path in Python dicts and lists; None if the path leads nowhere."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and step < len(value) else None
    return value
