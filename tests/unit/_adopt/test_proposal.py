"""The pipeline that `adopt` proposes for a job, and queries that it does not recognize."""

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from penstock._adopt.proposal import Proposal, propose
from penstock._cli.main import main

READ = """
orders = spark.readStream.schema("id BIGINT").json("data")
"""
HEAD = '"""Proposal of `penstock adopt` for job.py: compare it before the first run."""\n'
IMPORT = "from pyspark import pipelines as dp\n"


def adopted(job: str) -> Proposal:
    proposal = propose(textwrap.dedent(job), "job.py")
    ast.parse(proposal.text)
    return proposal


def check(job: str, expected: str, *notes: str) -> Proposal:
    """Assert that the proposal for a job has the expected text and notes."""
    proposal = adopted(job)
    assert proposal.text.removeprefix(HEAD).strip() == textwrap.dedent(expected).strip()
    assert not [problem for problem in proposal.not_recognized if problem.is_query]
    assert [note for query in proposal.queries for note in query.notes] == list(notes)
    return proposal


def refused(job: str) -> str:
    """The reason why the only query of a job is not recognized."""
    proposal = adopted(job)
    assert proposal.queries == []
    (problem,) = (problem for problem in proposal.not_recognized if problem.is_query)
    return problem.reason


def test_query_into_a_path_becomes_a_table_with_its_assignments():
    proposal = check(
        '''
        import sys
        from pyspark.sql import SparkSession, functions as F

        BASE, unused = "/lake", sys.argv
        PATH = f"{ROOT}/orders-v2"
        ROOT = "/data"
        spark = SparkSession.builder.getOrCreate()

        def parsed(rows):
            return rows.select(F.col("id"))

        raw = (
            spark.readStream
            .schema("id BIGINT, day DATE")  # of the source
            .json("data")
        )
        rows = parsed(raw).where("""
          id > 0
        """)
        rows.printSchema()
        query = (
            rows.writeStream.format("delta").outputMode("append")
            .option("checkpointLocation", "/checkpoints/orders").option("mergeSchema", "true")
            .partitionBy(["day", "id"])
            .trigger(processingTime="1 minute")
            .start(PATH)
        )
        query.awaitTermination()
        ''',
        '''
        from pyspark import pipelines as dp
        from pyspark.sql import SparkSession, functions as F

        PATH = f"{ROOT}/orders-v2"
        ROOT = "/data"


        def parsed(rows):
            return rows.select(F.col("id"))


        @dp.table(
            path=PATH,
            partition_cols=["day", "id"],
            spark_conf={"pipelines.trigger": "processingTime=1 minute"},
        )
        def orders_v2():
            raw = (
                spark.readStream
                .schema("id BIGINT, day DATE")  # of the source
                .json("data")
            )
            rows = parsed(raw).where("""
          id > 0
        """)
            return rows
        ''',
    )
    (query,) = proposal.queries
    assert (query.flow, query.checkpoint) == ("orders_v2", "/checkpoints/orders")
    assert [problem.text for problem in proposal.not_recognized] == [
        'BASE, unused = "/lake", sys.argv',
        "spark = SparkSession.builder.getOrCreate()",
        "rows.printSchema()",
        "query.awaitTermination()",
    ]


def test_query_that_reads_the_output_of_another_query_reads_its_dataset():
    check(
        READ
        + """
orders.writeStream.format("delta").queryName("bronze").option("checkpointLocation", "c/1").start(
    "delta/b/"
)
part = spark.readStream.format("delta").option("ignoreDeletes", True).load("delta/b")
part.groupBy("id").count().writeStream.outputMode("complete").option(
    "checkpointLocation", "c/2"
).toTable("gold.counts")
""",
        IMPORT
        + """

@dp.table(path="delta/b/")
def bronze():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders


@dp.table(name="gold.counts", output_mode="complete")
def counts():
    part = spark.readStream.option("ignoreDeletes", True).table("bronze")
    return part.groupBy("id").count()
""",
        "its state is not carried over: it starts where its options say, so give it a table or "
        "folder without rows",
        "its format is not in the text, and taken as delta",
        "the table of the job stays where it is, with its rows; add `path=` to continue it",
    )


