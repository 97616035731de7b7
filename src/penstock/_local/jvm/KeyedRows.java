package penstock.delta;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.IntStream;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.RemoveFile;
import org.apache.spark.sql.delta.commands.DeletionVectorWriter;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat;
import org.apache.spark.sql.delta.deletionvectors.StoredBitmap;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore$;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStoreUtils;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The rows of a table with given keys, to be deleted in a transaction.
 *
 * <p>They are deleted by deletion vectors, or by removing their files and rewriting the other rows.
 */
public final class KeyedRows {
  // If a partition has at least this many small files, they are merged with the new rows.
  private static final int SMALL_FILES = 16;
  private static final long SMALL_BYTES = 4L << 20;
  // Files up to this size are merged if most of their rows are deleted.
  private static final long SPARSE_BYTES = 32L << 20;

  private final DeltaLog log;
  private final DeletionVectorStore store;
  private final List<AddFile> live;
  private final Map<AddFile, RoaringBitmapArray> positions = new HashMap<>();
  private final List<FileAction> actions = new ArrayList<>();
  private final List<AddFile> merged = new ArrayList<>();
  private final List<InternalRow> rows = new ArrayList<>();
  private final StructType columns;

  /**
   * Searches the table; the transaction conflicts with every concurrent change of it.
   *
   * @param keys the keys, with at least one column that is not a partition column
   * @param returnsRows whether {@link #rows} is called; false for a table with partition columns
   */
  public KeyedRows(
      SparkSession session,
      OptimisticTransaction transaction,
      LiveFiles files,
      BatchKeys keys,
      boolean returnsRows)
      throws IOException {
    List<String> names = keys.columns;
    this.log = transaction.deltaLog();
    this.store = DeletionVectorStore$.MODULE$.createInstance(log.newDeltaHadoopConf());
    Snapshot snapshot = transaction.snapshot();
    transaction.readWholeTable();
    this.live = files.at(snapshot);
    Set<String> partitioned =
        new HashSet<>(CollectionConverters.asJava(snapshot.metadata().partitionColumns()));
    StructType schema = new StructType();
    List<Integer> data = new ArrayList<>();
    List<Integer> texts = new ArrayList<>();
    List<String> partitions = new ArrayList<>();
    for (int key = 0; key < names.size(); key++) {
      if (partitioned.contains(names.get(key))) {
        texts.add(names.size() + partitions.size());
        partitions.add(physical(snapshot, names.get(key)));
      } else {
        data.add(key);
        schema = schema.add(snapshot.schema().apply(names.get(key)));
      }
    }
    if (returnsRows) {
      for (StructField field : snapshot.schema().fields()) {
        schema = names.contains(field.name()) ? schema : schema.add(field);
      }
    }
    this.columns = schema;
    Map<List<String>, BatchKeys.Group> groups = keys.groups(array(data), array(texts));
    List<KeySearch.Candidate> candidates = new ArrayList<>();
    for (AddFile file : live) {
      List<String> values = new ArrayList<>();
      for (String partition : partitions) {
        values.add(file.partitionValues().getOrElse(partition, () -> null));
      }
      if (groups.containsKey(values)) {
        candidates.add(new KeySearch.Candidate(file, groups.get(values)));
      }
    }
    int[] all = IntStream.range(0, data.size()).toArray();
    KeySearch search = new KeySearch(session, log, snapshot, schema, -1, all, returnsRows);
    for (KeySearch.Hits hits : search.search(candidates)) {
      AddFile file = candidates.get(hits.file).file();
      if (returnsRows) {
        rows.addAll(hits.liveRows(file, log, store));
      }
      RoaringBitmapArray bitmap = positions.computeIfAbsent(file, f -> new RoaringBitmapArray());
      for (int hit = 0; hit < hits.count; hit++) {
        bitmap.add(hits.positions[hit]);
      }
    }
  }

  private static String physical(Snapshot snapshot, String column) {
    return DeltaColumnMapping.getPhysicalName(snapshot.schema().apply(column));
  }

  private static int[] array(List<Integer> values) {
    return values.stream().mapToInt(Integer::intValue).toArray();
  }

  /** The rows, collected to the driver. */
  public Dataset<Row> rows(org.apache.spark.sql.classic.SparkSession session) {
    return PlanParts.local(session, columns, rows);
  }

  /** The number of rows, without rows that are already deleted. */
  public long count() throws IOException {
    long count = 0;
    for (Map.Entry<AddFile, RoaringBitmapArray> hit : positions.entrySet()) {
      DeletionVectorDescriptor vector = hit.getKey().deletionVector();
      count += hit.getValue().cardinality();
      if (vector != null) {
        RoaringBitmapArray deleted = StoredBitmap.create(vector, log.dataPath()).load(store);
        deleted.and(hit.getValue());
        count -= deleted.cardinality();
      }
    }
    return count;
  }

