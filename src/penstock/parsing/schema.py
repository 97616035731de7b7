"""Schemas of payloads, from a struct, DDL, a file, or a sample."""

import json
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock._model.exception_text import first_line
from penstock.errors import DefinitionError
from penstock.parsing.schema_errors import read_schema_file, schema_invalid

_AVRO_FILES = (".avsc", ".avro.json")


def to_struct(schema: StructType | str) -> StructType:
    """Parse a user's schema: a struct, DDL, or Spark's JSON format of schemas."""
    if isinstance(schema, StructType):
        struct = schema
    elif schema.lstrip().startswith("{"):
        struct = _from_json(schema, "the schema")
    else:
        try:
            parsed = StructType.fromDDL(schema)
        except PySparkException as error:
            raise _invalid("the schema", first_line(error)) from error
        if not isinstance(parsed, StructType):
            raise _invalid("the schema", "it is a type, not a list of columns")
        struct = parsed
    if not struct.fields:
        raise _invalid("the schema", "it has no fields")
    return struct


def schema_from_file(path: str | Path) -> StructType:
    """Read a schema from a file.

    Args:
        path: A file with an Avro schema (`.avsc`), the output of `df.schema.json()` (`.json`), or
            DDL (other names), which may have several lines and `--` comments. Relative to the
            project's root.

    Raises:
        DefinitionError: `PAYLOAD_SCHEMA_INVALID`: it cannot be read, or is not a schema.
    """
    file = Path(path)
    text = read_schema_file(file)
    if file.name.endswith(_AVRO_FILES):
        from penstock.parsing.avro import struct_of_avro

        return struct_of_avro(text)
    if file.suffix == ".json":
        return _from_json(text, str(path))
    lines = (line.split("--")[0] for line in text.split("\n"))
    return to_struct("\n".join(lines).strip())


def schema_from_sample(sample: str | Sequence[str] | Path) -> StructType:
    """The schema of JSON documents, inferred as Spark's JSON reader does.

    A pipeline whose schema is inferred changes with its sample: keep the sample under version
    control. Integers become BIGINT, fractions DOUBLE, times stay STRING.

    Args:
        sample: One or more documents, or the `Path` of a file with one document per line.

    Raises:
        DefinitionError: `PAYLOAD_SCHEMA_INVALID`: there are no documents, or not all are JSON
            objects.
    """
    if isinstance(sample, Path):
        documents = [line for line in read_schema_file(sample).split("\n") if line.strip()]
    else:
        documents = [sample] if isinstance(sample, str) else list(sample)
    for number, document in enumerate(documents, start=1):
        try:
            value = json.loads(document)
        except ValueError as error:
            raise _invalid("the sample", f"document {number} is not JSON: {error}") from error
        if not isinstance(value, dict) or not value:
            raise _invalid("the sample", f"document {number} is not a JSON object with fields")
    if not documents:
        raise _invalid("the sample", "it has no documents")
    spark = SparkSession.active()
    rows = spark.createDataFrame([(document,) for document in documents], "value STRING")
    return spark.read.json(rows).schema


def _from_json(text: str, what: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        raise _invalid(what, "it is not what `df.schema.json()` gives") from error


def _invalid(what: str, reason: str) -> DefinitionError:
    return schema_invalid(
        f"no schema can be read from {what}: {reason}",
        'DDL is `"id BIGINT NOT NULL, at TIMESTAMP"`',
    )
