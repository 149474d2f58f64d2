"""Fetches jar files from Maven Central, with Maven or, if that is not installed, with the Ivy inside PySpark.

No registry is named here: both tools know their own, or the mirror in the user's settings.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from joinery_devkit.environment import cache_directory, java_command, locked
from joinery_runtime.errors import EnvironmentProblem

_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_TIMEOUT_SECONDS = 900


def fetch_jars(name: str, coordinates: Sequence[str], *, transitive: bool = True) -> Path:
    """Return the folder `<cache>/<name>` with the jars of `coordinates` ("group:artifact:version") and their
    dependencies.

    Downloaded once; concurrent callers wait for the first. `transitive=False` takes the named jars only. `name` must
    change whenever the coordinates do.
    """
    folder = cache_directory() / name
    if folder.is_dir():
        return folder
    with locked(folder.with_name(f"{name}.lock")):
        if not folder.is_dir():
            # The rename comes last, so a folder with its final name is complete.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.partial-") as work:
                jars = Path(work) / "jars"
                resolve = _with_maven if shutil.which("mvn") else _with_ivy
                resolve(Path(work), jars, coordinates, transitive)
                if not list(jars.glob("*.jar")):
                    raise _download_problem(coordinates, "the resolver ended without an error and left no jar")
                jars.rename(folder)
    return folder


def class_path(folder: Path) -> str:
    """Java's notation for every jar in `folder`."""
    return f"{folder}/*"


def _with_maven(work: Path, jars: Path, coordinates: Sequence[str], transitive: bool) -> None:
    pom = work / "pom.xml"
    exclusions = "" if transitive else _EXCLUDE_ALL
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusions}</dependency>"
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    pom.write_text(_POM.format(dependencies=dependencies))
    _run(
        ["mvn", "-B", "-q", "-Dstyle.color=never", "-f", str(pom), _COPY_GOAL, f"-DoutputDirectory={jars}"], coordinates
    )


_EXCLUDE_ALL = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.joinery</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def _with_ivy(work: Path, jars: Path, coordinates: Sequence[str], transitive: bool) -> None:
    module = work / "ivy.xml"
    reach = "compile(*),runtime(*),master(*)" if transitive else "master(*)"
    dependencies = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{version}" conf="default->{reach}"/>'
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    module.write_text(_IVY_MODULE.format(dependencies=dependencies))
    spark = importlib.util.find_spec("pyspark")
    ivy_jars = sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar")) if spark and spark.origin else []
    if not ivy_jars:
        raise _download_problem(coordinates, "neither Maven (`mvn`) nor PySpark, whose Ivy could do it, is installed")
    pattern = f"{jars}/[artifact]-[revision](-[classifier]).[ext]"
    ivy = [java_command(), "-cp", str(ivy_jars[0]), "org.apache.ivy.Main", "-warn"]
    where = ["-cache", str(work / "ivy-cache"), "-ivy", str(module), "-retrieve", pattern, "-types", "jar", "bundle"]
    _run([*ivy, *where], coordinates)


_IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="dev.joinery" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def _run(command: Sequence[str], coordinates: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        raise _download_problem(coordinates, f"{command[0]} was not done after {_TIMEOUT_SECONDS} s") from late
    if done.returncode != 0:
        # The first lines name the cause; the rest is advice for Maven's own developers.
        output = "\n".join([line for line in (done.stdout + done.stderr).splitlines() if line.strip()][:6])
        raise _download_problem(coordinates, f"{command[0]} ended with {done.returncode}:\n{output}")


def _download_problem(coordinates: Sequence[str], facts: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"Cannot download {', '.join(coordinates)} from Maven Central",
        facts=facts,
        todo="The first use needs the network (behind a proxy or mirror: ~/.m2/settings.xml and an installed Maven); "
        f"later ones take the jars from {cache_directory()}",
    )
