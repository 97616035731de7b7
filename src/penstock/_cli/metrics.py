"""`metrics`: the figures of an update, from its event log."""

import sys
from typing import Annotated, Any

import typer

from penstock._cli import options
from penstock._cli.inspection import one_update
from penstock._cli.options import OutputFormat


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "metrics",
        epilog="Examples: penstock metrics | penstock metrics shop --update 8c1f | "
        "penstock metrics > /var/lib/node_exporter/shop.prom",
    )(metrics)


def metrics(
    path: options.ProjectPath = None,
    spec: options.Spec = None,
    storage: options.Storage = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    update: Annotated[
        str, typer.Option("--update", help="`latest`, or an id or its beginning.")
    ] = "latest",
    output: options.Output = OutputFormat.TEXT,
) -> None:
    """Print the metrics of an update as Prometheus reads them, from its event log; needs no Spark.

    The same figures as the endpoint of `run --metrics-port`, also when the update has ended.
    """
    from penstock._observe import log, segments
    from penstock._observe.metrics_endpoint import exposition, require_metrics_extra
    from penstock._observe.state import ObservedUpdate

    if output is OutputFormat.TEXT:
        require_metrics_extra()
    directory = log.event_directory(
        options.settings_of(path, spec, storage, pipeline=pipeline, target=target)
    )
    chosen = update if update == segments.LATEST else one_update(directory, update)
    state = ObservedUpdate()
    for event in log.recorded_events(directory, chosen):
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

    families = []
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
        families.append(
            {"name": metric.name, "type": metric.kind.value, "help": metric.help}
            | {"samples": samples}
        )
    return families
