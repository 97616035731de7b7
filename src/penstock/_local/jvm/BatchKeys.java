package penstock.delta;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The keys of a batch, collected to the driver.
 *
 * <p>Keys are compared as bytes of an {@code UnsafeRow}, in which NULL equals NULL. Therefore,
 * their types must have one representation per value: no floating-point numbers and no collations.
 */
public final class BatchKeys {
  final InternalRow[] rows;
  final StructType schema;
  final List<String> columns;
  private Set<UnsafeRow> distinct;

  /**
   * Runs the query {@code rows}, which may return a key several times.
   *
   * @param rows the keys, followed by the string values of the keys that are partition columns
   * @param columns the key columns of the table
   */
  public BatchKeys(Dataset<Row> rows, List<String> columns) {
    this(rows.queryExecution().executedPlan().executeCollect(), rows.schema(), columns);
  }

  BatchKeys(InternalRow[] rows, StructType schema, List<String> columns) {
    this.rows = rows;
    this.schema = schema;
    this.columns = List.copyOf(columns);
  }

  /** The number of distinct keys. */
  public int distinct() {
    return distinctRows().size();
  }

  /** The distinct keys as a DataFrame of rows on the driver. */
  public Dataset<Row> frame(SparkSession session) {
    StructType keys = new StructType(Arrays.copyOf(schema.fields(), columns.size()));
    return PlanParts.local(session, keys, distinctRows());
  }

  private Set<UnsafeRow> distinctRows() {
    if (distinct != null) {
      return distinct;
    }
    UnsafeProjection project = projection(schema, IntStream.range(0, columns.size()).toArray());
    Set<UnsafeRow> keys = new HashSet<>();
    for (InternalRow row : rows) {
      keys.add(project.apply(row).copy());
    }
    distinct = keys;
    return keys;
  }

  /** The keys, grouped by the string values of their partition. */
  Map<List<String>, Group> groups(int[] columns, int[] partitions) {
    Map<List<String>, List<InternalRow>> keys = new HashMap<>();
    for (InternalRow row : rows) {
      List<String> partition = new ArrayList<>(partitions.length);
      for (int column : partitions) {
        partition.add(row.isNullAt(column) ? null : row.getUTF8String(column).toString());
      }
      keys.computeIfAbsent(partition, p -> new ArrayList<>()).add(row);
    }
    Map<List<String>, Group> groups = new HashMap<>();
    keys.forEach((partition, list) -> groups.put(partition, new Group(list, schema, columns)));
    return groups;
  }

  static UnsafeProjection projection(StructType schema, int[] columns) {
    List<Expression> values = new ArrayList<>();
    for (int column : columns) {
      values.add(new BoundReference(column, schema.fields()[column].dataType(), true));
    }
    return UnsafeProjection.create(CollectionConverters.asScala(values).toSeq());
  }

  /** The keys that a file may contain. */
  static final class Group implements Serializable {
    private static final long serialVersionUID = 1L;

    // Null if the key is a single numeric column.
    private final HashSet<UnsafeRow> keys;
    private final First first;
    private final boolean hasNull;
    private final long[] numbers;
    // A bitmap of the hashes of the numbers, which excludes most rows without a binary search.
    private final long[] bits;
    private final HashSet<UTF8String> strings = new HashSet<>();

    Group(List<InternalRow> rows, StructType schema, int[] columns) {
      int column = columns[0];
      this.first = First.of(schema.fields()[column].dataType());
      this.keys = columns.length == 1 && first.isNumber() ? null : new HashSet<>();
      UnsafeProjection project = projection(schema, columns);
      long[] values = new long[rows.size()];
      int count = 0;
      boolean isNull = false;
      for (InternalRow row : rows) {
        if (keys != null) {
          keys.add(project.apply(row).copy());
        }
        if (row.isNullAt(column)) {
          isNull = true;
        } else if (first == First.STRING) {
          strings.add(row.getUTF8String(column).copy());
        } else if (first.isNumber()) {
          values[count++] = first.number(row, column);
        }
      }
      this.hasNull = isNull;
      this.numbers = Arrays.copyOf(values, count);
      Arrays.sort(numbers);
      this.bits = new long[Math.max(1, Integer.highestOneBit(count))];
      for (long number : numbers) {
        int hash = hash(number);
        bits[hash >>> 6 & bits.length - 1] |= 1L << hash;
      }
    }

    private static int hash(long number) {
      return (int) (number * 0x9E3779B97F4A7C15L >>> 32);
    }

    /**
     * Whether a row has one of the keys.
     *
     * @param holder the row or struct with the first key column, at {@code column}
     * @param key the key of the row
     */
    boolean has(InternalRow holder, int column, InternalRow row, UnsafeProjection key) {
      return mayHave(holder, column) && (keys == null || keys.contains(key.apply(row)));
    }

    private boolean mayHave(InternalRow row, int column) {
      if (first == First.OTHER) {
        return true;
      }
      if (row.isNullAt(column)) {
        return hasNull;
      }
      if (first == First.STRING) {
        return strings.contains(row.getUTF8String(column));
      }
      long number = first.number(row, column);
      int hash = hash(number);
      boolean mayBe = (bits[hash >>> 6 & bits.length - 1] & 1L << hash) != 0;
      return mayBe && Arrays.binarySearch(numbers, number) >= 0;
    }

    /** Whether the first column of a key may be within the bounds. */
    boolean overlaps(long min, long max) {
      if (hasNull || !first.isNumber()) {
        return true;
      }
      int at = Arrays.binarySearch(numbers, min);
      int next = at >= 0 ? at : -at - 1;
      return next < numbers.length && numbers[next] <= max;
    }

    /** The minimum and maximum of the first key column; null if it has NULL or no integers. */
    long[] bounds() {
      boolean isBounded = first.isInteger && !hasNull && numbers.length > 0;
      return isBounded ? new long[] {numbers[0], numbers[numbers.length - 1]} : null;
    }
  }

  /** How values of the first key column are compared. */
  enum First {
    LONG(true),
    INT(true),
    SHORT(true),
    BYTE(true),
    TIME(false),
    DAY(false),
    STRING(false),
    OTHER(false);

    final boolean isInteger;

    First(boolean isInteger) {
      this.isInteger = isInteger;
    }

    static First of(DataType type) {
      if (type instanceof LongType) {
        return LONG;
      } else if (type instanceof IntegerType) {
        return INT;
      } else if (type instanceof ShortType) {
        return SHORT;
      } else if (type instanceof ByteType) {
        return BYTE;
      } else if (type instanceof TimestampType || type instanceof TimestampNTZType) {
        return TIME;
      } else if (type instanceof DateType) {
        return DAY;
      }
      return type instanceof StringType ? STRING : OTHER;
    }

    boolean isNumber() {
      return this != STRING && this != OTHER;
    }

    long number(InternalRow row, int column) {
      return switch (this) {
        case LONG, TIME -> row.getLong(column);
        case INT, DAY -> row.getInt(column);
        case SHORT -> row.getShort(column);
        case BYTE -> row.getByte(column);
        default -> throw new IllegalStateException();
      };
    }
  }
}
