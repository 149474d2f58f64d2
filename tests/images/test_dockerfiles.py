"""The Dockerfiles are the one list of what is in the images: what they promise, without building them."""

import re
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from joinery_devkit.images.base import RELEASE, SUITE, sources_text
from joinery_devkit.images.build import PROJECT, dockerfile

KINDS = ("runtime", "operator")


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]]

    def all(self, instruction: str) -> list[str]:
        return [arguments for step_instruction, arguments in self.steps if step_instruction == instruction]


def stages_of(path: Path) -> list[Stage]:
    """The stages of a Dockerfile: comments gone, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            stages.append(Stage(base, name, []))
        elif stages and instruction:
            stages[-1].steps.append((instruction, arguments))
    return stages


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stages(kind: str) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages_of(dockerfile(kind))}


def test_there_is_a_dockerfile_for_each_image_and_no_other() -> None:
    assert {path.name for path in (PROJECT / "images").glob("*Dockerfile*")} == {f"{kind}.Dockerfile" for kind in KINDS}


def test_the_base_is_one_pinned_debian_and_no_registry_is_named(kind: str, stages: dict[str, Stage]) -> None:
    pinned = re.findall(r"^ARG BASE=(.+)$", dockerfile(kind).read_text(), re.MULTILINE)
    assert len(pinned) == 1
    named = re.fullmatch(r"debian:([\d.]+)-slim@sha256:[0-9a-f]{64}", pinned[0])
    assert named, "a tag moves, a digest does not"
    assert named[1] == RELEASE, "the stand-in base is of the same release"
    own = {"", *stages}
    assert {stage.base for stage in stages.values()} - own == {"${BASE}"}


def test_the_images_share_the_stages_that_say_so() -> None:
    runtime, operator = (stages_of(dockerfile(kind)) for kind in KINDS)
    assert [stage.name for stage in runtime[:2]] == ["base", "pip"]
    assert runtime[:2] == operator[:2]


# As they are in Debian's own images.
SOURCES = """Types: deb
# http://snapshot.example/archive/debian/20260918T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
# http://snapshot.example/archive/debian-security/20260918T000000Z
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


def pinned_sources(stages: dict[str, Stage], root: Path, sources: str) -> "subprocess.CompletedProcess[str]":
    """Run the step that pins apt on a base image with these sources, in `root`."""
    for folder in ("sources.list.d", "apt.conf.d"):
        (root / folder).mkdir()
    (root / "sources.list.d/debian.sources").write_text(sources)
    step = stages["base"].all("RUN")[0].replace("/etc/apt/", f"{root}/")
    return subprocess.run(["sh", "-c", step], check=False, capture_output=True, text=True)


def test_apt_reads_the_snapshot_that_the_base_is_made_from(stages: dict[str, Stage], tmp_path: Path) -> None:
    assert pinned_sources(stages, tmp_path, SOURCES).returncode == 0
    lines = (tmp_path / "sources.list.d/debian.sources").read_text().splitlines()
    assert lines == [line.replace("# ", "URIs: ") for line in SOURCES.splitlines() if "mirror.example" not in line]
    assert "Check-Valid-Until" in (tmp_path / "apt.conf.d/snapshot").read_text()


def test_the_stand_in_base_names_its_mirror_as_the_snapshot(stages: dict[str, Stage], tmp_path: Path) -> None:
    mirrors = {SUITE: "http://mirror.example/debian", f"{SUITE}-security": "http://mirror.example/debian-security"}
    assert pinned_sources(stages, tmp_path, sources_text(mirrors)).returncode == 0
    left = (tmp_path / "sources.list.d/debian.sources").read_text()
    assert re.findall("^URIs: (.*)$", left, re.MULTILINE) == list(mirrors.values())


def test_a_base_without_a_snapshot_is_refused(stages: dict[str, Stage], tmp_path: Path) -> None:
    ended = pinned_sources(stages, tmp_path, SOURCES.replace("# http://snapshot.example/archive/debian/", "# of "))
    assert ended.returncode == 1
    assert ended.stderr.endswith("debian.sources of the base image names no snapshot of Debian's archive\n")


