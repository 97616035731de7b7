"""Tables that Delta itself writes are read without Spark as Spark reads them, or refused."""

import pytest

from penstock._tables.read.browsing import TableBrowser
from penstock.errors import SpecError

pytestmark = pytest.mark.spark


def test_rows_equal_those_of_spark_when_a_table_has_vectors_mapping_or_partitions(spark, tmp_path):
    root = tmp_path / "storage"
    folder = root / "tables" / "c" / "s"
    browser = TableBrowser(root.as_uri())

    def table(name: str, **properties: str) -> str:
        target = f"delta.`{folder / name}`"
        listed = ", ".join(f"'delta.{key}' = '{value}'" for key, value in properties.items())
        spark.sql(
            f"CREATE TABLE {target} USING delta PARTITIONED BY (part) TBLPROPERTIES ({listed}) AS "
            "SELECT /*+ COALESCE(1) */ id, concat('a b/%', id % 2) AS part, "
            "named_struct('inside', id * 2) AS nested, array(named_struct('n', id)) AS list, "
            "map('k', named_struct('v', id)) AS map, timestamp_millis(id) AS at FROM range(8)"
        )
        return target

    def preview(name: str) -> tuple[list[str], list[list[str | None]]]:
        page = browser.preview(f"c.s.{name}", None, limit=50)
        assert page["total"] == len(page["rows"])
        names = [column["name"] for column in page["columns"]]
        at = names.index("id") if "id" in names else names.index("key")
        return names, sorted(page["rows"], key=lambda row: int(row[at]))

    target = table("mapped", **{"columnMapping.mode": "name", "enableDeletionVectors": "true"})
    spark.sql(f"ALTER TABLE {target} RENAME COLUMN id TO key")
    spark.sql(f"ALTER TABLE {target} DROP COLUMN at")
    spark.sql(f"ALTER TABLE {target} RENAME COLUMN nested.inside TO `out side`")
    assert preview("mapped")[1][3][0] == "3"
    spark.sql(f"DELETE FROM {target} WHERE key IN (0, 3, 7)")
    names, rows = preview("mapped")
    assert names == ["key", "part", "nested", "list", "map"]
    assert rows == [
        [
            str(n),
            f"a b/%{n % 2}",
            f'{{"out side": {2 * n}}}',
            f'[{{"n": {n}}}]',
            f'[["k", {{"v": {n}}}]]',
        ]
        for n in (1, 2, 4, 5, 6)
    ]
    target = table("plain", enableDeletionVectors="false")
    spark.sql(f"DELETE FROM {target} WHERE id > 5")
    names, rows = preview("plain")
    assert [row[0] for row in rows] == [str(n) for n in range(6)]
    assert rows[1][1:3] == ["a b/%1", '{"inside": 2}']
    assert rows[1][5] == "1970-01-01T00:00:00.001000+00:00"
    table("by_id", **{"columnMapping.mode": "id"})
    with pytest.raises(SpecError, match="column mapping by id"):
        browser.preview("c.s.by_id", None, limit=1)
