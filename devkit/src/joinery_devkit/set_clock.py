"""A wall clock that a test sets while a process runs, as on a machine whose clock is set."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from joinery_devkit.kubernetes import packages

_SOURCE = Path(__file__).with_name("set_clock.c")


class SetClock:
    """The clock of processes that are started with `environment`. Their monotonic clocks do not change."""

    def __init__(self, folder: Path) -> None:
        packages.install(packages.COMPILER)
        self._offset, library = folder / "clock-offset", folder / "set_clock.so"
        self.advance(0)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, _SOURCE, "-ldl"], check=True
        )
        self.environment = {"LD_PRELOAD": str(library), "JOINERY_CLOCK_OFFSET": str(self._offset)}

    def advance(self, seconds: float) -> None:
        """Set the clock to so many seconds after the machine's."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("q", round(seconds * 1e9)))
