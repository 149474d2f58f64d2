"""Handles secrets that are written in the job itself instead of being referred to: passwords in `properties` or a DSN.

They do not travel with the job to Spark's workers. The job that is sent has WITHHELD in their place, and a worker reads
them from a job file: in a pod the job's own file, which is mounted into executors as into the driver, elsewhere a copy
that the driver writes for its user alone. Workers on other machines get none of them: a job that runs there has to
refer to its secrets (docs/decisions/0016).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from joinery_runtime.errors import EnvironmentProblem, JobError, explain_full_disk
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.secrets import KafkaClient, SpecPath, with_clients
from joinery_runtime.job import Job, PostgresOutput, PostgresStoreSpec, load_own_job
from joinery_runtime.job.model.pods import SparkSpec

WITHHELD = "(withheld)"
IN_A_POD = Path("/etc/joinery/job.yaml")

# The secret settings of librdkafka, libpq, the schema registry's client, catalogs and object stores. Settings that name
# a file are not secret.
_SECRET = re.compile(
    r"(?i)password|passphrase|secret|access.key|account.key|sas.token|session.token|credential|^token$|service.account"
    r"|(^|[.])key[.]pem$|^ssl_key$|oauthbearer[.]config$|^scram_.*_key$"
    r"|^basic[.]auth[.]user[.]info$|^bearer[.]auth[.]token$"
)

_Values = Mapping[tuple[str | int, ...], str]
_Database = TypeVar("_Database", PostgresStoreSpec, PostgresOutput)


def without_secrets(job: Job) -> Job:
    """Return the job without the values of secrets, so that it may be sent to workers."""

    def client(client: KafkaClient, _: SpecPath) -> KafkaClient:
        properties = client.properties or {}
        hidden = {name: WITHHELD for name in properties if _SECRET.search(name)}
        return client.model_copy(update={"properties": {**properties, **hidden}}) if hidden else client

    def database(database: _Database, _: SpecPath) -> _Database:
        if database.dsn is None:
            return database
        try:
            has_secret = any(_SECRET.search(name) and value for name, value in conninfo_to_dict(database.dsn).items())
        except psycopg.Error:
            has_secret = True  # a DSN that cannot be parsed may hold a secret
        return database.model_copy(update={"dsn": WITHHELD}) if has_secret else database

    changed = with_clients(job, client, database)
    # Workers do not need the settings of Spark.
    return changed.model_copy(update={"spec": changed.spec.model_copy(update={"spark": SparkSpec()})})


def with_own_secrets(job: Job, job_file: Path) -> Job:
    """Fill the values in the job file into a job that `without_secrets` returned. Raises EnvironmentProblem."""
    if lacks_secrets(job):
        try:
            return _fill_in(job, _secret_values(load_own_job(job_file)))
        except (JobError, KeyError) as error:
            raise EnvironmentProblem(
                f"A worker cannot read the secrets of job {job.name}",
                facts=f"the job says them itself, and on the worker's machine {job_file} does not say them",
                todo="Name them by propertiesSecretRef and dsnSecretRef, and put those secrets on each worker's "
                "machine, as docs/security.md says",
            ) from error
    return job


def lacks_secrets(job: Job) -> bool:
    """Return whether `without_secrets` removed values."""
    return WITHHELD in _secret_values(job).values()


@contextmanager
def private_copy(job: Job) -> Iterator[Path]:
    """Yield a file with the job and its secrets, for workers of this user on this machine."""
    with scratch_folder("job") as folder:
        path = folder / "job.json"
        with (
            explain_full_disk("the job for its workers", folder),
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file,
        ):
            # Variables of the environment were filled in when the job was loaded.
            file.write(job.model_dump_json(by_alias=True, exclude_unset=True).replace("${", "$${"))
        yield path


def _secret_values(job: Job) -> _Values:
    """Return all values that `without_secrets` may remove, by their path in the job."""
    secrets_by_path: dict[tuple[str | int, ...], str] = {}

    def client(client: KafkaClient, at: SpecPath) -> KafkaClient:
        path = _stable_path(job, at)
        secrets_by_path.update(
            {(*path, name): text for name, text in (client.properties or {}).items() if _SECRET.search(name)}
        )
        return client

    def database(database: _Database, at: SpecPath) -> _Database:
        if database.dsn is not None:
            secrets_by_path[*_stable_path(job, at), "dsn"] = database.dsn
        return database

    with_clients(job, client, database)
    # A plan from before an edit may have as inputs of its own what SQL read again.
    for alias, name in job.repeats.items():
        input_secrets = {path[2:]: text for path, text in secrets_by_path.items() if path[:2] == ("inputs", name)}
        secrets_by_path.update({("inputs", alias, *rest): text for rest, text in input_secrets.items()})
    return secrets_by_path


def _fill_in(job: Job, values: _Values) -> Job:
    def client(client: KafkaClient, at: SpecPath) -> KafkaClient:
        properties, path = client.properties or {}, _stable_path(job, at)
        back = {name: values[*path, name] for name, text in properties.items() if text == WITHHELD}
        return client.model_copy(update={"properties": {**properties, **back}}) if back else client

    def database(database: _Database, at: SpecPath) -> _Database:
        if database.dsn != WITHHELD:
            return database
        return database.model_copy(update={"dsn": values[*_stable_path(job, at), "dsn"]})

    return with_clients(job, client, database)


def _stable_path(job: Job, at: SpecPath) -> SpecPath:
    """Return the path with inputs and outputs by name: an edit may have moved one since the plan that is replayed."""
    match at:
        case ("inputs", number, *rest):
            return ("inputs", job.declared_inputs[int(number)].name, *rest)
        case ("outputs", number, *_):
            return ("outputs", job.outputs[int(number)].name)
    return at[:1]
