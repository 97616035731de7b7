package penstock.delta;

import com.google.common.cache.CacheBuilder;
import com.google.common.cache.CacheLoader;
import com.google.common.cache.LoadingCache;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Predicate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * A session extension that lists the files of a micro-batch, or of a table with few files, without
 * a query.
 *
 * <p>Delta creates a DataFrame of the files of each micro-batch, filters it by partition, and
 * collects it, which takes a fifth of the CPU time of a small batch. For a table, Delta queries the
 * state that it computes from the log; compiling this query takes seconds in the first update.
 */
public final class BatchFiles extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectOptimizerRule(session -> new ListFiles((SparkSession) session));
    extensions.injectPreCBORule(session -> new ListTables());
    return BoxedUnit.UNIT;
  }

  private static final class ListFiles extends Rule<LogicalPlan> {
    private final SparkSession session;

    ListFiles(SparkSession session) {
      this.session = session;
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      if (PlanParts.list(plan.collectLeaves()).stream().allMatch(leaf -> files(leaf) == null)) {
        return plan;
      }
      boolean namesFiles = SharedRows.namesFiles(plan);
      return plan.transform(
          new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
              return files(node) != null;
            }

            @Override
            public LogicalPlan apply(LogicalPlan node) {
              LogicalRelation leaf = (LogicalRelation) node;
              LogicalPlan rows = namesFiles ? null : SharedRows.of(session, leaf, files(node));
              return rows != null ? rows : withFiles(leaf, new Index(files(node)));
            }
          });
    }
  }

  /** Must run before Delta's rule for table scans, which lists the tables that this rule skips. */
  private static final class ListTables extends Rule<LogicalPlan> {
    // In larger tables, Delta skips files by their statistics, and their footers are not read.
    private static final int MOST_FILES = 64;
    private static final long MOST_BYTES = 1L << 30;
    // Without the cache, each query would read all commits since the last checkpoint.
    private static final LoadingCache<DeltaLog, LiveFiles> KEPT =
        CacheBuilder.newBuilder()
            .maximumSize(100)
            .build(CacheLoader.from(log -> new LiveFiles(log)));

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      // As in Delta's rule, tables of subqueries are listed with their query, at the same versions.
      boolean isListedLater = plan instanceof Subquery || plan instanceof V2WriteCommand;
      // A transaction must record which files it reads.
      if (isListedLater || OptimisticTransaction.getActive().isDefined()) {
        return plan;
      }
      Map<Object, Optional<Index>> tables = new HashMap<>();
      return plan.transformWithSubqueries(
          new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
              return index(node).isPresent();
            }

            @Override
            public LogicalPlan apply(LogicalPlan node) {
              return withFiles((LogicalRelation) node, index(node).get());
            }

            private Optional<Index> index(LogicalPlan node) {
              TahoeLogFileIndex table = QueryChanges.index(node);
              if (table == null || !table.partitionFilters().isEmpty()) {
                return Optional.empty();
              }
              Object version = List.of(table.deltaLog().compositeId(), table.versionToUse());
              return tables.computeIfAbsent(version, v -> files(table));
            }
          });
    }

    private static Optional<Index> files(TahoeLogFileIndex table) {
      Snapshot snapshot = table.getSnapshot();
      Option<VersionChecksum> checksum = snapshot.checksumOpt();
      if (checksum.isEmpty()
          || checksum.get().numFiles() > MOST_FILES
          || checksum.get().tableSizeBytes() > MOST_BYTES) {
        return Optional.empty();
      }
      DeltaLog log = table.deltaLog();
      return KEPT.getUnchecked(log)
          .withoutQuery(snapshot)
          .map(
              files ->
                  new Index(
                      new TahoeBatchFileIndex(
                          table.spark(),
                          "batch",
                          PlanParts.seq(files),
                          log,
                          table.path(),
                          snapshot,
                          false)));
    }
  }

  private static LogicalPlan withFiles(LogicalRelation leaf, Index files) {
    HadoopFsRelation relation = (HadoopFsRelation) leaf.relation();
    return leaf.copy(
        relation.copy(
            files,
            relation.partitionSchema(),
            relation.dataSchema(),
            relation.bucketSpec(),
            relation.fileFormat(),
            relation.options(),
            relation.sparkSession()),
        leaf.output(),
        leaf.catalogTable(),
        leaf.isStreaming(),
        leaf.stream());
  }

  private static TahoeBatchFileIndex files(LogicalPlan node) {
    return node instanceof LogicalRelation leaf
            && leaf.relation() instanceof HadoopFsRelation relation
            && relation.location() instanceof TahoeBatchFileIndex index
            && index.getClass() == TahoeBatchFileIndex.class
        ? index
        : null;
  }

  private static final class Index extends TahoeBatchFileIndex {
    Index(TahoeBatchFileIndex other) {
      super(
          other.spark(),
          other.actionType(),
          other.addFiles(),
          other.deltaLog(),
          other.path(),
          other.snapshot(),
          other.partitionFiltersGenerated());
    }

    /** Delta filters files by a query, even to check whether a file has a deletion vector. */
    @Override
    public Seq<AddFile> matchingFiles(Seq<Expression> partitions, Seq<Expression> rows) {
      String[] names = partitionSchema().fieldNames();
      List<BasePredicate> filters = new ArrayList<>();
      for (Expression filter : PlanParts.list(partitions)) {
        Map<ExprId, Expression> values = new HashMap<>();
        for (Attribute column : PlanParts.references(filter)) {
          int at = 0;
          while (!names[at].equalsIgnoreCase(column.name())) {
            at++;
          }
          values.put(column.exprId(), new BoundReference(at, column.dataType(), true));
        }
        filters.add(Predicate.createInterpreted(PlanParts.replaced(filter, values)));
      }
      List<AddFile> matching = new ArrayList<>();
      for (AddFile file : PlanParts.list(addFiles())) {
        InternalRow values = getPartitionValuesRow(file.partitionValues());
        if (filters.stream().allMatch(filter -> filter.eval(values))) {
          matching.add(file);
        }
      }
      return PlanParts.seq(matching);
    }
  }
}
