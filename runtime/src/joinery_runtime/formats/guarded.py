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
    positions = np.arange(len(raw.offsets), dtype=np.int64)
    first, second = np.split(positions, [len(positions) // 2])
    return _join_halves(decode(raw.take(first)).at(first), decode(raw.take(second)).at(second))


def _join_halves(first: Decoded, second: Decoded) -> Decoded:
    deleted = None
    if first.deleted is not None and second.deleted is not None:
        deleted = np.concatenate([first.deleted, second.deleted])
    passed = [*(first.passed or ()), *(second.passed or ())]
    return Decoded(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.index, second.index]),
        [*first.bad, *second.bad],
        deleted,
        Counter(first.dropped) + Counter(second.dropped),
        (min(passed), max(passed)) if passed else None,
        _join_unavailable(first, second),
        _left_out(first, second),
    )


def _left_out(first: Decoded, second: Decoded) -> LeftOut | None:
    parts = [part.left_out for part in (first, second) if part.left_out is not None]
    if not parts:
        return None
    return LeftOut(np.concatenate([part.times for part in parts]), np.concatenate([part.index for part in parts]))


def _join_unavailable(first: Decoded, second: Decoded) -> pa.Array | None:
    if first.unavailable is None and second.unavailable is None:
        return None
    parts = (first, second)
    return pa.concat_arrays(
        [pa.nulls(len(part.index), pa.string()) if part.unavailable is None else part.unavailable for part in parts]
    )
