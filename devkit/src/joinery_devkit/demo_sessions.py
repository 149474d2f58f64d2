"""The demo of sessions: clicks, and the job of examples/session-window.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from joinery_devkit import clicks
from joinery_devkit.datagen import GeneratedRecord
from joinery_devkit.demo_process import epoch_log
from joinery_devkit.demo_view import Rows, Wording
from joinery_devkit.topics import read_dead_letters, read_topic
from joinery_devkit.verify_sessions import SessionVerdict, verify_sessions
from joinery_runtime.job import SessionWindow, load_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "session-window.yaml"
DEAD_LETTERS = "clicks.dead"
PARTITIONS = 3


class SessionsOfClicks:
    """The scenario of sessions. The job's input is bounded by the number of clicks, so at the end all sessions are
    complete, and can be compared with those that a slow, simple method finds."""

    name = "session-window"
    topics: Mapping[str, int] = {clicks.TOPIC: PARTITIONS, DEAD_LETTERS: 1}
    words = Wording(does="makes sessions of them", out="sessions out", title="sessions")
    newest = (
        "SELECT user_id, to_timestamp(window_start / 1000.0) AS began, to_timestamp(window_end / 1000.0) AS ended, "
        "events, first_page, pages FROM sessions ORDER BY window_end DESC LIMIT 5"
    )
    table = "sessions"
    ends = True

    def records(self, seed: int, size: int) -> list[GeneratedRecord]:
        return clicks.make(seed, size, PARTITIONS)

    def job(self, bootstrap: str, dsn: str, records: Sequence[GeneratedRecord]) -> str:
        """The example job with the addresses of these servers, and the end of its input."""
        document = yaml.safe_load(EXAMPLE.read_text())
        counts = Counter(record.partition for record in records)
        stop_at = {"offsets": {str(number): counts[number] for number in range(PARTITIONS)}}
        document["spec"]["input"]["kafka"] |= {"bootstrapServers": bootstrap, "stopAt": stop_at}
        document["spec"]["stateStore"] = {"postgres": {"dsn": dsn}}
        document["spec"]["shards"] = 4
        # Makes sure that even a busy machine runs several epochs, so that some records are late.
        document["spec"]["trigger"] = {"maxRecordsPerEpoch": max(1, len(records) // 20)}
        return str(yaml.safe_dump(document, sort_keys=False))

    def judge(self, job_file: Path, bootstrap: str, table: Rows) -> SessionVerdict:
        job = load_job(job_file)
        assert isinstance(job, SessionWindow)
        records = {job.spec.input.name: read_topic(bootstrap, clicks.TOPIC)}
        return verify_sessions(
            records, epoch_log(job_file), table, job, dead_letters=read_dead_letters(bootstrap, DEAD_LETTERS)
        )
