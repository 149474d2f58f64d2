"""Compute the rows of Nexmark's queries with DuckDB, from texts that are written apart from the example jobs.

The texts state what docs/nexmark.md says of each query, with the bounds and windows of the jobs in examples/nexmark/.
`ms` is `dateTime` in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from joinery_devkit.nexmark.events import NexmarkEvents, side_input

_HOUR_MS = 3_600_000
_WINDOW_MS = 10_000
_DAY_MS = 24 * _HOUR_MS

_WINNING_BIDS = """
    SELECT a.*, b.auction, b.bidder, b.price, b.ms AS bid_ms, b.extra AS bid_extra
    FROM auctions a JOIN bids b
      ON b.auction = a.id AND b.ms >= a.ms AND b.ms <= a.expires_ms AND b.ms <= a.ms + 600000
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ms) = 1
"""
_STATISTICS_OF_RANKS = """
    count(*) AS total_bids,
    count(CASE WHEN price < 10000 THEN 1 END) AS rank1_bids,
    count(CASE WHEN price BETWEEN 10000 AND 999999 THEN 1 END) AS rank2_bids,
    count(CASE WHEN price >= 1000000 THEN 1 END) AS rank3_bids
"""
_STATISTICS = f"""
    {_STATISTICS_OF_RANKS},
    count(DISTINCT bidder) AS total_bidders,
    count(DISTINCT CASE WHEN price < 10000 THEN bidder END) AS rank1_bidders,
    count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN bidder END) AS rank2_bidders,
    count(DISTINCT CASE WHEN price >= 1000000 THEN bidder END) AS rank3_bidders,
    count(DISTINCT auction) AS total_auctions,
    count(DISTINCT CASE WHEN price < 10000 THEN auction END) AS rank1_auctions,
    count(DISTINCT CASE WHEN price BETWEEN 10000 AND 999999 THEN auction END) AS rank2_auctions,
    count(DISTINCT CASE WHEN price >= 1000000 THEN auction END) AS rank3_auctions
