"""References to secrets: a resource names them, and only the process that connects reads them.

A secret is a directory with one file per key, which is what Kubernetes mounts; `hosts/secrets.py` reads it. Nothing
here reads a value, so a job can be checked and explained on a machine without its secrets.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from joinery_runtime.job.model.base import Model

# Kubernetes's rules, without keys that begin with a dot, which Kubernetes uses for its own files beside the keys.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"[-_a-zA-Z0-9][-._a-zA-Z0-9]*")


def _name(value: str) -> str:
    if len(value) > 253 or not _NAME.fullmatch(value):
        raise ValueError("a secret's name has lower-case letters, digits, '-' and '.'")
    return value


def _key(value: str) -> str:
    if len(value) > 253 or not _KEY.fullmatch(value):
        raise ValueError("a secret's key has letters, digits, '-', '_' and '.', and does not start with '.'")
    return value


SecretName = Annotated[str, AfterValidator(_name)]
"""The name of a Secret, or of a ConfigMap."""


class SecretRef(Model):
    """A secret whose every key is the name of a setting."""

    name: SecretName = Field(examples=["orders-paid"])
    """The object's name, in the job's namespace."""


class SecretKeyRef(SecretRef):
    """One key of a secret."""

    key: Annotated[str, AfterValidator(_key)] = Field(examples=["dsn"])
    """The key in the secret."""
