"""The names that every notebook has without importing them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.dbutils import Dbutils
from penstock._project.databricks.dbutils_fs import MapPath
from penstock._project.databricks.display import display, display_html


def notebook_globals(
    spark: Any, settings: PipelineSettings, *, map_path: MapPath = str
) -> dict[str, object]:
    """Return the globals that source files find.

    Args:
        spark: The session.
        settings: Of the pipeline.
        map_path: Where paths of Databricks are on this machine, for `dbutils.fs`.
    """
    dbutils = Dbutils(
        name=settings.name,
        root=Path(settings.root),
        configuration={**settings.configuration, **settings.parameters},
        map_path=map_path,
    )
    return {
        "spark": spark,
        "sc": spark.sparkContext,
        "sqlContext": spark,  # has all that the SQLContext of old had for queries
        "dbutils": dbutils,
        "display": display,
        "displayHTML": display_html,
        "sql": _late_sql(spark),
        "getArgument": dbutils.widgets.getArgument,
    }


def _late_sql(spark: Any) -> Callable[..., Any]:
    def sql(query: str, *arguments: Any, **parameters: Any) -> Any:
        # Looked up when called: while query functions run, it reads the pipeline's datasets.
        return spark.sql(query, *arguments, **parameters)

    return sql
