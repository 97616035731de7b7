"""Rules about programs that start their streaming queries themselves."""

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._cli.main import main
from penstock._lint.catalogue import RULES
from penstock._lint.project import LintReport, lint_project
from penstock._project.spec import load_settings

Lint = Callable[..., LintReport]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "lint.md"
EXAMPLE = re.compile(r"(?ms)^<!-- not run: (PSL7\d+) finds (it|nothing) -->\n```python\n(.*?)^```$")
# The parts of a job without findings; tests replace parts or add statements.
READ = """\
orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 1000)
    .load()
)
"""
WRITE = """
(
    rows.writeStream.format("delta")
    .option("checkpointLocation", "/checkpoints/orders")
    .trigger(processingTime="1 minute")
    .start("/data/orders")
)
"""
BATCHES = """
query = (
    orders.writeStream.foreachBatch(write)
    .option("checkpointLocation", "/checkpoints/orders")
    .start()
)
"""


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    monkeypatch.chdir(tmp_path)

    def run(source: str, settings: str = "") -> LintReport:
        (tmp_path / "job.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (tmp_path / "pipeline.yaml").write_text(
            f"name: p\nlibraries:\n  - file: {{path: job.py}}\n{settings}", encoding="utf-8"
        )
        return lint_project(load_settings(tmp_path, environ={}))

    return run


def rules_of(report: LintReport) -> list[str]:
    return [finding.rule.id for finding in report.findings]


def query(rows: str = "orders", **changes: str) -> str:
    code = WRITE.replace("rows.", f"{rows}.")
    for before, after in changes.items():
        code = re.sub(rf"\n    \.{before}\(.*\)", f"\n    {after}" if after else "", code)
    return code


@pytest.mark.parametrize(
    ("rule", "kind", "code"), EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
)
def test_example_of_the_page_has_its_finding_or_none(lint: Lint, rule: str, kind: str, code: str):
    assert (rule in rules_of(lint(code))) == (kind == "it")


