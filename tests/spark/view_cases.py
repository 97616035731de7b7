"""Queries of materialized views, and random changes of the tables that they read.

Column `c` is part of every key, so one refresh of a view tests as many independent cases as there
are values of `c`.
"""

import random
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import duckdb
from deltalake import DeltaTable
from stored_rows import arrow_rows, merge_files, restore

SHAPES = {
    "filtered": "SELECT c, k, upper(g) AS g, v * 2 AS v FROM {t} WHERE v % 3 <> 0",
    "exploded": "SELECT c, k, e FROM {t} LATERAL VIEW explode(sequence(1, v % 3 + 1)) x AS e",
    "joined": "SELECT t.c, t.k, t.v, d.name FROM {t} t JOIN {d} d ON t.c = d.c AND t.k = d.k",
    "all_rows": "SELECT c, k, v FROM {t} UNION ALL SELECT c, k, w FROM {d} WHERE w > 2",
    "left_joined": "SELECT t.c, t.k, t.v, d.name FROM {t} t"
    " LEFT JOIN {d} d ON t.c = d.c AND t.k = d.k AND d.w > 1",
    "right_joined": "SELECT d.c, d.k, d.w, t.v FROM {t} t RIGHT JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k",
    "groups": "SELECT c, k, count(*) AS n, count(v) AS m, sum(v) AS s, sum(p) AS p, min(d) AS a,"
    " max(n) AS b FROM {t} GROUP BY c, k",
    "renamed_groups": "SELECT total, g, c FROM (SELECT c, g, sum(v) AS total, bool_and(v > 1) AS x,"
    " count_if(v > 2) AS y FROM {t} GROUP BY c, g)",
    "groups_of_join": "SELECT t.c, d.name, sum(t.v) AS s FROM {t} t JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k GROUP BY t.c, d.name",
    "averages": "SELECT c, k % 2 AS odd, avg(v) AS a, round(sum(n), 6) AS n FROM {t}"
    " GROUP BY c, k % 2 HAVING count(*) > 1",
    "different": "SELECT c, k, count(DISTINCT g) AS n FROM {t} GROUP BY c, k",
    "distinct_rows": "SELECT DISTINCT c, k, g FROM {t}",
    "left_join_by_right": "SELECT t.c, d.name, count(*) AS n FROM {t} t LEFT JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k GROUP BY t.c, d.name",
    "left_join_by_both": "SELECT t.c, t.g, d.name, count(d.w) AS n FROM {t} t LEFT JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k GROUP BY t.c, t.g, d.name",
    "join_by_both": "SELECT t.c, t.g, d.name, max(t.v + d.w) AS m FROM {t} t JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k GROUP BY t.c, t.g, d.name",
    "mixed_key": "SELECT t.c, t.v + d.w AS total, count(*) AS n FROM {t} t JOIN {d} d"
    " ON t.c = d.c AND t.k = d.k GROUP BY t.c, t.v + d.w",
    "union_groups": "SELECT c, k, max(v) AS m FROM (SELECT c, k, v FROM {t} UNION ALL"
    " SELECT c, k, w FROM {d}) GROUP BY c, k",
    "totals": "SELECT c, name, count(*) AS n, count(k) AS m, sum(w) AS s, count_if(w > 2) AS y,"
    " count(*) FILTER (WHERE w > 1) AS z FROM {d} GROUP BY c, name",
    "totals_with_null": "SELECT c, k, count(*) AS n, sum(v) AS s FROM {t} GROUP BY c, k",
    "totals_of_join": "SELECT n, s, g, c FROM (SELECT t.c, t.g, count(*) AS n, sum(d.w * 2) AS s,"
    " sum(CAST(d.w AS DECIMAL(22,2))) AS e FROM {t} t JOIN {d} d ON t.c = d.c AND t.k = d.k"
    " GROUP BY t.c, t.g)",
    "ranked": "SELECT * FROM (SELECT c, k, v, rank() OVER (PARTITION BY c, k ORDER BY v) AS r"
    " FROM {t}) WHERE r <= 2",
    "two_windows": "SELECT c, k, g, v, sum(v) OVER (PARTITION BY c, k) AS a,"
    " count(*) OVER (PARTITION BY c, g) AS b FROM {t}",
    "window_groups": "SELECT c, r, count(*) AS n FROM (SELECT c, k, dense_rank() OVER"
    " (PARTITION BY c ORDER BY v) AS r FROM {t}) GROUP BY c, r",
    "histogram": "SELECT c, n, count(*) AS groups FROM"
    " (SELECT c, k, count(*) AS n FROM {t} GROUP BY c, k) GROUP BY c, n",
    "two_levels": "SELECT c, max(s) AS s FROM (SELECT c, k, sum(v) AS s FROM {t} GROUP BY c, k)"
    " GROUP BY c",
    "self_join": "WITH x AS (SELECT c, k, max(v) AS m FROM {t} GROUP BY c, k)"
    " SELECT a.c, a.k, a.m, b.m AS next FROM x a JOIN x b ON a.c = b.c AND a.k = b.k + 1",
    "against_average": "SELECT t.c, t.k, t.v FROM {t} t JOIN (SELECT c, avg(v) AS a FROM {t}"
    " GROUP BY c) m ON t.c = m.c WHERE t.v > m.a",
    "conditions_in_where": "SELECT e.name, t.c, count(*) AS n FROM {d} d, {d} e, {t} t"
    " WHERE t.c = d.c AND t.k = d.k AND t.c = e.c AND t.v = e.w AND d.w > 1 GROUP BY t.c, e.name",
    "greatest": "SELECT c, k, v FROM {t} t WHERE v >= (SELECT max(w) FROM {d} d WHERE d.c = t.c)",
    "within": "SELECT c, k, v FROM {t} t WHERE k IN (SELECT d.k FROM {d} d WHERE d.c = t.c)",
    "without": "SELECT c, k, v FROM {t} t WHERE NOT EXISTS"
    " (SELECT 1 FROM {d} d WHERE d.c = t.c AND d.k = t.k)",
    "common": "SELECT c, k FROM {t} INTERSECT SELECT c, k FROM {d}",
    "other": "SELECT c, k FROM {t} EXCEPT SELECT c, k FROM {d}",
}
"""Queries by view; sums of DOUBLE are rounded: the order of rows changes their last bits."""

