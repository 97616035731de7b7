"""No planted secret is in an output of a pipeline: events, metrics, lineage, reports."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_events import (
    column_lineage,
    definition,
    flow_progress,
    plan_warning,
    stream_progress,
    update_progress,
)
from planted_secrets import planted

from penstock._cli.reports import Case, annotations, summary, write_junit
from penstock._model.pipeline import EventHook
from penstock._model.redaction import forget_secrets, remember_named, remember_secret
from penstock._observe.bus import EventBus
from penstock._observe.codec import event_of_line
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.hooks import EventHooks
from penstock._observe.lineage_delivery import Lineage
from penstock._observe.log import EventLog
from penstock._observe.metrics import metric_series
from penstock._observe.metrics_endpoint import exposition
from penstock._observe.snapshot import update_view
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import status_json

UPDATE = EventOrigin(pipeline_name="shop", update_id="8c1f0190-5520-43ff-9066-b4b80ace2cb1")
FLOW = EventOrigin(
    pipeline_name="shop", update_id=UPDATE.update_id, dataset_name="silver", flow_name="silver"
)
# Values without a known pattern: they are redacted because they were resolved or named.
KNOWN = {
    "PENSTOCK_SECRET_DB": "env-secret-Zq1",
    "SHOP_DB_PASSWORD": "env-secret-Zq2",
    "AWS_SECRET_ACCESS_KEY": "env/secret+Zq3",
    "fs.azure.account.key.shop.dfs.core": "option-secret-Zq4==",
    "kafka.sasl.jaas.config": 'x.Plain required username="u" password="jaas-inner-Zq5";',
    "url": "jdbc:postgresql://me:url-inner-Zq6@db/shop",
}
INNER = [
    *("env-secret-Zq1", "env-secret-Zq2", "env/secret+Zq3", "option-secret-Zq4=="),
    *("jaas-inner-Zq5", "url-inner-Zq6"),
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    forget_secrets()
    yield
    forget_secrets()


def events(texts: list[str]) -> list[Event]:
    everything = "\n".join(texts)
    pieces = iter(texts * 3)
    error = ErrorInfo(condition="BOOM", class_name="E", message=everything)
    rules = [
        ExpectationCounts(name=text, dataset="silver", passed_records=1, failed_records=2)
        for text in texts
    ]
    schema = {"fields": [{"name": "id", "type": "long", "metadata": {"comment": texts[0]}}]}
    return [
        definition("create_update", UPDATE, everything, {"storage": everything}),
        update_progress(UPDATE, UpdateState.INITIALIZING, next(pieces)),
        definition(
            "dataset_definition",
            FLOW,
            "",
            {
                "dataset_type": "STREAMING_TABLE",
                "path": "s3a://key:zz-s3secret@bucket/x",
                "schema_json": json.dumps(schema),
                "expectations": [
                    {"name": text, "condition": text, "action": "drop"} for text in texts
                ],
            },
        ),
        definition(
            "flow_definition",
            FLOW,
            "",
            {
                "output_dataset": "silver",
                "input_datasets": [],
                "external_inputs": texts,
                "comment": everything,
                "flow_type": "APPEND",
            },
        ),
        column_lineage(
            FLOW,
            {
                "sources": [{"namespace": text, "name": text} for text in texts],
                "columns": {"id": [[0, next(pieces), "IDENTITY"]]},
                "influences": [],
            },
        ),
        plan_warning(UPDATE, everything),
        flow_progress(FLOW, FlowStatus.STARTING, everything),
        flow_progress(
            FLOW,
            FlowStatus.RUNNING,
            everything,
            metrics=FlowMetrics(num_output_rows=1, batch_duration_ms=5),
            expectations=rules,
            error=error,
        ),
        stream_progress(
            FLOW, {"sources": [{"description": text} for text in texts], "durationMs": {"a": 1}}
        ),
        flow_progress(FLOW, FlowStatus.FAILED, everything, error=error),
        update_progress(UPDATE, UpdateState.FAILED, everything, error=error),
    ]


def test_no_planted_secret_is_in_any_output(tmp_path: Path):
    texts, secrets = planted()
    remember_named(KNOWN)
    remember_secret("resolved-Zq7")
    texts += [f"the driver said {value!r} here" for value in (*INNER, "resolved-Zq7")]
    secrets += [*INNER, "resolved-Zq7", "zz-s3secret"]
    assert len(secrets) >= 50

    bus, snapshot, status, metrics = (
        EventBus(),
        ObservedUpdate(),
        ObservedUpdate(),
        ObservedUpdate(),
    )
    log, received, sent = EventLog(tmp_path), [], []
    hooks = EventHooks(bus, UPDATE)
    lineage = Lineage(bus, UPDATE, sent.append, namespace="shop", running_seconds=0)
    for subscriber in (snapshot, status, metrics, log, hooks, lineage):
        bus.subscribe(subscriber)
    hooks.start([_hook(received)])
    for event in events(texts):
        bus.emit(event)
    lineage.close()
    hooks.close()
    log.close()

    from openlineage.client.serde import Serde

    (file,) = tmp_path.glob("*.jsonl")
    junit = tmp_path / "junit.xml"
    cases = [
        Case(name=text, group="flow", verdict="failed", title=text, text="\n".join(texts))
        for text in texts
    ]
    write_junit(junit, "penstock lint", cases)
    outputs = {
        "event log": file.read_text(),
        "hooks": json.dumps(received, ensure_ascii=False),
        "status": json.dumps(status_json(status), ensure_ascii=False),
        "metrics": exposition(metrics)[0].decode(),
        "openmetrics": exposition(metrics, "application/openmetrics-text")[0].decode(),
        "lineage": "\n".join(Serde.to_json(event) for event in sent),
        "summary": "\n".join(summary(update_view(snapshot))).replace("\\", ""),
        "junit": junit.read_text(),
        "github": "\n".join(annotations(cases)),
    }
    leaked = {
        (output, secret) for output, text in outputs.items() for secret in secrets if secret in text
    }
    assert leaked == set()
    assert len(sent) > 5
    assert all(event_of_line(line) is not None for line in file.read_bytes().splitlines())
    assert all(len(text) > 1000 for text in outputs.values())


def _hook(received: list[Any]) -> EventHook:
    from penstock._model.origin import SourceLocation

    return EventHook(name="hook", function=received.append, origin=SourceLocation("p.py", 1))


def test_ordinary_values_are_not_redacted():
    from penstock._model.redaction import redact

    remember_named(
        {
            "use.secret": "true",
            "token": "12345",
            "GOOGLE_APPLICATION_CREDENTIALS": "/etc/keys/shop.json",
            "mode": "Append-Only-7",
            "url": "https://example.org/a:b@c",
        }
    )
    text = "true 12345 /etc/keys/shop.json Append-Only-7 https://example.org/a:b@c"
    assert redact(text) == text


def test_named_secret_is_masked_in_any_format():
    from penstock._model.redaction import redact

    values = {
        "other.password": "tiptopsecretword",
        "API_TOKEN": "UPPER_CASE",
        "db.secret": "/not/a/path",
        "pin.secret": "123456",
        "spark.hadoop.fs.azure.sas.token.box": "sv=2024&sig=Inner-Zq1",
        "eventhubs.connectionString": "Endpoint=sb://x/;SharedAccessKey=Inner-Zq2=",
        "url": "jdbc:postgresql://h/db?user=u&password=correcthorse",
    }
    remember_named(values)
    for text in [*list(values.values())[:4], "Inner-Zq1", "Inner-Zq2=", "correcthorse"]:
        assert redact(f"<{text}>") == "<[redacted]>"


def test_secret_equal_to_a_name_does_not_change_metrics():
    for word in ("silver", "status", "RUNNING", "metrics", "dataset"):
        remember_secret(word)
    bus, metrics, received = EventBus(), ObservedUpdate(), []
    bus.subscribe(metrics)
    bus.subscribe(received.append)
    rule = ExpectationCounts(name="r", dataset="silver", passed_records=7, failed_records=0)
    bus.emit(
        flow_progress(
            FLOW,
            FlowStatus.RUNNING,
            "silver is RUNNING",
            metrics=FlowMetrics(num_output_rows=7),
            expectations=[rule],
        )
    )
    assert received[0].message == "[redacted] is [redacted]"
    values = {series.metric.name: dict(series.values) for series in metric_series(metrics)}
    assert values["penstock_flow_output_rows_total"] == {("shop", "silver", "silver"): 7}
    assert values["penstock_expectation_passed_rows_total"] == {("shop", "silver", "r"): 7}
