package penstock.delta;

import com.esotericsoftware.kryo.DefaultSerializer;
import com.esotericsoftware.kryo.serializers.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaTableUtils;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat;
import org.apache.spark.sql.delta.deletionvectors.StoredBitmap;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore$;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Rows of data files of a table, selected by position, with the number of copies as last column.
 *
 * <p>If the deletion vector of a file changed, Delta would read the file twice: for the deleted
 * rows and for the restored rows.
 */
public final class FileRows {
  /** The approximate ratio of the size of rows in memory to the size of their Parquet file. */
  private static final int FACTOR = 4;
  private static final String COPIES = "penstock_copies";

  private final SparkSession session;
  private final DeltaLog log;
  private final DeletionVectorStore store;
  private final StructType columns;
  private final StructType physical;
  private final ParquetParts parts = new ParquetParts();
  private final List<Rows> files = new ArrayList<>();
  private long bytes;
  private Keys without = new Keys(null, new int[0]);

  /**
   * Rows of a file: those at the positions, or all others. The positions are a serialized bitmap.
   */
  @DefaultSerializer(JavaSerializer.class)
  private record Rows(byte[] positions, boolean isExcept, long copies) implements Serializable {}

  /** Keys, and the positions of their columns. */
  @DefaultSerializer(JavaSerializer.class)
  private record Keys(BatchKeys.Group group, int[] columns) implements Serializable {}

  /**
   * The rows of a table, read by one task.
   *
   * @param keys the keys whose rows are left out; null to return all rows
   * @return null if a query of the table does not return the rows of its files unchanged
   */
  public static Dataset<Row> tableRows(
      SparkSession session, Snapshot snapshot, LiveFiles live, BatchKeys keys) {
    if (!canRead(snapshot.metadata())) {
      return null;
    }
    StructType columns = snapshot.schema();
    FileRows rows = new FileRows(session, snapshot, columns);
    live.at(snapshot).forEach(file -> rows.add(file, 1));
    if (keys != null) {
      int[] all = IntStream.range(0, keys.columns.size()).toArray();
      int[] positions = keys.columns.stream().mapToInt(columns::fieldIndex).toArray();
      rows.without = new Keys(keys.groups(all, new int[0]).get(List.of()), positions);
    }
    return rows.frame(COPIES, 1).drop(COPIES);
  }

  /** @param columns the columns to read, as in the schema of the table */
  FileRows(SparkSession session, Snapshot snapshot, StructType columns) {
    this.session = session;
    this.log = snapshot.deltaLog();
    this.store = DeletionVectorStore$.MODULE$.createInstance(log.newDeltaHadoopConf());
    // As in Delta's own reads: the ids of columns must not become ids of the columns of the view.
    this.columns =
        DeltaTableUtils.removeInternalDeltaMetadata(
            session, DeltaTableUtils.removeInternalWriterMetadata(session, columns));
    Metadata metadata = snapshot.metadata();
    this.physical =
        DeltaColumnMapping.createPhysicalSchema(
            columns, metadata.schema(), metadata.columnMappingMode(), true);
  }

  /** Whether the columns of a table are read from its files unchanged. */
  static boolean canRead(Metadata metadata) {
    // CHAR values are padded by the query.
    return metadata.partitionColumns().isEmpty()
        && !metadata.columnMappingMode().name().equals("id")
        && !CharVarcharUtils.hasCharVarchar(CharVarcharUtils.getRawSchema(metadata.schema()));
  }

  /** Adds all rows of a file except those that its deletion vector deletes. */
  void add(FileAction file, long copies) {
    add(file, bitmap(file.deletionVector()), true, copies);
  }

  /** Adds the rows of a file that a change of its deletion vector deletes or restores. */
  void addDifference(AddFile file, DeletionVectorDescriptor before) {
    RoaringBitmapArray deleted = bitmap(file.deletionVector());
    deleted.andNot(bitmap(before));
    add(file, deleted, false, -1);
    RoaringBitmapArray restored = bitmap(before);
    restored.andNot(bitmap(file.deletionVector()));
    add(file, restored, false, 1);
  }

  private RoaringBitmapArray bitmap(DeletionVectorDescriptor vector) {
    return vector == null
        ? new RoaringBitmapArray()
        : StoredBitmap.create(vector, log.dataPath()).load(store);
  }

  private void add(FileAction file, RoaringBitmapArray positions, boolean isExcept, long copies) {
    if (positions.isEmpty() && !isExcept) {
      return;
    }
    byte[] bitmap = positions.serializeAsByteArray(RoaringBitmapArrayFormat.Portable());
    parts.add(files.size(), file, log);
    files.add(new Rows(bitmap, isExcept, copies));
    bytes +=
        isExcept ? FACTOR * file.getFileSize() : positions.cardinality() * columns.defaultSize();
  }

