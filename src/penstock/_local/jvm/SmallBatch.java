package penstock.delta;

import com.esotericsoftware.kryo.DefaultSerializer;
import com.esotericsoftware.kryo.serializers.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Collects the rows of a query to the driver if they are few, and counts them, in one job. */
public final class SmallBatch {
  private final StructType schema;
  private final List<InternalRow> rows = new ArrayList<>();
  private final Map<String, Long> counts = new HashMap<>();
  private boolean isComplete = true;

  /**
   * Runs the query.
   *
   * @param most the maximum size of the rows in bytes; each task returns at most an equal share
   * @param counted columns by whose values the rows are counted: integers, or strings without
   *     special characters
   */
  public SmallBatch(Dataset<Row> query, long most, List<String> counted) {
    this.schema = query.schema();
    JavaRDD<InternalRow> tasks = query.queryExecution().toRdd().toJavaRDD();
    long ofTask = most / Math.max(1, tasks.getNumPartitions());
    int[] columns = counted.stream().mapToInt(schema::fieldIndex).toArray();
    for (Part part : tasks.mapPartitions(new Collect(ofTask, schema, columns)).collect()) {
      part.counts.forEach((values, count) -> counts.merge(values, count, Long::sum));
      isComplete &= part.rows != null;
      if (isComplete) {
        part.rows.forEach(rows::add);
      }
    }
  }

  /**
   * The number of rows by values of the counted columns: JSON arrays of the values and the number.
   */
  public String counts() {
    return counts.entrySet().stream()
        .map(entry -> "[" + entry.getKey() + entry.getValue() + "]")
        .collect(Collectors.joining(",", "[", "]"));
  }

  /** The rows as a DataFrame; null if there are too many. */
  public Dataset<Row> rows(SparkSession session) {
    return isComplete ? PlanParts.local(session, schema, rows) : null;
  }

  /**
   * The rows of a task, null if they are too large, and the number of all its rows by values. Kryo
   * cannot serialize records.
   */
  @DefaultSerializer(JavaSerializer.class)
  private record Part(Map<String, Long> counts, PackedRows rows) implements Serializable {}

  private static final class Collect implements FlatMapFunction<Iterator<InternalRow>, Part> {
    private static final long serialVersionUID = 1L;

    private final long most;
    private final StructType schema;
    private final int[] columns;

    Collect(long most, StructType schema, int[] columns) {
      this.most = most;
      this.schema = schema;
      this.columns = columns;
    }

    @Override
    public Iterator<Part> call(Iterator<InternalRow> task) {
      UnsafeProjection values = BatchKeys.projection(schema, columns);
      Map<UnsafeRow, long[]> counts = new HashMap<>();
      PackedRows rows = new PackedRows(schema.size());
      while (task.hasNext()) {
        UnsafeRow row = (UnsafeRow) task.next();
        UnsafeRow key = values.apply(row);
        long[] count = counts.get(key);
        if (count == null) {
          count = new long[1];
          counts.put(key.copy(), count);
        }
        count[0]++;
        if (rows != null) {
          rows.add(row);
          rows = rows.bytes() > most ? null : rows;
        }
      }
      Map<String, Long> texts = new HashMap<>();
      counts.forEach((key, count) -> texts.put(text(key), count[0]));
      return List.of(new Part(texts, rows)).iterator();
    }

    /** The values as JSON, with a comma after each. */
    private String text(UnsafeRow key) {
      StringBuilder text = new StringBuilder();
      for (int at = 0; at < columns.length; at++) {
        DataType type = schema.fields()[columns[at]].dataType();
        Object value = key.isNullAt(at) ? null : key.get(at, type);
        text.append(value instanceof UTF8String ? "\"" + value + "\"" : value).append(',');
      }
      return text.toString();
    }
  }
}
