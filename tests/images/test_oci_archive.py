"""The image archives: the OCI image layout, readable by what knows only that."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from joinery_devkit.images.archive import derived, folder_tar, oci_archive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "layer" / "opt").mkdir(parents=True)
    (tmp_path / "layer" / "opt" / "greeting").write_text("hello")
    return tmp_path / "layer"


class Archive:
    """An archive, read by the rules of the image layout: every blob is found and checked by its digest."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            self.files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
        self.entry = json.loads(self.files["index.json"])["manifests"][0]
        self.manifest = json.loads(self.blob(self.entry))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers = [self.blob(layer) for layer in self.manifest["layers"]]

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        algorithm, digest = descriptor["digest"].split(":")
        content = self.files[f"blobs/{algorithm}/{digest}"]
        assert hashlib.new(algorithm, content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        return content


def test_an_archive_holds_the_layers_in_order_and_the_settings(folder: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "note").write_text("top")
    lower = folder_tar(folder, tmp_path / "lower.tar")

    path = oci_archive(
        "localhost/greeter:1",
        tmp_path / "out" / "greeter.tar",
        [lower, upper],
        entrypoint=["/bin/cat"],
        cmd=["/opt/greeting"],
        env={"TONE": "kind"},
        user="185",
        workdir="/opt",
        labels={"kind": "test"},
    )

    archive = Archive(path)
    assert archive.layers[0] == lower.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive.layers[1])) as layer:
        assert layer.getnames() == [".", "./note"]
    assert archive.config["rootfs"]["diff_ids"] == [layer["digest"] for layer in archive.manifest["layers"]]
    settings = archive.config["config"]
    assert settings["Entrypoint"] == ["/bin/cat"]
    assert settings["Cmd"] == ["/opt/greeting"]
    assert settings["User"] == "185"
    assert settings["WorkingDir"] == "/opt"
    assert settings["Labels"] == {"kind": "test"}
    assert "TONE=kind" in settings["Env"]
    assert any(entry.startswith("PATH=/") for entry in settings["Env"])
    assert archive.entry["annotations"]["io.containerd.image.name"] == "localhost/greeter:1"
    assert json.loads(archive.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}


def test_the_same_layers_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = oci_archive("localhost/greeter:1", tmp_path / "first.tar", [folder])
    (folder / "opt" / "greeting").touch()
    second = oci_archive("localhost/greeter:1", tmp_path / "second.tar", [folder, folder])

    assert folder_tar(folder, tmp_path / "again.tar").read_bytes() == Archive(first).layers[0]
    assert Archive(second).layers == Archive(first).layers * 2
    assert len(Archive(second).files) == len(Archive(first).files), "a layer that is there twice is stored once"


def test_a_failed_archive_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        oci_archive("localhost/greeter:1", tmp_path / "out" / "greeter.tar", [folder, tmp_path / "no-such-layer.tar"])

    assert list((tmp_path / "out").iterdir()) == []


def test_a_derived_image_has_a_further_layer_and_keeps_the_rest(folder: Path, tmp_path: Path) -> None:
    base = oci_archive("localhost/greeter:1", tmp_path / "base.tar", [folder], entrypoint=["/bin/cat"], user="185")
    top = tmp_path / "top"
    top.mkdir()
    (top / "note").write_text("more")

    path = derived(base, tmp_path / "derived.tar", "localhost/greeter:2", [top])

    before, after = Archive(base), Archive(path)
    assert after.layers == [*before.layers, folder_tar(top, tmp_path / "top.tar").read_bytes()]
    assert after.config["config"] == before.config["config"]
    assert after.config["rootfs"]["diff_ids"][:-1] == before.config["rootfs"]["diff_ids"]
    assert len(after.config["history"]) == len(after.layers)
    assert after.entry["annotations"]["io.containerd.image.name"] == "localhost/greeter:2"
