"""Incremental refreshes of views after random changes of their tables."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from stored_rows import merge_files, restore
from view_cases import SHAPES, D, Tables
from view_results import View

from penstock._spark.plans import batch_sources, query_text
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.write.view_writer import COPIES, _with_copies

CASES = 28
APPENDED = {"filtered", "exploded", "joined", "all_rows"}
GROUPED = {
    "groups",
    "renamed_groups",
    "groups_of_join",
    "distinct_rows",
    "join_by_both",
    "mixed_key",
    "union_groups",
    "totals_with_null",
}
# All summed columns have values, and the number of rows is known.
SUBTRACTED = {"totals", "totals_of_join"}
# Aggregates that cannot be merged, even if rows are only added.
NOT_MERGED = {"averages", "different"}
# Combinations of parts that other shapes also have; only the long test checks them.
LONG = {
    "all_rows",
    "right_joined",
    "groups_of_join",
    "distinct_rows",
    "left_join_by_right",
    "mixed_key",
    "totals_of_join",
    "two_windows",
    "two_levels",
    "within",
    "other",
}


def check_rounds(
    spark: Any, root: Path, seed: int, rounds: int, names: Iterable[str] = SHAPES
) -> Counter[str]:
    """Change the tables at random and compare views with queries; returns cases by technique."""
    pick = random.Random(seed)
    tables = Tables(spark, f"{root}/t{seed}", f"{root}/d{seed}", CASES, pick)
    tables.create(vectors=pick.random() < 0.5)
    paths = {"t": f"delta.`{tables.t}`", "d": f"delta.`{tables.d}`"}
    database = duckdb.connect()
    database.sql("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    copies = tables.copy(database)
    views = {
        name: View(spark, SHAPES[name].format(**paths), SHAPES[name].format(**copies), database)
        for name in names
    }
    techniques: Counter[str] = Counter()
    for number in range(rounds):
        only_adds = number % 2 == 0
        (tables.add_rows if only_adds else tables.change)()
        tables.copy(database)
        for name, view in views.items():
            # Other views use the same technique in the next round, with more changes.
            if only_adds and name not in APPENDED | GROUPED | SUBTRACTED | NOT_MERGED:
                continue
            technique = view.refresh()
            expected = view.computed()
            missing, excess = expected - view.rows, view.rows - expected
            assert not missing and not excess, (seed, number, name, technique, missing, excess)
            if only_adds or name in SUBTRACTED:
                assert technique in _techniques(name), name
            techniques[technique] += CASES
    return techniques


def _techniques(name: str) -> set[str]:
    if name in APPENDED:
        return {"APPEND_ONLY"}
    if name in NOT_MERGED:
        return {"ROW_BASED"}
    # Its only table does not change in every round.
    return {"GROUP_AGGREGATE", "NO_OP"} if name == "totals" else {"GROUP_AGGREGATE"}


@pytest.mark.usefixtures("small_queries")
def test_refreshed_views_equal_their_queries_after_random_changes(spark, tmp_path):
    techniques = check_rounds(spark, tmp_path, 1, 2, SHAPES.keys() - LONG)
    assert techniques["ROW_BASED"] >= 500


ZEROS = "k INT, x DOUBLE, y ARRAY<FLOAT>"

LARGE_BYTES = 16 << 20  # from this size on, Delta reads whole files
MAPPED = "TBLPROPERTIES (delta.columnMapping.mode = '{}')"


@pytest.mark.parametrize(
    ("clause", "length"),
    [
        ("PARTITIONED BY (n)", 8),
        (MAPPED.format("name"), 8),
        pytest.param(MAPPED.format("id"), 8, marks=pytest.mark.long),
        pytest.param("", LARGE_BYTES // 16, marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("small_queries")
def test_refreshed_views_equal_their_queries_for_every_layout_of_files(
    spark, tmp_path, clause, length
):
    table = f"delta.`{tmp_path}/t`"
    persistent = "spark.databricks.delta.update.deletionVectors.persistent"
    kind = "CHAR(3)" if clause.startswith("PARTITIONED") else "STRING"
    columns = f"id BIGINT, n BIGINT, text STRING, ch {kind}, `a.b` MAP<STRING, BIGINT>"
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta {clause}")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    values = f"id, id % 3, randstr({length}, 1), 'x', map('k', id)"
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(2) */ {values} FROM range(24)")
    view = View(
        spark,
        f"SELECT id, n, length(text) AS l, ch, `a.b`['k'] AS k FROM {table} WHERE id < 8",
    )
    spark.sql(f"UPDATE {table} SET n = n + 1 WHERE id % 12 = 0")
    spark.sql(f"DELETE FROM {table} WHERE id % 12 = 2")
    spark.conf.set(persistent, "false")
    spark.sql(f"UPDATE {table} SET n = n + 1 WHERE id = 3")
    spark.conf.unset(persistent)
    is_large = sum(file.stat().st_size for file in tmp_path.glob("t/*.parquet")) > 2 * LARGE_BYTES
    assert is_large or clause
    assert view.refresh() == "ROW_BASED"
    assert view.rows == view.computed()
    spark.sql(f"INSERT INTO {table} SELECT {values} FROM range(4)")
    restore(spark, tmp_path / "t", 3)
    assert view.refresh() == "ROW_BASED"
    assert view.rows == view.computed()
    # The same files are added twice, but only RESTORE changes rows in the log.
    version = view.delta.version(str(tmp_path / "t"))
    for _ in range(2):
        merge_files(spark, tmp_path / "t")
        restore(spark, tmp_path / "t", version)
    assert view.refresh() == "ROW_BASED"
    assert view.rows == view.computed()


RECURSIVE = (
    "WITH RECURSIVE r(c, n) AS (SELECT c, 1 FROM {t} UNION ALL SELECT c, n + 1 FROM r WHERE n < 3)"
)
REFUSED = {
    "SELECT avg(v) AS a FROM {t}": "an aggregate or window over all rows",
    "SELECT c, sum(v) OVER () AS s FROM {t}": "an aggregate or window over all rows",
    "SELECT t.c, d.w FROM {t} t FULL JOIN {d} d ON t.k = d.k": "FULL OUTER JOIN",
    "SELECT t.c, d.w FROM {t} t LEFT JOIN {d} d ON t.k > d.k": "a join without equal columns",
    "SELECT c FROM {t} ORDER BY v LIMIT 3": "Limit",
    "SELECT c, sum(v) AS s FROM {t} GROUP BY ROLLUP (c)": "Expand",
    "SELECT c, (SELECT max(w) FROM {d}) AS m FROM {t}": "a scalar subquery",
    f"{RECURSIVE} SELECT c, n FROM r": "UnionLoop",
    "SELECT session_window(timestamp_seconds(v), '5 minutes') AS s, count(*) AS n FROM {t}"
    " GROUP BY session_window(timestamp_seconds(v), '5 minutes')": "session_window",
    "SELECT c FROM {t} WHERE v > 3 OR k IN (SELECT k FROM {d})": "EXISTS or IN within OR",
    "SELECT n FROM {t} GROUP BY n": "no column of the result",
    "SELECT s.c, d.name FROM (SELECT c, k, row_number() OVER (PARTITION BY c ORDER BY v) AS r"
    " FROM {t}) s JOIN {d} d ON s.k = d.k WHERE s.r = 1": "order of rows with equal values",
    "SELECT g, count(*) AS n FROM (SELECT c, first(g) AS g FROM {t} GROUP BY c)"
    " GROUP BY g": "order of rows with equal values",
    "SELECT v, count(*) AS n FROM (SELECT c, max(v) AS v FROM (SELECT *, row_number() OVER"
    " (PARTITION BY c ORDER BY k) AS r FROM {t}) WHERE r = 1 GROUP BY c)"
    " GROUP BY v": "order of rows with equal values",
    "SELECT s, count(*) AS m FROM (SELECT c, CAST(sum(n) AS INT) AS s FROM {t} GROUP BY c)"
    " GROUP BY s": "a sum or an average of floating-point numbers",
}


def test_queries_are_refused_with_a_reason(spark, tmp_path):
    tables = Tables(spark, f"{tmp_path}/t", f"{tmp_path}/d", 4, random.Random(1))
    tables.create(vectors=True)
    paths = {"t": f"delta.`{tables.t}`", "d": f"delta.`{tables.d}`"}
    versions = batch_sources(spark.table(paths["t"]).crossJoin(spark.table(paths["d"]))).versions
    tables.add_rows()
    tables.append(tables.d, D, [(1, 1, "x", 1)])
    for query, reason in REFUSED.items():
        with pytest.raises(Py4JJavaError, match=re.escape(reason)):
            DeltaJvm(spark).query_changes(spark.sql(query.format(**paths)), versions).changedKeys(1)


def test_rows_that_are_added_after_the_analysis_belong_to_the_next_refresh(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (k INT) USING delta")
    delta, query, read = DeltaJvm(spark), f"SELECT k FROM {table}", []
    since = batch_sources(spark.sql(query)).versions
    for k in (1, 2):
        spark.sql(f"INSERT INTO {table} VALUES ({k})")
        df = spark.sql(query)
        spark.sql(f"INSERT INTO {table} VALUES ({k * 10})")
        assert delta.pinned(df).count() == 2 * k - 1
        read += DataFrame(delta.query_changes(df, since).rows(), spark).collect()
        since = batch_sources(df).versions
    assert sorted(row.k for row in read) == [1, 2, 10]


def test_a_table_that_changes_between_two_reads_of_a_query_has_one_version(spark, tmp_path):
    table, copied = f"delta.`{tmp_path}/t`", f"delta.`{tmp_path}/copy`"
    spark.sql(f"CREATE TABLE {table} USING delta AS SELECT 1 AS k")
    shutil.copytree(tmp_path / "t", tmp_path / "copy")  # with the same id
    first, other = spark.table(table), spark.table(copied)
    old = spark.read.option("versionAsOf", 0).table(table)
    spark.sql(f"INSERT INTO {table} VALUES (2)")
    delta, second = DeltaJvm(spark), spark.table(table)
    df = first.union(second.where(f"k IN (SELECT k FROM {table})")).union(other)
    pinned = delta.pinned(df)
    spark.sql(f"INSERT INTO {table} VALUES (3)")
    assert sorted(row.k for row in pinned.collect()) == [1, 1, 1, 2, 2]
    sources = batch_sources(pinned)
    assert sources.unversioned is None
    assert sorted(sources.versions.values()) == ["0", "1"]
    assert query_text(pinned) == query_text(df)
    assert batch_sources(delta.pinned(first.union(old))).unversioned is None
    assert "two versions" in str(batch_sources(delta.pinned(second.union(old))).unversioned)


def test_the_sources_of_recursive_queries_have_versions(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (c INT) USING delta")
    first, second = (spark.sql(f"{RECURSIVE.format(t=table)} SELECT * FROM r") for _ in "12")
    assert batch_sources(first).unversioned is None
    assert list(batch_sources(first).versions.values()) == ["0"]
    assert query_text(first) == query_text(second)


def test_rows_of_two_versions_of_a_table_are_those_of_neither(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    for _ in range(2):
        spark.range(1).write.format("delta").mode("append").save(f"{tmp_path}/t")
    query = f"SELECT id FROM {table} NATURAL JOIN {table}"
    both = batch_sources(spark.sql(f"{query} VERSION AS OF 0"))
    newest = batch_sources(spark.sql(query))
    # Otherwise a view would not change with its query, because its text contains no versions.
    assert (both.versions, both.unversioned) == ({}, "it reads two versions of a table")
    assert list(newest.versions.values()) == ["1"]


def test_new_values_of_identity_columns_are_added(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (a INT, b BIGINT GENERATED ALWAYS AS IDENTITY) USING delta")
    view = View(spark, f"SELECT a, b FROM {table}")
    spark.sql(f"INSERT INTO {table} (a) VALUES (1)")
    assert view.refresh() == "APPEND_ONLY"
    assert view.rows == view.computed() != Counter()


def test_comments_of_columns_do_not_change_the_schema_of_a_source(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (a INT, b INT COMMENT 'old') USING delta")
    view = View(spark, f"SELECT a FROM {table}")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN b COMMENT 'new'")
    assert view.refresh() == "NO_OP"
    before = query_text(spark.table(table))
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN a COMMENT 'a \"new\" one'")
    assert query_text(spark.table(table)) == before
    spark.sql(f"INSERT INTO {table} VALUES (1, 2)")
    assert view.refresh() == "APPEND_ONLY"
    assert view.rows == view.computed() != Counter()


def test_the_text_of_a_query_changes_with_the_columns_that_it_reads(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (a INT, b INT) USING delta")
    queries = [
        f"SELECT {columns} FROM {table}"
        for columns in ("a AS x", "b AS x", "max(a) AS x", "max(b) AS x", "a + b AS x", "*")
    ]
    before = [query_text(spark.sql(query)) for query in queries]
    assert len(set(before)) == len(queries)
    spark.sql(f"ALTER TABLE {table} ADD COLUMN c INT")
    after = [query_text(spark.sql(query)) for query in queries]
    assert [x == y for x, y in zip(before, after, strict=True)] == [True] * 5 + [False]


@pytest.mark.usefixtures("small_queries")
def test_sums_of_large_decimals_keep_their_last_decimal(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (k INT, p DECIMAL(27,10), q DECIMAL(28,10)) USING delta")
    spark.sql(f"INSERT INTO {table} SELECT 1, 2 + 1e-10BD, 2 + 1e-10BD FROM range(2)")
    views = [
        View(spark, f"SELECT k, count(*) AS n, sum({column}) AS s FROM {table} GROUP BY k")
        for column in "pq"
    ]
    spark.sql(f"UPDATE {table} SET p = p + 6e-10BD, q = q + 6e-10BD")
    assert [view.refresh() for view in views] == ["GROUP_AGGREGATE", "ROW_BASED"]
    for view in views:
        assert view.rows == view.computed()


@pytest.mark.usefixtures("small_queries")
def test_zeros_of_both_signs_are_different_rows(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (k INT, x DOUBLE, y STRUCT<z: FLOAT>) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 0D, struct(0F)), (2, -0D, struct(0F))")
    view = View(spark, f"SELECT k, CAST(x AS STRING) AS x, CAST(y AS STRING) AS y FROM {table}")
    spark.sql(f"UPDATE {table} SET x = -x, y = named_struct('z', -0F)")
    assert view.refresh() == "ROW_BASED"
    assert view.rows == view.computed()
    of_view = spark.createDataFrame([(1, 0.0, [0.0]), (1, -0.0, [-0.0]), (2, 0.0, [-0.0])], ZEROS)
    changes = spark.createDataFrame([(1, 0.0, [0.0], -1), (3, -0.0, None, 1)], f"{ZEROS}, n INT")
    result = _with_copies(of_view, changes.withColumnRenamed("n", COPIES))
    assert sorted(map(repr, map(tuple, result.collect()))) == [
        "(1, -0.0, [-0.0])",
        "(2, 0.0, [-0.0])",
        "(3, -0.0, None)",
    ]


@pytest.mark.usefixtures("small_queries")
def test_groups_by_windows_of_time_are_merged_and_replaced(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (k INT, ts TIMESTAMP) USING delta")
    values = "SELECT INT(id % 3), timestamp_seconds(id * 1000) FROM range({}, {})"
    spark.sql(f"INSERT INTO {table} {values.format(0, 20)}")
    views = [
        View(
            spark,
            f"SELECT w, count(*) AS n {more} FROM (SELECT *, window(ts, '1 hour') AS w"
            f" FROM {table}) GROUP BY w",
        )
        for more in ("", ", max(k) AS m")
    ]
    for change, techniques in (
        (f"INSERT INTO {table} {values.format(15, 30)}", ["GROUP_AGGREGATE", "GROUP_AGGREGATE"]),
        (
            f"DELETE FROM {table} WHERE ts < '1970-01-01 02:00:00Z'",
            ["GROUP_AGGREGATE", "ROW_BASED"],
        ),
    ):
        spark.sql(change)
        assert [view.refresh() for view in views] == techniques
        for view in views:
            assert view.rows == view.computed()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) AS n FROM {t} GROUP BY k HAVING sum(x) > 1",
        "SELECT {t}.id, {t}.k FROM {t} JOIN (SELECT k, avg(x) AS a FROM {u} GROUP BY k) m"
        " ON {t}.k = m.k WHERE m.a > 1",
        "SELECT m.k, {t}.id FROM (SELECT k FROM {u} GROUP BY k HAVING sum(x) > 1) m"
        " JOIN {t} ON {t}.k = m.k",
    ],
)
@pytest.mark.usefixtures("small_queries")
def test_rows_that_a_rounded_sum_no_longer_selects_are_removed(spark, tmp_path, query):
    names = {"t": f"delta.`{tmp_path}/t`", "u": f"delta.`{tmp_path}/u`"}
    for name in names.values():
        spark.sql(f"CREATE TABLE {name} (id INT, k INT, x DOUBLE) USING delta")
        spark.sql(f"INSERT INTO {name} VALUES (7, 1, 1.0)")
    view = View(spark, query.format(**names))
    # The rows as if the sum had been 1.0000000000000002 in another order of addition.
    view.rows = Counter([(1, 7) if "m.k, " in query else (7, 1) if "JOIN" in query else (1, 1)])
    spark.sql(f"UPDATE {names['t']} SET id = 8, x = 0.5")
    view.refresh()
    assert view.rows == view.computed() == Counter()


@pytest.mark.usefixtures("small_queries")
def test_running_totals_of_floating_point_numbers_are_joined_incrementally(spark, tmp_path):
    table, names = f"delta.`{tmp_path}/t`", f"delta.`{tmp_path}/names`"
    spark.sql(f"CREATE TABLE {table} (k INT, d INT, x DOUBLE) USING delta")
    spark.sql(f"CREATE TABLE {names} (d INT, name STRING) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 1, 0.5), (1, 2, 1.5), (2, 1, 2.5)")
    spark.sql(f"INSERT INTO {names} VALUES (1, 'a'), (2, 'b')")
    view = View(
        spark,
        "SELECT w.k, w.total, n.name FROM (SELECT *, sum(x) OVER (PARTITION BY k ORDER BY d)"
        f" AS total FROM {table}) w JOIN {names} n ON w.d = n.d",
    )
    spark.sql(f"UPDATE {table} SET x = 4.5 WHERE k = 2")
    spark.sql(f"UPDATE {names} SET name = 'c' WHERE d = 2")
    assert view.refresh() == "ROW_BASED"
    assert view.rows == view.computed()


@pytest.mark.usefixtures("small_queries")
def test_too_many_changed_rows_are_refused_even_if_they_are_equal(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (v INT) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1), (2)")
    query = f"SELECT v DIV 10 AS v FROM {table} LATERAL VIEW explode(sequence(1, 5)) AS e"
    versions = batch_sources(spark.sql(query)).versions
    spark.sql(f"UPDATE {table} SET v = v + 2")
    changes = DeltaJvm(spark).query_changes(spark.sql(query), versions)
    rows = changes.changedRows(1000)
    assert (rows.removed(), rows.added()) == (0, 0)
    with pytest.raises(Py4JJavaError, match="more than 4 rows changed"):
        changes.changedRows(5)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("small_queries")
def test_refreshed_views_equal_their_queries_in_20_000_cases(spark, tmp_path):
    techniques = Counter()
    for seed in range(2, 14):
        techniques += check_rounds(spark, tmp_path, seed, 4)
    assert techniques.total() >= 20_000


def test_number_of_changed_rows_is_estimated_from_the_log(spark, tmp_path):
    name = f"delta.`{tmp_path / 'rows'}`"
    spark.range(1000).coalesce(1).write.format("delta").save(str(tmp_path / "rows"))
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    query = f"SELECT id FROM {name}"
    delta = DeltaJvm(spark)

    def changed(statement: str) -> list[tuple[float, float]]:
        versions = batch_sources(spark.sql(query)).versions
        spark.sql(statement)
        sizes = delta.query_changes(spark.sql(query), versions).sizes()
        return [(float(size.rows()), float(size.share())) for size in sizes]

    ((rows, share),) = changed(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ * FROM RANGE(100)")
    assert rows == 100
    assert 0.05 < share < 0.4
    # One file with the row is rewritten.
    ((rows, share),) = changed(f"UPDATE {name} SET id = -1 WHERE id = 500")
    assert rows == 2000
    assert share == 1
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for number in (7, 8):
        ((rows, share),) = changed(f"DELETE FROM {name} WHERE id = 9{number}7")
        assert rows == 1
        assert 0 < share < 0.002
