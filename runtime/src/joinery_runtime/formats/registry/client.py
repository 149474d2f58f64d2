"""Access to a schema registry for inputs and outputs: its client, made from a job's settings, its errors, and what a
schema in it refers to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from joinery_runtime.errors import JoineryError, Unavailable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

# Settings that the client takes as numbers; in a job all settings are text.
_NUMBERS = {
    "timeout",
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
}
_NOT_FOUND, _FORBIDDEN, _REFUSED = 404, 403, (409, 422)  # of HTTP
_DENIED = (401, _FORBIDDEN)
_QUOTED = 200  # characters of an answer in an error
_TIMEOUT = 20  # seconds without a byte, unless the job sets `timeout`; the client would wait for ever
_MOST_BYTES, _MOST_SECONDS = 8 << 20, 60.0  # of one answer; a schema has at most a million characters
_PIECE = 64 << 10

Answer = TypeVar("Answer")


class SchemaRejected(Exception):
    """The registry rejects a schema, or has one that is too long. The text says why."""


class _LongSchema(Exception):
    """A registry's answer is too long to be read."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry. Its errors begin with `whose`. `setting` is the place in the job that names it. It raises
    `problem` where waiting does not help, and `unavailable` otherwise."""

    url: str
    whose: str
    setting: str
    problem: type[JoineryError]
    unavailable: type[Unavailable]

    def client(self, properties: Mapping[str, str]) -> SchemaRegistryClient:
        """Make a client, which connects on first use. Raises `problem` for settings that the client rejects."""
        # The import takes 80 ms, which a job without a registry should not wait for.
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

        try:
            numbers = {name: float(text) for name, text in properties.items() if name in _NUMBERS}
            integers = {name: int(number) for name, number in numbers.items() if number.is_integer()}
            client = SchemaRegistryClient({"timeout": _TIMEOUT, **properties, **numbers, **integers, "url": self.url})
        except (ValueError, TypeError) as error:
            raise self.problem(
                f"{self.whose}: {self.setting}.properties are not valid",
                facts=str(error),
                todo="Use the names and values of confluent-kafka's SchemaRegistryClient",
            ) from error
        client._rest_client.session.event_hooks = {"response": [_read_answer]}
        return client

    def ask(self, ask: Callable[[], Answer], request: str) -> Answer | None:
        """Ask the registry and return its answer; None if it does not have what was asked for. Messages call that
        `request`. Raises SchemaRejected for a schema that the registry rejects, and for one that is too long."""
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 - see `client`

        try:
            return ask()
        except SchemaRegistryError as error:
            facts = self._request_facts(request, error)
            if error.http_status_code == _NOT_FOUND:
                # Codes 40401 to 40403 say that the registry has no such schema, subject or version. Without such a
                # code, the answer is about the address.
                if isinstance(error.error_code, int) and error.error_code // 100 == _NOT_FOUND:
                    return None
                raise self._no_registry(facts) from error
            if error.http_status_code in _REFUSED:
                raise SchemaRejected(facts) from error
            if error.http_status_code in _DENIED:
                raise self.problem(
                    f"{self.whose}: the schema registry denies access",
                    facts=facts,
                    todo=f"Check basic.auth.user.info in {self.setting}.propertiesSecretRef",
                ) from error
            raise self._silence_error(facts) from error
        except _LongSchema as error:
            raise SchemaRejected(self._request_facts(request, error)) from error
        except ValueError as error:  # an answer that is no JSON, or without an end
            raise self._no_registry(self._request_facts(request, error)) from error
        except Exception as error:  # from whatever HTTP library the client uses
            raise self._silence_error(self._request_facts(request, error)) from error

    def check(self, client: SchemaRegistryClient) -> None:
        """Ask the registry for any schema, to learn whether it is one and lets the job in. Raises as `ask` does."""
        try:
            with suppress(SchemaRejected):  # there is one
                self.ask(lambda: client.get_schema(1), "schema 1")
        except self.problem as error:
            # A registry may deny this schema and allow those of the job.
            if getattr(error.__cause__, "http_status_code", None) != _FORBIDDEN:
                raise

    def _request_facts(self, request: str, error: Exception) -> str:
        # A web server's answer, which the error repeats, is a whole page.
        answer = str(error)
        return f"{self.url} was asked for {request}: {answer[:_QUOTED]}{'...' if len(answer) > _QUOTED else ''}"

    def _no_registry(self, facts: str) -> Unavailable:
        # A proxy answers like this while its registry restarts, so a running job waits.
        return self.unavailable(
            f"{self.whose}: no schema registry answers at this address",
            facts=facts,
            todo=f"Check {self.setting}.url, with its path: the server at this address is no schema registry",
        )

    def slow_error(self, request: str) -> Unavailable:
        """Return the error for a registry whose answers take too long in all."""
        return self._silence_error(f"{self.url} was asked for {request}")

    def _silence_error(self, facts: str) -> Unavailable:
        return self.unavailable(
            f"{self.whose}: the schema registry does not answer",
            facts=facts,
            todo=f"Check {self.setting}.url and that the registry can be reached from here",
        )


def _read_answer(response: Any) -> None:
    """Read the body of an answer (`httpx.Response`), which the client would read to its end however long it is. Raises
    ValueError, and _LongSchema if what is too long says that it is JSON: whoever may register a schema may register a
    long one, and waiting does not make it shorter."""
    end, pieces, size = time.monotonic() + _MOST_SECONDS, [], 0
    for piece in response.iter_bytes(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            of_registry = "json" in response.headers.get("Content-Type", "").lower()
            raise (_LongSchema if of_registry else ValueError)(f"the answer has more than {_MOST_BYTES:,} bytes")
        if time.monotonic() > end:
            raise ValueError(f"the answer has not ended after {_MOST_SECONDS:g} s")
    response._content = b"".join(pieces)


# Whoever may register a schema decides what it refers to: to itself, to thousands of others, to very long ones.
MOST_REFERENCES = 100
"""How many schemas one schema may refer to in all."""
DEEPEST_REFERENCES = 20
"""How many schemas there may be on the way from a schema to one that it refers to."""
MOST_CHARACTERS = 1 << 20
"""How long a schema may be, with all that it refers to."""


class UnusableReferences(Exception):
    """A schema, with what it refers to, is over a limit, or refers to itself. The text says which."""


def references_of(root: Any, referenced: Callable[[Any], Iterable[tuple[str, Any]]]) -> list[tuple[str, Any]]:
    """Return the schemas that `root` refers to, each once with the name that is used for it, those first that others
    need. `referenced` yields the schemas that a schema refers to, with their names. Raises UnusableReferences."""
    names: dict[str, Any] = {}
    length = _add_length(root, 0)

    def visit_schema(schema: Any, way: tuple[str, ...]) -> None:
        nonlocal length
        if len(way) > DEEPEST_REFERENCES:
            raise UnusableReferences(
                f"its references are more than {DEEPEST_REFERENCES} deep: {' -> '.join(way[:4])} ..."
            )
        if len(schema.references or ()) > MOST_REFERENCES:
            raise UnusableReferences(f"it refers to more than {MOST_REFERENCES} schemas")
        for name, other in referenced(schema):
            if name in way:
                raise UnusableReferences(f"its references lead in a circle: {' -> '.join((*way, name))}")
            if name in names:
                continue
            length = _add_length(other, length)
            visit_schema(other, (*way, name))
            names[name] = other
            if len(names) > MOST_REFERENCES:
                raise UnusableReferences(f"it refers to more than {MOST_REFERENCES} schemas")

    visit_schema(root, ())
    return list(names.items())


def _add_length(schema: Any, before: int) -> int:
    length = before + len(schema.schema_str)
    if length > MOST_CHARACTERS:
        raise UnusableReferences(f"it has more than {MOST_CHARACTERS:,} characters, with what it refers to")
    return length
