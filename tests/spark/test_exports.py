"""Metrics and lineage of whole updates: scraped and received while they run."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lineage_receiver import Receiver, check, shapes
from made_events import details
from otlp_receiver import OtlpReceiver, points
from planted_secrets import planted
from prometheus_client.parser import text_string_to_metric_families as families
from update_project import Project, shared_project

from penstock._cli.main import main
from penstock._cli.reports import summary
from penstock._model.redaction import forget_secrets
from penstock._observe.codec import event_of_json
from penstock._observe.events import UpdateState
from penstock._observe.log import read_events
from penstock._observe.metrics import metric_series
from penstock._observe.metrics_endpoint import exposition
from penstock._observe.snapshot import update_view
from penstock._observe.state import ObservedUpdate

pytestmark = pytest.mark.spark

SETTINGS = """
name: shop
metrics:
  port: 0
lineage:
  namespace: tests
  transport:
    type: http
    url: {url}
opentelemetry:
  endpoint: {otlp}
"""

PIPELINE = """
@dp.table
def bronze():
    return rows()

@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def silver():
    return dp.read_stream("bronze").select("id", (F.col("amount") * 2).alias("amount"))

@dp.temporary_view
def even():
    return spark.read.table("silver").where("id % 2 = 0")

@dp.materialized_view
def totals():
    return spark.read.table("even").groupBy("id").agg(F.sum("amount").alias("total"))
"""


@dataclass
class Shop:
    """A project after one update, and the data that the update sent to other systems."""

    project: Project
    scraped: str
    receiver: Receiver
    otlp: OtlpReceiver

    @property
    def tables(self) -> str:
        return f"{self.project.root}/.penstock/tables/spark_catalog/default"

    @property
    def runs(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The lineage events by kind and job."""
        events = self.receiver.events
        return dict(zip(shapes(events), events, strict=True))

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.otlp.spans}


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    receiver, otlp = Receiver(), OtlpReceiver()
    with shared_project(tmp_path_factory.mktemp("shop"), spark) as project:
        settings = SETTINGS.format(url=receiver.url, otlp=otlp.url)
        (project.root / "pipeline.yaml").write_text(settings)
        project.source(PIPELINE)
        project.add("a.json", [{"id": at, "amount": at} for at in range(10)])
        scraped = []

        def scrape(_: Any) -> None:
            (created,) = [event for event in project.events if event.event_type == "create_update"]
            url = details(created)["metrics_url"]
            with urllib.request.urlopen(url, timeout=10) as response:
                scraped.append(response.read().decode())

        try:
            assert project.run(on_running=scrape).state is UpdateState.COMPLETED
        finally:
            receiver.close()
            otlp.close()
        (text,) = scraped
        return Shop(project, text, receiver, otlp)


