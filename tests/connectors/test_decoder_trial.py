"""Records that end the process that reads them, and are found by another process that dies in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.connectors.trial import Tried
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded, Decoder, Guarded
from joinery_runtime.job import Input

MODEL = Input.model_validate(
    {
        "name": "in",
        "kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "t"},
        "format": "json",
        "schema": [{"name": "id", "type": "int64"}, {"name": "ts", "type": "int64"}],
        "eventTime": "ts",
    }
)
# A decoder that dies of a record, as one written in C may.
DIES = """
import os, signal
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.connectors.trial import serve

class Dies:
    def __init__(self, model):
        self._decoder = decoder_for(model)

    def decode_batch(self, raw):
        print("a library prints")
        if any(b"die" in value for value in raw.values.to_pylist()):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self._decoder.decode_batch(raw)

serve(Dies)
"""


def batch(*values: bytes) -> RawBatch:
    times = np.arange(len(values), dtype=np.int64)
    return RawBatch(
        PartitionRef("in", "t", 0), times + 100, pa.array(values, pa.binary()), timestamps=times.__getitem__
    )


def row(number: int, more: str = "") -> bytes:
    return f'{{"id": {number}, "ts": {number}{more}}}'.encode()


def tried(script: str, tmp_path: Path, decoder: Decoder | None = None) -> Tried:
    program = tmp_path / "other.py"
    program.write_text(script)
    return Tried(Guarded(MODEL, decoder or decoder_for(MODEL)), (sys.executable, str(program)))


def test_the_record_that_ends_a_process_is_bad_by_name_and_its_neighbours_are_rows(tmp_path: Path) -> None:
    decoder = tried(DIES, tmp_path)
    try:
        decoded = decoder.decode_batch(batch(row(0), row(1), row(2, ', "s": "die"'), row(3), b"no json"))
    finally:
        decoder.close()
    assert decoded.rows["id"].to_pylist() == [0, 1, 3]
    assert decoded.index.tolist() == [0, 1, 3]
    assert [bad.index for bad in decoded.bad] == [2, 4]
    assert decoded.bad[0].reason == "reading it ended the process (SIGSEGV) 2 times, and the job's own process before"


# What the kernel takes whatever it decodes, as where the limit of memory leaves no room for a second process.
DIES_OF_ANYTHING = """
import os, sys
(DIRECTORY / str(os.getpid())).touch()
source = sys.stdin.buffer
source.read(int.from_bytes(source.read(8)))
os.write(1, b"r")
source.read(8)
os.kill(os.getpid(), 9)
"""


def test_no_record_is_blamed_for_a_process_that_dies_whatever_it_decodes(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    directory = f"from pathlib import Path\nDIRECTORY = Path({str(started)!r})\n"
    decoder = tried(directory + DIES_OF_ANYTHING, tmp_path)
    try:
        for _ in range(2):
            decoded = decoder.decode_batch(batch(row(0), row(1), b"no json", row(3)))
            assert decoded.rows["id"].to_pylist() == [0, 1, 3]
            assert [bad.index for bad in decoded.bad] == [2]
            assert "ended the process" not in decoded.bad[0].reason
    finally:
        decoder.close()
    assert len(list(started.iterdir())) == 2, "one for the batch and one for none, and no more after that"


def test_where_there_can_be_no_other_process_nobody_is_blamed(tmp_path: Path) -> None:
    decoded = tried("raise SystemExit(3)", tmp_path).decode_batch(batch(row(0), row(1, ', "s": "die"')))
    assert (decoded.rows["id"].to_pylist(), decoded.bad) == ([0, 1], [])


def test_the_other_process_is_this_module() -> None:
    decoder = Tried(Guarded(MODEL, decoder_for(MODEL)))
    try:
        for _ in range(2):
            decoded = decoder.decode_batch(batch(row(0), row(1), b"{"))
            assert (decoded.rows["id"].to_pylist(), [bad.index for bad in decoded.bad]) == ([0, 1], [2])
        assert decoder._process is not None, "it has decoded both batches"
    finally:
        decoder.close()


def test_an_error_of_a_decoder_is_no_death(tmp_path: Path) -> None:
    class Fails:
        def decode_batch(self, raw: RawBatch) -> Decoded:
            raise ValueError("no")

    decoder = tried(DIES.replace("os.kill(os.getpid(), signal.SIGSEGV)", "raise ValueError"), tmp_path, Fails())
    try:
        decoded = decoder.decode_batch(batch(row(1, ', "s": "die"')))
    finally:
        decoder.close()
    assert decoded.bad[0].reason == pytest.approx("it cannot be read: ValueError: no")