"""
_DAY_TEXT = "strftime(make_timestamp_ms(ms), '%Y-%m-%d')"
_MINUTE_TEXT = "strftime(make_timestamp_ms(ms), '%H:%M')"
_EUROS = "(price * 908 / 1000)::DECIMAL(23, 3)::VARCHAR"  # exact: doubles have 15 digits

TRUTHS: Mapping[str, str] = {
    "q0": 'SELECT auction, bidder, price, ms AS "dateTime", extra FROM bids',
    "q1": f'SELECT auction, bidder, {_EUROS} AS price, ms AS "dateTime", extra FROM bids',
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": f"""
        SELECT name, city, state, a.id
        FROM persons p, auctions a
        WHERE a.seller = p.id AND abs(a.ms - p.ms) <= {_HOUR_MS} AND category = 10 AND state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"""
        SELECT category AS id, avg(price) AS final FROM ({_WINNING_BIDS}) GROUP BY category, ms // {_DAY_MS}
    """,
    "q5": """
        SELECT auction, num
        FROM (
            SELECT auction, (ms // 2000 - hop) * 2000 AS start, count(*) AS num FROM bids, range(5) AS hops(hop)
            GROUP BY auction, start
        )
        QUALIFY rank() OVER (PARTITION BY start ORDER BY num DESC) = 1
    """,
    "q6": f"SELECT seller, avg(price) AS avg_price FROM ({_WINNING_BIDS}) GROUP BY seller, ms // {_DAY_MS}",
    "q7": f"""
        SELECT auction, price, bidder, ms AS "dateTime", extra
        FROM bids QUALIFY row_number() OVER (PARTITION BY ms // {_WINDOW_MS} ORDER BY price DESC, ms) = 1
    """,
    "q8": f"""
        SELECT id, name, ms // {_WINDOW_MS} * {_WINDOW_MS} AS stime
        FROM persons
        WHERE (id, ms // {_WINDOW_MS}) IN (SELECT (seller, ms // {_WINDOW_MS}) FROM auctions)
    """,
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, ms AS "dateTime", expires_ms AS expires, seller,
               category, extra, auction, bidder, price, bid_ms AS "bid_dateTime", bid_extra
        FROM ({_WINNING_BIDS})
    """,
    "q10": f"""
        SELECT auction, bidder, price, ms AS "dateTime", extra, {_DAY_TEXT} AS dt, {_MINUTE_TEXT} AS hm FROM bids
    """,
    "q11": f"""
        SELECT bidder, count(*) AS bid_count, min(ms) AS starttime, max(ms) AS endtime
        FROM (
            SELECT bidder, ms, sum((pause > {_WINDOW_MS})::INT) OVER (PARTITION BY bidder ORDER BY ms) AS session
            FROM (SELECT bidder, ms, ms - lag(ms, 1, 0) OVER (PARTITION BY bidder ORDER BY ms) AS pause FROM bids)
        )
        GROUP BY bidder, session
    """,
    "q12": f"""
        SELECT bidder, count(*) AS bid_count, ms // {_WINDOW_MS} * {_WINDOW_MS} AS starttime,
               ms // {_WINDOW_MS} * {_WINDOW_MS} + {_WINDOW_MS} AS endtime
        FROM bids GROUP BY bidder, ms // {_WINDOW_MS}
    """,
    "q13": """
        SELECT auction, bidder, price, ms AS "dateTime", value FROM bids, side_input WHERE auction % 10000 = key
    """,
    "q14": f"""
        SELECT auction, bidder, {_EUROS} AS price,
               CASE
                   WHEN hour(make_timestamp_ms(ms)) BETWEEN 8 AND 18 THEN 'dayTime'
                   WHEN hour(make_timestamp_ms(ms)) IN (7, 19) THEN 'otherTime'
                   ELSE 'nightTime'
               END AS "bidTimeType",
               ms AS "dateTime", extra,
               len(list_filter(string_split(extra, ''), lambda letter: letter = 'c'))::INT AS c_counts
        FROM bids WHERE price BETWEEN 1101322 AND 55066079
    """,
    "q15": f"SELECT {_DAY_TEXT} AS day, {_STATISTICS} FROM bids GROUP BY 1",
    "q16": f"""
        SELECT channel, {_DAY_TEXT} AS day, max({_MINUTE_TEXT}) AS minute, {_STATISTICS}
        FROM bids GROUP BY 1, 2
    """,
    "q17": f"""
        SELECT auction, {_DAY_TEXT} AS day, {_STATISTICS_OF_RANKS}, min(price) AS min_price, max(price) AS max_price,
               avg(price) AS avg_price, sum(price)::BIGINT AS sum_price
        FROM bids GROUP BY 1, 2
    """,
    "q18": f"""
        SELECT auction, bidder, price, channel, url, ms AS "dateTime", extra
        FROM bids QUALIFY row_number() OVER (PARTITION BY bidder, auction, ms // {_DAY_MS} ORDER BY ms DESC) = 1
    """,
    "q19": f"""
        SELECT auction, bidder, price, channel, url, ms AS "dateTime", extra, rank_number
        FROM (
            SELECT *, row_number() OVER (
                PARTITION BY auction, ms // {_DAY_MS} ORDER BY price DESC, ms
            ) AS rank_number FROM bids
        )
        WHERE rank_number <= 10
    """,
    "q20": f"""
        SELECT auction, bidder, price, channel, url, b.ms AS "bid_dateTime", b.extra AS bid_extra, itemName,
               description, initialBid, reserve, a.ms AS "auction_dateTime", expires_ms AS expires, seller, category,
               a.extra AS auction_extra
        FROM bids b, auctions a
        WHERE b.auction = a.id AND category = 10 AND abs(b.ms - a.ms) <= {_HOUR_MS}
    """,
    "q21": """
        SELECT auction, bidder, price, channel, channel_id
        FROM (
            SELECT *, coalesce(
                map {'apple': '0', 'google': '1', 'facebook': '2', 'baidu': '3'}[lower(channel)],
                nullif(split_part(split_part(url, '&channel_id=', 2), '&', 1), '')
            ) AS channel_id
            FROM bids
        )
        WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, parts[4] AS dir1, parts[5] AS dir2, parts[6] AS dir3
        FROM (SELECT *, string_split(url, '/') AS parts FROM bids)
    """,
}
"""By query. Rows are in no order; times are in milliseconds."""


def expected_rows(query: str, events: NexmarkEvents) -> pa.Table:
    """Return the rows of one of the `TRUTHS`."""
    with duckdb.connect() as connection:
        connection.register("side_input", side_input())
        for name, table in events.tables().items():
            connection.register(name, table)
            more = ", epoch_ms(expires) AS expires_ms" if name == "auction" else ""
            connection.execute(f'CREATE VIEW {name}s AS SELECT *, epoch_ms("dateTime") AS ms{more} FROM {name}')
        return connection.sql(TRUTHS[query]).to_arrow_table()
