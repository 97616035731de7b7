"""Reads in user code: mapped paths and tables, table functions, statements."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pandas
import pytest
from memory_states import MemoryStates
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from sql_dialect import is_known

from penstock._analysis.context import ReadContext
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.external_reads import ExternalReads
from penstock._analysis.external_tables import ExternalTables
from penstock._analysis.reader_hooks import (
    export_old_functions,
    install_reader_hooks,
    redirected,
)
from penstock._analysis.table_sources import SchemaSource
from penstock._graph.indexing import build_index
from penstock._model.dataset import Dataset, DatasetKind
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._model.pipeline import ExternalTable, PipelineDefinition, PipelineSettings
from penstock._model.spark_version import installed_spark
from penstock._tables.layout import StorageLayout
from penstock._tables.session_conf import session_conf
from penstock.errors import DefinitionError, PenstockError
from penstock.sources.base import OpenedSource, Read
from penstock.sources.delta.source import DeltaStream
from penstock.sources.files.source import AutoLoaderSource, FileStream

HERE = SourceLocation("pipeline.py", 3)


class World:
    """A folder with data that other paths and names are mapped to."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.files_read: list[Read] = []
        self.resolved: list[str] = []
        (root / "raw").mkdir()
        lines = [json.dumps({"id": n, "name": f"n{n}"}) for n in range(3)]
        (root / "raw" / "a.json").write_text("\n".join(lines), encoding="utf-8")
        (root / "trips.csv").write_text("id,fare\n1,2.5\n2,3.5\n", encoding="utf-8")
        self.tables = {
            "main.ref.countries": ExternalTable(path=str(root / "countries")),
            "samples.*": ExternalTable(path=str(root), format=""),
        }
        spark.range(2).write.format("delta").save(str(root / "countries"))
        self.configuration: dict[str, str] = {}
        self.layout = StorageLayout((root / "storage").as_uri())

    def context(self) -> ReadContext:
        return ReadContext(
            external_tables=ExternalTables(
                self.spark, self.tables, self.layout, catalog="main", schema="shop"
            ),
            map_path=lambda path: path.replace("/Volumes/main/raw", str(self.root / "raw")),
            resolve_secrets=self._secret,
            memories=MemoryStates().store,
            events=self.root / "events",
            configuration=self.configuration,
        )

    def _secret(self, text: str) -> str:
        if "${secret:" in text:
            self.resolved.append(text)
        return text.replace("${secret:crm/key}", "sesame")

    def open_files(self, read: Read) -> OpenedSource:
        """Replaces Auto Loader, which would infer a schema for each read."""
        self.files_read.append(read)
        reader: Any = self.spark.readStream if read.is_stream else self.spark.read
        df = reader.schema("id BIGINT, name STRING").json(read.paths[0])
        return OpenedSource(df, name="files")

    def hooks(self) -> Any:
        return redirected(ExternalReads(self.spark, self.context()))

    def evaluate(
        self, function: Any, view: Flow | None = None, **datasets: str
    ) -> tuple[DataFrame, Any]:
        """The result of a query function; datasets are given as name and schema."""
        definition = PipelineDefinition(
            datasets=tuple(
                Dataset(name=name, kind=DatasetKind.STREAMING_TABLE, origin=HERE)
                for name in datasets
            )
            + tuple(
                Dataset(name=dataset.name, kind=DatasetKind.TEMPORARY_VIEW, origin=HERE)
                for dataset in (view,)
                if dataset is not None
            ),
            flows=() if view is None else (view,),
        )
        settings = PipelineSettings(
            name="p", storage=self.layout.root, root=str(self.root), catalog="main", schema="shop"
        )
        index = build_index(definition, settings)
        source = SchemaSource()
        for name, ddl in datasets.items():
            source.schemas[f"main.shop.{name}"] = self.spark.createDataFrame([], ddl).schema
        try:
            evaluator = Evaluator(self.spark, index, source, self.context())
            flow = Flow(name="f", target="f", function=function, origin=HERE)
            return evaluator.evaluate(flow)
        finally:
            source.close()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(spark, tmp_path)
    monkeypatch.setattr(AutoLoaderSource, "open", lambda _, read: world.open_files(read))
    return world


