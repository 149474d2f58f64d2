"""Batches of records in every compression, and ones that the client cannot unpack, on librdkafka's own mock broker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from connectors.kafka.kafka_bench import kafka_input, ref
from joinery_runtime.connectors.inputs import reader_for
from joinery_runtime.connectors.source import Range
from joinery_runtime.errors import SourceError

TOPIC = "compressed"
UNKNOWN_CODEC, GZIP, ZSTD = 5, 1, 4


@pytest.fixture
def mock_broker() -> Iterator[str]:
    """The address of a broker that takes any batch as it is. A real one rejects those that it cannot unpack."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    broker = next(iter(owner.list_topics(TOPIC, timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    del owner


def read(broker: str, end: int) -> list[bytes]:
    with closing(reader_for(kafka_input(broker, TOPIC))) as reader:
        return [value for batch in reader.read(Range(ref(TOPIC), 0, end)) for value in batch.values.to_pylist()]


def send(broker: str, values: list[bytes], compression: str = "none") -> None:
    producer = Producer({"bootstrap.servers": broker, "compression.type": compression})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0


def crc32c(data: bytes) -> int:
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def send_packed(broker: str, codec: int, packed: bytes, flipped: int = 0) -> None:
    """Sends one record in a batch of this codec (Produce request of version 7, batch of magic 2). Bits that are
    `flipped` make the batch's checksum wrong."""
    body = struct.pack(">hiqqqhii", codec, 0, 1_000, 1_000, -1, -1, -1, 1) + packed
    rest = struct.pack(">ibI", 0, 2, crc32c(body) ^ flipped) + body
    batch = struct.pack(">qi", 0, len(rest)) + rest
    topic = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    request = struct.pack(">hhih", 0, 7, 1, -1) + struct.pack(">hhi", -1, -1, 10_000)
    request += struct.pack(">i", 1) + topic + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, _, port = broker.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        assert connection.recv(4_096)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(mock_broker: str, way: str, compression: str) -> None:
    values = [b'{"ts": %d}' % number for number in range(500)]
    send(mock_broker, values, compression)
    assert read(mock_broker, len(values)) == values


@pytest.mark.parametrize(
    ("codec", "fault", "remedy"),
    [
        (UNKNOWN_CODEC, "codec 0x5", "Install confluent-kafka as a wheel"),
        (GZIP, "codec 0x1", "delete the partition's records up to the next batch"),
        (ZSTD, "codec 0x4", "delete the partition's records up to the next batch"),
    ],
)
def test_one_that_cannot_be_unpacked_stops_the_job_at_its_offset(
    mock_broker: str, way: str, codec: int, fault: str, remedy: str
) -> None:
    """The client skips none of its records."""
    send(mock_broker, [b'{"ts": 1}'])
    send_packed(mock_broker, codec, b"\x28\xb5\x2f\xfd damaged")
    send(mock_broker, [b'{"ts": 3}'])
    with pytest.raises(SourceError, match=rf"reading partition {TOPIC}-0 from offset 1 failed") as raised:
        read(mock_broker, 3)
    assert fault in raised.value.facts
    assert remedy in raised.value.todo


def record_bytes(value: bytes) -> bytes:
    """A record of magic 2 without a key; its numbers are zigzag varints of one byte."""
    fields = b"\x00\x00\x00\x01" + bytes([2 * len(value)]) + value + b"\x00"
    return bytes([2 * len(fields)]) + fields


@pytest.mark.parametrize("flipped", [0, 1])
def test_a_batch_whose_checksum_is_wrong_stops_the_job_at_its_offset(mock_broker: str, way: str, flipped: int) -> None:
    """Nothing else would show that a value has changed on its way, or on a disk."""
    send(mock_broker, [b'{"ts": 1}'])
    send_packed(mock_broker, 0, record_bytes(b'{"ts": 2}'), flipped)
    send(mock_broker, [b'{"ts": 3}'])
    if not flipped:
        assert read(mock_broker, 3) == [b'{"ts": 1}', b'{"ts": 2}', b'{"ts": 3}']
        return
    with pytest.raises(SourceError, match=rf"reading partition {TOPIC}-0 from offset 1 failed") as raised:
        read(mock_broker, 3)
    assert "CRC" in raised.value.facts
