"""The kill drill of every output and of every kind of input, without Spark: drivers run the epochs themselves, and die
by SIGKILL at each named point of each epoch, one after the other, with other shards each time. In the end each row has
to be there once, and each dead letter. Every second point is a test of its own, so that each test is short.

Drivers are forks of a process that has imported what they need: a death takes a fraction of a second. Tasks that die
are the other kill drills'.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from e2e.drill import POINTS
from e2e.jobs import json_rows, order, payment, produce
from e2e.kill_harness import dead_letter_rows, output_to, topic_rows, written_to
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.engine.messages import CRASH_POINTS

pytestmark = pytest.mark.services

PARTS = 3  # of the records, each an epoch or more
EACH = 6  # orders of a part, beside one that is broken
ORDERS = PARTS * EACH
SHARDS = (2, 1, 3)
TIMES = {"eventTime": "ts", "watermark": {"delay": "1h"}}

_DRIVERS = """
import json, os, sys, traceback
import joinery_runtime.hosts.run, joinery_runtime.connectors.lake.delta, joinery_runtime.connectors.lake.iceberg
from joinery_runtime import run
from joinery_runtime.formats.compiled import kernels
for name in ("json", "messages"):
    kernels(name)
for line in sys.stdin:
    job, once, fault = json.loads(line)
    child = os.fork()
    if not child:
        os.environ["JOINERY_FAULT"] = fault
        print(fault, file=sys.stderr, flush=True)
        try:
            run(job, once=once, local=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Drivers:
    """Runs driver after driver, each a process of its own; `log` has what they said."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as errors:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", _DRIVERS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()

    def run(self, job: dict[str, Any], fault: str, *, once: bool) -> int:
        """The exit code of a driver; negative: the signal that it died by."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([job, once, fault]) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())


@dataclass
class Scene:
    """A job whose `orders` are a `source` of this kind and whose rows go to such a `target`. Drivers die at every
    second point, from `first_point` on."""

    source: str
    target: str
    first_point: int
    folder: Path
    dsn: str
    apart: str
    kafka: KafkaAdmin | None
    deaths: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in ("orders", "history", "out", "dead"):
            (self.folder / name).mkdir()
        records = [json.dumps(payment(number)) for number in range(ORDERS)]
        (self.folder / "payments.jsonl").write_text("\n".join(records))
        if self.kafka is not None:
            for topic in ("orders", "out", "dead"):
                self.kafka.create_topic(f"{self.name}.{topic}")

    @property
    def name(self) -> str:
        return f"each-{self.source}-{self.target}-{self.first_point}"

    @property
    def table(self) -> str:
        return f"killed_{self.target}_{self.first_point}"

    @property
    def bounded(self) -> bool:
        return self.source == "files"

    @property
    def points(self) -> tuple[str, ...]:
        if self.target == "several":  # before a row is written, one output is as several
            points = CRASH_POINTS[CRASH_POINTS.index("staged") :]
        else:
            points = CRASH_POINTS if self.target == "topic" else POINTS
        return points[self.first_point :: 2]

    def feed(self, epoch: int) -> None:
        """Makes a further part of the orders readable; what is bounded is all there from the start."""
        if self.bounded:
            parts = range(1, PARTS + 1) if epoch == 1 else range(0)
        else:
            parts = range(epoch, min(epoch, PARTS) + 1)
        for part in parts:
            self._feed(part)

    def _feed(self, part: int) -> None:
        lines = [*orders_of(part), f"{{broken {part}"]
        if self.source == "history" and part == 1:
            # The topic begins with the second part, of which the files count, and they have some of the third.
            for number, records in enumerate((lines, orders_of(2), orders_of(3))):
                (self.folder / "history" / f"{number}.jsonl").write_text("\n".join(records))
            return
        if self.source in ("topic", "history"):
            assert self.kafka is not None
            produce(self.kafka.bootstrap, f"{self.name}.orders", [line.encode() for line in lines])
        else:
            path = self.folder / f"{part}.jsonl"
            path.write_text("\n".join(lines))
            path.rename(self.folder / "orders" / path.name)

    def job(self) -> dict[str, Any]:
        orders: dict[str, Any] = {"file": {"path": f"{self.folder}/orders"}}
        if self.source == "watched":
            orders["file"]["watch"] = True
        elif self.kafka is not None and not self.bounded:
            orders = {"kafka": {"bootstrapServers": self.kafka.bootstrap, "topic": f"{self.name}.orders"}}
        if self.source == "history":
            orders["history"] = {"path": f"{self.folder}/history", "format": "json", "until": 2_000 * EACH}
        return {
            "apiVersion": "joinery.dev/v1alpha1",
            "kind": "StreamJoin",
            "metadata": {"name": self.name},
            "spec": {
                "inputs": [
                    {"name": "orders", **orders, "format": "json", "schema": columns("id", "amount"), **TIMES},
                    {
                        "name": "payments",
                        "file": {"path": f"{self.folder}/payments.jsonl"},
                        "format": "json",
                        "schema": columns("order", "paid"),
                        **TIMES,
                    },
                ],
                "joins": [
                    {
                        "right": "payments",
                        "keys": {"orders.id": "payments.order"},
                        "interval": {"of": "orders", "lower": "0s", "upper": "1h"},
                    }
                ],
                "select": [{"column": "orders.id"}, {"column": "orders.amount"}, {"column": "payments.paid"}],
                **self.outputs(),
                "deadLetter": self.dead(),
                "stateStore": {"postgres": {"dsn": self.dsn, "schema": self.name.replace("-", "_")}},
                "trigger": {"maxRecordsPerEpoch": 2 * EACH},
                "shards": SHARDS[self.deaths.total() % len(SHARDS)],
            },
        }

    def outputs(self) -> dict[str, Any]:
        if self.target != "several":
            return {"output": self.output(self.target, self.table)}
        thirds = [
            {"name": f"in_{name}", "when": f"amount % 3 = {rest}", **self.output(name, self.table)}
            for rest, name in enumerate(("topic", "table", "held"))
        ]
        return {"outputs": [*thirds, {"name": "every_row", **self.output("apart", f"{self.table}_apart")}]}

    def output(self, target: str, table: str) -> dict[str, Any]:
        if target == "topic":
            assert self.kafka is not None
            return {"kafka": {"bootstrapServers": self.kafka.bootstrap, "topic": f"{self.name}.out"}}
        return output_to(target, self.folder / "out", self.apart, table)

    def dead(self) -> dict[str, Any]:
        if self.target == "topic":
            return {"kafka": {"topic": f"{self.name}.dead"}}
        roll_size = {"rollSize": "2Ki"} if self.target == "held" else {}
        return {"file": {"path": f"{self.folder}/dead", **roll_size}}

    def drill(self, drivers: Drivers) -> None:
        for epoch in count(1):
            self.feed(epoch)
            for point in self.points:
                code = drivers.run(self.job(), f"{point}@{epoch}", once=not self.bounded)
                if code == 0:
                    return
                assert code == -signal.SIGKILL, drivers.log.read_text()
                self.deaths[point] += 1

    def rows(self, *targets: str) -> list[tuple[Any, ...]]:
        """The rows in these targets together."""
        return sorted((row["amount"], row["id"], row["paid"]) for target in targets for row in self._rows_in(target))

    def _rows_in(self, target: str) -> list[dict[str, Any]]:
        if target == "topic":
            assert self.kafka is not None
            return topic_rows(self.kafka.bootstrap, f"{self.name}.out")
        # Several outputs write to tables of different names, as they have to in different databases too.
        table = f"{self.table}_apart" if (self.target, target) == ("several", "apart") else self.table
        return written_to(target, self.folder / "out", self.apart if target == "apart" else self.dsn, table)

    def dead_letters(self) -> list[str]:
        if self.target == "topic":
            assert self.kafka is not None
            return sorted(row["text"] for row in dead_letter_rows(self.kafka.bootstrap, f"{self.name}.dead"))
        return sorted(row["text"] for row in json_rows(self.folder / "dead"))


def orders_of(part: int) -> list[str]:
    return [json.dumps(order(number)) for number in range((part - 1) * EACH, part * EACH)]


def columns(key: str, value: str) -> list[dict[str, str]]:
    return [{"name": key, "type": "string"}, {"name": value, "type": "int64"}, {"name": "ts", "type": "timestamp"}]


@pytest.fixture(scope="module")
def apart(postgres_dsn: str) -> str:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE each_epoch_apart")
    return make_conninfo(postgres_dsn, dbname="each_epoch_apart")


@pytest.fixture
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("drivers") / "log") as drivers:
        yield drivers


