import penstock as dp
from penstock import parsing


@dp.table
@dp.expect_or_quarantine("parsed", parsing.PARSED)
def orders():
    stream = (
        spark.readStream.format("kinesis")
        .option("streamName", spark.conf.get("shop.stream"))
        .option("region", spark.conf.get("shop.region"))
        .option("initialPosition", "earliest")
        .option("awsAccessKey", spark.conf.get("shop.access.key"))
        .option("awsSecretKey", spark.conf.get("shop.secret.key"))
        .option("failOnDataLoss", spark.conf.get("shop.fail.on.data.loss"))
    )
    # For a local server; by default, the endpoint of the region is used.
    endpoint = spark.conf.get("shop.endpoint", "")
    if endpoint:
        stream = stream.option("endpoint", endpoint)
    return parsing.parse_json(
        stream.load(), "data", schema="id BIGINT NOT NULL, amount DECIMAL(10, 2)"
    )
