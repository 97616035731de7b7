"""The rows that a selection means are found by Spark where readers without Spark see them."""

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
    """A quarantine that Spark writes; a struct column can be called as Spark's own is."""

    def __init__(self, spark: Any, root: Path, struct: str, mapping: str) -> None:
        self.spark = spark
        self.struct = struct
        self.browser = TableBrowser(root.as_uri())
        self.place = str(root / "tables" / "c" / "s" / "t_quarantine")
        spark.sql(
            f"CREATE TABLE delta.`{self.place}` (id BIGINT, part STRING, "
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
        rows.coalesce(1).write.format("delta").mode("append").save(self.place)

    def ids(self) -> dict[int, str]:
        page = self.browser.quarantine("c.s.t", None, limit=100)
        return {json.loads(one["row"])["id"]: one["id"] for one in page["rows"]}

    def select(self, **chosen: Any) -> tuple[set[int], set[int], int]:
        """Ids of the rows that are meant, of the others in their files, and how many files."""
        quarantine = TableRef(self.place, "t_quarantine")
        search = RowSearch(DeltaJvm(self.spark), quarantine, RowSelection(**chosen))
        found = search.find(["gone"])
        if found.rows is None:
            return set(), set(), len(found.files)
        assert found.rows.columns[:3] == ["id", "part", self.struct]
        rows = found.rows.select("id", SELECTED).collect()
        assert len({row[0] for row in rows}) == len(rows)
        meant = {row[0] for row in rows if row[1]}
        return meant, {row[0] for row in rows} - meant, len(found.files)


def test_rows_are_those_of_the_ids_when_files_have_partitions_and_vectors(
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

    place = f"delta.`{quarantine.place}`"
    spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {place} WHERE id IN (0, 2, 13)")
    left = quarantine.ids()
    # A vector leaves the other rows of a file where they are.
    assert left == {number: ids[number] for number in ids.keys() - {0, 2, 13}}
    assert quarantine.select(rows=tuple(left.values())) == (set(left), set(), 4)
    some = tuple(left[number] for number in (3, 4, 12))
    fits = quarantine.select(rows=some, rules=("odd, or",), where="part = 'a b/%0'")
    assert fits == ({12}, {10, 14}, 1)
    with pytest.raises(PlanError, match=r"QUARANTINE_ROWS_GONE\] 1 of the 3 selected rows"):
        quarantine.select(rows=three)


def test_a_selection_is_refused_in_words_when_it_cannot_be_used(spark: Any, tmp_path: Path) -> None:
    quarantine = Quarantine(spark, tmp_path / "storage", "_metadata", "none")
    quarantine.add(0)
    assert quarantine.select(where="_metadata.file_path = 'mine' AND id = 3")[0] == {3}
    assert quarantine.select(rows=(quarantine.ids()[3],))[0] == {3}
    for chosen, said, hint in (
        ({"where": "id ="}, "Syntax error", "columns: id, part, _metadata, _failed_rules, _row"),
        ({"where": "idd = 1"}, "idd", "did you mean 'id'?"),
        ({"where": "id"}, "it is BIGINT, not a BOOLEAN", ""),
        ({"where": "count(*) > 1"}, "it has an aggregate", ""),
        ({"where": "id IN (SELECT 1)"}, "subquery", ""),
        ({"where": "rand() < 0.5"}, "not deterministic", ""),
        ({"where": "cast(_row AS INT) = 1"}, "for every row", "try_cast"),
        ({"rules": ("low", "hihg")}, "broke 'hihg'", "low, odd, or"),
        ({"rows": ("0" * 16 + "-3",)}, "1 of the 1 selected rows", "list the quarantine again"),
    ):
        with pytest.raises((SpecError, PlanError)) as caught:
            quarantine.select(**chosen)
        assert said in caught.value.message, chosen
        assert hint in (caught.value.hint or ""), chosen
