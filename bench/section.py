"""What the sections of the comparison share: their sizes, their topics, and how one peer after the other is run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from bench.outputs import FileOutput, Output, Schema, TopicOutput, fingerprint
from bench.peer import Figures, Peer, measure, typical
from joinery_devkit.kafka import KafkaBroker

PARTITIONS = 4
SHARDS = 4
# What suits each engine best in a large run; a small one is still cut into a few epochs or batches.
_EPOCH_ROWS = 800_000
_BATCH_ROWS = 400_000
_LEAST_EPOCHS = 5


def epoch_rows(rows: int, most: int = _EPOCH_ROWS, least_epochs: int = _LEAST_EPOCHS) -> int:
    """Size an epoch of Joinery's, in rows of all inputs together, which have `rows`: `most`, or fewer so that there are
    `least_epochs`."""
    return min(most, rows // least_epochs)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a section's peers run: a broker that has their inputs, `rows` of them, and a folder for their files."""

    broker: KafkaBroker
    work: Path
    rows: int
    schema: Schema  # of the output
    runs: int  # of each peer

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def batch_rows(self, topics: int) -> int:
        """How many rows of each of the `topics` are a batch of Spark's."""
        return min(_BATCH_ROWS, self.rows // topics // _LEAST_EPOCHS)

    def folder(self, slug: str) -> Path:
        return self.work / slug

    def files(self, slug: str) -> Path:
        """Where a peer puts its rows that writes files."""
        return self.folder(slug) / "rows"

    def output(self, slug: str) -> Output:
        """Return the topic `slug`, which is created; the files of a peer that writes files."""
        if slug.endswith(FILES):
            return FileOutput(self.files(slug), self.schema)
        self.broker.create_topic(slug, PARTITIONS)
        return TopicOutput(self.bootstrap, slug, PARTITIONS, self.schema)


# A peer's short name, which is also that of its output topic and its folder; and what makes it when its turn comes.
Candidates = dict[str, Callable[[Ground, str], Peer]]
FILES = "-files"  # ends the name of a peer that writes files


def run_all(ground: Ground, candidates: Candidates, expected: pl.DataFrame) -> list[Figures]:
    """One after the other. What a run has written is removed at its end, but for the files of one that failed."""
    expected_fingerprint = fingerprint(expected)

    def run(number: int, slug: str, candidate: Callable[[Ground, str], Peer]) -> Figures:
        name = f"run{number}-{slug}"  # which is new to the broker: it keeps what consumer groups have read
        figures = measure(candidate(ground, name), ground.output(name), ground.rows, expected_fingerprint)
        print(f"  {figures_line(figures)}", file=sys.stderr, flush=True)
        if not slug.endswith(FILES):
            ground.broker.delete_topic(name)
        if figures.problem is None:
            shutil.rmtree(ground.folder(name), ignore_errors=True)
        return figures

    return [
        typical(partial(run, slug=slug, candidate=candidate), ground.runs) for slug, candidate in candidates.items()
    ]


def figures_line(figures: Figures) -> str:
    """One line, for who waits."""
    if figures.problem:
        return f"{figures.name}: {figures.problem}"
    warm = f", warm {figures.warm_rate:,.0f}" if figures.warm_rate else ""
    return f"{figures.name}: {figures.cold_rate:,.0f} rows/s{warm}, {figures.rows_out:,} rows out, as expected"


def only(candidates: Candidates, slugs: Sequence[str] | None) -> Candidates:
    return candidates if slugs is None else {slug: candidates[slug] for slug in slugs if slug in candidates}
