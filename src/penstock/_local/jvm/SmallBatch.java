package penstock.delta;

import com.esotericsoftware.kryo.DefaultSerializer;
import com.esotericsoftware.kryo.serializers.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** The rows of a query on the driver if they are few, and their number, from one job. */
public final class SmallBatch {
  private final StructType schema;
  private final List<UnsafeRow> rows = new ArrayList<>();
  private boolean isComplete = true;
  private long count;

  /**
   * Runs the query.
   *
   * @param most the bytes that the rows may have; each task returns an equal part at most
   */
  public SmallBatch(Dataset<Row> query, long most) {
    this.schema = query.schema();
    JavaRDD<InternalRow> tasks = query.queryExecution().toRdd().toJavaRDD();
    long ofTask = most / Math.max(1, tasks.getNumPartitions());
    for (Part part : tasks.mapPartitions(new Collect(ofTask)).collect()) {
      count += part.count;
      isComplete &= part.rows != null;
      if (isComplete) {
        rows.addAll(part.rows);
      }
    }
  }

  /** The number of rows. */
  public long count() {
    return count;
  }

  /** The rows, as a query without a job; null if they are too many. */
  public Dataset<Row> rows(SparkSession session) {
    return isComplete ? PlanParts.local(session, schema, rows) : null;
  }

  /**
   * The number of rows by the values of some columns, if they are few: JSON arrays of the values
   * and the number.
   *
   * @param names columns with integers, or strings without special characters
   */
  public String histogram(List<String> names) {
    Map<String, Integer> counts = new LinkedHashMap<>();
    for (UnsafeRow row : rows) {
      StringBuilder values = new StringBuilder();
      for (String name : names) {
        int at = schema.fieldIndex(name);
        Object value = row.isNullAt(at) ? null : row.get(at, schema.fields()[at].dataType());
        values.append(value instanceof UTF8String ? "\"" + value + "\"" : value).append(',');
      }
      counts.merge(values.toString(), 1, Integer::sum);
    }
    return counts.entrySet().stream()
        .map(entry -> "[" + entry.getKey() + entry.getValue() + "]")
        .collect(Collectors.joining(",", "[", "]"));
  }

  /** The rows of a task; null if they have too many bytes. Kryo cannot serialize records. */
  @DefaultSerializer(JavaSerializer.class)
  private record Part(long count, List<UnsafeRow> rows) implements Serializable {}

  private static final class Collect implements FlatMapFunction<Iterator<InternalRow>, Part> {
    private static final long serialVersionUID = 1L;

    private final long most;

    Collect(long most) {
      this.most = most;
    }

    @Override
    public Iterator<Part> call(Iterator<InternalRow> task) {
      List<UnsafeRow> rows = new ArrayList<>();
      long count = 0;
      long bytes = 0;
      while (task.hasNext()) {
        UnsafeRow row = (UnsafeRow) task.next();
        count++;
        bytes += row.getSizeInBytes();
        if (bytes > most) {
          rows = null;
        } else {
          rows.add(row.copy());
        }
      }
      return List.of(new Part(count, rows)).iterator();
    }
  }
}
