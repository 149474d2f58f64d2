"""Builds the project's images as archives, from images/*.Dockerfile, without a registry or a Docker daemon.

Only the Dockerfiles say what is in the images. Only the base image is made here (`image_base`), because its registry
may be unreachable. Layers stay in the user's cache, so a change of our code costs seconds; after deleting that folder,
a build takes minutes like the first one. `build_ahead` (`make images`) removes layers that no current stage has.
RELEASES are fictional releases of the runtime: the checkout's sources with a higher state version, by checked edits.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from joinery_devkit.environment import cache_directory, locked
from joinery_devkit.images.archive import derived
from joinery_devkit.images.base import base_image
from joinery_devkit.images.store import ImageStore, require_programs
from joinery_runtime.errors import JoineryError

SOURCES = Path(__file__).parents[4] / "runtime" / "src" / "joinery_runtime"
INSTALLED = "opt/joinery/lib/python3.11/site-packages/joinery_runtime"

_VERSION = re.compile(r"^STATE_VERSION = (\d+)$", re.MULTILINE)
_CHAIN = re.compile(r"^MIGRATIONS: Mapping\[int, Migration\] = \{(.+)\}$", re.MULTILINE)
_START = re.compile(r"^def start_context\((.|\n)*\Z", re.MULTILINE)

_STEP = """
def _to_next(blob: bytes) -> bytes:
    from joinery_runtime.core.table.blob import from_blob
    from joinery_runtime.core.table.segment import encode

    batch = from_blob(blob)
    {work}


MIGRATIONS: Mapping[int, Migration] = {{{before}, STATE_VERSION - 1: _to_next}}"""
_WORKS = 'return encode(batch.replace_schema_metadata({"state_version": str(STATE_VERSION)}))'
_FAILS = 'raise ValueError(f"a segment of {batch.num_rows} rows cannot be brought to the next version")'
_NO_START = """

def start_context(*_: object) -> SparkContext:
    raise JoineryError("This release does not start", facts="a test asked for that", todo="Go back")
"""

Edit = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Variant:
    """Edits by the source file's path inside the package."""

    edits: Mapping[str, Edit]


