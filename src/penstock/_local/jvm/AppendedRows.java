package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.execution.datasources.LogicalRelation;

/** The rows by which a query's result grows, if rows were only added to its tables. */
final class AppendedRows {
  private final QueryChanges query;

  AppendedRows(QueryChanges query) {
    this.query = query;
  }

  /**
   * The new rows, with the columns of a part of the query.
   *
   * @throws QueryChanges.UnsupportedException if other rows change, too
   */
  LogicalPlan of(LogicalPlan node) {
    LogicalPlan rows = orNull(node);
    if (rows == null) {
      throw new QueryChanges.UnsupportedException("no source changed");
    }
    return rows;
  }

  private LogicalPlan orNull(LogicalPlan node) {
    if (!query.isChanged(node)) {
      return null;
    } else if (node instanceof LogicalRelation leaf) {
      return query.appended(leaf);
    } else if (node instanceof Union) {
      List<LogicalPlan> parts = new ArrayList<>();
      for (LogicalPlan child : PlanParts.list(node.children())) {
        LogicalPlan rows = orNull(child);
        parts.add(rows == null ? null : PlanParts.fresh(rows));
      }
      return PlanParts.as(PlanParts.union(parts), PlanParts.output(node));
    } else if (node instanceof Join join) {
      return ofJoin(join);
    } else if (node instanceof Project
        || node instanceof Generate
        || QueryChanges.isTransparent(node)) {
      LogicalPlan child = PlanParts.list(node.children()).get(0);
      return node.withNewChildren(PlanParts.seq(List.of(orNull(child))));
    }
    throw new QueryChanges.UnsupportedException("rows of the result change");
  }

  private LogicalPlan ofJoin(Join join) {
    LogicalPlan left = orNull(join.left());
    if (query.isChanged(join.left()) && RowOrder.mattersBelow(join.right())
        || query.isChanged(join.right()) && RowOrder.mattersBelow(join.left())) {
      throw AffectedKeys.dependsOnOrder();
    }
    if (!query.isChanged(join.right())) {
      return with(join, left, query.part(join.right(), true));
    }
    if (!PlanParts.isInner(join.joinType())) {
      throw new QueryChanges.UnsupportedException("rows of the result change");
    }
    LogicalPlan right = with(join, query.part(join.left(), false), orNull(join.right()));
    if (left == null) {
      return right;
    }
    LogicalPlan ofLeft = with(join, left, query.part(join.right(), true));
    return PlanParts.as(
        PlanParts.union(List.of(PlanParts.fresh(ofLeft), PlanParts.fresh(right))),
        PlanParts.output(join));
  }

  private static LogicalPlan with(Join join, LogicalPlan left, LogicalPlan right) {
    return join.withNewChildren(PlanParts.seq(List.of(left, right)));
  }
}
