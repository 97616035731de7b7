package penstock.formats;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionCodecFactory;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.csv.CSVOptions;
import org.apache.spark.sql.catalyst.csv.UnivocityParser;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.BadRecordException;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;

/**
 * Parses the lines of CSV files with Spark's parser and the header of each file.
 *
 * <p>A task reads a file, or a split of it, sequentially. The header is the first line of a file
 * that is neither blank nor a comment. For a split that does not start at the beginning of the
 * file, the header is read from the file separately.
 */
public final class CsvRecords implements Serializable {
  private static final long serialVersionUID = 1;
  private static final InternalRow NO_RECORD =
      new GenericInternalRow(new Object[] {false, null, null});

  private final StructType schema;
  private final HashMap<String, String> options;
  private final String timeZone;
  private final boolean isCaseSensitive;
  private final Pattern slow;
  private final SerializableConfiguration hadoop;
  private transient UnivocityParser parser;
  private transient UTF8String file;
  private transient long start;
  private transient boolean expectsHeader;
  private transient GenericArrayData header;

  private CsvRecords(
      StructType schema,
      Map<String, String> options,
      String timeZone,
      boolean isCaseSensitive,
      Pattern slow,
      SerializableConfiguration hadoop) {
    this.schema = schema;
    this.options = new HashMap<>(options);
    this.timeZone = timeZone;
    this.isCaseSensitive = isCaseSensitive;
    this.slow = slow;
    this.hadoop = hadoop;
  }

  /** The text in a query plan. */
  @Override
  public String toString() {
    return "CsvRecords(" + schema.json() + new TreeMap<>(options) + isCaseSensitive + slow + ")";
  }

  /**
   * A struct for each line of a file: {@code is_record}, false for a header, a comment or a blank
   * line; {@code header}, the column names of the file if they differ from the schema; and {@code
   * typed}, the columns if they do not.
   *
   * <p>{@code ddl} defines the columns; {@code options} are those of {@code from_csv}, with {@code
   * header}, {@code comment} and {@code encoding}. {@code typed} has an additional column named
   * {@code flaw}: the line, if it could not be parsed completely. If there is a DECIMAL column,
   * lines that match {@code slow} are not parsed.
   */
  public static Column parsed(
      SparkSession session,
      Column line,
      Column path,
      Column blockStart,
      String ddl,
      String flaw,
      Map<String, String> options,
      boolean isCaseSensitive,
      String slow) {
    StructType schema = RowFunction.schema(ddl);
    StructType result =
        new StructType()
            .add("is_record", DataTypes.BooleanType)
            .add("header", DataTypes.createArrayType(DataTypes.StringType))
            .add("typed", schema.add(flaw, DataTypes.StringType));
    boolean hasDecimal =
        Arrays.stream(schema.fields()).anyMatch(f -> f.dataType() instanceof DecimalType);
    Pattern pattern = hasDecimal ? Pattern.compile(slow) : null;
    String timeZone = session.sessionState().conf().sessionLocalTimeZone();
    SerializableConfiguration hadoop = hadoop(session);
    CsvRecords records =
        new CsvRecords(schema, options, timeZone, isCaseSensitive, pattern, hadoop);
    // Not deterministic for Spark: each line must be evaluated once, in the order of the file.
    return RowFunction.column(records, result, false, line, path, blockStart);
  }

  /**
   * The column names in the header of each file, which is opened on the driver; empty for a file
   * that has no record or cannot be read.
   */
  public static List<List<String>> headers(
      SparkSession session, List<String> files, Map<String, String> options) {
    SerializableConfiguration hadoop = hadoop(session);
    return files.parallelStream()
        .map(
            file -> {
              CsvRecords records =
                  new CsvRecords(new StructType(), options, "UTC", true, null, hadoop);
              records.open();
              try {
                String first = records.firstRecord(new Path(file));
                return first == null ? List.<String>of() : records.names(first);
              } catch (IOException e) {
                return List.<String>of();
              }
            })
        .toList();
  }

  private static SerializableConfiguration hadoop(SparkSession session) {
    return new SerializableConfiguration(session.sessionState().newHadoopConf());
  }

