"""A schema registry for tests, as far as readers and writers need it: GET /schemas/ids/N, /subjects/S/versions
and /subjects/S/versions/V, POST /subjects/S/versions, DELETE /subjects/S/versions/V, of Confluent's REST interface."""

from __future__ import annotations

import json
import re
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
    page: str | None = None
    """What it answers to every GET, as a web server does, with `page_status`."""
    page_status: int = 200
    lenient: bool = False
    """Takes schemas that contradict each other."""
    deleted: set[tuple[str, int]] = field(default_factory=set)
    keeps: bool = False
    """Lets nobody delete a version."""
    requested_paths: list[str] = field(default_factory=list)

    def add(self, schema: Any, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        number = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        more = {} if kind == "AVRO" else {"schemaType": kind}
        self.schemas[number] = {"schema": text, **more, **({"references": references} if references else {})}
        return number

    def register(self, subject: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Refused where a field has another type than in the subject's newest version; in Protobuf a number says which
        field it is."""
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "not now"}
        ids_by_version = {version: number for (name, version), number in self.subjects.items() if name == subject}
        for number in ids_by_version.values():
            if self.schemas[number]["schema"] == body["schema"]:
                return 200, {"id": number}
        if ids_by_version and not self.lenient:
            before, after = _fields(self.schemas[ids_by_version[max(ids_by_version)]]), _fields(body)
            changed = [name for name, definition in after.items() if before.get(name, definition) != definition]
            if changed:
                return 409, {"error_code": 409, "message": f"incompatible: {', '.join(changed)}"}
        number = self.add(body["schema"], body.get("schemaType", "AVRO"))
        self.subjects[subject, max(ids_by_version, default=0) + 1] = number
        return 200, {"id": number}

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.requested_paths.append(path)
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "not now"}
        if self.login is not None and authorization != f"Basic {b64encode(self.login.encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        resource, _, query = path.partition("?")
        hidden = set() if "deleted=true" in query.lower() else self.deleted
        subjects = {key: number for key, number in self.subjects.items() if key not in hidden}
        match resource.strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self.schemas[int(number)]
            case ["subjects", name, "versions"] if any(subject == name for subject, _ in subjects):
                return 200, sorted(version for subject, version in subjects if subject == name)
            case ["subjects", name, "versions", requested]:
                versions = [version for subject, version in subjects if subject == name]
                version = max(versions, default=0) if requested == "latest" else int(requested)
                if version in versions:
                    number = self.subjects[name, version]
                    return 200, {"subject": name, "version": version, "id": number, **self.schemas[number]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def delete(self, path: str) -> tuple[int, Any]:
        if self.keeps:
            return 403, {"error_code": 40301, "message": "not yours"}
        *_, name, _, version = path.partition("?")[0].split("/")
        self.deleted.add((name, int(version)))
        return 200, int(version)


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    """What may not change about a field, by its name or number."""
    if schema.get("schemaType") == "PROTOBUF":
        matches = re.findall(r"(\S+) (\w+) = (\d+);", schema["schema"])
        return {number: (kind, name) for kind, name, number in matches}
    return {avro_field["name"]: avro_field["type"] for avro_field in json.loads(schema["schema"])["fields"]}


@contextmanager
def registry() -> Iterator[Registry]:
    served = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if served.page is not None:
                self._write(served.page_status, "text/html", served.page.encode())
                return
            self._send(*served.answer(self.path, self.headers.get("Authorization")))

        def do_DELETE(self) -> None:
            self._send(*served.delete(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            match self.path.partition("?")[0].strip("/").split("/"):
                case ["subjects", subject, "versions"]:
                    self._send(*served.register(subject, body))
                case _:
                    self._send(404, {"error_code": 404, "message": "not found"})

        def _send(self, status: int, body: Any) -> None:
            self._write(status, "application/vnd.schemaregistry.v1+json", json.dumps(body).encode())

        def _write(self, status: int, kind: str, written: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
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
