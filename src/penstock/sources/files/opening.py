"""Opens files as a DataFrame, with a schema that is inferred once and then kept."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._formats.columnar_rows import avro_missing, columnar_rows, distinct_schemas, misfits
from penstock._formats.csv_rows import csv_rows, needs_whole_files
from penstock._formats.json_rows import json_rows
from penstock._formats.merging import (
    add_fields,
    apply_hints,
    parse_schema,
    unmarked,
    widest,
    without_void,
)
from penstock._formats.options import COLUMNAR, Evolution, FileOptions, file_options
from penstock._formats.rows import finished, text_sql
from penstock._formats.widening import keep_wider
from penstock._formats.xml_rows import xml_rows
from penstock._model.quantity import plural
from penstock._model.sql_text import quoted
from penstock.errors import ConnectorError, DefinitionError
from penstock.sources.base import Read
from penstock.sources.files.announced import FOLDER, AnnouncedFiles
from penstock.sources.files.discovery import Discovery, choose_discovery
from penstock.sources.files.inference import FIXED, detect_format, infer, sample, why_unreadable
from penstock.sources.files.listing import (
    FileRoots,
    FoundFile,
    check_destination,
    file_name,
    in_range,
    readable,
    without_files,
)
from penstock.sources.files.partitions import partition_schema, split_schema, with_partitions
from penstock.sources.memory import SourceMemory

QUARANTINED = "quarantined_files"
EXISTING = "existing_files"
LISTED = "listed_at"
LISTED_KEYS = "listed_keys"
"""Where the next listing by key starts; valid only for the flow's own checkpoint."""
_PARTITIONS = "partition_columns"
_SPARKS_CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class OpenedFiles:
    """One source of files that a query reads, with what `recovery` needs.

    The schema is without partition columns, and may have fields that are marked as rescued;
    `columns` are those of the user's own schema, and `names` is a file name pattern for a range;
    if `is_stream` is false, it is read as a batch.
    """

    spark: SparkSession
    key: str
    options: FileOptions
    roots: FileRoots
    schema: StructType
    partitions: StructType
    columns: tuple[str, ...]
    state: SourceMemory
    discovery: Discovery = Discovery.SPARK
    names: str | None = None
    is_stream: bool = True

    @property
    def announced(self) -> str | None:
        """The folder of the log that the stream reads instead of the roots."""
        return None if self.discovery is Discovery.SPARK else f"{self.state.folder}/{FOLDER}"

    @property
    def all_fields(self) -> StructType:
        """The schema with the partition columns."""
        return StructType([*self.schema.fields, *self.partitions.fields])

    @property
    def quarantined(self) -> set[str]:
        """Names of files that were set aside."""
        return {entry["file"] for entry in self.state.note(QUARANTINED) or ()}

    @property
    def existing(self) -> list[str]:
        """Names of files that existed before the first start and are never read."""
        names: list[str] = self.state.note(EXISTING) or []
        return names

    @property
    def skips_existing(self) -> bool:
        """Whether files that existed before the first start are not announced."""
        is_incremental = self.discovery in (Discovery.NAMES, Discovery.KEYS)
        return is_incremental and not self.options.allow_overwrites

    @property
    def shows_columns_by_file(self) -> bool:
        """Whether new columns must be found by comparing files, because rows do not show them."""
        wanted = self.options.evolution is not Evolution.NONE or self.options.rescued is not None
        return self.options.format in COLUMNAR and wanted

    @property
    def compares_files(self) -> bool:
        """Whether the schemas of files are compared before the files are read."""
        return self.shows_columns_by_file or self.options.format == "orc"


