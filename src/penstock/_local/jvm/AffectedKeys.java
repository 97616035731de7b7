package penstock.delta;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.datasources.LogicalRelation;

/**
 * The keys of a result that may have changed, and the rows of these keys.
 *
 * <p>Keys are expressions over the columns of a part of the query. They are traced down to the
 * tables, through aggregates and windows only if they depend only on the grouping or partition
 * columns. Otherwise, the changed groups are computed on both the old and the new versions of the
 * tables, and the keys of both results are used.
 */
final class AffectedKeys {
  private final QueryChanges query;
  private boolean selectsRows;

  AffectedKeys(QueryChanges query) {
    this.query = query;
  }

  // -- the changed keys ---------------------------------------------------------------------

  /**
   * The values of the keys in all changed rows, old and new; null if no table of the node changed.
   */
  LogicalPlan touched(LogicalPlan node, List<Expression> keys) {
    if (!query.isChanged(node)) {
      return null;
    } else if (node instanceof LogicalRelation leaf) {
      return PlanParts.project(keys, query.changed(leaf));
    } else if (node instanceof Project project) {
      var values = PlanParts.values(project.projectList());
      return touched(project.child(), PlanParts.replaced(keys, values));
    } else if (node instanceof Filter filter) {
      return touchedByFilter(filter, keys);
    } else if (node instanceof Union) {
      List<LogicalPlan> parts = new ArrayList<>();
      for (LogicalPlan child : PlanParts.list(node.children())) {
        parts.add(touched(child, ofChild(node, child, keys)));
      }
      return PlanParts.union(parts);
    } else if (node instanceof Join join) {
      return touchedByJoin(join, keys);
    } else if (node instanceof Aggregate aggregate) {
      List<Expression> groups = PlanParts.list(aggregate.groupingExpressions());
      List<Expression> inner =
          PlanParts.replaced(keys, PlanParts.values(aggregate.aggregateExpressions()));
      return inner.stream().anyMatch(AffectedKeys::hasAggregate) || groups.isEmpty()
          ? oldAndNew(node, groups, keys)
          : touched(aggregate.child(), inner);
    }
    LogicalPlan child = PlanParts.list(node.children()).get(0);
    if (groups(node) != null && !isWithin(keys, groups(node))) {
      return oldAndNew(node, groups(node), keys);
    } else if (node instanceof Generate && !areOf(keys, child)) {
      throw new QueryChanges.UnsupportedException("a key is a generated column, as of explode");
    }
    return touched(child, keys);
  }

  /**
   * Leaves out keys of rows that do not pass the filter, if its columns can be traced to tables.
   */
  private LogicalPlan touchedByFilter(Filter filter, List<Expression> keys) {
    List<Attribute> columns = PlanParts.references(filter.condition());
    List<Expression> all = Stream.concat(keys.stream(), columns.stream()).toList();
    LogicalPlan rows;
    try {
      rows = touched(filter.child(), all);
    } catch (QueryChanges.UnsupportedException error) {
      return touched(filter.child(), keys);
    }
    List<Attribute> output = PlanParts.output(rows);
    Map<ExprId, Expression> values = new HashMap<>();
    for (int column = 0; column < columns.size(); column++) {
      values.put(columns.get(column).exprId(), output.get(keys.size() + column));
    }
    Expression condition = PlanParts.replaced(filter.condition(), values);
    return PlanParts.project(output.subList(0, keys.size()), new Filter(condition, rows));
  }

  /** The keys of the changed groups in the old and in the new result of a node. */
  private LogicalPlan oldAndNew(LogicalPlan node, List<Expression> groups, List<Expression> keys) {
    checkGroups(groups);
    if (RowOrder.mattersBelow(node)) {
      throw dependsOnOrder();
    }
    checkSums(node, keys);
    LogicalPlan child = PlanParts.list(node.children()).get(0);
    LogicalPlan changed = touched(child, groups);
    List<LogicalPlan> results = new ArrayList<>();
    for (boolean isNew : new boolean[] {false, true}) {
      LogicalPlan rows = restricted(child, groups, changed, isNew);
      results.add(PlanParts.project(keys, with(node, rows)));
    }
    return PlanParts.union(results);
  }

