"""Files as source and sink."""

import penstock as dp


@dp.table
@dp.expect_or_drop("is_json", "_corrupt IS NULL")
@dp.expect_or_drop("has_id", "id IS NOT NULL OR _corrupt IS NOT NULL")
def orders():
    return (
        spark.readStream.schema("id BIGINT, amount DECIMAL(10, 2), _corrupt STRING")
        .option("columnNameOfCorruptRecord", "_corrupt")
        .option("maxFilesPerTrigger", 1)
        .option("cleanSource", "archive")
        .option("sourceArchiveDir", "archive")
        .json("orders")
        .selectExpr("*", "_metadata.file_name AS source_file")
    )


dp.create_sink("export", "csv", {"path": "export", "header": "true"})


@dp.append_flow(target="export")
def export_orders():
    return spark.readStream.table("orders").select("id", "amount")
