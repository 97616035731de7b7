"""All lint rules. `docs/lint.md` has the same descriptions; a test compares them."""

from penstock._lint.finding import Rule, Severity

_NOTE, _WARNING, _ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

_ROWS = (
    # -- state and time
    (
        *("PSL101", "aggregation-without-watermark", _WARNING),
        "a streaming aggregation without a watermark below it",
        "Spark keeps every group forever: the state grows until memory or disk is full, and "
        "the table is rewritten with each batch.",
        'Put `.withWatermark("event_time", "10 minutes")` before the grouping, in the same flow.',
    ),
    (
        *("PSL102", "watermark-not-in-keys", _WARNING),
        "an aggregation below a watermark whose keys have no event time",
        "Spark only removes groups whose keys include the event-time column itself or a window "
        "over it. A date or hour computed from it has no effect.",
        'Group by `window("event_time", "1 hour")`, and compute the date from the window.',
    ),
    (
        *("PSL103", "unbounded-deduplication", _WARNING),
        "`dropDuplicates` on a stream whose keys have no event time with a watermark",
        "Every key is kept in the state forever.",
        'Use `dropDuplicatesWithinWatermark(["id"])` after `withWatermark`, or add the event-time '
        "column to the keys if duplicates of a row have the same event time.",
    ),
    (
        *("PSL104", "join-without-time-bound", _WARNING),
        "a stream-stream join without a time bound on both sides",
        "Each row of either side is kept in the state forever, as a match may still arrive.",
        "Define a watermark on both sides and a time range in the join condition: "
        "`b.time BETWEEN a.time AND a.time + INTERVAL 1 HOUR`.",
    ),
    (
        *("PSL105", "watermark-without-delay", _WARNING),
        "a watermark with a delay of zero",
        "Any row that is older than the newest row of an earlier batch is dropped as late.",
        "Set a delay that covers the lateness of the source: minutes for events, hours for "
        "devices.",
    ),
    (
        *("PSL106", "state-without-timeout", _WARNING),
        "arbitrary state without a timer",
        "The state of a key is kept until the function removes it.",
        "Use an event-time or processing-time timeout, and remove the state when it expires.",
    ),
    (
        *("PSL107", "distinct-count-on-stream", _ERROR),
        "an exact count of distinct values on a stream",
        "Spark does not support it: it would have to keep every value.",
        "Use `approx_count_distinct`, or count the distinct values in a materialized view.",
    ),
    (
        *("PSL108", "watermark-without-effect", _NOTE),
        "a watermark in a flow that keeps no state",
        "A watermark is not stored in a table: a flow that reads the table starts without it.",
        "Define it in the flow that aggregates, joins or de-duplicates.",
    ),
    (
        *("PSL109", "state-function-of-scala", _ERROR),
        "`mapGroupsWithState` or `flatMapGroupsWithState` in Python",
        "Only Scala and Java have them: the call fails, or the function is never called.",
        "Use `applyInPandasWithState` with a function that yields DataFrames of pandas, or "
        "`transformWithState` of Spark 4.",
    ),
    # -- sources
    (
        *("PSL201", "starts-at-latest", _WARNING),
        "a stream that starts at the end of its source",
        "Rows from before the first start are missing, also after a full refresh. This is the "
        "default for Kafka and Kinesis.",
        'Set `startingOffsets` (Kinesis: `initialPosition`) to `"earliest"`, or to a timestamp if '
        "the history is too long.",
    ),
    (
        *("PSL202", "data-loss-ignored", _WARNING),
        "`failOnDataLoss` is false",
        "The flow continues without the rows that the source deleted before they were read. (For "
        "Kafka, a warning lists their offsets.)",
        "Remove the option: the flow then fails and reports the missing offsets or versions.",
    ),
    (
        *("PSL203", "schema-inference-on-stream", _WARNING),
        "a stream whose schema is inferred from the existing files",
        "A restart may infer different types; a column that is added later is never read.",
        "Set a schema, or use Auto Loader, which stores the inferred schema.",
    ),
    (
        *("PSL204", "kafka-coordinates-lost", _NOTE),
        "rows of Kafka are stored without partition and offset",
        "Only they identify the message of a row: for an audit, a replay, or to find duplicated "
        "messages of a producer.",
        "Keep `topic`, `partition`, `offset` and `timestamp` in the first table.",
    ),
    (
        *("PSL205", "no-rate-limit", _NOTE),
        "a source without a limit per batch",
        "The first batch, and the first batch after an outage, contain the whole backlog.",
        "Set the option of the source that limits a batch.",
    ),
    (
        *("PSL206", "source-without-replay", _WARNING),
        "a source that is not replayable",
        "After a crash the rows of the interrupted batch are lost or replaced by other rows.",
        "Use it for tests only; read Kafka, files or a table in production.",
    ),
    (
        *("PSL207", "newest-files-first", _WARNING),
        "`latestFirst` is true",
        "Event time runs backwards: with a watermark, rows of older files are dropped as late.",
        "Remove the option, and limit the batches instead.",
    ),
    (
        *("PSL208", "source-files-removed", _WARNING),
        "source files are deleted after they were read",
        "A full refresh, a new flow or a second reader finds no files.",
        'Use `cleanSource` with `"archive"` (Auto Loader: `"MOVE"` with `moveDestination`), or a '
        "lifecycle rule of the object store.",
    ),
    (
        *("PSL209", "own-consumer-group", _WARNING),
        "a Kafka source with a `kafka.group.id` of its own",
        "Two queries with the same group take partitions from each other, and both miss rows.",
        "Remove the option, or set `groupIdPrefix` if ACLs require a known name.",
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
        "several queries with the same checkpoint location",
        "Each overwrites the offsets of the other: rows are lost or duplicated.",
        "Set another location for each query of a job; in a pipeline, remove the option, as each "
        "flow has its own checkpoint.",
    ),
    (
        *("PSL302", "own-checkpoint", _WARNING),
        "a checkpoint location in the code or the settings",
        "The pipeline keeps the checkpoints of its flows below its storage. With a moved or "
        "computed location the query silently starts over at the next run.",
        "Remove it; `storage` in the settings sets the location of checkpoints.",
    ),
    (
        *("PSL303", "once-trigger", _WARNING),
        "the trigger `once`",
        "It processes the whole backlog in one batch and ignores the limits of the source.",
        "Run a triggered update (which uses `availableNow`), or set `availableNow=True`.",
    ),
    (
        *("PSL304", "query-outside-of-pipeline", _ERROR),
        "a source file of a pipeline starts a streaming query itself",
        "The query has no lease, no restart, no quarantine and no events, and each analysis starts "
        "it as well.",
        "Return the DataFrame from a `@table` or `@append_flow` function.",
    ),
    (
        *("PSL305", "batch-function-not-idempotent", _WARNING),
        "a batch function that is not idempotent",
        "After a crash between its write and Spark's commit, it is called with the same batch id "
        "again, and its rows are duplicated.",
        "Write with MERGE or `INSERT ... ON CONFLICT` on a key (for JDBC: from a staging table), "
        "or with `txnAppId` and `txnVersion` of Delta; in a pipeline, with "
        "`penstock.batches.idempotent_delta_write` or `once_per_batch`.",
    ),
    (
        *("PSL306", "batch-computed-again", _NOTE),
        "a batch function with several actions on the same rows",
        "Each action reads the source and computes the query again, and may see different rows.",
        "Call `persist()` first and `unpersist()` at its end, or write once.",
    ),
    (
        *("PSL307", "action-in-query-function", _WARNING),
        "a query function that runs a Spark job",
        "It runs whenever the pipeline is analysed, on the driver; on a stream it fails.",
        "Return a lazy DataFrame; Spark computes it when the flow runs.",
    ),
    (
        *("PSL308", "rows-by-difference", _WARNING),
        "`subtract` to find the rows that a filter has removed",
        "It is EXCEPT DISTINCT: duplicates are removed and the whole batch is shuffled.",
        "Use an expectation with quarantine, or negate the condition: "
        "`~F.coalesce(condition, F.lit(False))`.",
    ),
    (
        *("PSL309", "partition-of-many-values", _WARNING),
        "a partition column with nearly one value per row",
        "Each batch writes a small file per value: reads and commits become slow.",
        "Partition by a date or not at all; `cluster_by` the column instead.",
    ),
    (
        *("PSL310", "short-retention", _WARNING),
        "a retention of less than a week for the files or log of a table, or no retention check",
        "A reader, or a stream that was down for longer, fails or misses changes.",
        "Set `delta.deletedFileRetentionDuration` to 7 days or more and "
        "`delta.logRetentionDuration` to 30, and leave the retention check enabled.",
    ),
    (
        *("PSL311", "unpersist-missing", _WARNING),
        "a batch function that persists its rows, and does not release them",
        "The rows of each batch stay in memory and on disk until the session ends.",
        "Call `unpersist()` at the end of the function, in a `finally` block.",
    ),
    (
        *("PSL312", "partition-by-field", _ERROR),
        "a partition by a field of a struct, such as `window.start`",
        "Tables are partitioned by columns: Spark refuses the name of a field.",
        'Partition by a column of its own: `.withColumn("day", F.to_date("window.start"))`.',
    ),
    (
        *("PSL313", "class-of-scala", _ERROR),
        "an import of `Trigger` or `OutputMode`",
        "PySpark does not have these classes: the import fails.",
        'Remove the import, and write `.trigger(processingTime="30 seconds")` and '
        '`.outputMode("append")`.',
    ),
    (
        *("PSL314", "column-as-value", _ERROR),
        "a column, such as `F.current_timestamp()`, in the rows of `createDataFrame`",
        "The rows are values of Python: Spark cannot infer a type for a column.",
        "Use a value, such as `datetime.now(timezone.utc)`, or add the column with `withColumn`.",
    ),
    # -- chance and time
    (
        *("PSL401", "key-by-chance", _ERROR),
        "a grouping, join or de-duplication key from a nondeterministic function",
        "A recomputed batch has different keys: its rows are counted twice.",
        "Use a key from the data.",
    ),
    (
        *("PSL402", "value-by-chance", _WARNING),
        "a nondeterministic column or filter",
        "A retried task or a repeated batch returns different rows from the first attempt; rows "
        "written to quarantine or a sink before a crash no longer match the table.",
        "Derive it from the row: `sha2(concat_ws(...), 256)`, or partition and offset.",
    ),
    (
        *("PSL403", "view-with-clock", _NOTE),
        "a materialized view that uses the current time",
        "Its result depends on when it runs, so every update recomputes it. "
        "(In a stream the time is that of the batch, and stays the same if the batch is repeated.)",
        "Use a timestamp from the data, or a parameter of the pipeline.",
    ),
    (
        *("PSL404", "key-by-clock", _WARNING),
        "a grouping, join or de-duplication key from the current time",
        "The time is that of the batch: a full refresh, or a batch after an outage, gives other "
        "keys to the same rows.",
        "Use a timestamp from the data.",
    ),
    # -- data quality
    (
        *("PSL501", "null-breaks-rule", _NOTE),
        "an expectation that fails for NULL, although its condition does not mention NULL",
        "SQL has three truth values: `NULL > 0` is neither true nor false, but NULL. A row passes "
        "only when its rule is true, so NULL counts as a failure. (A CHECK constraint accepts it.)",
        "Make it explicit: `amount > 0 AND amount IS NOT NULL`, or `... OR amount IS NULL`.",
    ),
    (
        *("PSL502", "null-passes-rule", _WARNING),
        "an expectation that passes for NULL, although its condition does not mention NULL",
        "A `CASE ... ELSE true` or `NOT (a <=> b)` turns NULL into true.",
        "Add `AND column IS NOT NULL`, or `OR column IS NULL` if that is intended.",
    ),
    (
        *("PSL503", "rule-without-meaning", _ERROR),
        "an expectation with a constant condition",
        "All rows pass it, or none: `x = NULL` is never true.",
        "Refer to a column; test for NULL with `IS NULL`.",
    ),
    (
        *("PSL504", "dropped-without-quarantine", _WARNING),
        "a drop rule without quarantine",
        "A wrong rule, or a change of the producer, removes valid rows permanently.",
        "Leave quarantine enabled, or use `expect_or_quarantine`.",
    ),
    (
        *("PSL505", "one-row-stops-flow", _NOTE),
        "a fail rule on a stream",
        "One invalid row fails the flow at each start until the row or the rule is changed.",
        "Use it for invariants only; `expect_or_drop` keeps the row in quarantine.",
    ),
    (
        *("PSL506", "malformed-payload-unnoticed", _WARNING),
        "payloads are parsed, but no expectation checks the result",
        "`from_json`, `from_csv` and `from_xml` return NULL for payloads that they cannot parse.",
        "Add an expectation on a column that every payload has: `order_id IS NOT NULL`.",
    ),
    (
        *("PSL507", "rule-of-view-not-counted", _WARNING),
        "a rule on a temporary view: failed rows are not counted, and dropped rows are not kept",
        "A view is computed wherever it is read. The rows that it drops are not in any table, "
        "quarantine or event.",
        "Put the rule on the table that reads the view, or make the view a table.",
    ),
    # -- secrets
    (
        *("PSL601", "secret-in-code", _ERROR),
        "a password, key or token in a source file or in the settings",
        "Everyone who can read the repository can read it, and its history keeps it.",
        "Use `${secret:scope/key}` or `dbutils.secrets.get(scope, key)`, and rotate the secret.",
    ),
    # -- jobs
    (
        *("PSL701", "no-checkpoint", _ERROR),
        "a query of a job without a checkpoint location",
        "Spark refuses it; with `foreachBatch` or `foreach` it starts over after each restart, and "
        "rows are lost or duplicated.",
        'Set `.option("checkpointLocation", ...)` to a folder of this query on durable storage.',
    ),
    (
        *("PSL702", "temporary-checkpoint", _WARNING),
        "a checkpoint location in a temporary folder, or with another name at each start",
        "Without its checkpoint the query starts over, and rows are lost or duplicated.",
        "Set a fixed location on durable storage, such as S3, ADLS, GCS or HDFS.",
    ),
    (
        *("PSL703", "output-mode-refused", _ERROR),
        "an output mode that the sink does not take",
        "Delta takes `append` and `complete`, files take `append` only: the query does not start.",
        'Use `.outputMode("append")` with a watermark, or `foreachBatch` with MERGE.',
    ),
    (
        *("PSL704", "no-trigger", _NOTE),
        "a query into Delta or files without a trigger",
        "Each batch starts when the last one ends, and writes small files and a commit.",
        'Set `.trigger(processingTime="1 minute")`, or `availableNow=True` in a scheduled run.',
    ),
    # -- lint itself
    (
        *("PSL901", "suppression-without-effect", _WARNING),
        "a suppression with an unknown rule or without effect",
        "It would hide a future finding.",
        "Remove it, or correct the id.",
    ),
)

RULES = {row[0]: Rule(*row) for row in _ROWS}
"""Rules by id, in order."""
