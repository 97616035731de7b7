"""The files of a source: roots, listing, file names in SQL."""

import fnmatch
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix, normpath
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from penstock._formats.options import FileOptions
from penstock._formats.sqltext import PATH
from penstock._model.sql_text import literal
from penstock._tables.files import StorageFiles, hadoop_path, local_path
from penstock.errors import ConnectorError

PLAIN_PATH = re.compile(r"[A-Za-z0-9/:._=,+@-]+")
_GLOB = re.compile(r"[*?\[{]")
_NAME_FILTER = "pathGlobFilter"
_MOST_LOOKED_AT = 1000
FILE_STATUS = re.compile(
    r"\w*FileStatus\{path=(.*?); isDirectory=(?:true|false; length=(\d+));"
    r"(?:[^{}\n]*?; modification_time=(\d+))?",
    re.DOTALL,
)
"""Hadoop's string of a status: path, bytes (empty for a folder) and milliseconds since 1970."""


@dataclass(frozen=True)
class FoundFile:
    """A file: path as Spark writes it, unescaped; size in bytes; milliseconds since 1970."""

    path: str
    size: int
    modified: int


class FileRoots:
    """The folders of a source, with its name and time filters."""

    def __init__(self, spark: SparkSession, paths: Sequence[str], options: FileOptions) -> None:
        if not paths or any(not path.strip() for path in paths):
            raise ConnectorError(
                "AUTOLOADER_OPTION_INVALID",
                "the source has no path",
                hint='name a folder: .load("folder")',
            )
        self.paths = tuple(path.strip() for path in paths)
        self._spark = spark
        self._options = options
        self._compiled: dict[str, re.Pattern[str]] = {}

    @property
    def are_local(self) -> bool:
        """Whether all roots are absolute paths on a local disk."""
        return all(local_path(path) and file_name(path).startswith("/") for path in self.paths)

    def existing(self) -> list[str]:
        """The roots that exist; a root with wildcards counts as existing."""
        files = StorageFiles(self._spark)
        return [path for path in self.paths if _GLOB.search(path) or files.exists(path)]

    def missing(self) -> list[str]:
        """The roots that do not exist yet."""
        present = set(self.existing())
        return [path for path in self.paths if path not in present]

    def unmatched(self) -> tuple[str, str] | None:
        """The name filter and the folders, if none of their first 1,000 local files matches."""
        pattern = self._options.source.get(_NAME_FILTER)
        if not pattern:
            return None
        hadoop: Any = self._spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        names = hadoop.GlobFilter(pattern)
        for path in self.existing():
            folder = local_path(path)
            if folder is None or not folder.is_dir():
                return None
            files = (file for file in folder.rglob("[!._]*") if file.is_file())
            seen = {file.name for file in itertools.islice(files, _MOST_LOOKED_AT)}
            if not seen or any(names.accept(hadoop.Path(f"/{name}")) for name in seen):
                return None
        return pattern, ", ".join(self.paths)

    def stream_path(self) -> str:
        """One path for Spark's file source, which accepts neither a list nor a missing folder.

        A missing folder is given as a pattern that matches only it, so the stream waits for it.
        """
        present = set(self.existing())
        patterns = [path if path in present else _as_pattern(path) for path in self.paths]
        if len(patterns) == 1:
            return patterns[0]
        problem = None
        if any("," in path or "{" in path for path in patterns):
            problem = "cannot have commas or braces in them"
        elif len({path.split("://")[0] if "://" in path else "" for path in patterns}) > 1:
            problem = "must be on one file system"
        if problem is not None:
            raise ConnectorError(
                "AUTOLOADER_OPTION_INVALID",
                f"several paths in one stream {problem}",
                hint="read each path with a flow of its own into the same table",
            )
        start = commonprefix(patterns)  # noqa: RUF071 - cut at a slash below
        start = start[: start.rfind("/") + 1]
        return start + "{" + ",".join(path[len(start) :] for path in patterns) + "}"

    def list(self) -> list[FoundFile]:
        """All files, the oldest first. Folders and files named `_x` and `.x` are left out."""
        present = [path for path in self.existing() if self._matches_any(path)]
        if not present:
            return []
        reader = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        if _NAME_FILTER in self._options.source:
            reader = reader.option(_NAME_FILTER, self._options.source[_NAME_FILTER])
        if self._options.modified_after:
            reader = reader.option("modifiedAfter", self._options.modified_after)
        if self._options.modified_before:
            reader = reader.option("modifiedBefore", self._options.modified_before)
        relation: Any = reader.load(present)._jdf.queryExecution().analyzed()
        text = str(relation.relation().location().allFiles().mkString("\n"))
        storage = StorageFiles(self._spark)
        # Java replaces what is not UTF-8 in a name, and cannot open the file.
        files = [
            FoundFile(path, int(size), int(modified or 0))
            for path, size, modified in FILE_STATUS.findall(text)
            if size and ("\ufffd" not in path or storage.exists(path))
        ]
        return sorted(files, key=lambda file: (file.modified, file.path))

    def _matches_any(self, path: str) -> bool:
        if not _GLOB.search(path):
            return True
        system, pattern = hadoop_path(self._spark, path)
        return bool(system.globStatus(pattern))

    def below(self, path: str) -> str:
        """The part of a file's path that is below the root that it was found under."""
        plain = file_name(path)
        for root in self.paths:
            wildcard = _GLOB.search(root)
            start = file_name(root[: wildcard.start()] if wildcard else root)
            folder = start.rstrip("/")
            if plain.startswith(start if wildcard else f"{folder}/") or plain == folder:
                return plain[len(folder) :]
        return plain

    def includes(self, path: str, *, deep: bool = True) -> bool:
        """Whether a listing of the roots would have a file, by its path without escapes.

        If it is not `deep`, files in folders below a root are left out.
        """
        parts = file_name(path).split("/")
        name_filter = self._options.source.get(_NAME_FILTER)
        if _is_hidden(parts[-1]) or (name_filter and not self._accepts(name_filter, parts[-1])):
            return False
        most = len(parts) if deep else 1
        return any(
            0 <= len(parts) - len(root) <= most and self._is_below(root, parts)
            for root in self._patterns
        )

    def may_contain(self, folder: str) -> bool:
        """Whether a listing of the roots would search a folder."""
        parts = file_name(folder).split("/")
        return any(self._is_below(root[: len(parts)], parts) for root in self._patterns)

    def first_folders(self) -> Sequence[str]:
        """The folders, or single files, that a search of local roots begins with."""
        folders = set()
        for root in self._patterns:
            plain = list(itertools.takewhile(lambda part: not _GLOB.search(part), root))
            folders.add("/".join(plain) or "/")
        return sorted(folders)

    @cached_property
    def _patterns(self) -> Sequence[Sequence[str]]:
        roots = [file_name(path).rstrip("/") for path in self.paths]
        if any(_GLOB.search(root) for root in roots):
            expand: Any = self._spark._jvm.org.apache.hadoop.fs.GlobExpander.expand  # type: ignore[union-attr]
            roots = [str(each) for root in roots for each in expand(root)]
        # In the form in which Hadoop writes local paths.
        roots = [re.sub("/+", "/", normpath(r)) if r.startswith("/") else r for r in roots]
        return [root.rstrip("/").split("/") for root in roots]

    def _is_below(self, root: Sequence[str], parts: Sequence[str]) -> bool:
        if any(_is_hidden(part) for part in parts[len(root) :]):
            return False
        return all(
            self._accepts(wanted, part) if _GLOB.search(wanted) else wanted == part
            for wanted, part in zip(root, parts, strict=False)
        )

    def _accepts(self, pattern: str, name: str) -> bool:
        if pattern not in self._compiled:
            hadoop: Any = self._spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
            text = str(hadoop.GlobPattern(pattern).compiled().pattern())
            self._compiled[pattern] = re.compile(text, re.DOTALL)
        return self._compiled[pattern].fullmatch(name) is not None


