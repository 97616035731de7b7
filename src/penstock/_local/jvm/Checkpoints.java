package penstock.delta;

import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.LogSegment;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.hooks.CheckpointHook$;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Writes the checkpoints of tables on a separate thread; in Delta, the commit waits for them.
 *
 * <p>Expired versions are deleted before a checkpoint is written, not after it: concurrent
 * transactions may still read the versions that the new checkpoint replaces.
 */
public final class Checkpoints implements PostCommitHook {
  private static final Logger LOG = LoggerFactory.getLogger(Checkpoints.class);
  private static final int SHIFTED_INTERVAL = 50; // Penstock's default
  private static final long SMALL_BYTES = 4L << 20;
  private static final ExecutorService THREAD =
      Executors.newSingleThreadExecutor(
          task -> {
            Thread thread = new Thread(task, "penstock-checkpoints");
            thread.setDaemon(true);
            return thread;
          });

  /** Moves the checkpoint of a transaction out of its commit. */
  public static void writeLater(OptimisticTransaction transaction) {
    transaction.unregisterPostCommitHooksWhere(hook -> hook == CheckpointHook$.MODULE$);
    transaction.registerPostCommitHook(new Checkpoints());
  }

  /** Waits for the checkpoints of all commits so far; false after a timeout. */
  public static boolean finish(long seconds) throws Exception {
    try {
      THREAD.submit(() -> {}).get(seconds, TimeUnit.SECONDS);
      return true;
    } catch (java.util.concurrent.TimeoutException error) {
      return false;
    }
  }

  @Override
  public String name() {
    return "Checkpoint on another thread";
  }

  @Override
  public void run(SparkSession session, CommittedTransaction committed) {
    DeltaLog log = committed.deltaLog();
    Snapshot snapshot = committed.postCommitSnapshot();
    int interval = log.checkpointInterval(snapshot.metadata());
    long version = committed.committedVersion();
    boolean isDue =
        version > interval / 2
            && (version + shift(snapshot.metadata().id(), interval)) % interval == 0;
    if (isDue) {
      THREAD.submit(() -> write(session, log, snapshot));
    }
  }

  /**
   * The tables of a continuous pipeline have a similar number of commits: without different shifts,
   * their checkpoints would all be due at the same time. Intervals below the default are set by the
   * user and are not shifted.
   */
  public static int shift(String table, int interval) {
    return interval < SHIFTED_INTERVAL ? 0 : Math.floorMod(table.hashCode(), interval);
  }

  private static boolean isSmall(Snapshot snapshot) {
    LogSegment log = snapshot.logSegment();
    return Stream.of(log.deltas(), log.checkpointProvider().topLevelFiles())
            .flatMap(files -> CollectionConverters.asJava(files).stream())
            .mapToLong(FileStatus::getLen)
            .sum()
        <= SMALL_BYTES;
  }

  /**
   * A session without code generation: for the wide rows of a log, generating code takes longer
   * than interpreting a few thousand rows, and took most of the time of a checkpoint.
   */
  private static SparkSession interpreting(SparkSession session) {
    SparkSession other = ((org.apache.spark.sql.classic.SparkSession) session).cloneSession();
    other.conf().set("spark.sql.codegen.factoryMode", "NO_CODEGEN");
    other.conf().set("spark.sql.codegen.wholeStage", false);
    other.conf().set("spark.sql.adaptive.enabled", false);
    other.conf().set("spark.databricks.delta.snapshotPartitions", 1);
    return other;
  }

  private static void write(SparkSession session, DeltaLog log, Snapshot snapshot) {
    try {
      // The thread inherits the local properties of a query, with which its jobs would be
      // cancelled.
      session.sparkContext().setLocalProperties(new Properties());
      SparkSession.setActiveSession(isSmall(snapshot) ? interpreting(session) : session);
      log.doLogCleanup(snapshot, Option.empty());
      log.writeLastCheckpointFile(log, log.writeCheckpointFiles(snapshot, Option.empty()), true);
    } catch (Exception error) {
      LOG.warn("No checkpoint of {} at version {}", log.dataPath(), snapshot.version(), error);
    } finally {
      SparkSession.clearActiveSession();
    }
  }
}
