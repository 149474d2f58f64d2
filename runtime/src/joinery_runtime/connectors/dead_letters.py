"""Dead letters (rule T8): records that cannot be used, as rows for any sink."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("input", pa.string()),
        pa.field("topic", pa.string()),  # the path, if the input is a file
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),  # bytes in a file of lines, the row's number in Parquet
        pa.field("reason", pa.string()),
        pa.field("value", pa.binary()),  # the original record (base64 in JSON); null if it had no value
        pa.field("text", pa.string()),  # the same for people; null if it is not UTF-8, or longer than LONGEST_TEXT
    ]
)
LONGEST_TEXT = 65_536  # bytes: together with the value, a longer text could make the record too large for its topic


def dead_letter_rows(
    *,
    input_name: str,
    topic: str,
    partition: int,
    offsets: Sequence[int],
    reasons: Sequence[str],
    values: pa.BinaryArray,
) -> pa.RecordBatch:
    """Makes rows of `DEAD_LETTER_SCHEMA` for records of one partition. `offsets`, `reasons` and `values` correspond."""
    count = len(offsets)
    columns = [
        pa.repeat(pa.scalar(input_name, pa.string()), count),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(reasons, pa.string()),
        values,
        pa.array(map(_decode_text, values.to_pylist()), pa.string()),
    ]
    return pa.record_batch(columns, schema=DEAD_LETTER_SCHEMA)


def _decode_text(value: bytes | None) -> str | None:
    if value is None or len(value) > LONGEST_TEXT:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
