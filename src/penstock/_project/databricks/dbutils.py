"""`dbutils` for sources that were written for Databricks: the parts that pipelines use.

Unsupported calls are errors that name the line, and never return a wrong result; calls without
meaning here (mounts, restarts of Python) do nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock._model.origin import capture_origin
from penstock._project.databricks.dbutils_fs import FileSystem, MapPath
from penstock._project.databricks.dbutils_notebook import Notebook
from penstock._project.databricks.dbutils_part import Part, UnavailableError, nothing
from penstock._project.secrets import resolve_secrets
from penstock.errors import DefinitionError, SpecError


class Dbutils(Part):
    """The object `dbutils` of a source file."""

    def __init__(
        self, *, name: str, root: Path, configuration: Mapping[str, str], map_path: MapPath = str
    ) -> None:
        super().__init__("dbutils")
        self.fs = FileSystem(map_path, root)
        self.secrets = Secrets(root)
        self.widgets = Widgets(configuration)
        self.notebook = Notebook(name)
        self.entry_point = self.notebook.entry_point
        self.jobs = Jobs()
        self.library = Library("dbutils.library")
        self.data = Data("dbutils.data")
        self.credentials = Part("dbutils.credentials")


class SecretMetadata(NamedTuple):
    """A result of `list`."""

    key: str


class SecretScope(NamedTuple):
    """A result of `listScopes`."""

    name: str

    def getName(self) -> str:
        return self.name


class Secrets(Part):
    """`dbutils.secrets`, with the same sources as `${secret:scope/key}`."""

    def __init__(self, root: Path) -> None:
        super().__init__("dbutils.secrets")
        self._root = root

    def get(self, scope: str, key: str) -> str:
        try:
            return resolve_secrets(f"${{secret:{scope}/{key}}}", root=self._root)
        except SpecError as error:
            error.origin = capture_origin()
            raise

    def getBytes(self, scope: str, key: str) -> bytes:
        return self.get(scope, key).encode()

    def list(self, scope: str) -> Sequence[SecretMetadata]:
        """Return the keys of a scope in the folder `.secrets`."""
        folder = self._root / ".secrets" / scope
        return [SecretMetadata(path.name) for path in _entries(folder) if path.is_file()]

    def listScopes(self) -> Sequence[SecretScope]:
        """Return the scopes in the folder `.secrets`."""
        folder = self._root / ".secrets"
        return [SecretScope(path.name) for path in _entries(folder) if path.is_dir()]


class Widgets(Part):
    """`dbutils.widgets`: values of the pipeline's configuration, then the declared defaults."""

    def __init__(self, configuration: Mapping[str, str]) -> None:
        super().__init__("dbutils.widgets")
        self._configuration = configuration
        self._given: Mapping[str, str] = {}
        self._defaults: dict[str, str] = {}

    def text(self, name: str, defaultValue: str = "", label: str | None = None) -> None:
        self._defaults[name] = str(defaultValue)

    def dropdown(
        self, name: str, defaultValue: str, choices: Sequence[str] = (), label: str | None = None
    ) -> None:
        """Declare a widget; a configured value need not be one of the choices."""
        self._defaults[name] = str(defaultValue)

    combobox = dropdown
    multiselect = dropdown

    def get(self, name: str) -> str:
        """Return the value of a widget, declared or not."""
        for values in (self._given, self._configuration, self._defaults):
            if name in values:
                return values[name]
        raise DefinitionError(
            "WIDGET_NOT_FOUND",
            f"there is no widget named `{name}`, and the configuration has no such key",
            origin=capture_origin(),
            hint=f"put `{name}` into `configuration` of the spec file, or run with "
            f"`--conf {name}=VALUE`",
        )

    def getArgument(self, name: str, defaultValue: str | None = None) -> str:
        try:
            return self.get(name)
        except DefinitionError:
            if defaultValue is None:
                raise
            return defaultValue

    def getAll(self) -> dict[str, str]:
        """Return the values of all widgets that are declared or set by `%run`."""
        return {name: self.get(name) for name in (*self._defaults, *self._given)}

    def remove(self, name: str) -> None:
        self._defaults.pop(name, None)

    def removeAll(self) -> None:
        self._defaults.clear()


@contextmanager
def widget_values(dbutils: object, values: Mapping[str, str]) -> Iterator[None]:
    """Override values of widgets, as the arguments of `%run` do."""
    if not isinstance(dbutils, Dbutils):
        yield
        return
    widgets = dbutils.widgets
    before = widgets._given
    widgets._given = {**before, **values}
    try:
        yield
    finally:
        widgets._given = before


class Jobs(Part):
    def __init__(self) -> None:
        super().__init__("dbutils.jobs")
        self.taskValues = TaskValues("dbutils.jobs.taskValues")


class TaskValues(Part):
    """`dbutils.jobs.taskValues`: there is no job, so `get` returns `debugValue` or `default`."""

    def get(
        self, taskKey: str = "", key: str = "", default: Any = None, debugValue: Any = None
    ) -> Any:
        value = default if debugValue is None else debugValue
        if value is None:
            raise UnavailableError(
                f"the task value `{key}` of `{taskKey}`",
                "no job is running; pass a `debugValue` or a `default` to `get`",
            )
        return value

    def set(self, key: str, value: Any) -> None:
        """No effect."""


class Library(Part):
    """`dbutils.library`: without effect."""

    restartPython = staticmethod(nothing)
    installPyPI = staticmethod(nothing)
    install = staticmethod(nothing)


class Data(Part):
    """`dbutils.data`: without effect."""

    summarize = staticmethod(nothing)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