  private LogicalPlan touchedByJoin(Join join, List<Expression> all) {
    LogicalPlan left = join.left();
    LogicalPlan right = join.right();
    EquiKeys equi = EquiKeys.of(join);
    if (equi.left().isEmpty()) {
      throw new QueryChanges.UnsupportedException(
          "a join without equal columns is not updated incrementally");
    }
    checkOrder(left, right);
    checkOrder(right, left);
    boolean isInner = PlanParts.isInner(join.joinType());
    List<Expression> keys = isInner ? equi.onLeft(all) : all;
    if (areOf(keys, left)) {
      LogicalPlan own = touched(left, keys);
      List<Expression> same = keys.stream().map(equi::onRight).toList();
      if (!same.contains(null)) {
        return PlanParts.union(own, touched(right, same));
      }
      LogicalPlan changedRight = touched(right, equi.right());
      return PlanParts.union(own, matching(left, keys, equi.left(), changedRight, equi));
    } else if (isInner && areOf(keys, right)) {
      LogicalPlan own = touched(right, keys);
      LogicalPlan changedLeft = touched(left, equi.left());
      return PlanParts.union(own, matching(right, keys, equi.right(), changedLeft, equi));
    }
    return touchedByBoth(join, keys, equi);
  }

  /** The keys of the rows of one side that match a changed row of the other side. */
  private LogicalPlan matching(
      LogicalPlan side,
      List<Expression> keys,
      List<Expression> joined,
      LogicalPlan changed,
      EquiKeys equi) {
    if (changed == null) {
      return null;
    }
    checkSums(side, Stream.concat(keys.stream(), joined.stream()).toList());
    LogicalPlan rows = query.part(side, true);
    return PlanParts.project(keys, PlanParts.semi(rows, joined, changed, equi.hasNullSafe()));
  }

  /**
   * Keys with columns of both sides: the changed rows of each side are joined with all rows of the
   * other side.
   */
  private LogicalPlan touchedByBoth(Join join, List<Expression> keys, EquiKeys equi) {
    Columns left = new Columns(join.left(), keys, equi.left());
    Columns right = new Columns(join.right(), keys, equi.right());
    LogicalPlan changedLeft = touched(join.left(), left.all);
    LogicalPlan changedRight = touched(join.right(), right.all);
    if (changedLeft != null) {
      checkSums(join.right(), right.all);
    }
    if (changedRight != null) {
      checkSums(join.left(), left.all);
    }
    LogicalPlan newLeft = PlanParts.project(left.all, query.part(join.left(), true));
    LogicalPlan newRight = PlanParts.project(right.all, query.part(join.right(), true));
    List<LogicalPlan> parts = new ArrayList<>();
    if (changedLeft != null) {
      LogicalPlan oldAndNew = PlanParts.union(newRight, changedRight);
      parts.add(pairs(keys, left, changedLeft, right, oldAndNew, equi));
    }
    if (changedRight != null) {
      parts.add(pairs(keys, left, newLeft, right, PlanParts.fresh(changedRight), equi));
    }
    if (join.joinType() == LeftOuter$.MODULE$) {
      // Rows of the left side may gain their first match or lose their last match.
      LogicalPlan matched = null;
      if (changedRight != null) {
        LogicalPlan joined = PlanParts.project(right.joined(changedRight), changedRight);
        matched = PlanParts.semi(newLeft, left.joined(newLeft), joined, equi.hasNullSafe());
      }
      for (LogicalPlan rows : new LogicalPlan[] {changedLeft, matched}) {
        if (rows != null) {
          Map<ExprId, Expression> values = left.values(PlanParts.output(rows));
          for (Attribute column : right.columns) {
            values.put(column.exprId(), Literal.create(null, column.dataType()));
          }
          parts.add(PlanParts.project(PlanParts.replaced(keys, values), rows));
        }
      }
    }
    return PlanParts.union(parts);
  }

