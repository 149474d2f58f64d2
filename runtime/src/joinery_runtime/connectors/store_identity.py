"""The identity of a job's state store, by which two jobs of one name notice each other through Kafka.

A job writes it into what it commits to Kafka: the offsets of its consumer groups, and those of a group of its own for
the output topic. A job that finds another store there shares its name with another job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """`id` is random, created with the store's tables or with a store in memory. `location` says in messages where the
    store is, and never contains a password."""

    id: str
    location: str

    def __str__(self) -> str:
        return f"{self.location} (store {self.id})"

    def metadata(self) -> str:
        """The metadata of a committed offset, for which Kafka allows 4,096 bytes."""
        return json.dumps({"store": self.id, "place": self.location})

    @classmethod
    def parse(cls, metadata: str | None) -> StoreIdentity | None:
        """Parses the metadata of an offset. None if it is empty or not ours."""
        try:
            fields = json.loads(metadata or "")
            return cls(str(fields["store"]), str(fields["place"]))
        except (ValueError, KeyError, TypeError):
            return None
