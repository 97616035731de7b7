"""Pages of tables and quarantined rows, on Delta tables written by delta-rs."""

import datetime as dt
import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from planted_secrets import planted

from penstock._tables.read.browsing import TableBrowser
from penstock._tables.read.row_selection import RowSelection
from penstock._tables.read.stored_table import StoredTable
from penstock.errors import SpecError

NAME = "spark_catalog.default.orders"


class Store:
    """A storage root with a quarantine table that gets the same commits as from the writer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = root / "tables/spark_catalog/default/orders"
        self.batches = 0

    def quarantine(self, *rows: tuple[list[str], dict], source: dict | None = None) -> None:
        body = pa.table(
            {
                "x": pa.array([None] * len(rows), pa.int64()),
                "_failed_rules": pa.array([failed for failed, _ in rows], pa.list_(pa.string())),
                "_row": pa.array([json.dumps(row) for _, row in rows]),
                "_source": pa.array([source and json.dumps(source)] * len(rows), pa.string()),
            }
        )
        record = {"penstock": 1, "flow": "clean", "app": "a", "batch": self.batches}
        write_deltalake(
            f"{self.table}_quarantine",
            body,
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": json.dumps(record)}
            ),
        )
        self.batches += 1


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage")


@pytest.fixture
def browser(store):
    return TableBrowser(store.root.as_uri())


def _ids(page):
    return [json.loads(row["row"])["id"] for row in page["rows"]]


def test_quarantine_is_paged_with_the_newest_batch_first(store, browser):
    for batch in range(4):
        store.quarantine(*[(["positive"], {"id": 10 * batch + n}) for n in range(3)])
    first = browser.quarantine(NAME, None, limit=5)
    assert _ids(first) == [30, 31, 32, 20, 21]
    assert (first["total"], first["searched"]) == (12, 5)
    assert [row["batch_id"] for row in first["rows"]] == [3, 3, 3, 2, 2]
    assert {row["flow"] for row in first["rows"]} == {"clean"}
    assert all(row["at"] > 1_600_000_000_000 for row in first["rows"])
    ids = [row["id"] for row in first["rows"]]
    files, positions = zip(*(row_id.split("-") for row_id in ids), strict=True)
    assert positions == ("0", "1", "2", "0", "1") and len(set(files)) == 2
    assert len(RowSelection(rows=tuple(ids)).positions()) == 2
    # A row that is added between two pages neither moves nor duplicates later rows.
    store.quarantine((["positive"], {"id": 99}))
    second = browser.quarantine(NAME, None, before=first["next"], limit=5)
    third = browser.quarantine(NAME, None, before=second["next"], limit=5)
    assert _ids(second) + _ids(third) == [22, 10, 11, 12, 0, 1, 2]
    assert third["next"] is None
    again = browser.quarantine(NAME, None, search='"id": 30', limit=1)
    assert [row["id"] for row in again["rows"]] == ids[:1]
    assert _ids(browser.quarantine(NAME, None, limit=1)) == [99]


def test_rows_have_their_batch_when_the_table_was_recreated(store, browser):
    for number in range(3):
        store.quarantine((["r"], {"id": number}))
    assert len(browser.quarantine(NAME, None, limit=5)["rows"]) == 3
    shutil.rmtree(f"{store.table}_quarantine")
    store.quarantine((["r"], {"id": 3}))
    (row,) = browser.quarantine(NAME, None, limit=5)["rows"]
    assert (row["flow"], row["batch_id"], row["version"]) == ("clean", 3, 0)


def test_rows_are_searched_by_string_source_or_rule(store, browser):
    store.quarantine((["positive"], {"id": 1, "who": "Ada"}), source={"topic": "orders"})
    store.quarantine((["known", "positive"], {"id": 2, "who": "Bob"}), source={"file": "b.json"})
    for filters, ids in (
        ({"search": "aDA"}, [1]),
        ({"search": "B.JSON"}, [2]),
        ({"search": "known"}, [2]),
        ({"rule": "known"}, [2]),
        ({"rule": "positive"}, [2, 1]),
        ({"rule": "positive", "search": "orders"}, [1]),
        ({"rule": "posit"}, []),
        ({"search": "nowhere"}, []),
    ):
        assert _ids(browser.quarantine(NAME, None, limit=5, **filters)) == ids, filters
    (summary,) = browser.quarantines({})
    assert (summary["dataset"], summary["rows"], summary["counted"]) == (NAME, 2, 2)
    assert summary["rules"] == {"positive": 2, "known": 1}


def test_long_search_continues_from_its_last_position(store):
    for number in range(3):
        store.quarantine((["r"], {"id": number}))
    ticks = iter(range(1000))
    browser = TableBrowser(str(store.root), monotonic=lambda: float(next(ticks)))
    ids, position, pages = [], "", 0
    while position is not None:
        page = browser.quarantine(NAME, None, search='"id": 0', before=position, limit=5)
        ids, position, pages = ids + _ids(page), page["next"], pages + 1
        assert page["searched"] >= 1
    assert ids == [0] and pages > 1


def test_slow_summary_is_cached_between_requests(store):
    store.quarantine((["r"], {"id": 1}))
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.25
        return clock[0]

    browser = TableBrowser(str(store.root), monotonic=tick)
    assert browser.quarantines({})[0]["rows"] == 1
    store.quarantine((["r"], {"id": 2}))
    assert browser.quarantines({})[0]["rows"] == 1
    clock[0] += 10
    assert browser.quarantines({})[0]["rows"] == 2
    store.quarantine((["r"], {"id": 3}))
    assert _ids(browser.quarantine(NAME, None, limit=1)) == [3]


def test_secrets_in_rows_are_not_shown_and_not_searchable(store, browser):
    texts, secrets = planted()
    rows = [(["r"], {"id": n, "note": text}) for n, text in enumerate(texts)]
    store.quarantine(
        *rows, (["r"], {"id": -1, "password": "pw-of-jane", "deep": {"token": "tk-9"}})
    )
    write_deltalake(
        str(store.table),
        pa.table(
            {
                "note": texts,
                "raw": [text.encode() for text in texts],
                "api_key": ["ak-very-secret"] * len(texts),
                "deep": [{"client_secret": "cs-very-secret", "n": 1}] * len(texts),
            }
        ),
    )
    preview = browser.preview(NAME, None, limit=200)
    page = browser.quarantine(NAME, None, limit=200)
    output = json.dumps([preview, page])
    own = {"pw-of-jane", "tk-9", "ak-very-secret", "cs-very-secret"}
    assert {value for value in {*secrets, *own} if value in output} == set()
    assert len(page["rows"]) == len(texts) + 1
    for secret in ("pw-of-jane", "tk-9", *sorted(secrets)[:5]):
        assert browser.quarantine(NAME, None, search=secret, limit=5)["rows"] == []


def test_preview_values_are_strings_of_limited_length(store, browser):
    timestamp = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    write_deltalake(
        str(store.table),
        pa.table(
            {
                "big": ["x" * 100_000],
                "id": [2**60],
                "none": pa.array([None], pa.string()),
                "bytes": [b"\xff\x00"],
                "text": [b"plain"],
                "price": [Decimal("1.50")],
                "at": pa.array([timestamp], pa.timestamp("us", "UTC")),
                "tags": [["a", "b"]],
                "part": ["a b/c%"],
                "not": [float("nan")],
            }
        ),
        partition_by=["part"],
    )
    write_deltalake(
        str(store.table), pa.table({"part": ["new"], "id": [1]}), mode="append", schema_mode="merge"
    )
    preview = browser.preview(NAME, None, limit=50)
    assert (preview["total"], preview["version"], preview["more_columns"]) == (2, 1, 0)
    names = [column["name"] for column in preview["columns"]]
    new, old = (dict(zip(names, row, strict=True)) for row in preview["rows"])
    assert (new["part"], new["id"], new["big"]) == ("new", "1", None)
    assert old.pop("big") == "x" * 399 + "…"
    assert old == {
        "id": str(2**60),
        "none": None,
        "bytes": "0xff00",
        "text": "plain",
        "price": "1.50",
        "at": "2026-01-02T03:04:05+00:00",
        "tags": '["a", "b"]',
        "part": "a b/c%",
        "not": "nan",
    }
    assert len(browser.preview(NAME, None, limit=1)["rows"]) == 1


def test_error_gives_the_reason_when_a_table_cannot_be_read(store, browser):
    with pytest.raises(SpecError, match="not written yet") as caught:
        browser.preview(NAME, None, limit=1)
    assert caught.value.condition == "TABLE_NOT_FOUND"
    write_deltalake(str(store.table), pa.table({"x": [1]}))
    log = store.table / "_delta_log" / f"{1:020}.json"
    actions = map(json.loads, log.with_name(f"{0:020}.json").read_text().splitlines())
    added = next(action["add"] for action in actions if "add" in action)
    for file in ("../../../secret.parquet", "file:///etc/x.parquet", "/etc/x", "%2e%2e/x"):
        log.write_text(json.dumps({"add": added | {"path": file}}) + "\n")
        with pytest.raises(SpecError, match="outside of its folder"):
            TableBrowser(str(store.root)).preview(NAME, None, limit=1)
    mapped = {"minReaderVersion": 3, "minWriterVersion": 7}
    mapped |= {"readerFeatures": ["fromTomorrow"], "writerFeatures": ["fromTomorrow"]}
    log.write_text(json.dumps({"protocol": mapped}) + "\n")
    with pytest.raises(SpecError, match="cannot be read without Spark") as caught:
        TableBrowser(str(store.root)).preview(NAME, None, limit=1)
    assert caught.value.condition == "TABLE_NOT_READABLE"
    log.unlink()
    for file in store.table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(SpecError, match="cannot be read"):
        TableBrowser(str(store.root)).preview(NAME, None, limit=1)


def test_tables_outside_the_storage_are_refused(store, tmp_path, browser):
    write_deltalake(str(store.table), pa.table({"x": [1]}))
    elsewhere = tmp_path / "private"
    write_deltalake(str(elsewhere), pa.table({"x": [7]}))
    for name in ("a.b.../../../../private", "..../../private", "../../private", "a.b.c.d", ""):
        with pytest.raises(SpecError):
            browser.preview(name, None, limit=1)
    with pytest.raises(SpecError):
        browser.preview("a.b.c", str(elsewhere), limit=1)
    with pytest.raises(SpecError):
        browser.preview("a.b.c", f"{store.root}/../private", limit=1)
    trusting = TableBrowser(str(store.root), trusts_paths=True)
    assert trusting.preview("a.b.c", elsewhere.as_uri(), limit=1)["rows"] == [["7"]]
    with pytest.raises(SpecError, match="not on this machine"):
        TableBrowser("s3a://bucket/root").preview("a.b.c", "s3a://bucket/t", limit=1)
    with pytest.raises(ValueError, match="not a position"):
        browser.quarantine(NAME, None, before="../1", limit=1)


def test_deletion_flags_are_applied_and_take_one_bit_per_row(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"x": range(1000)}))
    snapshot = StoredTable(tmp_path / "t").snapshot()
    (file,) = snapshot.files
    flags = pa.array(
        [number % 3 > 0 for number in range(900)]
    )  # rows without a flag are not deleted
    snapshot = replace(snapshot, kept={file.path: flags})
    assert snapshot.rows == 700
    assert snapshot.kept[file.path].nbytes < 200
    expected = [number for number in range(1000) if number >= 900 or number % 3]
    rows = list(snapshot.read(file, snapshot.columns, at_once=64))
    assert [at for at, _ in rows] == [row["x"] for _, row in rows] == expected
    rows = list(snapshot.read(file, snapshot.columns, at_once=64, skip=130))
    assert [at for at, _ in rows] == [at for at in expected if at >= 130]


def test_recreated_table_is_shown_after_its_folder_was_deleted(store, browser):
    for number in range(3):
        write_deltalake(str(store.table), pa.table({"x": [number]}), mode="append")
    assert browser.preview(NAME, None, limit=9)["total"] == 3
    shutil.rmtree(store.table)
    write_deltalake(str(store.table), pa.table({"y": ["new"]}))
    preview = browser.preview(NAME, None, limit=9)
    assert (preview["version"], preview["rows"]) == (0, [["new"]])
    # The table that is created again has the same version number.
    shutil.rmtree(store.table)
    write_deltalake(str(store.table), pa.table({"z": [True]}))
    assert browser.preview(NAME, None, limit=9)["rows"] == [["true"]]
