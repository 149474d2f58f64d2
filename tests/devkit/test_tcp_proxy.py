import socket
import threading
from contextlib import suppress

import pytest

from joinery_devkit.tcp_proxy import TcpProxy


@pytest.fixture
def echo_port():
    """A server that sends back what it gets, until the test ends."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def echo(connection):
        with suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)

    def serve():
        with suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                threading.Thread(target=echo, args=connections[-1:], daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()
    for connection in connections:
        connection.close()


def is_dropped(connection):
    """Ended, or reset, which is how a connection ends that had something unread."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def proxy(echo_port):
    with TcpProxy(echo_port) as running:
        yield running


@pytest.fixture
def connect(proxy):
    opened = []

    def connecting():
        opened.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=10))
        return opened[-1]

    yield connecting
    for connection in opened:
        connection.close()


def echoed(connection, data):
    connection.sendall(data)
    answer = b""
    while len(answer) < len(data):
        answer += connection.recv(2**20)
    return answer


def hears_nothing(connection):
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(10)
    return True


def test_bytes_pass_both_ways(connect):
    data = bytes(range(256)) * 10_000
    first, second = connect(), connect()
    sender = threading.Thread(target=first.sendall, args=(data,))
    sender.start()
    answer = b""
    while len(answer) < len(data):
        answer += first.recv(2**20)
    sender.join()
    assert answer == data
    assert echoed(second, b"two") == b"two"


def test_a_cut_drops_connections_and_refuses_new_ones_until_it_is_restored(proxy, connect):
    old = connect()
    assert echoed(old, b"a") == b"a"
    proxy.cut()
    assert is_dropped(old)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.restore()
    assert echoed(connect(), b"b") == b"b"


def test_after_a_silent_cut_connections_stay_and_what_was_sent_arrives_later(proxy, connect):
    old = connect()
    assert echoed(old, b"a") == b"a"
    proxy.cut(silent=True)
    new = connect()
    for connection in (old, new):
        connection.sendall(b"late")
        assert hears_nothing(connection)
    proxy.restore()
    assert [connection.recv(4) for connection in (old, new)] == [b"late", b"late"]


def test_a_silent_cut_may_turn_into_a_loud_one(proxy, connect):
    proxy.cut(silent=True)
    silenced = connect()
    silenced.sendall(b"x")
    proxy.cut()
    assert is_dropped(silenced)
    proxy.restore()
    assert echoed(connect(), b"b") == b"b"


def test_a_client_that_hangs_up_hangs_up_the_server_s_side_too(echo_port):
    with TcpProxy(echo_port) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert echoed(client, b"a") == b"a"
        before = threading.active_count()
    assert threading.active_count() < before


def test_without_a_server_connections_are_dropped():
    with TcpProxy(1) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        assert is_dropped(client)