def test_paths_are_mapped_for_every_reader_method(world: World, spark: SparkSession):
    folder = "/Volumes/main/raw"
    with world.hooks():
        assert spark.read.json(folder).count() == 3
        assert spark.read.json([f"{folder}/a.json"]).count() == 3
        assert spark.read.json(path=folder).count() == 3
        assert spark.read.format("json").load(folder).count() == 3
        assert spark.read.format("json").load([folder]).count() == 3
        assert spark.read.format("json").option("path", folder).load().count() == 3
        assert spark.read.option("basePath", folder).json(f"{folder}/*.json").count() == 3
        assert spark.read.text(folder).count() == 3
        assert spark.read.text(paths=folder).count() == 3
        assert spark.read.json("raw").count() == 3
        assert spark.read.csv("trips.csv", header=True).columns == ["id", "fare"]
        assert spark.sql(f"SELECT * FROM json.`{folder}/*.json`").count() == 3
        stream = spark.readStream.schema("id BIGINT").json(folder)
        assert stream.isStreaming
        assert spark.sql(f"SELECT * FROM STREAM json.`{folder}`").isStreaming
        rows = spark.createDataFrame([(json.dumps({"id": 7}),)], "v STRING")
        assert spark.read.json(rows.rdd.map(lambda row: row.v)).collect()[0].id == 7


def test_delta_tables_are_written_to_mapped_paths(world: World, spark: SparkSession):
    from delta.tables import DeltaTable

    row = spark.createDataFrame([(1,)], "id INT")
    with world.hooks():
        for path in ("/Volumes/main/raw/orders", "orders"):
            # Programs call this before they overwrite or merge.
            assert not DeltaTable.isDeltaTable(spark, path)
            DeltaTable.create(spark).location(path).addColumn("id", "INT").execute()
            assert DeltaTable.isDeltaTable(spark, path)
            row.write.format("delta").mode("append").save(path)
            row.write.format("delta").mode("append").option("path", path).save()
            row.write.format("delta").mode("append").options(path=path).save()
            assert DeltaTable.forPath(spark, path).toDF().count() == 3
    for folder in ("raw/orders", "orders"):
        assert spark.read.format("delta").load(str(world.root / folder)).count() == 3


def test_tables_are_resolved_when_they_are_mapped_or_in_the_storage(
    world: World, spark: SparkSession
):
    spark.range(5).write.format("delta").save(f"{world.layout.root}/tables/main/shop/sibling")
    world.tables["main.ref.parts"] = ExternalTable(path=str(world.root / "r*" / "{a,b}.json"))
    with world.hooks():
        assert spark.table("main.ref.parts").count() == 3
        for name in ("main.ref.countries", "MAIN.Ref.`Countries`", "ref.countries"):
            assert spark.table(name).count() == 2
        assert spark.sql("SELECT * FROM main.ref.countries c JOIN sibling USING (id)").count() == 2
        assert spark.table("samples.trips").collect()[1].fare == 3.5
        assert spark.readStream.table("samples.trips").isStreaming
        assert spark.sql("SELECT * FROM STREAM(main.ref.countries)").isStreaming
        assert spark.read.table("main.shop.sibling").count() == 5
        assert spark.catalog.tableExists("ref.countries")
        assert not spark.catalog.tableExists("nothing_like_it")
        from delta.tables import DeltaTable

        assert DeltaTable.forName(spark, "main.ref.countries").toDF().count() == 2
        # Like Spark: columns by position, and the mode of the writer.
        spark.range(7, 8).toDF("other").write.mode("overwrite").insertInto("main.shop.sibling")
        assert spark.table("sibling").collect() == [(7,)]
        world.tables["main.ref.gone"] = ExternalTable(path=str(world.root / "gone"))
    with world.hooks(), pytest.raises(DefinitionError) as error:
        assert not spark.catalog.tableExists("main.ref.gone")
        spark.table("main.ref.gone")
    assert error.value.condition == "EXTERNAL_TABLE_NOT_FOUND"


def test_a_condition_can_have_a_subquery_of_a_dataset(world: World, spark: SparkSession):
    condition = "o.id = (SELECT max(id) FROM main.shop.trips)"
    df, evaluation = world.evaluate(
        lambda: spark.read.table("orders").alias("o").where(condition),
        orders="id BIGINT",
        trips="id BIGINT",
    )
    assert df.columns == ["id"]
    assert evaluation.inputs == {"main.shop.orders", "main.shop.trips"}


def test_streams_of_mapped_tables_are_sources_of_the_flow(world: World, spark: SparkSession):
    for name, kind in (("ref.countries", DeltaStream), ("samples.trips", FileStream)):
        _, evaluation = world.evaluate(lambda name=name: spark.readStream.table(name))
        assert [type(source) for source in evaluation.sources] == [kind]
    for name in ("ref.countries", "orders"):
        reader = spark.readStream.option("startingVersio", "1")
        with pytest.raises(PenstockError) as error:
            world.evaluate(lambda name=name, reader=reader: reader.table(name), orders="id INT")
        assert error.value.condition == "DELTA_OPTION_UNKNOWN"
        assert error.value.hint == "did you mean `startingVersion`?"


