package penstock.delta;

import java.net.URI;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.files.DelayedCommitProtocol;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;

/**
 * Writes the files of two tables in one job; never committed itself.
 *
 * <p>The files of one partition folder are written below another table, and their {@code AddFile}
 * has the path that it needs in the log of that table. All other files are below the table of the
 * transaction.
 */
public final class SplitTransaction extends WriteTransaction {
  private final String partition;
  private final String other;

  /**
   * @param partition the folder of the first partition column, such as {@code kind=other}
   * @param other the path of the table that its files are for
   */
  public SplitTransaction(DeltaLog log, Snapshot snapshot, String partition, String other) {
    super(log, snapshot);
    this.partition = partition;
    this.other = other;
  }

  @Override
  public DelayedCommitProtocol getCommitter(Path table) {
    boolean isPrefixed = (Boolean) DeltaConfigs.RANDOMIZE_FILE_PREFIXES().fromMetaData(metadata());
    Option<Object> prefix =
        isPrefixed
            ? Option.apply(DeltaConfigs.RANDOM_PREFIX_LENGTH().fromMetaData(metadata()))
            : Option.empty();
    return new Committer(table.toString(), prefix, deltaDataSubdir(), partition, other);
  }

  private static final class Committer extends DelayedCommitProtocol {
    private static final long serialVersionUID = 1L;

    private final String partition;
    private final String root;

    Committer(
        String table,
        Option<Object> prefix,
        Option<String> subdir,
        String partition,
        String other) {
      super("delta", table, prefix, subdir);
      this.partition = partition;
      this.root = new Path(other).toUri() + Path.SEPARATOR;
    }

    @Override
    public String newTaskTempFile(TaskAttemptContext task, Option<String> folder, String suffix) {
      String path = super.newTaskTempFile(task, folder, suffix);
      String first = folder.isEmpty() ? "" : folder.get().split(Path.SEPARATOR, 2)[0];
      if (!first.equals(partition)) {
        return path;
      }
      Tuple2<Map<String, String>, String> file = addedFiles().last();
      String moved = root + file._2();
      addedFiles().update(addedFiles().size() - 1, new Tuple2<>(file._1(), moved));
      return new Path(URI.create(moved)).toString();
    }

    @Override
    public FileAction buildActionFromAddedFile(
        Tuple2<Map<String, String>, String> file, FileStatus status, TaskAttemptContext task) {
      boolean isMoved = file._2().startsWith(root);
      String path = isMoved ? file._2().substring(root.length()) : file._2();
      return super.buildActionFromAddedFile(new Tuple2<>(file._1(), path), status, task);
    }
  }
}
