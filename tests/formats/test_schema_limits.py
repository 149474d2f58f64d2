"""Schemas of a registry that do harm: circles, thousands of references, texts that are deep or long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from formats.registry import Registry, registry
from formats.test_debezium import of_values
from joinery_runtime.connectors.inputs import decoder_for
from joinery_runtime.errors import SourceUnavailable
from joinery_runtime.formats.records import Decoded
from joinery_runtime.formats.registry import client
from joinery_runtime.formats.registry.client import DEEPEST_REFERENCES, MOST_CHARACTERS, MOST_REFERENCES
from joinery_runtime.formats.registry.schemas import Schemas, UnknownSchema
from joinery_runtime.job import Input


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as schema_registry:
        yield schema_registry


def model(served: Registry, kind: str) -> Input:
    kafka = {"bootstrapServers": "127.0.0.1:1", "topic": "t"}
    columns = [{"name": "id", "type": "int64"}, {"name": "ts", "type": "int64"}]
    side = {"name": "in", "kafka": kafka, "format": kind, "schema": columns, "eventTime": "ts"}
    return Input.model_validate({**side, "schemaRegistry": {"url": served.url}})


def reference(to: str) -> list[dict[str, Any]]:
    return [{"name": to, "subject": to, "version": 1}]


def decode(served: Registry, kind: str, number: int, records: int = 1) -> Decoded:
    framed = b"\0" + number.to_bytes(4) + b"\0\2\2"
    return of_values(model(served, kind), pa.array([framed] * records, pa.binary()))


AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "ts", "type": "long"}]}
PROTO = 'syntax = "proto3"; message R { int64 id = 1; }'


@pytest.mark.parametrize(("kind", "name", "schema"), [("avro", "AVRO", AVRO), ("protobuf", "PROTOBUF", PROTO)])
def test_references_that_lead_in_a_circle_are_asked_for_once(
    served: Registry, kind: str, name: str, schema: Any
) -> None:
    first = served.add(schema, name, references=reference("second"))
    second = served.add(schema, name, references=reference("first"))
    served.subjects |= {("first", 1): first, ("second", 1): second}
    decoded = decode(served, kind, first, records=50)
    assert [bad.index for bad in decoded.bad] == list(range(50))
    assert "its references lead in a circle: second -> first -> second" in decoded.bad[0].reason
    assert len(served.requested_paths) == 3


@pytest.mark.parametrize(
    ("count", "wide", "says"),
    [(DEEPEST_REFERENCES + 5, False, "deep"), (MOST_REFERENCES + 5, True, f"more than {MOST_REFERENCES} schemas")],
)
def test_references_are_followed_so_far_and_so_many(served: Registry, count: int, wide: bool, says: str) -> None:
    names = [f"s{n}" for n in range(count)]
    for at, name in enumerate(names):
        more = reference(names[at + 1]) if not wide and at + 1 < count else []
        served.subjects[name, 1] = served.add(AVRO | {"name": name}, references=more)
    number = served.add(
        AVRO,
        references=[
            schema_reference for name in (names if wide else names[:1]) for schema_reference in reference(name)
        ],
    )
    assert says in decode(served, "avro", number).bad[0].reason
    assert len(served.requested_paths) <= MOST_REFERENCES + 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type":"array","items":' * 2_000 + '"null"' + "}" * 2_000, "not valid"),
        ('{"type":"array","items":' * 600 + '"null"' + "}" * 600, "nested deeper than 500"),
        (json.dumps(AVRO | {"doc": "x" * MOST_CHARACTERS}), "characters"),
    ],
    ids=["very deep", "deep", "long"],
)
def test_a_schema_whose_text_is_too_deep_or_too_long_makes_dead_letters(served: Registry, text: str, says: str) -> None:
    assert says in decode(served, "avro", served.add(text)).bad[0].reason


def test_a_schema_that_is_too_long_to_be_read_makes_dead_letters(
    served: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not make it shorter. It may be the one that a start asks for."""
    monkeypatch.setattr(client, "_MOST_BYTES", 100_000)
    number = served.add(AVRO | {"doc": "x" * 100_000})
    Schemas.of(model(served, "avro")).check()
    assert "schema 1: the answer has more than 100,000 bytes" in decode(served, "avro", number).bad[0].reason


def test_a_number_that_the_registry_does_not_have_is_asked_for_again_after_a_while(served: Registry) -> None:
    now = [0.0]
    own = Schemas.of(model(served, "avro"))
    schemas = Schemas(own._registry, own._client, now=lambda: now[0])
    for _ in range(5):
        with pytest.raises(UnknownSchema):
            schemas.avro(1)
    assert len(served.requested_paths) == 1
    served.add(AVRO)
    now[0] = 11.0
    assert schemas.avro(1)["name"] == "R"


def test_a_schema_that_two_others_refer_to_is_fine(served: Registry) -> None:
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "long"}]}
    box = {"type": "record", "name": "shop.Box", "fields": [{"name": "line", "type": "shop.Line"}]}
    served.subjects["shop.Line", 1] = served.add(line)
    served.subjects["shop.Box", 1] = served.add(box, references=reference("shop.Line"))
    types = {"id": "long", "ts": "long", "box": ["null", "shop.Box"], "line": ["null", "shop.Line"]}
    fields = [{"name": name, "type": avro_type} for name, avro_type in types.items()]
    order = {"type": "record", "name": "shop.Order", "fields": fields}
    number = served.add(order, references=[*reference("shop.Box"), *reference("shop.Line")])
    framed = b"\0" + number.to_bytes(4) + b"\2\2\0\0"
    decoded = decoder_for(model(served, "avro")).decode(pa.array([framed]))  # type: ignore[attr-defined]
    assert (decoded.bad, decoded.rows["id"].to_pylist()) == ([], [1])


def test_a_schema_is_not_blamed_for_the_machine(served: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [MemoryError()]
    parse = fastavro.parse_schema

    def fails(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return parse(*arguments)

    monkeypatch.setattr(fastavro, "parse_schema", fails)
    schemas = Schemas.of(model(served, "avro"))
    assert schemas.avro(served.add(AVRO))["name"] == "R"
    errors.append(OSError(24, "Too many open files"))
    second = served.add({**AVRO, "name": "S"})
    with pytest.raises(OSError, match="Too many"):
        schemas.avro(second)
    assert schemas.avro(second)["name"] == "S"


@contextmanager
def endless_server(pause: float) -> Iterator[str]:
    """A server whose answers have no end, as its URL. It waits so many seconds between pieces of 1 KB."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 1024)
                    time.sleep(pause)
            except OSError:
                """The client has left."""

        def log_message(self, *_: Any) -> None:
            """Nothing of it is of interest."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("pause", "says"),
    [(0.0, "the answer has more than 1,000,000 bytes"), (0.01, "the answer has not ended after 0.2 s")],
)
def test_an_answer_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch, pause: float, says: str) -> None:
    monkeypatch.setattr(client, "_MOST_BYTES", 1_000_000)
    monkeypatch.setattr(client, "_MOST_SECONDS", 0.2 if pause else 60.0)
    with endless_server(pause) as url, pytest.raises(SourceUnavailable, match="no schema registry answers") as raised:
        Schemas.of(model(Registry(url), "avro")).avro(1)
    assert f"{url} was asked for schema 1: {says}" in raised.value.facts
