"""Payloads that are decoded in Python workers: Avro, Protobuf, and schemas of a registry.

One function over Arrow batches returns a struct of the record and the reason why there is none. As
for every Python UDF, Penstock and the package of the format must be installed on the workers.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from penstock._model.sql_text import quoted
from penstock.parsing.avro import PayloadError, decode_avro, require_fastavro, struct_of_avro
from penstock.parsing.fit import MisfitError, compile_fit
from penstock.parsing.outcome import require_column, spread
from penstock.parsing.protobuf import (
    decode_protobuf,
    message_class,
    require_protobuf,
    struct_of_message,
)
from penstock.parsing.schema import to_struct
from penstock.parsing.schema_errors import read_schema_file, schema_file

Decode = Callable[[bytes], Any]

_DECODED = "__penstock_decoded"


def parse_avro(
    df: DataFrame,
    column: str = "value",
    *,
    avro_schema: str | Path,
    schema: StructType | str | None = None,
    into: str | None = None,
) -> DataFrame:
    """Parse a column of binary Avro records into columns.

    The result is that of `parse_json`. A row has an error if its payload is NULL, ends too early,
    has bytes left over, or holds a value that its column cannot take. Its columns are then NULL.

    Args:
        df: Streaming or batch DataFrame.
        column: BINARY; plain Avro, without the header of a registry or of a file.
        avro_schema: Schema that the payloads were written with: a string, or the `Path` of a file.
        schema: Columns to return instead of those of the Avro schema: struct or DDL. Fields are
            matched by name.
        into: Name of a struct that holds the columns together; separate columns by default.

    Raises:
        MissingExtraError: fastavro is not installed.
        DefinitionError: `PAYLOAD_COLUMN_INVALID`, `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`.
    """
    require_fastavro()
    text = read_schema_file(avro_schema) if isinstance(avro_schema, Path) else avro_schema
    struct = struct_of_avro(text) if schema is None else to_struct(schema)
    return decoded(df, column, struct, lambda payload: decode_avro(not_empty(payload), text), into)


def parse_protobuf(
    df: DataFrame,
    column: str = "value",
    *,
    descriptor: bytes | Path,
    message: str,
    schema: StructType | str | None = None,
    into: str | None = None,
) -> DataFrame:
    """Parse a column of Protobuf messages into columns.

    The result is that of `parse_json`. A row has an error if its payload is NULL or cut short,
    consists of unknown fields only, or holds a value that its column cannot take. Its columns are
    then NULL. Enums become their names, `google.protobuf.Timestamp` a TIMESTAMP.

    Args:
        df: Streaming or batch DataFrame.
        column: BINARY; a message without the header of a registry.
        descriptor: Output of `protoc --include_imports --descriptor_set_out=FILE`, or the `Path` of
            the file.
        message: Full name, such as `shop.Order`.
        schema: Columns to return instead of those of the message: struct or DDL.
        into: Name of a struct that holds the columns together; separate columns by default.

    Raises:
        MissingExtraError: protobuf is not installed.
        DefinitionError: `PAYLOAD_COLUMN_INVALID`, `PAYLOAD_SCHEMA_INVALID`, `PARSED_COLUMN_EXISTS`.
    """
    require_protobuf()
    if isinstance(descriptor, Path):
        with schema_file(descriptor):
            files = descriptor.read_bytes()
    else:
        files = descriptor
    message_class(files, message)  # refuses a wrong name or descriptor
    struct = struct_of_message(files, message) if schema is None else to_struct(schema)
    return decoded(
        df, column, struct, lambda payload: decode_protobuf(payload, files, message), into
    )


def not_empty(payload: bytes) -> bytes:
    """Return the payload unless it is empty, which is valid only for Protobuf (all defaults)."""
    if not payload:
        raise PayloadError("the payload is empty")
    return payload


def decoded(
    df: DataFrame, column: str, struct: StructType, decode: Decode, into: str | None
) -> DataFrame:
    """Replace a payload with the columns of the record that `decode` returns.

    A `PayloadError` of `decode` is the error of one row; any other exception fails the query.
    """
    name = require_column(df, column)
    prepared, record, error = with_decoded(df, name, struct, decode)
    return spread(prepared, name, schema=struct, parsed=record, error=error, into=into)


def with_decoded(
    df: DataFrame, name: str, struct: StructType, decode: Decode, *, once: bool = False
) -> tuple[DataFrame, Column, Column]:
    """Add a decoded column; also returns the columns of the record and the error of each row.

    `once` prevents Spark from pushing a filter on the result down, and decoding again for it.
    """
    compile_fit(struct)  # refuses unsupported types
    payload = F.col(quoted(name)).cast("binary")
    udf = decoder(struct, decode)
    udf = udf.asNondeterministic() if once else udf
    prepared = df.withColumn(_DECODED, udf(payload))
    result = F.col(_DECODED)
    return prepared, result.getField("record"), result.getField("error")


def decoder(struct: StructType, decode: Decode) -> Any:
    """The UDF over Arrow batches; it returns `STRUCT<record, error STRING>`."""
    import pyarrow as pa

    result = StructType(
        [StructField("record", _nullable(struct)), StructField("error", StringType())]
    )

    def decode_batch(payloads: pa.Array) -> pa.Array:
        return _decode_all(payloads.to_pylist(), struct, decode)

    make: Any = arrow_udf  # its overloads require a kind, which the type hints determine
    return make(decode_batch, returnType=result)


def _decode_all(payloads: Iterable[bytes | None], struct: StructType, decode: Decode) -> Any:
    """Decode a batch of payloads, in a Python worker."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    fit = compile_fit(struct)
    records: list[Any] = []
    errors: list[str | None] = []
    for payload in payloads:
        record, error = None, None
        if payload is None:
            error = "the payload is NULL"
        else:
            try:
                value = decode(payload)
                if value is None:
                    error = "the payload is null"
                else:
                    record = fit(value)
            except MisfitError as misfit:
                error = f"values do not fit: {misfit}"
            except PayloadError as problem:
                error = str(problem)
            except ArithmeticError:  # a time or a decimal that Python cannot represent
                error = "values do not fit: a number or a time is out of range"
            except RecursionError:
                error = "the payload is nested too deeply"
        records.append(record)
        errors.append(error)
    arrow_type = to_arrow_type(_nullable(struct), timezone="UTC")
    return pa.StructArray.from_arrays(
        [pa.array(records, type=arrow_type), pa.array(errors, type=pa.string())],
        names=["record", "error"],
    )


def _nullable(struct: StructType) -> StructType:
    """The struct with nullable columns: rows with an error have no values."""
    return StructType([StructField(f.name, f.dataType, True) for f in struct])