# The suite on services has one half of the points for each pair, `make test-slow` the other one. Files and topics meet
# all points there.
PAIRS = [
    ("files", "json"),
    ("files", "parquet"),
    ("files", "held"),
    ("files", "delta"),
    ("watched", "iceberg"),
    ("topic", "apart"),
    ("topic", "several"),
    ("history", "table"),
]


@pytest.mark.parametrize(
    ("source", "target", "first_point"),
    [
        *((*pair, number % 2) for number, pair in enumerate(PAIRS)),
        *(pytest.param(*pair, 1 - number % 2, marks=pytest.mark.slow) for number, pair in enumerate(PAIRS)),
        *(pytest.param("history", "topic", half, marks=pytest.mark.slow) for half in (0, 1)),
    ],
)
def test_each_row_comes_once(
    source: str,
    target: str,
    first_point: int,
    postgres_dsn: str,
    apart: str,
    tmp_path: Path,
    drivers: Drivers,
    request: Any,
) -> None:
    needs_kafka = source in ("topic", "history") or target in ("topic", "several")
    kafka = request.getfixturevalue("kafka_broker") if needs_kafka else None
    scene = Scene(source, target, first_point, tmp_path, postgres_dsn, apart, kafka)
    scene.drill(drivers)
    assert min(scene.deaths[point] for point in scene.points) >= PARTS, scene.deaths
    rows = [(number, f"o{number}", 10 * number) for number in range(ORDERS)]
    if target == "several":
        assert scene.rows("topic", "table", "held") == rows
        assert scene.rows("apart") == rows
    else:
        assert scene.rows(target) == rows
    assert scene.dead_letters() == [f"{{broken {part}" for part in range(1, PARTS + 1)]
