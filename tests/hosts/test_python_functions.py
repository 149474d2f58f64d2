"""Python functions that a job declares: what they get, what they may return, and what happens when they fail (V4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from joinery_devkit.spark_cluster import spark_home
from joinery_runtime import trace
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.core.pipeline.functions.declared import imported
from joinery_runtime.errors import EnvironmentProblem, ExpressionError, JobError
from joinery_runtime.hosts.python_functions import py_files, source_change_warnings, with_functions
from joinery_runtime.job import Job, compare, definition, job_from, signature, under_definition

MODULE = """
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

not_a_function = 3

def double(amount): return pc.multiply(amount, 2.0)
def two(a, b): return a
def many(*arguments): return arguments[0]
def in_list(amount): return [None if a is None else a + 1 for a in amount.to_pylist()]
def in_numpy(amount): return np.where(amount.to_numpy() > 1, np.nan, 1.0)
def kinds(*arguments): return pa.array([", ".join(str(a.type) for a in arguments)] * len(arguments[0]))
def picky(amount):
    if pc.any(pc.equal(amount, 3.0)).as_py():
        raise ValueError("three is\\nno number")
    return amount
def ends(amount):
    if pc.any(pc.equal(amount, 3.0)).as_py():
        sys.exit(7)
    return amount
def ends_later(amount): return (sys.exit(7) for _ in amount)
def shorter(amount): return amount[1:]
def always_one(amount): return pa.array([1.0])
def integers(amount): return pc.cast(amount, pa.int64())
def nonsense(amount): return object()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported."""
    (tmp_path / "of_the_test.py").write_text(MODULE)
    (tmp_path / "that_ends.py").write_text("raise SystemExit(7)")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "of_the_test"
    sys.modules.pop("of_the_test", None)
    imported.cache_clear()


def document(*functions: Mapping[str, str], expression: str = "1", keys: Any = None, **spec: Any) -> dict[str, Any]:
    columns = {"k": "string", "n": "int32", "amount": "double", "price": "decimal(9,2)", "ts": "timestamp"}
    schema = [{"name": name, "type": kind} for name, kind in columns.items()]
    inputs = [
        {"name": name, "file": {"path": name}, "format": "json", "eventTime": "ts", "schema": schema} for name in "lr"
    ]
    join = {"right": "r", "type": "left", "keys": keys or {"l.k": "r.k"}}
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": "functions"},
        "spec": {
            "inputs": inputs,
            "functions": list(functions),
            "joins": [{**join, "interval": {"of": "l", "lower": "0s", "upper": "1s"}}],
            "select": [{"column": "l.k"}, {"expression": expression, "as": "x"}],
            "output": {"file": {"path": "out"}},
            "deadLetter": {"file": {"path": "dead"}},
            **spec,
        },
    }


def chain(key: str) -> dict[str, Any]:
    """A job whose first step pads `r`, and whose second one has this key of `r`."""
    job = document({"name": "mine", "python": "of_the_test:in_list", "returns": "double"}, expression="x.n")
    spec = job["spec"]
    spec["inputs"].append({**spec["inputs"][0], "name": "x"})
    spec["joins"].append({**spec["joins"][0], "right": "x", "type": "inner", "keys": {key: "x.amount"}})
    return job


def declared(name: str, returns: str = "double", call: str = "mine") -> dict[str, str]:
    return {"name": call, "python": f"of_the_test:{name}", "returns": returns}


def run(job: dict[str, Any], *amounts: float | None) -> tuple[dict[str, Any], list[str]]:
    """The value of each row that is emitted, by its key, which is its number; and the reasons of dead letters."""
    rows = [{"k": str(n), "n": n, "amount": amount, "price": "1.5", "ts": 1000 + n} for n, amount in enumerate(amounts)]
    results = trace(job, [{"input": "l", "rows": rows}, {"end": True}])
    emitted = {row["k"]: row["x"] for step in results for row in step["output"]}
    return emitted, [letter["reason"] for step in results for letter in step.get("dead_letters", ())]


@pytest.mark.usefixtures("module")
class TestResults:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("double", {"0": 2.0, "1": None, "2": 6.0}),
            ("many", {"0": 1.0, "1": None, "2": 3.0}),
            ("in_list", {"0": 2.0, "1": None, "2": 4.0}),
        ],
    )
    def test_arrays_and_lists_are_taken(self, name: str, expected: dict[str, Any]) -> None:
        assert run(document(declared(name), expression="MINE(l.amount)"), 1.0, None, 3.0) == (expected, [])

    def test_nan_is_no_null(self) -> None:
        expression = "CASE WHEN mine(l.amount) IS NULL THEN 'null' WHEN ISNAN(mine(l.amount)) THEN 'nan' END"
        assert run(document(declared("in_numpy"), expression=expression), 2.0) == ({"0": "nan"}, [])

    def test_arguments_have_the_types_that_the_page_says(self) -> None:
        arguments = "l.n, l.price, l.ts, DATE '2024-01-01', 0.1, 'x', NULL, l.ts - l.ts"
        emitted, _ = run(document(declared("kinds", "string"), expression=f"mine({arguments})"), 1.0)
        assert emitted["0"] == (
            "int32, decimal128(9, 2), timestamp[ms, tz=UTC], date32[day], decimal128(1, 1), string, null, duration[ms]"
        )

    @pytest.mark.parametrize(
        ("name", "facts"), [("picky", "ValueError: three is no number"), ("ends", "SystemExit: 7")]
    )
    def test_only_rows_for_which_it_raises_are_dead_letters(self, name: str, facts: str) -> None:
        amounts = [float(n) for n in range(40)]
        emitted, reasons = run(document(declared(name), expression="mine(l.amount)"), *amounts)
        assert emitted == {str(n): amount for n, amount in enumerate(amounts) if amount != 3.0}
        assert reasons == [f"cannot evaluate 'mine(l.amount)': mine (of_the_test:{name}) raised {facts}"]

    def test_conditions_shield_it(self) -> None:
        expression = "CASE WHEN l.amount = 3 THEN 0e0 ELSE mine(l.amount) END"
        assert run(document(declared("picky"), expression=expression), 3.0, 1.0) == ({"0": 0.0, "1": 1.0}, [])

    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("shorter", "returned 1 values for 2 rows"),
            ("always_one", "returned 1 values for 2 rows"),
            ("integers", "returned int64, and the job says returns: double"),
            ("nonsense", "returned object, which is no array of double"),
            ("ends_later", "returned generator, which is no array of double: 7"),
        ],
    )
    def test_a_wrong_result_fails_its_whole_batch(self, name: str, facts: str) -> None:
        emitted, reasons = run(document(declared(name), expression="mine(l.amount)"), 1.0, 2.0)
        assert emitted == {}
        assert len(reasons) == 2
        assert all(f"mine (of_the_test:{name}) {facts}" in reason for reason in reasons)

    def test_a_key(self) -> None:
        job = document(declared("in_list", "double"), keys={"mine(l.amount)": "r.amount"}, expression="r.n")
        left, right = ({"k": "a", "n": n, "amount": amount, "ts": 1000} for n, amount in ((1, 4.0), (2, 5.0)))
        results = trace(job, [{"input": "l", "rows": [left]}, {"input": "r", "rows": [right]}])
        assert [row for step in results for row in step["output"]] == [{"k": "a", "x": 2}]

    @pytest.mark.parametrize("key", ["mine(r.amount)", "COALESCE(mine(r.amount), 0e0)", "-mine(r.amount)"])
    def test_no_key_over_a_padded_input(self, key: str) -> None:
        """The function may give a value for NULLs, and `validate` does not import it."""
        with pytest.raises(JobError) as raised:
            compile_job(job_from(chain(key)))
        (problem,) = raised.value.problems
        assert problem.path == f'spec.joins[1].keys["{key}"]'
        assert "may give a value where r.amount is NULL: a step before pads r with nulls" in problem.message
        assert "CASE WHEN r.amount IS NOT NULL THEN " in problem.message

    def test_a_key_that_is_null_where_padded_may_call_it(self) -> None:
        job = chain("CASE WHEN r.amount IS NOT NULL THEN mine(r.amount) END")
        rows = {
            "l": [{"k": "a", "ts": 1000}, {"k": "padded", "ts": 1000}],
            "r": [{"k": "a", "amount": 4.0, "ts": 1000}],
            "x": [{"n": 2, "amount": 5.0, "ts": 1000}, {"n": 3, "ts": 1000}],
        }
        emitted = [row for step in trace(job, [{"rows": rows}, {"end": True}]) for row in step["output"]]
        assert emitted == [{"k": "a", "x": 2}]


@pytest.mark.usefixtures("module")
class TestStart:
    @pytest.mark.parametrize(
        ("python", "call", "words"),
        [
            ("nowhere.at_all:f", "mine(l.n)", "ModuleNotFoundError: No module named 'nowhere'. Put it into the image"),
            ("that_ends:f", "mine(l.n)", "'that_ends:f' cannot be imported: SystemExit: 7. Correct the module"),
            ("of_the_test:nothing", "mine(l.n)", "module of_the_test has no 'nothing'"),
            ("of_the_test:not_a_function", "mine(l.n)", "is int and cannot be called"),
            ("of_the_test:two", "mine(l.n)", "the job calls mine with 1 argument, and it takes (a, b)"),
        ],
    )
    def test_what_cannot_be_called_is_rejected_with_its_field(self, python: str, call: str, words: str) -> None:
        job = job_from(document({"name": "mine", "python": python, "returns": "int32"}, expression=call))
        with pytest.raises(JobError) as raised:
            with_functions(job)
        (problem,) = raised.value.problems
        assert problem.path == "spec.functions[0].python"
        assert words in problem.message

    def test_a_job_is_compiled_without_its_modules(self) -> None:
        function = {"name": "mine", "python": "nowhere.at_all:f", "returns": "int32"}
        job = job_from(document(function, expression="mine(l.n)", keys={"mine(l.n)": "r.n"}))
        assert [str(field.type) for field in compile_job(job).output_schema()] == ["string", "int32"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("null timestamp exists window end show session", "is a word of SQL already"),
            ("if cast match tumble hop cumulate session_window row_number", "is a function of SQL already"),
        ],
    )
    def test_words_of_sql_are_no_names(self, text: str, message: str) -> None:
        words = text.split()
        with pytest.raises(JobError) as raised:
            job_from(document(*(declared("double", call=word) for word in words)))
        assert [(problem.path, problem.message) for problem in raised.value.problems] == [
            (f"spec.functions[{i}].name", f"{word!r} {message}; choose another name") for i, word in enumerate(words)
        ]

    def test_a_call_reads_a_column(self) -> None:
        with pytest.raises(JobError, match="no argument reads a column"):
            compile_job(job_from(document(declared("double"), expression="mine(1)")))

    def test_functions_of_one_job_are_none_of_another(self) -> None:
        compile_job(job_from(document(declared("double"), expression="mine(l.amount)")))
        with pytest.raises(JobError, match="there is no function MINE"):
            job_from(document(expression="mine(l.amount)"))


def signed(job: Job) -> dict[str, Any]:
    return signature(job, stored_columns(compile_job(job)))


class TestEdits:
    def test_a_job_without_functions_has_the_definition_of_earlier_releases(self) -> None:
        without = document()
        del without["spec"]["functions"]
        assert "functions" not in definition(job_from(document()))
        assert definition(job_from(document())) == definition(job_from(without))

    def test_a_changed_source_is_a_definition_of_its_own_and_warns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(tmp_path))
        job = job_from(document({"name": "mine", "python": "changing:f", "returns": "double"}, expression="mine(l.n)"))
        versions = []
        for text in ("def f(x): return x", "def f(x): return x  # changed"):
            (tmp_path / "changing.py").write_text(text)
            sys.modules.pop("changing", None)
            imported.cache_clear()
            versions.append(with_functions(job))
        monkeypatch.delitem(sys.modules, "changing")
        before, after = versions
        stored = json.loads(json.dumps(definition(before)))
        assert stored != definition(after)
        earlier = under_definition(after, stored)
        assert definition(earlier) == stored
        (warning,) = source_change_warnings(earlier, after)
        assert warning.startswith("The source of mine has changed: a planned epoch is run with the new source")
        assert not list(source_change_warnings(earlier, before))
        assert signed(before) == signed(after)

    def test_what_a_function_in_a_key_returns_is_part_of_the_signature(self) -> None:
        def job(returns: str) -> Job:
            function = {"name": "mine", "python": "m:f", "returns": returns}
            return job_from(document(function, keys={"CAST(mine(l.n) AS VARCHAR)": "r.k"}))

        old, new = (signed(job(returns)) for returns in ("int32", "int64"))
        assert "an expression of l.n int32 and MINE() int32" in old["steps"][0]["stored"]["left"].values()
        assert compare(old, new).refused


class TestFiles:
    @pytest.fixture
    def code(self, tmp_path: Path) -> Callable[[str, str], Path]:
        def write(name: str, module: str) -> Path:
            path = tmp_path / name
            if path.suffix == ".py":
                path.write_text("def f(x): return x\n")
                return path
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"{module}/__init__.py", "def f(x): return x\n")
            return path

        return write

    @pytest.mark.parametrize("name", ["by_name.py", "by_zip.zip", "by_wheel-1.0-py3-none-any.whl", "by_egg.egg"])
    def test_modules_come_from_files(self, code: Callable[[str, str], Path], name: str) -> None:
        module = name.split(".", maxsplit=1)[0].split("-", maxsplit=1)[0]
        with py_files([code(name, module)]) as (copy,):
            assert copy.suffix in {".py", ".zip", ".egg"}
            imported.cache_clear()
            assert imported(f"{module}:f")("x") == "x"
        sys.modules.pop(module)
        imported.cache_clear()
        with pytest.raises(ExpressionError, match="cannot be imported"):
            imported(f"{module}:f")

    @pytest.mark.parametrize(("name", "words"), [("no.py", "there is no such file"), ("text.txt", "ends in .txt")])
    def test_other_files_are_rejected(self, tmp_path: Path, name: str, words: str) -> None:
        (tmp_path / "text.txt").write_text("")
        with pytest.raises(EnvironmentProblem, match=words), py_files([tmp_path / name]):
            pass


@pytest.mark.services
def test_spark_s_workers_get_the_files(tmp_path: Path, postgres_dsn: str) -> None:
    """On executors of their own, which import from what `--py-files` sends them alone."""
    (tmp_path / "only_here.py").write_text("def shout(text): return [t.upper() for t in text.to_pylist()]\n")
    job = document({"name": "shout", "python": "only_here:shout", "returns": "string"}, expression="shout(l.k)")
    store = {"postgres": {"dsn": postgres_dsn, "schema": "python_functions"}}
    job["spec"] |= {"stateStore": store, "output": {"file": {"path": str(tmp_path / "out")}}}
    del job["spec"]["deadLetter"]
    job["spec"]["joins"][0]["keys"] = {"shout(l.k)": "r.k"}
    job["spec"]["spark"] = {"conf": {"spark.executor.memory": "512m", "spark.ui.enabled": "false"}}
    for side, key in zip(job["spec"]["inputs"], ("a", "A"), strict=True):
        side["file"]["path"] = str(tmp_path / side["name"])
        (tmp_path / side["name"]).write_text(json.dumps({"k": key, "ts": 1000}) + "\n")
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "joinery_runtime", "run", "job.json", "--py-files", "only_here.py"]
    environment = {**os.environ, "JOINERY_WAIT_FOR_SPARK": "1", "SPARK_HOME": str(spark_home())}
    ended = subprocess.run(
        [*command, "--master", "local-cluster[2,1,1024]"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"runs_on": "spark"' in ended.stdout
    rows = [json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert rows == [{"k": "a", "x": "A"}]