def test_source_read_in_a_function_is_read_in_the_dataset_function():
    check(
        """
        def source():
            return spark.readStream.schema("id BIGINT").json("data")

        path = "e"
        source().writeStream.format("delta").option("checkpointLocation", "b").start(path)
        path = "d"
        rows = source().where("id > 0")
        rows = rows.join(spark.read.table("names"), "id")
        query = rows.writeStream.format("delta").option("checkpointLocation", "c").start(path)
        """,
        IMPORT
        + """

def source():
    return spark.readStream.schema("id BIGINT").json("data")


@dp.table(path="e")
def e():
    return source()


@dp.table(path="d")
def d():
    rows = source().where("id > 0")
    rows = rows.join(spark.read.table("names"), "id")
    return rows
""",
    )


def test_checkpoint_is_not_kept_when_the_source_table_moves():
    proposal = adopted(
        READ
        + """
orders.writeStream.format("delta").option("checkpointLocation", "c/1").toTable("bronze")
rows = spark.readStream.table("bronze")
rows.writeStream.format("delta").option("checkpointLocation", "c/2").start("silver")
"""
    )
    assert [query.checkpoint for query in proposal.queries] == ["c/1", None]
    assert "belongs to the job's table of bronze" in proposal.queries[1].notes[0]


def test_an_option_that_is_named_like_an_argument_is_reported():
    write = '.option("partitionBy", "day").toTable("bronze", format="delta", outputMode="append")'
    (query,) = adopted(f"{READ}\norders.writeStream{write}").queries
    assert "the option partitionBy is left out" in query.notes
    assert not [note for note in query.notes if "outputMode" in note]


def test_other_sinks_become_sinks_with_an_append_flow():
    check(
        READ
        + """
SERVERS = "localhost:9092"
(orders.selectExpr("to_json(struct(*)) AS value").writeStream.format("kafka")
    .option("kafka.bootstrap.servers", SERVERS).option("topic", "out")
    .option("checkpointLocation", "c/1").start())
orders.writeStream.format("json").option("checkpointLocation", "c/2").start("archive")
orders.writeStream.format("console").option("checkpointLocation", "c/3").start()
""",
        IMPORT
        + """
SERVERS = "localhost:9092"


dp.create_sink(
    "out",
    "kafka",
    {
        "kafka.bootstrap.servers": SERVERS,
        "topic": "out",
    },
)


@dp.append_flow(target="out")
def to_out():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders.selectExpr("to_json(struct(*)) AS value")


dp.create_sink(
    "archive",
    "json",
    {
        "path": "archive",
    },
)


@dp.append_flow(target="archive")
def to_archive():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders


dp.create_sink(
    "query",
    "console",
    {},
)


@dp.append_flow(target="query")
def to_query():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders
""",
        "messages get the header penstock-id; rowIds=false leaves it out",
    )


BATCHES = (
    READ
    + """
def check(df, batch_id):
    if df.isEmpty():
        return
    good = df.filter(CONDITION)
    bad = OTHERS
    good.write.format("delta").mode("append").save("delta/good")
    bad.write.format("delta").mode("append").save("delta/bad")

orders.writeStream.foreachBatch(check).option("checkpointLocation", "c/1").start()
"""
)