def test_version_of_a_mapped_table_is_read_by_sql(world: World, spark: SparkSession):
    path = world.root / "raw" / "numbers"
    for _ in range(2):
        spark.range(2).write.format("delta").mode("append").save(str(path))
    world.tables["main.ref.numbers"] = ExternalTable(path=str(path))
    for name in ("main.ref.numbers", "delta.`/Volumes/main/raw/numbers`"):
        text = f"SELECT n.id FROM {name} VERSION AS OF 0 AS n"
        df, evaluation = world.evaluate(lambda text=text: spark.sql(text))
        assert df.count() == 2
        assert len(evaluation.external) == 1


def test_rows_of_a_mapped_table_are_changed_by_sql(world: World, spark: SparkSession):
    path = world.root / "raw" / "stock"
    spark.range(4).selectExpr("id", "0 AS n").write.format("delta").save(str(path))
    world.tables["main.ref.stock"] = ExternalTable(path=str(path))
    other = spark.newSession()  # like the session of a micro-batch
    other.range(9, 11).createOrReplaceTempView("news")
    with world.hooks():
        other.sql("INSERT INTO main.ref.stock SELECT id, 0 FROM news WHERE id = 9")
        other.sql("UPDATE main.ref.stock SET n = 1 WHERE stock.id = 0")
        other.sql("DELETE FROM main.ref.stock AS s WHERE s.id = 1")
        other.sql(
            "MERGE INTO main.ref.stock"
            " USING (SELECT news.id FROM news LEFT ANTI JOIN main.ref.countries"
            " ON countries.id = news.id) u ON stock.id = u.id"
            " WHEN MATCHED THEN UPDATE SET n = 2"
            " WHEN NOT MATCHED THEN INSERT (id, n) VALUES (u.id, 3)"
        )
        spark.sql(
            "MERGE INTO main.ref.stock AS s USING (SELECT 2 AS id) u ON s.id = u.id"
            " WHEN MATCHED THEN DELETE"
        )
        assert other.sql("SELECT countries.id FROM main.ref.countries").count() == 2
        other.read.table("main.ref.countries").createOrReplaceTempView("dims")
        assert other.sql("SELECT dims.id FROM dims").count() == 2
    # Micro-batches of a stream use the same session, so no view must remain.
    views = other.sql("SHOW VIEWS").collect()
    assert {view["viewName"] for view in views} == {"dims", "news"}
    rows = spark.read.format("delta").load(str(path)).collect()
    assert sorted(map(tuple, rows)) == [(0, 1), (3, 0), (9, 2), (10, 3)]


def test_workspace_statements_have_no_effect(world: World, spark: SparkSession):
    with world.hooks():
        for text in (
            "USE CATALOG main",
            "use schema shop",
            "CREATE SCHEMA IF NOT EXISTS main.shop",
            "GRANT SELECT ON TABLE x TO y",
        ):
            assert spark.sql(text).count() == 0
        spark.catalog.setCurrentCatalog("main")
        assert spark.sql("SELECT current_catalog() AS c").first().c == "spark_catalog"


def test_file_functions_of_sql_are_read_by_auto_loader(world: World, spark: SparkSession):
    def query() -> DataFrame:
        text = """
            WITH raw AS (
              SELECT *, 'read_files(' AS note
              FROM STREAM read_files('/Volumes/' || 'main/raw', format => 'json', header => true) f
            )
            SELECT raw.id FROM raw
            UNION ALL SELECT id FROM STREAM(read_files("/Volumes/main/raw", schema => 'id BIGINT'))
            UNION ALL SELECT id FROM cloud_files(
              '/Volumes/main/raw', 'json', map('cloudFiles.maxFilesPerTrigger', '5')
            )
        """
        return spark.sql(text)

    df, _ = world.evaluate(query)
    assert df.isStreaming
    assert df.columns == ["id"]
    assert {(read.flow, read.is_analysis) for read in world.files_read} == {("f", True)}
    assert len(world.files_read) == 3
    assert {read.paths for read in world.files_read} == {(str(world.root / "raw"),)}
    options = [read.options for read in world.files_read]
    assert {"inferColumnTypes": "true", "format": "json", "header": "true"} in options
    assert {"cloudFiles.maxFilesPerTrigger": "5", "cloudFiles.format": "json"} in options
    assert [read.schema for read in world.files_read].count("id BIGINT") == 1
    assert all(read.is_stream for read in world.files_read)

    world.evaluate(lambda: spark.sql("SELECT * FROM read_files('/Volumes/main/raw')"))
    assert not world.files_read[-1].is_stream
    paths = "/Volumes/main/raw/{a,b}.json, /Volumes/main/raw"
    world.evaluate(lambda: spark.sql(f"SELECT * FROM read_files('{paths}')"))
    raw = str(world.root / "raw")
    assert world.files_read[-1].paths == (f"{raw}/{{a,b}}.json", raw)
    world.evaluate(
        lambda: (
            spark.readStream.format("cloudFiles")
            .option("cloudFiles.format", "json")
            .schema("id BIGINT, name STRING")
            .load("/Volumes/main/raw")
        )
    )
    assert world.files_read[-1].options == {"cloudFiles.format": "json"}


