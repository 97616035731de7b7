"""Backlogs of sources and the lineage of columns on the pages of the dashboard."""

from dataclasses import replace

from made_events import column_lineage, definition, flow_progress, lag_progress, stream_progress

from penstock._observe.events import EventOrigin, FlowStatus
from penstock._ui.model import UpdateModel

NAME = "c.s.silver"
FILES, DELTA = "FileStreamSource[file:/in]", "DeltaSource[file:/bronze]"
KAFKA = "KafkaV2[Subscribe[orders]]"
ORIGIN = EventOrigin(pipeline_name="p", update_id="u", flow_name="f", dataset_name=NAME)


def _model() -> UpdateModel:
    model = UpdateModel()
    flow = {"output_dataset": NAME}
    model.fold(definition("dataset_definition", replace(ORIGIN, flow_name=""), "", {}))
    model.fold(definition("flow_definition", replace(ORIGIN, dataset_name=""), "", flow))
    model.fold(flow_progress(ORIGIN, FlowStatus.RUNNING, ""))
    return model


def _progress(*sources):
    return stream_progress(ORIGIN, {"batchId": 1, "sources": list(sources)})


def _sources(model):
    return model.dataset(NAME)["flows"][0]["progress"]["sources"]


def _kafka(offset, latest):
    return {
        "description": KAFKA,
        "endOffset": {"orders": {"0": offset}},
        "latestOffset": {"orders": {"0": latest}},
    }


def test_backlog_measured_outside_the_batch_is_shown():
    model = _model()
    model.fold(
        _progress(
            {"description": FILES, "endOffset": {"logOffset": 3}},
            {"description": DELTA, "endOffset": {"reservoirVersion": 4, "index": -1}},
            _kafka(10, 25),
        )
    )
    files, delta, kafka = _sources(model)
    assert (files["files"], delta["versions"], kafka["partitions"][0]["lag"]) == (None, None, 15)
    part = {
        "topic": "orders",
        "partition": "0",
        "offset": 10,
        "earliest_offset": 2,
        "latest_offset": 30,
        "records": 20,
        "seconds_behind": 90.5,
        "seconds_to_loss": 600.0,
        "loss": "expected",
        "loss_by": "time",
        "lost_records": None,
    }
    measured = [
        {"source": FILES, "kind": "files", "files": 7, "bytes": 1200},
        {"source": DELTA, "kind": "delta", "versions": 2, "rows": 40, "bytes": 900},
        {"source": KAFKA, "kind": "kafka", "partitions": [part], "retention": {}},
    ]
    model.fold(lag_progress(ORIGIN, {"sources": measured}))
    files, delta, kafka = _sources(model)
    assert (files["files"], files["bytes"]) == (7, 1200)
    assert (delta["versions"], delta["waiting_rows"], delta["bytes"]) == (2, 40, 900)
    (shown,) = kafka["partitions"]
    assert (shown["lag"], shown["latest"], shown["loss"]) == (20, 30, "expected")
    assert (shown["seconds_behind"], shown["seconds_to_loss"]) == (90.5, 600.0)
    # The next batch has read more rows, so the earlier measurement is outdated.
    model.fold(_progress({"description": FILES}, {"description": DELTA}, _kafka(25, 25)))
    (shown,) = _sources(model)[2]["partitions"]
    assert (shown["lag"], shown["seconds_behind"], shown["loss"]) == (0, 0.0, "none")
    assert shown["seconds_to_loss"] is None


def test_card_shows_a_watermark_that_is_ahead_of_the_clock():
    model = _model()
    times = {"eventTime": {"watermark": "2026-03-04T11:00:00.000Z"}}
    model.fold(stream_progress(ORIGIN, {"timestamp": "2026-03-04T10:00:00.000Z", **times}))
    (card,) = model.cards()
    assert card["watermark_delay_seconds"] == -3600


