"""What remains of a job from before an edit: an epoch that is planned, and output that is not visible yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import BufferedSink, Sink
from joinery_runtime.engine.driver import takeover_of
from joinery_runtime.engine.protocol import Action, next_action
from joinery_runtime.errors import (
    AggregateError,
    ExpressionError,
    JoineryError,
    MisreadInput,
    RecordError,
    SinkError,
    SourceError,
    Unavailable,
)
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.job import Job, under_definition
from joinery_runtime.job.model.wording import counted, listed
from joinery_runtime.state.store import JobRecord, StateStore


@dataclass(frozen=True, slots=True)
class EarlierDefinition:
    """The job under the definition of its record, which differs from the present one. Methods raise JoineryError."""

    job: Job
    record: JobRecord
    store: StateStore
    address: PostgresStoreAddress | None
    warn: Callable[[str], None]

    def drop_first_plan(self) -> bool:
        """Drop the planned epoch if it is the job's first and none of its rows can be visible; return whether it did.
        Otherwise what failed at the first start would fail again in that epoch, whatever the user edits."""
        name, observed = self.record.job, self.record
        if next_action(observed) is not Action.REPLAY or observed.offsets or self.store.newest_epoch(name) is not None:
            return False
        record = self.store.acquire(name)  # from now on, no older attempt can claim a part of the output
        if record.plan != observed.plan or record.definition is None:
            return False  # another driver has continued meanwhile
        if claims := self.store.claims(name):
            if self._may_be_visible(under_definition(self.job, record.definition), record, claims):
                return False
            self.store.release_claims(name, record.generation)
        self.store.reset_offsets(name, {}, expected=record.ownership, drop_plan=True)
        self.warn(f"Job {name} was edited before it has committed anything: its first epoch is planned again")
        return True

    def publish_newest(self) -> bool:
        """Publish the newest epoch. Returns whether the outputs still hold rows, which one more epoch has to show."""
        newest, has_unpublished_rows = self.store.newest_epoch(self.job.name), False
        with _open_sinks(self.job, self.address, self.record.incarnation) as sinks:
            for kind, sink in sinks.items():
                if newest is not None:
                    sink.publish(newest.epoch, newest.result.get(kind, []))
                    has_unpublished_rows |= isinstance(sink, BufferedSink) and sink.buffered_rows > 0
        return has_unpublished_rows

    def _may_be_visible(self, planned: Job, record: JobRecord, claims: Mapping[str, str]) -> bool:
        """Return whether rows of the planned epoch are in an output. Fences every claimant of a part of it, as the
        start of a driver does: what is not visible by then never will be."""
        if planned.spec.delivery != "exactlyOnce":
            # `delivery` is no part of the definition, so it may have been edited too, and a writer without transactions
            # cannot fence another one.
            return True
        recovery = takeover_of(record, None, claims, self.store.identity(), self.warn)
        try:
            with _open_sinks(planned, self.address, record.incarnation) as sinks:
                visible = [sink.recover(recovery) for sink in sinks.values()]  # fences the claimants of each
                return any(visible)
        except Unavailable:
            raise
        except SinkError:
            return True  # unknown; the epoch's replay will say why


@contextmanager
def _open_sinks(referring: Job, address: PostgresStoreAddress | None, incarnation: str) -> Iterator[Mapping[str, Sink]]:
    """Yield the outputs of a job, by what an epoch's result calls them."""
    outputs = Outputs.of(with_secrets(referring))
    optional_sinks = {
        "output": outputs.sink(address, incarnation),
        "dead_letters": outputs.dead_letter_sink(incarnation),
    }
    sinks = {kind: sink for kind, sink in optional_sinks.items() if sink is not None}
    try:
        yield sinks
    finally:
        for sink in sinks.values():
            sink.close()


def input_change_warnings(before: Job, now: Job) -> Iterator[str]:
    """Yield warnings of an edit that leaves the state as it is: it counts for records that are read from now on only,
    which whoever has corrected a topic or a path may not expect."""
    inputs_before = {source.name: source for source in before.read_inputs}
    for side in now.read_inputs:
        if (was := inputs_before.get(side.name)) is None:
            continue
        topics_before, topics = (
            source.kafka.named_topics if source.kafka is not None else frozenset() for source in (was, side)
        )
        if topics_before and topics_before < topics:
            added = listed(sorted(topics - topics_before))
            yield (
                f"Input {side.name} also reads {added} from now on, from the earliest record: records "
                "that are behind its watermark are late. See docs/kafka.md#several-topics-as-one-input"
            )
        elif side.source_name != was.source_name:
            yield (
                f"Input {side.name} reads {side.source_name} from now on, and read {was.source_name} before the edit: "
                "what was read there stays in the state and in the output. See docs/data.md#read-again-after-a-mistake"
            )
        earlier = {column.name: column for column in was.columns}
        changed = [column.name for column in side.columns if earlier.get(column.name, column) != column]
        if changed:
            yield (
                f"Input {side.name} reads {counted(len(changed), 'column')} in another way from now on: "
                f"{', '.join(changed)}. Records that were read before are not read again. "
                "See docs/data.md#read-again-after-a-mistake"
            )


@contextmanager
def attribute_errors_to_edit(job: Job) -> Iterator[None]:
    """Say of an error in the data that it is what was begun before the edit that fails. It occurs again at each start,
    and whoever would restart the job has to know."""
    try:
        yield
    except (Unavailable, MisreadInput):  # the plan of null keys is dropped already
        raise
    except (SourceError, SinkError, RecordError, AggregateError, ExpressionError) as error:
        kind = type(error) if isinstance(error, AggregateError | ExpressionError) else JoineryError
        raise kind(
            f"Job {job.name} was edited, and what was begun before that cannot be ended",
            facts=str(error),
            todo="Correct that, or undo the edit. To discard the planned epoch, so that the edited job plans "
            "it again, run: joinery state reset JOB.yaml --drop-planned. Rows already written to Kafka will be "
            "duplicated",
        ) from error
