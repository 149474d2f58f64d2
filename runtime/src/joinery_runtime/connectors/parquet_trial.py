"""Reads a row group of a Parquet file in a process of its own first, to find rows that end the process that reads them
(rule T8): a crash in C, say, of a page that is damaged. It is for epochs whose drivers have died twice (`trial`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joinery_runtime.connectors.decoder_trial import name_of_death, trial_environment, volunteer_for_oom_killer
from joinery_runtime.connectors.files.parquet import Death, ParquetReader, RowGroup, batches_of, opened_parquet
from joinery_runtime.connectors.history import HistoryReader
from joinery_runtime.connectors.source import SourceReader
from joinery_runtime.connectors.unions import UnionReader

_COMMAND = (sys.executable, "-m", __name__)
_SECONDS = 300.0  # for one row group
_TRIES = 2  # before the rows are blamed


def read_carefully(reader: SourceReader, command: Sequence[str] = _COMMAND) -> SourceReader:
    """A reader of an input that tries each row group first. One that reads no Parquet stays as it is."""
    if isinstance(reader, UnionReader):
        return reader.within(lambda part: read_carefully(part, command))
    if isinstance(reader, HistoryReader):
        return HistoryReader(read_carefully(reader.files, command), reader.topics)
    return reader.after(_Trial(tuple(command))) if isinstance(reader, ParquetReader) else reader


@dataclass(frozen=True, slots=True)
class _Trial:
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


def main(path: str, request: str) -> Iterable[int]:
    """The other process: reads what it is asked for. Yields how many rows each batch has."""
    volunteer_for_oom_killer()
    with opened_parquet(path) as file:
        if (group := json.loads(request)) is not None:
            for batch in batches_of(file, RowGroup(*group)):
                yield batch.num_rows


if __name__ == "__main__":
    for rows in main(*sys.argv[1:]):
        os.write(1, f"{rows}\n".encode())
