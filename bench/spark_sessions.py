"""The peer: Spark's own `session_window` over the same topic, RocksDB state with changelog checkpoints; see
`spark_join.py` for what is switched on."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as f
from spark_join import read, session, told


def main(bootstrap: str, jars: str, gap_s: int) -> None:
    spark = session(Path(jars))
    spark.sparkContext.setLogLevel("ERROR")
    clicks = read(spark, bootstrap, "clicks", "user_id string, page string, ts bigint")
    sessions = clicks.groupBy(f.session_window("ts", f"{gap_s} seconds"), "user_id").agg(
        f.count("*").alias("events"), f.min_by("page", "ts").alias("first_page")
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            sessions.writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(json.dumps(told(query, time.monotonic() - started)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
