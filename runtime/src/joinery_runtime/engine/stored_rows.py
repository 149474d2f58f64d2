"""Rows of stored segments as commands read them: decoded, with the marks that came after they were written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import ROW, SEGMENT
from joinery_runtime.core.table.segment import Run, SegmentMeta, first_key
from joinery_runtime.state import migrations


def decoded(meta: SegmentMeta, blob: bytes) -> Run:
    target, chain = migrations.CURRENT_STATE_VERSION, migrations.MIGRATIONS
    return Run.view(from_blob(migrations.migrate(blob, meta.state_version, target, chain)))


def marked_in(marks: Sequence[pa.RecordBatch], segment: str) -> np.ndarray:
    """Row numbers of the segment that were marked after it was written."""
    mine = [batch.filter(_about(batch.column(SEGMENT), segment)).column(ROW).to_numpy() for batch in marks]
    return np.concatenate([np.empty(0, dtype=np.int64), *mine])


def _about(names: pa.Array, segment: str) -> pa.Array:
    """Which names are the segment's, the one that it has or one from before a migration."""
    same = [name for name in pc.unique(names).to_pylist() if first_key(name) == first_key(segment)]
    return pc.is_in(names, pa.array(same, pa.string()))


def flags(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """bool[n]: a column of the engine's; all false where rows of this part have none."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=bool)
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))
