"""Analysis of a pipeline on a machine that may not have its data."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock._analysis.analysis import Analysis
from penstock._analysis.assumptions import AssumedSource
from penstock._analysis.cdc import CdcAwareSource
from penstock._analysis.context import ReadContext
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.sinks import note_endpoints
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import DefinitionIndex
from penstock._model.flow import FlowAnalysis
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Result of the analysis of a pipeline without its data.

    Some of the `analyses` have assumed columns. `errors` are certain; `unsure` are errors of flows
    that read a missing source and may be correct with its data; `failed` are all errors of flows.
    `graph` is `None` if there is any error.
    """

    analyses: Mapping[str, FlowAnalysis]
    errors: tuple[PenstockError, ...]
    failed: Mapping[str, PenstockError]
    unsure: Mapping[str, PenstockError]
    missing: tuple[AssumedSource, ...]
    graph: DataflowGraph | None


def survey(
    spark: SparkSession,
    index: DefinitionIndex,
    context: ReadContext,
    evaluator: Callable[..., Evaluator] = Evaluator,
) -> Survey:
    """Analyse every flow of a pipeline, with assumptions about missing sources. Never raises."""
    with contextlib.closing(CdcAwareSource(index)) as source:
        analysis = Analysis(spark, source, evaluator(spark, index, source, context))
        # A column that is added to a source makes earlier analyses stale.
        while any(name not in {*analysis.analyses, *analysis.errors} for name in index.flows):
            analysis.everything()
        unsure = {
            name: error
            for name, error in analysis.errors.items()
            if error.condition != "FEATURE_NOT_AVAILABLE" and analysis.missing_below(name)
        }
        graph: DataflowGraph | None = None
        errors: tuple[PenstockError, ...] = ()
        try:
            graph = analysis.graph()
        except DefinitionErrors as wrong:
            errors = tuple(error for error in wrong.errors if error not in unsure.values())
        except DefinitionError as wrong:
            errors = (wrong,)
        note_endpoints(index, context)
        assumptions = context.assumptions
        return Survey(
            analyses=analysis.analyses,
            errors=errors,
            failed=analysis.errors,
            unsure=unsure,
            missing=tuple(assumptions.sources.values()) if assumptions is not None else (),
            graph=graph,
        )
