"""The sink `jdbc`: its options, and the writer of a flow."""

from collections.abc import Mapping

from penstock._model.dataset import SinkFacts
from penstock._model.flow import OutputMode
from penstock.errors import ConnectorError
from penstock.sinks.base import OpenedSink, Sink, Write, option
from penstock.sinks.jdbc.options import WriteRows, jdbc_sink_options
from penstock.sinks.jdbc.writer import JdbcSinkWriter

_REFUSED = {
    OutputMode.UPDATE: "mode `append` would add each new version of a row as another row",
    OutputMode.COMPLETE: "mode `append` would add the whole result with every batch",
}


class JdbcSink(Sink):
    """A database table: rows and the id of their batch are committed in one transaction."""

    formats = ("jdbc",)

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        is_keyed = bool(option(options, "keys"))
        return SinkFacts(is_keyed=is_keyed, refuses_new_checkpoint=not is_keyed)

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        jdbc_sink_options(options)
        return dict(options)

    def check_query(
        self, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
    ) -> None:
        """Refuse unsupported modes; columns are compared with the table when the flow starts."""
        if jdbc_sink_options(options).mode is WriteRows.APPEND and mode in _REFUSED:
            raise ConnectorError(
                "SINK_MODE_NOT_SUPPORTED",
                f"the JDBC sink cannot take a flow in {mode.value} mode: {_REFUSED[mode]}",
                hint='set {"mode": "upsert", "keys": "..."} on the sink: the grouping columns',
            )

    def open(self, write: Write) -> OpenedSink:
        writer = JdbcSinkWriter(write)
        writer.start(write.schema)
        return writer
