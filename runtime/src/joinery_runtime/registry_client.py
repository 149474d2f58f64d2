"""A schema registry as an input or an output asks it: its client, from the settings that a job has, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from joinery_runtime.errors import JoineryError, Unavailable

# The client's settings that are numbers; a job has all settings as text.
_NUMBERS = {
    "timeout",
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
}
_MISSING, _DENIED, _REFUSED = 404, (401, 403), (409, 422)  # of HTTP

Answer = TypeVar("Answer")


class SchemaRejected(Exception):
    """The registry does not take a schema; the text says why."""


@dataclass(frozen=True, slots=True)
class Registry:
    """`whose` begins its errors, and `setting` is where the job names it; `problem` is raised for what waiting does not
    mend, `away` for the rest."""

    url: str
    whose: str
    setting: str
    problem: type[JoineryError]
    away: type[Unavailable]

    def client(self, properties: Mapping[str, str]) -> SchemaRegistryClient:
        """Connects later, by itself. Raises `problem` for settings that the client refuses."""
        try:
            numbers = {name: float(text) for name, text in properties.items() if name in _NUMBERS}
            whole = {name: int(number) for name, number in numbers.items() if number.is_integer()}
            return SchemaRegistryClient({**properties, **numbers, **whole, "url": self.url})
        except (ValueError, TypeError) as error:
            raise self.problem(
                f"{self.whose}: {self.setting}.properties are not valid",
                facts=str(error),
                todo="Use the names and values of confluent-kafka's SchemaRegistryClient",
            ) from error

    def ask(self, ask: Callable[[], Answer], what: str) -> Answer | None:
        """The answer to a question for `what`; None: the registry has no such thing. Raises Refused for a schema that
        it does not take."""
        try:
            return ask()
        except SchemaRegistryError as error:
            facts = f"{self.url} was asked for {what}: {error}"
            if error.http_status_code == _MISSING:
                return None
            if error.http_status_code in _REFUSED:
                raise SchemaRejected(facts) from error
            if error.http_status_code in _DENIED:
                raise self.problem(
                    f"{self.whose}: the schema registry refuses access",
                    facts=facts,
                    todo=f"Check basic.auth.user.info in {self.setting}.propertiesSecretRef",
                ) from error
            raise self._silent(facts) from error
        except Exception as error:  # of whatever the client uses for HTTP
            raise self._silent(f"{self.url} was asked for {what}: {error}") from error

    def _silent(self, facts: str) -> Unavailable:
        return self.away(
            f"{self.whose}: the schema registry does not answer",
            facts=facts,
            todo=f"Check {self.setting}.url and that the registry can be reached from here",
        )
