"""Rows are sent to a web server and a mail server: masked, counted, and limited in rate."""

import email
import email.policy
import json
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from message_receivers import Receiver, mail_server
from pipeline_process import PipelineProcess
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from update_project import Project

from penstock.errors import ConnectorError, FlowError, PenstockError
from penstock.sinks.base import BatchSink, Sink, Write
from penstock.sinks.notification.sink import MailSink, WebhookSink
from penstock.testing import SinkSuite
from penstock.testing.streams import flow_named

PATH = "/T0/B0/hidden-path"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


class TestWebhookSink(SinkSuite):
    """A batch that is recorded with the checkpoint is not sent again."""

    sink = WebhookSink
    secrets = ("url", "header.Authorization")
    wrong_options: ClassVar[Any] = (
        {"url": None},
        {"url": "ftp://127.0.0.1/hidden-path"},
        {"url": "http://user:hidden@127.0.0.1/x"},
        {"url": "http://127.0.0.1/a\r\nHost: b"},
        {"format": "xml"},
        {"masks": "card"},
        {"max_rows": "1001"},
        {"max_per_minute": "0"},
        {"header.Authorization": "hidden\r\nX-Other: 1"},
    )

    @pytest.fixture(autouse=True)
    def _server(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def options(self, folder: Path) -> Mapping[str, str]:
        return {"url": self.receiver.url + PATH, "header.Authorization": "hidden-token"}

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        rows = [row for _, _, body in self.receiver.requests for row in body["rows"]]
        return [(row["id"], row["name"]) for row in rows]


def opened(
    sink: Sink, options: Mapping[str, str], df: DataFrame, folder: Path, pipeline: str = "shop"
) -> BatchSink:
    checked = sink.check_options(options)
    names = {field.name: field.dataType.simpleString() for field in df.schema}
    sink.check_query(checked, names, sink.modes[0])
    batch_sink = sink.open(
        Write(
            spark=df.sparkSession,
            pipeline=pipeline,
            flow=flow_named("to_people"),
            epoch="e1",
            checkpoint=str(folder / "checkpoint"),
            schema=df.schema,
            format=sink.formats[0],
            options=checked,
            notes=str(folder / "notes"),
        )
    )
    assert isinstance(batch_sink, BatchSink)
    return batch_sink


def test_values_are_masked_and_shortened_and_all_rows_are_counted(
    spark: Any, receiver: Receiver, tmp_path: Path
):
    computed = spark.sparkContext.accumulator(0)

    def counted(number):
        computed.add(1)
        return number

    card = F.lit("4111-1111").alias("Card")
    df = spark.range(0, 100, 1, 4).select(
        F.udf(counted, "bigint")("id").alias("id"),
        card,
        F.struct(card, F.lit("Ann").alias("name")).alias("customer"),
        F.array(F.struct(card, F.lit(7).alias("n"))).alias("items"),
        F.expr("CASE WHEN id >= 0 THEN NULL ELSE '4111' END").alias("empty"),
        F.expr("repeat('x', 100000)").alias("long"),
        F.expr("CAST(unhex('00FF') AS BINARY)").alias("bytes"),
        F.expr("DOUBLE('NaN')").alias("nan"),
        F.expr("CAST(1.50 AS DECIMAL(9, 2))").alias("price"),
        F.expr("map('password', 'abc-def', 'k', 'v')").alias("facts"),
        F.lit("a\u2028\n<b>").alias("odd `name`.x"),
        F.lit("unsent").alias("other"),
    )
    columns = ",".join(name for name in df.columns if name != "other")
    masks = "CARD, customer.card,items.Card,empty"
    options = {"url": receiver.url, "mask": masks, "max_rows": "3", "columns": columns}
    writer = opened(WebhookSink(), options, df, tmp_path)
    assert writer.write(df, 0).rows == 100
    assert computed.value == 100
    ((_, headers, body),) = receiver.requests
    assert headers["Idempotency-Key"] == body["idempotency_key"]
    assert (body["row_count"], body["earlier_rows"], len(body["rows"])) == (100, 0, 3)
    assert body["rows"][0] == {
        "id": body["rows"][0]["id"],
        "Card": "***",
        "customer": '{"Card": "***", "name": "Ann"}',
        "items": '[{"Card": "***", "n": 7}]',
        "empty": None,
        "long": "x" * 399 + "…",
        "bytes": "0x00ff",
        "nan": "nan",
        "price": "1.50",
        "facts": '{"password": "[redacted]", "k": "v"}',
        "odd `name`.x": "a\u2028\n<b>",
    }
    assert isinstance(body["rows"][0]["id"], int)
    assert writer.write(df.limit(0), 1).rows == 0
    assert len(receiver.requests) == 1  # without rows, no message is sent
    for wrong in ({"mask": "crad"}, {"mask": "customer.crad"}, {"columns": "id,crad"}):
        with pytest.raises(ConnectorError, match="crad"):
            opened(WebhookSink(), {**options, **wrong}, df, tmp_path)


def test_rows_over_the_rate_limit_are_summed_up_also_after_a_restart(
    spark: Any, receiver: Receiver, tmp_path: Path
):
    df = spark.range(100)
    options = {"url": receiver.url, "max_per_minute": "1"}

    def writer() -> BatchSink:
        return opened(WebhookSink(), options, df, tmp_path)

    def minute_passed() -> None:
        note = tmp_path / "notes" / "sent.json"
        body = json.loads(note.read_text())
        note.write_text(json.dumps({**body, "times": [at - 61 for at in body["times"]]}))

    first = writer()
    first.write(df.limit(2), 0)
    assert first.write(df.limit(5), 1).rows == 5
    # The process dies here.
    second = writer()
    assert second.write(df.limit(5), 1).replayed
    second.write(df.limit(3), 2)
    assert [body["row_count"] for _, _, body in receiver.requests] == [2]
    minute_passed()
    third = writer()
    receiver.answers = [404]
    with pytest.raises(FlowError):
        third.write(df.limit(1), 3)
    third.write(df.limit(1), 3)
    refused, sent = (body for _, _, body in receiver.requests[1:])
    assert {**refused, "timestamp": ""} == {**sent, "timestamp": ""}
    assert (sent["row_count"], sent["earlier_rows"]) == (1, 8)
    assert receiver.requests[0][2]["timestamp"] <= sent["earlier_since"] < sent["timestamp"]
    third.write(df.limit(4), 4)
    third.close()
    third.close()
    rest = receiver.requests[3][2]
    assert (rest["row_count"], rest["rows"], rest["earlier_rows"]) == (0, [], 4)
    assert len({body["idempotency_key"] for _, _, body in receiver.requests}) == 3
    for batch_sink in (first, second):
        batch_sink.close()


def test_a_message_is_sent_again_with_the_same_key(spark: Any, receiver: Receiver, tmp_path: Path):
    df = spark.range(3).select(F.lit("<!channel> `x` & y").alias("text"))
    options = {"url": receiver.url + PATH, "format": "slack"}
    receiver.answers = [503]
    opened(WebhookSink(), options, df, tmp_path).write(df, 0)
    (tmp_path / "notes" / "sent.json").unlink()  # killed before the file was written
    opened(WebhookSink(), options, df, tmp_path).write(df, 0)
    (failed, *sent) = [body for _, _, body in receiver.requests]
    assert sent == [failed, failed]
    text = failed["blocks"][0]["text"]["text"]
    assert text.count('{"text": "&lt;!channel&gt; \'x\' &amp; y"}') == 3
    assert failed["text"] == "[shop] target: 3 rows"

    receiver.answers = [403]
    with pytest.raises(FlowError) as error:
        opened(WebhookSink(), options, df, tmp_path).write(df, 1)
    assert (error.value.condition, error.value.retryable) == ("SINK_UNAVAILABLE", False)
    assert "403" in error.value.message
    assert "hidden-path" not in f"{error.value} {error.value.hint}"


def test_mails_are_sent_and_headers_cannot_be_injected(spark: Any, tmp_path: Path):
    df = spark.range(2).select("id", F.lit("4111").alias("card"), F.lit("é\r\n.\r\n<b>").alias("x"))
    options = {"to": "a@example.org,b@example.org", "host": "127.0.0.1", "tls": "none"}
    options |= {"mask": "card", "from": "Penstock <p@example.org>"}
    with mail_server() as server:
        options["port"] = server.port
        writer = opened(MailSink(), options, df, tmp_path, pipeline="shop\r\nBcc: c@example.org")
        writer.write(df, 0)
    sent = "\n".join(server.lines)
    message: Any = email.message_from_bytes(
        sent[sent.index("Subject:") :].encode(), policy=email.policy.default
    )
    assert message["Subject"] == "[shop Bcc: c@example.org] target: 2 rows"
    assert (message["Bcc"], message["To"]) == (None, "a@example.org, b@example.org")
    assert message["Message-ID"].endswith("@penstock>")
    rows = [json.loads(line) for line in message.get_content().splitlines()[:2]]
    assert rows == [{"id": n, "card": "***", "x": "é\r\n.\r\n<b>"} for n in (0, 1)]
    assert "rcpt TO:<b@example.org>" in sent

    with mail_server(refuses="RCPT") as server:
        with pytest.raises(FlowError) as error:
            opened(MailSink(), {**options, "port": server.port}, df, tmp_path).write(df, 1)
        assert not error.value.retryable
    for wrong in (
        {"to": ""},
        {"to": "a@example.org, b"},
        {"to": "a@example.org\r\nBcc: b@example.org"},
        {"from": "a@b\nBcc: c@d"},
        {"tls": "off"},
        {"header.X": "1"},
        {"url": "http://a/"},
    ):
        with pytest.raises(ConnectorError):
            MailSink().check_options({**options, **wrong})
    assert MailSink().endpoints(options) == ["127.0.0.1"]


def test_rows_are_sent_when_the_receiver_has_recovered(
    spark: Any, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SECRET_HOOK", receiver.url + PATH)
    project = Project(tmp_path, spark).source(
        """
dp.create_sink(
    "alerts", "webhook",
    {"url": "${secret:hook}", "mask": "amount", "max_rows": "1", "max_per_minute": "1"},
)

@dp.append_flow(target="alerts")
def to_people():
    return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
"""
    )
    for number in range(3):
        project.add(f"{number}.json", [{"id": n, "amount": 77} for n in range(2)])
    receiver.answers = [404]
    failures = project.run().failures
    assert [failure.condition for failure in failures] == ["SINK_UNAVAILABLE"]
    assert project.run().state == "COMPLETED"
    bodies = [body for _, _, body in receiver.requests]
    # The first message is repeated; the update does not wait for a minute to send the sum.
    assert [body["row_count"] for body in bodies] == [2, 2, 0]
    assert bodies[0]["idempotency_key"] == bodies[1]["idempotency_key"]
    assert bodies[1]["rows"] == [{"id": 0, "amount": "***", "ts": None}]
    assert (bodies[2]["sink"], bodies[2]["earlier_rows"]) == ("alerts", 4)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in written if b"hidden-path" in text]


@pytest.mark.long
def test_recorded_batches_are_not_sent_again_after_a_kill(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = Project(tmp_path, None).source(
        f"""
dp.create_sink("alerts", "webhook", {{"url": "{receiver.url}"}})

@dp.append_flow(target="alerts")
def to_people():
    return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
"""
    )
    for number in range(3):
        project.add(f"{number}.json", [{"id": number}])
    killed = PipelineProcess(tmp_path)
    receiver.on_request = killed.kill_group  # killed before the response
    assert killed.wait(120) == -signal.SIGKILL
    receiver.on_request = lambda: None
    monkeypatch.setenv("PENSTOCK_KILL_AT", "after_target_commit:to_people:1")
    killed = PipelineProcess(tmp_path)
    assert killed.wait(120) == -signal.SIGKILL, killed.output
    killed.kill_group()
    monkeypatch.delenv("PENSTOCK_KILL_AT")
    last = PipelineProcess(tmp_path)
    assert last.wait(120) == 0, last.output
    bodies = [body for _, _, body in receiver.requests]
    assert [body["batch_id"] for body in bodies] == [0, 0, 1, 2]
    rows = {body["idempotency_key"]: body["rows"][0]["id"] for body in bodies}
    assert sorted(rows.values()) == [0, 1, 2]


@pytest.mark.long
def test_flow_fails_when_the_receiver_is_down_and_a_sum_is_sent_after_a_minute(
    spark: Any, receiver: Receiver, tmp_path: Path
):
    df = spark.range(4)
    down = Receiver()
    down.close()
    started = time.monotonic()
    with pytest.raises(PenstockError) as error:
        opened(WebhookSink(), {"url": down.url + PATH}, df, tmp_path / "down").write(df, 0)
    assert error.value.retryable  # type: ignore[attr-defined]
    assert 5 < time.monotonic() - started < 30
    assert "hidden-path" not in str(error.value)

    writer = opened(WebhookSink(), {"url": receiver.url, "max_per_minute": "1"}, df, tmp_path)
    writer.write(df, 0)
    writer.write(df, 1)
    deadline = time.monotonic() + 90
    while len(receiver.requests) < 2 and time.monotonic() < deadline:
        receiver.thread.join(0.5)
    assert receiver.requests[1][2]["earlier_rows"] == 4
    writer.close()
    assert len(receiver.requests) == 2
