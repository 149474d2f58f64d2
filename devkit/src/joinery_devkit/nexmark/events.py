"""Generate Nexmark's events: of 50 events, 1 is a person, 3 are auctions and 46 are bids.

Distributions are those of `nexmark/nexmark` (Beam's generator): half of the bids are on a hot auction, three quarters
of the bidders and sellers are hot ones, prices are log-uniform from 1 to 1,000,000 (in cents), sizes vary by 20 %. The
same `NexmarkLoad` gives the same events, which are drawn as arrays, millions within seconds.

    python -m joinery_devkit.nexmark.events FOLDER --events 1000

writes `person.csv`, `auction.csv`, `bid.csv` and `side_input.csv`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

START_MS = int(datetime(2026, 1, 15, 7, 59, tzinfo=UTC).timestamp() * 1000)  # q14 tells hours before 8 from later ones
SEED = 5  # some people of its first 1,000 events sell within q3's states, and soon after they registered (q8)
FIRST_ID = 1000  # of persons and auctions
FIRST_CATEGORY = 10

SIDE_INPUT_ROWS = 1_024  # q13's bounded table has an auction in some of its keys only

_PERSONS, _AUCTIONS, _ALL = 1, 3, 50  # events of each kind among 50 in sequence; the rest are bids
_CATEGORIES = 5
_IN_FLIGHT_AUCTIONS, _ACTIVE_PERSONS, _LEAD = 100, 1000, 10
_HOT = 100  # the last id that is a multiple of this is hot
_HOT_AUCTION_SHARE, _HOT_BIDDER_SHARE, _HOT_SELLER_SHARE, _HOT_CHANNEL_SHARE = 1 / 2, 3 / 4, 3 / 4, 1 / 2
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 200, 500, 100
_CHANNELS = 10_000
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_TEXT_BYTES = 1 << 20
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class NexmarkLoad:
    """`events` of all kinds, `per_second` of event time. Within each `disorder` events that follow one another, event
    times come in another order."""

    events: int
    per_second: float = 10_000
    seed: int = SEED
    disorder: int = 1

    def numbers(self) -> np.ndarray:
        """Return the events' numbers in sending order, int64."""
        sent = np.arange(self.events)
        first = sent // self.disorder * self.disorder
        # The last group may be incomplete: its events stay in order, so that no number is missing.
        return np.where(first + self.disorder <= self.events, first + sent * 953 % self.disorder, sent)

    def times_ms(self, numbers: np.ndarray) -> np.ndarray:
        return START_MS + (numbers * 1000 / self.per_second).astype(np.int64)


