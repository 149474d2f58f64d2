"""Real executors where nothing native encrypts, and on a standalone cluster, which has a key of its own."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hosts.exchanging import block_ports, exchanges, executors, native, on_this_machine, started, trusting
from joinery_devkit.processes import free_port
from joinery_devkit.spark_cluster import StandaloneCluster
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.exchange_key import write_key
from joinery_runtime.hosts.exchange_tls import CERTIFICATE, check_admitted, rejection_reason

pytestmark = [pytest.mark.services, pytest.mark.slow]

NO_NATIVE = "-Dio.netty.handler.ssl.noOpenSsl=true"


def test_without_the_native_library_java_encrypts_and_that_is_said() -> None:
    warnings: list[str] = []
    options = {f"spark.{part}.extraJavaOptions": NO_NATIVE for part in ("driver", "executor")}
    with on_this_machine(warnings, **options) as context:
        assert exchanges(context)
        client = trusting(Path(str(context.getConf().get(CERTIFICATE))))
        for port in block_ports():
            with socket.create_connection(("127.0.0.1", port), 10) as plain:
                client.wrap_socket(plain).close()
        assert not any(native(process) for process in executors())
    (warning,) = warnings
    assert "Java's TLS encrypts what executors exchange" in warning


def test_a_standalone_cluster_shares_the_key_that_its_settings_name(tmp_path: Path) -> None:
    warnings: list[str] = []
    with StandaloneCluster(workers=1, memory="512m", tls=True) as cluster:
        with started(cluster.master_url, cluster.environment, warnings.append) as context:
            assert exchanges(context)
            pids = [psutil.Process(pid) for pid in cluster.executor_pids()]
            assert pids
            assert all(native(process) for process in pids)
            assert context.getConf().get("spark.io.encryption.enabled") == "true"
            settings = dict(context.getConf().getAll())
        assert warnings == []
        address = cluster.master_url.removeprefix("spark://")

        def facts(**changed: str) -> str:
            return rejection_reason(address, cluster.master_url, settings | changed)

        assert "spark.authenticate.secret or spark.network.crypto differs there" in facts()
        plain = facts(**{"spark.ssl.rpc.enabled": "false"})
        assert plain == f"{address} speaks TLS, and the job does not speak TLS (spark.ssl.rpc.enabled)"
        other = str(write_key("another", tmp_path).certificate)
        unfit = facts(**{CERTIFICATE: other})
        assert unfit.startswith(
            f"the certificate of {address} does not fit those in {other} (spark.ssl.rpc.certChain): "
        )
    closed = f"127.0.0.1:{free_port()}"
    assert rejection_reason(closed, f"spark://{closed}", settings) == f"spark.master names {closed}: Connection refused"


def test_a_cluster_without_tls_does_not_admit_a_job_with_it() -> None:
    with StandaloneCluster(workers=1, memory="512m") as cluster:
        context: Any = SimpleNamespace(
            master=cluster.master_url,
            applicationId="spark-application-1789",  # Spark's name where no master has given one
            getConf=lambda: SimpleNamespace(getAll=lambda: [("spark.ssl.rpc.enabled", "true")]),
        )
        with pytest.raises(
            EnvironmentProblem, match=r"does not admit the job: .* does not speak TLS, and the job speaks"
        ):
            check_admitted(context)
        context.applicationId = "app-20261127154436-0000"
        check_admitted(context)
