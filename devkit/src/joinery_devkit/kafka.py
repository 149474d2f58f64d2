"""A real Kafka on this machine, one broker or several: KRaft, its own ports and data directory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.kafka_node import LOOPBACK, MAIN, KafkaNode, Listener, Quorum, kafka_jars
from joinery_devkit.kafka_tls import SecureAccess, Security
from joinery_devkit.processes import deadline_after, free_port
from joinery_devkit.tcp_proxy import TcpProxy

__all__ = ["KafkaBroker", "KafkaCluster", "kafka_jars"]

_START_SECONDS = 90.0


class KafkaCluster(KafkaAdmin):
    """Brokers 1 to `brokers` for tests, the demo and benchmarks; use it as a context manager.

    `directory` holds their data and logs, a folder per broker, and stays; the default is a temporary one, which is
    removed. `properties` override the brokers' settings. Topics are never created implicitly, records with any
    timestamp are accepted, and none expires. After `stop` or `kill`, `start` brings back the same data on the same
    ports. With three brokers any one may be down; with two, only the second (the first is the only controller).

    Clients connect to `host`, an address of this machine; one other than loopback admits outside clients, such as pods.
    `proxied` adds a loopback listener that is reached through `proxies`, one per broker: clients that connect to
    `proxied_bootstrap` can be cut off while others stay connected. `secure` adds a SASL_SSL listener (`secure_access`).
    """

    def __init__(
        self,
        brokers: int = 3,
        directory: Path | str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        host: str = LOOPBACK,
        proxied: bool = False,
        secure: bool = False,
    ) -> None:
        self._host = host
        self._temporary = directory is None
        self.directory = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix="joinery-kafka-"))
        self._security = Security(self.directory, host) if secure else None
        self.proxies = [TcpProxy(free_port()) for _ in range(brokers if proxied else 0)]
        voting = range(1, brokers + 1 if brokers > 2 else 2)
        quorum = Quorum(brokers, {number: free_port() for number in voting})
        self._nodes = {
            number: KafkaNode(
                number,
                self.directory if brokers == 1 else self.directory / f"broker-{number}",
                quorum,
                self._listeners_of(number),
                properties or {},
            )
            for number in range(1, brokers + 1)
        }
        super().__init__(self._bootstrap(MAIN))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._close)
            for proxy in self.proxies:
                proxy.start()
            self.start()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Temporary data needs no orderly shutdown, which brokers without a quorum never finish.
        (self.kill if self._temporary else self.stop)()
        self._close()

    def _close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the running brokers, by broker number."""
        return {number: node.pid for number, node in self._nodes.items() if node.pid is not None}

    @property
    def proxied_bootstrap(self) -> str:
        return self._bootstrap("PROXIED")

    @property
    def secure_access(self) -> SecureAccess:
        """Where and how to connect to the SASL_SSL listener of a started cluster that is `secure`."""
        assert self._security is not None, "the cluster was made without secure=True"
        return self._security.access(self._bootstrap("SECURE"))

    def start(self, number: int | None = None) -> None:
        """Start one broker, or all, after formatting new directories. Returns when they have joined the cluster."""
        nodes = [node for node in self._select_nodes(number) if node.pid is None]
        try:
            if self._security is not None:
                self._security.prepare()
            with ThreadPoolExecutor(len(self._nodes)) as threads:  # each broker is a Java program, slow to start
                list(threads.map(KafkaNode.start, nodes))
            self._wait_until_ready(nodes)
        except BaseException:
            for node in nodes:
                node.kill()
            raise

    def stop(self, number: int | None = None) -> None:
        """Shut down one broker in order, or all of them; do nothing if it is not running."""
        with ThreadPoolExecutor(len(self._nodes)) as threads:
            list(threads.map(KafkaNode.stop, self._select_nodes(number)))

    def kill(self, number: int | None = None) -> None:
        """Kill one broker, or all of them, as a crash would."""
        for node in self._select_nodes(number):
            node.kill()

    def cut(self, *, silent: bool = False) -> None:
        """Cut off the clients of `proxied_bootstrap` (see `TcpProxy.cut`)."""
        for proxy in self.proxies:
            proxy.cut(silent=silent)

    def restore(self) -> None:
        """Let the clients of `proxied_bootstrap` through again."""
        for proxy in self.proxies:
            proxy.restore()

    def _select_nodes(self, number: int | None) -> Sequence[KafkaNode]:
        return list(self._nodes.values()) if number is None else [self._nodes[number]]

    def _listeners_of(self, number: int) -> list[Listener]:
        listeners = [Listener(MAIN, free_port(), self._host)]
        if self.proxies:
            proxy = self.proxies[number - 1]
            listeners.append(Listener("PROXIED", proxy.target_port, advertised=proxy.port))
        if self._security is not None:
            settings = self._security.settings("SECURE")
            listeners.append(Listener("SECURE", free_port(), self._host, "SASL_SSL", settings=settings))
        return listeners

    def _bootstrap(self, name: str) -> str:
        addresses = [
            listener.bootstrap for node in self._nodes.values() for listener in node.listeners if listener.name == name
        ]
        assert addresses, f"the cluster was made without a {name} listener"
        return ",".join(addresses)

    def _serving_addresses(self) -> list[str]:
        return [node.listeners[0].bootstrap for node in self._nodes.values() if node.running]

    def _wait_until_ready(self, started: Sequence[KafkaNode]) -> None:
        deadline, numbers = deadline_after(_START_SECONDS), {node.number for node in started}
        while all(node.running for node in started) and time.monotonic() < deadline:
            try:
                if numbers <= self._list_brokers(timeout_seconds=1.0):
                    return
            except KafkaException:
                pass
            time.sleep(0.05)
        node = next((node for node in started if not node.running), started[0])
        facts = f"no answer after {_START_SECONDS:.0f} s" if node.running else "it ended"
        raise node.problem("The Kafka broker does not start", f"{facts}; its last words:\n{node.last_words()}")


class KafkaBroker(KafkaCluster):
    """A cluster of one broker."""

    def __init__(
        self,
        directory: Path | str | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        host: str = LOOPBACK,
        proxied: bool = False,
        secure: bool = False,
    ) -> None:
        super().__init__(1, directory, properties, host=host, proxied=proxied, secure=secure)

    @property
    def pid(self) -> int | None:
        return self.pids.get(1)
