"""Amazon Kinesis Data Streams: a source on Spark's Python Data Source API.

`options` reads what users give, `offsets` is what a checkpoint says, `client` talks to Kinesis,
`probing` decides where micro-batches end, and `source` is what Spark calls.
"""
