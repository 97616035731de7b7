"""Pages of JSON over HTTP as a stream: `spark.readStream.format("rest")`.

The service answers `GET <url>?after=12&limit=100` with the rows whose ids follow 12, in the order
of their ids, and with the newest id: `{"rows": [{"id": 13, ...}], "newest": 57}`. Ids only grow.
"""

import json
from urllib.parse import urlencode
from urllib.request import urlopen

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from penstock.errors import ConnectorError, FlowError
from penstock.sources.base import OpenedSource, Source, StartKind, StartReport, start_not_available
from penstock.sources.checkpoints import last_offsets


def get(url, after, limit):
    with urlopen(f"{url}?{urlencode({'after': after, 'limit': limit})}", timeout=30) as answer:
        return json.load(answer)


class RestSource(Source):
    formats = ("rest",)

    def check_options(self, options, *, is_stream):
        if not is_stream or not self.endpoints(options):
            usage = 'spark.readStream.format("rest").option("url", ...).schema(...).load()'
            raise ConnectorError("REST_OPTION_INVALID", "this is not a rest stream", hint=usage)
        return dict(options)

    def endpoints(self, options):
        return [value for name, value in options.items() if name.lower() == "url"]

    def open(self, read):
        read.spark.dataSource.register(RestDataSource)
        (url,) = self.endpoints(read.options)
        after = read.position.get("rest", {}).get(url)
        options = read.options if after is None else {**read.options, "after": str(after)}
        return RestStream(read.load(options), url)


class RestStream(OpenedSource):
    """Offsets are `{url: last id}`, and so are positions, below the key `rest`."""

    def __init__(self, df, url):
        super().__init__(df, name=f"rest {url}", unit="ids")
        self._url = url

    def start(self, at, done, now_ms):
        match at.kind:
            case StartKind.EARLIEST:
                after = 0
            case StartKind.LATEST:
                after = get(self._url, 0, 0)["newest"]
            case StartKind.KEY if at.key.isdecimal():
                after = int(at.key) - 1
            case _:
                raise start_not_available(at, "rows are known by id", "use `key=500`")
        offsets = (offset for checkpoint in done for offset in last_offsets(checkpoint))
        read = max((offset.get(self._url, 0) for offset in offsets), default=0)
        again, skipped = max(0, read - after), max(0, after - read)
        report = StartReport(source=self.name, unit=self.unit, again=again, skipped=skipped)
        return {"rest": {self._url: after}}, report

    def lag(self, progress, java_source):
        end = progress.get("endOffset")
        if not isinstance(end, dict) or self._url not in end:
            return None
        waiting = get(self._url, 0, 0)["newest"] - end[self._url]
        return {"kind": "rest", "seconds_behind": None, "ids": waiting}

    def explain(self, text, flow):
        if "urllib.error." not in text:
            return None
        message = f"flow {flow.name!r}: {self.name} does not answer"
        return FlowError("REST_UNAVAILABLE", message, flow=flow.name, retryable=True)


class RestDataSource(DataSource):
    @classmethod
    def name(cls):
        return "rest"

    def simpleStreamReader(self, schema):
        return RestReader(self.options, schema.names)


class RestReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """A page is a micro-batch. Spark reads one again between its offsets, never from an end."""

    def __init__(self, options, columns):
        self._url, self._columns = options["url"], columns
        self._after, self._limit = int(options.get("after", 0)), int(options.get("limit", 100))
        self._newest = float("inf")

    def initialOffset(self):
        return {self._url: self._after}

    def prepareForTriggerAvailableNow(self):
        self._newest = get(self._url, 0, 0)["newest"]

    def read(self, start):
        rows, end = self._page(start[self._url], self._newest)
        return iter(rows), {self._url: end}

    def readBetweenOffsets(self, start, end):
        after = start[self._url]
        while after < end[self._url]:
            rows, after = self._page(after, end[self._url])
            if not rows:
                raise ValueError(f"{self._url} no longer has the rows that follow id {after}")
            yield from rows

    def _page(self, after, last):
        rows = [row for row in get(self._url, after, self._limit)["rows"] if row["id"] <= last]
        values = [tuple(row.get(column) for column in self._columns) for row in rows]
        return values, rows[-1]["id"] if rows else after