def source_key(paths: Sequence[str], options: Mapping[str, str]) -> str:
    """A name for a source that stays the same as long as it reads the same folder and format."""
    formats = [v for k, v in options.items() if k.lower().removeprefix("cloudfiles.") == "format"]
    text = json.dumps([sorted(paths), [name.lower() for name in formats]])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_source(read: Read) -> OpenedFiles:
    """Files as Auto Loader reads them; a schema is inferred only if the memory has none."""
    schema, streaming = read.schema, read.is_stream
    whole = [name for key, name in read.options.items() if key.lower() == "singlevariantcolumn"]
    if schema is None and whole:
        schema = f"{quoted(whole[0])} VARIANT"
    chosen = file_options(read.options, has_schema=schema is not None, streaming=streaming)
    roots = FileRoots(read.spark, read.paths, chosen)
    check_destination(chosen, roots)
    files = _Files(read.spark, roots)
    if not chosen.format:
        # Defaults depend on the format, such as `header` of CSV.
        known = {**read.options, "format": detect_format(files.all)}
        chosen = file_options(known, has_schema=schema is not None, streaming=streaming)
    if whole and chosen.format == "csv" and chosen.parser_flag("header"):
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            "singleVariantColumn cannot be combined with header",
            hint="remove one of the two",
        )
    key = source_key(read.paths, read.options)
    state = read.memory(key)
    declared = parse_schema(schema)
    if declared is None:
        data, partitions = _learned(files, chosen, state, streaming=streaming)
    else:
        data, partitions, chosen = _given(declared, files, chosen, state)
    discovery = choose_discovery(read.spark, chosen, roots) if streaming else Discovery.SPARK
    if state.folder is None:
        discovery = Discovery.SPARK
    elif streaming and discovery is not Discovery.QUEUE and state.note(LISTED) is not None:
        state.save_note(LISTED, None)  # the next start with notifications begins with a listing
    opened = OpenedFiles(
        spark=read.spark,
        key=key,
        options=chosen,
        roots=roots,
        schema=data,
        partitions=partitions,
        columns=() if declared is None else tuple(declared.fieldNames()),
        state=state,
        discovery=discovery,
        names=read.position.get("files"),
        is_stream=streaming,
    )
    if opened.announced is not None:
        AnnouncedFiles(read.spark, opened.announced).create()
    decides = streaming and not chosen.include_existing and not read.is_analysis
    if decides and state.note(EXISTING) is None:
        # Without the name filter: another stream of the query, or a later filter, may match.
        existing = files.all
        if "pathGlobFilter" in chosen.source:
            existing = FileRoots(read.spark, read.paths, replace(chosen, source={})).list()
        state.save_note(EXISTING, [file_name(file.path) for file in existing])
    if not streaming and opened.compares_files:
        opened = _compared(opened, files)
    return opened


def keep_existing(source: OpenedFiles) -> None:
    """Fix which files existed before the first start: a later change has no effect."""
    if source.state.note(EXISTING) is None:
        source.state.save_note(EXISTING, [])


def read_source(source: OpenedFiles) -> DataFrame:
    """The rows, as a batch or as a stream."""
    df = _rows(source)
    if not source.columns:
        return df
    wanted = [column for column in source.columns if column in df.columns]
    extra = [column for column in df.columns if column not in wanted]
    return df.select(*(quoted(column) for column in (*wanted, *extra)))


def _compared(opened: OpenedFiles, files: "_Files") -> OpenedFiles:
    """For a batch read: extra columns are rescued, files with other types are quarantined."""
    options = opened.options
    if options.format != "orc" and not options.rescued:
        return opened
    entries = opened.state.note(QUARANTINED) or []
    bad = {entry["file"] for entry in entries}
    names = {readable(f.path): name for f in files.all if (name := file_name(f.path)) not in bad}
    schemas = distinct_schemas(opened.spark, options, list(names))
    unfit = misfits(opened.spark, options, opened.schema, list(names), schemas)
    if unfit:
        entries += [{"file": names.pop(path), "reason": why} for path, why in unfit.items()]
        opened.state.save_note(QUARANTINED, entries)
        schemas = distinct_schemas(opened.spark, options, list(names))
    if not options.rescued:
        return opened
    seen = widest(schemas)
    taken = {name.lower() for name in opened.partitions.fieldNames()}
    besides = StructType([f for f in seen.fields if f.name.lower() not in taken])
    return replace(opened, schema=add_fields(opened.schema, without_void(besides), rescued=True)[0])