@pytest.mark.parametrize(
    ("condition", "others"),
    [
        ('"id > 0"', 'df.where("NOT (id > 0)")'),
        ('F.col("id") > 0', 'df.filter(~(F.col("id") > 0))'),
        ('"id > 0"', "df.subtract(good)"),
    ],
)
def test_batch_function_that_splits_rows_becomes_an_expectation_with_quarantine(
    condition: str, others: str
):
    job = BATCHES.replace("CONDITION", condition).replace("OTHERS", others)
    check(
        job,
        IMPORT
        + f"""

@dp.expect_or_quarantine("valid", {condition})
@dp.table(path="delta/good")
def good():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders
""",
        "the check of check is a rule: rows that violate it are in quarantine, and not in "
        '"delta/bad"',
        "rows for which the condition is NULL violate the rule; a filter by its opposite does not "
        "have them",
    )


@pytest.mark.parametrize(
    ("condition", "others"),
    [
        ("df.id > 0", "df.filter(~(df.id > 0))"),  # `df` exists only in the batch function
        ('"id > 0"', 'df.where("id < 0")'),  # not the negated condition
        ('"id > 0"', 'df.subtract(good)\n    df.write.jdbc("url", "t")'),  # another method
    ],
)
def test_any_other_foreach_batch_function_is_kept(condition: str, others: str):
    job = BATCHES.replace("CONDITION", condition).replace("OTHERS", others)
    proposal = adopted(job)
    assert "@dp.foreach_batch_sink\ndef check(df, batch_id):\n    if df.isEmpty()" in proposal.text
    assert 'target="check"' in proposal.text
    assert proposal.queries[0].flow == "to_check"
    assert "is kept unchanged" in proposal.queries[0].notes[0]


def test_a_merge_by_keys_is_kept_with_a_comment_about_auto_cdc():
    check(
        READ
        + """
from delta.tables import DeltaTable

def upsert(df, batch_id):
    (DeltaTable.forPath(spark, "delta/silver").alias("t")
        .merge(df.alias("s"), "t.id = s.id AND t.day = s.day")
        .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute())

orders.writeStream.foreachBatch(upsert).option("checkpointLocation", "c/1").start()
""",
        IMPORT
        + """from delta.tables import DeltaTable


# TODO: the job applies changes in the order in which they arrive. With a column that orders them,
# auto CDC replaces this function (docs/cdc.md):
# dp.create_streaming_table("...")
# dp.create_auto_cdc_flow(
#     target="...", source="...", keys=["id", "day"], sequence_by="TODO"
# )
@dp.foreach_batch_sink
def upsert(df, batch_id):
    (DeltaTable.forPath(spark, "delta/silver").alias("t")
        .merge(df.alias("s"), "t.id = s.id AND t.day = s.day")
        .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute())


@dp.append_flow(target="upsert")
def to_upsert():
    orders = spark.readStream.schema("id BIGINT").json("data")
    return orders
""",
        "it merges by keys: see the comment about create_auto_cdc_flow",
        "upsert is kept unchanged; it may get a repeated batch, as before",
    )


