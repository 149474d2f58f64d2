"""Which state store a job has, as two jobs of one name tell each other through Kafka.

A job writes it into what it commits to Kafka: into the offsets of its consumer groups, and into a group of its own at
the output topic. Who finds another store there shares its name with another job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """`id` is random: made once with the store's tables, or once for each store in memory. `place` says where the store
    is, for messages; it never has a password."""

    id: str
    place: str

    def __str__(self) -> str:
        return f"{self.place} (store {self.id})"

    def metadata(self) -> str:
        """For an offset that is committed: Kafka takes 4,096 bytes."""
        return json.dumps({"store": self.id, "place": self.place})

    @classmethod
    def parse(cls, metadata: str | None) -> StoreIdentity | None:
        """None where nobody, or somebody else, wrote the metadata."""
        try:
            about = json.loads(metadata or "")
            return cls(str(about["store"]), str(about["place"]))
        except (ValueError, KeyError, TypeError):
            return None
