"""`metrics`: the metrics of an update, from its event log."""

import sys
from typing import Any

import typer

from penstock._cli import options
from penstock._cli.inspection import one_update
from penstock._cli.options import OutputFormat


def register(app: typer.Typer) -> None:
    app.command(
        "metrics",
        epilog="Examples: penstock metrics | penstock metrics shop --update 8c1f | "
        "penstock metrics > /var/lib/node_exporter/shop.prom",
    )(metrics)


@options.grouped
def metrics(
    *,
    project: options.StatusOptions,
    update: options.RecordedUpdate = "latest",
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print the metrics of an update in Prometheus format, from its event log, without Spark.

    The same metrics as the endpoint of `run --metrics-port`, also after the end of the update.
    """
    from penstock._observe import log, segments
    from penstock._observe.metrics_endpoint import exposition, require_metrics_extra
    from penstock._observe.state import ObservedUpdate

    if output is OutputFormat.TEXT:
        require_metrics_extra()
    directory = log.event_directory(project.settings())
    state = ObservedUpdate()
    for event in log.recorded_events(directory, one_update(directory, update)):
        state(event)
    if output is OutputFormat.JSON:
        options.print_json(_as_json(state))
        return
    print(exposition(state)[0].decode(), end="")
    if not segments.updates(directory):
        print(f"there are no events yet in {directory}", file=sys.stderr)


def _as_json(state: Any) -> list[dict[str, Any]]:
    from penstock._observe.metrics import metric_series
    from penstock._observe.state import BATCH_BUCKETS

    body = []
    for series in metric_series(state):
        metric = series.metric
        samples: list[dict[str, Any]] = [
            {"labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
            for labels, value in series.values.items()
        ]
        for labels, histogram in series.histograms.items():
            named = dict(zip(metric.labels, labels, strict=True))
            buckets = [
                {"above": low, "count": count}
                for low, count in zip((0.0, *BATCH_BUCKETS), histogram.counts, strict=True)
            ]
            sums = {"count": sum(histogram.counts), "sum": histogram.total, "buckets": buckets}
            samples.append({"labels": named, **sums})
        body.append(
            {"name": metric.name, "type": metric.kind.value, "help": metric.help}
            | {"samples": samples}
        )
    return body
