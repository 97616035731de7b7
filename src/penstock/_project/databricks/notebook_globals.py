"""The names that every notebook has without importing them; `display` has no effect here."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.dbutils import Dbutils
from penstock._project.databricks.dbutils_fs import MapPath


def notebook_globals(
    spark: Any, settings: PipelineSettings, *, map_path: MapPath = str
) -> dict[str, object]:
    """Return the globals of source files; `map_path` is for `dbutils.fs`."""
    dbutils = Dbutils(
        name=settings.name,
        root=Path(settings.root),
        configuration={**settings.configuration, **settings.parameters},
        map_path=map_path,
    )
    return {
        "spark": spark,
        "sc": spark.sparkContext,
        "sqlContext": spark,  # has the methods of SQLContext for queries
        "dbutils": dbutils,
        "display": display,
        "displayHTML": display,
        # Looked up when called: while query functions run, it reads the pipeline's datasets.
        "sql": lambda query, *arguments, **options: spark.sql(query, *arguments, **options),
        "getArgument": dbutils.widgets.getArgument,
    }


def display(*_objects: Any, **_options: Any) -> None:
    """Ignore the arguments; no query is started."""


@contextmanager
def displayable_frames() -> Iterator[None]:
    """Add `DataFrame.display` for the duration of the context."""
    # Looked up rather than imported: without Spark there are no DataFrames.
    frames: Any = getattr(sys.modules.get("pyspark.sql"), "DataFrame", None)
    if frames is None or "display" in vars(frames):
        yield
        return
    frames.display = display
    try:
        yield
    finally:
        del frames.display
