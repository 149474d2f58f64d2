"""All that Joinery uses of PySpark and Spark and that has no public way. No other module names a private part of
PySpark, and each function says why there is no public one.

PySpark shows Java to nobody: `_jvm` and `_jsc` lead to it, and to Spark's own Scala and Java API. What is said to be
"public in Scala" below is part of that API; only the way there is private.

tests/hosts/test_spark_internals.py has a test of each function, which fails by name on a Spark that lacks what the
function needs. `make matrix` runs these tests on each version of Spark.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import RDD, SparkConf, SparkContext, java_gateway
from pyspark.serializers import AutoBatchedSerializer, CartesianDeserializer, CPickleSerializer, pack_long

from joinery_runtime.engine.exchange import Parcel

# --- the Java process -------------------------------------------------------------------------------------------------


def start_java(conf: SparkConf | None = None) -> None:
    """Start the driver's Java process if there is none, with the settings as its arguments.

    SparkContext(conf) starts it too, but passes all settings, secrets as well, as arguments that every user of the
    machine can list; and a SparkConf has what spark-submit set only once Java runs.
    """
    SparkContext._ensure_initialized(conf=conf)


def current_java_gateway() -> Any | None:
    """Return the connection to the Java process, or None without one. PySpark hands it out only through a context, and
    Java runs before there is one."""
    return SparkContext._gateway


def java_process() -> subprocess.Popen[bytes] | None:
    """Return the Java process that PySpark has started in this process. PySpark has no way to ask for it, to wait for
    its end or to kill it."""
    gateway = SparkContext._gateway
    return None if gateway is None else getattr(gateway, "proc", None)


def forget_java() -> None:
    """Make PySpark start a new Java process for the next context. `SparkContext.stop` leaves the old one running, with
    its system properties, and there is no public way to end it."""
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def launch_java_with(popen: Callable[..., subprocess.Popen[bytes]]) -> Iterator[None]:
    """Have PySpark launch Java with `popen` in the block. PySpark hands out the process only once it has answered, and
    takes no environment for it."""
    module: Any = java_gateway
    original = module.Popen
    module.Popen = popen
    try:
        yield
    finally:
        module.Popen = original


def context_is_active() -> bool:
    """Return whether a context runs in this process. `SparkContext.getOrCreate` would start one, and
    `SparkSession.getActiveSession` does not know a context without a session."""
    return SparkContext._active_spark_context is not None


def is_stopped(context: SparkContext) -> bool:
    """Return whether the context was stopped in this process. PySpark's context has no such question; Scala's
    `isStopped` can only be asked while there is a connection."""
    return context._jsc is None


def thread_connection_is_idle(context: SparkContext) -> bool:
    """Return whether this thread's connection to Java is idle. That of an interrupted call is not: its answer is still
    to come, and the next call would take it for its own. PySpark drops such a connection together with the traceback,
    and with it all that was set for the thread. Neither PySpark nor py4j tells of it."""
    client = context._gateway._gateway_client
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    return connection is None or connection in client.deque


def silence_accumulator_server(context: SparkContext) -> None:
    """Keep the server that receives accumulators from printing a traceback when Java ends before it. Our tasks use no
    accumulators, and a context cannot be made without the server."""
    context._accumulatorServer.handle_error = lambda *_: None


def with_environment(context: SparkContext, variables: Mapping[str, str]) -> SparkContext:
    """Return the same context, whose tasks ask for these variables too. Spark pools Python workers by them, and PySpark
    takes them only when a context starts."""
    own = object.__new__(SparkContext)  # a second context cannot be started
    own.__dict__.update(context.__dict__, environment={**context.environment, **variables})
    return own


def keep_environment_in_java(context: SparkContext) -> None:
    """Keep the environment variables of the context's tasks in Java. PySpark sends them with each stage of each job, a
    call for each of them, and takes them as a dict only."""
    variables: Any = context._jvm.java.util.HashMap()
    variables.update(context.environment)
    context.environment = variables


_NAMES_OF_JOBS = {"PythonRDD": ("runJob",), "PythonUtils": ("getBroadcastThreshold",), "SimplePythonFunction": ()}


def keep_java_names(context: SparkContext) -> None:
    """Keep the Java classes and static methods that PySpark uses in each job. py4j asks Java for each of these names
    every time, and an epoch waits for six answers."""
    jvm: Any = context._jvm
    for class_name, methods in _NAMES_OF_JOBS.items():
        java_class = getattr(jvm, class_name)
        for method in methods:
            setattr(java_class, method, getattr(java_class, method))
        setattr(jvm, class_name, java_class)


def list_in_java(context: SparkContext, numbers: Iterable[int]) -> Any:
    """Make a list of numbers in Java. `runJob` converts a Python list in each job, with a call for each number."""
    java_list: Any = context._jvm.java.util.ArrayList()
    java_list.extend(numbers)
    return java_list


# --- Java objects of a context ----------------------------------------------------------------------------------------


class _Java:
    """Java objects that a context's calls need, looked up once: py4j asks Java for every part of a name, every time,
    and an epoch waits for each answer."""

    def __init__(self, context: SparkContext) -> None:
        self.jvm: Any = context._jvm
        java_context: Any = context._jsc
        self.context: Any = java_context.sc()
        self._locations: dict[str, Any] = {}
        self._diagonals: dict[int, Any] = {}
        self._location_rdds: dict[tuple[str, ...], Any] = {}

    @cached_property
    def to_seq(self) -> Any:
        return self.jvm.PythonUtils.toSeq

    @cached_property
    def pair(self) -> Any:
        return self.jvm.scala.Tuple2

    @cached_property
    def byte_arrays(self) -> Any:
        tag = getattr(self.jvm.scala.reflect, "ClassTag$").__getattr__("MODULE$")
        return tag.apply(self.jvm.java.lang.Class.forName("[B"))

    @cached_property
    def pairwise(self) -> Any:
        return self.jvm.PairwiseRDD

    @cached_property
    def partitioner(self) -> Any:
        return self.jvm.PythonPartitioner

    @cached_property
    def value_of_pair(self) -> Any:
        return self.jvm.PythonRDD.valueOfPair

    @cached_property
    def pruned(self) -> Any:
        return self.jvm.org.apache.spark.rdd.PartitionPruningRDD.create

    @cached_property
    def scheduler(self) -> Any:
        return self.context.taskScheduler()

    @cached_property
    def backend(self) -> Any:
        return self.context.schedulerBackend()

    @cached_property
    def block_managers(self) -> Any:
        return self.environment("blockManager").master()

    @cached_property
    def event_from_json(self) -> Any:
        return self.jvm.org.apache.spark.util.JsonProtocol.sparkEventFromJson

    @cached_property
    def listeners(self) -> Any:
        return self.context.listenerBus()

    def environment(self, part: str) -> Any:
        """Return a part of the driver's SparkEnv, by its field. To call a method, py4j would inspect all methods of the
        class, and in Spark 4.3 one of them concerns UDF workers, whose class needs a protobuf that PySpark does not
        bundle."""
        field = self.jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField(part)
        field.setAccessible(True)
        return field.get(self.context.env())

    def location(self, name: str) -> Any:
        if name not in self._locations:
            self._locations[name] = self.to_seq([name])
        return self._locations[name]

    def diagonal(self, count: int) -> Any:
        """Return a function from Int to Boolean: whether a partition of a product of `count` times `count` is on its
        diagonal."""
        if count not in self._diagonals:
            self._diagonals[count] = self.to_seq([n * count + n for n in range(count)]).toSet()
        return self._diagonals[count]

    def placed_rdd(self, payloads: Sequence[bytes], locations: Sequence[str]) -> Any:
        pairs = [
            self.pair(bytearray(payload), self.location(locations[n % len(locations)]))
            for n, payload in enumerate(payloads)
        ]
        return self.context.makeRDD(self.to_seq(pairs), self.byte_arrays).toJavaRDD()

    def location_rdd(self, count: int, executors: Sequence[str]) -> Any:
        """Return an RDD of `count` partitions with nothing in it that matters: partition n prefers location n, and so
        on from the first one."""
        locations = tuple(executors[n % len(executors)] for n in range(count))
        if locations not in self._location_rdds:
            self._location_rdds.clear()  # executors have come or gone
            self._location_rdds[locations] = self.placed_rdd([_NOTHING] * len(locations), locations)
        return self._location_rdds[locations]


_PICKLING = CPickleSerializer()
_NOTHING: bytes = _PICKLING.dumps([None])
_java_objects: WeakKeyDictionary[SparkContext, _Java] = WeakKeyDictionary()


def _java(context: SparkContext) -> _Java:
    java = _java_objects.get(context)
    if java is None:
        java = _java_objects[context] = _Java(context)
    return java


# --- executors --------------------------------------------------------------------------------------------------------

_BLOCK_MANAGER = re.compile(r"BlockManagerId\(([^,]+), (.+), \d+, (?:None|Some\(.*\))\)")


def list_executors(context: SparkContext) -> list[tuple[str, str]]:
    """List the ids and hosts of the executors that run and get tasks, in no order.

    The public status tracker has their hosts but not their ids, and Spark's REST API needs its UI. Blocks know both,
    but may still list an executor that has ended. One that was told to end is listed for a while, and gets no task.
    """
    java = _java(context)
    registered = set(java.context.getExecutorIds().mkString(",").split(","))
    members = str(java.block_managers.getMemoryStatus().keySet().mkString("\n")).splitlines()
    executors = [(match[1], match[2]) for match in map(_BLOCK_MANAGER.fullmatch, members) if match]
    return [(name, host) for name, host in executors if name in registered and java.backend.isExecutorActive(name)]


def count_executors(context: SparkContext) -> int | None:
    """Count the executors, or return None if tasks run in the driver. The public status tracker counts the driver as
    one, and does not say which one it is."""
    java = _java(context)
    return None if java.context.isLocal() else int(java.context.getExecutorIds().size())


def takes_tasks(context: SparkContext, executor: str) -> bool:
    """Return whether the scheduler knows the executor. Spark tells nobody else."""
    return bool(_java(context).scheduler.isExecutorAlive(executor))


def end_executors(context: SparkContext, executors: Sequence[str]) -> None:
    """End these executors. `killExecutors` is public in Scala."""
    java = _java(context)
    java.context.killExecutors(java.to_seq(list(executors)))


def request_total_executors(context: SparkContext, count: int) -> None:
    """Have Spark keep this many executors. `requestTotalExecutors` is public in Scala."""
    java = _java(context)
    nowhere = getattr(java.jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    java.context.requestTotalExecutors(count, 0, nowhere)


def record_log_errors(context: SparkContext, logger: str) -> Callable[[], str]:
    """Record the messages of the exceptions that Spark logs under this logger's name, and return a function that takes
    those since its last call, one per line. Spark shows some faults nowhere else, and PySpark reads no log. Log4j's API
    is public in Java."""
    jvm = _java(context).jvm
    log4j, writer = jvm.org.apache.logging.log4j, jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%ex{short.message}%n").build()
    builder = log4j.core.appender.WriterAppender.newBuilder()
    appender = builder.setName(logger).setLayout(layout).setTarget(writer).build()
    appender.start()
    log4j.LogManager.getLogger(logger).addAppender(appender)

    def take() -> str:
        text = str(writer.toString())
        writer.getBuffer().delete(0, len(text))
        return text

    return take


def native_tls_problem(context: SparkContext) -> str | None:
    """Say why the JVM cannot load Netty's native TLS library, or return None if it can. Spark falls back to Java's TLS
    without a word."""
    library: Any = _java(context).jvm.io.netty.handler.ssl.OpenSsl
    if library.isAvailable():
        return None
    cause = library.unavailabilityCause()
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString()).splitlines()[0]


def bytes_of_size(context: SparkContext, size: str) -> int:
    """Read a size as Spark's settings write it, such as `64m`. PySpark reads no setting."""
    return int(_java(context).jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(size))


