"""The runtime image's entry point: what Spark's Kubernetes scheduler asks of it, and everything else as given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.images.build import PROJECT
from joinery_runtime.hosts.exchange_key import derive, key_files
from joinery_runtime.hosts.spark_security import ENV_EXCHANGE_SECRET, ENV_KEY_FOLDER

ENTRYPOINT = PROJECT / "images" / "entrypoint.sh"
JAVA = "#!/bin/bash\nprintf '%s\\n' \"$@\"\n"

# What Spark's BasicExecutorFeatureStep puts into an executor's container.
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "2",
}
MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


SORTED = ("slf4j-api-2.jar", "B.jar", "a-2.jar", "a.jar", "slf4j-api-2.jar")


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("a.jar", "a-2.jar", "B.jar", "slf4j-api-2.jar"):
        (jars / name).touch()
    return {"JAVA_HOME": str(tmp_path / "java"), "SPARK_HOME": str(tmp_path / "spark"), "PATH": os.defpath}


def sorted_jars(image: dict[str, str]) -> str:
    return ":".join(f"{image['SPARK_HOME']}/jars/{name}" for name in SORTED)


def started(environment: dict[str, str], *arguments: str) -> list[str]:
    """The arguments that java was started with."""
    command = [str(ENTRYPOINT), *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def test_an_executor_is_told_all_that_spark_says(image: dict[str, str]) -> None:
    arguments = started({**image, **EXECUTOR}, "executor")

    assert arguments[:2] == ["-Xms512m", "-Xmx512m"]
    assert arguments[2:4] == ["-cp", f"{sorted_jars(image)}:{image['SPARK_HOME']}/conf"]
    assert arguments[4] == MAIN
    assert dict(zip(arguments[5::2], arguments[6::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3",
        "--cores": "1",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "2",
        "--podName": "job-exec-3",
    }


def test_java_options_keep_their_order_and_their_spaces(image: dict[str, str]) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber.{number}=a b" for number in reversed(range(12))}

    arguments = started({**image, **EXECUTOR, **options}, "executor")

    assert arguments[:12] == [f"-Dnumber.{number}=a b" for number in range(12)]


def test_mounted_configuration_comes_behind_the_jars_on_the_class_path(image: dict[str, str]) -> None:
    more = {"SPARK_CONF_DIR": "/etc/joinery", "HADOOP_CONF_DIR": "/etc/hadoop"}
    jars = {"SPARK_CLASSPATH": "/first.jar", "SPARK_EXTRA_CLASSPATH": "/last.jar"}

    arguments = started({**image, **EXECUTOR, **more, **jars}, "executor")

    class_path = arguments[arguments.index("-cp") + 1]
    assert class_path == f"/first.jar:{sorted_jars(image)}:/etc/joinery:/etc/hadoop:/last.jar"


def test_an_executor_has_the_key_before_java_starts_and_java_does_not_have_its_secret(
    image: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "key"
    folder.mkdir()
    secret = {ENV_EXCHANGE_SECRET: "of this attempt", ENV_KEY_FOLDER: str(folder), "PYSPARK_PYTHON": sys.executable}

    with Path(image["JAVA_HOME"], "bin", "java").open("a") as java:
        java.write('echo "secret: ${JOINERY_EXCHANGE_SECRET-unset}"\n')

    for _ in range(2):  # a container may be restarted
        arguments = started({**image, **EXECUTOR, **secret}, "executor")

        assert arguments[-1] == "secret: unset"
        assert "of this attempt" not in " ".join(arguments)
        files = key_files(folder)
        assert (files.private_key.read_bytes(), files.certificate.read_bytes()) == derive("of this attempt")
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_an_executor_without_a_folder_for_its_key_says_so(image: dict[str, str], tmp_path: Path) -> None:
    secret = {ENV_EXCHANGE_SECRET: "s", ENV_KEY_FOLDER: str(tmp_path / "none"), "PYSPARK_PYTHON": sys.executable}
    command = [str(ENTRYPOINT), "executor"]

    done = subprocess.run(
        command,
        env={**image, **EXECUTOR, **secret},
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert "The key of this executor cannot be written to the folder in JOINERY_KEY_FOLDER" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_spark_forgot_to_say_is_named(image: dict[str, str]) -> None:
    incomplete = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    command = [str(ENTRYPOINT), "executor"]

    done = subprocess.run(command, env={**image, **incomplete}, check=False, stderr=subprocess.PIPE, text=True)

    assert done.returncode != 0
    assert "SPARK_DRIVER_URL" in done.stderr


def test_anything_else_runs_as_given_with_its_exit_code(image: dict[str, str]) -> None:
    command = [str(ENTRYPOINT), "sh", "-c", 'echo "$1"; exit 7', "sh", "two words"]

    done = subprocess.run(command, env=image, check=False, stdout=subprocess.PIPE, text=True)

    assert (done.returncode, done.stdout) == (7, "two words\n")
