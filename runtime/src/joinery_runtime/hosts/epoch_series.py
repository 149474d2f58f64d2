"""Runs small epochs as a *series*: one Spark job whose tasks stay, and get epoch after epoch from the driver.

    driver                                        task of a peer
    starts the job "small epochs from 812" -----> connects to the driver's socket, and says which peer it is
    sends the work of epoch 812 ----------------> runs `PeerTask.run_stage`
    has the results of all peers <--------------- sends what that yields, and waits for more work
    sends the work of epoch 813 ----------------> ...
    closes the connections ---------------------> returns, and with all tasks Spark's job ends

To launch a job and to end it takes Spark longer than a small epoch takes to join its rows. The continuous mode of
Structured Streaming keeps its tasks for the same reason (docs/decisions/0138).

Spark still decides where tasks run and which ones are lost. Nothing is repaired here: whatever goes wrong ends the
series, and the epoch is run again as a Spark job of its own. Its tasks then have attempts of other names, so a task of
the series that still runs is what a task is that Spark has run twice. A series also ends when an epoch comes that is
not small or has several stages, when executors come or go, after a pause, and after a minute, so that Spark's UI and
its history show a job with a beginning and an end.
"""

from __future__ import annotations

import errno
import hmac
import math
import pickle
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedRWPair
from typing import Any, Self

from pyspark import SparkContext, TaskContext

from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.exchange_key import write_key
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.hosts.spark_security import LOOPBACK, is_on_this_machine
from joinery_runtime.hosts.spark_tasks import PeerTask, WorkerSetup

KUBERNETES_PORT = 7080
"""Of the driver's pod, so that a NetworkPolicy can name it."""

_LIFETIME_S = 60.0
_PAUSE_S = 5.0
"""A series without work for this long ends, so that its tasks do not hold cores for nothing."""

_CONNECTING_S = 10.0
"""How long tasks may take to connect: Spark launches them, in processes that have run epochs before."""

_LONGEST_EPOCH_S = 60.0
"""A small epoch that takes longer is run again as a job. A task that Spark repeats may wait for the core of another one
of the series, which waits for work."""

_ENDING_S = 2.0
_POLL_S = 0.5
_TOKEN_BYTES = 32
_MOST_HELLOS = 256
"""Connections that may be about to say their token. Further ones are closed."""

_JOBS_AFTER_BREAK = 10
"""After a series that broke, as many epochs are jobs of their own: what broke it may break the next one too."""

_MOST_MISSING = 3
"""After as many series in a row whose tasks do not connect, no further one begins. A single one says little: an
executor may just have ended, and its task waits for another."""


class SeriesBroken(Exception):
    """The series has ended before it had all results of an epoch."""


class TasksMissing(SeriesBroken):
    """Not all tasks have connected in time, or before they ended."""


# --- a task -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesAddress:
    """Where the driver listens: at the path of a socket on this machine, or at a host and port, by TLS with this
    `certificate`. A task says the `token` first, which nobody else knows: it comes with the Spark job. Pickles."""

    endpoint: str | tuple[str, int]
    token: bytes
    certificate: str = ""

    def __str__(self) -> str:
        return self.endpoint if isinstance(self.endpoint, str) else "{} port {}".format(*self.endpoint)

    def connect(self) -> socket.socket:
        """Connect to the driver. Raises OSError."""
        with ExitStack() as stack:
            if isinstance(self.endpoint, str):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.connect(self.endpoint)
            else:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False  # the certificate is of this series alone
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusts the certificate itself
                context.load_verify_locations(cadata=self.certificate)
                plain = stack.enter_context(socket.create_connection(self.endpoint, _CONNECTING_S))
                _set_up_tcp(plain)
                connection = stack.enter_context(context.wrap_socket(plain))
                connection.settimeout(None)
            stack.pop_all()
            return connection

    def serve(self, peer: int, attempt: int, run: Callable[[Any], list[Any]]) -> None:
        """Connect to the driver, and `run` what it sends until it closes the connection. Raises OSError if nobody
        listens, and what `run` raises."""
        # The connection breaks when the driver ends the series, or ends itself.
        with (
            self.connect() as connection,
            suppress(ConnectionError, ssl.SSLError),
            connection.makefile("rwb") as channel,
        ):
            channel.write(self.token + pickle.dumps((peer, attempt)))
            channel.flush()
            while True:
                try:
                    work = pickle.load(channel)
                except (EOFError, pickle.UnpicklingError):  # also of work that the driver has sent in part
                    return
                channel.write(pickle.dumps(run(work), pickle.HIGHEST_PROTOCOL))
                channel.flush()


_TCP = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


