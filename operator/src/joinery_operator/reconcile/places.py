"""Where the systems are that a job works with, as far as its resource says."""

from __future__ import annotations

from collections.abc import Iterator

from joinery_operator.names import digest_of
from joinery_operator.outputs import database_identity
from joinery_operator.reconcile.reasons import cut
from joinery_runtime.job import Job, JobSpec
from joinery_runtime.job.crd import OutputStatus
from joinery_runtime.job.model.inputs import KafkaInput
from joinery_runtime.job.model.outputs import DeadLetterKafka, KafkaOutput

_LONGEST = 512
MOST_OUTPUTS = 64
"""As many as a status has room for."""


def state_place(spec: JobSpec) -> object:
    """Return where the state is stored; None when it is in memory."""
    store = spec.state_store.postgres
    return None if store is None else (store.dsn, store.dsn_secret_ref, store.schema_name)


def state_place_text(spec: JobSpec) -> str:
    """Return where the state is stored in words, for a status: without passwords, so that another password is no other
    place."""
    store = spec.state_store.postgres
    if store is None:
        return spec.state_store.kind
    secret = store.dsn_secret_ref
    database = f"dsnSecretRef {secret.name}/{secret.key}" if secret else database_identity(store.dsn or "")
    text = f"schema {store.schema_name} of {database}"
    # Two long places must not become one.
    return text if len(text) <= _LONGEST else f"{cut(text, _LONGEST)} ({digest_of(text)})"


def written_outputs(job: Job) -> tuple[OutputStatus, ...]:
    """Return the job's outputs for a status, as many as it has room for."""
    statuses = []
    for output in job.outputs[:MOST_OUTPUTS]:
        kind = next(name for name in output.KINDS if getattr(output, name) is not None)
        table, folder, target = output.postgres or output.iceberg, output.file or output.delta, None
        if output.kafka is not None:
            target = cut(output.kafka.topic, _LONGEST)
        elif table is not None:
            target = cut(table.table, _LONGEST)
        elif folder is not None:
            target = cut(folder.path, _LONGEST)
        statuses.append(OutputStatus(name=output.name, kind=kind, target=target))
    return tuple(statuses)


def names_new_system(new: Job, old: Job, system: str) -> bool:
    """Return whether `new` names a system of this kind (`Waiting.system`), or a way in, that `old` does not."""
    old_addresses = list(_list_addresses(old, system))
    return any(address is not None and address not in old_addresses for address in _list_addresses(new, system))


def _list_addresses(job: Job, system: str) -> Iterator[object]:
    match system:
        case "store":
            yield state_place(job.spec)
        case "input":
            for input_spec in job.read_inputs:
                yield from (_broker_list(input_spec.kafka), input_spec.schema_registry)
        case _:
            for output in job.outputs:
                yield from (_broker_list(output.kafka), output.schema_registry)
                yield from (output.postgres, output.file, output.iceberg, output.delta)
            yield _broker_list(job.dead_letter_kafka)


def _broker_list(kafka: KafkaInput | KafkaOutput | DeadLetterKafka | None) -> object:
    return None if kafka is None else (kafka.bootstrap_servers, kafka.properties, kafka.properties_secret_ref)
