"""All rules with their texts. `docs/lint.md` says the same; a test compares them."""

from penstock._lint.finding import Rule, Severity

_NOTE, _WARNING, _ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

_ROWS = (
    # -- state and time
    (
        *("PSL101", "aggregation-without-watermark", _WARNING),
        "a streaming aggregation without a watermark below it",
        "Spark keeps every group for ever: the state grows until memory or disk is full, and "
        "the table is rewritten with each batch.",
        'Put `.withWatermark("event_time", "10 minutes")` before the grouping, in the same flow.',
    ),
    (
        *("PSL102", "watermark-not-in-keys", _WARNING),
        "an aggregation below a watermark whose keys have no event time",
        "Only groups with the event-time column itself, or a window over it, ever become old. "
        "A date or hour computed from it does not count for Spark.",
        'Group by `window("event_time", "1 hour")`, and compute the date from the window.',
    ),
    (
        *("PSL103", "unbounded-deduplication", _WARNING),
        "`dropDuplicates` on a stream whose keys have no event time with a watermark",
        "Every key that was ever seen is kept in the state.",
        'Use `dropDuplicatesWithinWatermark(["id"])` after `withWatermark`, or add the event-time '
        "column to the keys if copies of a row have the same one.",
    ),
    (
        *("PSL104", "join-without-time-bound", _WARNING),
        "a join of two streams that no time bound limits on both sides",
        "Each row of either side waits for ever for a partner that may still come.",
        "Give both sides a watermark, and bound the distance of their times in the condition: "
        "`b.time BETWEEN a.time AND a.time + INTERVAL 1 HOUR`.",
    ),
    (
        *("PSL105", "watermark-without-delay", _WARNING),
        "a watermark with a delay of zero",
        "Any row that is older than the newest one of an earlier batch is dropped as late.",
        "Allow as much lateness as your sources have: minutes for events, hours for devices.",
    ),
    (
        *("PSL106", "state-without-timeout", _WARNING),
        "arbitrary state without a timer",
        "The state of a key is kept until your own code removes it.",
        "Use an event-time or processing-time timeout, and remove the state when it fires.",
    ),
    (
        *("PSL107", "distinct-count-on-stream", _ERROR),
        "an exact count of distinct values on a stream",
        "Spark refuses it: it would have to keep every value.",
        "Use `approx_count_distinct`, or count the distinct values in a materialized view.",
    ),
    (
        *("PSL108", "watermark-without-effect", _NOTE),
        "a watermark in a flow that keeps no state",
        "A watermark does not travel through a table: a flow that reads this one starts without.",
        "Put it into the flow that aggregates, joins or de-duplicates.",
    ),
    # -- sources
    (
        *("PSL201", "starts-at-latest", _WARNING),
        "a table that is filled from the end of its source",
        "What came before the first start is missing, also after a full refresh. It is what Spark "
        "does with Kafka, and Kinesis does, by default.",
        'Set `startingOffsets` (Kinesis: `initialPosition`) to `"earliest"`, or to a timestamp if '
        "the history is too long.",
    ),
    (
        *("PSL202", "data-loss-ignored", _WARNING),
        "`failOnDataLoss` is false",
        "The flow continues without the rows that the source deleted before they were read. (Of "
        "Kafka, a warning names their offsets.)",
        "Leave it out: the flow then stops and says which offsets or versions are gone.",
    ),
    (
        *("PSL203", "schema-inference-on-stream", _WARNING),
        "a stream whose schema is guessed from the files that are there",
        "Another start may guess other types; a column that comes later is never read.",
        "Give a schema, or use Auto Loader, which remembers what it has inferred.",
    ),
    (
        *("PSL204", "kafka-coordinates-lost", _NOTE),
        "rows of Kafka are stored without partition and offset",
        "They are the only proof of which message a row was: for an audit, a replay, or to find "
        "messages that a producer has sent twice.",
        "Keep `topic`, `partition`, `offset` and `timestamp` in the first table.",
    ),
    (
        *("PSL205", "no-rate-limit", _NOTE),
        "a source whose batches have no limit",
        "The first batch, and the first one after an outage, hold everything that waits.",
        "Set `maxOffsetsPerTrigger`, `maxFilesPerTrigger` or `maxBytesPerTrigger`.",
    ),
    (
        *("PSL206", "source-without-replay", _WARNING),
        "a source that cannot give the same rows again",
        "After a crash the rows of the interrupted batch are gone, or others come in their place.",
        "Keep it to trials; read Kafka, files or a table in production.",
    ),
    (
        *("PSL207", "newest-files-first", _WARNING),
        "`latestFirst` is true",
        "Event time runs backwards: with a watermark, older files are dropped as late.",
        "Leave it out, and limit the batches instead.",
    ),
    (
        *("PSL208", "source-files-removed", _WARNING),
        "files are deleted once they were read",
        "A full refresh, a new flow or a second reader finds nothing.",
        'Use `cleanSource` with `"archive"`, or a retention rule of the store.',
    ),
    (
        *("PSL209", "own-consumer-group", _WARNING),
        "a Kafka source with a `kafka.group.id` of its own",
        "Two queries with one group take partitions from each other and both miss rows.",
        "Leave it out, or set `groupIdPrefix` where access rules need a known name.",
    ),
    (
        *("PSL210", "rewritten-rows-read-again", _WARNING),
        "`ignoreChanges` on a stream of a Delta table",
        "Each file that an UPDATE, MERGE or DELETE rewrites is read again as if its rows were new.",
        "Use `skipChangeCommits`, or read the change data feed.",
    ),
    (
        *("PSL211", "plaintext-broker", _WARNING),
        "a broker on another machine without encryption",
        "Data and, with SASL_PLAINTEXT, the password can be read on the network.",
        "Set `kafka.security.protocol` to `SSL` or `SASL_SSL`.",
    ),
    # -- checkpoints and writing
    (
        *("PSL301", "shared-checkpoint", _ERROR),
        "one checkpoint location for several queries",
        "Each overwrites the offsets of the other: rows are lost or written twice.",
        "Remove it: each flow of a pipeline has a checkpoint of its own.",
    ),
    (
        *("PSL302", "own-checkpoint", _WARNING),
        "a checkpoint location in the code or the settings",
        "The pipeline keeps the checkpoints of its flows below its storage. One that is moved or "
        "computed starts over with the next run, without a word.",
        "Remove it; `storage` in the settings says where checkpoints are.",
    ),
    (
        *("PSL303", "once-trigger", _WARNING),
        "the trigger `once`",
        "It takes everything that waits in one batch, whatever limits the source has.",
        "Run the pipeline triggered (that is `availableNow`), or use `availableNow=True`.",
    ),
    (
        *("PSL304", "query-outside-of-pipeline", _ERROR),
        "a source file of a pipeline starts a streaming query itself",
        "Nothing watches over it: no lease, no restart, no quarantine, no event, and it is started "
        "by each analysis as well.",
        "Return the DataFrame from a `@table` or `@append_flow` function.",
    ),
    (
        *("PSL305", "batch-function-not-idempotent", _WARNING),
        "a batch function that would write a repeated batch twice",
        "After a crash between its write and Spark's commit, it gets the same batch id again.",
        "Write with `penstock.batches.idempotent_delta_write`, with MERGE on a key, or note the "
        "batch in the same transaction as its rows; `once_per_batch` for all else.",
    ),
    (
        *("PSL306", "batch-computed-again", _NOTE),
        "a batch function with several actions on the same rows",
        "Each action reads the source and computes the query once more, and may see other rows.",
        "Call `persist()` first and `unpersist()` at its end, or write once.",
    ),
    (
        *("PSL307", "action-in-query-function", _WARNING),
        "a query function that runs a Spark job",
        "It runs whenever the pipeline is analysed, on the driver; on a stream it fails.",
        "Return a DataFrame that says what is wanted; Spark computes it when rows are needed.",
    ),
    (
        *("PSL308", "rows-by-difference", _WARNING),
        "`subtract` to find the rows that a filter has left out",
        "It is EXCEPT DISTINCT: equal rows become one, and the whole batch is shuffled.",
        "Use an expectation with quarantine, or negate the condition: "
        "`~F.coalesce(condition, F.lit(False))`.",
    ),
    (
        *("PSL309", "partition-of-many-values", _WARNING),
        "a partition column with a value per row, or nearly",
        "Each value of each batch is a folder with a small file: reading and committing gets slow.",
        "Partition by a date or not at all; `cluster_by` the column instead.",
    ),
    (
        *("PSL310", "short-retention", _WARNING),
        "files or log of a table are kept for less than a week, or are not protected",
        "A reader, or a stream that was down for longer, fails or misses changes.",
        "Keep `delta.deletedFileRetentionDuration` at 7 days or more, "
        "`delta.logRetentionDuration` at 30, and leave the retention check on.",
    ),
    # -- chance and time
    (
        *("PSL401", "key-by-chance", _ERROR),
        "a grouping, join or de-duplication key made of chance or of the clock",
        "A batch that is computed again gets other keys: its rows are counted twice.",
        "Use a key that is in the data.",
    ),
    (
        *("PSL402", "value-by-chance", _WARNING),
        "a stored column or filter with another value on each evaluation",
        "A retried task or a repeated batch gives other rows than the first try; what was written "
        "to quarantine or a sink before the crash does not fit the table any more.",
        "Derive it from the row: `sha2(concat_ws(...), 256)`, or partition and offset.",
    ),
    (
        *("PSL403", "view-with-clock", _NOTE),
        "a materialized view that asks for the time",
        "Its result depends on when it runs, so it is recomputed by every update. "
        "(In a stream the time is that of the batch, and is the same when the batch is repeated.)",
        "Use a time that is in the data, or a parameter of the pipeline.",
    ),
    # -- data quality
    (
        *("PSL501", "null-breaks-rule", _NOTE),
        "an expectation that a NULL breaks, though it does not speak of NULL",
        "SQL has three truth values: `NULL > 0` is neither true nor false, but NULL. A row passes "
        "only when its rule is true, so a NULL breaks it. (A CHECK constraint lets it pass.)",
        "Say what you mean: `amount > 0 AND amount IS NOT NULL`, or `... OR amount IS NULL`.",
    ),
    (
        *("PSL502", "null-passes-rule", _WARNING),
        "an expectation that a NULL passes, though it does not speak of NULL",
        "A `CASE ... ELSE true` or `NOT (a <=> b)` turns the third truth value into true.",
        "Add `AND column IS NOT NULL`, or `OR column IS NULL` if it is meant.",
    ),
    (
        *("PSL503", "rule-without-meaning", _ERROR),
        "an expectation that is the same for every row",
        "It lets all rows pass, or none: `x = NULL` is never true.",
        "Use a column; test for NULL with `IS NULL`.",
    ),
    (
        *("PSL504", "dropped-without-quarantine", _WARNING),
        "rows that break a drop rule are not kept",
        "A wrong rule, or a change of the producer, removes good rows for ever.",
        "Leave quarantine on, or use `expect_or_quarantine`.",
    ),
    (
        *("PSL505", "one-row-stops-flow", _NOTE),
        "a fail rule on a stream",
        "One bad row stops the flow until the row or the rule is changed; it comes again at each "
        "start.",
        "Use it for what must never happen; `expect_or_drop` keeps the row in quarantine.",
    ),
    (
        *("PSL506", "malformed-payload-unnoticed", _WARNING),
        "payloads are parsed, but nothing looks whether that worked",
        "`from_json` and its like give NULL for what they cannot read: a table full of NULLs.",
        "Add an expectation on a column that every payload has: `order_id IS NOT NULL`.",
    ),
    (
        *("PSL507", "rule-of-view-not-counted", _WARNING),
        "a rule on a temporary view: what breaks it is not counted, and not kept if it is dropped",
        "A view is computed wherever it is read. Rows that it drops are in no table, no quarantine "
        "and no event.",
        "Put the rule on the table that reads the view, or make the view a table.",
    ),
    # -- secrets
    (
        *("PSL601", "secret-in-code", _ERROR),
        "a password, key or token in a source file or in the settings",
        "Whoever can read the repository has it, and its history keeps it.",
        "Write `${secret:scope/key}` or `dbutils.secrets.get(scope, key)`; change the secret.",
    ),
    # -- lint itself
    (
        *("PSL901", "suppression-without-effect", _WARNING),
        "a suppression that names no rule, or suppresses nothing",
        "It looks as if something were accepted on purpose, and would hide the next finding.",
        "Remove it, or correct the id.",
    ),
)

RULES = {
    row[0]: Rule(id=row[0], name=row[1], severity=row[2], summary=row[3], why=row[4], fix=row[5])
    for row in _ROWS
}
"""By id, in order."""
