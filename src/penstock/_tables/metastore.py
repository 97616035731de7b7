"""Delta tables in the Hive metastore of the session, under their names.

The entries are for tools that read only the metastore; engines read columns and properties from the
table itself. An entry has a fingerprint of the description, so that an unchanged table takes only
two requests.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._model.sql_text import literal, quoted
from penstock._tables.files import local_path
from penstock._tables.jvm import iterate
from penstock._tables.layout import TableRef
from penstock._tables.write.schema import plain_schema
from penstock.errors import FlowError, PlanError, SetupError

_FINGERPRINT = "penstock.fingerprint"
_LONGEST_VALUE = 4000
"""Maximum size of a property in the databases of Hive's metastore."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A Delta table as the metastore describes it; schema and name in lower case."""

    schema: str
    name: str
    table: TableRef
    columns: StructType
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    flow: str = ""
    origin: SourceLocation | None = None

    def fingerprint(self) -> str:
        content = [self.columns.json(), self.comment, dict(self.properties)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class HiveMetastore:
    """Finds and registers tables; may be used on several threads."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def delta_location(self, schema: str, name: str) -> str | None:
        """Location of a Delta table; `None` if there is no Delta table of that name."""
        try:
            entry = self._find(schema.lower(), name.lower())
            return None if entry is None else _location(entry)
        except (Py4JError, PySparkException) as error:
            message, hint = _failure(f"{schema}.{name}", error)
            raise SetupError("METASTORE_FAILED", message, hint=hint) from error

    def register(self, wanted: Registration) -> bool:
        """Create or update the entry of a table; returns whether anything changed.

        Raises:
            PlanError: `CATALOG_TABLE_EXISTS`: The name is used by another table or view.
            FlowError: `METASTORE_FAILED`: The metastore refused the request or did not respond.
        """
        try:
            return self._register(wanted)
        except (Py4JError, PySparkException) as error:
            message, hint = _failure(f"{wanted.schema}.{wanted.name}", error)
            raise FlowError(
                "METASTORE_FAILED",
                message,
                flow=wanted.flow,
                retryable=True,
                origin=wanted.origin,
                hint=hint,
            ) from error

    def _register(self, wanted: Registration) -> bool:
        entry = self._find(wanted.schema, wanted.name)
        if entry is None:
            path = local_path(wanted.table.path) or wanted.table.path
            create_entry(self._spark, wanted.schema, wanted.name, str(path))
            # Another process may have created the entry concurrently.
            entry = self._find(wanted.schema, wanted.name)
        place = None if entry is None else _location(entry)
        if place is None or _plain(place) != _plain(wanted.table.path):
            _refuse(wanted, place)
        fingerprint = wanted.fingerprint()
        properties = {str(p._1()): str(p._2()) for p in iterate(entry.properties())}
        if properties.get(_FINGERPRINT) == fingerprint:
            return False
        jvm: Any = self._spark._jvm
        columns = plain_schema(wanted.columns).json()
        schema = jvm.org.apache.spark.sql.types.DataType.fromJson(columns)
        self._catalog.alterTableDataSchema(wanted.schema, wanted.name, schema)
        for key, value in wanted.properties.items():
            if not key.startswith("spark.sql.") and len(value) <= _LONGEST_VALUE:
                properties[key] = value
        properties[_FINGERPRINT] = fingerprint
        changes = {
            "properties": jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(properties),
            "comment": jvm.scala.Option.apply(wanted.comment),
        }
        # The fingerprint is written last: after a crash between the two calls, both are repeated.
        altered = self._find(wanted.schema, wanted.name)
        self._catalog.alterTable(_copied(jvm, altered, changes))
        return True

    @property
    def _catalog(self) -> Any:
        return self._spark._jsparkSession.sharedState().externalCatalog()

    def _find(self, schema: str, name: str) -> Any:
        catalog = self._catalog
        return catalog.getTable(schema, name) if catalog.tableExists(schema, name) else None


def create_entry(spark: SparkSession, schema: str, name: str, location: str) -> None:
    """Register a Delta table in Spark's catalog, unless the name is taken."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted('spark_catalog', schema)}")
    table = quoted("spark_catalog", schema, name)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {literal(location)}")


def _copied(jvm: Any, table: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a `CatalogTable` with some fields replaced."""
    values = []
    for at in range(table.productArity()):
        name = table.productElementName(at)
        values.append(changes[name] if name in changes else table.productElement(at))
    return jvm.org.apache.spark.sql.catalyst.catalog.CatalogTable(*values)


def _location(table: Any) -> str | None:
    """Location of a Delta table; `None` for a view or another format."""
    provider, place = table.provider(), table.storage().locationUri()
    is_delta = provider.isDefined() and provider.get().lower() == "delta"
    return str(place.get().toString()) if is_delta and place.isDefined() else None


def _plain(path: str) -> str:
    local = local_path(path)
    return path.rstrip("/") if local is None else str(local)


def _refuse(wanted: Registration, place: str | None) -> NoReturn:
    name = f"{wanted.schema}.{wanted.name}"
    what = "is a view or a table of another format" if place is None else f"is at {place}"
    raise PlanError(
        "CATALOG_TABLE_EXISTS",
        f"{wanted.table.name} is at {wanted.table.path}, but {name} in the metastore {what}",
        origin=wanted.origin,
        hint=f"use another `schema` or name; or, if the other one is not needed, DROP TABLE {name} "
        "in a session with that metastore",
    )


def _failure(name: str, error: Exception) -> tuple[str, str]:
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    reason = first_line(error) if cause is None else str(cause.toString()).partition("\n")[0]
    hint = "check `catalog.options`, and that the metastore runs"
    if "Another instance of Derby" in reason:
        hint = (
            "one process at a time can open the embedded metastore: wait for the other update, or "
            "set `hive.metastore.uris` in `catalog.options` to a metastore for several"
        )
    return f"the Hive metastore failed for {name}: {reason}", hint