def test_each_rule_about_jobs_has_two_examples():
    examples = {(rule, kind) for rule, kind, _ in EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))}
    jobs = [rule for rule in RULES if rule.startswith("PSL7")]
    assert examples == {(rule, kind) for rule in jobs for kind in ("it", "nothing")}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (READ + query(), []),
        # checkpoints
        (READ + query(option=""), ["PSL701"]),
        (READ + "orders.writeStream.format('console').start()", []),
        (READ + "orders.writeStream.foreachBatch(write).start()", ["PSL701"]),
        (READ + "orders.writeStream.format('kafka').options(**conf).start()", []),
        (READ + "orders.writeStream.format(sink).start()", []),
        (READ + "orders.writeStream.toTable('a', checkpointLocation='/checkpoints/a')", []),
        (READ + query(option='.option("checkpointLocation", "file:///tmp/a")'), ["PSL702"]),
        (READ + query(option='.option("checkpointLocation", "/tmpfiles/a")'), []),
        ("for n in names:" + textwrap.indent("\n" + READ + query(
            option='.option("checkpointLocation", f"/tmp/c_{n}")'), "    "), ["PSL702"]),
        ("BASE = '/tmp/c'\nfor n in names:" + textwrap.indent("\n" + READ + query(
            option='.option("checkpointLocation", f"{BASE}/a/" + n)'), "    "), ["PSL702"]),
        ("for n in names:" + textwrap.indent("\n" + READ + query(
            option='.option("checkpointLocation", f"/tmp{n}/a")'), "    "), []),
        (
            "import tempfile\nfolder = tempfile.mkdtemp()\n"
            + READ
            + query(option='.option("checkpointLocation", folder + "/a")'),
            ["PSL702"],
        ),
        (READ + query(option='.option("checkpointLocation", f"/c/{uuid.uuid4()}")'), ["PSL702"]),
        (READ + query(option='.option("checkpointLocation", f"/c/{name}")'), []),
        ("spark.conf.set('spark.sql.streaming.checkpointLocation', '/c')\n" + READ
         + query(option='.queryName("a")'), []),
        ("spark.conf.set('spark.sql.streaming.checkpointLocation', '/c')\n" + READ
         + query(option=""), ["PSL702"]),
        (READ + query() + query().replace("/data/orders", "/data/b"), ["PSL301", "PSL301"]),
        (READ + query() + query().replace("/checkpoints/orders", "/checkpoints/b"), []),
        ("if backfill:" + textwrap.indent("\n" + READ + query(), "    ") + "\nelse:"
         + textwrap.indent("\n" + READ + query(), "    "), []),
        (READ + "q = " + query().strip() + "\nq.awaitTermination()\n" + query(), []),
        # one function for several queries
        (
            READ
            + "def write(rows, path, folder):\n    return rows.writeStream.format('parquet')"
            ".trigger(availableNow=True).option('checkpointLocation', folder).start(path)\n"
            "write(orders, '/a', '/c/a')\nwrite(orders, '/b', '/c/b')",
            [],
        ),
        (
            READ
            + "def write(rows, path, folder='/c/a'):\n    return rows.writeStream.format('orc')"
            ".trigger(availableNow=True).option('checkpointLocation', folder).start(path)\n"
            "write(orders, '/a')\nwrite(orders, '/b')",
            ["PSL301"],
        ),
        # sinks
        (READ + query(trigger=".outputMode('update')"), ["PSL703", "PSL704"]),
        (
            READ + "orders.writeStream.trigger(availableNow=True).start("
            "'/a', format='delta', outputMode='update', checkpointLocation='/c')",
            ["PSL703"],
        ),
        (READ + query(trigger=".trigger(once=True)"), ["PSL303"]),
        (READ + query(trigger=".partitionBy('window.start').trigger(availableNow=True)"),
         ["PSL312"]),
        (READ + query() + "w = Window.partitionBy('a.b')", []),
        ("from pyspark.sql.streaming import Trigger\n" + READ + query(), ["PSL313"]),
        ("from pyspark.sql.streaming import StreamingQueryListener\n" + READ + query(), []),
        # state
        (READ + query("orders.groupBy('a').count()"), ["PSL101"]),
        (READ + "counts = orders.groupBy('a').agg(F.sum('b'))\n" + query("counts"), ["PSL101"]),
        (READ + query("orders.groupBy().count()"), []),
        (READ + query("orders.groupBy('a').count()", trigger=".trigger(availableNow=True)"
                      ".outputMode('complete')"), []),
        (READ + query("orders.withWatermark('t', '1 hour').groupBy('t').count()"),
         []),
        (READ + query("helper(orders).groupBy('a').count()"), []),
        (READ + query("orders.transform(parse).groupBy('a').count()"), []),
        (READ + query("orders.dropDuplicates(['id'])"), ["PSL103"]),
        (READ + "other = orders.select('id')\n" + query("orders.join(other, 'id')"), ["PSL104"]),
        (READ + "names = spark.read.table('n')\n" + query("orders.join(names, 'id')"), []),
        (READ + query("orders.groupBy('a').mapGroupsWithState(f)"), ["PSL109"]),
        (READ + query("orders.groupBy('a').applyInPandasWithState(f, s, s, 'append', t)"), []),
        (READ + query() + "def f(key, rows, state: GroupState):\n    return (key, 1)", ["PSL109"]),
        # sources
        (READ.replace('"earliest"', '"latest"') + query(), ["PSL201"]),
        (READ.replace('"earliest"', "start") + query(), []),
        (READ.replace('.option("maxOffsetsPerTrigger", 1000)', ".options(**conf)") + query(), []),
        (READ.replace('"localhost:9092"', "servers") + query(), []),
        ("orders = spark.readStream.option('maxFilesPerTrigger', 9).json('/a', schema=s)" + query(),
         []),
        ("orders = spark.readStream.format('csv').load('/a', schema=s, maxFilesPerTrigger=9)"
         + query(), []),
        ("orders = spark.readStream.option('maxFilesPerTrigger', 9).json('/a')" + query(),
         ["PSL203"]),
        # batch functions
        (READ + "def write(df, n):\n    df.write.jdbc(url, 't', mode='append')" + BATCHES,
         ["PSL305"]),
        (READ + "def write(df, n):\n    df.write.jdbc(url, 't', mode='overwrite')" + BATCHES, []),
        (READ + "def write(df, n):\n    cursor.execute('INSERT INTO t VALUES (1)')" + BATCHES,
         ["PSL305"]),
        (READ + "def write(df, n):\n    cursor.execute(UPSERT, df.collect())" + BATCHES, []),
        (READ + "def write(df, n):\n    print(df.count())\n    print(df.count())" + BATCHES,
         ["PSL306"]),
        (READ + "def write(df, n):\n    if n:\n        df.show()\n    else:\n        df.count()"
         + BATCHES, []),
        (READ + "def write(df, n):\n    if df.isEmpty():\n        return\n    df.show()" + BATCHES,
         []),
        (READ + "def write(df, n):\n    df.groupBy('a').count().show()" + BATCHES, []),
        (READ + "def write(df, n):\n    df.persist()\n    df.show()" + BATCHES, ["PSL311"]),
        (READ + "def write(df, n):\n    df.persist()\n    df.show()\n    df.unpersist()" + BATCHES,
         []),
        (READ + "def write(df, n):\n    df.subtract(df.where('a > 0')).show()" + BATCHES,
         ["PSL308"]),
        (READ + "def write(df, n):\n    df.subtract(known).show()" + BATCHES, []),
        (READ + "def save(df, n, t):\n    df.write.saveAsTable(t)"
         + BATCHES.replace("(write)", "(lambda df, n: save(df, n, 't'))"), ["PSL305"]),
        (READ + query() + "spark.createDataFrame([{'at': F.current_timestamp()}])", ["PSL314"]),
        (READ + query() + "spark.createDataFrame([{'at': datetime.now()}])", []),
        (READ + query()
         + 'PASSWORD = "correct horse battery staple"', ["PSL601"]),
    ],
)  # fmt: skip
def test_job_has_the_expected_findings(lint: Lint, code: str, expected: list[str]):
    assert sorted(rules_of(lint(code))) == expected


