"""Declarative streaming pipelines on any open-source Spark.

`import penstock as dp`; inside a pipeline, `import dlt` and `from pyspark import pipelines as dp`
provide the same functions. `run`, `dry_run`, `check` and `open_pipeline` are for programs and
notebooks. Errors are in `penstock.errors`.
"""

import typing as _typing

from penstock._api import surface as _surface
from penstock._api.surface import *  # noqa: F403 - all of its `__all__`

if _typing.TYPE_CHECKING:
    from penstock.pipelines import check, dry_run, open_pipeline, run

__version__ = "0.1.0"

__all__ = ["__version__", "check", "dry_run", "open_pipeline", "run"]
__all__ += _surface.__all__


def __getattr__(name: str) -> _typing.Any:
    """Import `penstock.pipelines` on first use: declarations do not need it."""
    if name in ("check", "dry_run", "open_pipeline", "run"):
        from penstock import pipelines

        return getattr(pipelines, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
