"""PyIceberg runs no code that a catalog's server, its database or a table names."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyiceberg
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest.auth import AuthManagerFactory
from pyiceberg.io import load_file_io
from pyiceberg.table.locations import load_location_provider

from joinery_runtime.connectors.lake import iceberg_classes
from joinery_runtime.connectors.lake.iceberg import IcebergStorage, IcebergTable
from joinery_runtime.connectors.lake.iceberg_classes import LOADERS, ForeignCode, load_own_classes_only
from joinery_runtime.connectors.lake.sink import Added, Mark
from joinery_runtime.errors import EnvironmentProblem, SinkError

ROWS = pa.table({"a": [1, 2]})
SHELL = ["sh", "-c", "echo owned > ran"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, in which foreign code leaves the file `ran`."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "ran").exists(), "foreign code has run"


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A REST catalog that answers everything with `server.answer`."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(self.server.answer).encode()  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def rest(server: ThreadingHTTPServer) -> IcebergTable:
    return IcebergTable("c", "db.out", {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"})


def sql(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def answer(folder: Path, **overrides: object) -> dict[str, object]:
    """Of a REST catalog, to the question for its configuration and to the one for the table."""
    catalog = load_catalog("c", **sql(folder))
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table_if_not_exists("db.out", ROWS.schema)
    return {
        **{"defaults": {}, "overrides": overrides, "metadata-location": table.metadata_location},
        "metadata": json.loads(table.metadata.model_dump_json()),
    }


def test_a_catalogs_server_is_used(server: ThreadingHTTPServer, folder: Path) -> None:
    server.answer = answer(folder, **{"rest-page-size": 100})
    assert rest(server).columns() == ROWS.schema


def test_a_catalogs_server_names_no_code_for_files(server: ThreadingHTTPServer, folder: Path) -> None:
    server.answer = answer(folder, **{"py-io-impl": "subprocess.Popen", "args": SHELL})
    with pytest.raises(SinkError) as caught:
        rest(server).columns()
    assert str(caught.value) == (
        "The Iceberg table db.out of the catalog c cannot be opened: py-io-impl is 'subprocess.Popen', which is no "
        "FileIO of PyIceberg's own, and the driver would run its code. Remove py-io-impl from the table's properties "
        "and from the catalog's settings, at the catalog or in the job"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"auth": {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": SHELL}}},
        {"auth": {"type": "google", "google": {"credentials_path": "/mnt/account.json"}}},
        {"ssl": {"client": {"cert": "/mnt/key.pem"}}},
    ],
)
def test_a_catalogs_server_chooses_no_credentials(server: ThreadingHTTPServer, folder: Path, settings) -> None:
    server.answer = answer(folder, **settings)
    (name,) = settings
    match = rf"db\.out of the catalog c cannot be opened: its server sets {name} to an object.* Name another catalog"
    with pytest.raises(SinkError, match=match):
        rest(server).columns()


def test_a_tables_location_is_not_run(folder: Path) -> None:
    """The database of the catalog is its author's, who may write any table into it."""
    server = answer(folder)
    file = Path(str(server["metadata-location"]).removeprefix("file://"))
    source = {"location": "open('ran', 'w')", "properties": {"write.py-location-provider.impl": "builtins.exec"}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **source}))
    table = IcebergTable("c", "db.out", sql(folder))
    match = r"db\.out of the catalog c does not take new columns: write\.py-location-provider\.impl is 'builtins\.exec'"
    with pytest.raises(SinkError, match=match):
        table.add_columns([pa.field("b", pa.string())])
    with pytest.raises(SinkError, match=r"rejects the rows of epoch 1: write\.py-location-provider\.impl is 'builtins"):
        table.add(Added("job", "life", Mark(1, 1), []))


def test_a_job_names_no_catalog_of_others() -> None:
    with pytest.raises(SinkError, match=r"db\.out of the catalog c cannot be opened: py-catalog-impl is 'builtins"):
        IcebergTable("c", "db.out", {"py-catalog-impl": "builtins.print"}).columns()


def test_a_task_runs_no_code_either() -> None:
    settings = {"s3.retry-strategy-impl": "os.getcwd", "s3.region": "x"}
    with pytest.raises(SinkError, match=r"table at s3://b/t cannot be opened: s3\.retry-strategy-impl is 'os\.getcwd'"):
        IcebergStorage("s3://b/t", settings).open()


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.name)
@pytest.mark.parametrize(
    "named",
    [
        "subprocess.Popen",
        "builtins.exec",
        "exec",
        "pyiceberg_evil.Class",
        "pyiceberg.nothing.Class",
        "pyiceberg.io.fsspec.LocalFileSystem",
        "pyiceberg.catalog.load_catalog",
        "pyiceberg.schema.Schema",
    ],
)
def test_only_subclasses_of_pyicebergs_own_are_loaded(loader, named: str) -> None:
    arguments = ["c"] * loader.position + [named, {}, {}]
    with pytest.raises(ForeignCode, match=f"is '{named}', which is no {loader.base.__name__}"):
        getattr(loader.owner, loader.name)(*arguments)


def test_pyicebergs_own_classes_are_loaded(folder: Path) -> None:
    names = {
        type(load_file_io({"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})),
        type(load_file_io({}, f"file://{folder}")),
        type(load_catalog("c", **{"py-catalog-impl": "pyiceberg.catalog.memory.InMemoryCatalog"})),
        type(AuthManagerFactory.create("noop", {})),
        type(AuthManagerFactory.create("pyiceberg.catalog.rest.auth.NoopAuthManager", {})),
        type(
            load_location_provider(
                "file:///t",
                {"write.py-location-provider.impl": "pyiceberg.table.locations.ObjectStoreLocationProvider"},
            )
        ),
    }
    assert {name.__name__ for name in names} == {
        *("FsspecFileIO", "PyArrowFileIO", "InMemoryCatalog", "NoopAuthManager", "ObjectStoreLocationProvider")
    }
    retry = {"s3.retry-strategy-impl": "pyarrow.fs.AwsStandardS3RetryStrategy", "s3.region": "x"}
    assert IcebergStorage("s3://b/t", retry).open()[1] == "b/t"


def test_every_place_that_imports_by_name_is_checked() -> None:
    """`_try_import` imports packages that PyIceberg itself names."""
    root = Path(pyiceberg.__file__).parent
    importing = set()
    for file in root.rglob("*.py"):
        module = ".".join(("pyiceberg", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(node, ast.Attribute | ast.Name)
                and getattr(node, "attr", getattr(node, "id", "")) in {"import_module", "__import__", "eval", "exec"}
                for call in ast.walk(function)
                if isinstance(call, ast.Call)
                for node in [call.func]
                if not (isinstance(node, ast.Attribute) and node.attr == "eval")
            ):
                importing.add((module, function.name))
    owners = {
        (loader.owner.__name__ if not isinstance(loader.owner, type) else loader.owner.__module__, loader.name)
        for loader in LOADERS
    }
    assert importing == {*owners, ("pyiceberg.transforms", "_try_import")}
    assert all(hasattr(getattr(loader.owner, loader.name), "__wrapped__") for loader in LOADERS)
    assert hasattr(import_module("pyiceberg.catalog.rest").RestCatalog._fetch_config, "__wrapped__")


def test_a_pyiceberg_that_imports_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = LOADERS[0]._replace(name="_import_anything")
    monkeypatch.setattr(iceberg_classes, "LOADERS", (renamed,))
    with pytest.raises(EnvironmentProblem, match=r"pyiceberg\.catalog has no _import_anything.*Install an older one"):
        load_own_classes_only.__wrapped__()
