"""The key and the certificate with which a driver and its executors encrypt what they exchange.

Both derive from a secret of one start (`derive`): processes that know it have the same files, and nothing else has to
reach them. On Kubernetes the entry point of the image runs this module before an executor's Java starts, so it imports
as little as possible (docs/decisions/0063).
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from joinery_runtime.hosts.spark_security import ENV_EXCHANGE_SECRET, ENV_KEY_FOLDER

_LABEL = b"joinery exchange key 1"
# The certificate has to be the same wherever it is derived, so nothing in it depends on the clock.
_NOT_BEFORE, _NOT_AFTER = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256


class KeyFiles(NamedTuple):
    private_key: Path
    certificate: Path


class KeyTexts(NamedTuple):
    private_key: bytes
    certificate: bytes


def key_files(folder: Path) -> KeyFiles:
    return KeyFiles(folder / "key.pem", folder / "certificate.pem")


def derive(secret: str) -> KeyTexts:
    """Derive a private key (PKCS 8) and its certificate, both as PEM: the same ones from the same secret."""
    # 16 bytes more than the order has, so that no key is noticeably more likely than another.
    number = int.from_bytes(HKDF(SHA256(), 48, salt=None, info=_LABEL).derive(secret.encode()), "big")
    key = ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "joinery exchange")])
    unsigned = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
    )
    certificate = unsigned.sign(key, SHA256(), ecdsa_deterministic=True)
    return KeyTexts(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), certificate.public_bytes(Encoding.PEM)
    )


def write_key(secret: str, folder: Path) -> KeyFiles:
    """Write both files into the folder, readable by this user only; over those of a container that was restarted."""
    files = key_files(folder)
    for path, text in zip(files, derive(secret), strict=True):
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    return files


if __name__ == "__main__":
    try:
        write_key(os.environ[ENV_EXCHANGE_SECRET], Path(os.environ[ENV_KEY_FOLDER]))
    except OSError as error:
        sys.exit(f"The key of this executor cannot be written to the folder in {ENV_KEY_FOLDER}: {error}")
