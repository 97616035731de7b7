package penstock.delta;

import com.google.common.cache.Cache;
import com.google.common.cache.CacheBuilder;
import com.google.common.util.concurrent.UncheckedExecutionException;
import java.io.Closeable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockLength;
import org.apache.spark.sql.catalyst.expressions.InputFileBlockStart;
import org.apache.spark.sql.catalyst.expressions.InputFileName;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.StructType;

/**
 * Reads and decodes the rows of small files once, on the driver, for all flows that read a table.
 *
 * <p>Planning the scan of a file, sending the configuration to its task, and opening the file take
 * longer than reading a few rows.
 */
final class SharedRows {
  // Limits of a micro-batch, whose files are read sequentially.
  private static final int MOST_FILES = 32;
  private static final long MOST_FILE_BYTES = 256L << 10;
  // Limit of the rows, which are sent to one task: Spark warns about larger tasks.
  private static final long MOST_BYTES = 900L << 10;
  // Limit of one file.
  private static final long MOST_ROWS = 20_000;
  private static final long KEPT_BYTES = 32L << 20;
  private static final PackedRows TOO_MANY = new PackedRows(0);

  /** A file, whose name is unique, and the settings with which it is read. */
  private record Key(String file, String schema, String timeZone) {}

  private static final Cache<Key, PackedRows> KEPT =
      CacheBuilder.newBuilder()
          .maximumWeight(KEPT_BYTES)
          .<Key, PackedRows>weigher((key, rows) -> (int) (1000 + rows.bytes()))
          .build();

  private SharedRows() {}

  /** The rows of a micro-batch instead of a scan of its files; null if they must be scanned. */
  static LogicalPlan of(SparkSession session, LogicalRelation leaf, TahoeBatchFileIndex index) {
    List<AddFile> files = PlanParts.list(index.addFiles());
    Metadata metadata = index.snapshot().metadata();
    boolean isSmall =
        files.size() <= MOST_FILES
            && files.stream().mapToLong(AddFile::size).sum() <= MOST_FILE_BYTES
            && files.stream().allMatch(file -> file.deletionVector() == null);
    if (!leaf.isStreaming() || !isSmall || !FileRows.canRead(metadata) || !hasAll(leaf, metadata)) {
      return null;
    }
    List<PackedRows> rows = new ArrayList<>();
    try {
      for (AddFile file : files) {
        PackedRows ofFile = rows(session, index.deltaLog(), metadata, file);
        if (ofFile == TOO_MANY) {
          return null;
        }
        rows.add(ofFile);
      }
    } catch (ExecutionException | UncheckedExecutionException error) {
      return null; // The scan fails with Spark's message.
    }
    if (rows.stream().mapToLong(PackedRows::bytes).sum() > MOST_BYTES) {
      return null;
    }
    List<Attribute> columns = new ArrayList<>(PlanParts.list(leaf.output()));
    return PlanParts.packed(session, columns, rows, true, leaf.stream());
  }

  /** Whether a query uses the file of a row, as {@code input_file_name} does. */
  static boolean namesFiles(LogicalPlan plan) {
    return PlanParts.list(plan.expressions()).stream()
            .anyMatch(
                e ->
                    e.exists(
                        part ->
                            part instanceof InputFileName
                                || part instanceof InputFileBlockStart
                                || part instanceof InputFileBlockLength))
        || PlanParts.list(plan.children()).stream().anyMatch(SharedRows::namesFiles);
  }

  private static boolean hasAll(LogicalRelation leaf, Metadata metadata) {
    List<String> names = PlanParts.list(leaf.output()).stream().map(Attribute::name).toList();
    return names.equals(Arrays.asList(metadata.schema().fieldNames()));
  }

  private static PackedRows rows(
      SparkSession session, DeltaLog log, Metadata metadata, AddFile file)
      throws ExecutionException {
    ParquetParts parts = new ParquetParts();
    parts.add(0, file, log);
    ParquetParts.Part part = parts.tasks(1).get(0).get(0);
    String timeZone = session.sessionState().conf().sessionLocalTimeZone();
    return KEPT.get(
        new Key(part.uri(), metadata.schemaString(), timeZone),
        () -> {
          StructType columns = metadata.schema();
          StructType physical =
              DeltaColumnMapping.createPhysicalSchema(
                  columns, columns, metadata.columnMappingMode(), true);
          int[] all = IntStream.range(0, physical.size()).toArray();
          UnsafeProjection projection = BatchKeys.projection(physical, all);
          PackedRows rows = new PackedRows(physical.size());
          var read = part.read(ParquetParts.reader(session, log, physical, List.of()));
          while (read.hasNext()) {
            rows.add(projection.apply(read.next()));
            // Similar rows can be much larger than their compressed file.
            if (rows.bytes() > MOST_BYTES || rows.count() > MOST_ROWS) {
              if (read instanceof Closeable reader) {
                reader.close();
              }
              return TOO_MANY;
            }
          }
          return rows;
        });
  }
}
