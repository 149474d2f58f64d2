"""OCI image archives without a registry, a Docker daemon or root: folders and layer tars in, one file out.

`ctr images import`, `kind load image-archive`, `skopeo copy oci-archive:...` and `docker load` (25 or newer) read it.
The same layers and settings always give the same bytes, and so the same image id.
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

# A zip made from an image's files, as Spark does, takes no time before 1980.
MODIFIED = 315_619_200
MEDIA = "application/vnd.oci.image"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOTHING: Mapping[str, str] = MappingProxyType({})


class Blob(NamedTuple):
    """One content-addressed part of an image: where it is, its sha256 and its size in bytes."""

    content: Path | bytes
    digest: str
    size: int

    def descriptor(self, kind: str) -> dict[str, Any]:
        return {"mediaType": f"{MEDIA}.{kind}", "digest": f"sha256:{self.digest}", "size": self.size}


def oci_archive(
    name: str,
    target: Path,
    layers: Sequence[Path],
    *,
    entrypoint: Sequence[str] = (),
    cmd: Sequence[str] = (),
    env: Mapping[str, str] = NOTHING,
    user: str = "",
    workdir: str = "/",
    labels: Mapping[str, str] = NOTHING,
) -> Path:
    """Write the image `name` (with its tag) to the file `target` and return it; it appears whole or not at all.

    `layers` are folders and uncompressed layer tars, the lowest first; a folder's owners and modes are taken as they
    are, its times are not. PATH is set unless `env` does.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        scratch = Path(folder)
        tars = [_as_tar(layer, scratch / f"{number}.tar") for number, layer in enumerate(layers)]
        blobs = [_file_blob(tar) for tar in tars]
        settings = {
            "Entrypoint": list(entrypoint),
            "Cmd": list(cmd),
            "Env": [f"{key}={value}" for key, value in {"PATH": PATH, **env}.items()],
            "User": user,
            "WorkingDir": workdir,
            "Labels": dict(labels),
        }
        part = scratch / "archive"
        _write(part, name, blobs, {key: value for key, value in settings.items() if value})
        part.replace(target)
    return target


def folder_tar(folder: Path, target: Path) -> Path:
    """Pack `folder` as a layer tar: owners by number, sorted, every time the same."""
    command = ["tar", "--numeric-owner", "--sort=name", f"--mtime=@{MODIFIED}", "-C", str(folder)]
    subprocess.run([*command, "-cf", str(target), "."], check=True)
    return target


def _as_tar(layer: Path, scratch: Path) -> Path:
    return folder_tar(layer, scratch) if layer.is_dir() else layer


def _file_blob(path: Path) -> Blob:
    with path.open("rb") as file:
        return Blob(path, hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def _json_blob(value: object) -> Blob:
    content = json.dumps(value, sort_keys=True).encode()
    return Blob(content, hashlib.sha256(content).hexdigest(), len(content))


def _write(archive: Path, name: str, layers: Sequence[Blob], settings: Mapping[str, object]) -> None:
    platform = {"architecture": _architecture(), "os": "linux"}
    diff_ids = [f"sha256:{layer.digest}" for layer in layers]
    config = _json_blob({**platform, "config": settings, "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    manifest = _json_blob(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": config.descriptor("config.v1+json"),
            "layers": [layer.descriptor("layer.v1.tar") for layer in layers],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {**manifest.descriptor("manifest.v1+json"), "platform": platform, "annotations": names}
    index = _json_blob({"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [entry]})
    with tarfile.open(archive, "w") as tar:
        _put(tar, "oci-layout", _json_blob({"imageLayoutVersion": "1.0.0"}))
        _put(tar, "index.json", index)
        for blob in {blob.digest: blob for blob in (config, manifest, *layers)}.values():
            _put(tar, f"blobs/sha256/{blob.digest}", blob)


def _put(tar: tarfile.TarFile, name: str, blob: Blob) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = blob.size, 0o644, MODIFIED
    with blob.content.open("rb") if isinstance(blob.content, Path) else io.BytesIO(blob.content) as file:
        tar.addfile(entry, file)


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
