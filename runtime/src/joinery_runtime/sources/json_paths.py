"""Nested JSON records: columns whose values are inside of objects and arrays, by their paths.

A path that ends before its last step, at a scalar, at null, or at an object where it wants an array, leads nowhere: the
column is null. Of a name that occurs twice the first counts, as everywhere in JSON here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from joinery_runtime.job.model.paths import Path
from joinery_runtime.sources.json_faults import Explainer
from joinery_runtime.sources.json_judge import JsonJudge
from joinery_runtime.sources.json_texts import texts, tree
from joinery_runtime.sources.records import NULL_VALUE, BadRecord, ByValue, Decoded, with_bad


def is_nested(schema: pa.Schema, paths: Mapping[str, Path]) -> bool:
    """Whether a column of the schema is anything else than the record's field of its name."""
    return any(paths.get(name, (name,)) != (name,) for name in schema.names)


class NestedJudge(ByValue):
    """Decodes nested JSON objects into rows of `schema`: takes the wanted texts out of each record, one by one, and has
    `JsonJudge` decode flat objects that are made of them. `paths` are by column; others are fields of the record."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path]) -> None:
        self._root = tree([paths.get(name, (name,)) for name in schema.names])
        self._names = [json.dumps(name, ensure_ascii=False) for name in schema.names]
        self._text = [pa.types.is_string(each.type) for each in schema]
        self._judge = JsonJudge(schema)
        self._explainer = Explainer(pa.schema([]))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        flat: list[bytes] = []
        places: list[int] = []
        bad: list[BadRecord] = []
        for place, written in enumerate(values.to_pylist()):
            # A JSON string cannot hold a raw newline, so it is white space, or else an error.
            record = None if written is None else written.replace(b"\n", b" ")
            made = None if record is None else self._flat(record)
            if made is None:
                reason = NULL_VALUE if written is None else self._explainer.explain(written)
                bad.append(BadRecord(place, reason or "not readable as JSON"))
            else:
                flat.append(made)
                places.append(place)
        decoded = self._judge.decode(pa.array(flat, pa.binary()))
        return with_bad(decoded.at(np.array(places, np.int64)), bad)

    def _flat(self, record: bytes) -> bytes | None:
        """A flat object of the wanted texts; None where the record is no JSON object."""
        try:
            text = record.decode()
            found = texts(text, self._root)
        except (ValueError, RecursionError, IndexError):
            return None
        if found is None:
            return None
        fields = [f"{self._names[column]}:{self._written(column, value)}" for column, value in found.items()]
        return f"{{{','.join(fields)}}}".encode()

    def _written(self, column: int, value: str) -> str:
        """An object or an array in a string column is its own text."""
        return json.dumps(value, ensure_ascii=False) if self._text[column] and value[0] in "{[" else value
