"""Formats of files that Spark reads and writes itself."""

FILE_FORMATS = ("json", "csv", "parquet", "orc", "text", "avro", "xml")
