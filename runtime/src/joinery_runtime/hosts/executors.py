"""Which executors of a Spark context run, which of them take part in an epoch, and how a task gets to one of them.

PySpark places no task; the JVM's RDDs do. A place is a preference: Spark keeps to it while that executor has a free
core, as between epochs, and takes another executor for one that is busy or gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import AutoBatchedSerializer, CartesianDeserializer, CPickleSerializer

from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.spark_security import is_local, of_environment

_REGISTRATION_SECONDS = 10.0  # how long a new executor may take until Spark gives it tasks
_REGISTRATION_POLL_SECONDS = 0.02


def executor_ids(context: SparkContext) -> list[str]:
    """The ids of the executors that run now, the oldest first. Empty where tasks run in the driver, and before the
    first executor has come."""
    return [name for name, _ in _executors(context)]


def _executors(context: SparkContext) -> list[tuple[str, str]]:
    """Ids and hosts."""
    if is_local(context.master):
        return []
    spark: Any = context._jsc.sc()
    jvm: Any = context._jvm
    java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    # Blocks know the hosts, but may go on listing an executor that has ended. One that was told to end is listed by
    # both for a while, and gets no task.
    known, scheduler = set(java(spark.getExecutorIds())), spark.schedulerBackend()
    members = java(of_environment(context, "blockManager").master().getMemoryStatus().keySet())
    found = [(each.executorId(), each.host()) for each in members]
    executors = [
        (len(name), name, host)  # by number
        for name, host in found
        if name in known and scheduler.isExecutorActive(name)
    ]
    return [(name, host) for _, name, host in sorted(executors)]


def _location(executor: str, host: str) -> str:
    return f"executor_{host}_{executor}"


def request_executors(context: SparkContext, count: int) -> int:
    """Has Spark keep this many executors. Ends the newest of those that run beyond them, and says how many. No task may
    be running. Raises Py4JError and ConnectionError."""
    jvm: Any = context._jvm
    spark: Any = context._jsc.sc()
    surplus = executor_ids(context)[count:]
    if surplus:
        spark.killExecutors(jvm.PythonUtils.toSeq(surplus))
    nowhere = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    spark.requestTotalExecutors(count, 0, nowhere)
    return len(surplus)


def placed_on(context: SparkContext, items: Sequence[object], locations: Sequence[str]) -> RDD[Any]:
    """A partition for each item: item n is for location n, and so on from the first one where there are more items."""
    jvm: Any = context._jvm
    spark: Any = context._jsc.sc()
    pickling, sequence = CPickleSerializer(), jvm.PythonUtils.toSeq
    pairs = [
        jvm.scala.Tuple2(bytearray(pickling.dumps([item])), sequence([locations[n % len(locations)]]))
        for n, item in enumerate(items)
    ]
    of_bytes = getattr(jvm.scala.reflect, "ClassTag$").__getattr__("MODULE$").apply(jvm.java.lang.Class.forName("[B"))
    return RDD(spark.makeRDD(sequence(pairs), of_bytes).toJavaRDD(), context, AutoBatchedSerializer(pickling))


def placed_again(shuffled: RDD[Any], locations: Sequence[str]) -> RDD[Any]:
    """What a shuffle has made, with partition n for location n, and so on from the first one.

    A task behind a shuffle has no place, and Spark draws one by lot. A partition of a cartesian product prefers the
    places of both its parents: of the product with as many placed partitions the diagonal is taken, so that each
    partition of the shuffle comes once.
    """
    context, count = shuffled.context, shuffled.getNumPartitions()
    jvm: Any = context._jvm
    places = placed_on(context, [None] * count, locations)
    product = places._jrdd.cartesian(shuffled._jrdd).rdd()
    diagonal = jvm.PythonUtils.toSeq([n * count + n for n in range(count)]).toSet()  # a function from Int to Boolean
    pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(product, diagonal)
    pairs: RDD[Any] = RDD(
        pruned.toJavaRDD(), context, CartesianDeserializer(places._jrdd_deserializer, shuffled._jrdd_deserializer)
    )
    return pairs.values()


class TakingPart:
    """The executors that take part in epochs: those that have run `warm`, which builds a process's worker.

    A new executor does so beside the epochs, which go on without it: one that had a share at once would have all others
    wait until it has imported, built and connected (3 s on a node of two cores). Where no executor remains that has,
    all take part.
    """

    def __init__(self, context: SparkContext, warm: Callable[[object], object]) -> None:
        self._context, self._warm = context, warm
        self._running: dict[str, str] = {}  # their hosts, by id
        self._ready = set[str]()
        self._warming: dict[str, BackgroundCall[None]] = {}

    def locations(self) -> list[str]:
        """Those that take part now as Spark names preferred locations, the oldest first."""
        self._running = running = dict(_executors(self._context))
        self._warming = {name: call for name, call in self._warming.items() if name in running}
        # What went wrong, the next epoch meets too, and says so.
        self._ready |= {name for name, call in self._warming.items() if call.done}
        self._ready &= running.keys()
        if not self._ready:
            self._ready.update(running)
        for name in running.keys() - self._ready - self._warming.keys():
            self._warming[name] = BackgroundCall(partial(self._prepare, name, running[name]), "joinery-new-executor")
        return [_location(name, host) for name, host in running.items() if name in self._ready]

    @property
    def cores(self) -> int:
        """How many cores they have; where tasks run in the driver, and before an executor has come, all that Spark has
        or expects."""
        share = len(self._ready) / len(self._running) if self._running else 1
        cores: int = self._context.defaultParallelism
        return math.ceil(cores * share)

    def _prepare(self, name: str, host: str) -> None:
        context = self._context
        scheduler: Any = context._jsc.sc().taskScheduler()
        deadline = time.monotonic() + _REGISTRATION_SECONDS
        # A task that prefers an executor unknown to the scheduler goes to another one.
        while not scheduler.isExecutorAlive(name) and time.monotonic() < deadline:
            time.sleep(_REGISTRATION_POLL_SECONDS)
        placed_on(context, [None], [_location(name, host)]).foreach(self._warm)
