"""Reads and decodes in a process of its own first, to find the record that ends a process (rule T8).

An error of a decoder is caught (`Guarded`); a crash in C, or a record that takes all memory, is not. So an epoch whose
drivers have died twice tries each batch out in another process. If that one dies, the batch is halved, down to the
record that ends it: a bad record by name. Only this process runs while it tries, and the kernel takes it first where
memory ends. So no record is blamed before a process like the one that died has decoded a batch of no records: where
that process dies as well, the limit of memory is to blame, and the batches are decoded without a trial.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from joinery_runtime.connectors.files.parquet import Death, ParquetReader, RowGroup, batches_of, opened_parquet
from joinery_runtime.connectors.history import HistoryDecoder, HistoryReader
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.connectors.source import SourceReader
from joinery_runtime.connectors.unions import UnionDecoder, UnionReader
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import Decoded, Decoder, Guarded, decode_halves
from joinery_runtime.job.model.inputs import Input

_COMMAND = (sys.executable, "-m", __name__)
_SECONDS = 300.0  # for one batch, or one row group of a Parquet file; a process that takes longer is ended
_TRIES = 2  # of a record or a row group alone, before it is blamed
_LENGTH = struct.Struct(">Q")
_READY, _DONE = b"r", b"d"
_STARTS = 60.0  # seconds


class Tried:
    """Decodes as `decoder` does, after a trial in another process, which ends with this object at the latest."""

    def __init__(self, decoder: Guarded, command: Sequence[str] = _COMMAND) -> None:
        self._decoder, self._command = decoder, command
        self._process: subprocess.Popen[bytes] | None = None
        self._dies_of_nothing = False

    def decode_batch(self, raw: RawBatch) -> Decoded:
        count = len(raw.offsets)
        death = None if self._dies_of_nothing else self._find_death(raw)
        if death is not None:
            self._dies_of_nothing = self._find_death(raw.take(np.arange(0))) is not None
        if death is None or self._dies_of_nothing:
            return self._decoder.decode_batch(raw)
        if count > 1:
            return decode_halves(self.decode_batch, raw)
        for _ in range(_TRIES - 1):
            if self._find_death(raw) is None:
                return self._decoder.decode_batch(raw)
        reason = f"reading it ended the process ({death}) {_TRIES} times, and the job's own process before"
        return self._decoder.decode_batch(replace(raw, refusal=reason))

    def close(self) -> None:
        if self._process is not None:
            _end_process(self._process)
            self._process = None

    def _find_death(self, raw: RawBatch) -> str | None:
        """Return how the other process died of the batch; None if it has decoded it, or if there can be no other
        process."""
        process = self._ensure_started()
        if process is None:
            return None
        picklable = raw
        if raw.timestamps is not None:
            picklable = replace(raw, timestamps=raw.timestamps(np.arange(len(raw.offsets))).__getitem__)
        with suppress(BrokenPipeError):
            _send_value(process, picklable)
        if _await_answer(process, _SECONDS) == _DONE:
            return None
        self.close()
        return name_of_death(process.returncode)

    def _ensure_started(self) -> subprocess.Popen[bytes] | None:
        if self._process is None:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=trial_environment()
            )
            self._process = process
            weakref.finalize(self, _end_process, process)
            with suppress(BrokenPipeError):
                _send_value(process, self._decoder.model)
            if _await_answer(process, _STARTS) != _READY:
                self.close()
        return self._process


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def with_trials(decoder: Decoder) -> Decoder:
    """Return a decoder of an input that tries each batch first. One that is not of an input stays as it is."""
    if isinstance(decoder, UnionDecoder):
        return decoder.within(lambda _, part: with_trials(part))
    if isinstance(decoder, HistoryDecoder):
        return decoder.within(with_trials)
    return Tried(decoder) if isinstance(decoder, Guarded) else decoder


def _send_value(process: subprocess.Popen[bytes], value: Any) -> None:
    assert process.stdin is not None, "it is a pipe"
    data = pickle.dumps(value)
    process.stdin.write(_LENGTH.pack(len(data)) + data)
    process.stdin.flush()


def _await_answer(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    assert process.stdout is not None, "it is a pipe"
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    return os.read(process.stdout.fileno(), 1) if readable else b""


def trial_environment() -> dict[str, str]:
    """Return the environment of a process that tries something: it finds the modules that this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def volunteer_for_oom_killer() -> None:
    """Have the kernel end this process first if memory runs out."""
    with suppress(OSError):  # where there is no such file, the kernel decides
        Path("/proc/self/oom_score_adj").write_text("1000")


def name_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def serve(make: Callable[[Input], Decoder] = decoder_for) -> None:
    """Run the other process: read the input's model and then batches from standard input, and answer each."""
    source, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    volunteer_for_oom_killer()
    model = pickle.loads(_receive_bytes(source))
    decoder = make(model)
    os.write(answers, _READY)
    while data := _receive_bytes(source):
        with suppress(Exception):  # an error is no death
            decoder.decode_batch(pickle.loads(data))
        os.write(answers, _DONE)


def _receive_bytes(source: Any) -> bytes:
    length = source.read(_LENGTH.size)
    data: bytes = source.read(_LENGTH.unpack(length)[0]) if length else b""
    return data


def read_carefully(reader: SourceReader, command: Sequence[str] = _COMMAND) -> SourceReader:
    """Return a reader of an input that tries each row group first. One that reads no Parquet stays as it is."""
    if isinstance(reader, UnionReader):
        return reader.within(lambda part: read_carefully(part, command))
    if isinstance(reader, HistoryReader):
        return HistoryReader(read_carefully(reader.files, command), reader.topics)
    return reader.after(_ParquetTrial(tuple(command))) if isinstance(reader, ParquetReader) else reader


@dataclass(frozen=True, slots=True)
class _ParquetTrial:
    """Reads a row group in another process first: a damaged page, say, may crash C."""

    command: tuple[str, ...]

    def __call__(self, path: str, group: RowGroup) -> Death | None:
        """How another process ends that reads the row group; None if it does not, or if it ends of nothing, too, as
        where memory ends: then the rows are not to blame."""
        death = self._find_death(path, group)
        for _ in range(_TRIES - 1):
            if death is None or self._find_death(path, None) is not None:
                return None
            death = self._find_death(path, group)
        return death

    def _find_death(self, path: str, group: RowGroup | None) -> Death | None:
        request = json.dumps(None if group is None else [group.number, group.batch_rows, list(group.columns)])
        with subprocess.Popen(
            [*self.command, path, request], stdout=subprocess.PIPE, text=True, env=trial_environment()
        ) as process:
            try:
                printed, _ = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                printed, _ = process.communicate()
        if process.returncode >= 0:  # an error that Python tells is met again by the job's own process
            return None
        return Death(sum(map(int, printed.split())), name_of_death(process.returncode))


def serve_parquet(path: str, request: str) -> Iterable[int]:
    """Yield the other process: reads what it is asked for. Yields how many rows each batch has."""
    volunteer_for_oom_killer()
    with opened_parquet(path) as file:
        if (group := json.loads(request)) is not None:
            for batch in batches_of(file, RowGroup(*group)):
                yield batch.num_rows


if __name__ == "__main__":
    if sys.argv[1:]:
        for rows in serve_parquet(*sys.argv[1:]):
            os.write(1, f"{rows}\n".encode())
    else:
        serve()