def test_card_shows_that_a_source_does_not_respond_until_a_batch_ends():
    def card():
        (card_,) = model.cards()
        return card_["state"], card_["lag"], card_["problem"] and card_["problem"]["message"]

    def batch(began, kafka):
        body = {"timestamp": began, "durationMs": {"triggerExecution": 2000}, "sources": [kafka]}
        model.fold(stream_progress(ORIGIN, {"batchId": 1, **body}))

    model = _model()
    batch("2026-03-04T10:00:00.000Z", _kafka(10, 25))
    assert card() == ("RUNNING", 15, None)
    silent = {"source": KAFKA, "kind": "kafka", "partitions": [], "problem": "no broker answers"}
    silent["problem_since"] = "2026-03-04T10:00:11.000Z"
    measured = {"measured_at": "2026-03-04T10:00:21.000Z", "sources": [silent]}
    model.fold(lag_progress(ORIGIN, measured))
    assert card() == ("NO_ANSWER", None, "no broker answers")
    assert model.cards()[0]["problem"]["since"] == "2026-03-04T10:00:11.000Z"
    # A batch that ended before the measurement, and a batch that ended after it.
    batch("2026-03-04T10:00:18.000Z", _kafka(10, 25))
    assert card() == ("NO_ANSWER", None, "no broker answers")
    batch("2026-03-04T10:00:20.000Z", _kafka(25, 40))
    assert card() == ("RUNNING", 15, None)
    model.fold(lag_progress(ORIGIN, {**measured, "measured_at": "2026-03-04T10:00:30.000Z"}))
    model.fold(flow_progress(ORIGIN, FlowStatus.STOPPED, ""))
    assert card() == ("STOPPED", None, None)


def test_card_sums_the_known_backlogs_of_all_sources():
    model = _model()
    model.fold(_progress({"description": FILES}, {"description": DELTA}, _kafka(10, 25)))
    files = {"source": FILES, "kind": "files", "files": 7, "bytes": 1200}
    table = {"source": DELTA, "kind": "delta", "versions": 2, "rows": 40, "bytes": 900}
    model.fold(lag_progress(ORIGIN, {"sources": [files, table]}))
    assert (model.cards()[0]["lag"], model.cards()[0]["waiting_files"]) == (55, 7)
    model.fold(lag_progress(ORIGIN, {"sources": [files, {**table, "rows": None}]}))
    assert (model.cards()[0]["lag"], model.cards()[0]["waiting_files"]) == (None, 7)
    model.fold(lag_progress(ORIGIN, {"sources": [files, {**table, "versions": 0, "rows": None}]}))
    assert model.cards()[0]["lag"] == 15


def test_page_is_served_with_invalid_measurements():
    model = _model()
    model.fold(lag_progress(ORIGIN, {"sources": [{"source": KAFKA, "partitions": [{}]}]}))
    model.fold(_progress(_kafka(1, 2)))
    for body in ({"sources": 3}, {"sources": [{"source": KAFKA, "partitions": 1}]}):
        model.fold(lag_progress(ORIGIN, body))
    assert model.dataset(NAME) is not None
    for body in ({"sources": [], "columns": {"a": [[3, "x", "IDENTITY"]]}}, {"columns": 1}):
        model.fold(column_lineage(ORIGIN, body))
    assert model.dataset(NAME)["lineage"] is None


def test_lineage_of_a_dataset_combines_its_flows():
    model = _model()
    other = replace(ORIGIN, flow_name="g")
    body = {"output_dataset": NAME}
    model.fold(definition("flow_definition", replace(other, dataset_name=""), "", body))
    bronze = {"dataset": "c.s.bronze"}
    model.fold(
        column_lineage(
            ORIGIN,
            {
                "sources": [bronze],
                "columns": {"id": [[0, "id", "IDENTITY"]], "one": []},
                "influences": [[0, "amount", "FILTER"]],
            },
        )
    )
    file = {"namespace": "file", "name": "/in"}
    columns = {"id": [[0, "key", "TRANSFORMATION"], [1, "id", "IDENTITY"]]}
    model.fold(column_lineage(other, {"sources": [file, bronze], "columns": columns}))
    lineage = model.dataset(NAME)["lineage"]
    assert lineage["columns"] == {
        "id": [
            {"dataset": "c.s.bronze", "place": "", "column": "id", "how": "IDENTITY"},
            {"dataset": "", "place": "file /in", "column": "key", "how": "TRANSFORMATION"},
        ],
        "one": [],
    }
    (filter_,) = lineage["influences"]
    assert (filter_["column"], filter_["how"]) == ("amount", "FILTER")
