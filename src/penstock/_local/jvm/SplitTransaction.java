package penstock.delta;

import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.files.DelayedCommitProtocol;
import org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;

/**
 * A transaction that writes the files of two tables in one job. It is never committed itself.
 *
 * <p>The files of one partition folder are written to another table, and their {@code AddFile} has
 * a path that is relative to that table. All other files are written to the table of the
 * transaction, without columns that are always NULL in their rows.
 */
public final class SplitTransaction extends WriteTransaction {
  private final String partition;
  private final String other;
  private final List<String> absent;

  /**
   * @param partition the folder of the first partition column, such as {@code kind=other}
   * @param other the path of the table to which the files of this folder are written
   * @param absent columns that are NULL in the rows of all other files
   */
  public SplitTransaction(
      DeltaLog log,
      Snapshot snapshot,
      String partition,
      String other,
      List<String> absent) {
    super(log, snapshot);
    this.partition = partition;
    this.other = other;
    this.absent = absent;
  }

  @Override
  public DelayedCommitProtocol getCommitter(Path table) {
    boolean isPrefixed = (Boolean) DeltaConfigs.RANDOMIZE_FILE_PREFIXES().fromMetaData(metadata());
    Option<Object> prefix =
        isPrefixed
            ? Option.apply(DeltaConfigs.RANDOM_PREFIX_LENGTH().fromMetaData(metadata()))
            : Option.empty();
    return new Committer(
        table.toString(), prefix, deltaDataSubdir(), partition, other, absent);
  }

  private static final class Committer extends DelayedCommitProtocol {
    private static final long serialVersionUID = 1L;

    private final String partition;
    private final String root;
    private final List<String> absent;
    private String all;

    Committer(
        String table,
        Option<Object> prefix,
        Option<String> subdir,
        String partition,
        String other,
        List<String> absent) {
      super("delta", table, prefix, subdir);
      this.partition = partition;
      this.root = new Path(other).toUri() + Path.SEPARATOR;
      this.absent = new ArrayList<>(absent); // a serializable list
    }

    @Override
    public String newTaskTempFile(TaskAttemptContext task, Option<String> folder, String suffix) {
      String path = super.newTaskTempFile(task, folder, suffix);
      boolean isOther =
          folder.isDefined() && folder.get().split(Path.SEPARATOR, 2)[0].equals(partition);
      setColumns(task.getConfiguration(), isOther);
      if (!isOther) {
        return path;
      }
      Tuple2<Map<String, String>, String> file = addedFiles().last();
      String moved = root + file._2();
      addedFiles().update(addedFiles().size() - 1, new Tuple2<>(file._1(), moved));
      return new Path(URI.create(moved)).toString();
    }

    /**
     * Sets the columns of the file that is opened next, without trailing columns that are absent.
     * Spark's Parquet writer reads the columns from the configuration of the task, and skips the
     * fields of a row that are NULL. With VARIANT columns, it may read the configuration later, so
     * all files have all columns.
     */
    private void setColumns(Configuration task, boolean isOther) {
      String name = ParquetWriteSupport.SPARK_ROW_SCHEMA();
      if (all == null) {
        all = task.get(name);
      }
      StructField[] fields = ((StructType) DataType.fromJson(all)).fields();
      int count = fields.length;
      boolean hasAll = isOther || all.contains("\"variant\"");
      while (!hasAll && absent.contains(fields[count - 1].name())) {
        count--;
      }
      task.set(name, new StructType(Arrays.copyOf(fields, count)).json());
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
