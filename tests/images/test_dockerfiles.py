"""The Dockerfiles are the one list of what is in the images: what they promise, without building them."""

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from joinery_devkit.images.base import RELEASE
from joinery_devkit.images.build import PROJECT, dockerfile

KINDS = ("runtime", "operator")


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]]

    def all(self, instruction: str) -> list[str]:
        return [arguments for found, arguments in self.steps if found == instruction]


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
    assert re.fullmatch(rf"debian:{RELEASE}\.\d+-slim", pinned[0]), "the stand-in base is of the same release"
    own = {"", *stages}
    assert {stage.base for stage in stages.values()} - own == {"${BASE}"}


def test_the_images_share_the_stages_that_say_so() -> None:
    runtime, operator = (stages_of(dockerfile(kind)) for kind in KINDS)
    assert [stage.name for stage in runtime[:2]] == ["base", "pip"]
    assert runtime[:2] == operator[:2]


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
