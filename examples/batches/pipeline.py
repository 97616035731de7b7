"""Idempotent `foreach_batch_sink` functions."""

import sqlite3
from pathlib import Path

import penstock as dp
from penstock.batches import current_batch, foreach_row, idempotent_delta_write, once_per_batch

HERE = Path.cwd()


@dp.table
@dp.expect_or_drop("has_id", "id IS NOT NULL")
def orders():
    return spark.readStream.schema("id BIGINT, amount BIGINT").json("data")


@dp.foreach_batch_sink
def into_sqlite(df, batch_id):
    batch = current_batch()
    rows = [(row.id, row.amount) for row in df.collect()]
    database = sqlite3.connect(HERE / "shop.db")
    with database:  # one transaction
        database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER, amount INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS batches (flow TEXT PRIMARY KEY, last INTEGER)")
        known = database.execute("SELECT last FROM batches WHERE flow = ?", [batch.app_id])
        if (known.fetchone() or (-1,))[0] < batch_id:
            database.executemany("INSERT INTO orders VALUES (?, ?)", rows)
            database.execute("REPLACE INTO batches VALUES (?, ?)", [batch.app_id, batch_id])
    database.close()


@dp.append_flow(target="into_sqlite")
def publish():
    return spark.readStream.table("orders")


@dp.foreach_batch_sink
def audit(df, batch_id):
    idempotent_delta_write(df, "audit/all")
    idempotent_delta_write(df.where("amount > 1000"), "audit/large")
    once_per_batch(lambda: (HERE / "audited").write_text(f"up to batch {batch_id}"), name="note")


@dp.append_flow(target="audit")
def to_audit():
    return spark.readStream.table("orders")


class KeyedFiles:
    """A file per order id: a later row overwrites an earlier one."""

    def open(self, partition_id, batch_id):
        (HERE / "keyed").mkdir(exist_ok=True)
        return True

    def process(self, row):
        (HERE / "keyed" / f"{row.id}").write_text(f"{row.amount}\n")

    def close(self, error):
        pass


@dp.foreach_batch_sink
def one_by_one(df, batch_id):
    foreach_row(df, KeyedFiles())


@dp.append_flow(target="one_by_one")
def to_files():
    return spark.readStream.table("orders")