def test_query_in_a_function_uses_the_arguments_of_each_call():
    check(
        """
        def start(session, rows, name):
            recent = rows.where("id > 0")
            return (
                recent.writeStream.format("delta")
                .option("checkpointLocation", f"/checkpoints/{name}").start(f"/data/{name}")
            )

        def main():
            session = SparkSession.builder.getOrCreate()
            raw = session.readStream.schema("id BIGINT").json("data")
            start(session, raw, "a")
            start(session, raw.where("id < 9"), "b")

        if __name__ == "__main__":
            main()
        """,
        IMPORT
        + """

@dp.table(path="/data/a")
def a():
    session = spark
    raw = session.readStream.schema("id BIGINT").json("data")
    rows = raw
    recent = rows.where("id > 0")
    return recent


@dp.table(path="/data/b")
def b():
    session = spark
    raw = session.readStream.schema("id BIGINT").json("data")
    rows = raw.where("id < 9")
    recent = rows.where("id > 0")
    return recent
""",
    )


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ('if x:\n    orders.writeStream.format("delta").start("d")', "in a branch or a loop"),
        (
            'x = [orders.writeStream.format("delta").start("d") for _ in "ab"]',
            "in a branch or a loop",
        ),
        (
            'try:\n    pass\nexcept E:\n    orders.writeStream.format("delta").start("d")',
            "in a branch or a loop",
        ),
        ('orders.where(x).writeStream.format("delta").start("d")', "`x` is not defined"),
        (
            "class Job:\n    def run(self):\n"
            '        self.spark.readStream.json("d").writeStream.format("delta").start("d")',
            "`self` is known only when the program runs",
        ),
        ('spark.table("x").writeStream.format("delta").start("d")', "do not begin with"),
        ('orders.writeStream.format("delta").options(**conf).start("d")', "are not in the text"),
        ("orders.writeStream.foreach(f).start()", "foreach_row"),
        ('orders.writeStream.format("memory").queryName("m").start()', "format memory"),
        ('orders.writeStream.format("json").partitionBy("id").start("d")', "no partitions"),
        ('orders.writeStream.format("delta").toTable(name())', "known only when the program runs"),
        ('orders.where(f"id > {low}").writeStream.format("delta").start("d")', "in a branch"),
        (
            "for day in days:\n    orders = orders.where(day)\n"
            'orders.writeStream.format("delta").start("d")',
            "gets its value in a branch, a loop",
        ),
    ],
)
def test_query_is_not_recognised_when_its_source_code_is_ambiguous(job: str, reason: str):
    assert reason in refused(f"{READ}\nwith open() as low:\n    pass\n{job}\n")


def test_path_is_still_read_when_the_query_that_writes_it_is_not_recognised():
    proposal = adopted(
        READ
        + """
if True:
    orders.writeStream.format("delta").start("d")
copied = spark.readStream.format("delta").load("d")
copied.writeStream.format("delta").start("e")
"""
    )
    assert 'spark.readStream.format("delta").load("d")' in proposal.text


def test_adopt_reports_commands_and_does_not_overwrite_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    write = 'orders.writeStream.format("delta").option("checkpointLocation", "c").start("d")'
    job = f"{READ}\n{write}\nspark.streams.awaitAnyTermination()\n"
    Path("job.py").write_text(job, encoding="utf-8-sig")  # with a byte order mark
    assert main(["adopt", "job.py", "--output", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["commands"] == [
        "penstock dry-run job_pipeline.py",
        "penstock checkpoint reset d --from-checkpoint c --project job_pipeline.py --yes",
    ]
    assert [problem["line"] for problem in report["not_recognized"]] == [5]
    Path("job_pipeline.py").write_text("mine")
    assert main(["adopt", "job.py"]) == 2
    assert "[PROPOSAL_EXISTS]" in capsys.readouterr().err
    assert Path("job_pipeline.py").read_text() == "mine"
    assert main(["adopt", "job.py", "--force", "--output-dir", "new"]) == 0
    assert "1 of 1 queries of job.py are in new/job_pipeline.py" in capsys.readouterr().out
    assert main(["adopt", "job.py", "--output-dir", "job_pipeline.py"]) == 2
    assert "job_pipeline.py/job_pipeline.py cannot be written" in capsys.readouterr().err
    Path("job.py").write_text("x = 1\n")
    assert main(["adopt", "job.py"]) == 2
    assert "[JOB_WITHOUT_QUERIES]" in capsys.readouterr().err


@pytest.mark.parametrize("values", ["sys.argv[1:]", "parser.parse_args().options"])
def test_arguments_that_a_query_needs_are_reported(values: str):
    job = f"import sys\nTOPIC, *_ = {values}\n" + READ.replace(
        ".json(", '.option("topic", TOPIC).json('
    )
    proposal = adopted(job + "orders.writeStream.format('console').start()\n")
    assert values in proposal.text
    (problem,) = proposal.not_recognized
    assert problem.text == f"TOPIC, *_ = {values}"
    assert "a pipeline has no arguments" in problem.reason
