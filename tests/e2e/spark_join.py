"""Spark's own stream-stream join over recorded micro-batches: `spark_join.py FOLDER`, a process of its own, since a
process has one Spark context.

Reads FOLDER/queries.json, a list of `Query`, and writes each one's output rows to FOLDER/<name>.json. The data are
FOLDER/<data>/<input>/<number>.jsonl, rows of COLUMNS with `ts` in milliseconds: of each input, every micro-batch reads
the next file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

COLUMNS = {"k": "string", "n": "bigint", "v": "bigint", "ts": "bigint"}
SIDES = {"l": "left", "r": "right"}  # the inputs, and what their columns are called in the output
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # its life is too short for more
}
AT_ONCE = 2  # queries; a micro-batch waits more than it works


@dataclass(frozen=True)
class Query:
    """`delay_ms` of both watermarks; `condition` is the join's, of the columns of `l` and `r`, `ts` a timestamp.
    `streaming` False: Spark's batch join, all files at once."""

    name: str
    data: str
    type: str
    condition: str
    delay_ms: int
    streaming: bool = True


def write_batches(folder: Path, batches: Sequence[Mapping[str, Iterable[Mapping[str, Any]]]]) -> None:
    """The files of one `data`, a file per micro-batch and input."""
    for side in SIDES:
        (folder / side).mkdir(parents=True)
        for number, batch in enumerate(batches):
            file = folder / side / f"{number}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in batch[side]))
            os.utime(file, (number, number))  # Spark reads files in the order of their times


def run(folder: Path, queries: Sequence[Query], patience_s: float) -> dict[str, list[dict[str, Any]]]:
    """Runs them in a process; the output rows by the query's name. Raises AssertionError with what Spark said."""
    (folder / "queries.json").write_text(json.dumps([asdict(query) for query in queries]))
    command = [sys.executable, __file__, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, cwd=folder, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    return {query.name: json.loads((folder / f"{query.name}.json").read_text()) for query in queries}


# --- in the process ---------------------------------------------------------------------------------------------------


def main(folder: Path) -> None:
    queries = [Query(**query) for query in json.loads((folder / "queries.json").read_text())]
    spark = _session(folder)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda query: _run_query(spark, folder, query), queries))
    finally:
        spark.stop()


def _session(folder: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("own join").config("spark.local.dir", str(folder))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run_query(spark: SparkSession, folder: Path, query: Query) -> None:
    left, right = (_read(spark, folder / query.data / side, query).alias(side) for side in SIDES)
    how = "inner" if query.type == "inner" else f"{query.type}outer"
    joined = left.join(right, f.expr(query.condition), how).select(*_output_columns())
    if query.streaming:
        joined = _streamed(spark, joined, query.name, folder / "checkpoints" / query.name)
    rows = [row.asDict() for row in joined.collect()]
    (folder / f"{query.name}.json").write_text(json.dumps(rows))


def _read(spark: SparkSession, folder: Path, query: Query) -> DataFrame:
    reader: Any = spark.readStream.option("maxFilesPerTrigger", 1) if query.streaming else spark.read
    rows: DataFrame = reader.schema(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())).json(str(folder))
    rows = rows.withColumn("ts", f.timestamp_millis("ts"))
    return rows.withWatermark("ts", f"{query.delay_ms} milliseconds") if query.streaming else rows


def _output_columns() -> list[Column]:
    return [
        (f.unix_millis(f"{side}.ts") if column == "ts" else f.col(f"{side}.{column}")).alias(f"{prefix}_{column}")
        for side, prefix in SIDES.items()
        for column in COLUMNS
    ]


def _streamed(spark: SparkSession, joined: DataFrame, name: str, checkpoint: Path) -> DataFrame:
    """All that the query gives until every file has been read and what that closes has come out."""
    table = name.replace("-", "_")
    writer = joined.writeStream.format("memory").queryName(table).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.table(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
