"""Which key a driver and its executors get for TLS, and what is said of keys that somebody names."""

from __future__ import annotations

import stat
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts import spark_internals
from joinery_runtime.hosts.exchange_key import derive, write_key
from joinery_runtime.hosts.exchange_tls import (
    CERTIFICATE,
    KEY_STORE,
    NATIVE,
    PRIVATE_KEY,
    TRUST_STORE,
    encryption_warnings,
    exchange_todo,
    keep_from_tasks,
    tls_settings,
)
from joinery_runtime.hosts.spark_security import ENV_EXCHANGE_SECRET, ENV_KEY_FOLDER, SPEAKS_TLS

IN_PODS, CLUSTER, HERE = "k8s://https://there:443", "spark://there:7077", "local-cluster[2,1,1024]"
WITH_FOLDER = {f"spark.executorEnv.{ENV_KEY_FOLDER}": "/run/joinery"}


# --- keys of our own --------------------------------------------------------------------------------------------------


def test_a_key_derives_from_its_secret_alone() -> None:
    assert derive("a") == derive("a")
    assert derive("a").private_key != derive("b").private_key
    certificate = x509.load_pem_x509_certificate(derive("a").certificate)
    assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(days=365)
    assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=365_000)


def test_a_key_is_the_same_with_every_release_of_the_libraries() -> None:
    certificate = x509.load_pem_x509_certificate(derive("known").certificate)
    assert certificate.fingerprint(SHA256()).hex() == "82dab84277b0bf8099612c56eafd35b394422968d4d993c731f4cb1605229e28"


def test_executors_on_this_machine_get_a_key_for_each_start() -> None:
    with ExitStack() as stack:
        first, second = (tls_settings(HERE, {}, stack) for _ in range(2))
        key, other = (Path(settings[PRIVATE_KEY]) for settings in (first, second))
        assert key.read_bytes() != other.read_bytes()
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert first[SPEAKS_TLS] == first[NATIVE] == "true"
    assert not key.exists()
    assert not key.parent.exists()


def test_each_driver_in_a_pod_makes_a_key_and_hands_on_what_it_derives_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_KEY_FOLDER, str(tmp_path))
    with ExitStack() as stack:
        first = tls_settings(IN_PODS, WITH_FOLDER, stack)
        written = Path(first[PRIVATE_KEY]).read_bytes()
        second = tls_settings(IN_PODS, WITH_FOLDER, stack)
    output_watermarks = f"spark.executorEnv.{ENV_EXCHANGE_SECRET}"
    assert derive(first[output_watermarks]).private_key == written
    assert first[output_watermarks] != second[output_watermarks]
    assert Path(first[PRIVATE_KEY]).parent == tmp_path


def test_no_task_takes_the_secret_along() -> None:
    context: Any = SimpleNamespace(environment={ENV_EXCHANGE_SECRET: "s", "OMP_NUM_THREADS": "1"})
    keep_from_tasks(context)
    assert context.environment == {"OMP_NUM_THREADS": "1"}


def test_a_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_KEY_FOLDER, str(tmp_path / "none"))
    with pytest.raises(EnvironmentProblem, match=r"cannot be written: JOINERY_KEY_FOLDER names .*/none: "):
        tls_settings(IN_PODS, WITH_FOLDER, ExitStack())