def _set_up_tcp(connection: socket.socket) -> None:
    """Send without delay, and notice in 30 s that the other machine is gone, if this system can."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(frozen=True, slots=True)
class SeriesTask:
    """The tasks of a series. Pickles."""

    setup: WorkerSetup
    address: SeriesAddress

    def run(self, peer: int, partition: Iterable[object]) -> Iterator[object]:
        """Run a peer's share of the epochs that the driver sends. Spark runs a lost task again: that attempt only tells
        the driver, which may not have noticed, as when a machine is cut off."""
        deque(partition, maxlen=0)

        def run_epoch(sent: Any) -> list[object]:
            work, peers, collects_letters = sent
            setup = replace(self.setup, collects_letters=collects_letters)
            return list(PeerTask(setup, work, peers).run_stage(peer, ()))

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        with suppress(OSError) if attempt else nullcontext():
            self.address.serve(peer, attempt, run_epoch)
        return iter(())


# --- the driver -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesEndpoint:
    """Where executors of other machines reach the driver: it listens at `bind`, which they know as `host`."""

    host: str
    bind: str
    port: int

    @classmethod
    def of(cls, context: SparkContext) -> Self | None:
        """Return the endpoint for executors of a context; None if they are on this machine."""
        master = context.master
        if is_on_this_machine(master):
            return None
        settings = context.getConf()
        host = settings.get("spark.driver.host") or LOOPBACK
        port = KUBERNETES_PORT if master.startswith("k8s://") else 0  # 0: any
        return cls(host.strip("[]"), (settings.get("spark.driver.bindAddress") or host).strip("[]"), port)

    def listen(self) -> socket.socket:
        """Listen for tasks. Raises OSError."""
        (family, _, _, _, address), *_ = socket.getaddrinfo(self.bind, self.port, type=socket.SOCK_STREAM)
        return socket.create_server(address[:2], family=family)


class Series:
    """The driver's end of one series of `count` tasks. `run_job` runs them on Spark, in a thread of its own, and
    returns when they have ended; `cancel_job` ends them. Without an `endpoint`, they are on this machine. One thread
    calls `run` and `end`. Raises OSError."""

    def __init__(
        self,
        count: int,
        run_job: Callable[[SeriesAddress], None],
        cancel_job: Callable[[], None],
        endpoint: SeriesEndpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._run_job, self._cancel_job, self._clock = count, run_job, cancel_job, clock
        self._began = self._used_at = clock()
        self._changed = threading.Condition()  # guards all that follow
        self._channels: dict[int, tuple[socket.socket, BufferedRWPair]] = {}  # by peer
        self._hellos = dict[socket.socket, BackgroundCall[None]]()
        self._busy = self._ended = self._repeated = False
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder("series"))
            token = secrets.token_bytes(_TOKEN_BYTES)
            self._tls: ssl.SSLContext | None = None
            if endpoint is None:
                self._address = SeriesAddress(str(folder / "socket"), token)
                self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                self._listener.bind(self._address.endpoint)
                self._listener.listen()
            else:
                key = write_key(secrets.token_hex(32), folder)
                self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self._tls.load_cert_chain(key.certificate, key.private_key)
                self._listener = stack.enter_context(endpoint.listen())
                port = self._listener.getsockname()[1]
                self._address = SeriesAddress((endpoint.host, port), token, key.certificate.read_text())
            self._listener.settimeout(_POLL_S)
            self._stack = stack.pop_all()
        self._admission = BackgroundCall(self._admit_tasks, "joinery-series-tasks")
        self._job = BackgroundCall(self._run_until_ended, "joinery-series-job")

    @property
    def is_over(self) -> bool:
        """Whether the series should take no further epoch."""
        return self._ended or self._clock() - self._began > _LIFETIME_S

    def run(self, work: bytes) -> list[Any]:
        """Have each task run this pickled work, and return what they yield, in the order of the peers. Raises
        SeriesBroken. Whatever it raises, the series has ended."""
        with self._changed:
            self._busy = True  # from here on there is no pause
            self._changed.wait_for(lambda: self._ended or len(self._channels) == self._count, _CONNECTING_S)
            connected, ended, repeated = len(self._channels), self._ended, self._repeated
        try:
            if connected < self._count and not repeated:
                raise TasksMissing(f"{connected} of {self._count} tasks have connected to {self._address}")
            if ended:
                raise SeriesBroken("it had ended")
            channels = [self._channels[peer][1] for peer in range(self._count)]
            for channel in channels:
                channel.write(work)
                channel.flush()
            results = [result for channel in channels for result in pickle.load(channel)]
        except SeriesBroken:
            self._hang_up()
            raise
        except Exception as error:  # of the connection, or of a result that cannot be read: a job says it again
            self._hang_up()
            raise SeriesBroken(f"{type(error).__name__}: {error}") from error
        except BaseException:  # a signal: a result is still to come, which is not that of the next epoch
            self._hang_up()
            raise
        with self._changed:
            self._busy, self._used_at = False, self._clock()
        return results

    def end(self) -> None:
        """Have the tasks return, and wait for the end of Spark's job."""
        self._hang_up()
        with suppress(OSError), socket.socket(self._listener.family) as waker:  # the thread may wait for a task
            waker.connect(self._listener.getsockname())
        self._admission.join()
        with self._changed:
            hellos = [*self._hellos.values()]
        for hello in hellos:
            hello.join(_ENDING_S)
        for connection, channel in self._channels.values():
            with suppress(OSError):  # there was something left to write
                channel.close()
            connection.close()
        self._job.join(_ENDING_S)
        if not self._job.done:  # a task still runs its epoch
            self._cancel_job()
            self._job.join(_ENDING_S)
        self._stack.close()

    def _run_until_ended(self) -> None:
        try:
            self._run_job(self._address)
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        """Take no more tasks, and end the connections of those that are there. A thread that reads one wakes up."""
        with self._changed:
            self._ended = True
            for connection in (*(connection for connection, _ in self._channels.values()), *self._hellos):
                # That of TLS would send what another thread writes without encryption.
                with suppress(OSError):  # the other end was quicker
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            self._changed.notify_all()

    def _admit_tasks(self) -> None:
        try:
            while not self._ended:
                with self._changed:
                    self._ended |= not self._busy and self._clock() - self._used_at > _PAUSE_S
                with suppress(TimeoutError):
                    self._begin_hello(self._listener.accept()[0])
        finally:
            self._hang_up()

    def _begin_hello(self, connection: socket.socket) -> None:
        """Let a thread hear who has connected: a stranger that says nothing must not keep tasks out."""
        if self._tls is not None:
            try:
                _set_up_tcp(connection)
                connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it has closed the connection
                connection.close()
                return
        with self._changed:
            if self._ended or len(self._hellos) >= _MOST_HELLOS:
                connection.close()
            else:
                call = partial(self._admit_task, connection)
                self._hellos[connection] = BackgroundCall(call, "joinery-series-hello")

    def _admit_task(self, connection: socket.socket) -> None:
        """Take up a task that says the token. Raises OSError and EOFError for a stranger, or a task that has ended."""
        try:
            with ExitStack() as stack:
                stack.enter_context(connection).settimeout(_CONNECTING_S)
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                channel = stack.enter_context(connection.makefile("rwb"))
                if not hmac.compare_digest(channel.read(_TOKEN_BYTES), self._address.token):
                    return
                peer, attempt = pickle.load(channel)
                if attempt:  # Spark runs a lost task again
                    self._repeated = True
                    self._hang_up()
                with self._changed:
                    if not self._ended:
                        connection.settimeout(_LONGEST_EPOCH_S)
                        self._channels[peer] = connection, channel
                        self._changed.notify_all()
                        stack.pop_all()
        finally:
            with self._changed:
                del self._hellos[connection]


