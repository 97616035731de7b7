package penstock.delta;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.MissingNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.delta.ColumnWithDefaultExprUtils;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.RemoveFile;
import org.apache.spark.sql.delta.commands.cdc.CDCReader;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Computes how the rows of a Delta table differ between two versions. */
final class TableChanges {
  // Reading more commits takes longer than recomputing most tables.
  private static final long MOST_COMMITS = 1000;
  private static final long SMALL_BYTES = 16L << 20;
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String SIGN = "__penstock_sign";

  private final SparkSession session;
  private final DeltaLog log;
  private final long since;
  private final Snapshot snapshot;

  /** Added and removed files by path and deletion vector, without files that were both. */
  private final Map<List<String>, FileAction> files = new LinkedHashMap<>();

  /** Whether a file was added twice, or removed twice, as by RESTORE after OPTIMIZE. */
  private boolean isRepeated;

  private final List<AddFile> added = new ArrayList<>();
  private final Set<String> addedPaths = new HashSet<>();
  private final Map<String, RemoveFile> removed = new HashMap<>();

  /**
   * Reads the commits after a version.
   *
   * @throws QueryChanges.UnsupportedException if the commits cannot be read or are too many, or if
   *     columns were removed or changed
   */
  TableChanges(SparkSession session, long since, Snapshot snapshot) {
    this.session = session;
    this.log = snapshot.deltaLog();
    this.since = since;
    this.snapshot = snapshot;
    long version = snapshot.version();
    if (since > version || version - since > MOST_COMMITS) {
      throw new QueryChanges.UnsupportedException(
          since > version
              ? "a source was replaced or restored"
              : "a source has more than " + MOST_COMMITS + " new commits");
    }
    if (since == version) {
      return;
    }
    scala.collection.Iterator<Tuple2<Object, Seq<Action>>> commits =
        log.getChanges(since + 1, version, Option.empty(), true);
    long expected = since + 1;
    while (commits.hasNext()) {
      Tuple2<Object, Seq<Action>> commit = commits.next();
      if ((Long) commit._1() != expected++) {
        throw new QueryChanges.UnsupportedException("the log of a source was cleaned up");
      }
      for (Action action : CollectionConverters.asJava(commit._2())) {
        add(action);
      }
    }
    if (expected != version + 1) {
      throw new QueryChanges.UnsupportedException("the log of a source was cleaned up");
    }
    for (FileAction file : files.values()) {
      if (file instanceof AddFile add) {
        added.add(add);
        isRepeated |= !addedPaths.add(add.path());
      } else {
        isRepeated |= removed.put(file.path(), (RemoveFile) file) != null;
      }
    }
  }

  private void add(Action action) {
    if (action instanceof FileAction file
        && (file instanceof AddFile || file instanceof RemoveFile)) {
      if (file.dataChange()) {
        count(file);
      }
    } else if (action instanceof Metadata metadata) {
      Metadata old = before().metadata();
      // The query reads no new columns: otherwise it would be a different query.
      boolean isSame =
          metadata.id().equals(old.id())
              && Set.copyOf(fields(metadata)).containsAll(fields(old))
              && metadata.partitionColumns().equals(old.partitionColumns());
      if (!isSame) {
        throw new QueryChanges.UnsupportedException("the schema of a source changed");
      }
    }
    // A new protocol, such as for deletion vectors, does not change the rows.
  }

  /** The columns without comments and metadata for writes, such as the last value of IDENTITY. */
  private static List<StructField> fields(Metadata metadata) {
    StructType columns =
        ColumnWithDefaultExprUtils.removeDefaultExpressions(metadata.schema(), false, false);
    return Arrays.stream(columns.fields()).map(TableChanges::withoutComment).toList();
  }

  private static StructField withoutComment(StructField field) {
    MetadataBuilder others = new MetadataBuilder().withMetadata(field.metadata()).remove("comment");
    return new StructField(field.name(), field.dataType(), field.nullable(), others.build());
  }

  private void count(FileAction file) {
    DeletionVectorDescriptor vector = file.deletionVector();
    List<String> key = List.of(file.path(), vector == null ? "" : vector.uniqueId());
    FileAction other = files.remove(key);
    if (other == null) {
      files.put(key, file);
    } else if (other instanceof AddFile == file instanceof AddFile) {
      files.put(key, file);
      isRepeated = true;
    }
  }

  boolean isEmpty() {
    return files.isEmpty() && !isRepeated;
  }

  boolean isAppend() {
    return removed.isEmpty() && !isRepeated;
  }

