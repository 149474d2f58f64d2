"""The API for Python programs and notebooks. Without the `engine` extra, only `explain` works."""

from __future__ import annotations

import signal
import threading
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.job import Explanation, Job, job_from, load_job
from joinery_runtime.job import explain as _explain
from joinery_runtime.job.model.wording import counted

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from joinery_runtime.cli.run import Signals
    from joinery_runtime.engine.driver import Driver
    from joinery_runtime.engine.loop import CommittedEpoch, Outage

JobLike = Job | str | PathLike[str] | Mapping[str, Any]
"""A job, the path of its file, or a dictionary with the content of its file."""


class _Tabular(ABC):
    """A table that data frame libraries accept directly, by Arrow's stream interface: `polars.DataFrame(it)`,
    `pyarrow.table(it)`."""

    @abstractmethod
    def to_arrow(self) -> pa.Table: ...

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises EnvironmentProblem without pandas, which Joinery does not install."""
        if find_spec("pandas") is None:
            raise EnvironmentProblem(
                "There is no pandas to make a data frame with", todo="Install pandas, or call to_polars()"
            )
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        import polars as pl  # noqa: PLC0415 - this module stays light to import

        return pl.DataFrame(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self.to_polars())

    def _repr_html_(self) -> str:
        return self.to_polars()._repr_html_()


class Rows(_Tabular):
    """Rows of an output."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def to_arrow(self) -> pa.Table:
        return self._table


class Trace(_Tabular):
    """The result of a trace. As a list, it has one dictionary per step, as `joinery trace` prints it, with `output`,
    `watermarks`, `late`, `dead` (docs/trace.md). As a table, it has the output rows. The first column, `step`, is the
    number of the step, from 1 (`_step` if an output column is called `step`)."""

    def __init__(self, results: list[dict[str, Any]], table: pa.Table) -> None:
        self._results, self._table = results, table

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._results[number]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._results)

    def to_arrow(self) -> pa.Table:
        return self._table


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The result of a run. All counts are of this run: committed `epochs`, `rows_in` and `dead_letters` per input,
    `dropped` rows per input and reason, `rows_out`."""

    job: Job
    ended_by: Literal["stopped", "once", "inputs"]
    """`stopped`: by `stop` or an interrupt; `once`: it read up to the ends at its start; `inputs`: all inputs ended."""
    epochs: int
    rows_in: Mapping[str, int]
    rows_out: int
    dropped: Mapping[str, Mapping[str, int]]
    dead_letters: Mapping[str, int]

    @property
    def where(self) -> str:
        """Where the output rows are, and how to look at some."""
        from joinery_runtime.cli.progress import where_rows_are  # noqa: PLC0415

        return "\n".join(where_rows_are(self.job))

    def output(self, name: str | None = None) -> Rows:
        """Read all rows of the output into memory, including those of earlier runs: from files, topics, or tables of
        Postgres, Iceberg and Delta. Without a row, it is an empty table with the job's columns and types. `name` says
        which of several outputs. Raises JoineryError if the output cannot be read, as with the console."""
        from joinery_runtime.inspect.sql import read_output  # noqa: PLC0415

        return Rows(read_output(self.job, name).to_arrow())

    def __repr__(self) -> str:
        from joinery_runtime.cli.progress import WHY_ENDED  # noqa: PLC0415

        dropped = sum(sum(counts.values()) for counts in self.dropped.values())
        counts = [counted(self.epochs, "epoch")]
        counts += [f"{counted(sum(self.rows_in.values()), 'row')} in", f"{self.rows_out:,} out"]
        counts += [f"{dropped:,} dropped"] if dropped else []
        dead = sum(self.dead_letters.values())
        counts += [counted(dead, "dead letter")] if dead else []
        text = f"{self.job.name}: {WHY_ENDED[self.ended_by]}; {', '.join(counts)}"
        return f"{text}\n{self.where}" if self.rows_out else text


class _Counts:
    """Adds up the counts of a run's epochs."""

    def __init__(self, stop: Event, on_epoch: Callable[[CommittedEpoch], None] | None) -> None:
        self._stop, self._on_epoch = stop, on_epoch
        self._epochs = self._rows_out = 0
        self._rows_in: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}

    def committed(self, progress: CommittedEpoch) -> None:
        report = progress.report
        self._epochs += 1
        self._rows_out += report.rows_out
        self._rows_in.update(report.rows_in)
        self._dead.update(report.dead)
        for name, counts in report.dropped.items():
            self._dropped.setdefault(name, Counter()).update(counts)
        if self._on_epoch is not None:
            self._on_epoch(progress)

    def result(self, job: Job, *, once: bool) -> RunResult:
        ended_by: Literal["stopped", "once", "inputs"] = "once" if once else "inputs"
        dropped = {name: dict(counts) for name, counts in self._dropped.items()}
        return RunResult(
            job,
            "stopped" if self._stop.is_set() else ended_by,
            self._epochs,
            dict(self._rows_in),
            self._rows_out,
            dropped,
            dict(self._dead),
        )


