"""Documents of MongoDB in change events of Debezium: text of JSON, in which MongoDB's extended JSON has the types.

    {"after": "{\\"_id\\": {\\"$oid\\": \\"65f...\\"}, \\"amount\\": {\\"$numberLong\\": \\"7\\"}}", "op": "c"}

Numbers, times and object ids are read as the values that they wrap; what has no value of its own in JSON (NaN) is null.
A path may name the wrapper, as the document has it, or not: `_id.$oid` is `_id`. Other wrappers (`$binary`) are objects
as any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.job.model.paths import Path
from joinery_runtime.sources.records import ByValue, Decoded

_WRAPPERS = {"$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"}
# Inside of JSON's texts quotes are escaped, so that none of these patterns begins there.
_UNWRAPPED = (
    (r'\{\s*"\$number(?:Int|Long|Double|Decimal)"\s*:\s*"(-?[0-9][-+.0-9eE]*)"\s*\}', "$1"),
    (r'\{\s*"\$number(?:Double|Decimal)"\s*:\s*"[^"]*"\s*\}', "null"),
    (r'\{\s*"\$(?:oid|date)"\s*:\s*("[^"]*"|-?[0-9]+)\s*\}', "$1"),
)


Make = Callable[[pa.Schema, Mapping[str, Path]], ByValue]


class Documents:
    """Decodes documents into rows of `schema`, by paths from the document on. `make_json` makes a decoder of JSON."""

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path], make_json: Make) -> None:
        self._schema = schema
        inside = {name: tuple(step for step in path if step not in _WRAPPERS) for name, path in paths.items()}
        self._decoder = make_json(schema, {name: inside[name] or paths[name] for name in schema.names})

    @property
    def names(self) -> Sequence[str]:
        names: list[str] = self._schema.names
        return names

    def decode(self, written: pa.ChunkedArray) -> Decoded:
        """Rows of all of these texts. One that is no document gives a row of nulls."""
        present = np.flatnonzero(pc.fill_null(pc.starts_with(written, "{"), False).to_numpy())
        texts = pl.Series(written.take(pa.array(present)), dtype=pl.String)
        for pattern, value in _UNWRAPPED:
            texts = texts.str.replace_all(pattern, value)
        found = self._decoder.decode(texts.to_arrow().cast(pa.binary())).at(present)
        bad = [replace(record, reason=f"the document: {record.reason}") for record in found.bad]
        fine = np.setdiff1d(np.arange(len(written)), [record.index for record in bad])
        back = np.full(len(written), -1, np.int64)
        back[found.index] = np.arange(len(found.index))
        places = back[fine]
        return Decoded(found.rows.take(pa.array(places, mask=places < 0)), fine, bad)
