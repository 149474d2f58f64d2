import threading
from pathlib import Path

import pytest

from joinery_devkit import environment
from joinery_devkit.jars import fetch_jars
from joinery_runtime.errors import EnvironmentProblem

# Stands in for Maven: leaves what the pom names as a jar, and one line per run.
FAKE_MAVEN = """#!/bin/sh
for each in "$@"; do case "$each" in
  -DoutputDirectory=*) out="${each#-DoutputDirectory=}";;
  *pom.xml) pom="$each";;
esac; done
echo run >> "$RUNS"
mkdir -p "$out"
cp "$pom" "$out/found.jar"
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with an empty cache, whose PATH holds system tools, the real Java and what the test adds to `bin`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("mkdir", "cp", "sh"):
        (tools / name).symlink_to(Path("/bin") / name)
    monkeypatch.setenv("JAVA_HOME", str(Path(environment.java_command()).resolve().parent.parent))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return tmp_path


def install_maven(machine: Path, script: str = FAKE_MAVEN) -> None:
    maven = machine / "bin" / "mvn"
    maven.write_text(script)
    maven.chmod(0o755)


def runs(machine: Path) -> int:
    return len((machine / "runs").read_text().splitlines())


def test_downloads_once(machine):
    install_maven(machine)
    folder = fetch_jars("some-1", ["a:b:1"])
    assert folder == machine / "cache" / "joinery" / "some-1"
    assert [path.name for path in folder.iterdir()] == ["found.jar"]
    assert fetch_jars("some-1", ["a:b:1"]) == folder
    assert runs(machine) == 1


def test_concurrent_callers_share_one_download(machine):
    install_maven(machine)
    callers = [threading.Thread(target=fetch_jars, args=("some-1", ["a:b:1"])) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert runs(machine) == 1


def test_names_every_coordinate_and_excludes_what_was_not_asked_for(machine):
    install_maven(machine)
    pom = (fetch_jars("some-1", ["a:b:1", "c:d:2"], transitive=False) / "found.jar").read_text()
    assert "<groupId>c</groupId><artifactId>d</artifactId><version>2</version><exclusions>" in pom
    assert pom.count("<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>") == 2


def test_transitive_by_default(machine):
    install_maven(machine)
    assert "exclusion" not in (fetch_jars("some-1", ["a:b:1"]) / "found.jar").read_text()


def test_a_failed_download_leaves_nothing_and_says_what_to_do(machine):
    install_maven(machine, "#!/bin/sh\necho 'Unknown host example'; exit 1\n")
    with pytest.raises(EnvironmentProblem) as failed:
        fetch_jars("some-1", ["a:b:1"])
    assert "Cannot download a:b:1 from Maven Central: mvn ended with 1:\nUnknown host example" in str(failed.value)
    assert "The first use needs the network" in str(failed.value)
    assert [path.name for path in (machine / "cache" / "joinery").iterdir()] == ["some-1.lock"]
    install_maven(machine)
    assert (fetch_jars("some-1", ["a:b:1"]) / "found.jar").exists()


def test_a_resolver_that_finds_nothing_is_a_failure(machine):
    install_maven(machine, "#!/bin/sh\nexit 0\n")
    with pytest.raises(EnvironmentProblem, match="left no jar"):
        fetch_jars("some-1", ["a:b:1"])


def test_without_maven_the_ivy_inside_pyspark_reports_what_it_cannot_find(machine):
    with pytest.raises(EnvironmentProblem, match=r"(?s)java ended with \d+:.*dev\.joinery\.nowhere#nothing;1"):
        fetch_jars("some-1", ["dev.joinery.nowhere:nothing:1"])


@pytest.mark.services
def test_without_maven_ivy_downloads_the_named_jar_only(machine):
    folder = fetch_jars("log4j", ["org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"], transitive=False)
    assert [path.name for path in folder.iterdir()] == ["log4j-slf4j-impl-2.25.3.jar"]
