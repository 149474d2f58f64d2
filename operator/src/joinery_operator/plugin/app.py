"""The commands of `kubectl joinery`. Exit codes are those of `joinery`, or kubectl's where it ran."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated

from cyclopts import App, Parameter

from joinery_operator.manifests import MAIN_CONTAINER
from joinery_operator.plugin.kubectl import (
    KubectlError,
    KubectlTarget,
    NoDriver,
    find_job_or_blue_green,
    find_job_with_driver,
    newest_driver,
    running_driver,
)
from joinery_operator.plugin.question import ask
from joinery_operator.plugin.report import status_lines
from joinery_operator.plugin.rollout import JobName, rollout
from joinery_operator.revision import RESTARTED_AT
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import explain as explain_job
from joinery_runtime.job import load_stored
from joinery_runtime.job.crd import BLUE_GREEN, ENDING_FILE

app = App(name="kubectl joinery", help="Jobs of Joinery on the cluster that kubectl talks to.",
          version=version("joinery-operator"), result_action="return_value")  # fmt: skip

app.command(rollout)

_HERE = KubectlTarget()
_JOB_FILE = "/etc/joinery/job.yaml"


def main(tokens: list[str] | None = None) -> None:
    """Run the console script."""
    try:
        sys.exit(app(tokens) or 0)
    except KubectlError as error:
        sys.stderr.write(f"{error.message}\n")
        sys.exit(error.code)
    except JoineryError as error:
        sys.stderr.write(f"joinery: {error}\n")
        sys.exit(error.exit_code)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


@app.command
def ls(*, all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative=())] = False,
       target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """List jobs of every kind."""
    return target.run("get", "joinery", *(["--all-namespaces"] if all_namespaces else []))


@app.command
def status(job: JobName, /, *, target: KubectlTarget = _HERE) -> None:
    """Show a job's inputs, its conditions, and what went wrong."""
    for line in status_lines(find_job_or_blue_green(target, job)):
        _say(line)


@app.command
def logs(job: JobName, /, *, follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=())] = False,
         tail: int | None = None, target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """Print the log of a job's newest driver.

    Parameters
    ----------
    follow
        Keep printing new lines.
    tail
        Number of last lines to print. Default: all.
    """
    job_resource = find_job_with_driver(target, job)
    more = [*(["--follow"] if follow else []), *([f"--tail={tail}"] if tail is not None else [])]
    pod = newest_driver(target, job_resource)
    return target.run("logs", pod, f"--namespace={job_resource.namespace}", f"--container={MAIN_CONTAINER}", *more)


@app.command
def state(job: JobName, command: str, /, *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
          target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """Run `joinery state COMMAND` in a job's driver pod, as in `kubectl joinery state orders show --key id=1`.
    Where no driver runs, this and `why`, `verify` and `sql` are run in a pod of their own.

    Parameters
    ----------
    command
        ls, show, stats, epochs, savepoint, check, ...: what `joinery state --help` lists.
    arguments
        Arguments after the job's file.
    """
    return _run_in_driver(target, job, "state", command, _JOB_FILE, *arguments)


@app.command
def why(job: JobName, /, *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
        target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """Run `joinery why` in a job's driver pod, as in `kubectl joinery why orders --key id=1`.

    Parameters
    ----------
    arguments
        Arguments after the job's file: --key, --record, --until, --json.
    """
    return _run_in_driver(target, job, "why", _JOB_FILE, *arguments)


@app.command
def verify(job: JobName, /, *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
           target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """Run `joinery verify` in a job's driver pod. Takes CPU and memory of that pod, for the state of the epochs that it
    recomputes.

    Parameters
    ----------
    arguments
        Arguments after the job's file: --epochs, --json.
    """
    return _run_in_driver(target, job, "verify", _JOB_FILE, *arguments)


@app.command
def sql(job: JobName, query: str, /, *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
        target: KubectlTarget = _HERE) -> int:  # fmt: skip
    """Run `joinery sql` in a job's driver pod. Loads the tables that the query names into that pod's memory.

    Parameters
    ----------
    query
        A SELECT over output, epochs and the state's parts.
    arguments
        Options after the query: --rows, --json.
    """
    return _run_in_driver(target, job, "sql", _JOB_FILE, query, *arguments)


@app.command
def savepoint(job: JobName, name: str, /, *, target: KubectlTarget = _HERE) -> int:
    """Create a savepoint: pin the state of a running job under a name."""
    return state(job, "savepoint", name, target=target)


@app.command
def explain(job: JobName, /, *, target: KubectlTarget = _HERE) -> None:
    """Print the plan of the job as it is on the cluster. Needs no driver."""
    job_resource = find_job_with_driver(target, job)
    stored = load_stored(job_resource.resource)
    _say("\n".join([explain_job(stored.job).render(), *(f"warning: {warning}" for warning in stored.warnings)]))


@app.command
def restart(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Stop the driver after its running epoch and start another one. Loses and repeats nothing. A BlueGreenJob restarts
    all of its jobs that run, and the second job's stableFor begins again."""
    job_resource = find_job_or_blue_green(target, job)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace_option = f"--namespace={job_resource.namespace}"
    is_job = job_resource.resource["kind"] != BLUE_GREEN.name
    references = [job_resource.reference] if is_job else job_resource.running_jobs
    return target.run("annotate", *references, namespace_option, "--overwrite", f"{RESTARTED_AT}={now}")


@app.command
def suspend(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Stop the driver after its running epoch, until the job is resumed."""
    return _set_suspend(job, True, target)


@app.command
def resume(job: JobName, /, *, target: KubectlTarget = _HERE) -> int:
    """Start a suspended job where it stopped."""
    return _set_suspend(job, False, target)


def _run_in_driver(target: KubectlTarget, job: str, *command: str) -> int:
    """Run `joinery COMMAND` in the job's driver pod, or where none runs in a pod of its own. Raises JoineryError."""
    job_resource = find_job_with_driver(target, job)
    pod = running_driver(target, job_resource)
    if isinstance(pod, NoDriver):
        return ask(target, job_resource, pod.reason, command)
    # Only the driver reports how the pod ended, not a command that runs beside it.
    inner = ["env", f"--unset={ENDING_FILE}", "joinery", *command]
    return target.run(
        "exec", pod, f"--namespace={job_resource.namespace}", f"--container={MAIN_CONTAINER}", "--", *inner
    )


def _set_suspend(job: str, suspended: bool, target: KubectlTarget) -> int:
    job_resource = find_job_or_blue_green(target, job)
    job_resource.check_spec_is_its_own("suspend" if suspended else "resume")
    patch = json.dumps({"spec": {"suspend": suspended}})
    return target.run(
        "patch", job_resource.reference, f"--namespace={job_resource.namespace}", "--type=merge", f"--patch={patch}"
    )
