"""Spark's own Python daemon, with workers that are hurt at a point of an epoch: `spark.python.daemon.module`.

    JOINERY_TEST_HURT="transaction-sent@5=SIGSTOP transaction-committed@9=SIGKILL"

The first worker that reaches the point in that epoch or a later one gets the signal, once: a file in the folder
JOINERY_TEST_HURT_SEEN, named after the point, holds its process id and epoch then.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import daemon

_worker = daemon.worker


@dataclass(frozen=True)
class Hurt:
    point: str
    epoch: int
    signal: signal.Signals

    @classmethod
    def parse(cls, text: str) -> Hurt:
        where, _, name = text.partition("=")
        point, _, epoch = where.partition("@")
        return cls(point, int(epoch), signal.Signals[name])

    def at(self, point: str, epoch: int, seen: Path) -> None:
        if point == self.point and epoch >= self.epoch and _write_once(seen / point, f"{os.getpid()} {epoch}"):
            os.kill(os.getpid(), self.signal)


def _write_once(path: Path, text: str) -> bool:
    """Whether this is the first time; the file is there with all of its text or not at all. A worker has threads."""
    draft = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    draft.write_text(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def worker(sock: Any, authenticated: bool) -> int:
    # Not before the fork: what this imports starts threads.
    from joinery_runtime.engine.messages import EpochWork  # noqa: PLC0415

    seen = Path(os.environ["JOINERY_TEST_HURT_SEEN"])
    hurts = [Hurt.parse(text) for text in os.environ["JOINERY_TEST_HURT"].split()]

    def reach(work: EpochWork, point: str) -> None:
        for hurt in hurts:
            hurt.at(point, work.plan.epoch, seen)

    EpochWork.failpoint = reach
    return _worker(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
