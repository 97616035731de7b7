package penstock.delta;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.delta.deletionvectors.StoredBitmap;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore$;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds the rows with given keys in files of a table, with one Spark job over the key columns.
 *
 * <p>Rows that are deleted by a deletion vector are also found.
 */
public final class KeySearch {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final SparkSession session;
  private final DeltaLog log;
  private final Metadata metadata;
  private final StructType columns;
  private final int struct;
  private final int[] keys;
  private final boolean returnsRows;

  /**
   * @param columns the columns to read, as in the schema of the table; nested fields may be omitted
   * @param struct the position of the struct column with the keys as fields; -1 if keys are columns
   * @param keys the positions of the keys within the columns, or within that struct
   * @param returnsRows whether the columns of the rows are returned
   */
  KeySearch(
      SparkSession session,
      DeltaLog log,
      Snapshot snapshot,
      StructType columns,
      int struct,
      int[] keys,
      boolean returnsRows) {
    this.session = session;
    this.log = log;
    this.metadata = snapshot.metadata();
    this.columns =
        DeltaColumnMapping.createPhysicalSchema(
            columns, metadata.schema(), metadata.columnMappingMode(), true);
    this.struct = struct;
    this.keys = keys;
    this.returnsRows = returnsRows;
  }

  /**
   * The rows with given keys in a table that has the keys as the first fields of a column {@code
   * k}.
   *
   * @return the rows with the given columns, collected to the driver
   */
  public static Dataset<Row> rows(
      SparkSession session, Snapshot snapshot, LiveFiles files, BatchKeys keys, StructType columns)
      throws IOException {
    DeltaLog log = snapshot.deltaLog();
    int[] all = IntStream.range(0, keys.columns.size()).toArray();
    BatchKeys.Group group = keys.groups(all, new int[0]).get(List.of());
    List<Candidate> candidates = new ArrayList<>();
    if (group != null) {
      files.at(snapshot).forEach(file -> candidates.add(new Candidate(file, group)));
    }
    int struct = columns.fieldIndex("k");
    KeySearch search = new KeySearch(session, log, snapshot, columns, struct, all, true);
    DeletionVectorStore store =
        DeletionVectorStore$.MODULE$.createInstance(log.newDeltaHadoopConf());
    List<InternalRow> rows = new ArrayList<>();
    for (Hits hits : search.search(candidates)) {
      rows.addAll(hits.liveRows(candidates.get(hits.file).file(), log, store));
    }
    return PlanParts.local((org.apache.spark.sql.classic.SparkSession) session, columns, rows);
  }

  /** A file, and the keys that it may contain. */
  record Candidate(AddFile file, BatchKeys.Group keys) {}

  /** Rows of a file: their positions, and their columns if the search returns rows. */
  static final class Hits implements Serializable {
    private static final long serialVersionUID = 1L;

    final int file;
    long[] positions = new long[16];
    int count;
    final PackedRows rows;

    /** @param columns the number of columns of the rows */
    Hits(int file, int columns) {
      this.file = file;
      this.rows = new PackedRows(columns);
    }

    /** The rows that the deletion vector of their file does not delete. */
    List<InternalRow> liveRows(AddFile of, DeltaLog log, DeletionVectorStore store)
        throws IOException {
      DeletionVectorDescriptor vector = of.deletionVector();
      RoaringBitmapArray deleted =
          vector == null
              ? new RoaringBitmapArray()
              : StoredBitmap.create(vector, log.dataPath()).load(store);
      List<InternalRow> live = new ArrayList<>();
      int hit = 0;
      for (InternalRow row : rows) {
        if (!deleted.contains(positions[hit++])) {
          live.add(row);
        }
      }
      return live;
    }

    void add(long position) {
      if (count == positions.length) {
        positions = Arrays.copyOf(positions, 2 * count);
      }
      positions[count++] = position;
    }
  }

  /** The hits in the candidates, in any order; a large file may have several. */
  List<Hits> search(List<Candidate> candidates) {
    List<BatchKeys.Group> groups = new ArrayList<>();
    Map<BatchKeys.Group, Integer> numbers = new IdentityHashMap<>();
    ParquetParts parts = new ParquetParts();
    int[] groupOfFile = new int[candidates.size()];
    StructField first = firstKey();
    for (int index = 0; index < candidates.size(); index++) {
      AddFile file = candidates.get(index).file();
      BatchKeys.Group group = candidates.get(index).keys();
      if (!overlaps(file, group, first)) {
        continue;
      }
      if (!numbers.containsKey(group)) {
        numbers.put(group, groups.size());
        groups.add(group);
      }
      groupOfFile[index] = numbers.get(group);
      parts.add(index, file, log);
    }
    if (parts.isEmpty()) {
      return List.of();
    }
    JavaSparkContext context = new JavaSparkContext(session.sparkContext());
    Broadcast<List<BatchKeys.Group>> known = context.broadcast(groups);
    try {
      SearchTask task =
          new SearchTask(
              ParquetParts.reader(session, log, columns, filters(groups, first)),
              known,
              groupOfFile,
              struct,
              keys,
              ParquetParts.withPosition(columns),
              returnsRows);
      List<List<ParquetParts.Part>> tasks =
          parts.tasks(session.sparkContext().defaultParallelism());
      return context.parallelize(tasks, tasks.size()).flatMap(task).collect();
    } finally {
      known.destroy();
    }
  }

