"""Code blocks of jobs from tutorials of Structured Streaming.

Only servers, topics, paths, offsets, intervals and names of fields are changed. Any other change
has a comment, and a row in docs/jobs.md.
"""

# Each function is a code block. Those in `refused` cannot run unchanged.
BLOCKS = """
import json, time

from pyspark.sql import functions as F
from pyspark.sql.functions import *

SERVERS = "@servers"
SCHEMA = "order_id STRING, customer_id STRING, total DOUBLE, event_ts TIMESTAMP"


def event_hubs():
    kafka_conf = {
    "kafka.bootstrap.servers": SERVERS,
    "subscribe": "jobs-blocks",
    "startingOffsets": "earliest"
    }
    return spark.readStream.format("kafka").options(**kafka_conf).load()


events = (
    event_hubs()
    .select(from_json(col("value").cast("string"), SCHEMA).alias("data"))
    .select("data.*")
)


def available_now():
    query = (
        events.writeStream
        .trigger(availableNow=True)
        .format("delta")
        .outputMode("append")
        .option("checkpointLocation", "@root/checkpoints/available")
        .start("@root/delta/available/")
    )
    query.awaitTermination()


def once():
    query = events.writeStream \\
        .format("delta") \\
        .option("checkpointLocation", "@root/checkpoints/once") \\
        .trigger(once=True) \\
        .start("@root/delta/once")
    query.awaitTermination()


def files():
    df_file_stream = (
        spark.readStream
        .format("parquet")
        .option("path", "@root/landing/orders/")
        .option("maxFilesPerTrigger", 10)
        .option("latestFirst", "false")
        .schema(SCHEMA)
        .load()
    )
    df_csv_stream = (
        spark.readStream
        .format("csv")
        .option("path", "@root/landing/events/*.csv")
        .option("header", "true")
        .option("maxFilesPerTrigger", 5)
        .schema(SCHEMA)
        .load()
    )
    for name, df in (("parquet", df_file_stream), ("csv", df_csv_stream)):
        query = (
            df.writeStream.queryName(name)
            .option("checkpointLocation", f"@root/checkpoints/{name}")
            .trigger(availableNow=True)
            .toTable(f"jobs_{name}")
        )
        query.awaitTermination()
        print(name, spark.table(f"jobs_{name}").count())


def socket():
    df_socket = (
        spark.readStream
        .format("socket")
        .option("host", "localhost")
        .option("port", @port)
        .load()
    )
    query = df_socket.writeStream.format("memory").queryName("lines").start()
    while not spark.table("lines").count():
        time.sleep(0.1)
    query.stop()
    print("socket", spark.table("lines").first()[0])


def continuous():
    query = (
        events.writeStream
        .trigger(continuous="1 second")
        .format("memory")
        .queryName("orders_live")
        .outputMode("append")
        .start()
    )
    while spark.table("orders_live").count() < 3:
        time.sleep(0.1)
    query.stop()


def complete():
    df_country_totals = events.groupBy("customer_id").agg(F.sum("total").alias("total"))
    query = (
        df_country_totals.writeStream
        .outputMode("complete")
        .format("memory")
        .queryName("country_totals")
        .start()
    )
    query.processAllAvailable()
    print("complete", spark.table("country_totals").first())
    query.stop()


def send_alerts(rows):
    print("alerts", [row.order_id for row in rows])


def process_batch(batch_df, batch_id):
    print(f"Processing batch {batch_id} with {batch_df.count()} rows")

    batch_df.write \\
        .format("delta") \\
        .mode("append") \\
        .save("@root/delta/events")

    aggregates = batch_df.groupBy("customer_id").count()
    aggregates.write \\
        .format("jdbc") \\
        .option("url", "jdbc:derby:memory:jobs;create=true") \\
        .option("dbtable", "event_counts") \\
        .mode("append") \\
        .save()

    alerts = batch_df.filter(col("total") > 100)
    if alerts.count() > 0:
        send_alerts(alerts.collect())


def several_writes():
    query = events.writeStream \\
        .foreachBatch(process_batch) \\
        .option("checkpointLocation", "@root/checkpoints/custom") \\
        .trigger(processingTime="1 minute") \\
        .start()
    query.processAllAvailable()
    query.stop()
    counts = spark.read.format("jdbc").option("url", "jdbc:derby:memory:jobs")
    print("jdbc", counts.option("dbtable", "event_counts").load().collect())


def monitoring():
    query = (
        events.writeStream.format("delta")
        .option("checkpointLocation", "@root/checkpoints/m")
        .start("@root/delta/m")
    )
    query.processAllAvailable()
    print(json.dumps(query.status, indent=2))
    progress = query.lastProgress
    if progress:
        print(f"Batch ID         : {progress['batchId']}")
        print(f"Input rows       : {progress['numInputRows']}")
        print(f"Input rows/sec   : {progress['inputRowsPerSecond']:.1f}")
        print(f"Processed rows/s : {progress['processedRowsPerSecond']:.1f}")
        print(f"Trigger duration : {progress['durationMs']['triggerExecution']}")  # changed
        if "sources" in progress:
            for src in progress["sources"]:
                print(f"Source: {src.get('description')}")
                print(f"  End offset: {src.get('endOffset')}")
        print(f"Batch duration: {progress['batchDuration']} ms")
    for p in query.recentProgress[-5:]:
        print(f"Batch {p['batchId']}: {p['numInputRows']} rows")
    for q in spark.streams.active:
        print(f"{q.name}: {q.status}")
    print("timeout", query.awaitTermination(timeout=1))
    refused["triggerExecution"] = lambda: progress["triggerExecution"]["prettyString"]
    query.stop()
    try:
        query.awaitTermination()
    except Exception as e:
        print(f"Query failed: {e}")
        exc = query.exception()
        if exc:
            print(f"Root cause: {exc}")


def trigger_class():
    from pyspark.sql.streaming import Trigger


def update_into_delta():
    tumbling = events.groupBy(
        window(col("event_ts"), "5 minutes"), col("customer_id")
    ).agg(count("*"))
    tumbling.writeStream \\
        .format("delta") \\
        .outputMode("update") \\
        .option("checkpointLocation", "@root/checkpoints/metrics") \\
        .start("@root/delta/event_metrics")


def partition_by_field():
    windowed = events.withWatermark("event_ts", "10 minutes").groupBy(
        window(col("event_ts"), "10 minutes", "5 minutes"), col("customer_id")
    ).agg(count("*").alias("events"))
    query = (windowed.writeStream
    .format("delta")
    .option("checkpointLocation", "@root/checkpoints/partitioned")
    .partitionBy("window.start")
    .outputMode("append")
    .start("@root/delta/partitioned")
    )
    query.awaitTermination()


def map_groups_with_state():
    from pyspark.sql.streaming.state import GroupState
    events.groupBy("customer_id").mapGroupsWithState


refused = {
    "Trigger": trigger_class,
    "update": update_into_delta,
    "partitionBy": partition_by_field,
    "mapGroupsWithState": map_groups_with_state,
    "schema": lambda: events.writeStream.option("checkpointLocation", "c").toTable("bronze.orders"),
    "value.user_id": lambda: event_hubs().select(col("value.user_id")),
    "countDistinct": lambda: events.groupBy("customer_id").agg(
        countDistinct("order_id")).writeStream.format("noop").outputMode("update").start(),
    "dropDuplicates": lambda: events.dropDuplicates("order_id", "event_ts"),
    "current_timestamp": lambda: spark.createDataFrame([{"at": F.current_timestamp()}]),
    "alias": lambda: events.join(events, expr("clicks.order_id = impressions.order_id")),
}
for block in (available_now, once, files, socket, continuous, complete, several_writes, monitoring):
    block()
for name, block in refused.items():
    try:
        block()
    except Exception as error:
        print("refused", name, type(error).__name__, str(error).partition("\\n")[0])
    else:
        print("runs", name)
"""
