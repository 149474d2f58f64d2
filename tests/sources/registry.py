"""A schema registry for tests, as far as readers need it: GET /schemas/ids/N and /subjects/S/versions/V of Confluent's
REST interface."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Registry:
    """`schemas` by number; `subjects` by name and version: the number of a schema. With a `login` (`user:password`) it
    answers nobody else; `status` is what it answers instead of anything else."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[tuple[str, int], int] = field(default_factory=dict)
    login: str | None = None
    status: int | None = None
    asked: list[str] = field(default_factory=list)

    def add(self, schema: Any, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        number = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        more = {} if kind == "AVRO" else {"schemaType": kind}
        self.schemas[number] = {"schema": text, **more, **({"references": references} if references else {})}
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "not now"}
        if self.login is not None and authorization != f"Basic {b64encode(self.login.encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.partition("?")[0].strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case ["subjects", name, "versions", version] if (name, int(version)) in self.subjects:
                number = self.subjects[name, int(version)]
                return 200, {"subject": name, "version": int(version), "id": number, **self.schemas[number]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def registry() -> Iterator[Registry]:
    served = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = served.answer(self.path, self.headers.get("Authorization"))
            written = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, *_: Any) -> None:
            """Nothing of it is of interest."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