  private StructField firstKey() {
    StructField[] fields =
        struct < 0 ? columns.fields() : ((StructType) columns.fields()[struct].dataType()).fields();
    return fields[keys[0]];
  }

  /**
   * Whether a file may contain one of the keys according to its statistics, whose bounds remain
   * valid when rows are deleted.
   */
  private boolean overlaps(AddFile file, BatchKeys.Group group, StructField first) {
    if (struct >= 0 || group.bounds() == null || file.stats() == null) {
      return true;
    }
    try {
      JsonNode stats = JSON.readTree(file.stats());
      JsonNode min = stats.path("minValues").path(first.name());
      JsonNode max = stats.path("maxValues").path(first.name());
      boolean hasBounds = min.isIntegralNumber() && max.isIntegralNumber();
      return !hasBounds || group.overlaps(min.longValue(), max.longValue());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Filters by which the reader skips row groups outside the range of the keys. */
  private List<Filter> filters(List<BatchKeys.Group> groups, StructField first) {
    if (struct >= 0 || first.name().matches(".*[.`].*")) {
      return List.of();
    }
    long min = Long.MAX_VALUE;
    long max = Long.MIN_VALUE;
    for (BatchKeys.Group group : groups) {
      long[] bounds = group.bounds();
      if (bounds == null) {
        return List.of();
      }
      min = Math.min(min, bounds[0]);
      max = Math.max(max, bounds[1]);
    }
    Object low = typed(min, first.dataType());
    Object high = typed(max, first.dataType());
    return List.of(
        new GreaterThanOrEqual(first.name(), low), new LessThanOrEqual(first.name(), high));
  }

  private static Object typed(long value, DataType type) {
    if (type instanceof LongType) {
      return value;
    } else if (type instanceof IntegerType) {
      return (int) value;
    } else if (type instanceof ShortType) {
      return (short) value;
    } else if (type instanceof ByteType) {
      return (byte) value;
    }
    throw new IllegalArgumentException(type.toString());
  }

  private static final class SearchTask implements FlatMapFunction<List<ParquetParts.Part>, Hits> {
    private static final long serialVersionUID = 1L;

    private final Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader;
    private final Broadcast<List<BatchKeys.Group>> groups;
    private final int[] groupOfFile;
    private final int struct;
    private final int[] keys;
    private final StructType shape;
    private final boolean returnsRows;

    SearchTask(
        Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader,
        Broadcast<List<BatchKeys.Group>> groups,
        int[] groupOfFile,
        int struct,
        int[] keys,
        StructType shape,
        boolean returnsRows) {
      this.reader = reader;
      this.groups = groups;
      this.groupOfFile = groupOfFile;
      this.struct = struct;
      this.keys = keys;
      this.shape = shape;
      this.returnsRows = returnsRows;
    }

    @Override
    public Iterator<Hits> call(List<ParquetParts.Part> parts) {
      UnsafeProjection key = key();
      int[] all = IntStream.range(0, shape.size() - 1).toArray();
      UnsafeProjection row = returnsRows ? BatchKeys.projection(shape, all) : null;
      List<Hits> hits = new ArrayList<>();
      for (ParquetParts.Part part : parts) {
        Hits file = search(part, key, row);
        if (file.count > 0) {
          hits.add(file);
        }
      }
      return hits.iterator();
    }

    private Hits search(ParquetParts.Part part, UnsafeProjection key, UnsafeProjection row) {
      BatchKeys.Group group = groups.value().get(groupOfFile[part.file()]);
      int index = shape.size() - 1;
      Hits hits = new Hits(part.file(), index);
      int width = struct < 0 ? 0 : ((StructType) shape.fields()[struct].dataType()).size();
      scala.collection.Iterator<InternalRow> read = part.read(reader);
      while (read.hasNext()) {
        InternalRow next = read.next();
        InternalRow holder = next;
        if (struct >= 0) {
          if (next.isNullAt(struct)) {
            continue;
          }
          holder = next.getStruct(struct, width);
        }
        if (group.has(holder, keys[0], next, key)) {
          hits.add(next.getLong(index));
          if (row != null) {
            hits.rows.add(row.apply(next));
          }
        }
      }
      return hits;
    }

    private UnsafeProjection key() {
      if (struct < 0) {
        return BatchKeys.projection(shape, keys);
      }
      StructType type = (StructType) shape.fields()[struct].dataType();
      List<Expression> values = new ArrayList<>();
      for (int key : keys) {
        BoundReference holder = new BoundReference(struct, type, true);
        values.add(new GetStructField(holder, key, Option.empty()));
      }
      return UnsafeProjection.create(CollectionConverters.asScala(values).toSeq());
    }
  }
}
