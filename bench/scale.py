"""The join of `joins` into files with every epoch on Spark, over executors and shards: rates, and CPU per row by kind
of process.

Blocks always cross the network, also between executors of one machine. The topics are partitioned as Kafka's Java
client does, so that a line can declare them co-partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from bench import joinery_jobs, joins
from bench.peer import Figures, Peer
from bench.section import FILES, PARTITIONS, SHARDS, Candidates, Ground, epoch_rows, run_all
from bench.topics import Workload, expected_pairs, produce
from bench.usage import DRIVER, JAVA, WORKERS
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.spark_cluster import StandaloneCluster

PARTITIONER = "murmur2"
SERIES = (4, 16, 64, 512)  # shards
_EPOCH_ROWS = 400_000  # for each executor, of both inputs, at most: what a shard costs per epoch shows
_EPOCHS = 40  # of one executor, at least: with few, JVMs still compile what they run once an epoch

PYTHON = (DRIVER, WORKERS)
SPARK = (JAVA, *PYTHON)


@dataclass(frozen=True, slots=True)
class Layout:
    """Executors, and their cores. `master` None: a standalone cluster, which runs before the job starts. An epoch grows
    with the `executors`, as it does for a job that names no limits."""

    name: str
    settings: str
    master: str | None
    executors: int = 1

    @contextmanager
    def started(self) -> Iterator[joinery_jobs.Setup]:
        """Yield how to start a job here."""
        if self.master is not None:
            yield joinery_jobs.on_spark(self.master)
            return
        with StandaloneCluster(workers=2, cores=1, memory=f"{joinery_jobs.EXECUTOR_MB}m", tls=True) as cluster:
            yield joinery_jobs.on_spark(cluster.master_url, cluster.environment)


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    layout: Layout
    shards: int = SHARDS
    co_partitioned: bool = False


def _local_cluster(executors: int, cores: int) -> Layout:
    settings = f"{executors} executor{'s' if executors > 1 else ''} with {cores} core{'s' if cores > 1 else ''} each"
    return Layout(f"cluster-{executors}x{cores}", settings, joinery_jobs.local_cluster(executors, cores), executors)


LOCAL = Layout("local-2", "Spark in the driver's JVM with two cores", joinery_jobs.MASTER)
ONE, TWO, FOUR = _local_cluster(1, 2), _local_cluster(2, 1), _local_cluster(4, 1)
STANDALONE = Layout(
    "standalone-2x1", "a standalone cluster of two workers with a core each, up before the job starts", None, 2
)


def _series_line(layout: Layout, shards: int) -> Line:
    return Line(f"{layout.name}-shards-{shards}", layout, shards)


def _co_partitioned(layout: Layout) -> Line:
    return Line(f"{layout.name}-co-partitioned", layout, co_partitioned=True)


LINES = [
    Line(LOCAL.name, LOCAL),
    *(_series_line(LOCAL, shards) for shards in SERIES),
    Line(ONE.name, ONE),
    Line(TWO.name, TWO),
    _co_partitioned(TWO),
    *(_series_line(TWO, shards) for shards in SERIES),
    Line(FOUR.name, FOUR),
    _co_partitioned(FOUR),
    _series_line(FOUR, 16),
    Line(STANDALONE.name, STANDALONE),
    _co_partitioned(STANDALONE),
]


def run(work: Path, records: int, names: Sequence[str] | None, runs: int) -> list[Figures]:
    """2 x `records`, `runs` times; `names` names some of the lines, None all of them."""
    lines = [line for line in LINES if names is None or line.name in names]
    workload = Workload(records, PARTITIONS, joins.paid_within_ms(records), partitioner=f"{PARTITIONER}_random")
    expected = expected_pairs(workload, joins.WINDOW_MS)
    figures_by_line: list[Figures] = []
    with KafkaBroker() as broker:
        for topic in joins.TOPICS:
            broker.create_topic(topic, PARTITIONS)
        produce(broker.bootstrap, workload, joins.TOPICS)
        ground = Ground(broker, work, 2 * records, joins.ROW, runs)
        for layout, of_layout in groupby(lines, key=lambda line: line.layout):
            with layout.started() as setup:
                candidates: Candidates = {
                    line.name + FILES: partial(_peer, line=line, setup=setup) for line in of_layout
                }
                measured = run_all(ground, candidates, expected)
            # Memory is that of what starts with a job: a standalone cluster's executors are not among it.
            figures_by_line += (
                measured if layout.master else [replace(figures, peak_bytes=None) for figures in measured]
            )
    return figures_by_line


def _peer(ground: Ground, slug: str, *, line: Line, setup: joinery_jobs.Setup) -> Peer:
    epoch = epoch_rows(ground.rows, _EPOCH_ROWS, _EPOCHS) * line.layout.executors
    spec = joins.job_spec(ground.bootstrap)
    if line.co_partitioned:
        spec["joins"] = [step | {"coPartitioned": True, "partitioner": PARTITIONER} for step in spec["joins"]]
    spec |= {
        "output": joinery_jobs.to_files(ground.files(slug)),
        "shards": line.shards,
        "trigger": {"maxRecordsPerEpoch": epoch},
    }
    settings = (
        f"{line.layout.settings}; {line.shards} shards, epochs of {epoch:,} records"
        f"{', coPartitioned' if line.co_partitioned else ''}"
    )
    job = joinery_jobs.document("StreamJoin", slug, spec)
    return joinery_jobs.peer(_figures_name(line.name), settings, job, ground.folder(slug), setup)


def _figures_name(line: str) -> str:
    return f"Joinery, {line}"


# --- goals ------------------------------------------------------------------------------------------------------------


def warm_rate(figures: Figures) -> float | None:
    return figures.warm_rate


def warm_cpu(*kinds: str) -> Callable[[Figures], float | None]:
    """CPU per row of processes of these kinds."""

    def of_kinds(figures: Figures) -> float | None:
        by_kind = figures.warm_cpu_by_kind
        return None if by_kind is None else sum(by_kind[kind] for kind in kinds)

    return of_kinds


@dataclass(frozen=True, slots=True)
class Goal:
    """A warm figure of `line` against that of `base`, or as it is without a base. `least` and `most`: what is to be
    reached, if anything."""

    text: str
    figure: Callable[[Figures], float | None]
    line: str
    base: str | None = None
    least: float | None = None
    most: float | None = None

    def value(self, by_line: Mapping[str, Figures]) -> float | None:
        """None: a line was not measured, failed, or was too short for a warm figure."""
        numerator = self._figure_of(self.line, by_line)
        denominator = 1.0 if self.base is None else self._figure_of(self.base, by_line)
        return None if numerator is None or not denominator else numerator / denominator

    def _figure_of(self, line: str, by_line: Mapping[str, Figures]) -> float | None:
        figures = by_line.get(line)
        return None if figures is None or figures.problem is not None else self.figure(figures)

    def bound(self) -> str:
        if self.least is not None:
            return f">= {self.least:.2f}"
        return "" if self.most is None else f"<= {self.most:.2f}"

    def verdict(self, value: float) -> str:
        """Whether the goal is reached; nothing without a goal."""
        if self.least is None and self.most is None:
            return ""
        return "yes" if value >= (self.least or value) and value <= (self.most or value) else "no"


def _goals_of_shards(layout: Layout) -> Iterator[Goal]:
    """Yield what many shards cost. The goals are those of one process."""
    few = _series_line(layout, SERIES[0]).name
    for shards, most in {16: None, 64: 1.15, 512: 1.5}.items():
        text = f"{shards} shards against {SERIES[0]}, {layout.name}: CPU per row of Python"
        yield Goal(
            text, warm_cpu(*PYTHON), _series_line(layout, shards).name, few, most=most if layout is LOCAL else None
        )


GOALS = [
    Goal("one executor of two cores against local[2]: rate", warm_rate, ONE.name, LOCAL.name, least=0.95),
    Goal("two executors of one core against local[2]: rate", warm_rate, TWO.name, LOCAL.name, least=0.95),
    Goal("two workers of a standalone cluster against local[2]: rate", warm_rate, STANDALONE.name, LOCAL.name),
    Goal("two executors, co-partitioned against not: rate", warm_rate, _co_partitioned(TWO).name, TWO.name),
    Goal("two executors: CPU of Java, us per row", warm_cpu(JAVA), TWO.name, most=0.35),
    Goal(
        "four executors against two, 16 shards: CPU per row of Java and Python",
        warm_cpu(*SPARK), _series_line(FOUR, 16).name, _series_line(TWO, 16).name, most=1.1,
    ),
    *_goals_of_shards(LOCAL),
    *_goals_of_shards(TWO),
]  # fmt: skip


def goal_rows(all_figures: Sequence[Figures]) -> list[tuple[str, float, str, str]]:
    """Return what is compared, the value, the goal, and whether it is reached; of the goals whose lines were
    measured."""
    by_line = {
        line.name: figures for line in LINES for figures in all_figures if figures.name == _figures_name(line.name)
    }
    values = [(goal, goal.value(by_line)) for goal in GOALS]
    return [(goal.text, value, goal.bound(), goal.verdict(value)) for goal, value in values if value is not None]
