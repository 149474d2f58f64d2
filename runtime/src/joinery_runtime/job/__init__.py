"""The resource models: what a user writes, its checks, and everything that can be said about it without running it.

`load_job` reads a file. `StreamJoin` and `SessionWindow` are the valid resources (each a `Job`). `explain` tells the
plan. `signature` and `compare` say whether stored state fits a changed job (rule M2). Imports neither the engine nor
Spark.
"""

from joinery_runtime.job.definition import (
    definition,
    definition_hash,
    is_same_definition,
    reads_alike,
    same_rows,
    under_definition,
    with_stored_names,
)
from joinery_runtime.job.explain import Explanation, connection_warnings, explain
from joinery_runtime.job.join.spec import StreamJoinSpec
from joinery_runtime.job.join.steps import JoinStep, SelectItem
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.as_of import AsOf
from joinery_runtime.job.kinds.interval import Interval
from joinery_runtime.job.kinds.session.resource import SessionWindow, SessionWindowSpec
from joinery_runtime.job.kinds.session.sessions import Aggregate, Sessions
from joinery_runtime.job.kinds.window import Hopping, Session, Window
from joinery_runtime.job.load import (
    STORED_JOB,
    JobWithWarnings,
    job_from,
    lines_of,
    load_job,
    load_own_job,
    load_stored,
    located,
    parse_job,
)
from joinery_runtime.job.model.base import ColumnType, Limits, SecretKeyRef, SecretRef, parse_type
from joinery_runtime.job.model.duration import format_duration, format_time, parse_duration, time_value
from joinery_runtime.job.model.expression_rules import expression_problems
from joinery_runtime.job.model.inputs import AtOffsets, AtTimestamp, Column, FileInput, Input, KafkaInput, Watermark
from joinery_runtime.job.model.outputs import (
    DeadLetter,
    DeadLetterKafka,
    FileOutput,
    KafkaOutput,
    MemoryStoreSpec,
    Output,
    PeriodicSavepoints,
    PostgresOutput,
    PostgresStoreSpec,
    StoreSpec,
)
from joinery_runtime.job.model.pods import SparkSpec
from joinery_runtime.job.model.references import KeyPair, Reference
from joinery_runtime.job.model.resource import (
    Job,
    JobSpec,
    Metadata,
    OutputField,
    ShadowComparison,
    Trigger,
    Upgrade,
)
from joinery_runtime.job.signature import Comparison, compare, signature

__all__ = [
    "STORED_JOB",
    "Aggregate",
    "AsOf",
    "AtOffsets",
    "AtTimestamp",
    "Column",
    "ColumnType",
    "Comparison",
    "DeadLetter",
    "DeadLetterKafka",
    "Explanation",
    "FileInput",
    "FileOutput",
    "Hopping",
    "Input",
    "Interval",
    "Job",
    "JobSpec",
    "JobWithWarnings",
    "JoinStep",
    "KafkaInput",
    "KafkaOutput",
    "KeyPair",
    "Limits",
    "MemoryStoreSpec",
    "Metadata",
    "Output",
    "OutputField",
    "PeriodicSavepoints",
    "PostgresOutput",
    "PostgresStoreSpec",
    "Reference",
    "SecretKeyRef",
    "SecretRef",
    "SelectItem",
    "Session",
    "SessionWindow",
    "SessionWindowSpec",
    "Sessions",
    "ShadowComparison",
    "SparkSpec",
    "StoreSpec",
    "StreamJoin",
    "StreamJoinSpec",
    "Trigger",
    "Upgrade",
    "Watermark",
    "Window",
    "compare",
    "connection_warnings",
    "definition",
    "definition_hash",
    "explain",
    "expression_problems",
    "format_duration",
    "format_time",
    "is_same_definition",
    "job_from",
    "lines_of",
    "load_job",
    "load_own_job",
    "load_stored",
    "located",
    "parse_duration",
    "parse_job",
    "parse_type",
    "reads_alike",
    "same_rows",
    "signature",
    "time_value",
    "under_definition",
    "with_stored_names",
]
