"""Stand-ins for what is missing on this machine while a foreign project is checked.

Modules that are not installed become empty ones whose names can be called, subclassed and used as
decorators; missing secrets become a placeholder. Only for checks: no pipeline runs with these.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from penstock._project.secrets import missing_secrets_allowed

# Spark treats an object with this attribute as a UDF and accesses more of its attributes.
_MARK_OF_UDFS = "asNondeterministic"


@contextmanager
def stand_ins(modules: Iterable[str]) -> Iterator[None]:
    """Make these modules and their submodules importable while this is open.

    It changes the whole process.
    """
    finder = _Finder({name.partition(".")[0] for name in modules})
    sys.meta_path.append(finder)  # installed modules come first
    try:
        with missing_secrets_allowed():
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.stands_for(name)]:
            if isinstance(sys.modules[name], _AbsentModule):
                del sys.modules[name]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, tops: set[str]) -> None:
        self._tops = tops

    def stands_for(self, name: str) -> bool:
        return name.partition(".")[0] in self._tops

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.stands_for(fullname):
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and not isinstance(parent, _AbsentModule):
            return None  # an installed package lacks this module: an error of the project
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _AbsentModule(ModuleType):
    def __reduce__(self) -> Any:
        return _AbsentModule, (self.__name__,)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self.__name__, name)


class _AbsentBase:
    """Base class in place of a missing one; any attribute is another stand-in."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __init_subclass__(cls, **_options: Any) -> None:
        super().__init_subclass__()

    def __getattr__(self, name: str) -> Any:
        return _attribute(type(self).__name__, name)


class _Absent:
    """Stand-in for anything in a missing module."""

    def __init__(self, name: str, *_bases: object) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        # As a decorator, it must return the decorated function.
        if len(arguments) == 1 and callable(arguments[0]):
            return arguments[0]
        for argument in arguments:
            kind = type(argument)
            if kind.__module__.startswith("pyspark.") and kind.__name__.endswith("DataFrame"):
                return argument
            if kind.__module__.startswith("pyspark.") and kind.__name__.endswith("Column"):
                return argument.cast("string")
        return self

    def __getattr__(self, name: str) -> Any:
        return _attribute(self._name, name)

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (_AbsentBase,)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> "_Absent":
        return self

    def __exit__(self, *_details: object) -> None:
        return None

    def __getitem__(self, key: object) -> "_Absent":
        return self

    def __str__(self) -> str:
        return self._name.replace(".", "_")


def _attribute(owner: str, name: str) -> _Absent:
    if name.startswith("__") or name == _MARK_OF_UDFS:
        raise AttributeError(name)
    return _Absent(f"{owner}.{name}")