  /** The result for the next line of a file. Called by one task at a time. */
  public InternalRow evaluate(UTF8String line, UTF8String path, long blockStart) {
    if (parser == null) {
      open();
    }
    if (blockStart != start || !path.equals(file)) {
      begin(path.clone(), blockStart);
    }
    String text = line.toString();
    if (!isRecord(text)) {
      return NO_RECORD;
    }
    if (expectsHeader) {
      expectsHeader = false;
      setHeader(text);
      return NO_RECORD;
    }
    if (header != null || slow != null && slow.matcher(text).find()) {
      return new GenericInternalRow(new Object[] {true, header, null});
    }
    Object[] values = new Object[schema.length() + 1];
    try {
      copy(parse(text), values);
    } catch (BadRecordException e) {
      InternalRow partial = RowFunction.partial(e);
      if (partial != null) {
        copy(partial, values);
      }
      values[schema.length()] = line;
    }
    return new GenericInternalRow(new Object[] {true, null, new GenericInternalRow(values)});
  }

  private void copy(InternalRow row, Object[] values) {
    System.arraycopy(((GenericInternalRow) row).values(), 0, values, 0, schema.length());
  }

  // Scala methods do not declare checked exceptions, which Java requires to catch them.
  private InternalRow parse(String text) throws BadRecordException {
    return parser.parse().apply(text).get();
  }

  private void open() {
    CSVOptions parserOptions = new CSVOptions(RowFunction.map(options), true, timeZone, "");
    parser = new UnivocityParser(schema, parserOptions);
    start = -1;
  }

  private void begin(UTF8String path, long blockStart) {
    file = path;
    start = blockStart;
    header = null;
    expectsHeader = parser.options().headerFlag() && blockStart == 0;
    if (parser.options().headerFlag() && blockStart > 0) {
      try {
        setHeader(firstRecord(SparkPath.fromUrlString(path.toString()).toPath()));
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  /**
   * The first line of a file that is neither blank nor a comment; {@code null} if there is none.
   */
  private String firstRecord(Path path) throws IOException {
    CompressionCodec codec = new CompressionCodecFactory(hadoop.value()).getCodec(path);
    try (InputStream bytes = path.getFileSystem(hadoop.value()).open(path);
        InputStream content = codec == null ? bytes : codec.createInputStream(bytes);
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(content, parser.options().charset()))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String text = line.startsWith("\uFEFF") ? line.substring(1) : line;
        if (isRecord(text)) {
          return text;
        }
      }
    }
    return null;
  }

  private boolean isRecord(String text) {
    int first = 0;
    while (first < text.length() && " \t\r\n".indexOf(text.charAt(first)) >= 0) {
      first++;
    }
    char comment = parser.options().comment();
    return first < text.length() && (comment == 0 || text.charAt(first) != comment);
  }

  /** Stores the names of a header if they differ from the schema. */
  private void setHeader(String text) {
    List<String> names = isCaseSensitive ? names(text) : respelled(names(text));
    if (!names.equals(List.of(schema.fieldNames()))) {
      header = new GenericArrayData(names.stream().map(UTF8String::fromString).toArray());
    }
  }

  /** The column names that Spark's reader derives from a header. */
  private List<String> names(String text) {
    List<String> names = new ArrayList<>();
    for (String token : parser.tokenizer().parseLine(text)) {
      boolean isNull = token == null || token.equals(parser.options().nullValue());
      names.add(isNull ? "" : UTF8String.fromString(token).trim().toString());
    }
    List<String> distinct = new ArrayList<>();
    for (int i = 0; i < names.size(); i++) {
      String name = names.get(i);
      boolean isRepeated = Collections.frequency(names, name) > 1;
      distinct.add(name.isEmpty() ? "_c" + i : isRepeated ? name + i : name);
    }
    return distinct;
  }

  private List<String> respelled(List<String> names) {
    List<String> lower = names.stream().map(name -> name.toLowerCase(Locale.ROOT)).toList();
    Map<String, String> spellings = new HashMap<>();
    for (String column : schema.fieldNames()) {
      spellings.put(column.toLowerCase(Locale.ROOT), column);
    }
    List<String> spelled = new ArrayList<>();
    for (int i = 0; i < names.size(); i++) {
      boolean isAlone = Collections.frequency(lower, lower.get(i)) == 1;
      spelled.add(isAlone ? spellings.getOrDefault(lower.get(i), names.get(i)) : names.get(i));
    }
    return spelled;
  }
}