@pytest.mark.parametrize("master", ["local[2]", CLUSTER, "yarn", IN_PODS])
def test_where_no_key_reaches_the_executors_there_is_no_tls(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.delenv(ENV_KEY_FOLDER, raising=False)
    assert tls_settings(master, {}, ExitStack()) == {}
    with pytest.raises(EnvironmentProblem, match=r"have no key: spark.ssl.rpc.enabled is true, and neither"):
        tls_settings(master, {SPEAKS_TLS: "true"}, ExitStack())


# --- keys that somebody names -----------------------------------------------------------------------------------------


def files_of(folder: Path, secret: str = "one") -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    files = write_key(secret, folder)
    return {
        SPEAKS_TLS: "true",
        NATIVE: "true",
        PRIVATE_KEY: str(files.private_key),
        CERTIFICATE: str(files.certificate),
    }


@pytest.mark.parametrize("master", [CLUSTER, "yarn", HERE])
def test_a_key_that_is_named_is_taken_as_it_is(tmp_path: Path, master: str) -> None:
    assert tls_settings(master, files_of(tmp_path), ExitStack()) == {}


def test_settings_of_all_of_sparks_tls_count_too(tmp_path: Path) -> None:
    named = {name.replace("spark.ssl.rpc.", "spark.ssl."): value for name, value in files_of(tmp_path).items()}
    assert tls_settings(CLUSTER, {**named, SPEAKS_TLS: "true"}, ExitStack()) == {}


def problem(named: dict[str, str]) -> str:
    with pytest.raises(EnvironmentProblem, match="The key for Spark's connections cannot be used: ") as caught:
        tls_settings(CLUSTER, named, ExitStack())
    return str(caught.value)


@pytest.mark.parametrize("setting", [PRIVATE_KEY, CERTIFICATE])
def test_a_file_that_is_missing_is_named_with_its_setting(tmp_path: Path, setting: str) -> None:
    assert f"{setting} names /none: No such file" in problem({**files_of(tmp_path), setting: "/none"})
    without = {name: value for name, value in files_of(tmp_path).items() if name != setting}
    assert f"{setting} is not set" in problem(without)


def test_a_certificate_of_another_key_is_named(tmp_path: Path) -> None:
    one, two = files_of(tmp_path / "1"), files_of(tmp_path / "2", "two")
    text = problem({**one, CERTIFICATE: two[CERTIFICATE]})
    assert f"{two[CERTIFICATE]} ({CERTIFICATE}) is of another key than {one[PRIVATE_KEY]} ({PRIVATE_KEY})" in text


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    named = files_of(tmp_path)
    assert f"{PRIVATE_KEY} names {named[CERTIFICATE]}, which is no" in problem(
        {**named, PRIVATE_KEY: named[CERTIFICATE]}
    )
    assert f"{CERTIFICATE} names {named[PRIVATE_KEY]}, which holds no" in problem(
        {**named, CERTIFICATE: named[PRIVATE_KEY]}
    )


def test_a_key_in_another_format_is_named(tmp_path: Path) -> None:
    named, key = files_of(tmp_path), ec.generate_private_key(ec.SECP256R1())
    Path(named[PRIVATE_KEY]).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    assert "which is not in the format PKCS 8" in problem(named)


def test_the_password_of_a_key_is_needed(tmp_path: Path) -> None:
    named, key = files_of(tmp_path), ec.generate_private_key(ec.SECP256R1())
    Path(named[PRIVATE_KEY]).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush"))
    )
    Path(named[CERTIFICATE]).write_bytes(certificate_of(key, days=1))
    assert "which is no private key as PEM: " in problem(named)
    assert tls_settings(CLUSTER, {**named, "spark.ssl.rpc.privateKeyPassword": "hush"}, ExitStack()) == {}


def certificate_of(key: ec.EllipticCurvePrivateKey, days: int) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    end = datetime.now(UTC) + timedelta(days=days)
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), 7, end - timedelta(days=9), end)
    return unsigned.sign(key, SHA256()).public_bytes(Encoding.PEM)


def test_a_certificate_that_has_expired_is_named(tmp_path: Path) -> None:
    named, key = files_of(tmp_path), ec.generate_private_key(ec.SECP256R1())
    Path(named[PRIVATE_KEY]).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    Path(named[CERTIFICATE]).write_bytes(certificate_of(key, days=-1))
    assert f"{named[CERTIFICATE]} ({CERTIFICATE}) is valid from " in problem(named)


