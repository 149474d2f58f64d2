"""Numbers of an input's topics and files, which tell rows of equal partition and offset apart (rule J2).

A topic gets its number when a plan first sees it and keeps it, so numbers of rows in the state and of new rows compare.
The first topic has number 0. So an input of one topic has no number in any stored document, as in earlier releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from joinery_runtime.connectors.source import Bounds


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """The numbers of an input's topics or files by name, and how many have been given. One that is not named has
    0."""

    by_topic: Mapping[str, int] = field(default_factory=dict)
    count: int = 0

    def of_new(self, bounds: Iterable[Bounds], read: Iterable[str], topic_ids: Mapping[str, str]) -> dict[str, int]:
        """Return numbers for the topics of these bounds that have none yet, in the order of the bounds. Topics that
        have been `read` come first: an earlier release gave them no numbers, or there was one topic, which has 0. If
        there were several, the state has rows of each with 0, and no topic gets that number. A topic that was
        recreated, by its id in `topic_ids`, is another topic. Empty if all rows so far have 0."""
        unnumbered = sorted(frozenset(read) - self.by_topic.keys())
        new: dict[str, None] = {}
        for bound in bounds:
            topic, known_id = bound.partition.topic, topic_ids.get(bound.partition.topic, "")
            recreated = bool(known_id and bound.topic_id and known_id != bound.topic_id)
            if recreated or (topic not in self.by_topic and topic not in unnumbered):
                new[topic] = None
        first = self.count or int(len(unnumbered) > 1)
        numbers = {topic: number for number, topic in enumerate([*unnumbered, *new], first)}
        return numbers if any(numbers.values()) else {}

    def with_new(self, numbers: Mapping[str, int]) -> Self:
        return type(self)({**self.by_topic, **numbers}, max([self.count, *(n + 1 for n in numbers.values())]))

    def without(self, topics: Iterable[str]) -> Self:
        """Forget the numbers of these topics; no other topic gets them. An only topic had 0 and is not named."""
        forgotten = frozenset(topics)
        count = self.count or int(bool(forgotten))
        return type(self)({name: n for name, n in self.by_topic.items() if name not in forgotten}, count)

    def to_json(self) -> list[Any] | None:
        """None: there is nothing to store, because no topic but the first has a number."""
        return [self.count, dict(self.by_topic)] if self.count else None

    @classmethod
    def from_json(cls, doc: tuple[int, Mapping[str, int]] | None) -> Self:
        return cls() if doc is None else cls(dict(doc[1]), doc[0])
