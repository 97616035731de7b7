"""The schema of files, from a sample of them."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock._formats.columnar_rows import distinct_schemas
from penstock._formats.csv_rows import headers, headers_of_whole_files, needs_whole_files
from penstock._formats.merging import one_spelling, rescue_fields, widest, without_void
from penstock._formats.options import COLUMNAR, FORMATS, FileOptions
from penstock._formats.rows import decoded
from penstock._formats.xml_rows import elements_sql, row_tag
from penstock._model.exception_text import first_line
from penstock._model.quantity import parse_bytes
from penstock._spark.failures import java_causes
from penstock.errors import ConnectorError
from penstock.sources.files.listing import FoundFile, file_name_of_uri, readable

FIXED = {
    "text": StructType().add("value", "string"),
    "binaryfile": StructType()
    .add("path", "string")
    .add("modificationTime", "timestamp")
    .add("length", "long")
    .add("content", "binary"),
}
"""The columns of formats that have no others."""

_CORRUPT = "__files_flaw"
_MOST_SPELLED = 10_000
_SAMPLE = "spark.databricks.cloudFiles.schemaInference.sampleSize."
_ENDINGS = {"ndjson": "json", "jsonl": "json", "tsv": "csv", "txt": "text", "pq": "parquet"}
_COMPRESSED = ("gz", "gzip", "bz2", "zst", "zstd", "lz4", "snappy", "deflate", "xz")


def sample(spark: SparkSession, files: Sequence[FoundFile]) -> list[FoundFile]:
    """The first files, up to a number and a size that session confs set."""
    most_files = int(str(spark.conf.get(_SAMPLE + "numFiles", "1000")))
    most_bytes = parse_bytes(str(spark.conf.get(_SAMPLE + "numBytes", "50gb")))
    chosen: list[FoundFile] = []
    total = 0
    for file in files:
        if file.size == 0:
            continue
        if len(chosen) >= most_files or (chosen and total + file.size > most_bytes):
            break
        chosen.append(file)
        total += file.size
    return chosen


def infer(spark: SparkSession, options: FileOptions, files: Sequence[FoundFile]) -> StructType:
    """The columns of some files, without hints and partition columns; empty if they show none."""
    if options.format in FIXED:
        return FIXED[options.format]
    paths = [readable(file.path) for file in files]
    if not paths:
        return StructType([])
    if options.format in COLUMNAR:
        schema = widest(distinct_schemas(spark, options, paths))
    elif options.format == "json":
        schema = _json(spark, options, paths)
    elif options.format == "csv":
        schema = _csv(spark, options, files)
    else:
        schema = _xml(spark, options, paths)
    schema = one_spelling(without_void(schema))
    if options.format in COLUMNAR:  # the other formats rescue values without a column
        return rescue_fields(schema, options.reserved)
    return StructType([f for f in schema.fields if f.name.lower() not in options.reserved])


def detect_format(files: Sequence[FoundFile]) -> str:
    """The format, according to the extensions of files."""
    known = {name.lower() for name in FORMATS} - {"binaryfile"}
    for file in files:
        parts = file.path.rsplit("/", 1)[-1].lower().split(".")[1:]
        while parts and parts[-1] in _COMPRESSED:
            parts.pop()
        ending = _ENDINGS.get(parts[-1], parts[-1]) if parts else ""
        if ending in known:
            return ending
    raise ConnectorError(
        "AUTOLOADER_OPTION_INVALID",
        "the format of the files is not known",
        hint='set the option: cloudFiles.format for Auto Loader, format => "json" for read_files',
    )


def why_unreadable(spark: SparkSession, options: FileOptions, path: str) -> str | None:
    """Why a file cannot be read; `None` if it can."""
    reader = spark.read.format(options.format if options.format in COLUMNAR else "text")
    try:
        reader.load(readable(path)).write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        causes: list[str] = re.findall(r"Caused by: ([^\n]+)", java_causes(error))
        return plain_cause(causes[-1] if causes else first_line(error))
    return None


def plain_cause(cause: str) -> str:
    """The meaning of a cause that Java reports."""
    if "URISyntaxException" in cause:  # of the checksum file next to a local file
        return "the name of a local file cannot have a colon"
    return "the file is truncated" if "NullPointerException" in cause else cause


def _json(spark: SparkSession, options: FileOptions, paths: list[str]) -> StructType:
    texts = decoded(_texts(spark, paths, whole=options.whole_files), options, whole=True)
    lines = texts.select(F.explode(F.split("value", "\r\n|\n|\r")).alias("value"))
    texts = lines if options.whole_files and not options.multiline else texts.select("value")
    decided = ("encoding", "charset", "linesep", "multiline")
    reader_options = {k: v for k, v in _readable(options).items() if k.lower() not in decided}
    reader = spark.read.options(**reader_options)
    reader = reader.option("primitivesAsString", str(not options.infer_types).lower())
    # From strings: in files, Spark refuses names that differ only in case.
    return _common_spelling(_inferred(reader, "json", texts), lines)


def _common_spelling(schema: StructType, lines: DataFrame) -> StructType:
    """The schema with the most used spelling of each name, where records have several."""
    keys = F.explode(F.expr("coalesce(json_object_keys(value), array())")).alias("key")
    counts = lines.limit(_MOST_SPELLED).select(keys).groupBy("key").count()
    used = {row["key"]: row["count"] for row in counts.collect()}
    best: dict[str, str] = {}
    for key in sorted(used, key=lambda key: used[key]):
        best[key.lower()] = key
    fields = {best.get(f.name.lower(), f.name): f for f in reversed(schema.fields)}
    spelled = [StructField(name, field.dataType, True) for name, field in fields.items()]
    return StructType(sorted(spelled, key=lambda field: field.name))


def _csv(spark: SparkSession, options: FileOptions, files: Sequence[FoundFile]) -> StructType:
    reader = spark.read.option("ignoreCorruptFiles", "true").options(**_readable(options))
    reader = reader.option("columnNameOfCorruptRecord", _CORRUPT)
    reader = reader.option("inferSchema", str(options.infer_types).lower())
    if not options.parser_flag("header"):
        return widest([reader.csv([readable(file.path) for file in files]).schema])
    by_header: dict[tuple[str, ...], list[str]] = {}
    for names, path in _headers(spark, options, files):
        if names:
            by_header.setdefault(tuple(names), []).append(readable(path))
    groups = []
    for names, group in by_header.items():
        types: list[DataType] = [StringType()] * len(names)
        if options.infer_types:
            types = [field.dataType for field in reader.csv(group).schema]
        by_position = zip(names, types, strict=False)
        groups.append(StructType([StructField(n, kind, True) for n, kind in by_position]))
    return widest(groups)


def _headers(
    spark: SparkSession, options: FileOptions, files: Sequence[FoundFile]
) -> Iterable[tuple[Sequence[str] | None, str]]:
    """The column names in each file's header, with its path."""
    paths = [file.path for file in files]
    if not needs_whole_files(spark, options):
        return zip(headers(spark, options, paths), paths, strict=True)
    raw = _texts(spark, [readable(path) for path in paths], whole=True)
    df = headers_of_whole_files(raw, options).selectExpr("names", "_metadata.file_path AS path")
    return [(row["names"], file_name_of_uri(row["path"])) for row in df.collect()]


