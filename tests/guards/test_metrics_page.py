"""The page about metrics and the Grafana dashboard must match the defined metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from penstock._observe.metrics import METRICS, Kind, Metric

ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"\bpenstock_\w+")


def test_the_page_lists_each_metric_with_its_type_labels_and_meaning():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("| `penstock_")]
    assert shown == [
        f"| `{metric.name}` | {metric.kind.value} | "
        f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS.values()
    ]


def sample_names(metric: Metric) -> Iterator[str]:
    """The names of the series that a query can select."""
    if metric.kind is Kind.HISTOGRAM:
        yield from (f"{metric.name}_{ending}" for ending in ("bucket", "count", "sum"))
    else:
        yield metric.name


def test_names_follow_the_conventions_of_prometheus():
    for metric in METRICS.values():
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")
        assert metric.help.endswith(".")
        assert metric.labels[0] == "pipeline"


def test_dashboard_queries_use_existing_metrics_and_labels():
    board = json.loads((ROOT / "docs" / "grafana" / "penstock.json").read_text(encoding="utf-8"))
    known = {name: metric for metric in METRICS.values() for name in sample_names(metric)}
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    expressions += [
        variable["definition"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert len(expressions) > 20
    queried = set()
    for expression in expressions:
        names = set(_NAME.findall(expression))
        assert names, expression
        assert names <= set(known), expression
        queried |= names
        labels = {label for name in names for label in known[name].labels} | {"le"}
        used = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        assert used <= labels, expression
    left = {metric.name for metric in METRICS.values()} - queried
    assert {name.removesuffix("_bucket") for name in left} <= {
        "penstock_flow_batch_duration_seconds",  # queried by its buckets
        "penstock_update_start_timestamp_seconds",
        "penstock_events_total",
        "penstock_flow_table_version",
        "penstock_watermark_timestamp_seconds",
        "penstock_metrics_left_out_total",
    }


def test_dashboard_panels_do_not_overlap():
    board = json.loads((ROOT / "docs" / "grafana" / "penstock.json").read_text(encoding="utf-8"))
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for place in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert place not in taken, (panel["title"], taken.get(place))
            taken[place] = panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