def test_apt_installs_nothing_before_it_is_pinned(stages: dict[str, Stage]) -> None:
    assert "debian.sources" in stages["base"].all("RUN")[0]
    for stage in stages.values():
        if any("apt-get" in run for run in stage.all("RUN")):
            assert below(stages, stage.name)[-1].name == "base"


def pinned_names(kind: str) -> list[str]:
    text = (PROJECT / "requirements" / f"{kind}.txt").read_text()
    return re.findall(r"^([a-z0-9][a-z0-9.-]*)==", text, re.MULTILINE)


def brings_libpq(name: str) -> bool:
    try:
        return any(file.name.startswith("libpq.so") or file.name.startswith("libpq-") for file in files(name) or ())
    except PackageNotFoundError:  # it is for another system
        return False


def test_the_image_has_one_libpq(kind: str, stages: dict[str, Stage]) -> None:
    (steps,) = stages["dependencies"].all("RUN")
    removed = {name.replace("_", "-") for name in re.findall(r"rm /build/wheels/(\w+)-\*[.]whl", steps)}
    with_libpq = {name for name in pinned_names(kind) if brings_libpq(name)}
    assert with_libpq - removed == ({"psycopg-binary"} if kind == "runtime" else set())


def test_nothing_is_installed_that_only_builds(kind: str) -> None:
    builders = {"build", "grpcio", "grpcio-tools", "hatchling", "mypy", "pip", "pytest", "setuptools", "uv", "wheel"}
    assert builders & set(pinned_names(kind)) == set()


def test_dependencies_are_installed_by_hash_from_the_pinned_list(kind: str, stages: dict[str, Stage]) -> None:
    dependencies = stages["dependencies"]
    assert dependencies.all("COPY") == [f"requirements/{kind}.txt /build/"]
    (steps,) = dependencies.all("RUN")
    downloads = [
        step for step in steps.split(" && ") if re.search(r"pip (--python \S+ )?(wheel|install|download)", step)
    ]
    assert len(downloads) == 2
    assert "--require-hashes" in downloads[0]
    assert downloads[0].endswith(f"-r /build/{kind}.txt")
    assert "--no-deps --no-index" in downloads[1]


def test_own_distributions_bring_no_dependencies(stages: dict[str, Stage]) -> None:
    (steps,) = stages["code"].all("RUN")
    for step in steps.split(" && "):
        assert "pip" not in step or "--no-deps" in step
        assert "pip wheel" not in step or "--no-build-isolation" in step, "a build must not download either"


def test_the_last_stage_adds_our_code_and_nothing_else(stages: dict[str, Stage]) -> None:
    """`image_build` puts that one layer on a cached archive of the stage `assembled`."""
    last = list(stages.values())[-1]
    assert (last.base, last.name) == ("assembled", "")
    assert last.steps == [("COPY", "--from=code /layer /")]
    assert below(stages, "assembled")[-1].name == "base"


def below(stages: dict[str, Stage], name: str) -> list[Stage]:
    """The stage, and those that it is built on."""
    return [stages[name], *(below(stages, stages[name].base) if stages[name].base in stages else [])]


def test_the_image_runs_as_a_fixed_user_that_is_not_root(stages: dict[str, Stage]) -> None:
    (user,) = stages["assembled"].all("USER")
    assert int(user) > 0
    runs = [run for stage in below(stages, "assembled") for run in stage.all("RUN")]
    assert any(f"useradd --uid {user} --gid 0" in run for run in runs)
    assert stages["assembled"].all("WORKDIR") == ["/tmp"]
    assert stages["assembled"].all("ENTRYPOINT")[0].startswith('["/usr/bin/tini", "-s", "--"')


def test_no_package_lists_are_left(stages: dict[str, Stage]) -> None:
    for stage in stages.values():
        for run in stage.all("RUN"):
            assert "apt-get update" not in run or "rm -rf /var/lib/apt/lists/*" in run


def test_all_that_is_copied_exists_and_reaches_the_builder(stages: dict[str, Stage]) -> None:
    lines = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "what is not named stays out"
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = [
        source
        for stage in stages.values()
        for arguments in stage.all("COPY")
        if not arguments.startswith("--from=")
        for source in arguments.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (PROJECT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), f"{source} is not in .dockerignore"
