"""The declaration of a table, and its state in the Delta log."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.write.schema import (
    COLUMN_MAPPING,
    FORBIDDEN_IN_NAMES,
    GENERATED,
    IDENTITY_EXPLICIT,
    IDENTITY_START,
    IDENTITY_STEP,
    check_columns,
)
from penstock.errors import DefinitionError, PlanError

FEATURE = "delta.feature."
_METADATA = {  # metadata keys of Spark's parser, and the corresponding keys of Delta
    "GENERATION_EXPRESSION": GENERATED,
    "identity.start": IDENTITY_START,
    "identity.step": IDENTITY_STEP,
    "identity.allowExplicitInsert": IDENTITY_EXPLICIT,
}
OWNER = "penstock.pipeline"
"""Table property: the pipeline that writes a table in a storage that several pipelines share."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The declaration of a table.

    With a `declared` schema, its nullability, generated columns and comments apply; a query's
    columns are all nullable. With `widen`, columns that are too narrow are widened in place; the
    property `delta.enableTypeWidening`, declared or of the table, takes precedence, and `None`
    forbids widening in any case.
    """

    schema: StructType
    declared: bool = False
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None  # None keeps the existing one
    properties: Mapping[str, str] = field(default_factory=dict)  # others of the table are kept
    replace_schema: bool = False  # the next write replaces all rows and an incompatible schema
    widen: bool | None = False
    cast: bool = False  # rows are cast if no value changes, so narrower columns fit
    origin: SourceLocation | None = None
    owner: str | None = None  # the pipeline, in a storage that several pipelines share
    keys: tuple[str, ...] = ()  # columns by which flows find the rows that they replace

    def clustering(self) -> list[list[str]]:
        """The parts of the names in `cluster_by`: a dot may also be part of a column's name."""
        names = {column.name.lower() for column in self.schema}
        return [[n] if n.lower() in names else n.split(".") for n in self.cluster_by]


@dataclass(frozen=True, kw_only=True)
class TableState:
    """The newest version of a table; `id` changes when the table is dropped and recreated."""

    id: str
    version: int
    schema: StructType
    partition_columns: tuple[str, ...]
    cluster_by: tuple[str, ...]
    properties: Mapping[str, str]
    comment: str | None


def parse_schema(
    spark: SparkSession, schema: str | StructType, *, origin: SourceLocation | None = None
) -> StructType:
    """A declared schema; DDL may have NOT NULL, COMMENT and GENERATED ... AS."""
    if isinstance(schema, StructType):
        return schema
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    try:
        plan = parser.parsePlan(f"CREATE TABLE t (\n{schema}\n) USING delta")
    except Exception as error:
        if not isinstance(error, ParseException) and "Py4J" not in type(error).__name__:
            raise
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"the schema is not valid DDL: {first_line(error)}",
            origin=origin,
            hint="write `name TYPE [NOT NULL] [COMMENT 'text']`, separated by commas",
        ) from error
    jvm: Any = spark._jvm
    strings = jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils
    # For CHAR and VARCHAR, Delta stores STRING, and the declared type in the column's metadata.
    stored = strings.replaceCharVarcharWithStringInSchema(plan.tableSchema())
    columns = StructType.fromJson(json.loads(stored.json()))
    return StructType([_column(column, origin) for column in columns])


def table_state(spark: SparkSession, path: str) -> TableState | None:
    delta = DeltaJvm(spark)
    snapshot = delta.snapshot(path)
    return state_of(delta, snapshot) if snapshot.version() >= 0 else None


def read_version(spark: SparkSession, path: str) -> int | None:
    version = DeltaJvm(spark).version(path)
    return version if version >= 0 else None


def state_of(delta: DeltaJvm, snapshot: Any) -> TableState:
    metadata = delta.metadata(snapshot)
    return TableState(
        id=metadata.id,
        version=int(snapshot.version()),
        schema=metadata.schema,
        partition_columns=metadata.partition_columns,
        cluster_by=delta.clustering_columns(snapshot),
        properties=metadata.configuration,
        comment=metadata.comment,
    )


def check_properties(
    spark: SparkSession, properties: Mapping[str, str], *, name: str, origin: SourceLocation | None
) -> dict[str, str]:
    """Table properties with `delta.*` keys in Delta's own spelling."""
    declared = {str(key): str(value) for key, value in properties.items()}
    if not any(key.lower().startswith("delta.") for key in declared):
        return declared
    delta = DeltaJvm(spark)
    for key in declared:
        feature = key.lower().removeprefix(FEATURE)
        if key.lower().startswith(FEATURE) and not delta.has_feature(feature):
            raise PlanError(
                "TABLE_PROPERTY_INVALID",
                f"{key} of {name} is not supported: open-source Delta Lake does not have this "
                "table feature, or it requires catalog-managed commits; tables are written by path",
                origin=origin,
                hint="remove it",
            )
    try:
        # Together, because Delta compares the retention of the log with that of deleted files.
        return delta.validated_properties(declared)
    except Exception as error:
        text = first_line(error)
        wrong = [key for key, value in declared.items() if _refusal(delta, key, value) == text]
        raise PlanError(
            "TABLE_PROPERTY_INVALID",
            f"a table property of {name} is refused by Delta: {': '.join([*wrong[:1], text])}",
            origin=origin,
            hint="correct or remove it",
        ) from error


def _refusal(delta: DeltaJvm, key: str, value: str) -> str | None:
    """Delta's error message for a single property; `None` if the property is valid."""
    try:
        delta.validated_properties({key: value})
    except Exception as error:
        return first_line(error)
    return None


def check_spec(table: str, spec: TableSpec) -> None:
    """Refuse a declaration that is invalid for new and existing tables."""
    check_columns(spec.schema, table)
    names = {column.name.lower() for column in spec.schema}
    for column in (*spec.partition_cols, *spec.cluster_by):
        # Only clustering columns may be nested fields.
        top = column if spec.partition_cols else column.split(".")[0]
        if not {column.lower(), top.lower()} & names:
            raise PlanError(
                "PARTITION_COLUMN_UNKNOWN",
                f"{table} has no column {column!r} to partition or cluster by",
                origin=spec.origin,
                hint=f"columns: {', '.join(column.name for column in spec.schema)}",
            )
    if spec.properties.get(COLUMN_MAPPING, "none") == "none":
        for name in (column.name for column in spec.schema):
            if FORBIDDEN_IN_NAMES.search(name):
                raise PlanError(
                    "COLUMN_NAME_INVALID",
                    f"column {name!r} of {table} has a character that is not allowed in "
                    "column names",
                    origin=spec.origin,
                    hint=f"rename it with alias(), or set {COLUMN_MAPPING} to name",
                )


def _column(column: StructField, origin: SourceLocation | None) -> StructField:
    """A parsed column with Delta's metadata keys instead of the parser's."""
    metadata = {_METADATA.get(key, key): value for key, value in (column.metadata or {}).items()}
    if "CURRENT_DEFAULT" in metadata:
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"column {column.name!r}: DEFAULT has no effect, as only flows write the table",
            origin=origin,
            hint="compute the value in the query, or use GENERATED ALWAYS AS (expression)",
        )
    if IDENTITY_START in metadata and not isinstance(column.dataType, LongType):
        raise DefinitionError(
            "SCHEMA_INVALID",
            f"column {column.name!r}: an identity column is BIGINT, not "
            + column.dataType.simpleString().upper(),
            origin=origin,
            hint=f"write `{column.name} BIGINT GENERATED ALWAYS AS IDENTITY`",
        )
    return StructField(column.name, column.dataType, column.nullable, metadata)
