"""How source files run and import each other.

While `project_imports` is open, the modules of a project's folders can be imported. Each file is
executed once, whether it runs as a source, is imported by a sibling, or both: a file that declares
datasets must not declare them twice. Only `%run` executes a file again, in another's namespace
(see `SourceExecutor`). Afterwards its modules are removed from `sys.modules`, so the next load in
the same process sees changed files. Spark pickles functions of these modules by value, because its
Python workers cannot import them.
"""

import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from penstock._model.paths import PathMap
from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.modules import databricks_modules
from penstock._project.databricks.notebook_globals import displayable_frames
from penstock._project.execution import SourceExecutor
from penstock._project.mapped_files import mapped_files
from penstock._project.module_search import folder_around
from penstock._project.sources import find_sources, has_main_code

# Modules that files of the project with the same name do not shadow.
_PROTECTED = sys.stdlib_module_names | {"delta", "dlt", "penstock", "py4j", "pyspark"}

_open: list["ProjectImports"] = []


@contextmanager
def project_imports(
    settings: PipelineSettings, sources: Sequence[Path] | None = None
) -> Iterator["ProjectImports"]:
    """Let files of the project import each other while this is open.

    It changes the whole process. Nested use for the same project returns the same object, and
    imported modules are kept until the outermost is closed: keep it open around loading and
    analysis, so that an `import` inside of a query function works too. By default, the `sources`
    are searched.
    """
    if _open and _open[-1].root == settings.root:
        yield _open[-1]
        return
    imports = ProjectImports(settings, find_sources(settings) if sources is None else sources)
    around = _AroundProject(imports)
    paths = list(sys.path)
    importlib.invalidate_caches()
    sys.meta_path.insert(0, imports)
    sys.meta_path.append(around)
    sys.path.extend(folder for folder in imports.folders if folder not in paths)
    _open.append(imports)
    try:
        with (
            databricks_modules(lambda: imports.namespace),
            displayable_frames(),
            mapped_files(PathMap(settings.paths).map) if settings.paths else nullcontext(),
        ):
            yield imports
    finally:
        _open.remove(imports)
        sys.meta_path.remove(imports)
        sys.meta_path.remove(around)
        # Remove entries that files added relative to themselves.
        sys.path[:] = [
            entry
            for entry in sys.path
            if entry in paths
            or (entry not in imports.folders and Path(entry).is_absolute() and Path(entry).exists())
        ]
        imports.drop()


