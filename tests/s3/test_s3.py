"""Pipelines whose tables, checkpoints and state are on S3."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from botocore.session import Session
from s3_double import BUCKET, CREDENTIALS, FaultyProxy, S3Double, settings_of
from store_project import SOURCE, STORAGE, StoreSession, check_tables, penstock, write_settings

from penstock._formats.options import QueueOptions
from penstock.errors import ConnectorError
from penstock.sources.files import queue
from penstock.sources.files.queue import FileQueue, QueueUnreachable

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Double]:
    double = S3Double(tmp_path_factory.mktemp("s3") / "moto.log")
    yield double
    double.stop()


@pytest.fixture(scope="module")
def proxy(server: S3Double) -> Iterator[FaultyProxy]:
    made = FaultyProxy(server.port)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def session(proxy: FaultyProxy, query_settings: dict[str, str]) -> Iterator[StoreSession]:
    made = StoreSession("s3", {**settings_of(proxy.port), **query_settings}, STORAGE)
    yield made
    made.stop()


def test_each_row_is_stored_once_when_requests_fail_and_responses_are_lost(
    proxy: FaultyProxy, session: StoreSession, tmp_path: Path
) -> None:
    uploads = itertools.count(1)

    def fault(number: int, method: str, path: str) -> str:
        if method == "PUT" and next(uploads) % 10 == 0:
            return "lost"
        return "" if number % 50 else "busy"

    incoming = tmp_path / "in"
    incoming.mkdir()
    (tmp_path / "shop.py").write_text(SOURCE.format(folder=incoming), encoding="utf-8")
    write_settings(tmp_path, STORAGE, settings_of(proxy.port))
    with mock.patch.object(proxy, "fault", fault):
        for update in range(2):
            lines = [json.dumps({"id": 1000 * update + number}) for number in range(1000)]
            (incoming / f"{update}.json").write_text("\n".join(lines), encoding="utf-8")
            assert "COMPLETED" in session.penstock(tmp_path, "run")
    assert proxy.counts["busy"] > 5
    assert proxy.counts["lost"] > 5
    check_tables(session("read", STORAGE), 2000)
    # The updates have released their leases: other code in the session may commit.
    session("sql", f"CREATE TABLE delta.`s3a://{BUCKET}/report` AS SELECT 1 AS n")


def test_a_version_has_one_writer_when_the_response_to_its_commit_is_lost(
    proxy: FaultyProxy, session: StoreSession
) -> None:
    lost: set[str] = set()

    def fault(number: int, method: str, path: str) -> str:
        if method == "PUT" and path.endswith("5.json") and path not in lost:
            lost.add(path)
            return "lost"
        return ""

    with mock.patch.object(proxy, "fault", fault):
        result = session("race", "penstock.storage.ObjectLogStore", f"s3a://{BUCKET}/race")
    a, b, contents = result["won"]["a"], result["won"]["b"], result["contents"]
    assert sorted(a + b) == list(range(len(contents)))
    assert [version for version, writer in enumerate(contents) if writer == "a"] == a
    assert len(lost) == 4


def test_log_listing_requests_only_the_needed_versions(
    server: S3Double, proxy: FaultyProxy, session: StoreSession
) -> None:
    client = Landing(server, "log").s3
    names = [f"{number:020d}.{suffix}" for number in range(20) for suffix in ("crc", "json")]
    names += ["_last_checkpoint", "_sidecars/x.parquet"]
    for name in names:
        client.put_object(Bucket="log", Key=f"a b/t/_delta_log/{name}", Body=b"{}")
    session("sql", "SET fs.s3a.bucket.log.paging.maximum=10")
    folder = "s3a://log/a b/t/_delta_log"
    requests: list[str] = []

    def fault(number: int, method: str, path: str) -> str:
        requests.append(path)
        return ""

    def listed(name: str) -> list[list[Any]]:
        return session("log", "penstock.storage.ObjectLogStore", f"{folder}/{name}")

    expected = [[f"{folder}/{name}", 2] for name in names[:-1]]
    with mock.patch.object(proxy, "fault", fault):
        assert listed(f"{18:020d}.") == expected[36:]
        assert listed(names[37]) == expected[37:]
    assert len(requests) == 2
    assert all("start-after=" in path for path in requests)
    assert listed(f"{0:020d}.") == expected
    assert listed("z") == []
    folder = "s3a://log/a b"
    assert listed("a") == [[f"{folder}/t", 0]]
    folder = "s3a://log/none/_delta_log"
    assert listed(f"{0:020d}.") == [["java.io.FileNotFoundException"]]

    # A server that has only the older API.
    Landing(server, "older").s3.put_object(Bucket="older", Key=f"t/_delta_log/{names[0]}", Body=b"")
    session("sql", "SET fs.s3a.bucket.older.list.version=1")
    requests.clear()
    folder = "s3a://older/t/_delta_log"
    with mock.patch.object(proxy, "fault", fault):
        assert listed(names[0]) == [[f"{folder}/{names[0]}", 0]]
    assert requests
    assert not any("list-type=2" in path for path in requests)


def test_small_files_of_a_checkpoint_need_no_folder_requests(
    proxy: FaultyProxy, session: StoreSession
) -> None:
    requests: list[str] = []

    def fault(number: int, method: str, path: str) -> str:
        requests.append(f"{method} {path.rpartition('/')[2]}")
        return ""

    with mock.patch.object(proxy, "fault", fault):
        assert session("checkpoint", f"s3a://{BUCKET}/flow/epoch") == [False, True]
    listing = requests.pop(3)  # of a folder `committed.json`, by the condition of its first PUT
    assert "list-type=2" in listing
    assert requests == ["HEAD 0", "PUT 0", "HEAD committed.json", "PUT committed.json", "HEAD 0"]


def test_error_of_a_refused_commit_names_the_bucket(
    proxy: FaultyProxy, session: StoreSession
) -> None:
    table = f"s3a://{BUCKET}/refused"

    def fault(number: int, method: str, path: str) -> str:
        return "denied" if method == "PUT" and path.endswith(".json") else ""

    with (
        mock.patch.object(proxy, "fault", fault),
        pytest.raises(AssertionError, match=f"AccessDeniedException: {table}/_delta_log/0+.json: "),
    ):
        session("sql", f"CREATE TABLE delta.`{table}` (n INT)")


def test_request_that_is_always_refused_as_busy_fails(
    server: S3Double, proxy: FaultyProxy, session: StoreSession
) -> None:
    Landing(server, "busy")
    for setting in ("retry.throttle.interval=1ms", "attempts.maximum=1"):
        session("sql", f"SET fs.s3a.bucket.busy.{setting}")
    requests = itertools.count()

    def fault(number: int, method: str, path: str) -> str:
        is_commit = method == "PUT" and path.endswith(".json")
        return "busy" if is_commit and next(requests) < 24 else ""

    with (
        mock.patch.object(proxy, "fault", fault),
        pytest.raises(AssertionError, match="Status Code: 503"),
    ):
        session("sql", "CREATE TABLE delta.`s3a://busy/table` (n INT)")


def test_replaced_object_is_read_again(server: S3Double, session: StoreSession) -> None:
    landing = Landing(server, "replaced")
    path = "s3a://replaced/in/0"  # opened like Spark's offset files
    for number in range(3):
        assert landing.put("in/0") == number
        content = json.dumps({"id": number})
        assert session("copied", path) == content
        assert session("sql", f"SELECT string(content) FROM binaryFile.`{path}`") == [[content]]


@pytest.mark.long  # each command starts Spark
def test_commands_read_and_repair_tables_on_s3(server: S3Double, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": number}) for number in range(100)]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines), encoding="utf-8")
    source = SOURCE.format(folder=tmp_path / "in")
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    write_settings(tmp_path, f"{STORAGE}-commands", settings_of(server.port))
    assert "COMPLETED" in penstock(tmp_path, "run")
    rows = json.loads(penstock(tmp_path, "preview", "bronze", "-n", "500", "--output", "json"))
    assert len(rows) == 90
    listed = json.loads(penstock(tmp_path, "quarantine", "list", "--output", "json"))
    assert listed == [{"table": "bronze", "rows": 10, "by_rule": {"positive": 10}}]
    assert "positive" in penstock(tmp_path, "quarantine", "show", "bronze")
    assert "bronze" in penstock(tmp_path, "checkpoint", "list")
    (tmp_path / "shop.py").write_text(source.replace("id % 10 > 0", "id % 10 >= 0"), "utf-8")
    penstock(tmp_path, "quarantine", "replay", "bronze")
    assert "COMPLETED" in penstock(tmp_path, "run", "--full-refresh", "gold")
    gold = json.loads(penstock(tmp_path, "preview", "gold", "--output", "json"))
    assert sum(int(row["s"]) for row in gold) == sum(range(100))


NOTIFIED = """
import penstock as dp