def test_file_metadata_can_be_selected_in_sql(world: World, spark: SparkSession):
    files = "read_files('/Volumes/main/raw', format => 'json')"
    df, _ = world.evaluate(
        lambda: spark.sql(f"SELECT *, _metadata.file_name AS f, '_metadata' AS t FROM {files}")
    )
    assert df.columns == ["id", "name", "f", "t"]
    assert {(row.f, row.t) for row in df.collect()} == {("a.json", "_metadata")}
    for text in (
        f"SELECT a.* EXCEPT (name), a._metadata.file_size FROM STREAM {files} a",
        f"WITH raw AS (SELECT *, `_metadata`.file_size FROM STREAM({files})) SELECT * EXCEPT (name)"
        " FROM raw",
    ):
        df, _ = world.evaluate(lambda text=text: spark.sql(text))
        assert df.isStreaming, text
        assert df.columns == ["id", "file_size"], text
    df, _ = world.evaluate(lambda: spark.sql("SELECT *, _metadata FROM json.`/Volumes/main/raw`"))
    assert df.columns == ["id", "name", "_metadata"]
    assert df.first()["_metadata"].file_name == "a.json"
    df, _ = world.evaluate(lambda: spark.sql(f"SELECT _metadata, f.* FROM {files} f"))
    assert df.columns == ["_metadata", "id", "name"]
    # A table may have a column with this name.
    rows = spark.sql("SELECT struct('b.json' AS file_name) AS _metadata")
    rows.write.format("delta").save(f"{world.layout.root}/tables/main/shop/stored")
    df, _ = world.evaluate(lambda: spark.sql("SELECT _metadata.file_name FROM stored"))
    assert df.collect() == [("b.json",)]


def test_table_functions_of_sql_become_readers(world: World, spark: SparkSession):
    kafka = "read_kafka(bootstrapServers => 'localhost:1', subscribe => 'orders')"
    df, evaluation = world.evaluate(lambda: spark.sql(f"SELECT value FROM STREAM {kafka}"))
    assert df.isStreaming
    assert "kafka orders" in evaluation.external
    group = "groupIdPrefix => 'with-' || secret('crm', 'key')"
    df, _ = world.evaluate(lambda: spark.sql(f"SELECT value FROM STREAM {kafka[:-1]}, {group})"))
    assert df.isStreaming
    assert world.resolved == ["with-${secret:crm/key}"]
    df, _ = world.evaluate(
        lambda: spark.sql("SELECT event_type, get_json_object(details, '$.x') FROM event_log('p')")
    )
    assert df.count() == 0
    df, evaluation = world.evaluate(
        lambda: spark.sql("SELECT _change_type, id FROM table_changes('orders', 1)"),
        orders="id BIGINT",
    )
    assert df.columns == ["_change_type", "id"]
    assert evaluation.inputs == {"main.shop.orders"}
    for text, condition in (
        ("SELECT * FROM STREAM read_pubsub(topicId => 'x')", "FEATURE_NOT_AVAILABLE"),
        ("SELECT * FROM read_files()", "SQL_FUNCTION_INVALID"),
        ("SELECT * FROM read_files(format => x)", "SQL_FUNCTION_INVALID"),
        ("SELECT * FROM orders VERSION AS OF 1", "FEATURE_NOT_AVAILABLE"),
    ):
        with pytest.raises(PenstockError) as error:
            world.evaluate(lambda text=text: spark.sql(text), orders="id BIGINT")
        assert error.value.condition == condition, text
    if installed_spark() == "4.2":
        with pytest.raises(DefinitionError, match=r"FEATURE_NOT_AVAILABLE.*changelog"):
            world.evaluate(lambda: spark.readStream.changes("orders"), orders="id BIGINT")


def test_jdbc_tables_are_read_as_sources_for_every_reader_method(world: World, spark: SparkSession):
    url, table = "jdbc:derby:memory:crm;create=true", "SYSIBM.SYSDUMMY1"
    login = {"user": "crm", "password": "${secret:crm/key}"}
    for read in (
        lambda: spark.read.jdbc(url, table, properties=login),
        lambda: spark.read.jdbc(url, table, predicates=["1 = 1", "1 = 0"], properties=login),
        lambda: spark.read.format("jdbc").options(url=url, dbtable=table, **login).load(),
    ):
        df, evaluation = world.evaluate(read)
        assert df.collect() == [("Y",)]
        assert evaluation.external == [f"jdbc {table}"]
        assert world.resolved.pop() == "${secret:crm/key}"


