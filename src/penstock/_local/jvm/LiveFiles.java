package penstock.delta;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.UninitializedCheckpointProvider;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.RemoveFile;
import org.apache.spark.sql.delta.util.FileNames;
import org.apache.spark.sql.delta.util.JsonUtils;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The files of a table, cached between the batches of a writer.
 *
 * <p>Delta computes the files of each new version from its log with a Spark job. This class applies
 * the commits since the last cached version, or since a checkpoint, to the files of that version.
 * Delta computes the files only if commits are missing or there are too many commits.
 */
public final class LiveFiles {
  private static final int MOST_COMMITS = 100;
  private static final long MOST_CHECKPOINT_BYTES = 16L << 20;
  private static final Pattern CHECKPOINT =
      Pattern.compile("\\d+\\.checkpoint(\\.\\d+\\.\\d+)?\\.parquet");
  private static final StructType ADDED =
      StructType.fromDDL(
          "add STRUCT<path STRING, partitionValues MAP<STRING, STRING>, size BIGINT,"
              + " modificationTime BIGINT, dataChange BOOLEAN, stats STRING,"
              + " tags MAP<STRING, STRING>, deletionVector STRUCT<storageType STRING,"
              + " pathOrInlineDv STRING, offset INT, sizeInBytes INT, cardinality BIGINT,"
              + " maxRowIndex BIGINT>,"
              + " baseRowId BIGINT, defaultRowCommitVersion BIGINT, clusteringProvider STRING>");

  private final DeltaLog log;
  private final Configuration conf;
  private final Map<String, AddFile> files = new LinkedHashMap<>();
  private String table = "";
  private long version = -1;

  public LiveFiles(DeltaLog log) {
    this.log = log;
    this.conf = log.newDeltaHadoopConf();
  }

  /** The files of a version. */
  public synchronized List<AddFile> at(Snapshot snapshot) {
    update(snapshot);
    return new ArrayList<>(files.values());
  }

  /** The files of a version as a Scala sequence. */
  public Seq<AddFile> all(Snapshot snapshot) {
    return CollectionConverters.asScala(at(snapshot)).toSeq();
  }

  /** The files of a version; empty if Delta must compute them or report the error. */
  public synchronized Optional<List<AddFile>> withoutQuery(Snapshot snapshot) {
    try {
      return read(snapshot) ? Optional.of(new ArrayList<>(files.values())) : Optional.empty();
    } catch (Exception error) {
      return Optional.empty();
    }
  }

  /** The size of all files of a version in bytes. */
  public long bytes(Snapshot snapshot) {
    return at(snapshot).stream().mapToLong(AddFile::size).sum();
  }

  /** The removals of all files of a version. */
  public Seq<RemoveFile> removals(Snapshot snapshot) {
    List<RemoveFile> removed = at(snapshot).stream().map(AddFile::remove).toList();
    return CollectionConverters.asScala(removed).toSeq();
  }

  private void update(Snapshot snapshot) {
    if (!read(snapshot)) {
      files.clear();
      Arrays.stream((AddFile[]) snapshot.allFiles().collect()).forEach(this::add);
      table = snapshot.metadata().id();
      version = snapshot.version();
    }
  }

  private boolean read(Snapshot snapshot) {
    long newest = snapshot.version();
    String id = snapshot.metadata().id();
    if (!id.equals(table) || version > newest || newest - version > MOST_COMMITS) {
      files.clear();
      version = readCheckpoint(snapshot);
    }
    table = ""; // After a failure here, the next call reads the checkpoint.
    if (newest - version > MOST_COMMITS || !applied(version + 1, newest)) {
      return false;
    }
    table = id;
    version = newest;
    return true;
  }

  private void add(AddFile file) {
    files.put(identity(file), file);
  }

