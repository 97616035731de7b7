"""Incremental v complete refreshes of materialized views over one source table.

For each view there are two projects: one with the refresh policy `incremental` (or `auto`, which
also tests its cost rule), one with `full`. In each round, the source changes and both are updated,
in turns. The times of the refreshes are from the event log. The tables of both must be equal at the
end.

    python bench/views.py [--rows 5000000] [--share 0.001] [--rounds 5] [--only NAME,NAME]
                          [--policy auto] [--cluster]
"""

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from writer import make_session, small_cluster, where

VIEWS = {
    "filter": ("append", "SELECT id, k, v * 2 AS v, name FROM {s} WHERE v % 4 <> 0"),
    "join": ("append", "SELECT s.id, s.v, d.label FROM {s} s JOIN {d} d ON s.d = d.d"),
    "union": ("append", "SELECT id, v FROM {s} WHERE v > 50 UNION ALL SELECT d, w FROM {d}"),
    "10k groups": (
        "append",
        "SELECT g, count(*) AS n, sum(v) AS s, max(v) AS m FROM {s} GROUP BY g",
    ),
    "1M groups": (
        "append",
        "SELECT k, count(*) AS n, sum(v) AS s, max(v) AS m FROM {s} GROUP BY k",
    ),
    "window": (
        "append",
        "SELECT * FROM (SELECT id, k, v, row_number() OVER (PARTITION BY k ORDER BY v, id) AS r"
        " FROM {s}) WHERE r <= 3",
    ),
    "distinct count": ("append", "SELECT k, count(DISTINCT name) AS n FROM {s} GROUP BY k"),
    "two levels": (
        "append",
        "SELECT d, max(n) AS most FROM (SELECT d, k, count(*) AS n FROM {s} GROUP BY d, k)"
        " GROUP BY d",
    ),
    "histogram": (
        "append",
        "SELECT n, count(*) AS groups FROM (SELECT k, count(*) AS n FROM {s} GROUP BY k)"
        " GROUP BY n",
    ),
    "average": ("append", "SELECT k, avg(v) AS a FROM {s} GROUP BY k"),
    "dimension": ("dimension", "SELECT s.id, s.d, s.v, d.label FROM {s} s JOIN {d} d ON s.d = d.d"),
    "updated rows": ("update", "SELECT id, k, v, name FROM {s} WHERE v % 4 <> 0"),
    "updated groups": ("update", "SELECT k, count(*) AS n, sum(v) AS s FROM {s} GROUP BY k"),
}
TITLES = {
    "filter": "rows added: filter",
    "join": "rows added: join",
    "union": "rows added: union",
    "10k groups": "rows added: 10,000 groups",
    "1M groups": "rows added: groups of five rows",
    "window": "rows added: window",
    "distinct count": "rows added: distinct count",
    "two levels": "rows added: aggregate of an aggregate",
    "histogram": "rows added: number of groups by size (`auto` computes it completely)",
    "average": "rows added: average by group",
    "dimension": "1 % of the rows of a joined table updated",
    "updated rows": "rows updated and deleted: filter",
    "updated groups": "rows updated and deleted: groups of five rows",
}
FILES = 8


