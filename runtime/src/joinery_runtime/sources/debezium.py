"""Change events of Debezium: an envelope with the row before and after a change of a database, and what was done.

    {"op": "u", "before": {...}, "after": {...}, "source": {...}, "ts_ms": 1700000000000}

Rows that were created, read by a snapshot or updated (`c`, `r`, `u`) are the row after. A deletion (`d`) has the row
before, of which databases may log the key only. In a table a deletion deletes; in a stream, which has no deletions, it
is dropped and counted, as is the record without a value that follows each deletion for the sake of compaction.
Anything else (`t`, a table was emptied) is a bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.paths import Path
from joinery_runtime.sources.records import BadRecord, ByValue, Decoded, all_bad, with_bad

DELETE = "$delete"
_OP = "$op"
_BEFORE = "before."
_ROWS = pa.array(["c", "r", "u"])

Make = Callable[[pa.Schema, Mapping[str, Path]], ByValue]


class ChangeEvents(ByValue):
    """Decodes change events into rows of `schema`, which for a table has DELETE last. `make` makes a decoder of records
    into columns by their paths; the envelope may be inside of the record at one of the places `around`."""

    def __init__(self, schema: pa.Schema, model: Input, make: Make, around: Sequence[Path] = ((),)) -> None:
        self._schema, self._deletes = schema, DELETE in schema.names
        self._rows = pa.schema([field for field in schema if field.name != DELETE])
        of_envelope = {column.name: column.steps for column in model.columns if column.origin == "envelope"}
        of_row = {column.name: column.steps for column in model.columns if column.origin is None}
        key = model.table.key if model.table is not None else ()
        # A deletion has its key, and perhaps its event time, in the row before.
        self._before = [name for name in self._rows.names if name in {*key, model.event_time} and name in of_row]
        self._decoders = [make(*self._wire(place, of_envelope, of_row)) for place in around]

    def _wire(
        self, place: Path, of_envelope: Mapping[str, Path], of_row: Mapping[str, Path]
    ) -> tuple[pa.Schema, dict[str, Path]]:
        """The columns of an envelope at this place, and their paths."""
        paths: dict[str, Path] = {_OP: (*place, "op")}
        for name in self._rows.names:
            inside = of_envelope[name] if name in of_envelope else ("after", *of_row[name])
            paths[name] = (*place, *inside)
        before = self._before if self._deletes else []
        paths |= {_BEFORE + name: (*place, "before", *of_row[name]) for name in before}
        fields = [pa.field(_OP, pa.string()), *self._rows]
        return pa.schema([*fields, *(self._rows.field(name).with_name(_BEFORE + name) for name in before)]), paths

    def decode(self, values: pa.BinaryArray) -> Decoded:
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        events = self._events(values if len(present) == len(values) else values.take(pa.array(present)))
        decoded = self._changes(events).at(present)
        without_value = len(values) - len(present)
        dropped = {**decoded.dropped, **({"tombstone": without_value} if without_value else {})}
        return Decoded(decoded.rows, decoded.index, decoded.bad, dropped=dropped)

    def _events(self, values: pa.BinaryArray) -> Decoded:
        """By the first decoder, and what has no envelope there by the next."""
        first, *others = self._decoders
        found = first.decode(values)
        for number, other in enumerate(others, start=1):
            without = found.rows[_OP].is_null().to_numpy(zero_copy_only=False)
            if not without.any():
                break
            places = found.index[without]
            again = other.decode(values.take(pa.array(places))).at(places)
            if without.all():  # the topic's form, most likely: begin with it
                self._decoders.insert(0, self._decoders.pop(number))
            rows = pa.concat_tables([found.rows.filter(pa.array(~without)), again.rows])
            index = np.concatenate([found.index[~without], again.index])
            order = np.argsort(index, kind="stable")
            found = with_bad(Decoded(rows.take(pa.array(order)), index[order], found.bad), again.bad)
        return found

    def _changes(self, events: Decoded) -> Decoded:
        op = events.rows[_OP]
        row = pc.fill_null(pc.is_in(op, _ROWS), False).to_numpy()
        deletion = pc.fill_null(pc.equal(op, "d"), False).to_numpy()
        bad: list[BadRecord] = []
        for place in np.flatnonzero(~row & ~deletion).tolist():
            done = op[place].as_py()
            reason = "it has no op" if done is None else f"its op {done!r} changes no row"
            bad += all_bad(events.index[place : place + 1], f"not a change of a row by Debezium: {reason}")
        kept = row | deletion if self._deletes else row
        found = events.rows.filter(pa.array(kept))
        deleted = pa.array(deletion[kept])
        columns = {name: self._column(found, name, deleted) for name in self._rows.names}
        if self._deletes:
            columns[DELETE] = deleted
        rows = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        dropped = {} if self._deletes or not deletion.any() else {"deletion": int(deletion.sum())}
        return with_bad(Decoded(rows, events.index[kept], events.bad, dropped=dropped), bad)

    def _column(self, found: pa.Table, name: str, deleted: pa.BooleanArray) -> pa.ChunkedArray:
        if not self._deletes or name not in self._before:
            return found[name]
        return pc.if_else(deleted, found[_BEFORE + name], found[name])