  /**
   * The number and share of added and removed rows, according to the statistics of their files.
   *
   * <p>If a file was rewritten, all of its rows count, including unchanged rows.
   */
  QueryChanges.Size size() {
    Option<VersionChecksum> checksum = snapshot.checksumOpt();
    double all = checksum.isDefined() ? checksum.get().tableSizeBytes() : snapshot.sizeInBytes();
    double bytes = 0;
    double bytesOfKnown = 0;
    double rows = 0;
    for (FileAction file : files.values()) {
      if (hasOtherVector(file) && file instanceof RemoveFile) {
        continue; // Counted with its new deletion vector.
      }
      Option<Object> known = file.numLogicalRecords();
      double size = Math.max(1, file.getFileSize());
      double changed = known.isDefined() ? (Long) known.get() : 0;
      if (hasOtherVector(file) && known.isDefined()) {
        long deleted = deletedRows(file);
        double stored = changed + deleted;
        changed = Math.abs(deleted - deletedRows(removed.get(file.path())));
        size *= changed / Math.max(1, stored);
      }
      rows += changed;
      bytes += size;
      bytesOfKnown += known.isDefined() ? size : 0;
    }
    double share = Math.min(1, bytes / Math.max(bytes, all));
    return new QueryChanges.Size(bytesOfKnown == 0 ? -1 : rows * bytes / bytesOfKnown, share);
  }

  private static long deletedRows(FileAction file) {
    return file.deletionVector() == null ? 0 : file.deletionVector().cardinality();
  }

  /** Columns without NULL, according to the statistics of all files. */
  Set<String> columnsWithoutNull() {
    Map<String, String> names = new HashMap<>();
    for (StructField field : snapshot.schema().fields()) {
      names.put(DeltaColumnMapping.getPhysicalName(field), field.name());
    }
    for (AddFile file : new LiveFiles(log).at(snapshot)) {
      JsonNode nulls = MissingNode.getInstance();
      try {
        nulls = file.stats() == null ? nulls : JSON.readTree(file.stats()).path("nullCount");
      } catch (JsonProcessingException error) {
        // Treated as a file without statistics.
      }
      JsonNode counts = nulls;
      names.keySet().removeIf(name -> counts.path(name).asLong(1) != 0);
    }
    return Set.copyOf(names.values());
  }

  private boolean hasOtherVector(FileAction file) {
    return addedPaths.contains(file.path()) && removed.containsKey(file.path());
  }

  /**
   * The rows of the added files, if no file was removed.
   *
   * @param used whether each column is used; unused columns may be NULL
   */
  LogicalPlan appended(boolean[] used) {
    // Rows of one task are grouped without a shuffle.
    boolean isSmall = added.stream().mapToLong(AddFile::size).sum() <= SMALL_BYTES;
    if (!isSmall || !FileRows.canRead(snapshot.metadata())) {
      Seq<AddFile> files = CollectionConverters.asScala(added).toSeq();
      Dataset<Row> rows = log.createDataFrame(snapshot, files, false, Option.empty());
      return plan(isSmall ? rows.coalesce(1) : rows);
    }
    FileRows rows = new FileRows(session, snapshot, columns(used));
    added.forEach(file -> rows.add(file, 1));
    return plan(rows.frame(SIGN, 1).coalesce(1).select(all(used)));
  }

  /**
   * The added, removed and changed rows, before and after the change, with the number of copies as
   * last column, negative for removed rows.
   *
   * @param used whether each column is used; unused columns may be NULL
   * @param isNet whether rows that differ only in unused columns are left out
   */
  LogicalPlan changed(boolean[] used, boolean isNet) {
    boolean isWhole = isRepeated || files.values().stream().anyMatch(this::isGone);
    Dataset<Row> rows;
    if (isRepeated) {
      rows = signed(ofEachCommit());
    } else {
      boolean canRead = FileRows.canRead(snapshot.metadata());
      rows = canRead ? ofPositions(used) : signed(ofFiles(files.values()));
    }
    StructField[] fields = columns(used).fields();
    boolean canGroup = Arrays.stream(fields).allMatch(f -> canGroup(f.dataType()));
    if ((isWhole || isNet) && canGroup) {
      // All rows of rewritten files are deleted and inserted; rows that are both are left out.
      rows =
          rows.groupBy(converted(fields, true))
              .agg(functions.sum(SIGN).as(SIGN))
              .where(functions.col(SIGN).notEqual(0L))
              .select(withSign(converted(fields, false)));
    }
    return plan(rows.select(withSign(all(used))));
  }