def test_read_kinesis_is_a_stream_or_refused_on_older_spark(world: World, spark: SparkSession):
    kinesis = (
        "read_kinesis(streamName => 'a,b', awsAccessKey => 'x', awsSecretKey => secret('a','k'))"
    )
    if installed_spark() != "4.2":
        with pytest.raises(DefinitionError, match=r"FEATURE_NOT_AVAILABLE.*Kinesis"):
            world.evaluate(lambda: spark.sql(f"SELECT data, shardId FROM {kinesis}"))
        return
    df, evaluation = world.evaluate(lambda: spark.sql(f"SELECT data, shardId FROM {kinesis}"))
    assert df.isStreaming
    assert "kinesis a,b" in evaluation.external
    assert "${secret:a/k}" in world.resolved


def test_datasets_of_the_pipeline_are_resolved_in_every_sql_style(
    world: World, spark: SparkSession
):
    frame = spark.range(3)
    for text in (
        "SELECT * FROM orders",
        "SELECT * FROM LIVE.Orders o WHERE o.id IN (SELECT id FROM main.shop.orders)",
        "SELECT (SELECT max(id) FROM shop.orders) AS m FROM {frame}",
        "SELECT * FROM IDENTIFIER('main.' || 'shop.orders')",
        "SELECT * FROM IDENTIFIER(concat_ws('.', 'main', :place)) WHERE IDENTIFIER('id') > :least",
        "WITH countries AS (SELECT * FROM live.orders) SELECT * FROM countries",
        "SELECT * FROM STREAM(live.orders) WITH ('skipChangeCommits' = 'true')",
        "SELECT * FROM STREAM orders WATERMARK ts DELAY OF INTERVAL 10 MINUTES AS o",
        "SELECT * EXCEPT (id) FROM orders QUALIFY row_number() OVER (ORDER BY id) = 1",
        "SELECT * FROM read_stream('orders', skipChangeCommits => true)",
    ):
        if not is_known(text):
            continue
        arguments: dict[str, object] = {"frame": frame} if "{frame}" in text else {}
        if ":place" in text:
            arguments = {"args": {"place": "shop.orders", "least": 1}}
        df, evaluation = world.evaluate(
            lambda text=text, arguments=arguments: spark.sql(text, **arguments),
            orders="id BIGINT, ts TIMESTAMP",
        )
        assert evaluation.inputs == {"main.shop.orders"}, text
        assert evaluation.external == [], text
        df.schema  # noqa: B018 (Spark analyses here)


def test_columns_can_be_qualified_with_names_of_tables(world: World, spark: SparkSession):
    join = "JOIN main.ref.countries ON countries.id = orders.id"
    for text in (
        f"SELECT orders.*, countries.id AS c FROM live.orders {join}",
        f"SELECT Orders.ts, countries.id FROM STREAM(orders) {join}",
        "SELECT orders.ts FROM STREAM orders WATERMARK ts DELAY OF INTERVAL 10 MINUTES",
        "SELECT orders.ts FROM STREAM orders WITH ('skipChangeCommits' = 'true')",
        "SELECT o.ts, countries.id FROM orders TABLESAMPLE (9 PERCENT) AS o, main.ref.countries",
        "SELECT orders.ts, o.id FROM orders AS o, shop.orders",
        "SELECT Live.Orders.ts, 'live.orders.x', live . `orders`.* FROM live.orders",
        f"SELECT main.shop.orders.id FROM main.shop.orders {join} AND main.ref.countries.id > 1",
        "SELECT 1 FROM orders o WHERE EXISTS (SELECT 1 FROM orders WHERE orders.id > o.id)",
        "SELECT ts FROM (TABLE orders) AS t WHERE t.id IN (SELECT countries.id FROM"
        " main.ref.countries)",
    ):
        if is_known(text):
            world.evaluate(lambda text=text: spark.sql(text), orders="id BIGINT, ts TIMESTAMP")

    def by_python() -> DataFrame:
        orders = spark.read.table("live.orders").where("orders.id > 1")
        countries = spark.read.table("main.ref.countries")
        joined = orders.join(countries, F.col("orders.id") == F.col("countries.id"))
        return joined.select("main.shop.orders.ts", "shop.orders.id", "main.ref.countries.id")

    df, evaluation = world.evaluate(by_python, orders="id BIGINT, ts TIMESTAMP")
    assert df.columns == ["ts", "id", "id"]
    assert evaluation.inputs == {"main.shop.orders"}
    with pytest.raises(DefinitionError, match=r"`orders`\.`nothing`"):
        world.evaluate(
            lambda: spark.sql("SELECT orders.nothing FROM orders"), orders="id BIGINT, ts TIMESTAMP"
        )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT /*+ BROADCAST(live.orders) */ ts FROM live.orders"
        " JOIN main.ref.countries USING (id)",
        "SELECT /*+ MERGE(c), broadcast(`Orders`) */ orders.ts FROM main.ref.countries AS c"
        " JOIN orders ON c.id = orders.id",
        "SELECT * FROM (SELECT /*+ BROADCAST(o) */ o.ts FROM main.ref.countries AS c, orders AS o"
        " WHERE c.id = o.id)",
    ],
)
def test_hints_name_datasets(world: World, spark: SparkSession, text: str):
    df, _ = world.evaluate(lambda: spark.sql(text), orders="id BIGINT, ts TIMESTAMP")
    assert "strategy=broadcast" in df._jdf.queryExecution().optimizedPlan().toString()