def _replace_once(pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> Edit:
    def edit(source: str) -> str:
        edited, count = pattern.subn(replacement, source)
        if count != 1:
            raise ValueError(f"{pattern.pattern!r} is {count} times in the source, not once: adapt image_variants.py")
        return edited

    return edit


_NEXT_VERSION = _replace_once(_VERSION, lambda match: f"STATE_VERSION = {int(match[1]) + 1}")
_WORKING = _replace_once(_CHAIN, lambda match: _STEP.format(work=_WORKS, before=match[1]))
_FAILING = _replace_once(_CHAIN, lambda match: _STEP.format(work=_FAILS, before=match[1]))
_ENDING = _replace_once(_START, lambda match: match[0] + _NO_START)

MIGRATING = Variant({"core/table/segment.py": _NEXT_VERSION, "state/migrations.py": _WORKING})
FAILING_MIGRATION = Variant({"core/table/segment.py": _NEXT_VERSION, "state/migrations.py": _FAILING})
FAILING_START = Variant({**MIGRATING.edits, "hosts/spark.py": _ENDING})
# By the tag of the runtime's image. Each has the next state version: with a migration that works, with one that fails
# (even in a dry run), and with one that works, followed by a driver that ends before its first epoch.
RELEASES: Mapping[str, Variant] = MappingProxyType(
    {"migrating": MIGRATING, "failing-migration": FAILING_MIGRATION, "failing-start": FAILING_START}
)


def files_of(variant: Variant) -> dict[str, bytes]:
    """Return the edited files by their path in the image."""
    return {f"{INSTALLED}/{path}": edit((SOURCES / path).read_text()).encode() for path, edit in variant.edits.items()}


PROJECT = Path(__file__).parents[4]
TAG = "test"
KINDS = ("runtime", "operator")


def image_name(kind: str) -> str:
    """Return the name of the image "operator", "runtime" or one of RELEASES."""
    return f"localhost/joinery-runtime:{kind}" if kind in RELEASES else f"localhost/joinery-{kind}:{TAG}"


def runtime_image(target_dir: Path) -> Path:
    """Return the archive of the image of drivers, executors and `joinery state ...`."""
    return _build_archive("runtime", target_dir)


def operator_image(target_dir: Path) -> Path:
    """Return the archive of the operator's image."""
    return _build_archive("operator", target_dir)


def release_image(release: str, runtime: Path) -> Path:
    """Return the archive of one of RELEASES: the image in the archive `runtime` with a few files on top, written beside
    it."""
    return layered(runtime, files_of(RELEASES[release]), image_name(release))


def build_ahead() -> None:
    """Build both images, so that archives asked for later take seconds, and remove the layers of earlier builds."""
    with image_store() as store:
        for kind in KINDS:
            _assembled_archive(store, kind)
            for name in last_stages(dockerfile(kind).read_text()):
                stage(store, kind, name)
        base = base_image(store)
        for earlier in store.names(base.partition(":")[0]):
            if earlier != base:
                store.forget(earlier)
        store.prune()


def last_stages(text: str) -> list[str]:
    """Return the stages of a Dockerfile that no other stage begins with, "" for the last one. Their layers are all
    layers."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
    bases = {base for base, _ in stages}
    return [name for _, name in stages if name not in bases]


def layered(base: Path, extra_files: Mapping[str, bytes], name: str) -> Path:
    """Return the archive `base` with `extra_files` (paths from the root; readable by all) on top, as the image `name`.
    Written beside `base`, under a file name made from `name`."""
    with TemporaryDirectory(dir=base.parent) as folder:
        for path, content in extra_files.items():
            file = Path(folder, path.lstrip("/"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(0o644)
        for directory in (Path(folder), *(path for path in Path(folder).rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        return derived(base, base.parent / _file_name(name), name, [Path(folder)])


def _build_archive(kind: str, target_dir: Path) -> Path:
    name = image_name(kind)
    with image_store() as store:
        below = _assembled_archive(store, kind)
        with store.mounted(stage(store, kind, "code")) as root:
            return derived(below, target_dir / _file_name(name), name, [root / "layer"])


def _file_name(name: str) -> str:
    return name.rpartition("/")[2].replace(":", "-") + ".tar"


@contextmanager
def image_store() -> Iterator[ImageStore]:
    """Yield the store in the user's cache, for one process at a time."""
    require_programs()
    store = ImageStore(cache_directory() / "images")
    with locked(store.folder / "lock"):
        yield store


def dockerfile(kind: str) -> Path:
    return PROJECT / "images" / f"{kind}.Dockerfile"


def stage(store: ImageStore, kind: str, name: str = "") -> str:
    """Build a stage of images/<kind>.Dockerfile, by default the last, from the present checkout, and return its
    id. A name of its own protects the stage from `prune` until the next build of it."""
    begun = time.monotonic()
    options = [f"--build-arg=BASE={base_image(store)}", f"--tag=localhost/joinery-stage:{kind}-{name or 'last'}"]
    options += [f"--target={name}"] if name else []
    identity = store.build(dockerfile(kind), PROJECT, store.folder / f"{kind}.log", *options)
    print(f"joinery: image {kind} {name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return identity


def _assembled_archive(store: ImageStore, kind: str) -> Path:
    """Return the archive of everything except our own code. Removes archives of earlier inputs."""
    # All that goes into the stage: the stages before it, the base, and the files that they copy from here.
    text = dockerfile(kind).read_text().partition(" AS code")[0]
    sources = [path for copied in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for path in copied.split()]
    parts = [base_image(store).encode(), text.encode(), *((PROJECT / path).read_bytes() for path in sources)]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    target = store.folder / f"{kind}-{digest}.tar"
    if not target.is_file():
        part = target.with_suffix(".part")
        part.unlink(missing_ok=True)
        store.export(stage(store, kind, "assembled"), part)
        for earlier in store.folder.glob(f"{kind}-*.tar"):
            earlier.unlink()
        part.rename(target)
    return target


if __name__ == "__main__":
    try:
        build_ahead()
    except JoineryError as problem:
        print(f"joinery: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
