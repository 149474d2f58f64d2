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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

# Spark makes zips of an image's files, and a zip cannot hold a time before 1980.
MODIFIED = 315_619_200
MEDIA = "application/vnd.oci.image"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOTHING: Mapping[str, str] = MappingProxyType({})


class Blob(NamedTuple):
    """One content-addressed part of an image; its size is in bytes."""

    path: Path
    digest: str
    size: int


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

    `layers` are folders and uncompressed layer tars, the lowest first. Owners and modes in a folder stay, times are
    not. PATH is set unless `env` sets it.
    """
    settings = {
        "Entrypoint": list(entrypoint),
        "Cmd": list(cmd),
        "Env": [f"{key}={value}" for key, value in {"PATH": PATH, **env}.items()],
        "User": user,
        "WorkingDir": workdir,
        "Labels": dict(labels),
    }
    processor = os.uname().machine
    config: dict[str, Any] = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(processor, processor),
        "os": "linux",
        "config": {key: value for key, value in settings.items() if value},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    with _new_archive(target) as (scratch, tar):
        _add_layers(tar, name, config, [], _layer_blobs(layers, scratch))
    return target


def derived(archive: Path, target: Path, name: str, layers: Sequence[Path] = ()) -> Path:
    """Write the one image in `archive`, whatever tool made it, as `name` to `target`, with `layers` on top."""
    with tarfile.open(archive) as source, _new_archive(target) as (scratch, tar):
        (entry,) = _read_json(source, "index.json")["manifests"]
        manifest = _read_json(source, _blob_name(entry["digest"]))
        config = _read_json(source, _blob_name(manifest["config"]["digest"]))
        below = manifest["layers"]
        for digest, size in {layer["digest"]: layer["size"] for layer in below}.items():
            _add_file(tar, _blob_name(digest), _open_member(source, _blob_name(digest)), size)
        _add_layers(tar, name, config, below, _layer_blobs(layers, scratch))
    return target


def folder_tar(folder: Path, target: Path) -> Path:
    """Pack `folder` as a layer tar: owners by number, sorted, always with the same bytes."""
    command = ["tar", "--numeric-owner", "--sort=name", f"--mtime=@{MODIFIED}", "-C", str(folder)]
    subprocess.run([*command, "-cf", str(target), "."], check=True)
    return target


@contextmanager
def _new_archive(target: Path) -> Iterator[tuple[Path, tarfile.TarFile]]:
    """Yield a folder for scratch files, and the tar that becomes `target` if the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        with tarfile.open(Path(folder, "archive"), "w") as tar:
            yield Path(folder), tar
        Path(folder, "archive").replace(target)


def _layer_blobs(layers: Iterable[Path], scratch: Path) -> list[Blob]:
    tars = (
        folder_tar(layer, scratch / f"{number}.tar") if layer.is_dir() else layer for number, layer in enumerate(layers)
    )
    blobs = []
    for path in tars:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            blobs.append(Blob(path, digest, os.fstat(file.fileno()).st_size))
    return blobs


def _add_layers(
    tar: tarfile.TarFile, name: str, config: dict[str, Any], below: Sequence[Mapping[str, Any]], tops: Sequence[Blob]
) -> None:
    """Add the layers `tops`, above the layers `below`, which are already in the tar, and what describes the image."""
    for top in {top.digest: top for top in tops}.values():
        with top.path.open("rb") as file:
            _add_file(tar, _blob_name(f"sha256:{top.digest}"), file, top.size)
    added = [{"mediaType": f"{MEDIA}.layer.v1.tar", "digest": f"sha256:{top.digest}", "size": top.size} for top in tops]
    config["rootfs"]["diff_ids"] += [layer["digest"] for layer in added]
    config.setdefault("history", []).extend({"created_by": "joinery_devkit.images.archive"} for _ in added)
    settings = _put_json(tar, "config", config)
    manifest = {"schemaVersion": 2, "mediaType": f"{MEDIA}.manifest.v1+json", "config": settings}
    entry = _put_json(tar, "manifest", {**manifest, "layers": [*below, *added]})
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry |= {"platform": {key: config[key] for key in ("architecture", "os")}, "annotations": names}
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [entry]}
    for file_name, value in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        content = json.dumps(value, sort_keys=True).encode()
        _add_file(tar, file_name, io.BytesIO(content), len(content))


def _put_json(tar: tarfile.TarFile, kind: str, value: object) -> dict[str, Any]:
    """Add a blob and return its descriptor."""
    content = json.dumps(value, sort_keys=True).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    _add_file(tar, _blob_name(digest), io.BytesIO(content), len(content))
    return {"mediaType": f"{MEDIA}.{kind}.v1+json", "digest": digest, "size": len(content)}


def _add_file(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, MODIFIED
    tar.addfile(entry, content)


def _read_json(source: tarfile.TarFile, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.load(_open_member(source, name))
    return value


def _open_member(source: tarfile.TarFile, name: str) -> IO[bytes]:
    file = source.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file in {source.name!r}")
    return file


def _blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
