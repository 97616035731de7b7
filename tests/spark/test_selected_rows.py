"""Spark selects the same rows as readers without Spark."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from penstock._repair.selected_rows import SELECTED, RowSearch
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.read.browsing import TableBrowser
from penstock._tables.read.row_selection import RowSelection
from penstock.errors import PlanError, SpecError

pytestmark = pytest.mark.spark


class Quarantine:
    """A quarantine that Spark writes; a struct column may have the name of Spark's `_metadata`."""

    def __init__(self, spark: Any, root: Path, struct: str, mapping: str) -> None:
        self.spark = spark
        self.struct = struct
        self.browser = TableBrowser(root.as_uri())
        self.path = str(root / "tables" / "c" / "s" / "t_quarantine")
        spark.sql(
            f"CREATE TABLE delta.`{self.path}` (id BIGINT, part STRING, "
            f"{struct} STRUCT<file_path: STRING>, _failed_rules ARRAY<STRING>, _row STRING, "
            "_source STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES "
            f"('delta.columnMapping.mode' = '{mapping}', 'delta.enableDeletionVectors' = 'false')"
        )

    def add(self, first: int) -> None:
        rows = self.spark.range(first, first + 6).select(
            "id",
            F.expr("concat('a b/%', id % 2)").alias("part"),
            F.expr("named_struct('file_path', 'mine')").alias(self.struct),
            F.expr("if(id % 3 = 0, array('low', 'odd, or'), array('low'))").alias("_failed_rules"),
            F.expr("to_json(named_struct('id', id))").alias("_row"),
            F.lit(None).cast("string").alias("_source"),
        )
        rows.coalesce(1).write.format("delta").mode("append").save(self.path)

    def ids(self) -> dict[int, str]:
        page = self.browser.quarantine("c.s.t", None, limit=100)
        return {json.loads(row["row"])["id"]: row["id"] for row in page["rows"]}

    def select(self, **chosen: Any) -> tuple[set[int], set[int], int]:
        """Ids of the selected rows, of the others in their files, and the number of files."""
        quarantine = TableRef(self.path, "t_quarantine")
        search = RowSearch(DeltaJvm(self.spark), quarantine, RowSelection(**chosen))
        result = search.find(["gone"])
        if result.rows is None:
            return set(), set(), len(result.files)
        assert result.rows.columns[:3] == ["id", "part", self.struct]
        rows = result.rows.select("id", SELECTED).collect()
        assert len({row[0] for row in rows}) == len(rows)
        selected = {row[0] for row in rows if row[1]}
        return selected, {row[0] for row in rows} - selected, len(result.files)


def test_rows_are_selected_by_id_when_files_have_partitions_and_vectors(
    spark: Any, tmp_path: Path
) -> None:
    quarantine = Quarantine(spark, tmp_path / "storage", "struct", "name")
    quarantine.add(0)
    quarantine.add(10)
    ids = quarantine.ids()
    assert ids.keys() == {*range(6), *range(10, 16)}
    three = tuple(ids[number] for number in (1, 4, 13))
    others = {0, 2, 3, 5, 11, 15}
    assert quarantine.select(rows=three) == ({1, 4, 13}, others, 3)
    assert quarantine.select(rules=("odd, or", "gone"))[0] == {0, 3, 12, 15}
    assert quarantine.select(where="id = NULL") == (set(), set(), 0)

    path = f"delta.`{quarantine.path}`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {path} WHERE id IN (0, 2, 13)")
    remaining = quarantine.ids()
    # A deletion vector does not move the other rows of a file.
    assert remaining == {number: ids[number] for number in ids.keys() - {0, 2, 13}}
    assert quarantine.select(rows=tuple(remaining.values())) == (set(remaining), set(), 4)
    ids_of_rows = tuple(remaining[number] for number in (3, 4, 12))
    fits = quarantine.select(rows=ids_of_rows, rules=("odd, or",), where="part = 'a b/%0'")
    assert fits == ({12}, {10, 14}, 1)
    with pytest.raises(PlanError, match=r"QUARANTINE_ROWS_GONE\] 1 of the 3 selected rows"):
        quarantine.select(rows=three)


def test_invalid_selection_is_refused_with_a_message(spark: Any, tmp_path: Path) -> None:
    quarantine = Quarantine(spark, tmp_path / "storage", "_metadata", "none")
    quarantine.add(0)
    assert quarantine.select(where="_metadata.file_path = 'mine' AND id = 3")[0] == {3}
    assert quarantine.select(rows=(quarantine.ids()[3],))[0] == {3}
    for chosen, message, hint in (
        ({"where": "id ="}, "Syntax error", "columns: id, part, _metadata, _failed_rules, _row"),
        ({"where": "idd = 1"}, "idd", "did you mean 'id'?"),
        ({"where": "id"}, "it is BIGINT, not a BOOLEAN", ""),
        ({"where": "count(*) > 1"}, "it has an aggregate", ""),
        ({"where": "id IN (SELECT 1)"}, "subquery", ""),
        ({"where": "rand() < 0.5"}, "not deterministic", ""),
        ({"where": "cast(_row AS INT) = 1"}, "for every row", "try_cast"),
        ({"where": "to_date(part, 'YYYY') IS NULL"}, "for every row", "try_cast"),
        ({"rules": ("low", "hihg")}, "violated 'hihg'", "low, odd, or"),
        ({"rows": ("0" * 16 + "-3",)}, "1 of the 1 selected rows", "list the quarantine again"),
    ):
        with pytest.raises((SpecError, PlanError)) as caught:
            quarantine.select(**chosen)
        assert message in caught.value.message, chosen
        assert hint in (caught.value.hint or ""), chosen
