package penstock.delta;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The rows that are removed from and added to a result, collected to the driver. The rows are
 * distinct and have the number of their copies as last column, negative for removed rows.
 */
public final class ChangedRows {
  private final SparkSession session;
  private final StructType schema;
  private final InternalRow[] rows;
  private long removed;
  private long added;

  /**
   * @param changes rows with the number of copies as last column; a row may occur several times
   * @param most fails if this many rows are collected: {@code changes} has at most this many per
   *     task, so that further rows may be missing
   */
  ChangedRows(SparkSession session, Dataset<Row> changes, int most) {
    this.session = session;
    this.schema = changes.schema();
    int width = schema.size() - 1;
    UnsafeProjection values = projection(width);
    Map<UnsafeRow, UnsafeRow> different = new LinkedHashMap<>();
    InternalRow[] all = changes.queryExecution().executedPlan().executeCollect();
    if (all.length >= most) {
      throw new QueryChanges.UnsupportedException("more than " + (most - 1) + " rows changed");
    }
    for (InternalRow row : all) {
      UnsafeRow key = values.apply(row);
      UnsafeRow before = different.get(key);
      if (before == null) {
        different.put(key.copy(), (UnsafeRow) row);
      } else {
        before.setLong(width, before.getLong(width) + row.getLong(width));
      }
    }
    different.values().removeIf(row -> row.getLong(width) == 0);
    this.rows = different.values().toArray(new InternalRow[0]);
    for (InternalRow row : rows) {
      long copies = row.getLong(width);
      removed -= Math.min(copies, 0);
      added += Math.max(copies, 0);
    }
  }

  /** The first columns of the rows. */
  private UnsafeProjection projection(int width) {
    return BatchKeys.projection(schema, IntStream.range(0, width).toArray());
  }

  public Dataset<Row> rows() {
    return PlanParts.local(session, schema, Arrays.asList(rows));
  }

  /** The added rows, repeated by their number of copies, without the last column. */
  public Dataset<Row> addedRows() {
    int width = schema.size() - 1;
    UnsafeProjection project = projection(width);
    List<InternalRow> all = new ArrayList<>();
    for (InternalRow row : rows) {
      InternalRow result = row.getLong(width) > 0 ? project.apply(row).copy() : null;
      for (long copy = 0; copy < row.getLong(width); copy++) {
        all.add(result);
      }
    }
    return PlanParts.local(session, new StructType(Arrays.copyOf(schema.fields(), width)), all);
  }

  /**
   * The values of a column in the removed rows, as keys.
   *
   * @param name the name of the column in the table
   */
  public BatchKeys removedKeys(String column, String name) {
    int[] columns = {schema.fieldIndex(column)};
    UnsafeProjection project = BatchKeys.projection(schema, columns);
    List<InternalRow> keys = new ArrayList<>();
    for (InternalRow row : rows) {
      if (row.getLong(schema.size() - 1) < 0) {
        keys.add(project.apply(row).copy());
      }
    }
    StructType type = new StructType().add(schema.fields()[columns[0]]);
    return new BatchKeys(keys.toArray(new InternalRow[0]), type, List.of(name));
  }

  /** The number of removed copies. */
  public long removed() {
    return removed;
  }

  /** The number of added copies. */
  public long added() {
    return added;
  }

  /**
   * The column by which the removed rows are searched: the one with the most distinct values.
   *
   * @param partitions columns that are not searched
   * @return null if no column can be searched
   */
  public String keyColumn(List<String> partitions) {
    String best = null;
    int most = 0;
    for (int column = 0; column < schema.size() - 1; column++) {
      StructField field = schema.fields()[column];
      if (!PlanParts.isExact(field.dataType())
          || field.dataType() instanceof BinaryType
          || field.dataType() instanceof StructType
          || partitions.contains(field.name())) {
        continue;
      }
      Set<Object> values = new HashSet<>();
      for (InternalRow row : rows) {
        if (row.getLong(schema.size() - 1) < 0) {
          values.add(row.isNullAt(column) ? null : row.get(column, field.dataType()));
        }
      }
      if (values.size() > most) {
        most = values.size();
        best = field.name();
      }
    }
    return best;
  }
}
