"""The Python functions of a job, where it runs: files of `--py-files`, the import of modules, hashes of their source.

The driver and each worker import the modules before the first epoch, so that a missing module ends the start and names
the field, instead of an epoch.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from joinery_runtime.core.compile.jobs import compile_with_functions
from joinery_runtime.core.pipeline.functions.declared import DeclaredFunctions, imported
from joinery_runtime.errors import EnvironmentProblem, ExpressionError, JobError, Problem
from joinery_runtime.hosts.scratch import scratch_folder
from joinery_runtime.job import Job
from joinery_runtime.job.model.wording import counted, listed

_ANY_JOB = TypeVar("_ANY_JOB", bound=Job)


def with_functions(job: _ANY_JOB) -> _ANY_JOB:
    """Import the job's functions, and return the job with the hashes of their modules' source. Raises JobError, which
    names each function that cannot be imported or cannot be called as the job calls it."""
    if not job.spec.functions:
        return job
    _, functions = compile_with_functions(job)
    problems = list(_find_problems(job, functions))
    if problems:
        raise JobError(job.name, problems)
    return job.with_function_sources({function.name: _source_hash(function.python) for function in job.spec.functions})


def _find_problems(job: Job, functions: DeclaredFunctions) -> Iterator[Problem]:
    for i, declaration in enumerate(job.spec.functions):
        path = f"spec.functions[{i}].python"
        try:
            function = imported(declaration.python)
        except ExpressionError as error:
            yield Problem(path, str(error))
            continue
        counts = sorted(count for name, count in functions.calls if name == declaration.name.upper())
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a function in C
            continue
        for count in counts:
            try:
                signature.bind(*[None] * count)
            except TypeError as error:
                facts = f"the job calls {declaration.name} with {counted(count, 'argument')}, and it takes {signature}"
                yield Problem(path, f"{facts} ({error}); correct the call or the function")


def _source_hash(python: str) -> str:
    """Return a hash of the source of the function's module; empty for a module without source."""
    module = sys.modules[python.partition(":")[0]]
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source_change_warnings(before: Job, now: Job) -> Iterator[str]:
    """Warn of functions whose modules have another source than under the job's stored definition (rule M2)."""
    sources_before = before.function_sources
    changed = [name for name, source in now.function_sources.items() if sources_before.get(name, source) != source]
    if changed:
        yield (
            f"The source of {listed(changed)} has changed: a planned epoch is run with the new source, and what the "
            "state holds was computed with the earlier one. See docs/how-to/python-functions.md#change-a-function"
        )


# --- files that bring modules -----------------------------------------------------------------------------------------


@contextmanager
def py_files(paths: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """Put modules (`.py`) and archives (`.zip`, `.whl`, `.egg`) on the path of imports within the block. Yields copies
    that Spark's workers take. Raises EnvironmentProblem for a file that is missing or of another kind."""
    if not paths:
        yield ()
        return
    with scratch_folder("py-files") as folder:
        copies = tuple(_copy_importable(path, folder) for path in paths)
        before = list(sys.path)
        sys.path[:0] = [*(str(copy) for copy in copies if copy.suffix != ".py"), str(folder)]
        try:
            yield copies
        finally:
            sys.path[:] = before


def _copy_importable(path: Path, folder: Path) -> Path:
    if not path.is_file() or path.suffix not in (".py", ".zip", ".whl", ".egg"):
        facts = f"its name ends in {path.suffix or 'nothing'}" if path.is_file() else "there is no such file"
        todo = "Name modules (.py) and archives (.zip, .whl, .egg)"
        raise EnvironmentProblem(f"--py-files {path} cannot be used", facts=facts, todo=todo)
    # PySpark imports from no archive that is called .whl.
    return Path(shutil.copy(path, folder / (f"{path.name}.zip" if path.suffix == ".whl" else path.name)))
