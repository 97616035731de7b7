"""Options of readers and writers: defaults filled in, wrong ones refused, per format.

Formats that Penstock knows nothing about pass through unchanged.
"""

from collections.abc import Mapping

from penstock.sources.kafka.options import prepare_sink_options, prepare_source_options


def prepare_reader_options(
    source_format: str, options: Mapping[str, str], *, streaming: bool
) -> dict[str, str]:
    """The options to read with.

    Args:
        source_format: What was given to `format()`, in any case; empty for the default.
        options: As the user gave them, secrets filled in.
        streaming: Whether they are for `readStream`.

    Raises:
        ConnectorError: The source cannot be read with these options.
    """
    if source_format.lower() == "kafka":
        return prepare_source_options(options, streaming=streaming)
    if streaming and source_format.lower() in FILE_FORMATS:
        return {**options, **_file_defaults(options)}
    return dict(options)


def prepare_writer_options(sink_format: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options to write a sink with.

    Raises:
        ConnectorError: The sink cannot be written with these options.
    """
    if sink_format.lower() == "kafka":
        return prepare_sink_options(options)
    return dict(options)


FILE_FORMATS = frozenset({"json", "csv", "parquet", "orc", "text", "avro", "xml"})


def _file_defaults(options: Mapping[str, str]) -> dict[str, str]:
    # Spark skips files older than 7 days (by the newest one seen) without a word.
    given = {key.lower() for key in options}
    return {} if "maxfileage" in given else {"maxFileAge": "36500d"}
