"""Recognises by its first bytes what a record is, if it is not in its input's format."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.formats.records import varint

_OTHERS = {
    b"\x1f\x8b": "gzip inside of the value; let the producer use compression.type instead",
    b"\x78\x9c": "zlib inside of the value; let the producer use compression.type instead",
    b"\x28\xb5\x2f\xfd": "zstd inside of the value; let the producer use compression.type instead",
    b"Obj\x01": "an Avro container, which topics do not have; write records one by one",
    b"PAR1": "Parquet",
}
_BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
_TOLD = 8  # how many first bytes identify UTF-16 without its byte order
FRAME = 5  # bytes of Confluent's framing: a zero, and the schema's number


def is_framed(values: pa.BinaryArray) -> pa.BooleanArray:
    """Which values may begin with Confluent's framing."""
    long = pc.greater_equal(pc.binary_length(values), FRAME)
    return pc.fill_null(pc.and_(pc.starts_with(values, "\0"), long), False)


def looks_like(record: bytes) -> str | None:
    """Says what a record is that is not in its input's format; None if that is not known."""
    for magic, description in _OTHERS.items():
        if record.startswith(magic):
            return description
    # Every second byte is zero in UTF-16 text that begins with ASCII letters or digits. The zeros may come first or
    # second, because lines of a file begin after half of a line break.
    begins = record[:_TOLD]
    even, odd = begins[::2], begins[1::2]
    has_zeros = (not any(even) and all(odd)) or (not any(odd) and all(even))
    if record.startswith(_BYTE_ORDERS) or (len(begins) == _TOLD and has_zeros):
        return "UTF-16; let the producer write UTF-8"
    if record[:1] == b"\0" and len(record) > FRAME:
        number = int.from_bytes(record[1:FRAME])
        if record[FRAME : FRAME + 1] in (b"{", b"["):
            return f"Confluent JSON of schema {number}; name its schemaRegistry"
        kind = "Protobuf" if _may_be_protobuf(record[FRAME:]) else "Avro"
        return f"Confluent {kind} of schema {number}; write format: {kind.lower()} and its schemaRegistry"
    return None


def _may_be_protobuf(framed: bytes) -> bool:
    """Whether the first message's index (a zero) is followed by Protobuf fields up to the end. This is seldom true of
    Avro that begins with a zero."""
    at, size = 1, len(framed)
    try:
        while at < size:
            tag, at = varint(framed, at)
            match tag & 7:
                case 0:
                    _, at = varint(framed, at)
                case 1:
                    at += 8
                case 2:
                    length, at = varint(framed, at)
                    at += length
                case 5:
                    at += 4
                case _:
                    return False
            if tag < 8:  # field 0
                return False
    except ValueError:
        return False
    return framed[0] == 0 and at == size and size > 1
