"""Names and shapes of the columns that the engine adds to a user's rows.

A *prepared* batch and a segment have the same layout: the four columns below, then the stored user columns under
their own names (`$` cannot start a user column). The event-time column is not stored twice: it is rebuilt from TS.
"""

from __future__ import annotations

import pyarrow as pa

HASH = "$hash"  # uint64: the versioned key hash (rule V1)
TS = "$ts"  # int64: event time, milliseconds since the epoch
PARTITION = "$partition"  # int32: source partition
OFFSET = "$offset"  # int64: record offset in its partition (bytes from the start for files)

ENGINE_FIELDS: tuple[pa.Field, ...] = (
    pa.field(HASH, pa.uint64(), nullable=False),
    pa.field(TS, pa.int64(), nullable=False),
    pa.field(PARTITION, pa.int32(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
)