def test_a_view_is_called_again_on_each_thread_that_needs_qualifiers(
    world: World, spark: SparkSession
):
    calls: list[int] = []
    is_late, is_qualifying = threading.Event(), threading.Event()

    def rows() -> DataFrame:
        df = spark.read.table("orders")
        calls.append(number := len(calls))
        if number == 0:
            is_late.wait(30)
        elif number == 1:
            is_late.set()
            is_qualifying.wait(30)  # the first call has failed in the meantime
        elif number == 2:
            is_qualifying.set()
        return df.select("orders.id")

    def both() -> DataFrame:
        with ThreadPoolExecutor(2) as pool:
            reads = [pool.submit(copy_context().run, spark.read.table, "v") for _ in range(2)]
            return reads[0].result().union(reads[1].result())

    view = Flow(name="v", target="v", function=rows, origin=HERE)
    df, _ = world.evaluate(both, view=view, orders="id BIGINT")
    assert (df.columns, len(calls)) == (["id"], 4)


def test_batch_view_can_be_read_as_a_stream_when_the_check_is_disabled(
    world: World, spark: SparkSession
):
    def view(rows: Any) -> Flow:
        return Flow(name="v", target="v", function=rows, origin=HERE)

    batch = view(lambda: spark.range(2))
    stream = view(lambda: spark.readStream.format("rate").load())
    with pytest.raises(DefinitionError, match="is a batch query and is read as a stream"):
        world.evaluate(lambda: spark.readStream.table("v"), view=batch)
    name = "pipelines.incompatibleViewCheck.enabled"
    spark.conf.set(name, "false")
    try:
        df, _ = world.evaluate(lambda: spark.readStream.table("v"), view=batch)
        assert not df.isStreaming
        df, _ = world.evaluate(lambda: spark.sql("SELECT * FROM v"), view=stream)
        assert df.isStreaming
    finally:
        spark.conf.unset(name)


def test_async_function_is_refused_with_a_hint(world: World):
    async def rows() -> None: ...

    with pytest.raises(DefinitionError, match="returned coroutine") as caught:
        world.evaluate(rows)
    assert caught.value.hint == "remove `async`"


def test_name_of_a_table_and_groups_are_refused_with_a_hint(world: World, spark: SparkSession):
    with pytest.raises(DefinitionError, match="returned str") as caught:
        world.evaluate(lambda: "bronze")
    assert "spark.read.table('bronze')" in caught.value.hint
    with pytest.raises(DefinitionError, match="GroupedData") as caught:
        world.evaluate(lambda: spark.range(1).groupBy("id"))
    assert ".count()" in caught.value.hint
    with pytest.raises(DefinitionError, match="Attribute `idd`") as caught:
        world.evaluate(lambda: spark.range(1).where(spark.range(1).idd > 0))
    assert caught.value.hint == "did you mean `id`?"


def test_rows_of_pandas_are_refused_with_a_hint(world: World, spark: SparkSession):
    with pytest.raises(DefinitionError, match=r"returned pyspark\.pandas") as caught:
        world.evaluate(lambda: spark.range(1).pandas_api())
    assert caught.value.hint == "convert it with `to_spark()`"
    with pytest.raises(DefinitionError, match=r"returned pandas\.") as caught:
        world.evaluate(lambda: pandas.DataFrame({"id": [1]}))
    assert caught.value.hint == "convert it with `spark.createDataFrame`"


