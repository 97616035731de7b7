"""Metrics and lineage of whole updates: scraped and received while they run."""

import json
import urllib.request
from pathlib import Path

import pytest
from lineage_receiver import Receiver, check, shapes
from otlp_receiver import OtlpReceiver, points
from planted_secrets import planted
from prometheus_client.parser import text_string_to_metric_families as families
from update_project import Project

from penstock._cli.main import main
from penstock._cli.reports import summary
from penstock._model.redaction import forget_secrets
from penstock._observe.decoding import event_of_json
from penstock._observe.events import UpdateState
from penstock._observe.log import read_events
from penstock._observe.metrics import MetricsFold
from penstock._observe.metrics_endpoint import exposition
from penstock._observe.snapshot import Snapshot

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


def test_an_update_is_scraped_explained_and_its_lineage_is_received(
    tmp_path: Path, spark, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    receiver, otlp = Receiver(), OtlpReceiver()
    (tmp_path / "pipeline.yaml").write_text(SETTINGS.format(url=receiver.url, otlp=otlp.url))
    project = Project(tmp_path, spark).source(PIPELINE)
    project.add("a.json", [{"id": at, "amount": at} for at in range(10)])
    scraped = []

    def scrape(_):
        (begun,) = [event for event in project.events if event.event_type == "create_update"]
        url = begun.details["create_update"]["metrics_url"]
        with urllib.request.urlopen(url, timeout=10) as answer:
            scraped.append(answer.read().decode())

    try:
        assert project.run(on_running=scrape).state is UpdateState.COMPLETED
    finally:
        receiver.close()
        otlp.close()
    (text,) = scraped
    found = {family.name: family for family in families(text)}
    states = {s.labels["state"]: s.value for s in found["penstock_update_state"].samples}
    assert states["INITIALIZING"] == 1
    flows = {s.labels["flow"] for s in found["penstock_flow_output_rows"].samples}
    assert flows == {"bronze", "silver", "totals"}

    fold = MetricsFold()
    for event in read_events(tmp_path / ".penstock" / "events"):
        fold(event_of_json(event))
    figures = {one.metric.name: one.values for one in fold.series()}
    silver = ("shop", "silver", "spark_catalog.default.silver")
    assert figures["penstock_flow_output_rows_total"][silver] == 9
    assert figures["penstock_flow_quarantined_rows_total"][silver] == 1
    rule = ("shop", "spark_catalog.default.silver", "positive")
    assert figures["penstock_expectation_failed_rows_total"][rule] == 1

    report = {name: points(metric) for name, metric in otlp.metrics.items()}
    assert report["penstock_flow_output_rows"][silver].as_double == 9
    assert report["penstock_update_state"]["shop", "COMPLETED"].as_double == 1
    spans = {span.name: span for span in otlp.spans}
    assert set(spans) == {
        *("update shop", "flow bronze", "batch bronze", "flow silver", "batch silver"),
        *("flow totals", "refresh totals"),
    }
    whole = spans["update shop"]
    assert {span.trace for span in spans.values()} == {whole.trace}
    for name in ("bronze", "silver", "totals"):
        assert spans[f"flow {name}"].parent == whole.span
        assert whole.began <= spans[f"flow {name}"].began
        assert spans[f"flow {name}"].ended <= whole.ended
    batch = spans["batch silver"]
    assert batch.parent == spans["flow silver"].span
    assert batch.attributes["penstock.rows.output"] == 9
    assert batch.attributes["penstock.rows.quarantined"] == 1
    assert batch.attributes["penstock.phase.addBatch_seconds"] > 0

    events = receiver.events
    for event in events:
        check(event)
    kinds = shapes(events)
    assert kinds[0] == ("START", "shop")
    assert kinds[-1] == ("COMPLETE", "shop")
    assert {kind for kind in kinds if kind[0] == "COMPLETE"} == {
        ("COMPLETE", name) for name in ("shop", "shop.bronze", "shop.silver", "shop.totals")
    }
    last = dict(zip(kinds, events, strict=True))
    silver_run, totals = last["COMPLETE", "shop.silver"], last["COMPLETE", "shop.totals"]
    tables = f"{tmp_path}/.penstock/tables/spark_catalog/default"
    assert [one["name"] for one in last["COMPLETE", "shop.bronze"]["inputs"]] == [
        str(tmp_path / "data")
    ]
    assert [one["name"] for one in silver_run["inputs"]] == [f"{tables}/bronze"]
    written, kept = silver_run["outputs"]
    assert written["name"] == f"{tables}/silver"
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert kept["outputFacets"]["outputStatistics"]["rowCount"] == 1
    (assertion,) = written["facets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["name"], assertion["success"]) == ("positive", False)
    (view,) = totals["outputs"]
    lineage = view["facets"]["columnLineage"]
    (total,) = lineage["fields"]["total"]["inputFields"]
    assert (total["name"], total["field"]) == (f"{tables}/silver", "amount")
    assert total["transformations"][0]["subtype"] == "AGGREGATION"
    assert {(one["field"], one["transformations"][0]["subtype"]) for one in lineage["dataset"]} == {
        ("id", "FILTER"),
        ("id", "GROUP_BY"),
    }
    assert [one["name"] for one in totals["inputs"]] == [f"{tables}/silver"]

    assert main(["run", "--output", "json", "--summary", "out.md"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["pipeline"], body["state"]) == ("shop", "COMPLETED")
    assert "## shop: COMPLETED" in (tmp_path / "out.md").read_text()

    assert main(["explain", "totals", "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["kind"] == "materialized view"
    assert body["path"].endswith("/tables/spark_catalog/default/totals")
    assert body["last_refresh"]["technique"] == "NO_OP"
    (flow,) = body["flows"]
    assert flow["reads"] == ["even"]
    assert flow["columns"]["total"] == ["silver.amount AGGREGATION"]
    assert flow["plan"][0].startswith("Aggregate [id]")
    assert main(["explain", "LIVE.Silver"]) == 0
    text = capsys.readouterr().out
    assert "silver [streaming table] declared at pipeline.py:" in text
    assert "  query, as analysed\n    ~Project [id, (amount * 2) AS amount]" in text
    assert "FileSource" not in text or "spark_catalog.default.bronze" in text
    assert f"positive: amount > 0 [drop] the rows go to file:{tables}/silver_quarantine" in (
        text.replace("file://", "file:")
    )
    assert ", batch 0 is finished" in text
    assert main(["graph", "--format", "mermaid"]) == 0
    assert '[/"' in capsys.readouterr().out
    assert main(["explain", "nothing"]) == 2
    assert main(["dry-run", "--output", "github", "--junit", "out.xml"]) == 0
    assert "flows are planned" in capsys.readouterr().out
    assert 'name="silver"' in (tmp_path / "out.xml").read_text()
    project.source(PIPELINE.replace('"bronze").select', '"bronce").select'))
    assert main(["dry-run", "--output", "github", "--junit", "out.xml"]) == 2
    assert "::error file=pipeline.py,line=" in capsys.readouterr().out
    assert "<failure" in (tmp_path / "out.xml").read_text()


BROKEN = """
@dp.table
def bronze():
    return spark.readStream.schema(ROWS).option("password", "option-secret-Zq3").json("data")

@dp.table
def broken():
    told = open("planted.txt").read() + " option-secret-Zq3 env-secret-Zq1 conf-secret-Zq2"
    return dp.read_stream("bronze").select(F.raise_error(F.lit(told)).alias("x"))
"""


def test_no_planted_secret_is_in_what_a_failed_update_leaves(tmp_path: Path, spark, monkeypatch):
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
    told = [file.read_text() for file in files]
    told += [body.decode() for body in receiver.bodies]
    told += [body.decode("utf-8", "replace") for _, body in otlp.bodies]
    snapshot, metrics = Snapshot(), MetricsFold()
    for event in project.events:
        snapshot(event)
        metrics(event)
    told += ["\n".join(summary(snapshot.view())), exposition(metrics)[0].decode()]
    assert [secret for secret in secrets for one in told if secret in one.replace("\\", "")] == []
    assert any("[redacted]" in one for one in told)
    assert ("FAIL", "shop.broken") in shapes(receiver.events)
    assert {span.status for span in otlp.spans if span.name == "flow broken"} == {2}