@pytest.fixture
def in_project(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(shop.project.root)
    return shop


def test_metrics_are_served_while_the_update_initializes(shop: Shop):
    by_name = {family.name: family for family in families(shop.scraped)}
    states = {s.labels["state"]: s.value for s in by_name["penstock_update_state"].samples}
    assert states["INITIALIZING"] == 1
    flows = {s.labels["flow"] for s in by_name["penstock_flow_output_rows"].samples}
    assert flows == {"bronze", "silver", "totals"}


SILVER = ("shop", "silver", "spark_catalog.default.silver")


def test_metrics_are_correct_when_computed_from_the_event_log(shop: Shop):
    fold = ObservedUpdate()
    for event in read_events(shop.project.root / ".penstock" / "events"):
        if event["origin"]["update_id"] == shop.project.events[0].origin.update_id:
            fold(event_of_json(event))
    figures = {series.metric.name: series.values for series in metric_series(fold)}
    assert figures["penstock_flow_output_rows_total"][SILVER] == 9
    assert figures["penstock_flow_quarantined_rows_total"][SILVER] == 1
    rule = ("shop", "spark_catalog.default.silver", "positive")
    assert figures["penstock_expectation_failed_rows_total"][rule] == 1


def test_metrics_are_pushed_when_opentelemetry_is_on(shop: Shop):
    report = {name: points(metric) for name, metric in shop.otlp.metrics.items()}
    assert report["penstock_flow_output_rows"][SILVER].as_double == 9
    assert report["penstock_update_state"]["shop", "COMPLETED"].as_double == 1


def test_spans_are_nested_when_opentelemetry_is_on(shop: Shop):
    spans = shop.spans
    assert set(spans) == {
        *("update shop", "flow bronze", "batch bronze", "flow silver", "batch silver"),
        *("flow totals", "refresh totals"),
    }
    update = spans["update shop"]
    assert {span.trace for span in spans.values()} == {update.trace}
    for name in ("bronze", "silver", "totals"):
        assert spans[f"flow {name}"].parent == update.span
        assert update.began <= spans[f"flow {name}"].began
        assert spans[f"flow {name}"].ended <= update.ended


def test_batch_span_has_row_counts_and_phase_durations(shop: Shop):
    batch = shop.spans["batch silver"]
    assert batch.parent == shop.spans["flow silver"].span
    assert batch.attributes["penstock.rows.output"] == 9
    assert batch.attributes["penstock.rows.quarantined"] == 1
    assert batch.attributes["penstock.phase.addBatch_seconds"] > 0


def test_lineage_has_a_complete_event_for_every_flow(shop: Shop):
    for event in shop.receiver.events:
        check(event)
    kinds = shapes(shop.receiver.events)
    assert kinds[0] == ("START", "shop")
    assert kinds[-1] == ("COMPLETE", "shop")
    assert {kind for kind in kinds if kind[0] == "COMPLETE"} == {
        ("COMPLETE", name) for name in ("shop", "shop.bronze", "shop.silver", "shop.totals")
    }


def test_lineage_names_inputs_and_outputs_of_a_flow(shop: Shop):
    bronze, silver = shop.runs["COMPLETE", "shop.bronze"], shop.runs["COMPLETE", "shop.silver"]
    assert [dataset["name"] for dataset in bronze["inputs"]] == [str(shop.project.root / "data")]
    assert [dataset["name"] for dataset in silver["inputs"]] == [f"{shop.tables}/bronze"]
    written, quarantine = silver["outputs"]
    assert written["name"] == f"{shop.tables}/silver"
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert quarantine["outputFacets"]["outputStatistics"]["rowCount"] == 1
    (assertion,) = written["facets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["name"], assertion["success"]) == ("positive", False)


def test_lineage_has_source_columns_when_a_view_aggregates(shop: Shop):
    totals = shop.runs["COMPLETE", "shop.totals"]
    (view,) = totals["outputs"]
    lineage = view["facets"]["columnLineage"]
    (total,) = lineage["fields"]["total"]["inputFields"]
    assert (total["name"], total["field"]) == (f"{shop.tables}/silver", "amount")
    assert total["transformations"][0]["subtype"] == "AGGREGATION"
    assert {
        (field["field"], field["transformations"][0]["subtype"]) for field in lineage["dataset"]
    } == {
        ("id", "FILTER"),
        ("id", "GROUP_BY"),
    }
    assert [field["name"] for field in totals["inputs"]] == [f"{shop.tables}/silver"]


def test_run_reports_in_json_and_markdown_when_nothing_is_new(in_project: Shop, capsys: Any):
    assert main(["run", "--output", "json", "--summary", "out.md"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["pipeline"], body["state"]) == ("shop", "COMPLETED")
    assert "## shop: COMPLETED" in Path("out.md").read_text()

    assert main(["explain", "totals", "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["kind"] == "materialized view"
    assert body["path"].endswith("/tables/spark_catalog/default/totals")
    assert body["last_refresh"]["technique"] == "NO_OP"
    (flow,) = body["flows"]
    assert flow["reads"] == ["even"]
    assert flow["columns"]["total"] == ["silver.amount AGGREGATION"]
    assert flow["plan"][0].startswith("Aggregate [id]")


def test_explain_shows_query_rules_and_checkpoint_for_a_live_name(in_project: Shop, capsys: Any):
    assert main(["explain", "LIVE.Silver"]) == 0
    text = capsys.readouterr().out
    assert "silver [streaming table] declared at pipeline.py:" in text
    assert "  query, as analysed\n    ~Project [id, (amount * 2) AS amount]" in text
    assert "FileSource" not in text or "spark_catalog.default.bronze" in text
    quarantine = f"the rows go to file:{in_project.tables}/silver_quarantine"
    assert f"positive: amount > 0 [drop] {quarantine}" in text.replace("file://", "file:")
    assert ", batch 0 is finished" in text
    assert main(["explain", "nothing"]) == 2


def test_graph_is_printed_in_mermaid_format(in_project: Shop, capsys: Any):
    assert main(["graph", "--format", "mermaid"]) == 0
    assert '[/"' in capsys.readouterr().out


def test_dry_run_writes_github_annotations_and_junit_results(in_project: Shop, capsys: Any):
    assert main(["dry-run", "--output", "github", "--junit", "out.xml"]) == 0
    assert "flows planned" in capsys.readouterr().out
    assert 'name="silver"' in Path("out.xml").read_text()
    in_project.project.source(PIPELINE.replace('"bronze").select', '"bronce").select'))
    try:
        assert main(["dry-run", "--output", "github", "--junit", "out.xml"]) == 2
    finally:
        in_project.project.source(PIPELINE)
    assert "::error file=pipeline.py,line=" in capsys.readouterr().out
    assert "<failure" in Path("out.xml").read_text()


BROKEN = """
@dp.table
def bronze():
    return spark.readStream.schema(ROWS).option("password", "option-secret-Zq3").json("data")

@dp.table
def broken():
    message = open("planted.txt").read() + " option-secret-Zq3 env-secret-Zq1 conf-secret-Zq2"
    return dp.read_stream("bronze").select(F.raise_error(F.lit(message)).alias("x"))
"""


def test_no_secret_is_in_the_outputs_of_a_failed_update(tmp_path: Path, spark, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_DB_PASSWORD", "env-secret-Zq1")
    texts, secrets = planted()
    secrets += ["env-secret-Zq1", "conf-secret-Zq2", "option-secret-Zq3"]
    (tmp_path / "planted.txt").write_text("\n".join(texts))
    receiver, otlp = Receiver(), OtlpReceiver()
    text = SETTINGS.format(url=receiver.url, otlp=otlp.url)
    text += "configuration:\n  shop.api.secret: conf-secret-Zq2\n"
    (tmp_path / "pipeline.yaml").write_text(text)
    project = Project(tmp_path, spark).source(BROKEN)
    project.add("a.json", [{"id": 1, "amount": 1}])
    try:
        assert project.run().state is UpdateState.FAILED
    finally:
        receiver.close()
        otlp.close()
        forget_secrets()
    storage = tmp_path / ".penstock"
    files = [*storage.glob("events/*"), *storage.glob("state/status.json")]
    outputs = [file.read_text() for file in files]
    outputs += [body.decode() for body in receiver.bodies]
    outputs += [body.decode("utf-8", "replace") for _, body in otlp.bodies]
    snapshot, metrics = ObservedUpdate(), ObservedUpdate()
    for event in project.events:
        snapshot(event)
        metrics(event)
    outputs += ["\n".join(summary(update_view(snapshot))), exposition(metrics)[0].decode()]
    assert [
        secret for secret in secrets for output in outputs if secret in output.replace("\\", "")
    ] == []
    assert any("[redacted]" in output for output in outputs)
    assert ("FAIL", "shop.broken") in shapes(receiver.events)
    assert {span.status for span in otlp.spans if span.name == "flow broken"} == {2}