  private static LogicalPlan pairs(
      List<Expression> keys,
      Columns left,
      LogicalPlan leftRows,
      Columns right,
      LogicalPlan rightRows,
      EquiKeys equi) {
    LogicalPlan ofLeft = PlanParts.fresh(leftRows);
    LogicalPlan ofRight = PlanParts.fresh(rightRows);
    Expression condition = equi.same(left.joined(ofLeft), right.joined(ofRight));
    LogicalPlan pairs = PlanParts.join(ofLeft, ofRight, Inner$.MODULE$, condition);
    Map<ExprId, Expression> values = left.values(PlanParts.output(ofLeft));
    values.putAll(right.values(PlanParts.output(ofRight)));
    return PlanParts.project(PlanParts.replaced(keys, values), pairs);
  }

  /** The join keys of one side, and its columns that are used in the keys. */
  private static final class Columns {
    final List<Attribute> columns = new ArrayList<>();
    final List<Expression> all;
    private final int width;

    Columns(LogicalPlan side, List<Expression> keys, List<Expression> joined) {
      for (Expression key : keys) {
        for (Attribute column : PlanParts.references(key)) {
          if (PlanParts.isOf(column, side)
              && columns.stream().noneMatch(c -> c.exprId().equals(column.exprId()))) {
            columns.add(column);
          }
        }
      }
      this.width = joined.size();
      this.all = Stream.concat(joined.stream(), columns.stream()).toList();
    }

    List<Attribute> joined(LogicalPlan rows) {
      return PlanParts.output(rows).subList(0, width);
    }

    Map<ExprId, Expression> values(List<Attribute> output) {
      Map<ExprId, Expression> values = new HashMap<>();
      for (int column = 0; column < columns.size(); column++) {
        values.put(columns.get(column).exprId(), output.get(width + column));
      }
      return values;
    }
  }

  // -- the rows of some keys ----------------------------------------------------------------

  /** Whether {@link #restricted} selects the rows of a table by key before joins and aggregates. */
  boolean selectsRows() {
    return selectsRows;
  }

  /** The rows of a node in which {@code keys} have the values of a row of {@code keyRows}. */
  LogicalPlan restricted(
      LogicalPlan node, List<Expression> keys, LogicalPlan keyRows, boolean isNew) {
    if (node instanceof Join join) {
      return restrictedJoin(join, keys, keyRows, isNew);
    } else if (node instanceof Union) {
      List<LogicalPlan> parts = new ArrayList<>();
      for (LogicalPlan child : PlanParts.list(node.children())) {
        parts.add(restricted(child, ofChild(node, child, keys), keyRows, isNew));
      }
      return node.withNewChildren(PlanParts.seq(parts));
    }
    selectsRows |= node instanceof LogicalRelation;
    List<Expression> inner = keys;
    if (node instanceof Project project) {
      inner = PlanParts.replaced(keys, PlanParts.values(project.projectList()));
    } else if (node instanceof Aggregate aggregate && !aggregate.groupingExpressions().isEmpty()) {
      inner = PlanParts.replaced(keys, PlanParts.values(aggregate.aggregateExpressions()));
    }
    List<LogicalPlan> children = PlanParts.list(node.children());
    boolean passes =
        children.size() == 1
            && areOf(inner, children.get(0))
            && inner.stream().noneMatch(AffectedKeys::hasAggregate)
            && (groups(node) == null || isWithin(inner, groups(node)));
    return passes
        ? with(node, restricted(children.get(0), inner, keyRows, isNew))
        : PlanParts.semi(query.part(node, isNew), keys, keyRows, true);
  }

