"""Where tasks run: a collection of which each item goes to an executor of its own, in every epoch the same.

PySpark has no such option for its own collections; the JVM's `makeRDD` has. It is a preference: who is busy or gone is
replaced by another one. With all executors free, as between epochs, Spark keeps to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

from joinery_runtime.hosts.spark_security import is_local, of_environment


def executors_of(context: SparkContext) -> list[str]:
    """The executors that run now, in the words of Spark's preferences, the oldest first. Empty where tasks run in the
    driver, and before the first one has come."""
    return [f"executor_{host}_{name}" for name, host in _members(context)]


def ids_of(context: SparkContext) -> list[str]:
    """The same by Spark's numbers."""
    return [name for name, _ in _members(context)]


def _members(context: SparkContext) -> list[tuple[str, str]]:
    if is_local(context.master):
        return []
    spark: Any = context._jsc.sc()
    jvm: Any = context._jvm
    java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    # Blocks know the hosts, but may go on listing an executor that has ended.
    alive = set(java(spark.getExecutorIds()))
    members = java(of_environment(context, "blockManager").master().getMemoryStatus().keySet())
    found = [(each.executorId(), each.host()) for each in members if each.executorId() in alive]
    executors = [(len(name), name, host) for name, host in found]  # by number
    return [(name, host) for _, name, host in sorted(executors)]


def placed(context: SparkContext, items: Sequence[object], executors: Sequence[str]) -> RDD[Any]:
    """A partition for each item; item n is for executor n, and so on from the first one where there are more items."""
    jvm: Any = context._jvm
    spark: Any = context._jsc.sc()
    pickling, sequence = CPickleSerializer(), jvm.PythonUtils.toSeq
    pairs = [
        jvm.scala.Tuple2(bytearray(pickling.dumps([item])), sequence([executors[n % len(executors)]]))
        for n, item in enumerate(items)
    ]
    of_bytes = getattr(jvm.scala.reflect, "ClassTag$").__getattr__("MODULE$").apply(jvm.java.lang.Class.forName("[B"))
    return RDD(spark.makeRDD(sequence(pairs), of_bytes).toJavaRDD(), context, AutoBatchedSerializer(pickling))
