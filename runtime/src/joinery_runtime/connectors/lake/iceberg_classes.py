"""Keeps PyIceberg from running code that a catalog names.

Whoever answers for a catalog, or may write its database, chooses settings and tables' properties. Some name a class:
PyIceberg imports it, and calls it with arguments from the same place (`subprocess.Popen`, `builtins.exec`). A server's
settings may also be objects, such as `auth`, which name files and addresses to send them to. Joinery lets PyIceberg
load its own classes only, in the whole process, and take only plain settings from a server.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any, NamedTuple

import pyiceberg.catalog
import pyiceberg.io
import pyiceberg.io.pyarrow
import pyiceberg.table.locations
from pyarrow.fs import S3RetryStrategy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, AuthManagerFactory
from pyiceberg.io import FileIO
from pyiceberg.table.locations import LocationProvider

from joinery_runtime.errors import EnvironmentProblem, SinkError

_OWN = ("pyiceberg", "pyarrow")


class ForeignCode(SinkError):
    """A catalog has named code or credentials for the driver to use."""


class Loader(NamedTuple):
    """A function of PyIceberg that imports a class by its name, which is the argument at `position`."""

    owner: ModuleType | type
    name: str
    setting: str
    """The setting or the table's property with the class's name."""
    base: type
    position: int = 0


LOADERS = (
    Loader(pyiceberg.catalog, "_import_catalog", "py-catalog-impl", Catalog, position=1),
    Loader(AuthManagerFactory, "create", "auth.impl", AuthManager),
    Loader(pyiceberg.io, "_import_file_io", "py-io-impl", FileIO),
    Loader(pyiceberg.io.pyarrow, "_import_retry_strategy", "s3.retry-strategy-impl", S3RetryStrategy),
    Loader(pyiceberg.table.locations, "_import_location_provider", "write.py-location-provider.impl", LocationProvider),
)


@cache
def load_own_classes_only() -> None:
    """Change PyIceberg for the rest of the process. Raises EnvironmentProblem if it lacks one of the functions, since
    it then imports classes elsewhere."""
    for loader in LOADERS:
        setattr(loader.owner, loader.name, _check_loader(loader, _find_function(loader.owner, loader.name)))
    fetch = _find_function(RestCatalog, "_fetch_config")

    @wraps(fetch)
    def fetch_plain_settings(catalog: RestCatalog) -> None:
        before = catalog.properties
        fetch(catalog)
        for name, value in catalog.properties.items():
            if isinstance(value, dict) and value is not before.get(name):
                raise ForeignCode(
                    "The Iceberg catalog is not to be trusted",
                    facts=f"its server sets {name} to an object, and the driver would use code, files or addresses "
                    "that it names",
                    todo="Name another catalog, or have whoever runs its server remove that from its configuration",
                )

    setattr(RestCatalog, "_fetch_config", fetch_plain_settings)  # noqa: B010 - it is PyIceberg's


def _find_function(owner: ModuleType | type, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(owner, name, None)
    if function is None:
        raise EnvironmentProblem(
            "This version of PyIceberg is too new for Joinery",
            facts=f"{owner.__name__} has no {name}, so Joinery cannot see to it that only PyIceberg's own code runs",
            todo="Install an older one, from pyiceberg 0.10 on",
        )
    return function


def _check_loader(loader: Loader, load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def load_checked(*args: Any) -> Any:
        named = args[loader.position]
        if not _is_own(named, loader.base):
            raise ForeignCode(
                "The Iceberg catalog or table is not to be trusted",
                facts=f"{loader.setting} is {named!r}, which is no {loader.base.__name__} of PyIceberg's own, and the "
                "driver would run its code",
                todo=f"Remove {loader.setting} from the table's properties and from the catalog's settings, at the "
                "catalog or in the job",
            )
        return load(*args)

    return load_checked


def _is_own(named: object, base: type) -> bool:
    if base is AuthManager and named in AuthManagerFactory._registry:
        return True
    module, _, name = str(named).rpartition(".")
    if module.split(".")[0] not in _OWN:
        return False
    try:
        imported = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    # What a module of theirs has imported from elsewhere is not theirs.
    return isinstance(imported, type) and issubclass(imported, base) and imported.__module__.split(".")[0] in _OWN