def _is_hidden(name: str) -> bool:
    """Whether Spark ignores files and folders with this name below a root."""
    is_private = name.startswith("_") and "=" not in name
    return is_private or name.startswith(".") or name.endswith("._COPYING_")


def check_destination(options: FileOptions, roots: FileRoots) -> None:
    """Refuse to move files into the source itself, or to another file system."""
    destination = options.cleaning.destination if options.cleaning is not None else None
    if destination is None:
        return
    is_inside = any(folder_of(destination).startswith(folder_of(root)) for root in roots.paths)
    systems = {
        None if local_path(path) else tuple(path.split("/")[:3])
        for path in (destination, *roots.paths)
    }
    if is_inside or len(systems) > 1:
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            f"files cannot be moved to cloudFiles.cleanSource.moveDestination {destination}: it "
            f"is {'inside the source' if is_inside else 'on another file system'}",
            hint="name a folder outside of the source, on the same file system",
        )


def folder_of(path: str) -> str:
    """The folder at a path, or that of all matches of a pattern; ends with a slash."""
    plain = file_name(path)
    if wildcard := _GLOB.search(plain):
        plain = plain[: wildcard.start()].rpartition("/")[0]
    return plain.rstrip("/") + "/"


def file_uri(spark: SparkSession, path: str) -> str:
    """The URI of a path as Spark's log has it."""
    if PLAIN_PATH.fullmatch(path):
        return path
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.fs.Path(path).toUri().toString())


def file_name(path: str) -> str:
    """A path without the scheme of local files, of which there are several spellings."""
    return re.sub(r"^file:/+", "/", path)


def file_name_of_uri(uri: str) -> str:
    """As `file_name`, for a URI with escapes."""
    return file_name(unquote(uri))


def readable(path: str) -> str:
    """A file's path for a reader, with wildcard characters escaped."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def without_files(names: Collection[str]) -> str:
    """A condition that excludes files by name. Spark applies it before it opens them."""
    # In metadata, a path is a URI with escapes.
    path = f"regexp_replace({decoded(PATH)}, '^file:/+', '/')"
    # One literal, because Spark's planning time grows with the square of their number. No path
    # contains the separator.
    left_out = literal("///".join(sorted(names)))
    return f"NOT array_contains(split({left_out}, '///'), {path})"


def in_range(names: str | None, after: str | None, before: str | None) -> Iterator[str]:
    """Conditions on files of a range: a pattern of names, and times of the last change."""
    if names is not None:
        pattern = literal("^" + fnmatch.translate(names))
        yield f"{decoded('_metadata.file_name')} RLIKE {pattern}"
    changed = "_metadata.file_modification_time"
    if after is not None:
        yield f"{changed} > cast({literal(after)} AS timestamp)"
    if before is not None:
        yield f"{changed} < cast({literal(before)} AS timestamp)"


def decoded(uri: str) -> str:
    """SQL: a URI, or a part of one, without escapes; a plus sign is kept."""
    return f"try_url_decode(replace({uri}, '+', '%2B'))"


def _as_pattern(path: str) -> str:
    trimmed = path.rstrip("/")
    last = trimmed[-1]
    return f"{trimmed[:-1]}[{last}]"
