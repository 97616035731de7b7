"""Converts the metrics of an update to OpenTelemetry.

Counters omit `_total` and units are derived from names: the Prometheus exporter of a collector adds
both, so that metrics have the same names as in a scrape.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from penstock._model.spark_version import installed_version
from penstock._observe.metrics import Kind, Labels, Metric, Series
from penstock._observe.state import BATCH_BUCKETS
from penstock._observe.telemetry_traces import SCOPE

_UNITS = {"seconds": "s", "bytes": "By"}


def otel_name(metric: Metric) -> str:
    return metric.name.removesuffix("_total")


def otel_unit(metric: Metric) -> str:
    """Unit in UCUM; empty for counts."""
    return _UNITS.get(otel_name(metric).rpartition("_")[2], "")


def metrics_data(
    series: Sequence[Series], resource: Resource, *, started: int, now: int
) -> export.MetricsData:
    """One report of all metrics; times are Unix nanoseconds."""
    scope = export.ScopeMetrics(
        scope=InstrumentationScope(SCOPE, installed_version("penstock") or "unknown"),
        metrics=[_metric(metric, started, now) for metric in series],
        schema_url="",
    )
    return export.MetricsData(
        resource_metrics=[
            export.ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")
        ]
    )


def _metric(series: Series, started: int, now: int) -> Any:
    metric = series.metric
    cumulative = export.AggregationTemporality.CUMULATIVE

    def subject(labels: Labels) -> dict[str, Any]:
        attributes = dict(zip(metric.labels, labels, strict=True))
        return {"attributes": attributes, "start_time_unix_nano": started, "time_unix_nano": now}

    data: export.Sum | export.Gauge | export.Histogram
    if metric.kind is Kind.HISTOGRAM:
        data = export.Histogram(
            data_points=[
                export.HistogramDataPoint(
                    **subject(labels),
                    count=sum(histogram.counts),
                    sum=histogram.total,
                    bucket_counts=list(histogram.counts),
                    explicit_bounds=list(BATCH_BUCKETS),
                    # Not recorded; OTLP omits None.
                    min=None,  # type: ignore[arg-type]
                    max=None,  # type: ignore[arg-type]
                )
                for labels, histogram in series.values.items()
            ],
            aggregation_temporality=cumulative,
        )
    else:
        points = [
            export.NumberDataPoint(**subject(labels), value=value)
            for labels, value in series.values.items()
        ]
        if metric.kind is Kind.COUNTER:
            data = export.Sum(
                data_points=points, aggregation_temporality=cumulative, is_monotonic=True
            )
        else:
            data = export.Gauge(data_points=points)
    return export.Metric(
        name=otel_name(metric), description=metric.help, unit=otel_unit(metric), data=data
    )