@dp.table
def bronze():
    reader = spark.readStream.format("cloudFiles").schema("id BIGINT")
    return reader.options(**{options}).load("s3a://{bucket}/in")
"""


class Landing:
    """A bucket of the server; after `announce` it sends events to a queue, like S3."""

    def __init__(self, server: S3Double, name: str) -> None:
        session = Session()
        session.set_credentials(*CREDENTIALS.values())
        endpoint = {"endpoint_url": f"http://127.0.0.1:{server.port}", "region_name": "us-east-1"}
        self.s3 = session.create_client("s3", **endpoint)
        self.sqs = session.create_client("sqs", **endpoint)
        self.name, self.ids = name, itertools.count()
        self.s3.create_bucket(Bucket=name)
        hidden = {"VisibilityTimeout": "1"}
        self.url = self.sqs.create_queue(QueueName=name, Attributes=hidden)["QueueUrl"]
        queue_options = {"queueUrl": self.url, "region": "us-east-1"}
        self.options = {"useNotifications": "true", **queue_options}

    def announce(self, *events: str) -> None:
        arn = f"arn:aws:sqs:us-east-1:123456789012:{self.name}"
        queues = [{"QueueArn": arn, "Events": list(events)}] if events else []
        self.s3.put_bucket_notification_configuration(
            Bucket=self.name, NotificationConfiguration={"QueueConfigurations": queues}
        )

    def put(self, key: str) -> int:
        number = next(self.ids)
        self.s3.put_object(Bucket=self.name, Key=key, Body=json.dumps({"id": number}).encode())
        return number

    def send(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.sqs.send_message(QueueUrl=self.url, MessageBody=text)

    def messages(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        queue = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(count) for count in queue["Attributes"].values())

    def keys(self) -> set[str]:
        listed = self.s3.list_objects_v2(Bucket=self.name).get("Contents", ())
        # S3A creates directory markers.
        return {entry["Key"] for entry in listed if not entry["Key"].endswith("/")}


class NotifiedProject:
    """A project that reads the bucket; a call runs an update and returns the ids in the table."""

    def __init__(self, landing: Landing, session: StoreSession, folder: Path, port: int) -> None:
        self.landing, self.session, self.folder = landing, session, folder
        self.storage = f"{STORAGE}-{landing.name}"
        write_settings(folder, self.storage, settings_of(port))

    def __call__(self, **more: str) -> list[int]:
        options = {"format": "json", **self.landing.options, **more}
        options = {f"cloudFiles.{name}": value for name, value in options.items()}
        text = NOTIFIED.format(options=options, bucket=self.landing.name)
        (self.folder / "shop.py").write_text(text, encoding="utf-8")
        assert "COMPLETED" in self.session.penstock(self.folder, "run")
        return sorted(row["id"] for row in self.session("read", self.storage)["bronze"])


def test_files_that_the_bucket_announces_are_read_once(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    landing = Landing(server, "landing")
    run = NotifiedProject(landing, session, tmp_path, server.port)
    expected = [landing.put("in/before.json")]
    landing.announce("s3:ObjectCreated:*", "s3:ObjectRemoved:*")
    expected += [landing.put(key) for key in ("in/a b+ü%41.json", "in/k=1/b.json", "in/c.json")]
    for key in ("elsewhere/x.json", "in/_hidden.json", "in/gone.json"):
        landing.put(key)
    landing.s3.delete_object(Bucket="landing", Key="in/gone.json")
    landing.send("no event")
    detail = {"bucket": {"name": "landing"}, "object": {"key": "in/c.json", "size": 1}}
    bridge = {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}
    landing.send({**bridge, "time": "2020-11-26T10:00:00Z"})
    assert landing.messages() >= 8
    assert run() == expected
    assert landing.messages() == 1
    expected.append(landing.put("in/announced.json"))
    assert run(fetchParallelism="3") == expected


def test_listing_by_key_returns_the_files_after_a_key(
    server: S3Double, session: StoreSession
) -> None:
    landing = Landing(server, "ordered")
    names = ["a", "a b+ü%41#", "a-1", "a.json", "b", "c=2026", "ü", "üb", "日", "z~"]
    keys = {f"in/{first}/{second}.txt" for first in names for second in names[::3]}
    keys |= {f"in/{name}.txt" for name in names} | {"in/c=2026/ü/x/1.txt", "in/c=2026/ü-/2.txt"}
    for key in keys | {"in/_x/1", "in/b/.x/1", "in/b/_y", "out/1", "in2", "in-1/x"}:
        landing.put(key)
    expected = sorted(f"s3a://ordered/{key}" for key in keys)
    beyond = ["", "s3a://ordered/in/c=2026/", "s3a://ordered/in/c=2027/x", "s3a://ordered/in/~"]
    lasts = [*expected[::4], *beyond, expected[-1]]
    for last, files in zip(lasts, session("after", "s3a://ordered/in", *lasts), strict=True):
        assert sorted(files) == [path for path in expected if path > last], last
    (some,) = session("after", "s3a://ordered/in/{a,c=*}", "s3a://ordered/in/c")
    assert set(some) == {path for path in expected if "/c=2026" in path}
    assert session("after", "s3a://ordered/none", "") == [[]]


@pytest.mark.long  # four updates
def test_new_objects_are_listed_in_the_order_of_keys(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    landing = Landing(server, "incremental")
    run = NotifiedProject(landing, session, tmp_path, server.port)
    incremental = {"useNotifications": "false", "useIncrementalListing": "true"}
    expected = [landing.put(key) for key in ("in/day=2/b.json", "in/day=1/a.json")]
    assert run(**incremental) == expected
    # The first of these keys sorts before keys that were read, but was written shortly after.
    for key in ("in/day=1/b.json", "in/day=2/ü.json", "in/day=3/a.json", "elsewhere/x", "in/_x"):
        expected.append(landing.put(key))
    expected = expected[:-2]
    assert run(**incremental) == expected
    expected.append(landing.put("in/day=3/b.json"))
    assert run(useNotifications="false") == expected
    expected.append(landing.put("in/day=0/b.json"))
    assert run(**incremental) == expected


@pytest.mark.long  # ten updates
def test_unannounced_files_are_read_by_backfill_and_files_are_cleaned_up(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    landing = Landing(server, "switched")
    run = NotifiedProject(landing, session, tmp_path, server.port)
    landing.announce("s3:ObjectCreated:*")
    expected = [landing.put("in/k=1/first.json")]
    assert run() == expected
    expected.append(landing.put("in/listed.json"))
    assert run(useNotifications="false") == expected
    landing.announce()
    expected.append(landing.put("in/missed.json"))
    # The switch back starts with a listing; later, only a backfill reads unannounced files.
    assert run() == expected
    late = landing.put("in/late.json")
    assert run(backfillInterval="1 day") == expected
    expected.append(late)
    assert run(backfillInterval="1 ms") == expected
    assert run() == expected
    landing.put("elsewhere/x.json")
    cleaning = {"cleanSource": "DELETE", "cleanSource.retentionDuration": "0 days"}
    for _ in range(4):
        assert run(**cleaning) == expected
        if len(landing.keys()) == 1:
            break
    assert landing.keys() == {"elsewhere/x.json"}


def test_a_queue_that_cannot_be_read_is_an_error_with_a_hint(server: S3Double) -> None:
    def receive(url: str) -> None:
        key, secret = CREDENTIALS.values()
        options = QueueOptions(
            url=url, receivers=1, region="us-east-1", access_key=key, secret_key=secret
        )
        FileQueue(options).receive(0)

    with pytest.raises(ConnectorError) as refused:
        receive(f"http://127.0.0.1:{server.port}/123456789012/missing")
    assert refused.value.condition == "FILE_QUEUE_REFUSED"
    assert "queueUrl" in str(refused.value)
    with mock.patch.object(queue, "_ATTEMPTS", 1), pytest.raises(QueueUnreachable, match="9"):
        receive("http://127.0.0.1:9/123456789012/missing")


@pytest.mark.long  # each command starts Spark
def test_announced_files_survive_a_kill_at_each_step(server: S3Double, tmp_path: Path) -> None:
    landing, storage = Landing(server, "killed"), f"{STORAGE}-killed"
    write_settings(tmp_path, storage, settings_of(server.port))
    options = {"format": "json", **landing.options}
    options = {f"cloudFiles.{name}": value for name, value in options.items()}
    text = NOTIFIED.format(options=options, bucket="killed")
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    landing.announce("s3:ObjectCreated:*")
    steps = (
        "after_announcement:bronze:None",
        "before_write:bronze:0",
        "after_target_commit:bronze:0",
    )
    for step in steps:
        for number in range(3):
            landing.put(f"in/{step[:9]}{number}.json")
        penstock(tmp_path, "run", kill_at=step)
    landing.put("in/last.json")
    assert "COMPLETED" in penstock(tmp_path, "run")
    rows = json.loads(penstock(tmp_path, "preview", "bronze", "-n", "500", "--output", "json"))
    assert sorted(int(row["id"]) for row in rows) == list(range(10))
    assert landing.messages() == 0


REPAIRED = """
import penstock as dp
from pyspark.sql import functions as F


