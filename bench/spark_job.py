"""The peer: Spark's own stream-stream join, `session_window` or SQL, from Kafka to Kafka, until it is stopped.

RocksDB state with changelog checkpoints. Everything that makes it faster without changing the work is on: a shuffle
that fits the machine, no UI, the newest format of the join's state. Runs in a Python of its own, so it imports nothing
of ours.

    python spark_job.py join|sessions|sql SETTINGS-AS-JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SHUFFLE_PARTITIONS = 4


def session(options: dict[str, Any]) -> SparkSession:
    state = "org.apache.spark.sql.execution.streaming.state"
    settings = {
        "spark.jars": options["jars"],
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": f"{state}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.join.stateFormatVersion": options["join_state"],
        "spark.driver.memory": "6g",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": options["folder"],
    }
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, options: dict[str, Any], topic: str, schema: str) -> DataFrame:
    row = read_json(spark, options, topic, schema)
    return row.withColumn("ts", f.timestamp_millis("ts")).withWatermark("ts", "10 seconds")


def read_json(spark: SparkSession, options: dict[str, Any], topic: str, schema: str) -> DataFrame:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options["bootstrap"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options["per_batch"])
        .load()
    )
    return raw.select(f.from_json(f.col("value").cast("string"), schema).alias("r")).select("r.*")


def joined(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    orders = read(spark, options, "orders", "order_id string, customer string, amount double, ts bigint").alias("o")
    payments = read(spark, options, "payments", "payment_id string, order_id string, method string, ts bigint").alias(
        "p"
    )
    window = f"INTERVAL {options['window_ms']} MILLISECONDS"
    within = f.expr(f"p.ts >= o.ts - {window} AND p.ts <= o.ts + {window}")
    both = orders.join(payments, (f.col("o.order_id") == f.col("p.order_id")) & within)
    return both.select("o.order_id", "o.customer", "o.amount", "p.payment_id", "p.method")


def sessions(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    clicks = read(spark, options, "clicks", "user_id string, page string, ts bigint")
    window = f.session_window("ts", f"{options['gap_s']} seconds")
    grouped = clicks.groupBy(window, "user_id").agg(f.count("*").alias("events"), f.min("page").alias("page"))
    return grouped.select("user_id", "events", "page")


def selected(spark: SparkSession, options: dict[str, Any]) -> DataFrame:
    """Return the rows of an SQL text over `tables`, each with its schema and, in milliseconds, `dateTime`."""
    for table, schema in options["tables"].items():
        rows = read_json(spark, options, table, schema)
        timed = rows.withColumn("event_time", f.timestamp_millis("dateTime"))
        timed.withWatermark("event_time", "4 seconds").createOrReplaceTempView(table)
    return spark.sql(options["sql"])


def main(kind: str, options: dict[str, Any]) -> None:
    spark = session(options)
    spark.sparkContext.setLogLevel("ERROR")
    rows = {"join": joined, "sessions": sessions, "sql": selected}[kind](spark, options)
    query = (
        rows.select(f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options["bootstrap"])
        .option("kafka.compression.type", "lz4")
        .option("topic", options["topic"])
        .option("checkpointLocation", f"{options['folder']}/checkpoint")
        .outputMode("append")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
