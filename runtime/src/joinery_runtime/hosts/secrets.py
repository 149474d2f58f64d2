"""Reads the secrets that a job refers to.

A secret is a directory with one file per key, which is what Kubernetes mounts: `$JOINERY_SECRETS/<name>/<key>`. Without
that variable, secrets are looked for in `/etc/joinery/secrets` (a pod) and then in `$JOINERY_HOME/secrets`, by default
`~/.joinery/secrets` (a laptop). A value is a file's text without the final newline. Files whose names begin with a dot,
which Kubernetes keeps beside the keys, are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from joinery_runtime.errors import EnvironmentProblem, JobError, Problem
from joinery_runtime.job import (
    DeadLetterKafka,
    Job,
    KafkaInput,
    KafkaOutput,
    PostgresOutput,
    PostgresStoreSpec,
    SecretRef,
)
from joinery_runtime.job.crd import FORBIDDEN_PROPERTIES, OWN_GROUPS
from joinery_runtime.job.model.draft import path_text
from joinery_runtime.job.model.input_rules import GROUP_SETTINGS
from joinery_runtime.job.model.inputs import SchemaRegistry
from joinery_runtime.job.model.outputs import DeltaOutput, IcebergOutput, Output

_IN_A_POD = Path("/etc/joinery/secrets")

SpecPath = tuple[str | int, ...]
"""A path in the job's `spec`."""
KafkaClient = KafkaInput | KafkaOutput | DeadLetterKafka | SchemaRegistry | IcebergOutput | DeltaOutput
ClientChange = Callable[[KafkaClient, SpecPath], KafkaClient]
_Database = TypeVar("_Database", PostgresStoreSpec, PostgresOutput)
_AnyOutput = TypeVar("_AnyOutput", bound=Output)


class DatabaseChange(Protocol):
    """A change to each Postgres that a job names."""

    def __call__(self, database: _Database, at: SpecPath, /) -> _Database: ...


def with_secrets(job: Job) -> Job:
    """Return the job with its secrets' values in place of the references to them, as a process needs it to connect.

    Raises EnvironmentProblem, naming the paths that were tried, if a secret cannot be read, and JobError if a setting
    is both in a job's `properties` and in its secret, if the operator forbids it, or if it makes two inputs, or the
    inputs of two jobs of a BlueGreenJob, one consumer group.
    """
    filling = _Filling()
    filled = with_clients(job, filling.client, _keep_database)
    problems = [*filling.problems, *_shared_groups(filled)]
    if problems:
        raise JobError(job.name, problems)
    return filled


def _shared_groups(job: Job) -> Iterator[Problem]:
    """Yield a problem for each setting that makes two inputs, or two aliases of one, members of one consumer group, or
    inputs of two jobs of one BlueGreenJob. What stands in the job's `properties` is checked at load, and by the
    operator."""
    others_read_with_it = bool(os.environ.get(OWN_GROUPS))
    for setting in GROUP_SETTINGS:
        inputs_by_value: dict[str, list[str]] = {}
        for side in job.read_inputs:
            value = (side.kafka.properties or {}).get(setting) if side.kafka is not None else None
            if value is not None:
                inputs_by_value.setdefault(value, []).append(side.name)
        for names in inputs_by_value.values():
            if others_read_with_it:
                yield Problem(
                    "spec.inputs",
                    f"{' and '.join(names)}: the secret names {setting}, and the jobs of the BlueGreenJob would divide "
                    "the partitions. Leave it out of the secret: each job has a group of its own",
                )
            elif len(names) > 1:
                yield Problem(
                    "spec.inputs",
                    f"{' and '.join(names)} have the same {setting}, by their secrets: each would read some of the "
                    "partitions only. Leave it out of the secret, or give each input a secret of its own",
                )


