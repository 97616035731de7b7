"""Sends batches as messages: at least once, and with a limited rate.

Each batch with rows is one message, with some of the rows and the number of the others. Its key is
the same if it is sent again. Above the rate limit, the rows of a batch are only counted, and the
next message has their number. A file in the folder `Write.notes` records the last batch, the number
of unsent rows, and the times of messages: a restart keeps that number and does not send a recorded
batch again.
"""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from penstock._model.exception_text import first_line
from penstock._model.sql_text import quoted
from penstock._observe.codec import time_text
from penstock._observe.masking import shown
from penstock._observe.transport import PAUSES_SECONDS, is_permanent
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.read.cells import MAX_READ, shown_values
from penstock.errors import ConnectorError, FlowError
from penstock.sinks.base import BatchSink, SinkCommit, Write, evaluate, option
from penstock.sinks.notification.message import Message

_MASK = "***"
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class _Sent:
    batch: int = -1  # the last batch that was sent or counted
    rows: int = 0  # number of rows since `since` that no message has reported
    since: str = ""
    times: tuple[float, ...] = ()  # timestamps of the messages of the last minute


class NotificationWriter(BatchSink):
    """Sends the batches of one flow; `hidden` is removed from errors."""

    def __init__(self, write: Write, send: Callable[[Message], None], *, hidden: str = "") -> None:
        self._opened = write
        self._sender = send
        self._hidden = hidden
        self._max_rows = int(option(write.options, "max_rows") or 20)
        self._rate = int(option(write.options, "max_per_minute") or 6)
        self._masks = [_path(write.schema, name) for name in listed(write.options, "mask")]
        self._files = StorageFiles(write.spark)
        self._note = f"{write.notes}/sent.json"
        self._sent = self._stored()
        self._lock = threading.Lock()
        self._timer = threading.Timer(_WINDOW_SECONDS, self.close)
        if self._sent.rows:  # counted before a restart
            self._send_later()

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        flow = self._opened.flow.name
        kill_point("before_write", flow, batch_id)
        with self._lock:
            if batch_id <= self._sent.batch:
                evaluate(df)
                return SinkCommit(rows=0, replayed=True)
            rows, count = self._read(df)
            if count and len(self._recent()) >= self._rate:
                since = self._sent.since or time_text(datetime.now(UTC))
                total = self._sent.rows + count
                self._save(replace(self._sent, batch=batch_id, rows=total, since=since))
                self._send_later()
            elif count:
                self._send(batch_id, rows, count, PAUSES_SECONDS)
        kill_point("after_target_commit", flow, batch_id)
        return SinkCommit(rows=count)

    def close(self) -> None:
        """Send the number of unsent rows. If this fails, the next message includes it."""
        self._timer.cancel()
        with self._lock, contextlib.suppress(FlowError):
            # Another writer may have sent more batches, if this writer's query failed to start.
            if self._sent.rows and self._stored().batch == self._sent.batch:
                self._send(self._sent.batch, [], 0, ())

    # -- rows ----------------------------------------------------------------------------------

    def _read(self, df: DataFrame) -> tuple[list[dict[str, Any]], int]:
        """Some rows and the total number, in one job; each task keeps at most `max_rows`."""
        fields = {field.name.lower(): field for field in df.schema}
        chosen = listed(self._opened.options, "columns") or df.columns
        columns = []
        for field in [fields[name.lower()] for name in chosen]:
            column = F.col(quoted(field.name))
            if isinstance(field.dataType, StringType | BinaryType):
                column = F.substring(column, 1, MAX_READ)
            columns.append(column.alias(field.name))
        # The lower 33 bits of the id are the number of the row in its partition.
        number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1))
        numbered = df.select(F.struct(*columns).alias("row"), number.alias("number"))
        some = F.collect_list(F.when(F.col("number") < self._max_rows, F.col("row")))
        result = numbered.agg(
            F.count(F.lit(1)).alias("count"), F.slice(some, 1, self._max_rows).alias("rows")
        ).collect()[0]
        rows = [row.asDict(recursive=True) for row in result["rows"]]
        for row in rows:
            for path in self._masks:
                _mask(row, path)
        return [shown_values(row) for row in rows], result["count"]

    # -- messages ------------------------------------------------------------------------------

    def _send(
        self, batch_id: int, rows: list[dict[str, Any]], count: int, pauses: Sequence[float]
    ) -> None:
        message = self._message(batch_id, rows, count)
        for pause in (*pauses, None):
            try:
                self._sender(message)
                break
            except Exception as error:
                if pause is None or is_permanent(error):
                    raise self._failure(error, batch_id) from None  # it may contain the URL
                threading.Event().wait(pause)
        self._save(_Sent(batch=batch_id, times=(*self._recent(), time.time())))

    def _message(self, batch_id: int, rows: list[dict[str, Any]], count: int) -> Message:
        opened, sent = self._opened, self._sent
        identity = [opened.pipeline, opened.flow.name, opened.epoch, batch_id]
        if not count:
            identity.append(sent.rows)
        return Message(
            {
                "version": 1,
                "kind": "rows",
                "pipeline": opened.pipeline,
                "sink": opened.flow.target,
                "flow": opened.flow.name,
                "epoch": opened.epoch,
                "batch_id": batch_id,
                "idempotency_key": hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32],
                "timestamp": time_text(datetime.now(UTC)),
                "row_count": count,
                "rows": rows,
                "earlier_rows": sent.rows,
                "earlier_since": sent.since or None,
            }
        )

    def _failure(self, error: Exception, batch_id: int) -> FlowError:
        flow, reason = self._opened.flow, f"{type(error).__name__}: {first_line(error)}"
        reason = reason.replace(self._hidden, "...") if self._hidden else reason
        return FlowError(
            "SINK_UNAVAILABLE",
            f"flow {flow.name!r}: the message of batch {batch_id} to sink {flow.target} was not "
            f"accepted: {shown(reason)}",
            flow=flow.name,
            batch_id=batch_id,
            retryable=not is_permanent(error),
            origin=flow.origin,
            hint="correct the options of the sink, or wait until the receiver responds: the "
            "message is sent when the flow starts again",
        )

    # -- the rate ------------------------------------------------------------------------------

    def _recent(self) -> tuple[float, ...]:
        now = time.time()
        return tuple(at for at in self._sent.times if 0 <= now - at < _WINDOW_SECONDS)

    def _send_later(self) -> None:
        """Send the number of unsent rows by itself if no rows follow in the next minute."""
        self._timer.cancel()
        self._timer = threading.Timer(_WINDOW_SECONDS, self.close)
        self._timer.daemon = True
        self._timer.start()

    def _stored(self) -> _Sent:
        # If the process died while it wrote the file, it is not valid JSON.
        with contextlib.suppress(ValueError):
            return _Sent(**json.loads(self._files.read(self._note) or "{}"))
        return _Sent()

    def _save(self, sent: _Sent) -> None:
        self._files.write(self._note, json.dumps(asdict(sent)))
        self._sent = sent