def _xml(spark: SparkSession, options: FileOptions, paths: list[str]) -> StructType:
    # From strings: in files, Spark ignores the encoding.
    texts = decoded(_texts(spark, paths, whole=True), options, whole=True)
    texts = texts.selectExpr(f"{elements_sql(row_tag(options))} AS value")
    reader = spark.read.options(**_readable(options)).option("rowTag", row_tag(options))
    reader = reader.option("inferSchema", str(options.infer_types).lower())
    return _inferred(reader, "xml", texts)


def _inferred(reader: DataFrameReader, file_format: str, texts: DataFrame) -> StructType:
    """The columns that Spark infers from records."""
    java: Any = reader.option("columnNameOfCorruptRecord", _CORRUPT)._jreader
    jvm: Any = texts.sparkSession._jvm
    strings = getattr(texts._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
    schema = getattr(java, file_format)(strings).schema()
    inferred = StructType.fromJson(json.loads(schema.json()))
    return StructType([field for field in inferred.fields if field.name != _CORRUPT])


def _texts(spark: SparkSession, paths: Sequence[str], *, whole: bool) -> DataFrame:
    reader = spark.read.option("ignoreCorruptFiles", "true")
    return reader.text(list(paths), wholetext=whole)


def _readable(options: FileOptions) -> dict[str, str]:
    left_out = ("mode", "columnnameofcorruptrecord", "inferschema")
    return {key: value for key, value in options.parse.items() if key.lower() not in left_out}
