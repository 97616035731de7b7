package penstock.formats;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.util.JsonParserDelegate;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.json.JSONOptions;
import org.apache.spark.sql.catalyst.json.JacksonParser;
import org.apache.spark.sql.catalyst.util.BadRecordException;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Parses JSON records as Spark's file reader does, and checks whether the columns contain them
 * completely: no error, no key that is not in the schema, no duplicate key, nothing after the
 * object.
 *
 * <p>Both are done in one pass: Spark's parser reads the tokens through {@link CheckedTokens}.
 */
public final class JsonRecords implements Serializable {
  private static final long serialVersionUID = 1;

  private final StructType schema;
  private final HashMap<String, String> options;
  private final String timeZone;
  private final boolean checksDecimals;
  private transient JacksonParser parser;
  private transient CheckedTokens tokens;
  private transient ArrayList<Keys> keys;
  private transient Set<String> decimals;
  private transient int leastWhole;
  private transient int leastScale;

  private JsonRecords(
      StructType schema, Map<String, String> options, String timeZone, boolean checksDecimals) {
    this.schema = schema;
    this.options = new HashMap<>(options);
    this.timeZone = timeZone;
    this.checksDecimals = checksDecimals;
  }

  /** The text in a query plan. */
  @Override
  public String toString() {
    return "JsonRecords(" + schema.json() + new TreeMap<>(options) + checksDecimals + ")";
  }

  /**
   * A struct of {@code typed}, {@code is_complete} and {@code is_flawed} for a column of records.
   *
   * <p>{@code ddl} defines the columns; {@code options} are those of {@code from_json}. With {@code
   * checksDecimals}, a record is not complete if a number may have more digits than its DECIMAL
   * column.
   */
  public static Column parsed(
      SparkSession session,
      Column text,
      String ddl,
      Map<String, String> options,
      boolean checksDecimals) {
    StructType schema = RowFunction.schema(ddl);
    StructType result =
        new StructType()
            .add("typed", schema)
            .add("is_complete", DataTypes.BooleanType)
            .add("is_flawed", DataTypes.BooleanType);
    String timeZone = session.sessionState().conf().sessionLocalTimeZone();
    JsonRecords records = new JsonRecords(schema, options, timeZone, checksDecimals);
    return RowFunction.column(records, result, true, text);
  }

  /** The result for one record. Called by one task at a time. */
  public InternalRow evaluate(UTF8String text) {
    if (parser == null) {
      open();
    }
    InternalRow row = null;
    boolean isFlawed = false;
    try {
      row = parse(text);
      isFlawed = row == null;
    } catch (BadRecordException e) {
      if (!text.isValid()) {
        return evaluate(text.makeValid());
      }
      isFlawed = true;
      InternalRow partial = RowFunction.partial(e);
      row = partial == null ? new GenericInternalRow(schema.length()) : partial;
    }
    return new GenericInternalRow(new Object[] {row, !isFlawed && tokens.isComplete, isFlawed});
  }

  // Scala methods do not declare checked exceptions, which Java requires to catch them.
  private InternalRow parse(UTF8String text) throws BadRecordException {
    scala.collection.Iterable<InternalRow> rows =
        parser.parse(text.getBytes(), this::open, bytes -> text);
    return rows.isEmpty() ? null : rows.head();
  }

  private void open() {
    JSONOptions parserOptions = new JSONOptions(RowFunction.map(options), timeZone, "");
    keys = new ArrayList<>();
    decimals = new HashSet<>();
    leastWhole = Integer.MAX_VALUE;
    leastScale = Integer.MAX_VALUE;
    if (checksDecimals) {
      findDecimals(schema, null);
    }
    parser = new JacksonParser(schema, parserOptions, false, RowFunction.seq(List.<Filter>of()));
  }

  private void findDecimals(DataType type, String name) {
    if (type instanceof DecimalType decimal) {
      decimals.add(name);
      leastWhole = Math.min(leastWhole, decimal.precision() - decimal.scale());
      leastScale = Math.min(leastScale, decimal.scale());
    } else if (type instanceof ArrayType array) {
      // The parser has no field name at the elements of an array.
      findDecimals(array.elementType(), null);
    } else if (type instanceof MapType map) {
      findDecimals(map.valueType(), null);
    } else if (type instanceof StructType struct) {
      for (StructField field : struct.fields()) {
        findDecimals(field.dataType(), field.name());
      }
    }
  }

  private JsonParser open(JsonFactory factory, byte[] bytes) {
    try {
      tokens = new CheckedTokens(factory.createParser(bytes));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return tokens;
  }

  /** The keys of an object. */
  private static final class Keys {
    private static final int FEW = 16;
    private final String[] first = new String[FEW];
    private final Set<String> others = new HashSet<>();
    private int count;

    void clear() {
      if (count > FEW) {
        others.clear();
      }
      count = 0;
    }

    boolean add(String key) {
      // Jackson returns the same string for equal keys, so comparing a few of them is fast.
      for (int i = 0; i < Math.min(count, FEW); i++) {
        if (first[i].equals(key)) {
          return false;
        }
      }
      if (count < FEW) {
        first[count++] = key;
        return true;
      }
      count++;
      return others.add(key);
    }
  }

  private final class CheckedTokens extends JsonParserDelegate {
    private boolean isComplete = true;
    private int depth = -1;

    CheckedTokens(JsonParser parser) {
      super(parser);
    }

    @Override
    public JsonToken nextToken() throws IOException {
      JsonToken token = delegate.nextToken();
      if (token == JsonToken.FIELD_NAME) {
        isComplete &= keys.get(depth).add(delegate.currentName());
      } else if (token == JsonToken.START_OBJECT) {
        depth++;
        if (depth == keys.size()) {
          keys.add(new Keys());
        }
        keys.get(depth).clear();
      } else if (token == JsonToken.END_OBJECT) {
        depth--;
      }
      return token;
    }

    /**
     * Called at a field name that is not in the schema, or at an object that a STRING column
     * stores.
     */
    @Override
    public JsonParser skipChildren() throws IOException {
      JsonToken token = delegate.currentToken();
      if (token == JsonToken.FIELD_NAME) {
        isComplete = false;
      } else if (token == JsonToken.START_OBJECT) {
        depth--;
      }
      delegate.skipChildren();
      return this;
    }

    @Override
    public BigDecimal getDecimalValue() throws IOException {
      BigDecimal value = delegate.getDecimalValue();
      if (value.scale() > leastScale || value.precision() - value.scale() > leastWhole) {
        isComplete = false;
      }
      return value;
    }

    @Override
    public String getText() throws IOException {
      if (checksDecimals && decimals.contains(delegate.currentName())) {
        isComplete = false;
      }
      return delegate.getText();
    }

    @Override
    public void close() throws IOException {
      try {
        isComplete &= delegate.nextToken() == null;
      } catch (IOException e) {
        isComplete = false;
      }
      super.close();
    }
  }
}
