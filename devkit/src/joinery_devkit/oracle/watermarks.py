"""Computes which watermarks the plans must hold, from every event time read so far."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from joinery_devkit.oracle.rows import END


class WatermarkOracle:
    """Rules T1, T5, T7 and A4, from every event time read so far. Times and delays are milliseconds; partitions are any
    names.

    Per epoch: `watermarks`, then `saw` with the epoch's rows (T3), dropped and late ones included, then `settle`.
    """

    def __init__(self, delays: Mapping[str, int], partitions: Mapping[str, Iterable[Hashable]] | None = None) -> None:
        self._delays = dict(delays)
        self._times: dict[str, dict[Hashable, list[int]]] = {name: {} for name in delays}
        self._emitted: dict[str, int | None] = dict.fromkeys(delays)
        for name, initial in (partitions or {}).items():
            for partition in initial:
                self.saw(name, partition, [])

    def edit(self, delays: Mapping[str, int]) -> None:
        """Continues the job with these delays."""
        self._delays = dict(delays)

    def saw(self, name: str, partition: Hashable, times: Iterable[int]) -> None:
        """Takes an epoch's read of a partition; `times` are the event times of its readable rows, if there were any."""
        self._times[name].setdefault(partition, []).extend(times)

    def settle(self, idle: Mapping[str, Collection[Hashable]] | None = None) -> None:
        """Settles an epoch after `saw` has taken its rows. What they imply, with the partitions that were idle in that
        epoch, is not taken back by a partition that is new or no longer idle."""
        for name, emitted in self._emitted.items():
            self._emitted[name] = _highest(emitted, self._implied(name, (idle or {}).get(name, ())))

    def watermarks(
        self, idle: Mapping[str, Collection[Hashable]] | None = None, ended: Collection[str] = ()
    ) -> dict[str, int | None]:
        """The next plan's watermarks, given its idle partitions and the inputs that have been read to their ends."""
        idle = idle or {}
        own = {
            name: END if name in ended else _highest(emitted, self._implied(name, idle.get(name, ())))
            for name, emitted in self._emitted.items()
        }
        idle_inputs = {name for name in own if own[name] != END and self._all_idle(name, idle.get(name, ()))}
        active = [watermark for name, watermark in own.items() if name not in idle_inputs and watermark != END]
        lowest = min((w for w in active if w is not None), default=None)
        if None in active:
            lowest = None
        for name, watermark in own.items():
            self._emitted[name] = _highest(watermark, lowest) if name in idle_inputs else watermark
        return dict(self._emitted)

    def reached(self, name: str, unread: Collection[Hashable]) -> int | None:
        """The last time that an input has reached whose `unread` partitions have more records (A4: rows from before
        *(highest event time - delay)* are read); None: one of them has shown no row."""
        implied = self._implied(name, self._times[name].keys() - set(unread))
        return None if implied is None else implied - 1

    def _implied(self, name: str, idle: Collection[Hashable]) -> int | None:
        """The watermark by T1; None while a partition that is not idle has shown no row."""
        times = [seen for partition, seen in self._times[name].items() if partition not in idle]
        if not times or not all(times):
            return None
        return min(max(seen) - self._delays[name] for seen in times)

    def _all_idle(self, name: str, idle: Collection[Hashable]) -> bool:
        times = self._times[name]
        return bool(times) and all(partition in idle for partition in times)


def too_far_ahead(times: Sequence[int], stamps: Sequence[int], max_future: int | None, clock: int | None) -> set[int]:
    """T11: the positions of rows that are `future`. `stamps` are Kafka's timestamps (negative: none), `clock` is the
    plan's (None: unknown); `max_future` None: none is."""
    if max_future is None:
        return set()
    clocks = [] if clock is None else [clock]
    positions: set[int] = set()
    for position, (ts, stamp) in enumerate(zip(times, stamps, strict=True)):
        row_clocks = [*clocks, *([stamp] if stamp >= 0 else [])]
        if row_clocks and ts - max_future > min(row_clocks):
            positions.add(position)
    return positions


def _highest(a: int | None, b: int | None) -> int | None:
    watermarks = [w for w in (a, b) if w is not None]
    return max(watermarks) if watermarks else None
