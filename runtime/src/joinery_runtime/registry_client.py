"""The client of a schema registry, from the settings that a job has."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.schema_registry import SchemaRegistryClient

# The client's settings that are numbers; a job has all settings as text.
_NUMBERS = {
    "timeout",
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.wait.ms",
    "retries.max.wait.ms",
}


def registry_client(url: str, properties: Mapping[str, str]) -> SchemaRegistryClient:
    """Raises ValueError or TypeError for settings that the client refuses. It connects later, by itself."""
    numbers = {name: float(text) for name, text in properties.items() if name in _NUMBERS}
    whole = {name: int(number) for name, number in numbers.items() if number.is_integer()}
    return SchemaRegistryClient({**properties, **numbers, **whole, "url": url})
