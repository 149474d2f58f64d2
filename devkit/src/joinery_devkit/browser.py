"""A headless Chromium: shows a page after its scripts have run, as HTML elements or as a picture."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from joinery_runtime.errors import EnvironmentProblem

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SETTLED_MS = 6000  # of the page's virtual time, which runs ahead of the clock
_TIMEOUT_S = 50.0


def elements(url: str, *, width: int = 1200) -> str:
    """Return the page as HTML, laid out for a window of so many CSS pixels, at least 500. Raises EnvironmentProblem
    without a browser."""
    return _run("--dump-dom", f"--window-size={width},1000", "--hide-scrollbars", url)


def picture(url: str, target: Path, *, width: int, height: int, dark: bool = False) -> None:
    """Write a PNG of the page's upper part; sizes in CSS pixels."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(f"--screenshot={target}", f"--window-size={width},{height}", "--hide-scrollbars", scheme, url)


def _run(*arguments: str) -> str:
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise EnvironmentProblem(
            "There is no browser for the tests of the job's page",
            facts=f"none of {', '.join(_NAMES)} is in PATH",
            todo="Install one (Debian and Ubuntu: apt-get install chromium)",
        )
    with TemporaryDirectory(prefix="joinery-browser-") as profile:
        # Chromium's sandbox does not start as root; the page comes from this machine and this repository.
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += [f"--virtual-time-budget={_SETTLED_MS}", *arguments]
        environment = {**os.environ, "TZ": "UTC", "LANG": "C.UTF-8"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
    if done.returncode != 0:
        raise EnvironmentProblem("The browser failed", facts=done.stderr[-2000:], todo=f"Run it: {' '.join(command)}")
    return done.stdout
