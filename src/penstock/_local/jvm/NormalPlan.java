package penstock.delta;

import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.EliminateView;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.SessionWindow;
import org.apache.spark.sql.catalyst.optimizer.EliminateResolvedHint;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.optimizer.PullupCorrelatedPredicates;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates;
import org.apache.spark.sql.catalyst.optimizer.ReorderJoin;
import org.apache.spark.sql.catalyst.optimizer.ReplaceDistinctWithAggregate;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExceptWithAntiJoin;
import org.apache.spark.sql.catalyst.optimizer.ReplaceIntersectWithSemiJoin;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery;
import org.apache.spark.sql.catalyst.optimizer.RewritePredicateSubquery;
import org.apache.spark.sql.catalyst.plans.ExistenceJoin;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.datasources.LogicalRelation;

/**
 * Rewrites queries to the form for which changes are computed: without CTEs, subqueries and right
 * joins.
 */
final class NormalPlan {
  private NormalPlan() {}

  /** The query in this form. */
  static LogicalPlan of(LogicalPlan plan) {
    plan = new InlineCTE(true, true).apply(clean(plan));
    plan = PullupCorrelatedPredicates.apply(clean(plan));
    // From here on, the plans of subqueries are part of the plan.
    plan = clean(RewritePredicateSubquery.apply(plan));
    plan = clean(RewriteCorrelatedScalarSubquery.apply(plan));
    // For FROM a, b, the conditions of WHERE become join conditions.
    plan = PushDownPredicates.apply(ReorderJoin.apply(plan));
    plan = ReplaceIntersectWithSemiJoin.apply(plan);
    plan = ReplaceExceptWithAntiJoin.apply(plan);
    return leftOuter(ReplaceDistinctWithAggregate.apply(plan));
  }

  private static LogicalPlan clean(LogicalPlan plan) {
    return EliminateResolvedHint.apply(EliminateView.apply(EliminateSubqueryAliases.apply(plan)));
  }

  private static LogicalPlan leftOuter(LogicalPlan plan) {
    LogicalPlan node = plan.mapChildren(NormalPlan::leftOuter);
    if (node instanceof Join join && join.joinType() == RightOuter$.MODULE$) {
      Join swapped =
          PlanParts.join(join.right(), join.left(), LeftOuter$.MODULE$, join.condition());
      return new Project(PlanParts.seq(PlanParts.output(join)), swapped);
    }
    return node;
  }

  /** Rejects a query with operators whose changes cannot be computed. */
  static void check(LogicalPlan node) {
    if (node instanceof Join join && join.joinType() instanceof ExistenceJoin) {
      throw unsupported("EXISTS or IN within OR or a column");
    }
    if (!isSupported(node)) {
      String kind = node instanceof Join join ? join.joinType().sql() + " JOIN" : node.nodeName();
      if (node instanceof LogicalRelation) {
        kind = QueryChanges.index(node) == null ? "files that are not a Delta table" : "_metadata";
      }
      throw unsupported(kind);
    }
    for (Expression expression : PlanParts.list(node.expressions())) {
      if (PlanParts.has(expression, part -> part instanceof PlanExpression)) {
        throw unsupported("a scalar subquery");
      }
      // Detected as in Spark's planner. A new row may extend or merge existing sessions.
      if (node instanceof Aggregate
          && expression instanceof NamedExpression column
          && column.metadata().contains(SessionWindow.marker())) {
        throw unsupported("session_window");
      }
    }
    PlanParts.list(node.children()).forEach(NormalPlan::check);
  }

  private static RuntimeException unsupported(String part) {
    return new QueryChanges.UnsupportedException(
        "a query with " + part + " is not updated incrementally");
  }

  private static boolean isSupported(LogicalPlan node) {
    if (node instanceof LogicalRelation relation) {
      // Additional columns are those of `_metadata`.
      return QueryChanges.index(node) != null
          && relation.output().size() == relation.relation().schema().size();
    } else if (node instanceof Join join) {
      JoinType type = join.joinType();
      return PlanParts.isInner(type)
          || type == LeftOuter$.MODULE$
          || type == LeftSemi$.MODULE$
          || type == LeftAnti$.MODULE$;
    } else if (node instanceof Union union) {
      return !union.byName();
    }
    return isConstant(node)
        || isTransparent(node)
        || node instanceof Project
        || node instanceof Aggregate
        || node instanceof Window
        || node instanceof Deduplicate
        || node instanceof Generate;
  }

  static boolean isConstant(LogicalPlan node) {
    return node instanceof LocalRelation
        || node instanceof OneRowRelation
        || node instanceof Range;
  }

  /** Whether a node returns all rows of its child in a different order. */
  static boolean isOrder(LogicalPlan node) {
    return node instanceof Sort
        || node instanceof RepartitionOperation
        || node instanceof RebalancePartitions;
  }

  /** Whether a node returns rows of its child unchanged. */
  static boolean isTransparent(LogicalPlan node) {
    return node instanceof Filter || isOrder(node);
  }
}
