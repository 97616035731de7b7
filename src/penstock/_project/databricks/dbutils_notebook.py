"""`dbutils.notebook`: the end of a notebook, and its context."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock._api.registry import active_registry
from penstock._model.origin import capture_origin
from penstock._project.databricks.dbutils_part import Part, UnavailableError
from penstock._project.databricks.notebook import file_of_cell
from penstock._project.substitution import local_user


class NotebookExit(BaseException):
    """`dbutils.notebook.exit` was called.

    Not an `Exception`, so that `except Exception` in the notebook lets it through.
    """


_is_running: ContextVar[bool] = ContextVar("notebook", default=False)


@contextmanager
def running_notebook() -> Iterator[None]:
    """Let `dbutils.notebook.exit` end what is executed while this is open, on this thread."""
    token = _is_running.set(True)
    try:
        yield
    except NotebookExit:
        pass  # skips the rest of this notebook
    finally:
        _is_running.reset(token)


class Notebook(Part):
    def __init__(self, pipeline: str) -> None:
        super().__init__("dbutils.notebook")
        self._pipeline = pipeline
        # The chain `entry_point.getDbutils().notebook().getContext()`.
        entry = SimpleNamespace(notebook=lambda: self)
        self.entry_point = SimpleNamespace(getDbutils=lambda: entry)

    def getContext(self) -> "NotebookContext":
        """Metadata of the running notebook."""
        return NotebookContext(self._values)

    def exit(self, value: object = None) -> None:
        """End the calling notebook; its declarations are kept.

        Raises:
            DefinitionError: No notebook is running.
        """
        if not _is_running.get():
            active_registry("dbutils.notebook.exit")  # raises
        raise NotebookExit(value)

    def run(self, path: str, *_arguments: Any, **_parameters: Any) -> str:
        """Not available: a separately run notebook cannot declare datasets."""
        raise UnavailableError(
            f"`dbutils.notebook.run` of {path!r}",
            "`%run` executes another notebook as a part of this one",
        )

    def _values(self) -> dict[str, str]:
        # Absolute, without a suffix, like a path in a workspace.
        path = str(Path(file_of_cell(capture_origin().file)).absolute().with_suffix(""))
        user = local_user()
        return {
            "notebookPath": path,
            "notebook_path": path,
            "user": user,
            "userName": user,
            "pipelineName": self._pipeline,
        }


class NotebookContext:
    """Path, user and pipeline of a notebook; all other values are empty."""

    def __init__(self, values: Callable[[], dict[str, str]]) -> None:
        self._values = values

    def tags(self) -> "_Tags":
        return _Tags(self._values())

    def toJson(self) -> str:
        values = self._values()
        return json.dumps(
            {
                "tags": values,
                "extraContext": {"notebook_path": values["notebookPath"]},
                "currentRunId": None,
                "rootRunId": None,
            }
        )

    safeToJson = toJson

    def __getattr__(self, name: str) -> "Callable[[], _Answer]":
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: _Answer(self._values().get(name))


class _Answer:
    """A Scala `Option`."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def get(self) -> str | None:
        return self._value

    def getOrElse(self, default: Any = None) -> Any:
        if self._value is not None:
            return self._value
        return default() if callable(default) else default

    def isDefined(self) -> bool:
        return self._value is not None

    def toString(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._value or ""


class _Tags:
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def get(self, key: str) -> _Answer:
        return _Answer(self._values.get(key))

    def apply(self, key: str) -> str:
        return self._values.get(key, "")

    def toString(self) -> str:
        return json.dumps(self._values)