@dataclass
class _Files:
    spark: SparkSession
    roots: FileRoots

    @cached_property
    def all(self) -> list[FoundFile]:
        """All files, the oldest first."""
        return self.roots.list()

    @cached_property
    def sample(self) -> list[FoundFile]:
        """The files from which a schema is inferred."""
        return sample(self.spark, self.all)


def _learned(
    files: _Files, options: FileOptions, state: SourceMemory, *, streaming: bool
) -> tuple[StructType, StructType]:
    versions = state.load() if streaming else []
    if versions:
        names = state.note(_PARTITIONS) or []
        known = versions[-1]
        # A hint for a struct must not remove fields that were added to it since.
        hinted = add_fields(_hinted(known, options), known)[0] if options.hints else known
        if options.evolution is Evolution.WIDEN:
            hinted = keep_wider(hinted, known)
        if hinted != known:
            state.save(hinted)
        return split_schema(hinted, names)
    data = infer(files.spark, options, files.sample)
    partitions = partition_schema(files.sample or files.all, files.roots, options)
    names = [field.name for field in partitions.fields]
    folded = {name.lower() for name in names}
    kept = [field for field in data.fields if field.name.lower() not in folded]
    whole = _hinted(StructType([*kept, *partitions.fields]), options)
    if not [field for field in whole.fields if field.name not in names]:
        raise _nothing_found(files, options)
    if streaming:
        state.save_note(_PARTITIONS, names)
        state.save(whole)
    return split_schema(whole, names)


def _hinted(schema: StructType, options: FileOptions) -> StructType:
    if not options.hints:
        return schema
    hinted = apply_hints(schema, options.hints)
    own = FIXED.get(options.format, StructType())
    if own.fields and (len(hinted) > len(schema) or hinted.fields[: len(own)] != own.fields):
        raise ConnectorError(
            "SCHEMA_HINTS_INVALID",
            f"cloudFiles.schemaHints {options.hints!r} do not go with the format "
            f"{options.format}, whose columns are {', '.join(own.names)}",
            hint="set the types of partition columns only, which cloudFiles.partitionColumns lists",
        )
    return hinted


def _nothing_found(files: _Files, options: FileOptions) -> DefinitionError:
    where = ", ".join(files.roots.paths)
    if not files.roots.existing():
        what = f"the folder {where} does not exist"
    elif not files.sample:
        what = f"there are no files with rows in {where}"
        if unmatched := files.roots.unmatched():
            what = f"no file in {where} matches the pathGlobFilter {unmatched[0]!r}"
    else:
        what = f"there are no rows to infer it from in {plural(len(files.all), 'file')} of {where}"
        first = files.sample[0].path
        if reason := why_unreadable(files.spark, options, first):
            what += f", and {first} cannot be read: {reason}"
    return DefinitionError(
        "SCHEMA_NOT_INFERRED",
        f"no schema can be inferred: {what}",
        hint="add a first file, or declare its columns: "
        '.schema("id BIGINT, ...") or .option("cloudFiles.schemaHints", "id BIGINT, ...")',
    )