class Source:
    """The tables that the views read; rows of `s` are spread over all keys."""

    def __init__(self, spark: Any, root: Path, rows: int, share: float) -> None:
        self.spark, self.rows, self.share = spark, rows, share
        self.paths = {"s": f"delta.`{root}/s`", "d": f"delta.`{root}/d`"}
        self.next = rows
        conf = "spark.databricks.delta.properties.defaults.enableDeletionVectors"
        spark.conf.set(conf, "true")
        self._rows(0, rows).repartition(FILES).write.format("delta").save(f"{root}/s")
        columns = "id AS d", "id % 97 AS w", "concat('label-', id % 1000) AS label"
        dimension = spark.range(max(rows // 50, 100)).selectExpr(*columns).coalesce(1)
        dimension.write.format("delta").save(f"{root}/d")
        self.folder = root / "s"

    def _rows(self, start: int, end: int) -> Any:
        keys, groups, dimension = max(self.rows // 5, 10), 10_000, max(self.rows // 50, 100)
        return self.spark.range(start, end, 1, 2).selectExpr(
            "id",
            f"CAST(pmod(hash(id), {keys}) AS BIGINT) AS k",
            f"CAST(pmod(hash(id, 1), {groups}) AS BIGINT) AS g",
            f"CAST(pmod(hash(id, 2), {dimension}) AS BIGINT) AS d",
            "CAST(pmod(hash(id, 3), 100) AS BIGINT) AS v",
            "concat('name-', pmod(hash(id, 4), 1000)) AS name",
        )

    def change(self, kind: str) -> None:
        few = max(int(self.rows * self.share), 1)
        if kind == "append":
            rows = self._rows(self.next, self.next + few)
            rows.coalesce(1).write.format("delta").mode("append").save(str(self.folder))
            self.next += few
        elif kind == "update":
            step = max(round(2 / self.share), 2)
            digit = self.next % step
            self.spark.sql(f"UPDATE {self.paths['s']} SET v = v + 1 WHERE id % {step} = {digit}")
            self.spark.sql(
                f"DELETE FROM {self.paths['s']} WHERE id % {step} = {(digit + 1) % step}"
            )
            self.next += 2
        else:
            digit = self.next % 100
            self.next += 1
            self.spark.sql(f"UPDATE {self.paths['d']} SET label = 'new' WHERE d % 100 = {digit}")


class ViewProject:
    """A project with one view; `refresh` is an update in this process."""

    def __init__(self, spark: Any, root: Path, query: str, policy: str) -> None:
        root.mkdir(parents=True)
        self.spark, self.root = spark, root
        settings = "name: bench\nlibraries: [{file: {path: view.sql}}]\n"
        (root / "penstock.yaml").write_text(settings, encoding="utf-8")
        sql = f"CREATE MATERIALIZED VIEW result REFRESH POLICY {policy} AS {query}"
        (root / "view.sql").write_text(sql, encoding="utf-8")
        self.techniques: list[str] = []

    def refresh(self) -> float:
        """Seconds of the refresh."""
        from penstock._observe.bus import EventBus
        from penstock._project.spec import load_settings
        from penstock._update import UpdateOptions, run_update

        events: list[Any] = []
        bus = EventBus()
        bus.subscribe(events.append)
        result = run_update(load_settings(self.root), UpdateOptions(), bus=bus)
        if result.failures:
            sys.exit(str(result.failures[0]))
        spent = 0.0
        for event in events:
            if event.event_type == "planning_information":
                self.techniques.append(event.body.technique)
            metrics = getattr(event.body, "metrics", None)
            if metrics is not None and metrics.batch_duration_ms is not None:
                spent = metrics.batch_duration_ms
        return spent / 1000

    def rows(self) -> Any:
        path = self.root / ".penstock/tables/spark_catalog/default/result"
        return self.spark.read.format("delta").load(str(path))


def compare(
    spark: Any, root: Path, source: Source, name: str, group: str, *, rounds: int, policy: str
) -> None:
    kind, query = VIEWS[name]
    folder, policies = name.replace(" ", "_"), (policy, "full")
    projects = {
        each: ViewProject(spark, root / folder / each, query.format(**source.paths), each)
        for each in policies
    }
    for project in projects.values():
        project.refresh()
    times: dict[str, list[float]] = {each: [] for each in policies}
    for number in range(rounds + 1):
        source.change(kind)
        order = policies if number % 2 else policies[::-1]
        for each in order:
            spent = projects[each].refresh()
            if number > 0:  # the first round is a warm-up
                times[each].append(spent)
    ours, full = (projects[each].rows() for each in policies)
    if ours.exceptAll(full).count() or full.exceptAll(ours).count():
        sys.exit(f"the results of {name} differ")
    techniques = projects[policy].techniques[-rounds:]
    print(", ".join(sorted(f"{techniques.count(t)} {t}" for t in set(techniques))), end=" ")
    ours, full = (times[each] for each in policies)
    results.compare(group, TITLES[name], ours, "complete refresh", full)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument(
        "--share", type=float, default=0.001, help="part of the source that changes"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(VIEWS))
    parser.add_argument("--policy", choices=("incremental", "auto"), default="incremental")
    parser.add_argument("--cluster", action="store_true", help="two workers with one core each")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-views-")))
        master = stack.enter_context(small_cluster(root / "cluster")) if arguments.cluster else None
        spark = make_session("penstock", root, root.as_uri(), 0, master=master)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        started = time.monotonic()
        source = Source(spark, root / "source", arguments.rows, arguments.share)
        rounds, policy = arguments.rounds, arguments.policy
        changed = f"{arguments.rows:,} rows, {arguments.share:.1%} changed{where(arguments)}"
        group = f"views over {changed}: {policy} refresh"
        print(group, flush=True)
        for name in arguments.only.split(","):
            compare(spark, root, source, name, group, rounds=rounds, policy=policy)
        print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