  private LogicalPlan restrictedJoin(
      Join join, List<Expression> all, LogicalPlan keyRows, boolean isNew) {
    boolean isInner = PlanParts.isInner(join.joinType());
    EquiKeys equi = EquiKeys.of(join);
    List<Expression> keys = isInner ? equi.onLeft(all) : all;
    List<Expression> left = new ArrayList<>();
    List<Expression> right = new ArrayList<>();
    List<Integer> ofLeft = new ArrayList<>();
    List<Integer> ofRight = new ArrayList<>();
    int complete = 0;
    for (int key = 0; key < keys.size(); key++) {
      Expression value = keys.get(key);
      if (PlanParts.isOf(value, join.left())) {
        left.add(value);
        ofLeft.add(key);
        complete++;
        Expression same = equi.onRight(value);
        if (same != null) {
          right.add(same);
          ofRight.add(key);
        }
      } else if (isInner && PlanParts.isOf(value, join.right())) {
        right.add(value);
        ofRight.add(key);
        complete++;
      }
    }
    LogicalPlan rows =
        join.withNewChildren(
            PlanParts.seq(
                List.of(
                    restricted(join.left(), left, ofLeft, keyRows, isNew),
                    restricted(join.right(), right, ofRight, keyRows, isNew))));
    boolean isExact = complete == keys.size() && (ofLeft.size() == complete || ofLeft.isEmpty());
    return isExact ? rows : PlanParts.semi(rows, keys, keyRows, true);
  }

  private LogicalPlan restricted(
      LogicalPlan side,
      List<Expression> keys,
      List<Integer> positions,
      LogicalPlan keyRows,
      boolean isNew) {
    return keys.isEmpty()
        ? query.part(side, isNew)
        : restricted(side, keys, PlanParts.columns(keyRows, positions), isNew);
  }

  // -- parts --------------------------------------------------------------------------------

  /** The partition columns of a window, or the columns of a `dropDuplicates`; otherwise null. */
  static List<Expression> groups(LogicalPlan node) {
    if (node instanceof Window window) {
      return PlanParts.list(window.partitionSpec());
    } else if (node instanceof Deduplicate deduplicate) {
      return new ArrayList<>(PlanParts.list(deduplicate.keys()));
    }
    return null;
  }

  /** Changes of {@code other} are joined with the old and the new rows of {@code side}. */
  private void checkOrder(LogicalPlan side, LogicalPlan other) {
    if (query.isChanged(other) && RowOrder.mattersBelow(side)) {
      throw dependsOnOrder();
    }
  }

  static QueryChanges.UnsupportedException dependsOnOrder() {
    return new QueryChanges.UnsupportedException(
        "a part of the query depends on the order of rows with equal values, as row_number does");
  }

  /** The values, and the rows that have them, must not depend on rounded sums. */
  private static void checkSums(LogicalPlan node, List<Expression> values) {
    if (RowOrder.isRounded(node, values)) {
      throw new QueryChanges.UnsupportedException(
          "a part of the query selects or groups rows by a sum or an average of floating-point"
              + " numbers");
    }
  }

  static void checkGroups(List<Expression> groups) {
    if (groups.isEmpty()) {
      throw new QueryChanges.UnsupportedException(
          "an aggregate or window over all rows is not updated incrementally");
    }
  }

  /** Whether expressions have the same value in all rows of a group. */
  static boolean isWithin(List<? extends Expression> keys, List<Expression> groups) {
    return keys.stream()
        .allMatch(
            key ->
                groups.stream().anyMatch(key::semanticEquals)
                    || !key.references().isEmpty()
                        && PlanParts.references(key).stream()
                            .allMatch(c -> groups.stream().anyMatch(c::semanticEquals)));
  }

  private static boolean areOf(List<Expression> keys, LogicalPlan plan) {
    return keys.stream().allMatch(key -> PlanParts.isOf(key, plan));
  }

  static boolean hasAggregate(Expression expression) {
    return PlanParts.has(expression, part -> part instanceof AggregateExpression);
  }

  /** The keys as expressions over a child's columns; each child of a union has its own columns. */
  static List<Expression> ofChild(
      LogicalPlan node, LogicalPlan child, List<Expression> keys) {
    if (!(node instanceof Union)) {
      return keys;
    }
    Map<ExprId, Expression> values = new HashMap<>();
    List<Attribute> output = PlanParts.output(node);
    for (int position = 0; position < output.size(); position++) {
      values.put(output.get(position).exprId(), PlanParts.output(child).get(position));
    }
    return PlanParts.replaced(keys, values);
  }

  private static LogicalPlan with(LogicalPlan node, LogicalPlan child) {
    return node.withNewChildren(PlanParts.seq(List.of(child)));
  }
}
