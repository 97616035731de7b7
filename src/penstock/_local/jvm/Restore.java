package penstock.delta;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.sql.delta.ColumnWithDefaultExprUtils;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.util.DeltaFileOperations;
import org.apache.spark.sql.delta.util.JsonUtils;
import scala.Option;

/**
 * Computes the actions of {@code RESTORE TABLE} without queries.
 *
 * <p>Delta computes the state of both versions and joins them seven times. This takes seconds for
 * each table with different columns, because the queries are compiled first.
 */
public final class Restore {
  // For more files, Delta checks in parallel tasks whether they exist.
  private static final int MOST_ADDED = 1000;
  private static final Set<String> OTHER_ACTIONS = Set.of("domainMetadata", "rowTracking");

  private Restore() {}

  /**
   * The actions that restore a version in a transaction that is not used for anything else.
   *
   * @return null if Delta must restore it or report the error: a table feature was added, the next
   *     value of an identity column must be kept, the table is append-only, a file is missing, or
   *     there are too many files or commits
   */
  public static List<Action> actions(OptimisticTransaction txn, long version) throws IOException {
    DeltaLog log = txn.deltaLog();
    Snapshot newest = txn.snapshot();
    if (version >= newest.version()) {
      return null;
    }
    Snapshot old = log.getSnapshotAt(version, Option.empty(), Option.empty(), true);
    if (needsDelta(old, newest)) {
      return null;
    }
    LiveFiles live = new LiveFiles(log);
    Optional<List<AddFile>> wanted = live.withoutQuery(old);
    Optional<List<AddFile>> present = live.withoutQuery(newest);
    if (wanted.isEmpty() || present.isEmpty()) {
      return null;
    }
    txn.readWholeTable();
    List<AddFile> added = without(wanted.get(), present.get());
    List<AddFile> removed = without(present.get(), wanted.get());
    if (added.size() > MOST_ADDED) {
      return null;
    }
    String table = log.dataPath().toString();
    FileSystem files = log.dataPath().getFileSystem(log.newDeltaHadoopConf());
    List<Action> actions = new ArrayList<>();
    for (AddFile file : added) {
      if (!files.exists(DeltaFileOperations.absolutePath(table, file.path()))) {
        return null;
      }
      actions.add(changed(file));
    }
    removed.forEach(file -> actions.add(file.remove()));
    if (!old.metadata().equals(newest.metadata())) {
      txn.updateMetadata(old.metadata(), false);
    }
    WriteTransaction.measure(
        txn,
        Map.of(
            "numOfFilesAfterRestore", wanted.get().size(),
            "tableSizeAfterRestore", bytes(wanted.get()),
            "numRestoredFiles", added.size(),
            "restoredFilesSize", bytes(added),
            "numRemovedFiles", removed.size(),
            "removedFilesSize", bytes(removed)));
    return actions;
  }

  private static boolean needsDelta(Snapshot old, Snapshot newest) {
    Metadata before = old.metadata();
    Metadata now = newest.metadata();
    return !old.protocol().equals(newest.protocol())
        || OTHER_ACTIONS.stream()
            .anyMatch(newest.protocol().readerAndWriterFeatureNames()::contains)
        || (!before.equals(now) && ColumnWithDefaultExprUtils.hasIdentityColumn(now.schema()))
        // Only Delta's command may remove files of an append-only table.
        || isAppendOnly(before)
        || isAppendOnly(now);
  }

  private static boolean isAppendOnly(Metadata metadata) {
    String value = metadata.configuration().getOrElse("delta.appendOnly", () -> "false");
    return value.equalsIgnoreCase("true");
  }

  private static List<AddFile> without(List<AddFile> files, List<AddFile> others) {
    Set<String> identities = new HashSet<>();
    others.forEach(file -> identities.add(LiveFiles.identity(file)));
    return files.stream().filter(file -> !identities.contains(LiveFiles.identity(file))).toList();
  }

  /** Files that are read from a checkpoint have {@code dataChange} set to false. */
  private static AddFile changed(AddFile file) {
    ObjectNode content = JsonUtils.mapper().valueToTree(file);
    return JsonUtils.mapper().convertValue(content.put("dataChange", true), AddFile.class);
  }

  private static long bytes(List<AddFile> files) {
    return files.stream().mapToLong(AddFile::size).sum();
  }
}
