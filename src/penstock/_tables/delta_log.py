"""The bridge to Delta's own classes in the JVM: snapshots, transactions, actions, the log.

Everything crosses as JSON, Delta's own form of its actions: one call for a list of files instead of
one per field.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult, result_from_commit
from penstock._tables.files import local_path

_LOG_FOLDER = "_delta_log"


@dataclass(frozen=True, kw_only=True)
class TableMetadata:
    """What a table says about itself; one version of it.

    Attributes:
        content: Delta's `metaData` action.
        jvm: The same as an object of Delta's.
    """

    content: Mapping[str, Any]
    jvm: Any

    @property
    def id(self) -> str:
        """Unique id of the table."""
        return str(self.content["id"])

    @property
    def schema(self) -> StructType:
        """Columns, with Delta's own field metadata."""
        text = self.content.get("schemaString")
        return StructType.fromJson(json.loads(text)) if text else StructType([])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Identity partition columns."""
        return tuple(self.content.get("partitionColumns") or ())

    @property
    def configuration(self) -> dict[str, str]:
        """Table properties."""
        return dict(self.content.get("configuration") or {})

    @property
    def comment(self) -> str | None:
        """Table comment."""
        found = self.content.get("description")
        return str(found) if found is not None else None


def file_count(snapshot: Any) -> int:
    """Files of a version; from the checksum of its commit where there is one.

    Otherwise Delta computes the state of the table, which takes a Spark job, as its own
    `numOfFilesIfKnown` always does.
    """
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles())


def size_in_bytes(snapshot: Any) -> int:
    """Bytes of the files of a version; see `file_count`."""
    checksum = snapshot.checksumOpt()
    return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())


class DeltaJvm:
    """Delta's classes, seen from one session."""

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
        self._operations = delta.DeltaOperations
        self._streaming_update = getattr(delta, "DeltaOperations$StreamingUpdate")
        self._write = getattr(delta, "DeltaOperations$Write")
        self._create_table = getattr(delta, "DeltaOperations$CreateTable")
        self._update_schema = getattr(delta, "DeltaOperations$UpdateSchema")
        self._modes = jvm.org.apache.spark.sql.streaming.OutputMode
        self._save_mode = jvm.org.apache.spark.sql.SaveMode
        self._json = delta.util.JsonUtils
        sources = jvm.org.apache.spark.sql.execution.datasources
        self._logical_relation = getattr(getattr(sources, "LogicalRelation$"), "MODULE$")
        self._relation = sources.HadoopFsRelation
        self._file_format = delta.DeltaParquetFileFormat

    def log(self, path: str) -> Any:
        """Delta's `DeltaLog` of a table, cached by Delta."""
        return self._delta_log.forTable(self.spark._jsparkSession, path)

    def snapshot(self, path: str) -> Any:
        """The newest snapshot; its version is -1 where there is no table."""
        return self.log(path).update(False, self.none, self.none)

    def begin(self, path: str) -> Any:
        """Start a transaction on the newest version."""
        return self.log(path).startTransaction(self.none, self.none)

    def option(self, value: Any) -> Any:
        """A Scala `Option`."""
        return self.none if value is None else self._option.apply(value)

    def seq(self, items: Sequence[Any]) -> Any:
        """A Scala `Seq`."""
        return self._convert.asScala(list(items)).toSeq()

    def items(self, seq: Any) -> Iterator[Any]:
        """The elements of a Scala collection."""
        yield from self._convert.asJava(seq)

    def action(self, content: Mapping[str, Any]) -> Any:
        """One action of the log, such as `{"metaData": {...}}`."""
        return self._actions.Action.fromJson(json.dumps(content))

    def set_transaction(self, app_id: str, version: int, now_ms: int) -> Any:
        """The fence: batch `version` of `app_id` is in."""
        return self._actions.SetTransaction(app_id, version, self._option.apply(now_ms))

    def metadata(self, holder: Any) -> TableMetadata:
        """Metadata of a transaction or a snapshot."""
        found = holder.metadata()
        return TableMetadata(content=json.loads(found.json())["metaData"], jvm=found)

    def files_at(self, path: str, version: int) -> list[dict[str, Any]]:
        """Contents of the `AddFile` actions of all files of a version."""
        found = self.log(path).getSnapshotAt(version, self.none, self.none, False)
        return self.file_contents(found.allFiles().collect())

    def file_contents(self, files: Any) -> list[dict[str, Any]]:
        """`AddFile` actions of a Scala collection, in one call."""
        content: list[dict[str, Any]] = json.loads(self._json.mapper().writeValueAsString(files))
        return content

    def add_files(self, contents: Sequence[Mapping[str, Any]]) -> list[Any]:
        """`AddFile` actions from their content."""
        return [self.action({"add": content}) for content in contents]

    def rows_of_files(self, path: str, snapshot: Any, files: Sequence[Any]) -> DataFrame:
        """The rows of some files of a table; their `_metadata` has a `row_index`.

        That is the position of a row in its file, deleted rows counted.

        Args:
            path: The table.
            snapshot: A version of it.
            files: `AddFile` actions of that version.
        """
        frame = self.log(path).createDataFrame(snapshot, self.seq(files), False, self.none)
        relation = frame.queryExecution().analyzed().relation()
        # Delta shows the index only of tables that may have deletion vectors, as reading it fails
        # for row groups of more than 2^31 rows. The file format is told that this is one; which
        # files have a vector is still what the snapshot says.
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        features = {*(protocol.get("readerFeatures") or ()), "deletionVectors"}
        told = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(features),
            "writerFeatures": sorted({*(protocol.get("writerFeatures") or ()), *features}),
        }
        shows_index = self._file_format(
            self.action({"protocol": told}),
            snapshot.metadata(),
            False,
            False,
            True,
            self.none,
            False,
        )
        session = self.spark._jsparkSession
        rebuilt = self._relation(
            relation.location(),
            relation.partitionSchema(),
            relation.dataSchema(),
            relation.bucketSpec(),
            shows_index,
            relation.options(),
            session,
        )
        plan = self._logical_relation.apply(rebuilt, False)
        dataset = self.jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(session, plan), self.spark)

    def streaming_operation(
        self, app_id: str, batch_id: int, user_metadata: str, *, complete: bool
    ) -> Any:
        """What the history shows for a micro-batch."""
        mode = self._modes.Complete() if complete else self._modes.Append()
        return self._streaming_update(mode, app_id, batch_id, self._option.apply(user_metadata))

    def write_operation(
        self, user_metadata: str, *, overwrite: bool, where: str | None = None
    ) -> Any:
        """What the history shows for a batch query."""
        none = self.none
        mode = self._save_mode.Overwrite if overwrite else self._save_mode.Append
        record, predicate = self._option.apply(user_metadata), self.option(where)
        return self._write(mode, none, predicate, record, none, none, none, none, none)

    def create_operation(self, metadata: Any) -> Any:
        """What the history shows for a new table."""
        return self._create_table(metadata, False, False, self.none)

    def alter_operation(self, before: Any, after: Any) -> Any:
        """What the history shows for a change of columns or comment, given Delta's metadata."""
        return self._update_schema(before.schema(), after.schema())

    def replace_operation(self) -> Any:
        """What the history shows when an empty table gets other columns or partitions."""
        none = self.none
        return self._write(
            self._save_mode.Overwrite, none, none, none, none, self.option(True), none, none, none
        )

    def deletions(self, transaction: Any, condition: str) -> tuple[list[Any], int]:
        """What Delta's DELETE would do in a transaction: its actions, and the number of rows.

        Of a table with a change feed its readers see the changes as those of whole files: the
        rows of a file that is written anew as deleted and inserted.

        Args:
            transaction: Nothing is committed.
            condition: SQL text over the columns of the table; without subqueries.
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
        # As a command of its own it would be optimized: Delta cannot evaluate a BETWEEN as it is.
        command = session.sessionState().optimizer().execute(analyzed)
        found = command.performDelete(session, log, transaction)
        deleted = command.metrics().apply("numDeletedRows").value()
        # Change files of the deletion alone would hide the rows that the commit adds.
        actions = [
            action
            for action in self.items(found._1())
            if action.getClass().getSimpleName() != "AddCDCFile"
        ]
        return actions, int(deleted)

    def validated_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Properties with `delta.*` keys in Delta's own spelling.

        Raises:
            Exception: Whatever Delta raises for an unknown key or a bad value.
        """
        make = getattr(self.jvm.scala.collection.immutable.Map, "from")
        scala = make(self._convert.asScala(dict(properties)))
        checked = self.jvm.org.apache.spark.sql.delta.DeltaConfigs.validateConfigurations(scala)
        return dict(self._convert.asJava(checked))

    def has_feature(self, name: str) -> bool:
        """Whether a table that is read by its path can have a table feature."""
        known = self.jvm.org.apache.spark.sql.delta.TableFeature.featureNameToFeature(name)
        return bool(known.isDefined()) and name.lower() != "catalogmanaged"

    def clustering_columns(self, snapshot: Any) -> tuple[str, ...]:
        """Liquid clustering columns; cheap for tables without the feature."""
        if "clustering" not in str(snapshot.protocol().json()):
            return ()
        info = self.jvm.org.apache.spark.sql.delta.skipping.clustering.ClusteringColumnInfo
        return tuple(str(name) for name in self.items(info.extractLogicalNames(snapshot)))

    # -- the log itself ------------------------------------------------------------------------

    def commit_lines(self, path: str, version: int) -> list[str] | None:
        """The lines of one commit; `None` when it is not (or no longer) there."""
        local = local_path(path)
        if local is not None:
            try:
                text = (local / _LOG_FOLDER / f"{version:020d}.json").read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
            return text.splitlines()
        log = self.log(path)
        file = self.jvm.org.apache.hadoop.fs.Path(log.logPath(), f"{version:020d}.json")
        conf = log.newDeltaHadoopConf()
        if not file.getFileSystem(conf).exists(file):
            return None
        return [str(line) for line in self.items(log.store().read(file, conf))]

    def commit_info(self, path: str, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of one commit; empty when the commit carries none."""
        lines = self.commit_lines(path, version)
        if lines is None:
            return None
        for line in lines:
            if line.startswith('{"commitInfo"'):
                found: dict[str, Any] = json.loads(line)["commitInfo"]
                return found
        return {}


def read_commit_counts(
    spark: SparkSession, path: str, since_version: int = -1, *, newest: int | None = None
) -> list[CommitResult]:
    """What Penstock's commits after a version recorded, oldest first.

    Commits that log retention removed are missing.

    Args:
        spark: Session.
        path: The table.
        since_version: The last version that is known already.
        newest: Stop there; the newest version by default.
    """
    delta = DeltaJvm(spark)
    last = delta.snapshot(path).version() if newest is None else newest
    found = []
    # From the newest back to the first that is gone: what is older is gone, too.
    for version in range(last, max(since_version, -1), -1):
        info = delta.commit_info(path, version)
        if info is None:
            break
        result = result_from_commit(version, info)
        if result is not None:
            found.append(result)
    return found[::-1]


class KnownVersions:
    """What this process knows of the tables that it writes, so that it need not ask again.

    As long as a table's newest version is one that this process committed, no other process
    committed a transaction of one of our flows; then the last batch of each app id is the one
    remembered here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version: dict[str, int] = {}
        self._batches: dict[tuple[str, str], int] = {}

    def committed(self, table_id: str, version: int, app_id: str, batch_id: int | None) -> None:
        """Remember a commit of our own, if no version between is unknown."""
        with self._lock:
            if self._version.get(table_id) == version - 1:
                self._version[table_id] = version
            if batch_id is not None:
                self._batches[table_id, app_id] = batch_id

    def looked_up(self, table_id: str, version: int, app_id: str, batch_id: int) -> None:
        """Remember what a full look-up at a version found."""
        with self._lock:
            if self._version.get(table_id) != version:
                # What others committed in between may concern the other flows of the table.
                for key in [key for key in self._batches if key[0] == table_id]:
                    del self._batches[key]
                self._version[table_id] = version
            self._batches[table_id, app_id] = batch_id

    def last(self, table_id: str, version: int, app_id: str) -> int | None:
        """Last batch of an app id, if this version holds nothing unknown; else `None`."""
        with self._lock:
            if self._version.get(table_id) != version:
                return None
            return self._batches.get((table_id, app_id))


known_versions = KnownVersions()
