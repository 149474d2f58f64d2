"""The images that a node needs before the first pod: the pause program and CoreDNS, from what is built here."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from joinery_devkit.images.archive import oci_archive
from joinery_devkit.kubernetes.binaries import program

PAUSE_IMAGE, COREDNS_IMAGE = "localhost/pause:1", "localhost/coredns:1"


def base_images(directory: Path) -> list[Path]:
    """Their archives, in `directory`."""
    return [_image(PAUSE_IMAGE, "pause", directory), _image(COREDNS_IMAGE, "coredns", directory)]


def _image(image: str, name: str, directory: Path) -> Path:
    """The image that has one program in its root and starts it."""
    with tempfile.TemporaryDirectory(dir=directory) as work:
        layer = Path(work) / "layer"
        layer.mkdir(mode=0o755)
        shutil.copy(program(name), layer / name)
        return oci_archive(image, directory / f"{name}.tar", [layer], entrypoint=[f"/{name}"])