  private Dataset<Row> ofPositions(boolean[] used) {
    FileRows rows = new FileRows(session, snapshot, columns(used));
    List<FileAction> whole = new ArrayList<>();
    for (FileAction file : files.values()) {
      if (!hasOtherVector(file)) {
        whole.add(file);
      } else if (file instanceof AddFile add) {
        rows.addDifference(add, removed.get(file.path()).deletionVector());
      }
    }
    // Few rows are read faster without Delta, many rows with the code that Spark generates.
    boolean isSmall =
        whole.stream().mapToLong(FileAction::getFileSize).sum() <= SMALL_BYTES
            && whole.stream().allMatch(file -> file.getFileSize() > 0);
    if (isSmall) {
      whole.forEach(file -> rows.add(file, file instanceof AddFile ? 1 : -1));
    }
    Dataset<Row> chosen = rows.frame(SIGN, session.sparkContext().defaultParallelism());
    return isSmall
        ? chosen
        : chosen.union(signed(ofFiles(whole)).select(withSign(names(columns(used).fields()))));
  }

  private static Dataset<Row> signed(Dataset<Row> changes) {
    Column type = functions.col("_change_type");
    Column sign = functions.when(type.isin("insert", "update_postimage"), 1L).otherwise(-1L);
    return changes.withColumn(SIGN, sign);
  }

  private StructType columns(boolean[] used) {
    StructType columns = new StructType();
    for (int field = 0; field < used.length; field++) {
      columns = used[field] ? columns.add(snapshot.schema().fields()[field]) : columns;
    }
    return columns;
  }

  private static Column column(StructField field) {
    return functions.col("`" + field.name().replace("`", "``") + "`");
  }

  private static Column[] names(StructField[] fields) {
    return Arrays.stream(fields).map(TableChanges::column).toArray(Column[]::new);
  }

  private static boolean canGroup(DataType type) {
    return PlanParts.canGroup(type)
        && (isFloat(type) || !type.existsRecursively(TableChanges::isFloat));
  }

  private static boolean isFloat(DataType type) {
    return type instanceof DoubleType || type instanceof FloatType;
  }

  /** Converts floating-point numbers to bits, or back: GROUP BY treats -0.0 and 0.0 as equal. */
  private static Column[] converted(StructField[] fields, boolean toBits) {
    Column[] columns = names(fields);
    for (int index = 0; index < fields.length; index++) {
      DataType type = fields[index].dataType();
      Column column = columns[index];
      if (type instanceof DoubleType) {
        column =
            toBits
                ? call(Double.class, "doubleToLongBits", DataTypes.LongType, column)
                : call(Double.class, "longBitsToDouble", type, column);
      } else if (type instanceof FloatType) {
        column =
            toBits
                ? call(Float.class, "floatToIntBits", DataTypes.IntegerType, column)
                : call(Float.class, "intBitsToFloat", type, column);
      }
      columns[index] = column.as(fields[index].name());
    }
    return columns;
  }

  private static Column call(Class<?> of, String function, DataType result, Column argument) {
    Seq<Expression> arguments = PlanParts.seq(List.of(ExpressionUtils.expression(argument)));
    Seq<AbstractDataType> none = PlanParts.seq(List.of());
    return ExpressionUtils.column(
        new StaticInvoke(
            of, result, function, arguments, none, true, true, true, Option.empty()));
  }

  private static Column[] withSign(Column[] columns) {
    Column[] all = Arrays.copyOf(columns, columns.length + 1);
    all[columns.length] = functions.col(SIGN);
    return all;
  }

  /** All columns of the table; unused columns are NULL. */
  private Column[] all(boolean[] used) {
    StructField[] fields = snapshot.schema().fields();
    Column[] columns = new Column[fields.length];
    for (int field = 0; field < fields.length; field++) {
      columns[field] =
          used[field]
              ? column(fields[field])
              : functions.lit(null).cast(fields[field].dataType()).as(fields[field].name());
    }
    return columns;
  }

  private boolean isGone(FileAction file) {
    return file instanceof RemoveFile && !hasOtherVector(file);
  }

  private Dataset<Row> ofEachCommit() {
    return CDCReader.changesToBatchDF(
        log,
        since + 1,
        snapshot.version(),
        session,
        Option.empty(),
        Option.empty(),
        true,
        Option.empty());
  }

  /** Treats all changes as one commit: a file that changed several times is read once. */
  private Dataset<Row> ofFiles(Collection<FileAction> changed) {
    long version = snapshot.version();
    Seq<Action> actions = CollectionConverters.asScala(List.<Action>copyOf(changed)).toSeq();
    List<Tuple2<Object, Seq<Action>>> commits = List.of(new Tuple2<>(version, actions));
    return CDCReader.changesToDF(
            snapshot,
            version,
            version,
            CollectionConverters.asScala(commits.iterator()),
            session,
            Option.empty(),
            false,
            true,
            Option.empty())
        .fileChangeDf();
  }

  /** The snapshot for which the result was computed. */
  Snapshot before() {
    return log.getSnapshotAt(since, Option.empty(), Option.empty(), false);
  }

  private static LogicalPlan plan(Dataset<Row> rows) {
    return ((org.apache.spark.sql.classic.Dataset<Row>) rows).queryExecution().analyzed();
  }
}
