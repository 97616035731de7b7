"""The bridge to Delta's classes in the JVM: snapshots, transactions, actions, the log.

Actions are passed as JSON, Delta's own format: one call per list of files instead of one per field.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._tables.commits import actions_of, lines_of
from penstock._tables.files import commit_file, commit_lines, if_exists, local_path
from penstock._tables.jvm import dataframe, iterate


@dataclass(frozen=True, kw_only=True)
class TableMetadata:
    """Delta's `metaData` action of a version: as JSON, and as a JVM object."""

    content: Mapping[str, Any]
    jvm: Any

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @cached_property
    def schema(self) -> StructType:
        text = self.content.get("schemaString")
        return StructType.fromJson(json.loads(text)) if text else StructType([])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self.content.get("partitionColumns") or ())

    @property
    def configuration(self) -> dict[str, str]:
        return dict(self.content.get("configuration") or {})

    @property
    def comment(self) -> str | None:
        comment = self.content.get("description")
        return str(comment) if comment is not None else None


def file_count(snapshot: Any) -> int:
    """Number of files of a version, from the checksum of its commit if there is one.

    Otherwise Delta computes the state of the table, which takes a Spark job, as its own
    `numOfFilesIfKnown` always does.
    """
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles())


def size_in_bytes(snapshot: Any) -> int:
    checksum = snapshot.checksumOpt()
    return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())


