"""What a sink says about a micro-batch that it took."""

from dataclasses import dataclass

from penstock._observe.events import Event, EventOrigin, FlowMetrics, FlowProgress, FlowStatus


@dataclass(frozen=True, kw_only=True)
class SinkCommit:
    """What one batch wrote to a sink.

    Attributes:
        rows: In the batch; `None` if the sink does not tell.
        is_upsert: Whether rows were merged rather than added.
        replayed: An earlier attempt had written it.
    """

    rows: int | None
    is_upsert: bool = False
    replayed: bool = False

    def event(self, origin: EventOrigin, message: str) -> Event:
        """The `flow_progress` event with its counts."""
        metrics = FlowMetrics(
            num_output_rows=None if self.is_upsert else self.rows,
            num_upserted_rows=self.rows if self.is_upsert else None,
        )
        return Event(origin, FlowProgress(FlowStatus.RUNNING, metrics), message)
