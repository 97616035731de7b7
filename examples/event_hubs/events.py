import penstock as dp
from penstock import parsing


@dp.table
@dp.expect_or_quarantine("parsed", parsing.PARSED)
def events():
    hub = (
        spark.readStream.format("eventhubs")
        .option("eventhubs.connectionString", spark.conf.get("hub.connection"))
        .option("eventhubs.startingPosition", '{"offset": "-1", "seqNo": -1}')
    )
    # Java trusts the certificates of Azure, but not those of an emulator.
    certificates = spark.conf.get("hub.certificates", "")
    if certificates:
        hub = hub.option("kafka.ssl.truststore.type", "PEM")
        hub = hub.option("kafka.ssl.truststore.location", certificates)
    return parsing.parse_json(hub.load(), "body", schema="id BIGINT NOT NULL, level STRING")