T = "c INT, k INT, g STRING, v BIGINT, p DECIMAL(10,2), n DOUBLE, d DATE"
D = "c INT, k INT, name STRING, w BIGINT"


@dataclass(frozen=True)
class Tables:
    """Two Delta tables of random rows, changed for about two thirds of `cases` at a time."""

    spark: Any
    t: str
    d: str
    cases: int
    random: random.Random

    def create(self, *, vectors: bool) -> None:
        for path, schema, rows in ((self.t, T, self.t_rows), (self.d, D, self.d_rows)):
            self.spark.sql(
                f"CREATE TABLE delta.`{path}` ({schema}) USING delta TBLPROPERTIES "
                f"('delta.enableDeletionVectors' = '{str(vectors).lower()}')"
            )
            self.append(path, schema, rows(range(self.cases), 10))

    def append(self, path: str, schema: str, rows: list[tuple[Any, ...]]) -> None:
        df = self.spark.createDataFrame(rows, schema)
        df.coalesce(1).write.format("delta").mode("append").save(path)

    def copy(self, database: duckdb.DuckDBPyConnection) -> dict[str, str]:
        """Create views of the current rows of the tables, by the names that queries use.

        The views are created in Spark and in the database, which is an independent oracle.
        """
        for name in "td":
            rows = arrow_rows(getattr(self, name))
            self.spark.createDataFrame(rows).createOrReplaceTempView(f"{name}_copy")
            database.register(f"{name}_copy", rows)
        return {name: f"{name}_copy" for name in "td"}

    def t_rows(self, cases: Any, most: int) -> list[tuple[Any, ...]]:
        pick = self.random
        return [
            (
                case,
                pick.choice([None, 1, 2, 3, 4]),
                pick.choice([None, "a", "b", ""]),
                pick.choice([None, *range(6)]),
                pick.choice([None, Decimal("0.25"), Decimal("-1.5")]),
                pick.choice([None, 0.5, -1.0, 3.25]),
                pick.choice([None, date(2026, 1, 1), date(2025, 12, 31)]),
            )
            for case in cases
            for _ in range(pick.randrange(most + 1))
        ]

    def d_rows(self, cases: Any, most: int) -> list[tuple[Any, ...]]:
        pick = self.random
        return [
            (
                case,
                pick.choice([None, 1, 2, 3, 5]),
                pick.choice([None, "x", "y"]),
                pick.randrange(5),
            )
            for case in cases
            for _ in range(pick.randrange(most // 2 + 1))
        ]

    def some_cases(self) -> list[int]:
        return [case for case in range(self.cases) if self.random.random() < 2 / 3]

    def add_rows(self) -> None:
        self.append(self.t, T, self.t_rows(self.some_cases(), 4))
        if self.random.random() < 0.7:
            self.append(self.d, D, self.d_rows(self.some_cases(), 4))

    def change(self) -> None:
        """Several statements about rows of some cases."""
        for _ in range(self.random.randint(2, 4)):
            self.random.choice(
                [
                    self.add_rows,
                    self._delete,
                    self._update,
                    self._merge,
                    self._optimize,
                    self._restore,
                ]
            )()

    def _where(self, column: str) -> str:
        cases = ", ".join(map(str, self.some_cases() or [-1]))
        return f"c IN ({cases}) AND {column} % 2 = {self.random.randrange(2)}"

    def _delete(self) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self.t}` WHERE {self._where('v')}")
        self.spark.sql(f"DELETE FROM delta.`{self.d}` WHERE {self._where('w')} AND k = 1")

    def _update(self) -> None:
        change = self.random.choice(["v = v + 1", "k = k + 1", "g = 'a'", "v = v", "k = NULL"])
        self.spark.sql(f"UPDATE delta.`{self.t}` SET {change} WHERE {self._where('k')}")
        change = self.random.choice(["w = w + 1", "k = k % 3 + 1", "name = 'z'"])
        self.spark.sql(f"UPDATE delta.`{self.d}` SET {change} WHERE {self._where('w')}")

    def _merge(self) -> None:
        rows = [(case, 1, "m", self.random.randrange(5)) for case in self.some_cases()]
        self.spark.createDataFrame(rows, D).createOrReplaceTempView("merged")
        self.spark.sql(
            f"MERGE INTO delta.`{self.d}` d USING merged s ON d.c = s.c AND d.w = s.w "
            "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"
        )

    def _optimize(self) -> None:
        """Optimize with Penstock, like tables of pipelines, or with Delta."""
        if self.random.random() < 0.5:
            merge_files(self.spark, self.t)
        else:
            self.spark.sql(f"OPTIMIZE delta.`{self.t}`")

    def _restore(self) -> None:
        """Restore an earlier version; removed files are live again."""
        newest = DeltaTable(self.t).version()
        version = max(1, newest - self.random.randint(1, 3))
        if self.random.random() < 0.5:
            restore(self.spark, self.t, version)
        else:
            self.spark.sql(f"RESTORE TABLE delta.`{self.t}` TO VERSION AS OF {version}")
