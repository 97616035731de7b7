package penstock.delta;

import java.io.File;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DummySnapshot;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.sources.DeltaSQLConf;
import org.apache.spark.sql.delta.stats.DeltaJobStatisticsTracker;
import org.apache.spark.sql.delta.stats.StatisticsCollection;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A transaction of a flow that writes often; {@link Checkpoints} writes its checkpoints.
 *
 * <p>Delta analyzes the expression of the statistics of files for every write, which takes a
 * twelfth of the CPU time of a small batch. This class caches the expression, and the code that
 * {@link KeptStatistics} compiles, for the next write of the same columns to any table.
 */
public class WriteTransaction extends OptimisticTransaction {
  /** What the statistics expression depends on; settings are those of the table and the session. */
  private record Columns(
      String tableSchema,
      Seq<String> partitions,
      Protocol protocol,
      StructType written,
      Map<String, String> settings) {}

  private record Statistics(Tuple2<Expression, Seq<Attribute>> expression, String id) {}

  private static final int LISTED_VERSIONS = 8;
  private static final int MOST = 500;
  private static final Pattern SETTINGS =
      Pattern.compile("(spark\\.databricks\\.)?delta\\..*|spark\\.sql\\.(ansi|session)\\..*");
  private static final ConcurrentMap<Columns, Statistics> STATISTICS = new ConcurrentHashMap<>();

  private Statistics statistics;

  /** Starts a transaction on the given version of the table. */
  public WriteTransaction(DeltaLog log, Snapshot snapshot) {
    super(log, Option.empty(), snapshot);
  }

  /** Starts a transaction on the newest version of the table. */
  public WriteTransaction(DeltaLog log) {
    this(log, newest(log));
  }

  /**
   * The newest snapshot of a table. Delta lists the log to find it, which takes a tenth of the time
   * of a small batch. On a local disk, it is sufficient that the newest known commit is unchanged
   * and that the next commit does not exist. For every eighth version, the log is listed to use new
   * checkpoints.
   *
   * <p>For a table that does not exist, Delta's snapshot computes the protocol on each use, about
   * 30 times until the table is created.
   */
  public static Snapshot newest(DeltaLog log) {
    Snapshot known = log.unsafeVolatileSnapshot();
    boolean isNewest = known.version() % LISTED_VERSIONS != 0 && hasNewestCommit(log, known);
    Snapshot newest = isNewest ? known : log.update(false, Option.empty(), Option.empty());
    if (newest.version() >= 0) {
      return newest;
    }
    Option<Protocol> protocol = Option.apply(newest.protocol());
    return new DummySnapshot(log.logPath(), log, newest.metadata(), Option.empty(), protocol);
  }

  /** Sets the metrics of an operation in {@code DESCRIBE HISTORY}. */
  public static void measure(OptimisticTransaction txn, Map<String, Number> values) {
    Map<String, SQLMetric> metrics = new HashMap<>();
    values.forEach(
        (name, value) -> {
          SQLMetric metric = SQLMetrics.createMetric(txn.spark().sparkContext(), name);
          metric.set(value.longValue());
          metrics.put(name, metric);
        });
    txn.registerSQLMetrics(
        txn.spark(),
        scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(metrics)));
  }

  private static boolean hasNewestCommit(DeltaLog log, Snapshot known) {
    URI folder = log.logPath().toUri();
    if (!"file".equals(folder.getScheme())) {
      return false;
    } else if (known.version() < 0) {
      return !new File(folder.getPath()).exists();
    }
    Seq<FileStatus> commits = known.logSegment().deltas();
    if (commits.isEmpty()) {
      return false;
    }
    FileStatus last = commits.last();
    File commit = new File(folder.getPath(), LinkLogStore.commit(known.version()));
    return last.getPath().getName().equals(commit.getName())
        && last.getModificationTime() == commit.lastModified()
        && last.getLen() == commit.length()
        && !new File(folder.getPath(), LinkLogStore.commit(known.version() + 1)).exists();
  }

  /**
   * If a checkpoint is due, Delta computes the state of the table within the commit, for an event
   * that open-source Delta does not record ({@code CommitStats}, delta-io/delta#2718). This takes a
   * second in every 50th batch.
   */
  @Override
  public boolean isCheckpointNeeded(long version, Snapshot committed) {
    return false;
  }

  @Override
  public Tuple2<Expression, Seq<Attribute>> getStatsColExpr(
      Seq<Attribute> columns, StatisticsCollection collection) {
    Map<String, String> settings = new HashMap<>();
    settings.putAll(CollectionConverters.asJava(spark().sessionState().conf().getAllConfs()));
    settings.putAll(CollectionConverters.asJava(metadata().configuration()));
    settings.keySet().removeIf(name -> !SETTINGS.matcher(name).matches());
    // Delta sets this setting after each commit.
    settings.remove(DeltaSQLConf.DELTA_LAST_COMMIT_VERSION_IN_SESSION().key());
    Columns key =
        new Columns(
            metadata().schemaString(),
            metadata().partitionColumns(),
            protocol(),
            DataTypeUtils.fromAttributes(columns),
            settings);
    if (STATISTICS.size() >= MOST) {
      STATISTICS.clear();
    }
    statistics =
        STATISTICS.computeIfAbsent(
            key,
            unknown ->
                new Statistics(
                    super.getStatsColExpr(columns, collection), UUID.randomUUID().toString()));
    return statistics.expression;
  }

  @Override
  public Tuple2<Option<DeltaJobStatisticsTracker>, Option<StatisticsCollection>>
      getOptionalStatsTrackerAndStatsCollection(
          Seq<Attribute> output, Path path, StructType partition, Dataset<Row> data) {
    var both = super.getOptionalStatsTrackerAndStatsCollection(output, path, partition, data);
    if (both._1().isEmpty()) {
      return both;
    }
    DeltaJobStatisticsTracker tracker = both._1().get();
    return new Tuple2<>(
        Option.apply(
            new KeptStatistics(statistics.id, tracker.dataCols(), tracker.statsColExpr())),
        both._2());
  }
}
