"""TLS and a login for a test broker: certificates from the JDK's keytool, one SASL/PLAIN user.

Each side shows a self-signed certificate and trusts the other's. librdkafka and the broker both read PEM files; keytool
does not export private keys, so this module extracts them from its JKS files.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joinery_devkit.environment import java_command
from joinery_runtime.errors import EnvironmentProblem

USER = "joinery"
_STORE_PASSWORD = "changeit"  # of a file that is deleted a moment later
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True, slots=True)
class SecureAccess:
    """Where and how to connect: librdkafka's settings; those in `secret` are the ones to hide."""

    bootstrap: str
    plain: Mapping[str, str]
    secret: Mapping[str, str] = field(repr=False)


class Security:
    """The files of the listener and of the client, in `directory`, and a random password for this broker."""

    def __init__(self, directory: Path, host: str) -> None:
        self._directory, self._host = directory, host
        self._password = secrets.token_urlsafe(18)

    def prepare(self) -> None:
        """Make the certificates of both sides unless they exist."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for side in ("server", "client"):
            if not self._certificate_file(side).exists():
                key, certificate = self_signed(self._directory / f"{side}.jks", self._host)
                self._key_file(side).write_text(key)
                self._certificate_file(side).write_text(certificate)
        self._combined_file("server").write_text(
            self._key_file("server").read_text() + self._certificate_file("server").read_text()
        )

    def settings(self, listener: str) -> dict[str, str]:
        """Return the broker's settings of a SASL_SSL listener of that name."""
        login = f'{_PLAIN} required username="{USER}" password="{self._password}" user_{USER}="{self._password}";'
        own = {
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": login,
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._combined_file("server")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._certificate_file("client")),
        }
        return {f"listener.name.{listener.lower()}.{name}": value for name, value in own.items()}

    def access(self, bootstrap: str) -> SecureAccess:
        plain = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": USER}
        secret = {
            "sasl.password": self._password,
            "ssl.ca.pem": self._certificate_file("server").read_text(),
            "ssl.certificate.pem": self._certificate_file("client").read_text(),
            "ssl.key.pem": self._key_file("client").read_text(),
        }
        return SecureAccess(bootstrap, plain, secret)

    def _certificate_file(self, side: str) -> Path:
        return self._directory / f"{side}.certificate.pem"

    def _key_file(self, side: str) -> Path:
        return self._directory / f"{side}.key.pem"

    def _combined_file(self, side: str) -> Path:
        return self._directory / f"{side}.pem"


def self_signed(store: Path, host: str) -> tuple[str, str]:
    """Return a new private key and its certificate for the address `host`, as PEM. keytool uses `store` as a scratch
    file."""
    store.unlink(missing_ok=True)
    command = [str(Path(java_command()).resolve().with_name("keytool")), "-genkeypair", "-keystore", str(store)]
    passwords = ["-storetype", "JKS", "-storepass", _STORE_PASSWORD, "-keypass", _STORE_PASSWORD]
    subject = ["-alias", "it", "-dname", f"CN={store.stem}", "-ext", f"san=ip:{host},dns:localhost", "-ext", "bc:c"]
    size = ["-keyalg", "RSA", "-keysize", "2048", "-validity", "3650"]
    done = subprocess.run([*command, *passwords, *subject, *size], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        facts = (done.stdout + done.stderr).strip()
        raise EnvironmentProblem("keytool cannot make a certificate", facts=facts, todo="Look at its message")
    key, certificate = _jks_entry(store.read_bytes(), _STORE_PASSWORD)
    store.unlink()
    return _pem_text("PRIVATE KEY", key), _pem_text("CERTIFICATE", certificate)


def _pem_text(kind: str, der: bytes) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def _jks_entry(data: bytes, password: str) -> tuple[bytes, bytes]:
    """Return the key (PKCS #8) and the certificate, both DER, of a JKS file that holds one key with one certificate.

    The layout is that of the JDK's sun.security.provider.JavaKeyStore and KeyProtector.
    """
    reader = _Fields(data)
    reader.skip(4 + 4 + 4 + 4)  # magic, version, number of entries, the entry's kind
    reader.take(2)  # alias
    reader.skip(8)  # time
    protected = reader.take(4)
    reader.skip(4)  # number of certificates
    reader.take(2)  # X.509
    certificate = reader.take(4)
    # EncryptedPrivateKeyInfo ends in one octet string: salt, masked key, checksum.
    masked = protected[protected.index(b"\x04\x82", 20) + 4 :]
    digest, body = masked[:20], masked[20:-20]
    mask = b""
    while len(mask) < len(body):
        digest = hashlib.sha1(password.encode("utf-16-be") + digest).digest()
        mask += digest
    return bytes(a ^ b for a, b in zip(body, mask, strict=False)), certificate


class _Fields:
    """Reads big-endian, length-prefixed fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def skip(self, count: int) -> None:
        self._at += count

    def take(self, prefix_bytes: int) -> bytes:
        length = int.from_bytes(self._data[self._at : self._at + prefix_bytes], "big")
        start = self._at + prefix_bytes
        self._at = start + length
        return self._data[start : self._at]
