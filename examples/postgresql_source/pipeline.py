"""Two PostgreSQL tables as streams: one with inserts only, and one with updates."""

import penstock as dp


def rows_of(table, key, **options):
    reader = spark.readStream.format("jdbc").option("url", spark.conf.get("database.url"))
    reader = reader.option("user", spark.conf.get("database.user"))
    reader = reader.option("password", "${secret:DATABASE_PASSWORD}")
    return reader.options(dbtable=table, partitionColumn=key, **options).load()


@dp.table(comment="Each order once; rows that violate a rule are in orders_quarantine")
@dp.expect_or_drop("has_customer", "customer IS NOT NULL")
@dp.expect_or_drop("not_negative", "amount >= 0")
def orders():
    return rows_of("shop_orders", "id", maxRowsPerTrigger=1000)


# Each batch reads the rows of the last hour again; the table keeps each version once.
@dp.table(deduplicate_by=["name", "updated_at"])
def customer_versions():
    return rows_of("shop_customers", "updated_at", overlap="1 hour")


dp.create_streaming_table("customers", comment="The newest version of each customer")
dp.create_auto_cdc_flow(
    target="customers",
    source="customer_versions",
    keys=["name"],
    sequence_by="updated_at",
)
