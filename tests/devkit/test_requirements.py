"""requirements/ is in step with the pyproject files, pinned with hashes, and names no registry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
OWN = {"joinery-runtime", "joinery-operator", "joinery-devkit"}


def declared(project: str, *extras: str) -> list[Requirement]:
    table = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    return [requirement for requirement in map(Requirement, lines) if canonicalize_name(requirement.name) not in OWN]


def development() -> list[Requirement]:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    return [Requirement(line) for line in lines]


def pins(name: str) -> list[Requirement]:
    """Each `name==version ; marker` of a file; one name may be pinned for several Python versions."""
    text = (ROOT / "requirements" / name).read_text()
    return [Requirement(match[1].strip()) for match in re.finditer(r"^([a-z0-9][^\\#]*)\\$", text, re.MULTILINE)]


WANTED = {
    "dev.txt": [*declared("runtime", "engine"), *declared("operator"), *declared("devkit"), *development()],
    "runtime.txt": declared("runtime", "engine"),
    "operator.txt": [*declared("operator"), *declared("runtime")],
    "uv.txt": [Requirement("uv")],
}


def test_every_file_is_known():
    assert [file.name for file in FILES] == sorted(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_pins_satisfy_what_the_distributions_declare(name):
    pinned = {(canonicalize_name(pin.name), next(iter(pin.specifier)).version) for pin in pins(name)}
    for requirement in WANTED[name]:
        versions = [version for package, version in pinned if package == canonicalize_name(requirement.name)]
        assert versions, f"{requirement} is not in requirements/{name}: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}: run `make lock`"


@pytest.mark.parametrize("name", WANTED)
def test_versions_are_those_of_dev(name):
    # Names and versions only: a package that Windows alone needs here may be needed everywhere there.
    assert {(pin.name, str(pin.specifier)) for pin in pins(name)} <= {
        (pin.name, str(pin.specifier)) for pin in pins("dev.txt")
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_pinned_with_hashes_and_without_addresses(path):
    text = path.read_text()
    entries = re.findall(r"^[a-z0-9].*(?:\n +.*)*", text, re.MULTILINE)
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)