class DeltaJvm:
    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        jvm: Any = spark._jvm
        self.jvm = jvm
        delta = jvm.org.apache.spark.sql.delta
        self.none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self._option = jvm.scala.Option
        self._convert = jvm.scala.jdk.javaapi.CollectionConverters
        self._delta_log = delta.DeltaLog
        self._actions = delta.actions
        self._streaming_update = getattr(delta, "DeltaOperations$StreamingUpdate")
        self._write = getattr(delta, "DeltaOperations$Write")
        self._create_table = getattr(delta, "DeltaOperations$CreateTable")
        self._set_properties = getattr(delta, "DeltaOperations$SetTableProperties")
        self._update_schema = getattr(delta, "DeltaOperations$UpdateSchema")
        self._restore = getattr(delta, "DeltaOperations$Restore")
        self._optimize = getattr(delta, "DeltaOperations$Optimize")
        self._modes = jvm.org.apache.spark.sql.streaming.OutputMode
        self._save_mode = jvm.org.apache.spark.sql.SaveMode
        self._auto_compact = getattr(getattr(delta.hooks, "AutoCompact$"), "MODULE$")
        self._json = delta.util.JsonUtils
        sources = jvm.org.apache.spark.sql.execution.datasources
        self._logical_relation = getattr(getattr(sources, "LogicalRelation$"), "MODULE$")
        self._relation = sources.HadoopFsRelation
        self._file_format = delta.DeltaParquetFileFormat
        self.own = jvm.penstock.delta
        """Penstock's Java classes."""
        self.has_own_classes = not isinstance(self.own.SplitTransaction, JavaPackage)
        """False in a borrowed session without Penstock's Java classes."""

    def log(self, path: str) -> Any:
        """Delta's `DeltaLog` of a table, cached by Delta."""
        return self._delta_log.forTable(self.spark._jsparkSession, path)

    def snapshot(self, path: str) -> Any:
        """The newest snapshot; its version is -1 if there is no table."""
        log = self.log(path)
        if self.has_own_classes:
            return self.own.WriteTransaction.newest(log)
        return log.update(False, self.none, self.none)

    def snapshot_at(self, path: str, version: int) -> Any:
        """An older snapshot; raises if the log does not have all commits that it needs."""
        return self.log(path).getSnapshotAt(version, self.none, self.none, False)

    def version(self, path: str) -> int:
        return int(self.snapshot(path).version())

    def query_changes(self, df: DataFrame, since: Mapping[str, str]) -> Any:
        """Penstock's `QueryChanges`: the changes of the result since given table versions."""
        return self.own.QueryChanges(df._jdf, dict(since))

    def pinned(self, df: DataFrame) -> DataFrame:
        """The query, pinned to the versions of its Delta tables at its analysis.

        Otherwise, it reads the versions that are the newest when it starts.
        """
        if not self.has_own_classes:
            return df
        return DataFrame(self.own.QueryChanges.pinned(df._jdf), df.sparkSession)

    def begin(self, path: str, *, writes: bool = False) -> Any:
        """A transaction on the newest version, to be committed on this thread.

        With `writes`, it is Penstock's `WriteTransaction`.
        """
        # Delta reads the checkpoint of a version when it is first needed, which may be in the
        # commit, and fails on threads without an active session (DELTA_SPARK_SESSION_NOT_SET).
        sessions = self.jvm.org.apache.spark.sql.classic.SparkSession
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(self.spark._jsparkSession)
        if writes and self.has_own_classes:
            return self.own.WriteTransaction(self.log(path))
        return self.log(path).startTransaction(self.none, self.none)

    def commit(self, transaction: Any, actions: Sequence[Any], operation: Any) -> int:
        """Commit, and compact the table if it has `delta.autoOptimize.autoCompact`.

        Returns the new version. A checkpoint that is due is written on another thread; see
        `await_checkpoints`. Delta registers auto compaction in `writeFiles`, which not every
        transaction calls.
        """
        transaction.registerPostCommitHook(self._auto_compact)
        if self.has_own_classes:
            self.own.Checkpoints.writeLater(transaction)
        return int(transaction.commit(self.seq(actions), operation))

    def restore(self, path: str, version: int) -> bool:
        """Restore an earlier version of a table; `False` if only Delta's RESTORE can do so."""
        if not self.has_own_classes:
            return False
        transaction = self.begin(path, writes=True)
        actions = self.own.Restore.actions(transaction, version)
        if actions is None:
            return False
        self.own.Checkpoints.writeLater(transaction)
        operation = self._restore(self._option.apply(version), self.none)
        transaction.commit(self.seq(list(actions)), operation)
        return True

    def await_checkpoints(self, seconds: int) -> None:
        """Wait for the checkpoints of all commits of this process."""
        if self.has_own_classes:
            self.own.Checkpoints.finish(seconds)

    def option(self, value: Any) -> Any:
        return self.none if value is None else self._option.apply(value)

    def seq(self, items: Sequence[Any]) -> Any:
        return self._convert.asScala(list(items)).toSeq()

    def action(self, content: Mapping[str, Any]) -> Any:
        """One action of the log, such as `{"metaData": {...}}`."""
        return self._actions.Action.fromJson(json.dumps(content))

    def set_transaction(self, app_id: str, version: int, now_ms: int) -> Any:
        return self._actions.SetTransaction(app_id, version, self._option.apply(now_ms))

    def last_transactions(self, snapshot: Any) -> dict[str, int]:
        """The last `SetTransaction` of every application id; computes the state of the table."""
        text = self._json.mapper().writeValueAsString(snapshot.setTransactions())
        return {each["appId"]: int(each["version"]) for each in json.loads(text)}

    def metadata(self, holder: Any) -> TableMetadata:
        metadata = holder.metadata()
        return TableMetadata(content=json.loads(metadata.json())["metaData"], jvm=metadata)

    def file_contents(self, files: Any) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = json.loads(self._json.mapper().writeValueAsString(files))
        return content

    def add_files(self, contents: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [self.action({"add": content}) for content in contents]

    def write_files(self, transaction: Any, rows: DataFrame) -> list[Any]:
        """Write rows as data files; returns `AddFile` actions for the commit of the transaction."""
        return list(iterate(transaction.writeFiles(rows._jdf)))

    def read_files(
        self, snapshot: Any, files: Any, session: SparkSession | None = None
    ) -> DataFrame:
        """The rows of some files, given the version whose metadata applies and `AddFile` actions.

        `files` is a sequence or a Scala `Seq`; the files need not be committed.
        """
        actions = self.seq(files) if isinstance(files, Sequence) else files
        frame = snapshot.deltaLog().createDataFrame(snapshot, actions, False, self.none)
        return DataFrame(frame, session or self.spark)

    def read_files_with_index(self, snapshot: Any, files: Sequence[Any]) -> DataFrame:
        """The rows of some files of a version; their `_metadata` has a `row_index`.

        The index is the position of a row in its file, counting deleted rows.
        """
        plan: Any = self.read_files(snapshot, files)._jdf.queryExecution()
        relation = plan.analyzed().relation()
        # Delta provides the index only for tables that may have deletion vectors, because reading
        # it fails for row groups of more than 2^31 rows. So the file format gets a protocol with
        # deletion vectors; which files have one is still determined by the snapshot.
        delta = self.jvm.org.apache.spark.sql.delta
        vectors = getattr(getattr(delta, "DeletionVectorsTableFeature$"), "MODULE$")
        protocol = getattr(getattr(self._actions, "Protocol$"), "MODULE$").forTableFeature(vectors)
        with_vectors = protocol.merge(self.seq([snapshot.protocol()]))
        file_format = self._file_format(
            with_vectors, snapshot.metadata(), False, False, True, self.none, False
        )
        session = self.spark._jsparkSession
        rebuilt = self._relation(
            relation.location(),
            relation.partitionSchema(),
            relation.dataSchema(),
            relation.bucketSpec(),
            file_format,
            relation.options(),
            session,
        )
        return dataframe(self.spark, self._logical_relation.apply(rebuilt, False))

    def streaming_operation(
        self, app_id: str, batch_id: int, user_metadata: str, *, complete: bool
    ) -> Any:
        mode = self._modes.Complete() if complete else self._modes.Append()
        return self._streaming_update(mode, app_id, batch_id, self._option.apply(user_metadata))

    def write_operation(
        self,
        user_metadata: str | None = None,
        *,
        overwrite: bool,
        where: str | None = None,
        new_schema: bool | None = None,  # whether columns or partitions are replaced
    ) -> Any:
        none, option = self.none, self.option
        mode = self._save_mode.Overwrite if overwrite else self._save_mode.Append
        record, predicate, schema = option(user_metadata), option(where), option(new_schema)
        return self._write(mode, none, predicate, record, none, schema, none, none, none)

    def optimize_operation(self, transaction: Any, metrics: Mapping[str, int]) -> Any:
        """OPTIMIZE, with its metrics for the history; requires Penstock's Java classes."""
        self.own.WriteTransaction.measure(transaction, dict(metrics))
        nothing = self.seq([])
        return self._optimize(nothing, nothing, False, self.none, False)

    def create_operation(self, metadata: Any) -> Any:
        return self._create_table(metadata, False, False, self.none)

    def alter_operation(self, before: Any, after: Any) -> Any:
        """The operation of a change of columns or comment, given Delta's metadata objects."""
        return self._update_schema(before.schema(), after.schema())

    def properties_operation(self, properties: Mapping[str, str]) -> Any:
        return self._set_properties(self._scala_map(properties))

    def deletions(self, transaction: Any, condition: str) -> tuple[list[Any], int]:
        """The actions of Delta's DELETE in a transaction, not committed, and the number of rows.

        In the change feed of the table, the rows of a rewritten file are deleted and inserted.
        `condition` has no subqueries.
        """
        session = self.spark._jsparkSession
        log = transaction.deltaLog()
        relation = log.createRelation(
            self.seq([]), self.option(transaction.snapshot()), self.none, False
        )
        plans = self.jvm.org.apache.spark.sql.catalyst.plans.logical
        delete = plans.DeleteFromTable(
            self._logical_relation.apply(relation, False),
            session.sessionState().sqlParser().parseExpression(condition),
        )
        analyzer = session.sessionState().analyzer()
        analyzed = analyzer.execute(delete)
        analyzer.checkAnalysis(analyzed)
        # Optimized like a command: Delta cannot evaluate BETWEEN in an unoptimized plan.
        command = session.sessionState().optimizer().execute(analyzed)
        deletion = command.performDelete(session, log, transaction)
        deleted = command.metrics().apply("numDeletedRows").value()
        # Change files of the deletion alone would hide the rows that the commit adds.
        actions = [
            action
            for action in iterate(deletion._1())
            if action.getClass().getSimpleName() != "AddCDCFile"
        ]
        return actions, int(deleted)

    def validated_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Properties with `delta.*` keys in Delta's own spelling; raises Delta's errors."""
        configs = self.jvm.org.apache.spark.sql.delta.DeltaConfigs
        checked = configs.validateConfigurations(self._scala_map(properties))
        return dict(self._convert.asJava(checked))

    def _scala_map(self, values: Mapping[str, str]) -> Any:
        make = getattr(self.jvm.scala.collection.immutable.Map, "from")
        return make(self._convert.asScala(dict(values)))

    def has_feature(self, name: str) -> bool:
        """Whether a table that is read by path can have a table feature."""
        known = self.jvm.org.apache.spark.sql.delta.TableFeature.featureNameToFeature(name)
        return bool(known.isDefined()) and name.lower() != "catalogmanaged"

    def clustering_columns(self, snapshot: Any) -> tuple[str, ...]:
        """Liquid clustering columns; cheap for tables without the feature."""
        if "clustering" not in str(snapshot.protocol().json()):
            return ()
        info = self.jvm.org.apache.spark.sql.delta.skipping.clustering.ClusteringColumnInfo
        attribute = self.jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute
        return tuple(
            ".".join(map(str, iterate(attribute.parseAttributeName(name))))
            for name in iterate(info.extractLogicalNames(snapshot))
        )

    def commit_lines(self, path: str, version: int) -> list[str] | None:
        local = local_path(path)
        if local is not None:
            return commit_lines(local, version)
        log = self.log(path)
        file = self.jvm.org.apache.hadoop.fs.Path(log.logPath(), commit_file(version))
        conf = log.newDeltaHadoopConf()
        lines = if_exists(lambda: log.store().read(file, conf))
        if lines is None:
            return None
        return lines_of(str(self.jvm.java.lang.String.join("\n", self._convert.asJava(lines))))

    def commit_info(self, path: str, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of one commit; empty if it has none, `None` if there is no file."""
        lines = self.commit_lines(path, version)
        if lines is None:
            return None
        return next(actions_of(lines, "commitInfo"), {})
