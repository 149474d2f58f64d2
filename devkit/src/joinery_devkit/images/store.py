"""buildah with a store of its own in the user's cache, which builds Dockerfiles without a daemon or a registry."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from joinery_devkit.kubernetes import packages
from joinery_runtime.errors import EnvironmentProblem

_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_DEBIAN_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_INSIDE = "/run/certificates.crt"
_LAST_LINES = 20


def require_programs() -> None:
    """Install missing programs. Raises EnvironmentProblem if that is impossible."""
    if os.geteuid() != 0:
        raise EnvironmentProblem(
            "The images cannot be built by this user",
            facts="debootstrap and chroot need root",
            todo="Run as root, or build images/*.Dockerfile with Docker",
        )
    packages.install(packages.IMAGE_PACKAGES)


@dataclass(frozen=True, slots=True)
class ImageStore:
    """Images, and the layers of their steps, in `folder`. Each is complete or absent, whatever interrupted a build."""

    folder: Path

    def build(self, dockerfile: Path, context: Path, log: Path, *options: str) -> str:
        """Build what is not built yet, and return the image's id. Raises EnvironmentProblem with the end of the
        log."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch, log.open("w") as output:
            identity = Path(scratch) / "id"
            command = [
                "build",
                "--layers",
                "--isolation=chroot",
                "--format=oci",
                "--pull=never",
                *_trust_options(),
                *options,
            ]
            command += [f"--file={dockerfile}", f"--iidfile={identity}", str(context)]
            done = subprocess.run(self._buildah_command(command), check=False, stdout=output, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                last_words = "\n".join(log.read_text().splitlines()[-_LAST_LINES:])
                raise EnvironmentProblem(
                    f"The image of {dockerfile.name} cannot be built",
                    facts=f"buildah ended with {done.returncode}:\n{last_words}",
                    todo=f"The whole log is {log}",
                )
            return identity.read_text().removeprefix("sha256:")

    def has(self, name: str) -> bool:
        return bool(self._ask_buildah(["images", "--quiet", "--filter", f"reference={name}"]).strip())

    def names(self, repository: str) -> list[str]:
        """Return the names, with tags, of the images of a repository such as localhost/joinery-debian."""
        return self._ask_buildah(
            ["images", "--filter", f"reference={repository}", "--format={{.Name}}:{{.Tag}}"]
        ).splitlines()

    def forget(self, name: str) -> None:
        """Take a name from its image, also if a build that was killed has left a container of it; `prune` removes the
        image."""
        self._ask_buildah(["rmi", "--force", name])

    def prune(self) -> None:
        """Remove the layers of all images that have no name and are not below an image with one. An image that a
        container uses stays until a later call."""
        command = self._buildah_command(["rmi", "--prune"])
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def export(self, image: str, target: Path) -> None:
        """Write an image as an OCI archive with compressed layers."""
        self._ask_buildah(["push", "--quiet", "--compression-format=zstd", image, f"oci-archive:{target}"])

    def settings(self, image: str) -> dict[str, Any]:
        """Return the image's settings for running it: User, Env, Entrypoint, Cmd, WorkingDir, Labels."""
        settings: dict[str, Any] = json.loads(self._ask_buildah(["inspect", "--type=image", image]))["OCIv1"]["config"]
        return settings

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the union of the image's layers as a folder."""
        container = self._ask_buildah(["from", "--pull-never", image]).strip()
        try:
            yield Path(self._ask_buildah(["mount", container]).strip())
        finally:
            self._ask_buildah(["rm", container])

    def _ask_buildah(self, arguments: Sequence[str]) -> str:
        return subprocess.run(self._buildah_command(arguments), check=True, stdout=subprocess.PIPE, text=True).stdout

    def _buildah_command(self, arguments: Sequence[str]) -> list[str]:
        # The state of mounts must not survive a restart of the machine.
        running = Path("/run/joinery-images") / sha256(str(self.folder).encode()).hexdigest()[:12]
        return ["buildah", f"--root={self.folder / 'storage'}", f"--runroot={running}", *arguments]


def _trust_options() -> list[str]:
    """Return the options that give this machine's certificates and package index to the steps that download."""
    certificates = next((path for name in _CERTIFICATES if (path := os.environ.get(name))), _DEBIAN_CERTIFICATES)
    index = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX")
    trusted = [] if index is None else ["--build-arg", f"PIP_INDEX_URL={index}"]
    if Path(certificates).is_file():
        trusted += ["--volume", f"{certificates}:{_INSIDE}:ro", "--build-arg", f"PIP_CERT={_INSIDE}"]
    return trusted
