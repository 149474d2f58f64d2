"""Recognises what a record is that is not what its input's format says, by its first bytes."""

from __future__ import annotations

from joinery_runtime.sources.records import varint

_OTHERS = {
    b"\x1f\x8b": "gzip inside of the value; let the producer use compression.type instead",
    b"\x78\x9c": "zlib inside of the value; let the producer use compression.type instead",
    b"\x28\xb5\x2f\xfd": "zstd inside of the value; let the producer use compression.type instead",
    b"Obj\x01": "an Avro container, which topics do not have; write records one by one",
    b"PAR1": "Parquet",
}
_MARKS = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
_TOLD = 8  # bytes of text without such a mark that tell
FRAME = 5  # bytes of Confluent's framing: zero, and the number of the schema


def looks_like(record: bytes) -> str | None:
    """What a record that is not what its input's format says is instead; None where that is not known."""
    for begins, what in _OTHERS.items():
        if record.startswith(begins):
            return what
    if record.startswith(_MARKS) or _alternates(record):
        return "UTF-16; let the producer write UTF-8"
    if record[:1] == b"\0" and len(record) > FRAME:
        number = int.from_bytes(record[1:FRAME])
        if record[FRAME : FRAME + 1] in (b"{", b"["):
            return f"Confluent JSON of schema {number}; name its schemaRegistry"
        kind = "Protobuf" if _may_be_protobuf(record[FRAME:]) else "Avro"
        return f"Confluent {kind} of schema {number}; write format: {kind.lower()} and its schemaRegistry"
    return None


def _alternates(record: bytes) -> bool:
    """Whether every second byte is a zero, as of text in UTF-16 that begins with letters of English or with digits.
    Lines of a file begin after half of a line break."""
    begins = record[:_TOLD]
    even, odd = begins[::2], begins[1::2]
    return len(begins) == _TOLD and ((not any(even) and all(odd)) or (not any(odd) and all(even)))


def _may_be_protobuf(framed: bytes) -> bool:
    """Whether the first message's mark (a zero) is followed by fields of Protobuf to the end. Avro that begins with a
    zero seldom is."""
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
