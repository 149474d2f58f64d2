"""`make release`: builds everything that makes up one version of the product, in build/release.

That is wheels and source archives of runtime and operator, the chart, the CRDs, a list of each image's Python packages
(SBOM, CycloneDX JSON), images if Docker is available, and SHA256SUMS of all files, signed if a key is named. Nothing is
published.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from joinery_devkit.kubernetes.binaries import program
from joinery_runtime.errors import EnvironmentProblem, JoineryError

ROOT = Path(__file__).parents[3]
SHIPPED = ("runtime", "operator")
SUMS = "SHA256SUMS"


def versions(root: Path) -> Mapping[str, str]:
    """Return the version that each part of the product names, by file."""
    by_file = {}
    for part in SHIPPED:
        with (root / part / "pyproject.toml").open("rb") as file:
            by_file[f"{part}/pyproject.toml"] = tomllib.load(file)["project"]["version"]
    chart = yaml.safe_load((root / "charts/joinery/Chart.yaml").read_text())
    return {**by_file, "Chart.yaml version": chart["version"], "Chart.yaml appVersion": chart["appVersion"]}


def one_version(named: Mapping[str, str]) -> str:
    """Return the version that all parts name. Raises EnvironmentProblem if they differ."""
    if len(set(named.values())) != 1:
        facts = ", ".join(f"{version} in {file}" for file, version in named.items())
        raise EnvironmentProblem("The parts have different versions", facts=facts, todo="Set them all to the same one")
    return next(iter(named.values()))


def build(folder: Path, version: str) -> None:
    """Build all files except the sums, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in SHIPPED:
        _run(
            "uv",
            "build",
            "--quiet",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            ROOT / part,
        )
        target = folder / f"joinery-{part}-{version}.cdx.json"
        lock, project = ROOT / f"requirements/{part}.txt", ROOT / part / "pyproject.toml"
        _run("cyclonedx-py", "requirements", lock, "--pyproject", project, "--output-reproducible", "-o", target)
    (folder / ".gitignore").unlink(missing_ok=True)  # uv writes one
    _run(program("helm"), "package", ROOT / "charts/joinery", "--destination", folder)
    crds = sorted((ROOT / "crds").glob("*.yaml"))
    (folder / f"joinery-crds-{version}.yaml").write_text("---\n".join(path.read_text() for path in crds))


def build_images(registry: str, version: str) -> None:
    for part in SHIPPED:
        tag = f"{registry}/joinery-{part}:{version}"
        _run("docker", "build", "-f", ROOT / f"images/{part}.Dockerfile", "-t", tag, ROOT)


def write_sums(folder: Path, key: str | None) -> Path:
    """Write SHA256SUMS in sha256sum's format, with a detached signature by GnuPG's `key` beside it."""
    files = sorted(path for path in folder.iterdir() if path.name.partition(".")[0] != SUMS)
    sums = folder / SUMS
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files))
    if key is not None:
        _run("gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", sums)
    return sums


def check_key(key: str) -> None:
    """Raise EnvironmentProblem if GnuPG has no such secret key, before rather than after everything is built."""
    try:
        _run("gpg", "--batch", "--list-secret-keys", key)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(
            f"Nothing can be signed with the key {key}",
            facts=str(error),
            todo="Name one that `gpg --list-secret-keys` lists, or leave out --sign",
        ) from error


def _run(*command: str | Path) -> None:
    name, own_folder = str(command[0]), str(Path(sys.executable).parent)
    program = shutil.which(name, path=f"{own_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise EnvironmentProblem(f"{name} is missing", todo=f"Install {name}, or leave out what needs it")
    done = subprocess.run([program, *map(str, command[1:])], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"{name} failed", facts=(done.stderr or done.stdout).strip()[-2000:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make release", description="All files of one version, in build/release")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--sign", metavar="KEY", help="a key of GnuPG that signs SHA256SUMS")
    parser.add_argument("--images", metavar="REGISTRY", help="also build the images, named REGISTRY/joinery-...")
    options = parser.parse_args(arguments)
    try:
        version = one_version(versions(ROOT))
        if options.sign:
            check_key(options.sign)
        build(options.folder, version)
        if options.images:
            build_images(options.images, version)
        sums = write_sums(options.folder, options.sign)
    except JoineryError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(sums.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
