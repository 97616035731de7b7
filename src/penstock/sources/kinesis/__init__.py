"""Amazon Kinesis Data Streams: a source on Spark's Python Data Source API."""
