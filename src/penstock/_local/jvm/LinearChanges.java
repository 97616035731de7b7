package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.execution.datasources.LogicalRelation;

/**
 * Computes the changed rows of the result of a query from the changed rows of its tables, for
 * filters, projections, unions and joins.
 */
final class LinearChanges {
  private final QueryChanges query;
  private final boolean isSigned;

  /**
   * @param isSigned whether rows may also have been removed from tables. The changes then have the
   *     number of copies as last column, negative for removed rows; a row may occur several times
   */
  LinearChanges(QueryChanges query, boolean isSigned) {
    this.query = query;
    this.isSigned = isSigned;
  }

  /**
   * The changes, with the columns of a part of the query.
   *
   * @throws QueryChanges.UnsupportedException if other rows change as well
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
      return isSigned ? query.signed(leaf) : query.appended(leaf);
    } else if (node instanceof Union) {
      List<LogicalPlan> parts = new ArrayList<>();
      for (LogicalPlan child : PlanParts.list(node.children())) {
        parts.add(orNull(child));
      }
      return union(parts, node);
    } else if (node instanceof Join join) {
      return ofJoin(join);
    } else if (node instanceof Project
        || node instanceof Generate
        || NormalPlan.isTransparent(node)) {
      return with(node, orNull(PlanParts.list(node.children()).get(0)));
    }
    throw new QueryChanges.UnsupportedException("rows of the result change");
  }

  private LogicalPlan ofJoin(Join join) {
    LogicalPlan left = orNull(join.left());
    if (query.isChanged(join.left()) && RowOrder.mattersBelow(join.right())
        || query.isChanged(join.right()) && RowOrder.mattersBelow(join.left())) {
      throw AffectedKeys.dependsOnOrder();
    }
    if (isSigned && (isRounded(join.left()) || isRounded(join.right()))) {
      // After recomputation, a condition above may not select removed rows that it selected before.
      throw new QueryChanges.UnsupportedException("rows of the result change");
    }
    if (!query.isChanged(join.right())) {
      return with(join, left, query.part(join.right(), true), left);
    }
    if (!PlanParts.isInner(join.joinType())) {
      throw new QueryChanges.UnsupportedException("rows of the result change");
    }
    LogicalPlan right = orNull(join.right());
    LogicalPlan ofRight = with(join, query.part(join.left(), false), right, right);
    if (left == null) {
      return ofRight;
    }
    LogicalPlan ofLeft = with(join, left, query.part(join.right(), true), left);
    return union(List.of(ofLeft, ofRight), join);
  }

  private static boolean isRounded(LogicalPlan side) {
    return RowOrder.isRounded(side, PlanParts.output(side));
  }

  private LogicalPlan union(List<LogicalPlan> parts, LogicalPlan node) {
    List<LogicalPlan> fresh = new ArrayList<>();
    parts.forEach(rows -> fresh.add(rows == null ? null : PlanParts.fresh(rows)));
    LogicalPlan union = PlanParts.union(fresh);
    List<Attribute> columns = new ArrayList<>(PlanParts.output(node));
    if (isSigned) {
      columns.add(last(union).newInstance());
    }
    return PlanParts.as(union, columns);
  }

  private LogicalPlan with(LogicalPlan node, LogicalPlan rows) {
    if (isSigned && node instanceof Project project) {
      List<NamedExpression> columns = new ArrayList<>(PlanParts.list(project.projectList()));
      columns.add(last(rows));
      return new Project(PlanParts.seq(columns), rows);
    }
    LogicalPlan changed = node.withNewChildren(PlanParts.seq(List.of(rows)));
    return isSigned ? inOrder(node, changed, rows) : changed;
  }

  private LogicalPlan with(Join join, LogicalPlan left, LogicalPlan right, LogicalPlan signed) {
    LogicalPlan changed = join.withNewChildren(PlanParts.seq(List.of(left, right)));
    return isSigned ? inOrder(join, changed, signed) : changed;
  }

  /** The columns of a node, followed by the number of copies. */
  private static LogicalPlan inOrder(LogicalPlan node, LogicalPlan rows, LogicalPlan signed) {
    List<NamedExpression> columns = new ArrayList<>(PlanParts.output(node));
    columns.add(last(signed));
    return new Project(PlanParts.seq(columns), rows);
  }

  private static Attribute last(LogicalPlan rows) {
    List<Attribute> output = PlanParts.output(rows);
    return output.get(output.size() - 1);
  }
}
