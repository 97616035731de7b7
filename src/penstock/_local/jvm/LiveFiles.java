package penstock.delta;

import java.io.FileNotFoundException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.RemoveFile;
import org.apache.spark.sql.delta.util.FileNames;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The files of a table, kept between the batches of a writer.
 *
 * <p>Delta computes the files of each new version from its log by a Spark job. Here, the commits
 * since the last version are applied to the files of that version, and Delta computes them only if
 * commits are missing or too many.
 */
public final class LiveFiles {
  private static final int MOST_COMMITS = 50;

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

  /** The files of a version, for Scala. */
  public Seq<AddFile> all(Snapshot snapshot) {
    return CollectionConverters.asScala(at(snapshot)).toSeq();
  }

  /** The size of all files of a version in bytes. */
  public long bytes(Snapshot snapshot) {
    return at(snapshot).stream().mapToLong(AddFile::size).sum();
  }

  /** Removals of all files of a version. */
  public Seq<RemoveFile> removals(Snapshot snapshot) {
    List<RemoveFile> removed = at(snapshot).stream().map(AddFile::remove).toList();
    return CollectionConverters.asScala(removed).toSeq();
  }

  private void update(Snapshot snapshot) {
    long newest = snapshot.version();
    String id = snapshot.metadata().id();
    boolean isKnown = id.equals(table) && version <= newest;
    if (!isKnown) {
      files.clear();
      version = -1;
    }
    table = id;
    if (newest - version > MOST_COMMITS || !applied(version + 1, newest)) {
      files.clear();
      for (AddFile file : (AddFile[]) snapshot.allFiles().collect()) {
        files.put(identity(file.pathAsUri(), file.getDeletionVectorUniqueId()), file);
      }
    }
    version = newest;
  }

  /** Applies some commits; false if one of them is missing. */
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
      for (AddFile file : added) {
        files.put(identity(file.pathAsUri(), file.getDeletionVectorUniqueId()), file);
      }
    }
    return true;
  }

  private static String identity(Object path, Option<String> vector) {
    return vector.isEmpty() ? path.toString() : path + "\n" + vector.get();
  }
}