def _given(
    schema: StructType, files: _Files, options: FileOptions, state: SourceMemory
) -> tuple[StructType, StructType, FileOptions]:
    fields = {field.name.lower(): field for field in schema.fields}
    corrupt = options.corrupt or _SPARKS_CORRUPT
    options = replace(
        options, corrupt=fields[corrupt.lower()].name if corrupt.lower() in fields else None
    )
    names: Sequence[str] | None = options.partition_columns
    if names is None:
        names = state.note(_PARTITIONS)
    own = FIXED.get(options.format, StructType()).names
    if names is None and not fields.keys() <= {name.lower() for name in own}:
        seen = partition_schema(files.sample, files.roots, options)
        names = [f.name for f in seen.fields if f.name.lower() in fields]
        if files.all:
            state.save_note(_PARTITIONS, names)
    folded = [name.lower() for name in names or ()]
    partitions = [fields[name] for name in folded if name in fields]
    left_out = {*folded, *options.reserved}
    data = [field for field in schema.fields if field.name.lower() not in left_out]
    versions = state.load()
    if versions:
        # Additional fields of the files, for the rescued data.
        besides = [field for field in versions[-1].fields if field.name.lower() not in folded]
        marked, _ = add_fields(StructType(data), StructType(besides), rescued=True)
        return marked, StructType(partitions), options
    return StructType(data), StructType(partitions), options


def _rows(opened: OpenedFiles) -> DataFrame:
    options, schema = opened.options, opened.schema
    if options.format in FIXED:
        df = _raw(opened, options.format, schema)
        if options.format == "text":
            is_wide = options.whole_files and not options.multiline
            if is_wide and not options.parser_flag("wholetext"):
                raise ConnectorError(
                    "AUTOLOADER_OPTION_INVALID",
                    "text files in UTF-16 and UTF-32 cannot be read by lines",
                    hint="set the option wholetext to true: each file is one row",
                )
            df = df.withColumn("value", F.expr(text_sql(options)))
    elif options.format in COLUMNAR:
        raw = _raw(opened, options.format, schema)
        df = columnar_rows(raw, schema, options)
    else:
        df = _parsed_rows(opened)
        df = df.select(*(quoted(c) for c in df.columns if c not in opened.partitions.fieldNames()))
    if not opened.partitions.fields:
        return df
    return with_partitions(df, opened.partitions, options)


def _parsed_rows(opened: OpenedFiles) -> DataFrame:
    options = opened.options
    # A field that is also in the path is known, though its value is taken from the path.
    schema = opened.all_fields
    whole = options.whole_files
    if options.format == "csv":
        whole = needs_whole_files(opened.spark, options)
    elif options.format == "xml":
        whole = True
    raw = _raw(opened, "text", None, whole=whole)
    if options.format == "csv":
        schema = opened.schema
        df = csv_rows(raw, schema, options, opened.partitions.fieldNames())
    elif options.format == "xml":
        df = xml_rows(raw, schema, options)
    else:
        df = json_rows(raw, schema, options)
    return finished(df, schema, options, opened.key)


def _raw(
    opened: OpenedFiles, reader_format: str, schema: StructType | None, *, whole: bool = False
) -> DataFrame:
    options = opened.options
    reader_options = dict(options.source)
    if reader_format != "text":
        reader_options |= options.parse
    elif whole or (options.format == "text" and options.parser_flag("wholetext")):
        reader_options["wholetext"] = "true"
    elif separator := options.parser_option("lineSep"):
        reader_options["lineSep"] = separator
    reader: Any = opened.spark.readStream if opened.is_stream else opened.spark.read
    reader = reader.format(reader_format).options(**reader_options)
    if schema is not None:
        reader = reader.schema(unmarked(schema))
    try:
        if opened.is_stream:
            df: DataFrame = reader.load(opened.announced or opened.roots.stream_path())
        else:
            df = reader.load(opened.roots.existing() or list(opened.roots.paths))
    except Exception as error:
        if options.format == "avro" and "AVRO" in str(error).upper():
            raise avro_missing() from error
        raise
    for condition in _conditions(opened):
        df = df.filter(condition)
    return df


def _conditions(opened: OpenedFiles) -> Iterator[str]:
    options, left_out = opened.options, opened.quarantined
    # With incremental listing, existing files are left out before a batch is planned.
    if opened.is_stream and not opened.skips_existing:
        left_out |= set(opened.existing)
    if left_out:
        yield without_files(left_out)
    yield from in_range(opened.names, options.modified_after, options.modified_before)