def incoming():
    return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json("{folder}")


@dp.table
@dp.expect_or_drop("positive", "id % 10 > 0")
def bronze():
    return incoming()


@dp.table
@dp.expect_or_drop("known", "k IS NOT NULL")
def sums():
    return incoming().groupBy((F.col("id") % 3).alias("k")).agg(F.count("*").alias("n"))
"""
RESET = """
from pathlib import Path

from penstock._project.spec import load_settings
from penstock._repair.reset import reset_flow
from penstock.sources.base import EARLIEST

reset_flow(load_settings(Path.cwd()), "bronze", EARLIEST, truncate=True, execute=True)
"""


@pytest.mark.long  # each command starts Spark
@pytest.mark.timeout(1200)
def test_repairs_resume_after_a_kill_at_each_step(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"id": 50 * number + each}) for each in range(50)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
    source = REPAIRED.format(folder=tmp_path / "in")
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    storage = f"{STORAGE}-repairs"
    write_settings(tmp_path, storage, settings_of(server.port))
    assert "COMPLETED" in penstock(tmp_path, "run")
    good = [number for number in range(100) if number % 10]

    def rows(table: str) -> list[dict[str, Any]]:
        return session("read", storage)[table]

    bronze = f"{storage}/tables/spark_catalog/default/bronze"
    session("sql", f"DELETE FROM delta.`{bronze}` WHERE id % 50 < 20")
    backfill = ["backfill", "bronze", "--by", "id", "--yes"]
    penstock(tmp_path, *backfill, kill_at="after_target_commit:bronze:0")
    penstock(tmp_path, "backfill", "bronze", "--resume")
    assert sorted(row["id"] for row in rows("bronze")) == good

    done = subprocess.run(
        [sys.executable, "-c", RESET],
        cwd=tmp_path,
        env={**os.environ, **CREDENTIALS, "PENSTOCK_KILL_AT": "reset_marked:bronze:None"},
        timeout=900,
        check=False,
    )
    assert done.returncode == -9
    assert "COMPLETED" in penstock(tmp_path, "run")
    assert sorted(row["id"] for row in rows("bronze")) == good
    assert len(rows("bronze_quarantine")) == 10

    changed = source.replace("% 3", "% 4")
    (tmp_path / "shop.py").write_text(changed, encoding="utf-8")
    penstock(tmp_path, "migrate", "sums", "--yes", kill_at="migration_planned:sums:None")
    for step in ("marked", "quarantined", "replaced", "switched"):
        at = f"migration_{step}:sums:None"
        penstock(tmp_path, "migrate", "sums", "--resume", kill_at=at)
    penstock(tmp_path, "migrate", "sums", "--resume")
    assert {row["k"]: row["n"] for row in rows("sums")} == dict.fromkeys(range(4), 25)
    (tmp_path / "in" / "2.json").write_text('{"id": 100}', encoding="utf-8")
    assert "COMPLETED" in penstock(tmp_path, "run")
    assert {row["k"]: row["n"] for row in rows("sums")} == {0: 26, 1: 25, 2: 25, 3: 25}