def test_checkpoint_location_of_the_session_counts_as_a_checkpoint(lint: Lint):
    code = READ + query(option='.queryName("orders")')
    settings = "configuration:\n  spark.sql.streaming.checkpointLocation: /checkpoints\n"
    assert rules_of(lint(code, settings)) == []
    assert rules_of(lint(code)) == ["PSL701"]


def test_ignore_comment_covers_a_statement_of_several_lines(lint: Lint):
    comment = "# penstock: ignore[PSL701] a test"
    report = lint(READ + comment + query(option=""))
    assert rules_of(report) == []
    assert [finding.rule.id for finding in report.accepted] == ["PSL701"]


def test_stream_of_one_notebook_cell_is_followed_into_another(lint: Lint):
    separator = "\n# COMMAND ----------\n"
    code = "# Databricks notebook source\n" + READ + separator + "counts = orders.groupBy('a')"
    report = lint(code + separator + query("counts.count()"))
    (finding,) = report.findings
    assert (finding.rule.id, finding.origin.line) == ("PSL101", 12)


def test_lint_command_reports_findings_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(READ + query(option=""), encoding="utf-8")
    assert main(["lint", "job.py"]) == 1
    output = capsys.readouterr().out
    assert "job.py:13: error PSL701 no-checkpoint: the query into delta has no" in output
    assert main(["lint", "--output", "json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert [(row["rule"], row["line"]) for row in body["findings"]] == [("PSL701", 13)]
    assert body["complete"] is False
    (tmp_path / "second.py").write_text(READ + query(), encoding="utf-8")
    assert main(["lint", "job.py", "--fail-on", "never"]) == 0
    assert main(["lint", "second.py"]) == 0