def explain(job: JobLike) -> Explanation:
    """Explain a job's plan. `print` and notebooks show what `joinery explain` prints. Raises JobError."""
    from joinery_runtime.cli.common import stored  # noqa: PLC0415

    job = _job(job)
    return _explain(job, stored(job))


def trace(job: JobLike, steps: Iterable[Mapping[str, Any]], *, shards: int | None = None) -> Trace:
    """Run rows through a job, as `joinery trace` does. Does not touch the job's own state, inputs and output.

    `shards` is the number of shards; None takes the job's. Raises JoineryError with the number, from 1, of a step that
    is not valid.
    """
    import pyarrow as pa  # noqa: PLC0415 - this module stays light to import

    from joinery_runtime.core.compile.jobs import compile_job  # noqa: PLC0415
    from joinery_runtime.inspect.trace import run_trace  # noqa: PLC0415
    from joinery_runtime.state.memory import MemoryStore  # noqa: PLC0415

    job = _job(job, plain_numbers=True)
    tables: list[pa.Table] = []
    schema = compile_job(job).output_schema()
    number = "_step" if "step" in schema.names else "step"

    def keep(step: int, rows: pa.Table) -> None:
        tables.append(rows.add_column(0, number, pa.repeat(pa.scalar(step, pa.int64()), len(rows))))

    results = list(run_trace(job, steps, MemoryStore(), shards, rows=keep))
    none = pa.schema([pa.field(number, pa.int64()), *schema]).empty_table()
    return Trace(results, pa.concat_tables(tables) if tables else none)


def run(
    job: JobLike,
    *,
    spark: SparkSession | SparkContext | None = None,
    master: str | None = None,
    stop: Event | None = None,
    on_epoch: Callable[[CommittedEpoch], None] | None = None,
    once: bool = False,
    local: bool = False,
) -> RunResult:
    """Run a job until all its inputs have ended, or `stop` is set and the running epoch is done. With `once`, runs it
    up to the present ends of the inputs, without ending any (docs/schedule.md). An interrupt (Ctrl-C, a notebook's stop
    button) acts like `stop`. A second one raises KeyboardInterrupt at once, and the next run replays the epoch.

    `spark` is a session that all epochs run on and that outlives the job; None starts one with the job. `master` is the
    Spark master URL for that; None takes the job's `spark.conf`, then spark-submit's setting, then `local[*]`. With
    `local`, all epochs run in this process instead, which needs no Java.
    `on_epoch` is called for every committed epoch. Warnings go to the `warnings` module. Raises JoineryError.
    """
    from joinery_runtime.cli.run import Signals  # noqa: PLC0415
    from joinery_runtime.engine.loop import JobListener  # noqa: PLC0415
    from joinery_runtime.hosts.run import run_job  # noqa: PLC0415

    if spark is not None and master is not None:
        raise EnvironmentProblem("run(job) was given spark and master", todo="Leave master out: the session has one")
    if local and (spark is not None or master is not None):
        raise EnvironmentProblem(
            f"run(job) was given local and {'spark' if spark is not None else 'master'}",
            facts="with local, all epochs run in this process and not on Spark",
            todo="Leave one of the two out",
        )
    job = _job(job)
    stop = stop or Event()
    counts = _Counts(stop, on_epoch)
    # Python lets only the main thread set signal handlers, and runs them only there.
    interrupted = threading.current_thread() is threading.main_thread()
    signals = Signals(stop, (signal.SIGINT,), _interrupt) if interrupted else None

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def started(_: Driver) -> None:
        if signals is not None:
            signals.end_the_epoch()

    def waiting(outage: Outage) -> None:
        warn(f"Waiting for the {outage.error.system}: {outage.error}")

    listener = JobListener(started, counts.committed, lambda error, _: warn(str(error)), warned=warn, waiting=waiting)
    with ExitStack() as stack:
        if spark is None and not local:
            from joinery_runtime.hosts.spark import restore_process  # noqa: PLC0415

            stack.enter_context(restore_process())
        if signals is not None:
            stack.enter_context(_caught(signals))
        job = run_job(job, listener, stop, master=master, warn=warn, once=once, session=spark, local=local)
    return counts.result(job, once=once)


@contextmanager
def _caught(signals: Signals) -> Iterator[None]:
    """Handle interrupts in the block, and restore the former handler afterwards."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with signals.end_a_start():
            yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


def _job(job: JobLike, *, plain_numbers: bool = False) -> Job:
    if isinstance(job, Job):
        return job
    if isinstance(job, Mapping):
        return job_from(job, plain_numbers=plain_numbers)
    return load_job(job, plain_numbers=plain_numbers)