  /** The rows as a query of one job with at most {@code tasks} tasks. */
  Dataset<Row> frame(String copies, int tasks) {
    ReadTask task =
        new ReadTask(
            ParquetParts.reader(session, log, physical, List.of()), files, physical, without);
    List<List<ParquetParts.Part>> each = parts.tasks(tasks);
    JavaSparkContext context = new JavaSparkContext(session.sparkContext());
    org.apache.spark.sql.classic.SparkSession classic =
        (org.apache.spark.sql.classic.SparkSession) session;
    Dataset<Row> rows =
        classic.internalCreateDataFrame(
            context.parallelize(each, Math.max(1, each.size())).flatMap(task).rdd(),
            columns.add(copies, DataTypes.LongType, false),
            false);
    // Spark cannot estimate the size of an RDD, and would shuffle both sides of a join.
    long most = classic.sessionState().conf().autoBroadcastJoinThreshold();
    return bytes <= most ? functions.broadcast(rows) : rows;
  }

  private static final class ReadTask
      implements FlatMapFunction<List<ParquetParts.Part>, InternalRow> {
    private static final long serialVersionUID = 1L;

    private final Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader;
    private final List<Rows> files;
    private final StructType columns;
    private final Keys without;

    ReadTask(
        Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader,
        List<Rows> files,
        StructType columns,
        Keys without) {
      this.reader = reader;
      this.files = files;
      this.columns = columns;
      this.without = without;
    }

    @Override
    public Iterator<InternalRow> call(List<ParquetParts.Part> parts) {
      Map<Long, UnsafeProjection> projections = new HashMap<>();
      Predicate<InternalRow> isLeftOut = isLeftOut();
      Iterator<ParquetParts.Part> rest = parts.iterator();
      return new Iterator<>() {
        private Iterator<InternalRow> rows = List.<InternalRow>of().iterator();

        @Override
        public boolean hasNext() {
          while (!rows.hasNext() && rest.hasNext()) {
            ParquetParts.Part part = rest.next();
            Rows chosen = files.get(part.file());
            rows =
                new PartRows(
                    part.read(reader),
                    chosen,
                    columns.size(),
                    isLeftOut,
                    projections.computeIfAbsent(chosen.copies(), copies -> projection(copies)));
          }
          return rows.hasNext();
        }

        @Override
        public InternalRow next() {
          if (!hasNext()) {
            throw new NoSuchElementException();
          }
          return rows.next();
        }
      };
    }

    private Predicate<InternalRow> isLeftOut() {
      BatchKeys.Group group = without.group();
      if (group == null) {
        return row -> false;
      }
      UnsafeProjection key = BatchKeys.projection(columns, without.columns());
      int first = without.columns()[0];
      return row -> group.has(row, first, row, key);
    }

    private UnsafeProjection projection(long copies) {
      List<Expression> values = new ArrayList<>();
      for (int column = 0; column < columns.size(); column++) {
        values.add(new BoundReference(column, columns.fields()[column].dataType(), true));
      }
      values.add(Literal.create(copies, DataTypes.LongType));
      return UnsafeProjection.create(CollectionConverters.asScala(values).toSeq());
    }
  }

  /**
   * The selected rows of a part in the order of their positions; a row is valid until the next one.
   */
  private static final class PartRows implements Iterator<InternalRow> {
    private final scala.collection.Iterator<InternalRow> all;
    private final long[] positions;
    private final boolean isExcept;
    private final int index;
    private final Predicate<InternalRow> isLeftOut;
    private final UnsafeProjection projection;
    private int at;
    private InternalRow row;

    PartRows(
        scala.collection.Iterator<InternalRow> all,
        Rows chosen,
        int index,
        Predicate<InternalRow> isLeftOut,
        UnsafeProjection projection) {
      this.all = all;
      this.positions = RoaringBitmapArray.readFrom(chosen.positions()).toArray();
      this.isExcept = chosen.isExcept();
      this.index = index;
      this.isLeftOut = isLeftOut;
      this.projection = projection;
    }

    @Override
    public boolean hasNext() {
      while (row == null && all.hasNext()) {
        InternalRow next = all.next();
        long position = next.getLong(index);
        while (at < positions.length && positions[at] < position) {
          at++;
        }
        boolean isListed = at < positions.length && positions[at] == position;
        row = isListed == isExcept || isLeftOut.test(next) ? null : projection.apply(next);
      }
      return row != null;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      InternalRow result = row;
      row = null;
      return result;
    }
  }
}
