import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from update_project import Project
from penstock._observe.events import UpdateState
from view_cases import SHAPES, Tables

POLICY = "CREATE OR REFRESH MATERIALIZED VIEW {name} REFRESH POLICY INCREMENTAL AS {query};\n"


class Views:
    """A project with a view for each query, and the tables that they read."""

    def __init__(self, root: Path, spark: Any, seed: int, *, vectors: bool, cases: int = 20) -> None:
        root.mkdir()
        self.tables = Tables(spark, f"{root}/t", f"{root}/d", cases, random.Random(seed))
        self.tables.create(vectors=vectors)
        self.project = Project(root, spark)
        self.queries = {
            name: query.format(t=f"delta.`{root}/t`", d=f"delta.`{root}/d`")
            for name, query in SHAPES.items()
        }
        text = "".join(POLICY.format(name=n, query=q) for n, q in self.queries.items())
        conf = "configuration: {pipelines.maxFlowRetryAttempts: '0'}\n"
        settings = f"name: views\nlibraries: [{{file: {{path: views.sql}}}}]\n{conf}"
        (root / "penstock.yaml").write_text(settings, encoding="utf-8")
        (root / "views.sql").write_text(text, encoding="utf-8")
        self.project.run()

    def refresh(self) -> dict[str, tuple[str, str]]:
        """Technique and reason by view."""
        result = self.project.run()
        assert result.state is UpdateState.COMPLETED, "\n".join(map(str, result.failures))
        return {
            event.origin.dataset_name.rpartition(".")[2]: (event.body.technique, event.body.reason)
            for event in self.project.events
            if event.event_type == "planning_information"
        }

    def differences(self) -> dict[str, Any]:
        """Rows that a view lacks or has in excess, by view."""
        result = {}
        for name, query in self.queries.items():
            print(name, flush=True)
            rows = Counter(map(tuple, self.project.table(name).collect()))
            expected = Counter(map(tuple, self.project.spark.sql(query).collect()))
            if rows != expected:
                result[name] = {"missing": expected - rows, "excess": rows - expected}
        return result


@pytest.fixture
def small_queries(spark):
    """Queries over a few rows: their compilation and shuffles would take most of the time."""
    confs = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {key: spark.conf.get(key) for key in confs}
    for key, value in confs.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.usefixtures("small_queries")
def test_views_equal_a_full_recompute_after_random_changes(spark, tmp_path):
    views = Views(tmp_path / "p", spark, seed=1, vectors=True)
    for change in (views.tables.add_rows, views.tables.change):
        change()
        techniques = views.refresh()
        print(techniques, flush=True)
        assert views.differences() == {}
