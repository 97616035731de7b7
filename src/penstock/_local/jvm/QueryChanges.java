package penstock.delta;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

/**
 * Computes how the result of a query changes with the Delta tables that it reads.
 *
 * <p>Uses the analyzed plan: the optimizer replaces the current timestamp with a literal, and
 * counts with values from statistics.
 */
public final class QueryChanges {
  /** Thrown if the result cannot be updated; the message is the reason. */
  public static final class UnsupportedException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    UnsupportedException(String reason) {
      super(reason, null, false, false);
    }
  }

  /**
   * How much of a table changed.
   *
   * @param rows the number of added and removed rows; -1 if unknown
   * @param share the changed share of the bytes of the table, at most 1
   */
  public record Size(double rows, double share) {}

  /** The column with the number of copies of a changed row. */
  public static final String COPIES = "__penstock_copies";

  private final SparkSession session;
  private final LogicalPlan plan;
  private final List<String> names;
  private final Map<String, TableChanges> tables = new HashMap<>();
  private final Set<ExprId> used = new HashSet<>();
  private final Map<String, String> since;
  private String technique;
  private LogicalPlan rows;
  private List<String> merges = List.of();
  private List<Attribute> keys = List.of();
  private Attribute rowCount;
  private int collected;

  /**
   * Chooses how the result is updated.
   *
   * @param query a deterministic query
   * @param since the versions of its tables for which the result was computed, by path
   * @throws UnsupportedException if the result must be recomputed
   */
  public QueryChanges(Dataset<Row> query, Map<String, String> since) {
    this.session = query.sparkSession();
    this.since = since;
    this.names = List.of(query.columns());
    this.plan = NormalPlan.of(query.queryExecution().analyzed());
    NormalPlan.check(plan);
    use(PlanParts.output(plan));
    useColumnsOf(plan);
    if (!isChanged(plan)) {
      throw new UnsupportedException("no source changed");
    }
    chooseTechnique();
  }

  /**
   * The same query, pinned to the versions of its tables at the time of its analysis.
   *
   * <p>A table that was changed between two reads of it is read at the newer version by both.
   */
  public static Dataset<Row> pinned(Dataset<Row> query) {
    LogicalPlan plan = query.queryExecution().analyzed();
    Map<List<Object>, Snapshot> newest = new HashMap<>();
    List<LogicalPlan> parts = new ArrayList<>(List.of(plan));
    parts.addAll(PlanParts.list(plan.subqueriesAll()));
    for (LogicalPlan part : parts) {
      for (LogicalPlan leaf : PlanParts.list(part.collectLeaves())) {
        if (isCurrent(leaf)) {
          Snapshot snapshot = snapshot(leaf);
          newest.merge(table(snapshot), snapshot, (a, b) -> a.version() < b.version() ? b : a);
        }
      }
    }
    return Dataset$.MODULE$.ofRows(
        query.sparkSession(),
        plan.transformWithSubqueries(
            new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
              @Override
              public boolean isDefinedAt(LogicalPlan node) {
                return isCurrent(node);
              }

              @Override
              public LogicalPlan apply(LogicalPlan node) {
                return at((LogicalRelation) node, newest.get(table(snapshot(node))));
              }
            }));
  }

  /** {@code APPEND_ONLY}, {@code GROUP_AGGREGATE} or {@code ROW_BASED}. */
  public String technique() {
    return technique;
  }

  /** The new rows of an append-only result. */
  public Dataset<Row> rows() {
    return frame(rows, names);
  }

  /**
   * The aggregates of the changed rows of the sources, collected to the driver.
   *
   * @param most the maximum number of groups that are collected per task
   */
  public Dataset<Row> collectedRows(int most) {
    Dataset<Row> each = PlanParts.limited(frame(rows, names), most);
    InternalRow[] collected = each.queryExecution().executedPlan().executeCollect();
    this.collected = collected.length;
    return PlanParts.local(session, each.schema(), Arrays.asList(collected));
  }

  /** The number of collected rows. */
  public int collected() {
    return collected;
  }

  /** How each column is merged: sum, min or max; an empty string for grouping columns. */
  public List<String> merges() {
    return merges;
  }

  /**
   * The column with the number of rows of a group if rows of the sources were removed; otherwise
   * null.
   */
  public String rowCount() {
    return rowCount == null ? null : names(List.of(rowCount)).get(0);
  }

  /** Whether the changes of a row-based result are known, so its rows need not be recomputed. */
  public boolean isLinear() {
    return technique.equals("ROW_BASED") && rows != null;
  }

  /**
   * The changes of a linear result.
   *
   * @param most fails if this many rows or more changed
   */
  public ChangedRows changedRows(int most) {
    List<String> columns = new ArrayList<>(names);
    columns.add(COPIES);
    // Changed rows are broadcast; adaptive execution would list files and plan the query again.
    SparkSession other = session.cloneSession();
    other.conf().set("spark.sql.adaptive.enabled", false);
    Dataset<Row> changed = Dataset$.MODULE$.ofRows(other, rows).toDF(PlanParts.seq(columns));
    return new ChangedRows(session, PlanParts.limited(changed, most), most);
  }

  /**
   * Whether the changed keys select few rows of a source. Otherwise, most of the query is
   * recomputed.
   */
  public boolean selectsRows() {
    AffectedKeys affected = new AffectedKeys(this);
    // The rows of the keys are irrelevant: only the position of the semi-joins matters.
    affected.restricted(plan, new ArrayList<>(keys), PlanParts.project(keys, plan), true);
    return affected.selectsRows();
  }

  /** The size of the change of each source that changed. */
  public Size[] sizes() {
    return tables.values().stream()
        .filter(table -> !table.isEmpty())
        .map(TableChanges::size)
        .toArray(Size[]::new);
  }

  /** The columns whose values identify rows that are replaced together. */
  public List<String> keyColumns() {
    return names(keys);
  }

  /** The keys of all rows that may have changed, at most {@code most} per task. */
  public Dataset<Row> changedKeys(int most) {
    LogicalPlan touched = new AffectedKeys(this).touched(plan, new ArrayList<>(keys));
    return PlanParts.limited(frame(touched, keyColumns()).distinct(), most);
  }

  /** The new rows with the given keys. */
  public Dataset<Row> rowsOf(Dataset<Row> keyRows) {
    LogicalPlan known = keyRows.queryExecution().analyzed();
    return frame(
        new AffectedKeys(this).restricted(plan, new ArrayList<>(keys), known, true), names);
  }

  private Dataset<Row> frame(LogicalPlan rows, List<String> columns) {
    return Dataset$.MODULE$.ofRows(session, rows).toDF(PlanParts.seq(columns));
  }

  private List<String> names(List<Attribute> attributes) {
    List<Attribute> output = PlanParts.output(plan);
    List<String> result = new ArrayList<>();
    for (Attribute attribute : attributes) {
      for (int position = 0; position < output.size(); position++) {
        if (output.get(position).exprId().equals(attribute.exprId())) {
          result.add(names.get(position));
          break;
        }
      }
    }
    return result;
  }

  // -- the choice ---------------------------------------------------------------------------

  private void chooseTechnique() {
    try {
      rows = new LinearChanges(this, false).of(plan);
      technique = "APPEND_ONLY";
      return;
    } catch (UnsupportedException error) {
      // Existing rows of the result change as well.
    }
    if (groups(PartialAggregates.of(plan))) {
      technique = "GROUP_AGGREGATE";
      return;
    }
    technique = "ROW_BASED";
    if (PlanParts.output(plan).stream().allMatch(c -> PlanParts.canGroup(c.dataType()))) {
      try {
        rows = new LinearChanges(this, true).of(plan);
        return;
      } catch (UnsupportedException error) {
        // The rows with changed keys are recomputed.
      }
    }
    keys = new KeyColumns(this).of(plan);
  }

  /** Whether the aggregates of changed rows of the sources are known, and can be merged. */
  private boolean groups(PartialAggregates partial) {
    if (partial == null) {
      return false;
    }
    try {
      try {
        rows = partial.over(new LinearChanges(this, false));
      } catch (UnsupportedException error) {
        if (!partial.canSubtract(this)) {
          return false;
        }
        rows = partial.difference(session, new LinearChanges(this, true));
        rowCount = partial.rowCount;
      }
    } catch (UnsupportedException error) {
      return false; // Other rows change as well.
    }
    merges = partial.merges;
    keys = partial.keys;
    return true;
  }

  // -- the plan -----------------------------------------------------------------------------

  private void useColumnsOf(LogicalPlan node) {
    List<LogicalPlan> children = PlanParts.list(node.children());
    if (!children.isEmpty()) {
      for (Expression expression : PlanParts.list(node.expressions())) {
        use(PlanParts.list(expression.references().toSeq()));
      }
    }
    for (LogicalPlan child : children) {
      if (node instanceof Union) {
        use(PlanParts.output(child));
      }
      useColumnsOf(child);
    }
  }

  private void use(Iterable<Attribute> columns) {
    columns.forEach(column -> used.add(column.exprId()));
  }

  // -- the tables ---------------------------------------------------------------------------

  static TahoeLogFileIndex index(LogicalPlan node) {
    return node instanceof LogicalRelation relation
            && relation.relation() instanceof HadoopFsRelation files
            && files.location() instanceof TahoeLogFileIndex index
        ? index
        : null;
  }

  /** Versions of a table with another schema or other properties are not exchanged. */
  private static List<Object> table(Snapshot snapshot) {
    return List.of(snapshot.path(), snapshot.metadata());
  }

  private static boolean isCurrent(LogicalPlan node) {
    TahoeLogFileIndex index = index(node);
    return index != null && !index.isTimeTravelQuery();
  }

  private static Snapshot snapshot(LogicalPlan leaf) {
    TahoeLogFileIndex index = index(leaf);
    if (index.snapshotAtAnalysis() instanceof Snapshot snapshot) {
      return snapshot;
    }
    // `index.version()` is the newest version that the `DeltaLog` knows now.
    long version = index.snapshotAtAnalysis().version();
    return index.deltaLog().getSnapshotAt(version, Option.empty(), Option.empty(), false);
  }

  private static LogicalRelation at(LogicalRelation leaf, Snapshot snapshot) {
    return leaf.copy(
        snapshot
            .deltaLog()
            .createRelation(
                PlanParts.seq(List.of()), Option.apply(snapshot), leaf.catalogTable(), true),
        leaf.output(),
        leaf.catalogTable(),
        leaf.isStreaming(),
        leaf.stream());
  }

  private TableChanges changes(LogicalPlan leaf) {
    String path = index(leaf).deltaLog().dataPath().toString();
    return tables.computeIfAbsent(
        path,
        p -> {
          String version = since.get(p);
          if (version == null) {
            throw new UnsupportedException("a source was not read by the last refresh");
          }
          return new TableChanges(session, Long.parseLong(version), snapshot(leaf));
        });
  }

  /** Whether a table of a part of the query changed. */
  boolean isChanged(LogicalPlan node) {
    if (node instanceof LogicalRelation) {
      return !changes(node).isEmpty();
    }
    return PlanParts.list(node.children()).stream().anyMatch(this::isChanged);
  }

  /** Whether the query uses each column of a table. */
  private boolean[] used(LogicalRelation leaf) {
    List<Attribute> columns = PlanParts.output(leaf);
    boolean[] result = new boolean[columns.size()];
    for (int column = 0; column < result.length; column++) {
      result[column] = used.contains(columns.get(column).exprId());
    }
    return result;
  }

  /** A part of the query in which table columns without NULL are not nullable. */
  LogicalPlan withKnownNulls(LogicalPlan node) {
    if (node instanceof LogicalRelation leaf) {
      Set<String> complete = changes(leaf).columnsWithoutNull();
      List<AttributeReference> columns = new ArrayList<>();
      for (AttributeReference column : PlanParts.list(leaf.output())) {
        boolean isNullable = column.nullable() && !complete.contains(column.name());
        columns.add(column.withNullability(isNullable));
      }
      return leaf.copy(
          leaf.relation(),
          PlanParts.seq(columns),
          leaf.catalogTable(),
          leaf.isStreaming(),
          leaf.stream());
    }
    return node.mapChildren(this::withKnownNulls);
  }

  /** The rows that were added to a table; fails if rows were removed. */
  LogicalPlan appended(LogicalRelation leaf) {
    if (!changes(leaf).isAppend()) {
      throw new UnsupportedException("rows of a source were changed");
    }
    return PlanParts.as(changes(leaf).appended(used(leaf)), PlanParts.output(leaf));
  }

  /** The added, removed and changed rows of a table, with their old and new values. */
  LogicalPlan changed(LogicalRelation leaf) {
    return PlanParts.as(changes(leaf).changed(used(leaf), false), PlanParts.output(leaf));
  }

  /** The same rows with the number of copies as last column, negative for removed rows. */
  LogicalPlan signed(LogicalRelation leaf) {
    LogicalPlan rows = changes(leaf).changed(used(leaf), true);
    List<Attribute> columns = new ArrayList<>(PlanParts.output(leaf));
    columns.add(PlanParts.output(rows).get(columns.size()).newInstance());
    return PlanParts.as(rows, columns);
  }

  /** A part of the query over the new or the old versions of its tables. */
  LogicalPlan part(LogicalPlan node, boolean isNew) {
    if (node instanceof LogicalRelation leaf) {
      return at(leaf, isNew ? snapshot(leaf) : changes(leaf).before());
    }
    return node.mapChildren(child -> part(child, isNew));
  }
}