def listed(options: Mapping[str, str], name: str) -> list[str]:
    """The parts of an option, separated by commas."""
    return [part.strip() for part in option(options, name).split(",") if part.strip()]


def invalid(message: str, hint: str | None = None) -> ConnectorError:
    """The error for an option, without its value, which may be a secret."""
    return ConnectorError("SINK_OPTION_INVALID", message, hint=hint)


def _path(schema: StructType, name: str) -> tuple[str, ...]:
    """The names of a masked column and its fields, as the schema spells them."""
    names: list[str] = []
    kind: DataType = schema
    for part in [name] if name.lower() in map(str.lower, schema.names) else name.split("."):
        while isinstance(kind, ArrayType):
            kind = kind.elementType
        fields = kind.fields if isinstance(kind, StructType) else []
        field = next((field for field in fields if field.name.lower() == part.lower()), None)
        if field is None:
            hint = "name a column, or fields of structs with dots; mask maps as a whole"
            raise invalid(f"option `mask` names {name}, which is not a column of the query", hint)
        names.append(field.name)
        kind = field.dataType
    return tuple(names)


def _mask(value: Any, path: Sequence[str]) -> None:
    """Mask the value at a path, in each element of arrays; NULL stays NULL."""
    if isinstance(value, list):
        for item in value:
            _mask(item, path)
    elif isinstance(value, dict) and value.get(path[0]) is not None:
        if len(path) == 1:
            value[path[0]] = _MASK
        else:
            _mask(value[path[0]], path[1:])
