"""The peer: Spark's own stream-stream inner join of the same topics, RocksDB state with changelog checkpoints.

Runs until all records are read (`availableNow`), writes to Spark's `noop` sink, prints one line of JSON. Everything
that makes it faster without changing the work is on: changelog checkpoints, a shuffle that fits the machine, no UI.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

OFFSETS_PER_TRIGGER = 400_000
SHUFFLE_PARTITIONS = 4


def session(jars: Path) -> SparkSession:
    settings = {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass":
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.driver.memory": "6g",
        "spark.sql.session.timeZone": "UTC",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, bootstrap: str, topic: str, schema: str) -> DataFrame:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .load()
    )
    row = raw.select(f.from_json(f.col("value").cast("string"), schema).alias("r")).select("r.*")
    return row.withColumn("ts", f.timestamp_millis("ts")).withWatermark("ts", "10 seconds")


def told(query: StreamingQuery, seconds: float) -> dict[str, Any]:
    """What a query that has ended did. As for the jobs, its first two batches do not count for the steady rate."""
    progress = query.recentProgress
    later = progress[2:]
    spent_ms = sum(batch["batchDuration"] for batch in later)
    return {
        "seconds": seconds,
        "rows": sum(batch["numInputRows"] for batch in progress),
        "steady_rate": sum(batch["numInputRows"] for batch in later) * 1000 / spent_ms if spent_ms else 0.0,
        "batches": progress[-1]["batchId"] + 1,
    }


def main(bootstrap: str, jars: str, upper_ms: int) -> None:
    spark = session(Path(jars))
    spark.sparkContext.setLogLevel("ERROR")
    orders = read(spark, bootstrap, "orders", "order_id string, customer string, amount double, ts bigint").alias("o")
    payments = read(spark, bootstrap, "payments", "payment_id string, order_id string, method string, ts bigint")
    within = f.expr(f"p.ts >= o.ts AND p.ts <= o.ts + INTERVAL {upper_ms} MILLISECONDS")
    joined = orders.join(payments.alias("p"), (f.col("o.order_id") == f.col("p.order_id")) & within)
    joined = joined.select("o.order_id", "o.customer", "o.amount", "p.payment_id", "p.method", "p.ts")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            joined.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(json.dumps(told(query, time.monotonic() - started)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
