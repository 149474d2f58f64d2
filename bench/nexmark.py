"""Nexmark's queries by Joinery, Flink SQL and, where it can, Spark: the jobs of examples/nexmark/ over the same topics.

Flink's texts are those of nexmark-flink, with the bounds and windows that docs/nexmark.md names; its q7 has the
window's time in place of its end, so that Flink need not keep all bids. Each partition ends with an event that is days
later, so that every engine closes all windows before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from bench import flink_peer, joinery_jobs, spark_peer
from bench.peer import Figures, Peer
from bench.section import PARTITIONS, Candidates, Ground, only, run_all
from bench.topics import produce_records
from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.nexmark.events import NexmarkLoad, generate, json_records
from joinery_devkit.nexmark.truth import expected_rows

_JOBS = Path(__file__).parents[1] / "examples" / "nexmark"
TIME = "dateTime"
COLUMNS = {
    name: {field.name: "string" if pa.types.is_string(field.type) else "bigint" for field in table.schema}
    for name, table in generate(NexmarkLoad(0)).tables().items()
}
"""By table, with the types of Flink and Spark: times are milliseconds in JSON."""
EVENTS_PER_SECOND = 1_000  # of event time: more would have one time, and the last one of these (q18) is any of them
_LAST_AFTER_MS = 3 * 86_400_000
_DAY = "DATE_FORMAT(event_time, 'yyyy-MM-dd')"
_START_MS = "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) * 1000"
_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")
_BIDS_OF_RANKS = ", ".join(["COUNT(*)", *(f"COUNT(*) FILTER (WHERE {rank})" for rank in _RANKS)])
_STATISTICS = ", ".join(
    [
        _BIDS_OF_RANKS,
        *(
            f"COUNT(DISTINCT {column}){condition}"
            for column in ("bidder", "auction")
            for condition in ("", *(f" FILTER (WHERE {rank})" for rank in _RANKS))
        ),
    ]
)
_BY_DAY = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(event_time), INTERVAL '1' DAY))"
_BY_10_SECONDS = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(event_time), INTERVAL '10' SECOND))"
_WITHIN_AN_HOUR = "BETWEEN {0}.event_time - INTERVAL '1' HOUR AND {0}.event_time + INTERVAL '1' HOUR"
_SPARK_HOUR = "BETWEEN {0}.event_time - INTERVAL 1 HOUR AND {0}.event_time + INTERVAL 1 HOUR"
_EXPANDED_BID = """
    b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime` AS bid_dateTime, b.extra AS bid_extra, a.itemName,
    a.description, a.initialBid, a.reserve, a.`dateTime` AS auction_dateTime, a.expires, a.seller, a.category,
    a.extra AS auction_extra
"""
_BID = "auction, bidder, price, `dateTime`, extra"
_TIME_OF_DAY = """CASE
    WHEN HOUR(event_time) >= 8 AND HOUR(event_time) <= 18 THEN 'dayTime'
    WHEN HOUR(event_time) <= 6 OR HOUR(event_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
_LETTERS = "CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', ''))"
_ID_IN_URL = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"
_CHANNEL_ID = f"""CASE
    WHEN LOWER(channel) = 'apple' THEN '0' WHEN LOWER(channel) = 'google' THEN '1'
    WHEN LOWER(channel) = 'facebook' THEN '2' WHEN LOWER(channel) = 'baidu' THEN '3' ELSE {_ID_IN_URL} END"""


@dataclass(frozen=True, slots=True)
class NexmarkQuery:
    """A query by its engines' texts. `tables` are those that it reads. `spark` None: Spark cannot."""

    tables: tuple[str, ...]
    flink: str
    spark: str | None = None


QUERIES: Mapping[str, NexmarkQuery] = {
    "q0": NexmarkQuery(("bid",), f"SELECT {_BID} FROM bid", "SELECT auction, bidder, price, dateTime, extra FROM bid"),
    "q1": NexmarkQuery(
        ("bid",),
        "SELECT auction, bidder, CAST(0.908 * price AS STRING), `dateTime`, extra FROM bid",
        "SELECT auction, bidder, CAST(0.908 * price AS STRING) AS price, dateTime, extra FROM bid",
    ),
    "q2": NexmarkQuery(
        ("bid",),
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    ),
    "q3": NexmarkQuery(
        ("person", "auction"),
        f"""SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
            AND P.event_time {_WITHIN_AN_HOUR.format("A")}
            WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
        f"""SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
            AND p.event_time {_SPARK_HOUR.format("a")} WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    ),
    "q7": NexmarkQuery(
        ("bid",),
        f"""SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra FROM bid B
            JOIN (SELECT MAX(price) AS maxprice, window_time AS event_time FROM {_BY_10_SECONDS}
                  GROUP BY window_start, window_end, window_time) B1 ON B.price = B1.maxprice
            WHERE B.event_time BETWEEN B1.event_time - INTERVAL '10' SECOND AND B1.event_time""",
        """SELECT max_by(auction, price) AS auction, max(price) AS price, max_by(bidder, price) AS bidder,
           max_by(dateTime, price) AS dateTime, max_by(extra, price) AS extra
           FROM bid GROUP BY window(event_time, '10 seconds')""",
    ),
    "q8": NexmarkQuery(
        ("person", "auction"),
        f"""SELECT P.id, P.name, {_START_MS.replace("window_start", "P.starttime")} FROM (
              SELECT id, name, window_start AS starttime, window_end AS endtime
              FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(event_time), INTERVAL '10' SECOND))
              GROUP BY id, name, window_start, window_end) P
            JOIN (
              SELECT seller, window_start AS starttime, window_end AS endtime
              FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(event_time), INTERVAL '10' SECOND))
              GROUP BY seller, window_start, window_end) A
            ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    ),
    "q11": NexmarkQuery(
        ("bid",),
        """SELECT bidder, COUNT(*), MIN(`dateTime`), MAX(`dateTime`) FROM TABLE(
             SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(event_time), INTERVAL '10' SECOND))
           GROUP BY bidder, window_start, window_end""",
        """SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime, max(dateTime) AS endtime
           FROM bid GROUP BY bidder, session_window(event_time, '10 seconds')""",
    ),
    "q12": NexmarkQuery(
        ("bid",),
        f"""SELECT bidder, COUNT(*), {_START_MS}, {_START_MS} + 10000 FROM {_BY_10_SECONDS}
            GROUP BY bidder, window_start, window_end""",
        """SELECT bidder, count(*) AS bid_count, unix_millis(window.start) AS starttime,
           unix_millis(window.end) AS endtime FROM bid GROUP BY bidder, window(event_time, '10 seconds')""",
    ),
    "q14": NexmarkQuery(
        ("bid",),
        f"""SELECT auction, bidder, CAST(0.908 * price AS STRING), {_TIME_OF_DAY}, `dateTime`, extra, {_LETTERS}
            FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
        f"""SELECT auction, bidder, CAST(0.908 * price AS STRING) AS price, {_TIME_OF_DAY} AS bidTimeType, dateTime,
            extra, {_LETTERS} AS c_counts FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    ),
    "q15": NexmarkQuery(
        ("bid",),
        f"""SELECT MAX({_DAY}), {_STATISTICS} FROM {_BY_DAY} GROUP BY window_start, window_end""",
    ),
    "q16": NexmarkQuery(
        ("bid",),
        f"""SELECT channel, MAX({_DAY}), MAX(DATE_FORMAT(event_time, 'HH:mm')), {_STATISTICS} FROM {_BY_DAY}
            GROUP BY channel, window_start, window_end""",
    ),
    "q17": NexmarkQuery(
        ("bid",),
        f"""SELECT auction, MAX({_DAY}), {_BIDS_OF_RANKS}, MIN(price), MAX(price), AVG(CAST(price AS DOUBLE)),
            SUM(price) FROM {_BY_DAY} GROUP BY auction, window_start, window_end""",
    ),
    "q18": NexmarkQuery(
        ("bid",),
        f"""SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (
              SELECT *, ROW_NUMBER() OVER (
                PARTITION BY window_start, window_end, bidder, auction ORDER BY event_time DESC) AS rank_number
              FROM {_BY_DAY}) WHERE rank_number <= 1""",
    ),
    "q20": NexmarkQuery(
        ("bid", "auction"),
        f"""SELECT {_EXPANDED_BID} FROM bid AS b INNER JOIN auction AS a ON b.auction = a.id
            AND a.event_time {_WITHIN_AN_HOUR.format("b")} WHERE a.category = 10""",
        f"""SELECT {_EXPANDED_BID} FROM bid b JOIN auction a ON b.auction = a.id
            AND a.event_time {_SPARK_HOUR.format("b")} WHERE a.category = 10""",
    ),
    "q21": NexmarkQuery(
        ("bid",),
        f"""SELECT auction, bidder, price, channel, {_CHANNEL_ID}
            FROM bid WHERE {_ID_IN_URL} IS NOT NULL
            OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
        f"""SELECT auction, bidder, price, channel,
            {_CHANNEL_ID} AS channel_id
            FROM bid WHERE {_ID_IN_URL} <> ''
            OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    ),
    "q22": NexmarkQuery(
        ("bid",),
        """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),
           SPLIT_INDEX(url, '/', 5) FROM bid""",
        """SELECT auction, bidder, price, channel, get(split(url, '/'), 3) AS dir1, get(split(url, '/'), 4) AS dir2,
           get(split(url, '/'), 5) AS dir3 FROM bid""",
    ),
}
_OF_EVERY_BID = ("q0", "q1", "q22")  # also of the last one of each partition
_FLINK_TYPES = {pl.Int32: "INT", pl.Int64: "BIGINT", pl.String: "STRING", pl.Float64: "DOUBLE"}


def run(work: Path, events: int, slugs: Sequence[str] | None, runs: int) -> list[Figures]:
    """`events`, `runs` times; `slugs` names queries (`q7`) and peers (`q7-flink-heap`), None all of them."""
    generated = generate(NexmarkLoad(events, EVENTS_PER_SECOND))
    tables = generated.tables()
    figures: list[Figures] = []
    with KafkaBroker() as broker:
        for name, table in tables.items():
            broker.create_topic(name, PARTITIONS)
            produce_records(broker.bootstrap, name, by_partition(table))
        for query in QUERIES:
            if not (candidates := _query_candidates(query, slugs)):
                continue
            read = generated if query not in _OF_EVERY_BID else replace(generated, bid=with_last_events(generated.bid))
            expected = pl.DataFrame(expected_rows(query, read))
            rows = sum(tables[name].num_rows + PARTITIONS for name in QUERIES[query].tables)
            ground = Ground(broker, work, rows, dict(expected.schema), runs)
            figures += [replace(peer, query=query) for peer in run_all(ground, candidates, expected)]
    return figures


def by_partition(table: pa.Table) -> list[list[tuple[bytes, bytes]]]:
    """Return the records of each partition, without keys."""
    keyed = [(b"", record) for record in json_records(with_last_events(table))]
    return [keyed[number::PARTITIONS] for number in range(PARTITIONS)]


def with_last_events(table: pa.Table) -> pa.Table:
    """Add an event for each partition that is days after all others, of no person, seller, bidder or auction."""
    time = pc.add(pc.max(table.column(TIME)), pa.scalar(_LAST_AFTER_MS, pa.duration("ms")))
    values = {field.name: "" if pa.types.is_string(field.type) else -1 for field in table.schema} | {TIME: time.as_py()}
    last = pa.Table.from_pylist([values] * PARTITIONS, table.schema)
    # Records go to partitions in turn, so that the last PARTITIONS of them are in one each.
    return pa.concat_tables([table, last])


def figures_by_query(figures: Sequence[Figures]) -> Iterator[tuple[str, list[Figures]]]:
    """Yield each query with the figures of its peers."""
    for query in QUERIES:
        if of_query := [peer for peer in figures if peer.query == query]:
            yield query, of_query


def _query_candidates(query: str, slugs: Sequence[str] | None) -> Candidates:
    peers: Candidates = {
        f"{query}-joinery": partial(_joinery_peer, query=query),
        f"{query}-flink-heap": partial(_flink_candidate, query=query, setup=flink_peer.HEAP),
        f"{query}-flink-rocksdb": partial(_flink_candidate, query=query, setup=flink_peer.ROCKSDB),
        **({f"{query}-spark": partial(_spark_candidate, query=query)} if QUERIES[query].spark else {}),
    }
    return peers if slugs is None or query in slugs else only(peers, slugs)


def _joinery_peer(ground: Ground, slug: str, *, query: str) -> Peer:
    spec = yaml.safe_load((_JOBS / f"{query}.yaml").read_text())["spec"]
    for source in spec["inputs"]:
        del source["file"]
        source.update(joinery_jobs.to_topic(ground.bootstrap, source["name"]), format="json")
    del spec["stateStore"]
    return _with_query(joinery_jobs.compared("StreamJoin", "into Kafka exactly once", spec, ground, slug), query)


def _flink_candidate(ground: Ground, slug: str, *, query: str, setup: flink_peer.Setup) -> Peer:
    columns = ", ".join(f"`{name}` {_FLINK_TYPES[type(kind)]}" for name, kind in ground.schema.items())
    statements = []
    for name in QUERIES[query].tables:
        table_columns = ", ".join(f"`{column}` {kind}" for column, kind in COLUMNS[name].items() if column != TIME)
        statements.append(flink_peer.input_table(name, ground.bootstrap, table_columns, time=TIME, delay_seconds=4))
    statements.append(flink_peer.output_table(slug, ground.bootstrap, columns, setup))
    statements.append(f"INSERT INTO joined {QUERIES[query].flink}")
    return _with_query(flink_peer.peer(setup, statements, ground.folder(slug)), query)


def _spark_candidate(ground: Ground, slug: str, *, query: str) -> Peer:
    settings = {
        "bootstrap": ground.bootstrap,
        "topic": slug,
        "per_batch": ground.batch_rows(1),
        "tables": {name: ", ".join(map(" ".join, COLUMNS[name].items())) for name in QUERIES[query].tables},
        "sql": QUERIES[query].spark,
    }
    return _with_query(spark_peer.peer(spark_peer.current(), "sql", settings, ground.folder(slug)), query)


def _with_query(peer: Peer, query: str) -> Peer:
    return replace(peer, name=f"{peer.name}, {query}")
