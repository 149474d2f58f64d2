"""Real executors: what speaks at the ports where they exchange blocks, and whom those ports answer."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from hosts.exchanging import block_ports, command_lines, exchanges, executors, native, on_this_machine, trusting
from joinery_runtime.hosts.exchange_key import write_key
from joinery_runtime.hosts.exchange_tls import CERTIFICATE, PRIVATE_KEY

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    warnings: list[str] = []
    with on_this_machine(warnings) as context:
        assert exchanges(context)
        assert warnings == []
        yield context


def test_block_ports_speak_tls_with_this_starts_certificate(context: SparkContext, tmp_path: Path) -> None:
    ours = Path(str(context.getConf().get(CERTIFICATE)))
    for port in block_ports():
        with socket.create_connection(("127.0.0.1", port), 10) as plain, trusting(ours).wrap_socket(plain) as encrypted:
            assert encrypted.version() == "TLSv1.3"
        other = trusting(write_key("another", tmp_path).certificate)
        with socket.create_connection(("127.0.0.1", port), 10) as plain, pytest.raises(ssl.SSLCertVerificationError):
            other.wrap_socket(plain)


def test_the_native_library_encrypts(context: SparkContext) -> None:
    assert len(executors()) == 2
    assert all(native(process) for process in executors())


# Spark's frames: the length of all, a type, a request's number, and the length of its body.
_RPC_REQUEST, _RPC_FAILURE = 3, 5
_TLS_ALERT = b"\x15"


def answer_to_a_stranger(port: int, encrypt: Callable[[socket.socket], socket.socket]) -> bytes:
    """What a port answers to a request for blocks from somebody who has not proven to know the secret."""
    request = b"\x00" + struct.pack(">i3si1si1s", 3, b"app", 1, b"1", 1, b"b")
    head = struct.pack(">bqi", _RPC_REQUEST, 7, len(request))
    with socket.create_connection(("127.0.0.1", port), 10) as plain, encrypt(plain) as connection:
        connection.sendall(struct.pack(">q", 8 + len(head) + len(request)) + head + request)
        try:
            return connection.recv(4096)
        except ConnectionError:
            return b""


def test_a_stranger_gets_no_block(context: SparkContext) -> None:
    client = trusting(Path(str(context.getConf().get(CERTIFICATE))))
    for port in block_ports():
        assert answer_to_a_stranger(port, lambda plain: plain)[:1] in (b"", _TLS_ALERT), "not without TLS"
        refused = answer_to_a_stranger(port, client.wrap_socket)
        assert refused[8:9] == bytes([_RPC_FAILURE])
        assert b"SaslMessage" in refused, "it wants to be told the secret first"
    assert exchanges(context)


def test_no_argument_of_a_process_shows_the_key(context: SparkContext) -> None:
    key = Path(str(context.getConf().get(PRIVATE_KEY)))
    lines = list(command_lines().values())
    assert sum(str(key) in line for line in lines) == 2, "executors are told where it is"
    secrets = {*key.read_text().splitlines()[1:-1], str(context.getConf().get("spark.authenticate.secret"))}
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    assert key.stat().st_mode & 0o077 == key.parent.stat().st_mode & 0o077 == 0