def test_a_key_store_takes_the_place_of_the_two_files(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.touch()
    assert tls_settings(CLUSTER, {SPEAKS_TLS: "true", KEY_STORE: str(store)}, ExitStack()) == {}
    assert f"{KEY_STORE} names /none: " in problem({SPEAKS_TLS: "true", KEY_STORE: "/none"})
    assert f"{TRUST_STORE} names /none: " in problem({SPEAKS_TLS: "true", KEY_STORE: str(store), TRUST_STORE: "/none"})
    assert f"{NATIVE} is not true, so Spark reads a key store" in problem({**files_of(tmp_path), NATIVE: "false"})


# --- what the user is told --------------------------------------------------------------------------------------------


def warnings(master: str, settings: dict[str, str], missing: str | None = None) -> list[str]:
    context: Any = SimpleNamespace(master=master, getConf=lambda: SimpleNamespace(getAll=settings.items))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_internals, "native_tls_problem", lambda _: missing)
        return list(encryption_warnings(context))


AUTHENTICATED = {"spark.authenticate": "true"}


@pytest.mark.parametrize("master", [CLUSTER, "yarn", IN_PODS])
def test_who_encrypts_in_java_is_told_what_it_costs(master: str) -> None:
    (warning,) = warnings(master, AUTHENTICATED)
    assert "spark.ssl.rpc.enabled is not set" in warning
    assert "docs/security.md#standalone" in warning
    assert warnings(master, {**AUTHENTICATED, SPEAKS_TLS: "false"}) == []
    assert warnings(master, {"spark.authenticate": "false"}) == []


def test_nothing_is_said_where_all_is_well() -> None:
    tls = {**AUTHENTICATED, SPEAKS_TLS: "true", NATIVE: "true", PRIVATE_KEY: "k", CERTIFICATE: "c"}
    assert warnings(CLUSTER, tls) == warnings(HERE, tls) == warnings("local[2]", AUTHENTICATED) == []


def test_without_the_native_library_it_is_said_what_encrypts() -> None:
    tls = {**AUTHENTICATED, SPEAKS_TLS: "true", NATIVE: "true"}
    (warning,) = warnings(HERE, tls, missing="UnsatisfiedLinkError: no netty_tcnative_linux_s390x")
    assert "does not load here: UnsatisfiedLinkError: no netty_tcnative_linux_s390x. Java's TLS encrypts" in warning


def test_a_key_store_alone_trusts_anybody() -> None:
    (warning,) = warnings(CLUSTER, {**AUTHENTICATED, SPEAKS_TLS: "true", KEY_STORE: "s"})
    assert "spark.ssl.rpc.trustStore is not, so Spark accepts any certificate" in warning
    assert warnings(CLUSTER, {**AUTHENTICATED, SPEAKS_TLS: "true", KEY_STORE: "s", TRUST_STORE: "t"}) == []


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        (
            "Job aborted due to stage failure: ResultStage 3 has failed the maximum allowable number of times: 4. Most "
            "recent failure reason:\norg.apache.spark.shuffle.FetchFailedException: Failed to connect to /1.0.0.7:7079",
            "spark.blockManager.port",
        ),
        (
            "org.apache.spark.shuffle.FetchFailedException\nCaused by: javax.net.ssl.SSLHandshakeException: General "
            "OpenSslEngine problem\nCaused by: java.io.IOException: Failed to connect to /10.0.0.7:7079",
            "spark.ssl.rpc",
        ),
    ],
)
def test_an_exchange_that_fails_names_the_setting(message: str, setting: str) -> None:
    assert setting in (exchange_todo(message) or "")


def test_other_failures_are_none_of_the_exchanges() -> None:
    assert exchange_todo("ExecutorLostFailure (executor 1 exited unexpectedly)") is None
    assert exchange_todo("psycopg.OperationalError: connection to server failed: Connection refused") is None
