"""The files of a release."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from joinery_devkit import release
from joinery_devkit.matrix import PYTHONS
from joinery_runtime.errors import EnvironmentProblem


def test_the_parts_have_one_version() -> None:
    named = release.versions(release.ROOT)
    assert len(named) == 4
    assert release.one_version(named)
    with pytest.raises(EnvironmentProblem, match=r"9\.9\.9 in Chart\.yaml appVersion"):
        release.one_version({**named, "Chart.yaml appVersion": "9.9.9"})


@pytest.mark.services
def test_wheels_say_what_they_are_the_chart_has_its_definitions_and_sums_are_right(tmp_path: Path) -> None:
    """`services` for Helm, which they bring along."""
    folder, version = tmp_path / "release", release.one_version(release.versions(release.ROOT))
    release.build(folder, version)
    release.write_sums(folder, None)
    for part in release.SHIPPED:
        wheel = folder / f"joinery_{part}-{version}-py3-none-any.whl"
        decoded = zipfile.ZipFile(wheel).read(f"joinery_{part}-{version}.dist-info/METADATA").decode()
        metadata = email.message_from_string(decoded)
        valid = Metadata.from_email(decoded, validate=True)
        assert valid.description_content_type == "text/markdown"
        assert {f"Programming Language :: Python :: {python}" for python in PYTHONS} <= {*(valid.classifiers or [])}
        assert str(valid.requires_python) == f">={PYTHONS[0]}"
        assert metadata["License-Expression"] == "Apache-2.0"
        licence = zipfile.ZipFile(wheel).read(f"joinery_{part}-{version}.dist-info/licenses/LICENSE")
        assert licence == (release.ROOT / "LICENSE").read_bytes()
        assert "pip install" in str(metadata.get_payload())
        listed = json.loads((folder / f"joinery-{part}-{version}.cdx.json").read_text())
        assert {"pydantic", "sqlglot"} <= {component["name"] for component in listed["components"]}
        assert all(component["version"] for component in listed["components"])
    with tarfile.open(folder / f"joinery-{version}.tgz") as chart:
        assert "joinery/files/crds/joinery.dev_savepoints.yaml" in chart.getnames()
    subprocess.run(["sha256sum", "--check", "--strict", release.SUMS], cwd=folder, check=True)
    assert len((folder / release.SUMS).read_text().splitlines()) == len(list(folder.iterdir())) - 1


KEY = "throw-away@joinery.test"


@pytest.fixture
def gpg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """GnuPG with a home of its own, whose path is short enough for its agent's socket."""
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        monkeypatch.setenv("GNUPGHOME", home)

        def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            return subprocess.run(["gpg", "--batch", *map(str, arguments)], capture_output=True, text=True, check=False)

        gpgconf = shutil.which("gpgconf")
        assert gpgconf is not None, "it comes with gpg"
        yield run
        subprocess.run([gpgconf, "--kill", "gpg-agent"], check=True)


def test_sums_are_signed_with_the_key_and_a_changed_one_is_found(
    tmp_path: Path, gpg: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    key_run = gpg("--passphrase", "", "--quick-generate-key", KEY, "ed25519", "sign", "never")
    assert key_run.returncode == 0, key_run.stderr
    (tmp_path / "a.whl").write_text("wheel")
    release.check_key(KEY)
    sums = release.write_sums(tmp_path, KEY)
    signature = tmp_path / "SHA256SUMS.asc"
    assert signature.read_text().startswith("-----BEGIN PGP SIGNATURE-----")
    verified = gpg("--status-fd", "1", "--verify", signature, sums)
    assert (verified.returncode, "GOODSIG" in verified.stdout, KEY in verified.stdout) == (0, True, True)
    sums.write_text(sums.read_text().replace("a.whl", "b.whl"))
    assert "BADSIG" in gpg("--status-fd", "1", "--verify", signature, sums).stdout
    # Made again, neither counts the other one, nor itself.
    assert [line.split()[1] for line in release.write_sums(tmp_path, KEY).read_text().splitlines()] == ["a.whl"]
    assert gpg("--verify", signature, sums).returncode == 0


@pytest.mark.usefixtures("gpg")
def test_a_key_that_is_not_there_is_said_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "build", lambda *_: pytest.fail("it builds"))
    assert release.main(["--folder", str(tmp_path), "--sign", KEY]) == 3
    message = capsys.readouterr().err
    assert f"Nothing can be signed with the key {KEY}: " in message
    assert "gpg --list-secret-keys" in message
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"gpg is missing\. Install gpg"):
        release.check_key(KEY)


@pytest.mark.slow
def test_a_wheel_in_a_clean_environment_runs_the_quickstart(tmp_path: Path) -> None:
    """Nothing of this checkout is on its path: what the wheel forgets, or does not ask for, is missing there."""
    uv = Path(sys.executable).with_name("uv")
    wheel = tmp_path / f"joinery_runtime-{release.one_version(release.versions(release.ROOT))}-py3-none-any.whl"
    python = tmp_path / "venv/bin/python"
    for command in (
        [uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", tmp_path, "runtime"],
        [uv, "venv", "--python", sys.executable, tmp_path / "venv"],
        [uv, "pip", "install", "--python", python, f"{wheel}[engine]"],
    ):
        subprocess.run([*map(str, command), "--quiet"], cwd=release.ROOT, check=True)
    shutil.copytree(release.ROOT / "examples", tmp_path / "quickstart")
    ended = subprocess.run(
        [tmp_path / "venv/bin/joinery", "run", "orders-shipments-files.yaml"],
        cwd=tmp_path / "quickstart",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "JOINERY_WAIT_FOR_SPARK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = [
        json.loads(line)
        for path in (tmp_path / "quickstart/orders-shipments-joined").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(row["order_id"] for row in rows) == ["ORD-001", "ORD-002"]