@dataclass(frozen=True, slots=True)
class NexmarkEvents:
    """The tables' rows in sending order. `dateTime` and `expires` are UTC, in milliseconds."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table

    def tables(self) -> dict[str, pa.Table]:
        return {"person": self.person, "auction": self.auction, "bid": self.bid}


def side_input() -> pa.Table:
    """Return the bounded table of q13, the same for every load: `key`, `value` and the time from which all rows are
    valid."""
    keys = np.arange(SIDE_INPUT_ROWS)
    valid = np.full(SIDE_INPUT_ROWS, START_MS // _DAY_MS * _DAY_MS)
    return pa.table({"key": keys, "value": [f"value-{key}" for key in keys], "dateTime": _timestamp_array(valid)})


def generate(load: NexmarkLoad) -> NexmarkEvents:
    chance, texts = np.random.default_rng(load.seed), _Texts()
    numbers = load.numbers()
    offset = numbers % _ALL
    persons = numbers[offset < _PERSONS]
    auctions = numbers[(offset >= _PERSONS) & (offset < _PERSONS + _AUCTIONS)]
    bids = numbers[offset >= _PERSONS + _AUCTIONS]
    return NexmarkEvents(
        _draw_persons(load, persons, chance, texts),
        _draw_auctions(load, auctions, chance, texts),
        _draw_bids(load, bids, chance, texts),
    )


def _draw_persons(load: NexmarkLoad, numbers: np.ndarray, chance: np.random.Generator, texts: _Texts) -> pa.Table:
    count = len(numbers)
    first, last = _choose_values(_FIRST_NAMES, chance, count), _choose_values(_LAST_NAMES, chance, count)
    mail = pc.binary_join_element_wise(texts.words(chance, count, 7), "@", texts.words(chance, count, 5), ".com", "")
    quarters = (pa.array(chance.integers(0, 10_000, count)).cast(pa.string()) for _ in range(4))
    card = pc.binary_join_element_wise(*(pc.utf8_lpad(quarter, 4, "0") for quarter in quarters), " ")
    columns = {
        "id": FIRST_ID + numbers // _ALL,
        "name": pc.binary_join_element_wise(first, last, " "),
        "emailAddress": mail,
        "creditCard": card,
        "city": _choose_values(_CITIES, chance, count),
        "state": _choose_values(_STATES, chance, count),
    }
    return _event_table(columns, load.times_ms(numbers), texts.extra(chance, columns, 1, _PERSON_BYTES))


def _draw_auctions(load: NexmarkLoad, numbers: np.ndarray, chance: np.random.Generator, texts: _Texts) -> pa.Table:
    count = len(numbers)
    ts = load.times_ms(numbers)
    ahead = load.times_ms(numbers + _IN_FLIGHT_AUCTIONS * _ALL // _AUCTIONS) - ts
    initial = _draw_prices(chance, count)
    last_person = numbers // _ALL
    seller = np.where(
        chance.random(count) < _HOT_SELLER_SHARE, last_person // _HOT * _HOT, _active_persons(last_person, chance)
    )
    columns = {
        "id": FIRST_ID + _last_auction(numbers),
        "itemName": texts.words(chance, count, 20),
        "description": texts.words(chance, count, 100),
        "initialBid": initial,
        "reserve": initial + _draw_prices(chance, count),
        "expires": _timestamp_array(ts + 1 + chance.integers(0, np.maximum(2 * ahead, 1))),
        "seller": FIRST_ID + seller,
        "category": FIRST_CATEGORY + chance.integers(0, _CATEGORIES, count),
    }
    return _event_table(columns, ts, texts.extra(chance, columns, 7, _AUCTION_BYTES))


def _draw_bids(load: NexmarkLoad, numbers: np.ndarray, chance: np.random.Generator, texts: _Texts) -> pa.Table:
    count = len(numbers)
    last_auction, last_person = _last_auction(numbers), numbers // _ALL
    least = np.maximum(last_auction - _IN_FLIGHT_AUCTIONS, 0)
    auction = np.where(
        chance.random(count) < _HOT_AUCTION_SHARE,
        last_auction // _HOT * _HOT,
        chance.integers(least, last_auction + 1 + _LEAD),
    )
    bidder = np.where(
        chance.random(count) < _HOT_BIDDER_SHARE, last_person // _HOT * _HOT + 1, _active_persons(last_person, chance)
    )
    names, urls = texts.channels()
    hot = chance.random(count) < _HOT_CHANNEL_SHARE
    channel = pa.array(
        np.where(
            hot, chance.integers(0, len(_HOT_CHANNELS), count), chance.integers(len(_HOT_CHANNELS), len(names), count)
        )
    )
    columns = {
        "auction": FIRST_ID + auction,
        "bidder": FIRST_ID + bidder,
        "price": _draw_prices(chance, count),
        "channel": names.take(channel),
        "url": urls.take(channel),
    }
    return _event_table(
        columns, load.times_ms(numbers), texts.random(chance, _draw_sizes(chance, np.full(count, _BID_BYTES - 32)))
    )


def _event_table(columns: dict[str, object], ts: np.ndarray, extra: pa.Array) -> pa.Table:
    return pa.table({**columns, "dateTime": _timestamp_array(ts), "extra": extra})


def _timestamp_array(ms: np.ndarray) -> pa.Array:
    return pa.array(ms).cast(pa.timestamp("ms", "UTC"))


def _last_auction(numbers: np.ndarray) -> np.ndarray:
    """Return the number of the last auction up to each auction or bid."""
    last: np.ndarray = numbers // _ALL * _AUCTIONS + np.minimum(numbers % _ALL - _PERSONS, _AUCTIONS - 1)
    return last


def _active_persons(last: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """One of the last persons each, or one of those who come next."""
    active = np.minimum(last + 1, _ACTIVE_PERSONS)
    person: np.ndarray = last + 1 - active + chance.integers(0, active + _LEAD)
    return person


def _draw_prices(chance: np.random.Generator, count: int) -> np.ndarray:
    return np.rint(10.0 ** (chance.random(count) * 6) * 100).astype(np.int64)


def _choose_values(values: tuple[str, ...], chance: np.random.Generator, count: int) -> pa.Array:
    return pa.array(values).take(pa.array(chance.integers(0, len(values), count)))


def _draw_sizes(chance: np.random.Generator, average: np.ndarray) -> np.ndarray:
    """Return sizes up to 20 % from the averages; 0 for a negative average."""
    delta = np.rint(np.maximum(average, 0) * 0.2).astype(np.int64)
    sizes: np.ndarray = np.maximum(average, 0) - delta + chance.integers(0, np.maximum(2 * delta, 1))
    return sizes


class _Texts:
    """Slices of two random texts, the same for every load."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)
        self._letters = self._chance.integers(ord("a"), ord("z") + 1, _TEXT_BYTES, dtype=np.uint8)
        self._gaps = self._chance.random(_TEXT_BYTES) < 1 / 13  # in words

    def random(self, chance: np.random.Generator, sizes: np.ndarray) -> pa.Array:
        """Return a text of letters for each of the `sizes`."""
        return _slice_text(self._letters, chance, sizes)

    def words(self, chance: np.random.Generator, count: int, most: int, gap: str = " ") -> pa.Array:
        """Return texts of 3 letters to fewer than `most`, some of them gaps; blanks at the ends are cut off."""
        text = np.where(self._gaps, np.uint8(ord(gap)), self._letters)
        return pc.utf8_trim(_slice_text(text, chance, chance.integers(3, most, count)), " ")

    def extra(
        self, chance: np.random.Generator, columns: dict[str, object], numbers: int, average_bytes: int
    ) -> pa.Array:
        """Fill rows up to `average_bytes` on average; `numbers` columns take 8 bytes each, the texts their length."""
        texts = [
            column for column in columns.values() if isinstance(column, pa.Array) and pa.types.is_string(column.type)
        ]
        used = sum(pc.binary_length(column).to_numpy() for column in texts) + 8 * numbers
        return self.random(chance, _draw_sizes(chance, average_bytes - used))

    def channels(self) -> tuple[pa.Array, pa.Array]:
        """Return names and URLs: first those of the hot channels, then 10,000 others, nine tenths with a
        `channel_id`."""
        count = len(_HOT_CHANNELS) + _CHANNELS
        parts = [self.words(self._chance, count, 5, gap="_") for _ in range(3)]
        base = pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")
        numbers = np.arange(_CHANNELS, dtype=np.uint32)
        bits = np.unpackbits(numbers[:, None].view(np.uint8), axis=1, bitorder="little")
        reversed_bits = np.packbits(bits, axis=1, bitorder="big").view(">u4")[:, 0].astype(np.int64)
        ids = np.abs(np.where(reversed_bits >= 1 << 31, reversed_bits - (1 << 32), reversed_bits))
        hot, cold = base[: len(_HOT_CHANNELS)], base[len(_HOT_CHANNELS) :]
        with_id = pc.binary_join_element_wise(cold, pa.array(ids).cast(pa.string()), "&channel_id=")
        cold = pc.if_else(pa.array(self._chance.random(_CHANNELS) < 0.9), with_id, cold)
        names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
        return pa.array(names), pa.concat_arrays([hot, cold])


def _slice_text(text: np.ndarray, chance: np.random.Generator, sizes: np.ndarray) -> pa.Array:
    """Return a slice of each size, each from anywhere in `text`, as strings."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    starts = chance.integers(0, len(text) - int(sizes.max(initial=0)), len(sizes))
    positions = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
    offsets, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text[positions])
    return pa.StringArray.from_buffers(len(sizes), offsets, data)


def write_csv(events: NexmarkEvents, folder: Path) -> None:
    """Write a file for each table and for the side input, with times in ISO 8601."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (events.tables() | {"side_input": side_input()}).items():
        pl.DataFrame(table).write_csv(folder / f"{name}.csv", datetime_format="%Y-%m-%dT%H:%M:%S%.3fZ")


def json_records(table: pa.Table) -> list[bytes]:
    """Return the rows as JSON objects, with times in milliseconds."""
    times = pl.selectors.datetime().dt.epoch("ms")
    return pl.DataFrame(table).with_columns(times).write_ndjson().encode().split(b"\n")[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=1_000)
    parser.add_argument("--per-second", type=float, default=10)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    write_csv(generate(NexmarkLoad(options.events, options.per_second, options.seed)), options.folder)


if __name__ == "__main__":
    main()