def with_clients(job: Job, client: ClientChange, database: DatabaseChange) -> Job:
    """Return the job after the given changes to each client of Kafka or a schema registry, and each Postgres that it
    names."""
    spec, dead = job.spec, job.spec.dead_letter
    inputs = (
        side.model_copy(
            update={
                "kafka": side.kafka and client(side.kafka, (*path, "kafka")),
                "schema_registry": side.schema_registry and client(side.schema_registry, (*path, "schemaRegistry")),
            }
        )
        for side, path in zip(job.declared_inputs, job.input_places, strict=True)
    )
    store = spec.state_store

    def changed_output(output: _AnyOutput, path: SpecPath) -> _AnyOutput:
        registry = output.schema_registry
        return output.model_copy(
            update={
                "kafka": output.kafka and client(output.kafka, (*path, "kafka")),
                "schema_registry": registry and client(registry, (*path, "schemaRegistry")),
                "iceberg": output.iceberg and client(output.iceberg, (*path, "iceberg")),
                "delta": output.delta and client(output.delta, (*path, "delta")),
                "postgres": output.postgres and database(output.postgres, (*path, "postgres")),
            }
        )

    outputs = spec.outputs and tuple(changed_output(at, ("outputs", i)) for i, at in enumerate(spec.outputs))
    changed = {
        **job.with_inputs(tuple(inputs)),
        "output": spec.output and changed_output(spec.output, ("output",)),
        "outputs": outputs,
        "dead_letter": dead
        and dead.model_copy(update={"kafka": dead.kafka and client(dead.kafka, ("deadLetter", "kafka"))}),
        "state_store": store.model_copy(
            update={"postgres": store.postgres and database(store.postgres, ("stateStore", "postgres"))}
        ),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


class _Filling:
    """Fills in clients' settings. `problems` are about settings that the job already had, and forbidden ones."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._forbidden = set(os.environ.get(FORBIDDEN_PROPERTIES, "").split(","))

    def client(self, client: KafkaClient, at: SpecPath) -> KafkaClient:
        if client.properties_secret_ref is None:
            return client
        ref, properties = client.properties_secret_ref, client.properties or {}
        secret = _read_settings(ref)
        for name in sorted(properties.keys() & secret.keys()):
            path = path_text(("spec", *at, "properties", name))
            message = f"is also in the secret {ref.name} ({_secret_directory(ref) / name}); keep one"
            self.problems.append(Problem(path, message))
        for name in sorted(name for name in secret if name.lower() in self._forbidden):
            self.problems.append(
                Problem(
                    path_text(("spec", *at, "propertiesSecretRef")),
                    f"the secret {ref.name} has {name}, which is not allowed in this cluster; leave it out, or have "
                    "whoever installed the operator add it to jobs.allow.properties of the chart",
                )
            )
        return client.model_copy(update={"properties": {**properties, **secret}, "properties_secret_ref": None})


def _keep_database(database: _Database, _: SpecPath) -> _Database:
    if database.dsn_secret_ref is None:
        return database
    ref = database.dsn_secret_ref
    return database.model_copy(update={"dsn": _read_text(_secret_directory(ref) / ref.key), "dsn_secret_ref": None})


def _read_settings(ref: SecretRef) -> Mapping[str, str]:
    directory = _secret_directory(ref)
    files = [file for file in sorted(directory.iterdir()) if not file.name.startswith(".") and file.is_file()]
    if not files:
        raise EnvironmentProblem(
            f"The secret {ref.name} has no keys",
            facts=f"{directory} holds no file",
            todo="Put one file per setting there, named like the setting",
        )
    return {file.name: _read_text(file) for file in files}


def _read_text(file: Path) -> str:
    try:
        text = file.read_bytes().decode(errors="replace")
    except OSError as error:
        todo = "Write the value into that file, and let the user that runs the job read it"
        raise EnvironmentProblem("A secret cannot be read", facts=f"{file}: {error.strerror}", todo=todo) from error
    if "\ufffd" in text:
        raise EnvironmentProblem("A secret is not text", facts=str(file), todo="Save the value as UTF-8, or as PEM")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise EnvironmentProblem("A secret is empty", facts=str(file), todo="Write the value into that file")
    return text


def _secret_directory(ref: SecretRef) -> Path:
    chosen = os.environ.get("JOINERY_SECRETS")
    home = Path(os.environ.get("JOINERY_HOME", Path.home() / ".joinery"))
    candidates = [root / ref.name for root in ([Path(chosen)] if chosen else [_IN_A_POD, home / "secrets"])]
    existing = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if existing is None:
        raise EnvironmentProblem(
            f"The secret {ref.name} is missing",
            facts=f"there is no directory {' or '.join(map(str, candidates))}",
            todo="Make it with one file per key, or set JOINERY_SECRETS to the folder that holds it",
        )
    return existing
