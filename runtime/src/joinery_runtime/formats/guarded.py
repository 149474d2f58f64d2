"""The boundary around decoding: whatever a record does to a decoder, only this record is bad (rule T8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import BadRecord, Decoded, Decoder, LeftOut, all_bad, unreadable
from joinery_runtime.job.model.inputs import Input


class Guarded:
    """Decodes as `decoder` does what `model` reads. Where that fails with an error that is not of the job or its
    environment, halves the batch until the record that makes it fail is alone, and makes it a bad record."""

    def __init__(self, model: Input, decoder: Decoder) -> None:
        self.model, self._decoder = model, decoder
        self._schema, self._deletes = arrow_schema(model.columns), model.table is not None

    def decode_batch(self, raw: RawBatch) -> Decoded:
        count = len(raw.offsets)
        if raw.refusal is not None:
            return self._all_bad(all_bad(np.arange(count, dtype=np.int64), raw.refusal))
        try:
            try:
                return self._decoder.decode_batch(raw)
            except MemoryError:  # perhaps of another thread's doing: a record alone gets a second chance
                if count > 1:
                    raise
                return self._decoder.decode_batch(raw)
        except (JoineryError, OSError):
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            if count <= 1:
                return self._all_bad(all_bad(np.arange(count, dtype=np.int64), unreadable(error)))
        return halves(self.decode_batch, raw)

    def _all_bad(self, bad: list[BadRecord]) -> Decoded:
        nothing = np.empty(0, np.int64)
        return Decoded(self._schema.empty_table(), nothing, bad, np.empty(0, np.bool_) if self._deletes else None)


def halves(decode: Callable[[RawBatch], Decoded], raw: RawBatch) -> Decoded:
    """Decodes the halves of a batch of several records one after the other."""
    count = len(raw.offsets)
    first_positions, second_positions = np.split(np.arange(count, dtype=np.int64), [count // 2])
    first = decode(raw.take(first_positions)).at(first_positions)
    second = decode(raw.take(second_positions)).at(second_positions)
    deleted = unavailable = left_out = None
    if first.deleted is not None and second.deleted is not None:
        deleted = np.concatenate([first.deleted, second.deleted])
    if first.unavailable is not None or second.unavailable is not None:
        unavailable = pa.concat_arrays(
            [
                pa.nulls(len(half.index), pa.string()) if half.unavailable is None else half.unavailable
                for half in (first, second)
            ]
        )
    events = [half.left_out for half in (first, second) if half.left_out is not None]
    if events:
        left_out = LeftOut(
            np.concatenate([part.times for part in events]), np.concatenate([part.index for part in events])
        )
    passed = [*(first.passed or ()), *(second.passed or ())]
    return Decoded(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.index, second.index]),
        [*first.bad, *second.bad],
        deleted,
        Counter(first.dropped) + Counter(second.dropped),
        (min(passed), max(passed)) if passed else None,
        unavailable,
        left_out,
    )
