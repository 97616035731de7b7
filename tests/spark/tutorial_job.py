"""A job from tutorials of Structured Streaming.

Only servers, topics, paths, offsets, intervals and names of fields are changed. Any other change
has a comment, and a row in docs/jobs.md.
"""

# Five queries: Kafka to a Delta path; a log of checks with quarantine and upsert; Delta to a table;
# a window; a join of two streams. Also a listener, and a loop that monitors the first query.
PROGRAM = """
import json, time
from datetime import datetime

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.functions import *
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.types import (
    StructType, StructField, StringType, DoubleType,
    TimestampType, IntegerType, ArrayType
)

spark = (
    SparkSession.builder
    .appName("OrdersBronzePipeline")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog",
            "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.databricks.delta.schema.autoMerge.enabled", "true")
    .getOrCreate()
)


class Printing(StreamingQueryListener):
    def onQueryStarted(self, event):
        print("started", event.runId)

    def onQueryProgress(self, event):
        print("listener:", event.progress.numInputRows, "rows")

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        print("terminated", event.runId)


spark.streams.addListener(Printing())

KAFKA_SERVERS    = "@servers"
KAFKA_TOPIC      = "jobs-orders"
BRONZE_PATH      = "delta/orders_bronze/"
CHECKPOINT_PATH  = "checkpoints/orders-bronze/v2/"

ORDER_SCHEMA = StructType([
    StructField("order_id",    StringType(),    nullable=False),
    StructField("customer_id", StringType(),    nullable=False),
    StructField("total",       DoubleType(),    nullable=True),
    StructField("event_ts",    TimestampType(), nullable=True),
])

df_raw = (
    spark.readStream
    .format("kafka")
    .option("kafka.bootstrap.servers", KAFKA_SERVERS)
    .option("subscribe", KAFKA_TOPIC)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 20)
    .option("failOnDataLoss", "false")
    .load()
)

df_parsed = (
    df_raw
    .select(
        F.col("key").cast("string").alias("kafka_key"),
        F.from_json(F.col("value").cast("string"), ORDER_SCHEMA).alias("payload"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        F.col("timestamp").alias("kafka_ingest_ts"),
    )
    .select(
        "kafka_key",
        "kafka_partition",
        "kafka_offset",
        "kafka_ingest_ts",
        "payload.*",
    )
    # Coalesce event_ts fallback to kafka ingest time
    .withColumn("event_ts", F.coalesce(F.col("event_ts"), F.col("kafka_ingest_ts")))
    # Add partition columns for Delta write
    .withColumn("event_date", F.to_date(F.col("event_ts")))
    .withColumn("event_hour", F.hour(F.col("event_ts")))
)

query = (
    df_parsed
    .writeStream
    .format("delta")
    .outputMode("append")
    .option("checkpointLocation", CHECKPOINT_PATH)
    .option("mergeSchema", "true")
    .partitionBy("event_date", "event_hour")
    .trigger(processingTime="1 second")
    .start(BRONZE_PATH)
)
bronze = query  # changed: the loop below is about this query
query.processAllAvailable()  # changed: what reads the table needs it

SILVER_PATH = "delta/orders_silver/"
DQ_LOG_PATH = "delta/dq_log/"

def process_batch(batch_df: DataFrame, batch_id: int) -> None:
    if batch_df.isEmpty():
        return

    total_rows = batch_df.count()

    df_valid   = batch_df.filter(
        F.col("order_id").isNotNull() &
        F.col("customer_id").isNotNull() &
        (F.col("total") >= 0)
    )
    df_invalid = batch_df.subtract(df_valid)

    valid_count   = df_valid.count()
    invalid_count = df_invalid.count()

    dq_record = spark.createDataFrame([{
        "batch_id":      batch_id,
        "total_rows":    total_rows,
        "valid_rows":    valid_count,
        "invalid_rows":  invalid_count,
        "logged_at":     datetime.now(),  # changed: F.current_timestamp() is no value
    }])
    dq_record.write.format("delta").mode("append").save(DQ_LOG_PATH)

    if invalid_count > 0:
        (
            df_invalid
            .write
            .format("delta")
            .mode("append")
            .save("delta/orders_quarantine/")
        )

    if DeltaTable.isDeltaTable(spark, SILVER_PATH):
        delta_silver = DeltaTable.forPath(spark, SILVER_PATH)
        (
            delta_silver.alias("target")
            .merge(
                df_valid.alias("source"),
                "target.order_id = source.order_id"
            )
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
    else:
        df_valid.write.format("delta").mode("overwrite").save(SILVER_PATH)


query = (
    df_parsed.writeStream
    .foreachBatch(process_batch)
    .option("checkpointLocation", "checkpoints/orders-silver/")
    .trigger(processingTime="1 second")
    .start()
)

spark.sql("CREATE SCHEMA IF NOT EXISTS silver")  # changed: Spark does not create schemas
stream_df = spark.readStream.format("delta").load(BRONZE_PATH)
filtered = stream_df.filter(col("total") > 100)
query = (filtered.writeStream
.format("delta")
.outputMode("append")
.option("checkpointLocation", "checkpoints/orders_filtered")
.trigger(processingTime="1 second")
.toTable("silver.filtered_orders")
)

schema = "customer_id STRING, event_ts TIMESTAMP"
stream_df = (spark
.readStream
.format("kafka")
.option("kafka.bootstrap.servers", KAFKA_SERVERS)
.option("subscribe", KAFKA_TOPIC)
.option("startingOffsets", "earliest") # or "latest"
.load()
.select(from_json(col("value").cast("string"), schema).alias("data"))
.select("data.*")
.withColumn("processing_time", current_timestamp())
.withWatermark("event_ts", "10 minutes")
)
windowed = (stream_df
.groupBy(
window(col("event_ts"), "10 minutes", "5 minutes"),
col("customer_id")
)
.agg(count("*").alias("events"))
)
query = (windowed
.writeStream
.format("delta")
.option("checkpointLocation", "checkpoints/events_agg")
.outputMode("append") # changed: no partitionBy("window.start")
.trigger(processingTime="1 second")
.start("delta/events_agg")
)

# changed: from_json of the value, startingOffsets, servers
clicks = spark.readStream \\
    .format("kafka") \\
    .option("kafka.bootstrap.servers", KAFKA_SERVERS) \\
    .option("startingOffsets", "earliest") \\
    .option("subscribe", "jobs-clicks") \\
    .load() \\
    .select(from_json(
        col("value").cast("string"), "user_id STRING, ad_id STRING, click_time TIMESTAMP"
    ).alias("value")) \\
    .select(
        col("value.user_id"),
        col("value.ad_id"),
        col("value.click_time").alias("click_time")
    ).withWatermark("click_time", "10 minutes")

impressions = spark.readStream \\
    .format("kafka") \\
    .option("kafka.bootstrap.servers", KAFKA_SERVERS) \\
    .option("startingOffsets", "earliest") \\
    .option("subscribe", "jobs-impressions") \\
    .load() \\
    .select(from_json(
        col("value").cast("string"), "user_id STRING, ad_id STRING, impression_time TIMESTAMP"
    ).alias("value")) \\
    .select(
        col("value.user_id"),
        col("value.ad_id"),
        col("value.impression_time").alias("impression_time")
    ).withWatermark("impression_time", "10 minutes")

joined = clicks.alias("clicks").join(  # changed: the aliases
    impressions.alias("impressions"),
    expr(\"\"\"
        clicks.user_id = impressions.user_id AND
        clicks.ad_id = impressions.ad_id AND
        click_time >= impression_time AND
        click_time <= impression_time + interval 5 minutes
    \"\"\"),
    "inner"
).select("clicks.ad_id", "clicks.user_id")  # changed: no countDistinct
query = joined.writeStream \\
    .queryName("clicked") \\
    .format("delta") \\
    .option("checkpointLocation", "checkpoints/clicked") \\
    .start("delta/clicked_ads")

for q in spark.streams.active:
    print(f"{q.name}: {q.status}")

query = bronze
for _ in range(20):
    time.sleep(0.3)
    if query.lastProgress:
        p = query.lastProgress
        print(
            f"Batch {p['batchId']:4d} | "
            f"Input: {p['numInputRows']:6,} rows | "
            f"Throughput: {p['processedRowsPerSecond']:,.0f} rows/s"
        )
    if not query.isActive:
        if query.exception():
            raise query.exception()
        break

query.awaitTermination()
print("after awaitTermination")
"""