  /**
   * Reads the checkpoint of a snapshot if it is small. Returns its version, or -1 if it is not
   * read.
   */
  private long readCheckpoint(Snapshot snapshot) {
    UninitializedCheckpointProvider checkpoint = snapshot.logSegment().checkpointProvider();
    List<FileStatus> parts = CollectionConverters.asJava(checkpoint.topLevelFiles());
    boolean isPlain =
        parts.stream().allMatch(part -> CHECKPOINT.matcher(part.getPath().getName()).matches())
            && parts.stream().mapToLong(FileStatus::getLen).sum() <= MOST_CHECKPOINT_BYTES
            && !snapshot.protocol().readerAndWriterFeatureNames().contains("v2Checkpoint")
            && !snapshot
                .metadata()
                .configuration()
                .getOrElse("delta.checkpoint.writeStatsAsJson", () -> "true")
                .equalsIgnoreCase("false");
    if (checkpoint.isEmpty() || !isPlain) {
      return -1;
    }
    try {
      parts.forEach(this::readPart);
    } catch (Exception error) {
      files.clear();
      return -1; // Delta retries, or fails with a better message.
    }
    return checkpoint.version();
  }

  private void readPart(FileStatus part) {
    var reader = ParquetParts.reader(SparkSession.active(), log, ADDED, List.of());
    String uri = part.getPath().toUri().toString();
    var rows = new ParquetParts.Part(0, uri, 0, part.getLen(), part.getLen()).read(reader);
    while (rows.hasNext()) {
      InternalRow row = rows.next();
      if (!row.isNullAt(0)) {
        JsonNode content = json(row, 0, ADDED.fields()[0].dataType());
        add(JsonUtils.mapper().convertValue(content, AddFile.class));
      }
    }
  }

  private static JsonNode json(SpecializedGetters from, int at, DataType type) {
    JsonNodeFactory values = JsonNodeFactory.instance;
    if (from.isNullAt(at)) {
      return values.nullNode();
    }
    ObjectNode object = values.objectNode();
    if (type instanceof StructType struct) {
      InternalRow row = from.getStruct(at, struct.size());
      for (int field = 0; field < struct.size(); field++) {
        StructField each = struct.fields()[field];
        object.set(each.name(), json(row, field, each.dataType()));
      }
      return object;
    } else if (type instanceof MapType map) {
      MapData pairs = from.getMap(at);
      for (int pair = 0; pair < pairs.numElements(); pair++) {
        String key = pairs.keyArray().getUTF8String(pair).toString();
        object.set(key, json(pairs.valueArray(), pair, map.valueType()));
      }
      return object;
    } else if (type instanceof LongType) {
      return values.numberNode(from.getLong(at));
    } else if (type instanceof IntegerType) {
      return values.numberNode(from.getInt(at));
    } else if (type instanceof BooleanType) {
      return values.booleanNode(from.getBoolean(at));
    }
    return values.textNode(from.getUTF8String(at).toString());
  }

  /** Applies the commits of a range of versions; false if a commit is missing. */
  private boolean applied(long first, long last) {
    for (long at = first; at <= last; at++) {
      Seq<String> lines;
      try {
        lines = log.store().read(FileNames.unsafeDeltaFile(log.logPath(), at), conf);
      } catch (Exception error) {
        if (error instanceof FileNotFoundException) {
          return false;
        }
        throw error;
      }
      List<AddFile> added = new ArrayList<>();
      // In a commit, a file that is removed with one deletion vector may be added with another.
      for (String line : CollectionConverters.asJava(lines)) {
        Action action = Action.fromJson(line);
        if (action instanceof RemoveFile file) {
          files.remove(identity(file.pathAsUri(), file.getDeletionVectorUniqueId()));
        } else if (action instanceof AddFile file) {
          added.add(file);
        }
      }
      added.forEach(this::add);
    }
    return true;
  }

  /** The identity of a file of a table and its deletion vector. */
  static String identity(AddFile file) {
    return identity(file.pathAsUri(), file.getDeletionVectorUniqueId());
  }

  private static String identity(Object path, Option<String> vector) {
    return vector.isEmpty() ? path.toString() : path + "\n" + vector.get();
  }
}
