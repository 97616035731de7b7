package penstock.delta;

import java.io.File;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
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
 * <p>Delta analyzes the expression of the statistics of files for every write: a twelfth of the
 * processor time of a small batch. Here it is kept for the next write of the same columns, and with
 * it what {@link KeptStatistics} compiles.
 */
public class WriteTransaction extends OptimisticTransaction {
  /** The expression of the last write. Used by one thread at a time. */
  public static final class Statistics {
    private Key key;
    private Tuple2<Expression, Seq<Attribute>> expression;
    private String id;
  }

  private record Key(Metadata metadata, Protocol protocol, StructType columns, String timeZone) {}

  private static final int LISTED_VERSIONS = 8;

  private final Statistics statistics;

  /** On a given version of the table. */
  public WriteTransaction(DeltaLog log, Snapshot snapshot, Statistics statistics) {
    super(log, Option.empty(), snapshot);
    this.statistics = statistics;
  }

  /** On the newest version of the table. */
  public WriteTransaction(DeltaLog log, Statistics statistics) {
    super(log, Option.empty(), newest(log));
    this.statistics = statistics;
  }

  /**
   * The newest snapshot of a table. Delta lists the log for it, a tenth of the time of a small
   * batch. On a local disk, it is enough that the newest known commit is the same and the next one
   * does not exist. For every eighth version the log is listed, to use new checkpoints.
   */
  public static Snapshot newest(DeltaLog log) {
    Snapshot known = log.unsafeVolatileSnapshot();
    boolean isNewest = known.version() % LISTED_VERSIONS != 0 && hasNewestCommit(log, known);
    return isNewest ? known : log.update(false, Option.empty(), Option.empty());
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
    Seq<FileStatus> commits = known.logSegment().deltas();
    if (!"file".equals(folder.getScheme()) || commits.isEmpty()) {
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
   * that open-source Delta does not record ({@code CommitStats}, delta-io/delta#2718): a second of
   * every 50th batch.
   */
  @Override
  public boolean isCheckpointNeeded(long version, Snapshot committed) {
    return false;
  }

  @Override
  public Tuple2<Expression, Seq<Attribute>> getStatsColExpr(
      Seq<Attribute> columns, StatisticsCollection collection) {
    String timeZone = spark().conf().get("spark.sql.session.timeZone");
    StructType schema = DataTypeUtils.fromAttributes(columns);
    Key key = new Key(metadata(), protocol(), schema, timeZone);
    if (!key.equals(statistics.key)) {
      statistics.expression = super.getStatsColExpr(columns, collection);
      statistics.key = key;
      statistics.id = UUID.randomUUID().toString();
    }
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