class SmallEpochs:
    """The series of a host, one after the other. `run_job` runs the Spark job of a series until its tasks have ended,
    from the tasks, what its first epoch's peers do, and the executors that they prefer; `cancel_job` cancels it. `warn`
    is told, once, if tasks do not connect to `endpoint`."""

    def __init__(
        self,
        run_job: Callable[[SeriesTask, PeerTask, Sequence[str]], None],
        cancel_job: Callable[[], None],
        warn: Callable[[str], None],
        endpoint: SeriesEndpoint | None = None,
    ) -> None:
        self._run_job, self._cancel_job, self._warn, self._endpoint = run_job, cancel_job, warn, endpoint
        self._series: Series | None = None
        self._layout: object = None  # of the series that runs: its tasks and where they are
        self._newest_epoch = 0
        self._jobs_until = 0.0
        self._missing = 0  # how many series in a row had tasks that did not connect

    @property
    def running(self) -> bool:
        """Whether tasks wait for an epoch."""
        return self._series is not None and not self._series.is_over

    def run(self, task: PeerTask, executors: Sequence[str]) -> list[object] | None:
        """Run a small epoch of one stage, and return its results. None: it has to be a Spark job of its own. So is the
        first one of several: whether more follow is not known."""
        epoch, before = task.work.plan.epoch, self._newest_epoch
        self._newest_epoch = epoch
        layout = (tuple(executors), task.peers.count)
        if not self.running or layout != self._layout:
            self.end()
            if epoch != before + 1 or epoch < self._jobs_until:
                return None
            self._layout = layout
        work = (task.work, task.peers, task.setup.collects_letters)
        try:
            if self._series is None:
                self._series = Series(
                    task.peers.count,
                    lambda address: self._run_job(SeriesTask(task.setup, address), task, executors),
                    self._cancel_job,
                    self._endpoint,
                )
            results = self._series.run(pickle.dumps(work, pickle.HIGHEST_PROTOCOL))
            self._missing = 0
            return results
        except SeriesBroken as broken:
            self._jobs_until = epoch + _JOBS_AFTER_BREAK
            self._missing += isinstance(broken, TasksMissing)
            lasting = f"{broken}. Let executors reach that address" if self._missing == _MOST_MISSING else ""
        except OSError as error:  # of the socket
            self._jobs_until = epoch + _JOBS_AFTER_BREAK
            passes = error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM}
            lasting = "" if passes else f"{error}. Free the port, or name a folder with a shorter path in TMPDIR"
        self.end()
        if lasting:
            self._jobs_until = math.inf
            self._warn(
                f"Small epochs are Spark jobs of their own, so each of them takes some 20 ms longer: {lasting}, and "
                "start the job again (docs/operations.md#ports)"
            )
        return None

    def end(self) -> None:
        """End the series that runs, if one does."""
        series, self._series = self._series, None
        if series is not None:
            series.end()