def test_arithmetic_with_strings_works_when_only_ansi_mode_would_refuse_it(
    world: World, spark: SparkSession
):
    columns = {"orders": "total STRING, quantity STRING"}
    rows = [("10", "4"), ("1", "x"), ("1", "0")]
    frame = spark.createDataFrame(rows, "total STRING, quantity STRING")
    divided: list[Any] = [
        lambda: spark.read.table("orders").selectExpr("total / quantity AS price"),
        lambda: spark.sql("SELECT total / quantity AS price FROM STREAM orders"),
        lambda: spark.createDataFrame(rows, ["total", "quantity"]).select(
            (F.col("total") / F.col("quantity")).alias("price")
        ),
        lambda: spark.sql("SELECT total / quantity AS price FROM {original}", original=frame),
    ]
    results = [world.evaluate(function, **columns) for function in divided]
    assert [df.schema.simpleString() for df, _ in results] == ["struct<price:double>"] * 4
    assert all(evaluation.needs_ansi_off for _, evaluation in results)
    for df, _ in results[2:]:
        assert [row["price"] for row in df.collect()] == [2.5, None, None]
        assert df._jdf.sparkSession().equals(spark._jsparkSession)
    strict, evaluation = world.evaluate(lambda: spark.sql("SELECT 1 / int('0') AS x"), **columns)
    assert not evaluation.needs_ansi_off
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        strict.collect()
    with pytest.raises(PenstockError) as error:
        world.evaluate(lambda: spark.sql("SELECT array(1) / 2"), **columns)
    assert error.value.condition == "QUERY_INVALID"
    world.configuration["spark.sql.ansi.enabled"] = "true"  # set explicitly
    with pytest.raises(PenstockError, match="BINARY_OP_WRONG_TYPE"):
        world.evaluate(divided[0], **columns)


def test_failures_of_the_jvm_are_errors_of_the_query(world: World, spark: SparkSession):
    # `from_avro` may parse its schema when the columns are resolved, after the function returned.
    payload = F.col("id").cast("string").cast("binary")
    wrong = {
        lambda: spark.range(1).select(from_avro(payload, "{bad")): "Unexpected character",
        lambda: spark.read.format("absent").load(): "find the data source: absent",
        lambda: spark.read.option("pathGlobFilter", "[a").text("."): "Illegal file pattern",
        lambda: spark.readStream.json("."): "Schema must be specified",
        lambda: spark.readStream.text(".").count(): "streaming sources must be executed",
        lambda: spark.readStream.text(".").write: "can not be called on streaming",
    }
    hints = []
    for function, message in wrong.items():
        with pytest.raises(DefinitionError, match=message) as error:
            world.evaluate(function)
        assert error.value.condition == "QUERY_INVALID"
        hints.append(error.value.hint or "")
    assert ["spark.jars" in hint for hint in hints] == [False, True, *[False] * 4]
    assert "option pathGlobFilter" in hints[2]
    assert "which infers them" in hints[3]
    assert all("does not collect, count, show or write" in hint for hint in hints[4:])


def test_table_of_another_catalog_is_not_reported_as_a_function(world: World, spark: SparkSession):
    for condition, query in (
        ("DATASET_NOT_FOUND", "SELECT * FROM main.sales.orders"),
        ("FUNCTION_NOT_FOUND", "SELECT main.sales.net(1)"),
        ("FUNCTION_NOT_FOUND", "SELECT * FROM main.sales.days(1)"),
    ):
        with pytest.raises(DefinitionError, match=r"'main\.sales\.\w+'") as error:
            world.evaluate(lambda query=query: spark.sql(query))
        assert error.value.condition == condition
    with pytest.raises(DefinitionError, match=r"reads 'main\.sales\.orders'") as error:
        world.evaluate(lambda: spark.read.table("main.sales.orders"))
    assert "map it under `tables`" in (error.value.hint or "")


def test_ansi_mode_is_off_only_for_the_query_that_needs_it(world: World, spark: SparkSession):
    # One expression computes with strings, the other casts a string that is not a number.
    text, cast = "total / quantity AS price", "CAST(quantity AS INT) AS number"
    rows = "(SELECT '10' AS total, concat('x', id) AS quantity FROM range(1))"

    def view(columns: str) -> Flow:
        query = f"SELECT *, {columns} FROM {rows}"
        return Flow(name="v", target="v", function=lambda: spark.sql(query), origin=HERE)

    df, evaluation = world.evaluate(
        lambda: spark.sql(f"SELECT price, {cast} FROM v"), view=view(text)
    )
    assert not evaluation.needs_ansi_off
    assert df.select("price").collect()[0].price is None
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        df.select("number").collect()
    df, evaluation = world.evaluate(
        lambda: spark.read.table("v").selectExpr("number", text), view=view(cast)
    )
    assert evaluation.needs_ansi_off
    assert df.select("price").collect()[0].price is None
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        df.select("number").collect()
    assert df._jdf.sparkSession().equals(spark._jsparkSession)