# --- RDDs -------------------------------------------------------------------------------------------------------------


def placed_rdd(context: SparkContext, items: Sequence[object], locations: Sequence[str]) -> RDD[Any]:
    """Make a partition for each item: item n prefers location n, and so on from the first one. `makeRDD` with preferred
    locations is public in Scala; PySpark's `parallelize` takes none."""
    payloads = [_PICKLING.dumps([item]) for item in items]
    return RDD(_java(context).placed_rdd(payloads, locations), context, AutoBatchedSerializer(_PICKLING))


def placed_empty_rdd(context: SparkContext, count: int, locations: Sequence[str]) -> RDD[Any]:
    """Make `count` partitions with one None each: partition n prefers location n, and so on from the first one. As
    `placed_rdd`, but Java keeps the RDD while the locations are the same, which saves an epoch the calls that make
    it."""
    placed = _java(context).location_rdd(count, locations)
    return RDD(placed, context, AutoBatchedSerializer(_PICKLING))


def exchanged_rdd(sent: RDD[Any], receivers: int) -> RDD[Any]:
    """Bring pairs of a receiver's number and a value to the receiver's partition.

    `RDD.partitionBy` does it too, but names the stage that ends here after its own caller, as in `partitionBy at
    spark.py:146`, in place of the name that is set (`hosts.spark_jobs`); and a stage's name cannot be set otherwise.
    """
    context = sent.context
    java = _java(context)
    keyed: Any = sent.mapPartitions(_by_receiver, preservesPartitioning=True)
    keyed._bypass_serializer = True  # the function writes bytes
    pairs = java.pairwise(keyed._jrdd.rdd()).asJavaPairRDD()
    shuffled = java.value_of_pair(pairs.partitionBy(java.partitioner(receivers, 0)))
    return RDD(shuffled, context, AutoBatchedSerializer(_PICKLING))


