"""Which secrets a job's driver reads, and how they get into its pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from joinery_operator.names import digest_of
from joinery_runtime.job.model.secrets import SecretRef

SECRETS = "/etc/joinery/secrets"
_GROUP_READS = 0o440


def secret_names(spec: BaseModel) -> list[str]:
    """Names of all secrets in fields `...SecretRef` of the models, each once, sorted."""
    return sorted(set(_names(spec)))


def secret_volumes(names: list[str]) -> list[dict[str, Any]]:
    """Whole secrets: those of a client's settings have keys that the job does not name."""
    return [
        {"name": _volume(name), "secret": {"secretName": name, "defaultMode": _GROUP_READS, "optional": False}}
        for name in names
    ]


def secret_mounts(names: list[str]) -> list[dict[str, Any]]:
    return [{"name": _volume(name), "mountPath": f"{SECRETS}/{name}", "readOnly": True} for name in names]


def _volume(secret: str) -> str:
    """A volume's name is a DNS label; a secret's may be longer and hold dots."""
    return f"secret-{digest_of(secret)}"


def _names(value: object) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for field, each in value:
            if field.endswith("secret_ref") and isinstance(each, SecretRef):
                yield each.name
            else:
                yield from _names(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _names(each)
