"""What looks wrong with an input's records, though each of them may be fine: a column that no record has a value for,
and records of which none can be used. Most often a name, a path or a format in the job is not what the topic has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.job.model.wording import counted, listed

MOST_NAMED = 5  # columns in one message


@dataclass(slots=True)
class _Input:
    """What has been read of an input since the driver started. `empty` columns were null in all rows, None before
    the first row; `unusable` records went to the dead letters or have a null key, by reason, and `first` is one of
    them; `deletions` of a stream are no rows, and say nothing about the others."""

    records: int = 0
    rows: int = 0
    empty: frozenset[str] | None = None
    unusable: dict[str, int] = field(default_factory=dict)
    deletions: int = 0
    first: str = ""

    def add(self, read: PartitionRead) -> None:
        self.records += read.records
        if read.empty is not None:
            self.rows += read.decoded
            self.empty = read.empty if self.empty is None else self.empty & read.empty
        self.deletions += read.dropped.get("deletion", 0) + read.dropped.get("tombstone", 0)
        for reason, count in (("dead letter", read.dead), ("null key", read.dropped.get("null_key", 0))):
            if count:
                self.unusable[reason] = self.unusable.get(reason, 0) + count
        self.first = self.first or read.first_dead

    @property
    def useless(self) -> bool:
        return bool(self.unusable) and sum(self.unusable.values()) + self.deletions == self.records

    def warning(self, name: str) -> str | None:
        """In one sentence or two."""
        said = []
        if self.useless:
            what = self.unusable | ({"deleted record": self.deletions} if self.deletions else {})
            counts = listed(counted(count, reason) for reason, count in what.items())
            first = f" (the first: {self.first})" if self.first else ""
            none = f"none of the {self.records:,} records" if self.records > 1 else "the one record"
            said.append(f"{none} read so far can{'' if self.records > 1 else 'not'} be used: {counts}{first}")
        if self.empty:
            named = sorted(self.empty)
            more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            any_of = f"any of the {self.rows:,} records" if self.rows > 1 else "the one record"
            columns = f"column{'s' if len(named) > 1 else ''} {', '.join(named[:MOST_NAMED])}{more}"
            said.append(f"no value for {columns} in {any_of} decoded so far")
        if not said:
            return None
        nested = ""
        if self.empty:
            dotted = next((column for column in sorted(self.empty) if "." in column), "customer.id")
            nested = f"; a value inside of an object is written as path: {dotted}, of an array as path: items[0].sku"
        return f"Input {name}: {'; '.join(said)}. Compare the schema's names and paths with a record{nested}"


class InputWarnings:
    """Per input, since the driver started. Each input is warned about when it first looks wrong, and again when
    something else is wrong with it."""

    def __init__(self) -> None:
        self._inputs: dict[str, _Input] = {}
        self._said: set[tuple[str, str]] = set()  # inputs and what was wrong with them

    def learn(self, reads: Iterable[PartitionRead]) -> tuple[str, ...]:
        """After an epoch has committed: what is new to be said."""
        for read in reads:
            self._inputs.setdefault(read.partition.input, _Input()).add(read)
        new = []
        for name, found in self._inputs.items():
            wrong = {(name, column) for column in found.empty or ()}
            if found.useless:
                wrong.add((name, ""))  # no column's name
            if wrong - self._said:
                self._said |= wrong
                new.append(found.warning(name) or "")
        return tuple(new)

    @property
    def standing(self) -> Mapping[str, str]:
        """By input what looks wrong now; it is gone once a record shows otherwise."""
        warnings = {name: found.warning(name) for name, found in self._inputs.items()}
        return {name: warning for name, warning in warnings.items() if warning is not None}
