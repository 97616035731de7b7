"""Tables of Spark's in-memory catalog, which is empty when a job starts."""

from pyspark.sql import SparkSession

from penstock._tables.files import StorageFiles
from penstock._tables.metastore import create_entry

_SCHEMA = ".db"


def register_tables(spark: SparkSession) -> None:
    """Register the Delta tables in the warehouse, unless a metastore stores them."""
    if spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        return
    files, warehouse = StorageFiles(spark), str(spark.conf.get("spark.sql.warehouse.dir"))
    schemas = {"default": warehouse}
    for name in files.names(warehouse):
        if name.endswith(_SCHEMA):
            schemas[name.removesuffix(_SCHEMA)] = f"{warehouse}/{name}"
    # A killed program may have left a table without its first commit: the query creates it.
    for schema, folder in schemas.items():
        for table in files.names(folder):
            place = f"{folder}/{table}"
            if any(name.endswith(".json") for name in files.names(f"{place}/_delta_log")):
                create_entry(spark, schema, table, place)