def test_missing_setting_is_an_error_with_a_hint(world: World, spark: SparkSession):
    world.configuration["shop.source_path"] = "/data"
    with world.hooks():
        assert spark.conf.get("spark.sql.sources.partitionOverwriteMode") == "STATIC"
        assert spark.conf.get("unknown.setting", "mine") == "mine"
        assert spark.conf.get("unknown.setting", None) is None
        with pytest.raises(DefinitionError) as caught:
            spark.conf.get("shop.source_pth")
    assert caught.value.condition == "CONFIGURATION_MISSING"
    assert caught.value.origin is not None
    assert caught.value.origin.file.endswith("test_reader_hooks.py")
    assert "did you mean 'shop.source_path'?" in str(caught.value.hint)


def test_json_paths_with_a_colon_work_on_strings_in_sql(world: World, spark: SparkSession):
    def query() -> DataFrame:
        return spark.sql("""
            WITH raw AS (SELECT '{"a": {"b c": [5, 6]}, "id": 7, "type": "x"}' AS v)
            SELECT r.v:a['b c'][1], v:id::int AS id, upper(v:type) AS t, v:missing,
                   (SELECT max(v:id) FROM raw WHERE v:id IN (SELECT v:id FROM raw)) AS top
            FROM raw r WHERE v:type = 'x'
        """)

    df, _ = world.evaluate(query)
    row = df.first()
    assert row is not None
    assert tuple(row) == ("6", 7, "X", None, "7")
    assert df.columns[1:] == ["id", "t", "missing", "top"]


def test_names_and_json_paths_are_correct_after_variables_are_replaced(world: World, spark):
    values = {
        "a.long.value": "a value longer than its key",
        "a.table": "countries",
        "a.name": "ref.countries",
    }
    select = "SELECT '${a.long.value}' AS k"

    def result(text: str, **datasets: str) -> tuple[DataFrame, Any]:
        return world.evaluate(lambda: spark.sql(f"{select}{text}"), **datasets)

    with session_conf(spark, values):
        df, evaluation = result(", r.id, (SELECT max(id) FROM raw) m FROM raw r", raw="id BIGINT")
        assert (df.columns, evaluation.inputs) == (["k", "id", "m"], {"main.shop.raw"})
        for name in ("main.ref.${a.table}", "IDENTIFIER('main.${a.name}')"):
            df, _ = result(f" FROM {name} c")
            assert df.first()["k"] == "a value longer than its key"
        df, _ = result(""", v:a.b AS x FROM (SELECT '{"a": {"b": 5}}' AS v)""")
        assert df.first()["x"] == "5"
        other = spark.newSession()
        other.conf.set("a.table", "its own")
        df, _ = world.evaluate(lambda: other.sql("SELECT '${a.table}' AS k"))
        assert df.first()["k"] == "its own"


def test_json_paths_work_on_strings_in_select_expr(world: World, spark: SparkSession):
    def query() -> DataFrame:
        raw = spark.sql("""SELECT 1 AS n, '{"a": {"b": [5, 6]}, "id": 7}' AS v""")
        return raw.selectExpr("n", "v:a.b[1]", "v:id::int AS id", "upper(v:x) AS x", "*")

    df, _ = world.evaluate(query)
    row = df.first()
    assert row is not None
    assert tuple(row)[:5] == (1, "6", 7, None, 1)
    assert df.columns == ["n", "b", "id", "x", "n", "v"]


def test_pandas_frame_is_refused_with_its_full_type_name(world: World):
    with pytest.raises(PenstockError, match=r"returned pandas\.\S+, not a Spark DataFrame"):
        world.evaluate(pandas.DataFrame)


@pytest.mark.parametrize("start", ["start", "toTable"])
def test_a_query_function_starts_no_query(world: World, spark: SparkSession, start: str):
    def starts() -> Any:
        return getattr(spark.readStream.table("orders").writeStream, start)("main.copy")

    with pytest.raises(DefinitionError, match="starts a streaming query"):
        world.evaluate(starts, orders="id BIGINT")
    assert spark.streams.active == []


def test_all_functions_can_be_imported_as_with_spark_3() -> None:
    export_old_functions()
    names: dict[str, Any] = {}
    exec("from pyspark.sql.functions import *", names)
    assert names["countDistinct"] is F.countDistinct


def test_hooks_are_installed_once() -> None:
    install_reader_hooks()
    before = DataFrameReader.load, SparkSession.sql
    install_reader_hooks()
    assert (DataFrameReader.load, SparkSession.sql) == before