  /**
   * Whether the statistics of files with such rows have row counts, which deletion vectors require.
   */
  public boolean hasCounts() {
    return positions.keySet().stream().allMatch(file -> file.numPhysicalRecords().isDefined());
  }

  /** The files with a row to be deleted. */
  public Seq<AddFile> files() {
    return CollectionConverters.asScala(new ArrayList<>(positions.keySet())).toSeq();
  }

  /** The size of these files in bytes. */
  public long bytes() {
    return positions.keySet().stream().mapToLong(AddFile::size).sum();
  }

  /** The removals of these files. */
  public Seq<FileAction> removals() {
    List<FileAction> removed = new ArrayList<>();
    positions.keySet().forEach(file -> removed.add(file.remove()));
    return CollectionConverters.asScala(removed).toSeq();
  }

  /**
   * Writes deletion vectors, and chooses the files whose rows are merged with the new rows.
   *
   * @param merges whether small files without a deleted row may be merged
   * @return the actions to commit
   */
  public Seq<FileAction> mark(boolean merges) throws IOException {
    Map<AddFile, AddFile> marked = new HashMap<>();
    Set<AddFile> gone = new HashSet<>();
    DeletionVectorStoreUtils.Writer writer = null;
    UUID id = null;
    try {
      for (Map.Entry<AddFile, RoaringBitmapArray> hit : positions.entrySet()) {
        AddFile file = hit.getKey();
        RoaringBitmapArray bitmap = hit.getValue();
        if (file.deletionVector() != null) {
          bitmap.merge(StoredBitmap.create(file.deletionVector(), log.dataPath()).load(store));
          if (bitmap.cardinality() == file.deletionVector().cardinality()) {
            continue; // All of these rows are deleted already.
          }
        }
        if (bitmap.cardinality() == (Long) file.numPhysicalRecords().get()) {
          actions.add(file.remove());
          gone.add(file);
          continue;
        }
        if (writer == null) {
          Tuple2<DeletionVectorStoreUtils.Writer, UUID> opened =
              DeletionVectorWriter.createWriter(
                  store, store.pathWithFileSystem(log.dataPath()), "");
          writer = opened._1();
          id = opened._2();
        }
        bitmap.runOptimize();
        byte[] bytes = bitmap.serializeAsByteArray(RoaringBitmapArrayFormat.Portable());
        DeletionVectorStoreUtils.DVRangeDescriptor range = writer.write(bytes);
        DeletionVectorDescriptor vector =
            DeletionVectorDescriptor.onDiskWithRelativePath(
                id,
                "",
                bytes.length,
                bitmap.cardinality(),
                Option.apply(range.offset()),
                Option.empty());
        Tuple2<AddFile, RemoveFile> pair = file.removeRows(vector, true, true);
        marked.put(file, pair._1());
      }
    } finally {
      if (writer != null) {
        writer.close();
      }
    }
    Set<AddFile> chosen = merges ? filesToMerge(marked, gone) : Set.of();
    for (AddFile file : chosen) {
      merged.add(marked.getOrDefault(file, file));
      actions.add(file.remove());
    }
    marked.forEach(
        (file, changed) -> {
          if (!chosen.contains(file)) {
            actions.add(changed);
            actions.add(file.remove());
          }
        });
    return CollectionConverters.asScala(actions).toSeq();
  }

  /** The files removed by {@link #mark} whose rows must be written with the new rows. */
  public Seq<AddFile> filesToMerge() {
    return CollectionConverters.asScala(merged).toSeq();
  }

  private Set<AddFile> filesToMerge(Map<AddFile, AddFile> marked, Set<AddFile> gone) {
    Map<Object, List<AddFile>> small = new HashMap<>();
    Set<AddFile> chosen = new HashSet<>();
    for (AddFile file : live) {
      if (gone.contains(file)) {
        continue;
      }
      if (file.size() < SMALL_BYTES) {
        small.computeIfAbsent(file.partitionValues(), p -> new ArrayList<>()).add(file);
      } else if (file.size() <= SPARSE_BYTES && isSparse(marked.get(file))) {
        chosen.add(file);
      }
    }
    small.values().stream().filter(s -> s.size() >= SMALL_FILES).forEach(chosen::addAll);
    return chosen;
  }

  private static boolean isSparse(AddFile file) {
    return file != null
        && 2 * file.deletionVector().cardinality() > (Long) file.numPhysicalRecords().get();
  }
}
