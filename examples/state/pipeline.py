"""Custom state: alarms for devices that fall silent, and a running total per device."""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock as dp
from penstock.parsing import event_time

SILENT_MS = 10 * 60 * 1000


@dp.table(comment="Signals with a timestamp, without duplicates", deduplicate_by=["signal"])
@dp.expect_or_drop("has_time", "at IS NOT NULL")
@dp.expect_or_drop("has_device", "device IS NOT NULL")
def signals():
    rows = spark.readStream.schema("signal STRING, device STRING, amount INT, at STRING").json(
        "data"
    )
    return event_time(rows, ["at"], into="at")


class SilenceAlarm(StatefulProcessor):
    """An alarm when a device is silent for ten minutes of event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "count INT, last_ms BIGINT")

    def handleInputRows(self, key, rows, timers) -> Iterator[Row]:
        count, last = self.seen.get() if self.seen.exists() else (0, 0)
        for row in rows:
            count += 1
            last = max(last, row.at_ms)
        self.seen.update((count, last))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + SILENT_MS)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        count, last = self.seen.get()
        yield Row(device=key[0], signals=count, silent_since_ms=last)

    def handleInitialState(self, key, initial, timers) -> None:
        self.seen.update((initial.signals, 0))

    def close(self) -> None: ...


@dp.table(comment="Devices that fell silent, with the number of their signals")
def alarms():
    known = spark.read.schema("device STRING, signals INT").json("known.json").groupBy("device")
    return (
        spark.readStream.table("signals")
        .withColumn("at_ms", F.unix_millis("at"))
        .withWatermark("at", "5 minutes")
        .groupBy("device")
        .transformWithState(
            statefulProcessor=SilenceAlarm(),
            outputStructType="device STRING, signals INT, silent_since_ms BIGINT",
            outputMode="append",
            timeMode="EventTime",
            initialState=known,
        )
    )


def balance(key, frames, state):
    total = state.get[0] if state.exists else 0
    for frame in frames:
        total += int(frame["amount"].sum())
    state.update((total,))
    yield pd.DataFrame({"device": [key[0]], "total": [total]})


@dp.table(
    comment="The current total of each device",
    output_mode="update",
    table_properties={"penstock.mergeKeys": "device"},
)
def totals():
    return (
        spark.readStream.table("signals")
        .groupBy("device")
        .applyInPandasWithState(
            balance, "device STRING, total BIGINT", "total BIGINT", "update", "NoTimeout"
        )
    )
