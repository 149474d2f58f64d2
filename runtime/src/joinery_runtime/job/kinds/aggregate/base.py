"""What defines a window of an aggregate: its fields, the columns it adds, and what its state depends on.

Each module of this package that is named after a window is one kind; the model of its fields is the kind.
`WINDOW_KINDS` in `job.kinds.aggregate.model` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from joinery_runtime.job.model.cel import Rule
from joinery_runtime.job.model.draft import Finding, Loc


class WindowKind(ABC):
    """One kind of window, with its durations (milliseconds of event time)."""

    field: ClassVar[str]
    """Of `window`, as YAML names it."""
    columns: ClassVar[tuple[str, ...]]
    """The columns that its rows have beside groups and aggregates, in the order of the output."""
    identity: ClassVar[tuple[str, ...]]
    """Those of `columns` that tell the rows of a group apart, whatever becomes of the window."""
    reopens: ClassVar[bool] = False
    """Whether rows that were emitted can change (`lateData: reopen`)."""
    rows: ClassVar[str]
    """What a row of the state is, in words: `sessions`."""
    shorter: ClassVar[str]
    """What makes its state smaller."""
    cel: ClassVar[Mapping[Any, tuple[Rule, ...]]] = {}
    """The rules that the API server can check, by model, or by model and field."""

    @classmethod
    def problems(cls, data: Any, at: Loc) -> Iterator[Finding]:
        """Yield what is wrong with the window's fields. `data` is what YAML has at the path `at`."""
        yield from ()

    @abstractmethod
    def durations(self) -> dict[str, Any]:
        """The durations on which the state depends, as in the signature."""

    @property
    @abstractmethod
    def closes_after(self) -> int:
        """How far the watermark is above a row's event time when its window ends, if no other row extends it."""

    @abstractmethod
    def lines(self) -> Iterator[tuple[str, str]]:
        """What the window is, as lines of the plan: names and texts."""

    @property
    @abstractmethod
    def end_text(self) -> str:
        """When a window ends, to follow `wm(orders) > `: `last + 30s [gap]`."""