class ProjectImports(MetaPathFinder):
    """Finds and executes the files of one project.

    Modules are searched in `folders`: the root and its `src`, the folders of the source files,
    those between them and the root, and those that the settings name. A module that is in none of
    them, and is not installed, is searched in a few folders above the root.
    """

    def __init__(self, settings: PipelineSettings, sources: Sequence[Path]) -> None:
        self.root = settings.root
        self.sources = tuple(sources)
        self.folders = list(
            dict.fromkeys([*module_folders(Path(settings.root), sources), *settings.import_roots])
        )
        self.executor = SourceExecutor(settings)
        self._started = _Source({}, self.folders)
        self._here = threading.local()
        self._modules: dict[str, ModuleType] = {}
        self._failures: dict[str, BaseException] = {}
        self._imported_names: set[str] = set()
        self._source_names: set[str] = set()
        self._by_value: list[ModuleType] = []
        self._paths = frozenset(sys.path)
        self._executed: list[Path] = []

    @property
    def namespace(self) -> Mapping[str, object]:
        """The namespace of the source that is executed."""
        return self._source.namespace

    @property
    def _source(self) -> "_Source":
        """The source of this thread; on a thread of the user's code, the source started last."""
        source: _Source = getattr(self._here, "source", self._started)
        return source

    def run(self, source: Path, namespace: Mapping[str, object], *, is_main: bool = False) -> None:
        """Execute a source file, unless a sibling has already imported it.

        With `is_main` it is the main program, as with `python source.py`. Raises whatever the file
        raises; the same object again if it was imported before and failed.
        """
        path = str(source)
        own = _between(source.parent, Path(self.root))
        package, top = _package_of(source)
        folders = list(dict.fromkeys([str(source.parent), *top, *own, *self.folders]))
        self._started = self._here.source = _Source(namespace, folders)
        try:
            if path in self._failures:
                raise self._failures[path]
            if path not in self._modules:
                name = "__main__" if is_main else package + self._unique_name(source)
                spec = spec_from_file_location(name, path, loader=_Loader(name, path, self))
                assert spec is not None
                assert spec.loader is not None
                module = module_from_spec(spec)
                sys.modules[name] = module
                if not is_main:
                    self._source_names.add(name)
                spec.loader.exec_module(module)
        finally:
            if not is_main:
                self._started = self._here.source = _Source(namespace, self.folders)
                # Folders may have modules of the same name; each file sees those of its own folder.
                self._forget(self._imported_names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        if fullname in _PROTECTED or (parent and parent not in self._imported_names):
            return None
        return self.find_in(fullname, path if parent else self._source.folders, target)

    def find_in(
        self, fullname: str, search: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module in these folders; it then belongs to the project."""
        spec = PathFinder.find_spec(fullname, search, target)
        if spec is None:
            return None
        self._imported_names.add(fullname)
        if spec.origin is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    def known(self, path: str) -> ModuleType | None:
        """Return the module of a file that was or is being executed."""
        return self._modules.get(path)

    def execute(self, loader: "_Loader", module: ModuleType) -> None:
        if loader.path in self._failures:
            raise self._failures[loader.path]
        if loader.path in self._modules:
            return
        self._modules[loader.path] = module
        if Path(loader.path) in self.sources:
            vars(module).update(self.namespace)
            if has_main_code(Path(loader.path)):
                vars(module)["__name__"] = "__main__"
        if _pickle_by_value(module):
            self._by_value.append(module)
        self._executed.append(Path(loader.path).parent)
        try:
            self.executor.execute(Path(loader.path), vars(module))
        except BaseException as error:
            self._failures[loader.path] = error
            del self._modules[loader.path]
            raise

    def appended_folders(self) -> list[str]:
        """Folders that files added to `sys.path` relative to themselves, as in a notebook.

        The working directory is the root: a relative path that does not exist there is searched in
        the folders of executed files, the most recently executed first.
        """
        entries = [entry for entry in sys.path if entry not in self._paths and entry]
        below = [
            os.path.relpath(Path(self.root, entry), self.root)
            for entry in entries
            if not Path(self.root, entry).is_dir()
        ]
        places = [folder / path for path in below for folder in reversed(self._executed)]
        return [str(place.resolve()) for place in dict.fromkeys(places) if place.is_dir()]

    def drop(self) -> None:
        """Forget all files: they are read again when next run or imported."""
        for module in self._by_value:
            _pickle_as_usual(module)
        self._by_value.clear()
        self._forget(self._imported_names)
        self._forget(self._source_names)
        self._modules.clear()
        self._failures.clear()
        self._executed.clear()
        self.executor.forget()

    def _forget(self, names: set[str]) -> None:
        for name in names:
            sys.modules.pop(name, None)
        names.clear()

    def _unique_name(self, source: Path) -> str:
        relative = source.relative_to(self.root) if source.is_relative_to(self.root) else source
        stem = "pipeline_source_" + re.sub(r"\W+", "_", str(relative.with_suffix("")))
        name, number = stem, 2
        while name in sys.modules:
            name, number = f"{stem}_{number}", number + 1
        return name


@dataclass(frozen=True)
class _Source:
    """Names that a source has without importing them, and where its modules are searched."""

    namespace: Mapping[str, object]
    folders: Sequence[str]


class _AroundProject(MetaPathFinder):
    """Last finder: searches folders relative to a file, and those above the project."""

    def __init__(self, imports: ProjectImports) -> None:
        self._imports = imports

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:
            return None
        appended = self._imports.appended_folders()
        if appended and (spec := self._imports.find_in(fullname, appended, target)) is not None:
            return spec
        folder = folder_around(Path(self._imports.root), fullname)
        return None if folder is None else self._imports.find_in(fullname, [str(folder)], target)


class _Loader(SourceFileLoader):
    """Always executes the source, never a cached file with the same mtime and size."""

    def __init__(self, fullname: str, path: str, imports: ProjectImports) -> None:
        super().__init__(fullname, path)
        self._imports = imports

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._imports.known(self.path) or _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self._imports.execute(self, module)

    def own_values(self, module: ModuleType) -> dict[str, object]:
        """The values of a module, without its import state and without those of a source."""
        omitted = {"__builtins__", "__loader__", "__spec__"}
        omitted.update(k for k, v in self._imports.namespace.items() if vars(module).get(k) is v)
        return {name: value for name, value in vars(module).items() if name not in omitted}


class _Module(ModuleType):
    """A module of the project.

    A function that uses it by name, as in `rules.clean(x)`, is pickled with the whole module. A
    loader and a session cannot be pickled.
    """

    def __reduce__(self) -> tuple[type[ModuleType], tuple[str], dict[str, object]]:
        assert isinstance(self.__loader__, _Loader)
        return ModuleType, (self.__name__,), self.__loader__.own_values(self)


def module_folders(root: Path, sources: Sequence[Path]) -> list[str]:
    """Return the folders where the modules of a project are searched, in order."""
    folders = [root, *([root / "src"] if (root / "src").is_dir() else [])]
    folders += [source.parent for source in sources]
    paths = dict.fromkeys(map(str, folders))
    for source in sources:
        paths.update(dict.fromkeys(_between(source.parent, root)))
    return list(paths)


def _between(folder: Path, root: Path) -> list[str]:
    """The folders above a folder, up to the root of the project; none if it is outside."""
    if not folder.is_relative_to(root):
        return []
    return [str(above) for above in folder.parents if above.is_relative_to(root)]


def _package_of(source: Path) -> tuple[str, list[str]]:
    """The package that a source belongs to, with a dot, and the folder that it is imported from.

    Makes relative imports work in a source.
    """
    names: list[str] = []
    folder = source.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return "".join(f"{name}." for name in names), [str(folder)] if names else []


def _pickle_by_value(module: ModuleType) -> bool:
    # Looked up rather than imported: code that pickles for Spark has imported it.
    cloudpickle = sys.modules.get("pyspark.cloudpickle")
    if cloudpickle is None or sys.modules.get(module.__name__) is not module:
        return False
    cloudpickle.register_pickle_by_value(module)
    return True


def _pickle_as_usual(module: ModuleType) -> None:
    cloudpickle = sys.modules.get("pyspark.cloudpickle")
    if cloudpickle is not None and module.__name__ in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(module)