_PAIRS_AT_ONCE = 16  # in one record of the shuffle: pairs that are pickled together share what they have in common


def _by_receiver(pairs: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the receiver's number and pickled pairs in turn, as PairwiseRDD reads them."""
    waiting: defaultdict[int, list[tuple[int, Any]]] = defaultdict(list)
    for receiver, value in pairs:
        waiting[receiver].append((receiver, value))
        # A parcel has megabytes of rows, and this process and Java hold a whole record at a time.
        if len(waiting[receiver]) == _PAIRS_AT_ONCE or isinstance(value, Parcel):
            yield pack_long(receiver)
            yield _PICKLING.dumps(waiting.pop(receiver))
    for receiver, rest in waiting.items():
        yield pack_long(receiver)
        yield _PICKLING.dumps(rest)


def placed_again_rdd(shuffled: RDD[Any], count: int, locations: Sequence[str]) -> RDD[Any]:
    """Give the `count` partitions of a shuffle places: partition n prefers location n, and so on from the first one.

    A task behind a shuffle has no place, and Spark draws one by lot; neither PySpark nor Scala has a public way to say
    another. A partition of a cartesian product prefers the places of both its parents: of the product with as many
    placed partitions the diagonal is taken, so that each partition of the shuffle comes once.
    """
    context, source = shuffled.context, shuffled
    java = _java(context)
    location_rdd = java.location_rdd(count, locations)
    product = location_rdd.cartesian(source._jrdd).rdd()
    pairs: RDD[Any] = RDD(
        java.pruned(product, java.diagonal(count)).toJavaRDD(),
        context,
        CartesianDeserializer(AutoBatchedSerializer(_PICKLING), source._jrdd_deserializer),
    )
    return pairs.values()


# --- listeners and the UI ---------------------------------------------------------------------------------------------


def has_listeners(context: SparkContext) -> bool:
    """Return whether anybody sees the events of a context: its UI, its event log, or a listener that was added to it.
    Scala's public API adds and removes listeners, and does not tell of them."""
    java = _java(context)
    queues = set(str(java.listeners.activeQueues().mkString(",")).split(","))
    return bool({"shared", "eventLog"} & queues) or bool(java.context.ui().isDefined())


def logs_events(context: SparkContext) -> bool:
    """Return whether the context writes an event log. Its settings are public, but PySpark asks Java for each of them,
    with a call or two for every setting that there is."""
    return bool(_java(context).context.isEventLogEnabled())


def post_event(context: SparkContext, document: str) -> None:
    """Post an event to Spark's listeners, and so to the UI and the event log. `document` is the event as the event log
    writes it, which newer versions of Spark have to be able to read. PySpark posts no events, and neither does Scala's
    public API."""
    java = _java(context)
    java.listeners.post(java.event_from_json(document))


_with_streaming_page: set[str] = set()  # ids of applications


def add_streaming_page(context: SparkContext) -> None:
    """Add the page "Structured Streaming" to the context's UI, if it has one, for events that `post_event` posts. It
    stays as long as the context: a session runs several jobs in turn.

    There is no page without a session, and a session's own listener ignores queries that it has not started. The
    history server's plugin brings a listener that takes all of them.
    """
    java, application = _java(context), context.applicationId
    if application in _with_streaming_page or java.context.ui().isEmpty():
        return
    sql, ui = java.jvm.org.apache.spark.sql, java.context.ui().get()
    store = java.context.statusStore().store()
    listeners = sql.execution.ui.StreamingQueryHistoryServerPlugin().createListeners(java.context.conf(), store)
    for n in range(listeners.size()):
        java.listeners.addToStatusQueue(listeners.apply(n))
    tabs = ui.getTabs()
    if "StreamingQuery" not in [tabs.apply(n).prefix() for n in range(tabs.size())]:
        # It attaches itself.
        sql.streaming.ui.StreamingQueryTab(sql.execution.ui.StreamingQueryStatusStore(store), ui)
    _with_streaming_page.add(application)
