"""Recovery of a flow that failed because of its files: a larger schema, or a quarantined file.

Each recovery changes the stored state of the source, so the number of restarts is bounded.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from penstock._formats.columnar_rows import distinct_schemas, misfits
from penstock._formats.merging import add_fields, add_paths, unmarked, widest, without_void
from penstock._formats.options import COLUMNAR, Evolution
from penstock._formats.rows import MALFORMED, UNKNOWN_FIELD
from penstock._formats.widening import changed_types, named_columns, widen_columns, widen_paths
from penstock._model.flow import Flow
from penstock._model.quantity import plural
from penstock._spark.failures import full_text, java_causes
from penstock.errors import FlowError
from penstock.sources.base import flow_error
from penstock.sources.files.inference import infer, plain_cause, sample
from penstock.sources.files.listing import FoundFile, file_name, file_name_of_uri, readable
from penstock.sources.files.opening import QUARANTINED, OpenedFiles

_UNREADABLE = re.compile(r"\[FAILED_READ_FILE\.(\w+)\][^\n]*?file (\S+?)\.(?:\s|$)")
_UNFIT = "UNFIT_TYPES_IN_FILES"
_MALFORMED_FILE = re.compile(re.escape(MALFORMED) + r" (\S+): ([^\n]*)")
# Errors of corrupt contents; those of the network or of permissions are different.
_BROKEN_CONTENT = re.compile(
    r"EOFException|ZipException|ChecksumException|not a Parquet file|is not a valid Parquet"
    r"|ParquetDecodingException|[Cc]orrupt|InvalidAvroMagicException|Not an Avro data file"
    r"|AvroRuntimeException|AvroTypeException|IncompatibleSchemaException|Malformed ORC"
    r"|InvalidProtocolBuffer|OrcProto|ZstdIOException|ZstdException|bad block header|BZip2"
    r"|incorrect (?:header|data) check|invalid (?:block type|stored block|distance|code|bit length)"
    r"|Unexpected end of (?:input|ZLIB|stream)|MalformedInputException|SnappyError|not a gzip file"
    r"|PARQUET_COLUMN_DATA_TYPE_MISMATCH|SchemaColumnConvertNotSupportedException"
    r"|could not be read as|CANNOT_READ_FILE_FOOTER|Could not read footer|FileTooShort"
    r"|Found duplicate field"
    r"|NullPointerException: [^\n]*\borg\.apache\.avro\b"  # its last block is not complete
)
_MOST_PROBED = 1000


def recover(text: str, source: OpenedFiles, flow: Flow) -> FlowError | None:
    """The error for a failure that files caused; retryable if the next start differs."""
    return (
        _unknown_fields(text, source, flow)
        or _unfit(text, source, flow)
        or _unreadable(text, source, flow)
        or _malformed(text, source, flow)
    )


def check_files(source: OpenedFiles, paths: Iterable[str]) -> None:
    """Refuse a batch whose files (URIs) differ from the schema, if rows do not show it."""
    options = source.options
    if not source.compares_files:
        return
    left_out = source.quarantined
    names = [name for uri in paths if (name := file_name_of_uri(uri)) not in left_out]
    names = [name for name in names if source.roots.includes(name)]
    schemas = distinct_schemas(source.spark, options, [readable(name) for name in names])
    wide = source.schema
    if options.evolution is Evolution.WIDEN:
        for schema in schemas:
            wide = widen_columns(wide, schema, options.format)
    if wide == source.schema:
        _check_types(source, names, schemas)
    added: list[str] = []
    if source.shows_columns_by_file:
        _, added = add_fields(source.all_fields, without_void(widest(schemas)))
    if added or wide != source.schema:
        body: dict[str, Any] = {"source": source.key, "fields": added, "file": [names[0]]}
        body |= {"files": names, "schema": wide.jsonValue()}
        raise FilesDifferError(f"{UNKNOWN_FIELD} {json.dumps(body)}")


def missing_files(source: OpenedFiles, paths: Iterable[str], flow: str) -> list[str]:
    """The local files of a batch (URIs) that no longer exist: Spark silently ignores them.

    Raises:
        FlowError: Their folder does not exist or is empty, as when it is not mounted.
    """
    names = (file_name_of_uri(uri) for uri in paths if "#" not in uri)
    missing = [name for name in names if not Path(name).exists() and source.roots.includes(name)]
    if missing:
        left_out = source.quarantined.union(source.existing)
        missing = [name for name in missing if name not in left_out]
    if not missing or source.options.source.get("ignoreMissingFiles") == "true":
        return []
    for folder in source.roots.first_folders():
        if f"{missing[0]}/".startswith(f"{folder.rstrip('/')}/") and not any(
            Path(folder).glob("*")
        ):
            raise FlowError(
                "FOLDER_NOT_READABLE",
                f"{folder} does not exist or is empty, and {plural(len(missing), 'file')} in it "
                f"were to be read, such as {missing[0]}",
                flow=flow,
                retryable=True,
                hint="check that its file system is mounted; if the files were deleted on purpose, "
                "set the option ignoreMissingFiles to true",
            )
    return missing


class FilesDifferError(Exception):
    """Files of a batch do not match the schema; `recover` parses the text."""


def _check_types(source: OpenedFiles, names: Sequence[str], schemas: Sequence[StructType]) -> None:
    """Refuse files with other types, if the reader does not."""
    by_path = {readable(name): name for name in names}
    unfit = misfits(source.spark, source.options, source.schema, list(by_path), schemas)
    files = [{"file": by_path[path], "reason": why} for path, why in unfit.items()]
    if files:
        raise FilesDifferError(f"{_UNFIT} {json.dumps({'source': source.key, 'unfit': files})}")


def _unknown_fields(text: str, source: OpenedFiles, flow: Flow) -> FlowError | None:
    message = _message(text, UNKNOWN_FIELD, source.key)
    if message is None:
        return None
    fields = [str(field) for field in message["fields"]]
    where = file_name_of_uri(str(message["file"][0]))
    names = ", ".join(repr(field) for field in fields)
    grown = None
    if source.options.evolution is not Evolution.FAIL:
        grown = _grow(source, where, fields, message)
    if grown is None:
        return flow_error(
            "UNKNOWN_FIELD",
            flow,
            f"{where} has fields that the schema does not have: {names}",
            hint="add them to the schema or to cloudFiles.schemaHints, remove the file, or choose "
            "another cloudFiles.schemaEvolutionMode",
        )
    added, widened = grown
    reasons = ["new fields"] * bool(added) + ["values of wider types"] * bool(widened)
    into = "has" if source.options.evolution.adds_columns else "the rescued data has"
    columns = ", ".join([*(repr(field) for field in added), *widened])
    return flow_error(
        "SCHEMA_EVOLVED",
        flow,
        f"{UNKNOWN_FIELD}: {where} has {' and '.join(reasons)}; from now on the schema {into} "
        f"{columns}",
        retryable=True,
    )


def _message(text: str, start: str, key: str) -> dict[str, Any] | None:
    for match in re.finditer(re.escape(start) + r" (?=\{)", text):
        for candidate in (text[match.end() :], text[match.end() :].replace('\\"', '"')):
            try:
                body = json.JSONDecoder().raw_decode(candidate)[0]
            except json.JSONDecodeError:
                continue
            if body.get("source") == key:
                return dict(body)
    return None


def _grow(
    source: OpenedFiles, where: str, fields: Sequence[str], message: Mapping[str, Any]
) -> tuple[list[str], list[str]] | None:
    """Save a schema that avoids a failure; returns the new fields and the widened columns."""
    seen = _seen(source, where, [str(path) for path in message.get("files", ())])
    adds_columns = source.options.evolution.adds_columns
    grown, added = add_fields(source.all_fields, seen, rescued=not adds_columns)
    if adds_columns:
        # A field that the sample does not show, e.g. because files disagree, is a string.
        grown, besides = add_paths(grown, list(fields))
        added += besides
    widened: list[str] = []
    if source.options.evolution is Evolution.WIDEN:
        wide = _widen(source, grown, seen, message)
        widened = changed_types(grown, wide)
        grown = wide
    if not (added or widened):
        return None
    source.state.save(grown)
    return added, widened


def _widen(
    source: OpenedFiles, grown: StructType, seen: StructType, message: Mapping[str, Any]
) -> StructType:
    """A schema with wider types for the reported values and for other values of their columns."""
    if "schema" in message:
        return widen_columns(grown, StructType.fromJson(message["schema"]), source.options.format)
    reported = [str(entry) for entry in message.get("wide", ())]
    # Others would get the type that is inferred for every number, whether it is large or not.
    columns = named_columns(reported) - {field.name.lower() for field in source.partitions.fields}
    fields = StructType([field for field in seen.fields if field.name.lower() in columns])
    return widen_paths(widen_columns(grown, fields, source.options.format), reported)


def _seen(source: OpenedFiles, where: str, batch: Sequence[str]) -> StructType:
    if batch:
        chosen = [file for file in source.roots.list() if file_name(file.path) in set(batch)]
    else:
        chosen = _files_since(source, where)
    bad = source.quarantined
    chosen = [file for file in chosen if file_name(file.path) not in bad]
    return infer(source.spark, source.options, sample(source.spark, chosen))


def _unreadable(text: str, source: OpenedFiles, flow: Flow) -> FlowError | None:
    files = (file_name_of_uri(failure.group(2)) for failure in _UNREADABLE.finditer(text))
    name = next(filter(source.roots.includes, files), None)
    if name is None or not source.options.quarantine_corrupt or not _BROKEN_CONTENT.search(text):
        return None
    # Read again: a closed connection causes the same error. And other files of the delivery may
    # also be corrupt: one restart for all of them.
    known = source.quarantined - {name}
    since = [f for f in _files_since(source, name) if file_name(f.path) not in known]
    broken = _broken_among(source, since[:_MOST_PROBED])
    if name not in dict(broken):
        return None
    return _set_aside(source, broken, flow)


def _unfit(text: str, source: OpenedFiles, flow: Flow) -> FlowError | None:
    message = _message(text, _UNFIT, source.key)
    if message is None:
        return None
    broken = [(str(entry["file"]), str(entry["reason"])) for entry in message["unfit"]]
    return _set_aside(source, broken, flow)


def _set_aside(
    source: OpenedFiles, broken: Sequence[tuple[str, str]], flow: Flow
) -> FlowError | None:
    entries = source.state.note(QUARANTINED) or []
    known = {entry["file"] for entry in entries}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    new = [{"file": file, "reason": why, "time": now} for file, why in broken if file not in known]
    if not new:
        return None
    source.state.save_note(QUARANTINED, [*entries, *new])
    more = f" and {len(new) - 1} more" if len(new) > 1 else ""
    return flow_error(
        "FILES_QUARANTINED",
        flow,
        f"{new[0]['file']}{more} cannot be read and was set aside: {new[0]['reason']}",
        retryable=True,
        hint="deliver it under another name, intact and with the types of the schema",
    )


def _files_since(source: OpenedFiles, name: str) -> list[FoundFile]:
    """A file, then those that did not change before it; all files if it no longer exists."""
    files = source.roots.list()
    named = [file for file in files if file_name(file.path) == name]
    since = named[0].modified if named else 0
    return [*named, *(f for f in files if f.modified >= since and f not in named)]


def _broken_among(source: OpenedFiles, files: list[FoundFile]) -> list[tuple[str, str]]:
    reader = source.spark.read.format("text").schema("value string")
    if source.options.format in COLUMNAR:
        reader = source.spark.read.format(source.options.format).schema(unmarked(source.schema))
    broken: list[tuple[str, str]] = []
    while files:
        try:
            paths = [readable(file.path) for file in files]
            reader.load(paths).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            text = f"{full_text(error)}\n{java_causes(error)}"
            match = _UNREADABLE.search(text)
            name = file_name_of_uri(match.group(2)) if match else ""
            left = [file for file in files if file_name(file.path) != name]
            if len(left) == len(files) or not _BROKEN_CONTENT.search(text):
                return broken
            broken.append((name, _cause(text)))
            files = left
        else:
            return broken
    return broken


def _malformed(text: str, source: OpenedFiles, flow: Flow) -> FlowError | None:
    match = _MALFORMED_FILE.search(text)
    if match is None or not source.roots.includes(file_name_of_uri(match.group(1))):
        return None
    return flow_error(
        "MALFORMED_RECORD",
        flow,
        f"{file_name_of_uri(match.group(1))} has a record that cannot be parsed: "
        f"{match.group(2)[:200]}",
        hint="option mode is FAILFAST: correct the file, or use PERMISSIVE to keep such records "
        "in the rescued data",
    )


def _cause(text: str) -> str:
    causes: list[str] = re.findall(r"Caused by: ([^\n]+)", text)
    reported = [cause for cause in causes if _BROKEN_CONTENT.search(cause)]
    return plain_cause((reported or causes or ["it cannot be read"])[-1].strip()[:300])
