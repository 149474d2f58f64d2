from pathlib import Path

import pytest

from joinery_devkit import environment
from joinery_runtime.errors import EnvironmentProblem


@pytest.fixture(autouse=True)
def forget_java():
    environment.java_command.cache_clear()
    yield
    environment.java_command.cache_clear()


def fake_java(folder: Path, banner: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("banner", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_reads_the_release_from_the_banner(banner, release):
    assert environment.parse_java_version("java", banner) == release


def test_java_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"Java is missing: no `java` on PATH .* Install a JDK or JRE 17"):
        environment.java_command()


def test_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=f"JAVA_HOME holds no Java: {tmp_path}/bin/java does not exist"):
        environment.java_command()


def test_java_too_old(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'java version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=f"Java is too old: {java} is version 11"):
        environment.java_command()


def test_java_that_only_says_where_to_get_one(monkeypatch, tmp_path):
    fake_java(tmp_path, "Unable to locate a Java Runtime")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"Java does not run: .* printed 'Unable to locate a Java Runtime'"):
        environment.java_command()


def test_main_prints_the_problem_and_its_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert environment.main() == 3
    assert capsys.readouterr().err.startswith("joinery: JAVA_HOME holds no Java")


def test_main_is_silent_when_all_is_there(monkeypatch, tmp_path, capsys):
    fake_java(tmp_path, 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert environment.main() == 0
    assert capsys.readouterr().err == ""


def test_cache_directory_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.cache_directory() == tmp_path / "joinery"
