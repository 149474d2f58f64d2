"""The images that a node needs before the first pod: the pause program and CoreDNS, from what is built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from joinery_devkit.images.archive import oci_archive
from joinery_devkit.kubernetes.binaries import COREDNS, go_command, program
from joinery_runtime.errors import EnvironmentProblem

PAUSE_IMAGE = "localhost/pause:1"
COREDNS_IMAGE = f"localhost/coredns:{COREDNS.version}"
_PAUSE = Path(__file__).with_name("pause") / "main.go"


def base_images(directory: Path) -> list[Path]:
    """Their archives, in `directory`."""
    pause, coredns = directory / "pause.tar", directory / "coredns.tar"
    with tempfile.TemporaryDirectory(dir=directory) as work:
        return [
            oci_archive(PAUSE_IMAGE, pause, [_layer(Path(work), _pause())], entrypoint=["/pause"]),
            oci_archive(COREDNS_IMAGE, coredns, [_layer(Path(work), program("coredns"))], entrypoint=["/coredns"]),
        ]


def _layer(work: Path, binary: Path) -> Path:
    folder = work / f"{binary.name}.layer"
    folder.mkdir(mode=0o755)
    shutil.copy(binary, folder / binary.name)
    return folder


def _pause() -> Path:
    """Built in a second, and kept beside CoreDNS."""
    target = COREDNS.folder / "pause"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=COREDNS.folder) as work:
            built = Path(work) / target.name
            command = [go_command(), "build", "-trimpath", "-ldflags=-s -w", "-o", str(built), str(_PAUSE)]
            environment = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": ""}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise EnvironmentProblem("The pause program cannot be built", facts=done.stderr.strip())
            built.rename(target)
    return target
