"""Modules of Databricks that give a notebook's names to imported files.

`from databricks.sdk.runtime import dbutils`, `from pyspark.dbutils import DBUtils` and
`from databricks.connect import DatabricksSession` work while a project is open. An installed
`databricks.sdk` is not changed, except for `runtime`, which would need a workspace.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGES = ("databricks", "databricks.sdk")
_RUNTIME = "databricks.sdk.runtime"
_DBUTILS = "pyspark.dbutils"
_CONNECT = "databricks.connect"

Namespace = Callable[[], Mapping[str, object]]


@contextmanager
def databricks_modules(namespace: Namespace) -> Iterator[None]:
    """Make these modules importable while this is open, in the whole process.

    The modules do not exist if the globals of source files have no `dbutils`.
    """
    modules = _Modules(namespace, (_RUNTIME, _DBUTILS, _CONNECT))
    # The last finder, so that installed packages with these names take precedence.
    packages = _Modules(namespace, _PACKAGES)
    sys.meta_path.insert(0, modules)
    sys.meta_path.append(packages)
    try:
        yield
    finally:
        sys.meta_path.remove(modules)
        sys.meta_path.remove(packages)
        modules.drop()
        packages.drop()


class _Modules(MetaPathFinder, Loader):
    def __init__(self, namespace: Namespace, names: Sequence[str]) -> None:
        self._namespace = namespace
        self._names = names
        self._made: list[ModuleType] = []
        # Modules of an installed package with these names, restored afterwards.
        self._hidden = {name: sys.modules.pop(name) for name in names
                        if name not in _PACKAGES and name in sys.modules}  # fmt: skip

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names or "dbutils" not in self._namespace():
            return None
        return ModuleSpec(fullname, self, is_package=fullname in _PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        self._made.append(module)
        vars(module).update(self._content(module.__name__))

    def drop(self) -> None:
        for module in self._made:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
            parent, _, name = module.__name__.rpartition(".")
            if parent in sys.modules and vars(sys.modules[parent]).get(name) is module:
                delattr(sys.modules[parent], name)
        for name, module in self._hidden.items():
            sys.modules[name] = module
            parent, _, attribute = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], attribute, module)

    def _content(self, name: str) -> dict[str, object]:
        if name == _DBUTILS:
            return {"DBUtils": lambda *_arguments, **_parameters: self._namespace()["dbutils"]}
        if name == _CONNECT:
            builder = _Builder(lambda: self._namespace().get("spark"))
            return {"DatabricksSession": type("DatabricksSession", (), {"builder": builder})}
        if name == _RUNTIME:
            return {"__getattr__": self._of_runtime, "__all__": sorted(self._runtime())}
        return {}

    def _of_runtime(self, name: str) -> object:
        """An attribute of the module; each job has its own session and `dbutils`."""
        try:
            return self._runtime()[name]
        except KeyError:
            raise AttributeError(f"module {_RUNTIME!r} has no attribute {name!r}") from None

    def _runtime(self) -> dict[str, object]:
        namespace = self._namespace()
        functions = sys.modules.get("pyspark.sql.functions")
        content = {**namespace, "udf": getattr(functions, "udf", None)}
        spark: Any = namespace.get("spark")
        if hasattr(spark, "table"):
            content["table"] = lambda name: spark.table(name)
        return {key: value for key, value in content.items() if value is not None}


class _Builder:
    """A builder that always returns the running session."""

    def __init__(self, spark: Callable[[], object]) -> None:
        self._spark = spark

    def getOrCreate(self) -> object:
        return self._spark()

    create = getOrCreate

    def __getattr__(self, name: str) -> Callable[..., "_Builder"]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_arguments, **_parameters: self
