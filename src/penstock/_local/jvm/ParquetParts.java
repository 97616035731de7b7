package penstock.delta;

import com.esotericsoftware.kryo.DefaultSerializer;
import com.esotericsoftware.kryo.serializers.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Data files of a table, read by Spark's Parquet reader without a query: analysis and planning
 * would take longer than reading a million rows.
 */
final class ParquetParts {
  private static final long PART_BYTES = 64L << 20;
  private static final String ROW_INDEX = ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME();

  private final List<Part> parts = new ArrayList<>();

  /** A part of a file; {@code file} is its number. Kryo cannot serialize records. */
  @DefaultSerializer(JavaSerializer.class)
  record Part(int file, String uri, long start, long length, long size) implements Serializable {
    scala.collection.Iterator<InternalRow> read(
        Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader) {
      return reader.apply(
          new PartitionedFile(
              InternalRow.empty(),
              SparkPath.fromUrlString(uri),
              start,
              length,
              new String[0],
              0L,
              size,
              Map$.MODULE$.empty()));
    }
  }

  /** Adds a file of known size under a number. */
  void add(int number, FileAction file, DeltaLog log) {
    Path path = new Path(file.pathAsUri());
    String uri = (path.isAbsolute() ? path : new Path(log.dataPath(), path)).toUri().toString();
    long size = file.getFileSize();
    for (long start = 0; start < Math.max(1, size); start += PART_BYTES) {
      parts.add(new Part(number, uri, start, Math.min(PART_BYTES, size - start), size));
    }
  }

  boolean isEmpty() {
    return parts.isEmpty();
  }

  /** The parts in at most {@code most} tasks of about the same size. */
  List<List<Part>> tasks(int most) {
    int count = Math.min(most, parts.size());
    long[] bytes = new long[count];
    List<List<Part>> tasks = new ArrayList<>();
    for (int task = 0; task < count; task++) {
      tasks.add(new ArrayList<>());
    }
    List<Part> sorted = new ArrayList<>(parts);
    sorted.sort((a, b) -> Long.compare(b.length(), a.length()));
    for (Part part : sorted) {
      int least = 0;
      for (int task = 1; task < count; task++) {
        least = bytes[task] < bytes[least] ? task : least;
      }
      tasks.get(least).add(part);
      bytes[least] += part.length() + (1L << 20);
    }
    return tasks;
  }

  /** The columns that are read, followed by the position of the row in its file. */
  static StructType withPosition(StructType columns) {
    return columns.add(ROW_INDEX, DataTypes.LongType);
  }

  /**
   * A function that reads the rows of a part.
   *
   * @param columns by their names in the files; files that are older than column ids have no ids
   */
  static Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> reader(
      SparkSession session, DeltaLog log, StructType columns, List<Filter> filters) {
    scala.collection.immutable.Map<String, String> options =
        scala.collection.immutable.Map.from(
            CollectionConverters.asScala(Map.of("returning_batch", "false")));
    return new ParquetFileFormat()
        .buildReaderWithPartitionValues(
            session,
            columns,
            new StructType(),
            withPosition(DeltaColumnMapping.dropColumnMappingMetadata(columns)),
            CollectionConverters.asScala(filters).toSeq(),
            options,
            log.newDeltaHadoopConf());
  }
}
