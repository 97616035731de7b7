package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.expressions.CumeDist;
import org.apache.spark.sql.catalyst.expressions.DenseRank;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PercentRank;
import org.apache.spark.sql.catalyst.expressions.Rank;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;

/**
 * Detects results that depend on the order of rows with equal values, such as {@code row_number}.
 *
 * <p>Such a result may differ when it is recomputed. Therefore, its rows at the last refresh are
 * unknown; only their groups are known.
 */
final class RowOrder {
  private static final Set<String> ORDERLESS =
      Set.of(
          "Average",
          "BitAndAgg",
          "BitOrAgg",
          "BitXorAgg",
          "BoolAnd",
          "BoolOr",
          "Count",
          "CountIf",
          "Max",
          "Min",
          "StddevPop",
          "StddevSamp",
          "Sum",
          "VariancePop",
          "VarianceSamp");

  // Sums in these functions are rounded, so their last bits depend on the order of all rows.
  private static final Set<String> SUMS =
      Set.of("Average", "StddevPop", "StddevSamp", "Sum", "VariancePop", "VarianceSamp");

  private RowOrder() {}

  /** Whether a result of this node depends on the order of rows. */
  static boolean matters(LogicalPlan node) {
    return node instanceof Deduplicate
        || PlanParts.list(node.expressions()).stream().anyMatch(RowOrder::matters);
  }

  /** Whether a result of the node or of a node below it depends on the order of rows. */
  static boolean mattersBelow(LogicalPlan node) {
    return matters(node)
        || PlanParts.list(node.children()).stream().anyMatch(RowOrder::mattersBelow);
  }

  /**
   * Whether values, or which rows a plan returns, depend on sums of floating-point numbers. If
   * {@code sum(x) > 1} is recomputed, it may change from true to false.
   */
  static boolean isRounded(LogicalPlan node, List<? extends Expression> values) {
    List<Expression> parts = new ArrayList<>(values);
    if (node instanceof Project project) {
      parts = PlanParts.replaced(parts, PlanParts.values(project.projectList()));
    } else if (node instanceof Aggregate groups) {
      parts = PlanParts.replaced(parts, PlanParts.values(groups.aggregateExpressions()));
      List<Expression> keys = PlanParts.list(groups.groupingExpressions());
      parts = Stream.concat(parts.stream(), keys.stream()).toList();
    } else if (node instanceof Window window) {
      parts = PlanParts.replaced(parts, PlanParts.values(window.windowExpressions()));
    } else {
      parts.addAll(PlanParts.list(node.expressions()));
    }
    List<Expression> all = parts;
    return all.stream().anyMatch(part -> PlanParts.has(part, RowOrder::isRounded))
        || PlanParts.list(node.children()).stream()
            .anyMatch(child -> isRounded(child, AffectedKeys.ofChild(node, child, all)));
  }

  private static boolean isRounded(Expression expression) {
    return SUMS.contains(expression.getClass().getSimpleName())
        && PlanParts.list(expression.children()).stream()
            .map(Expression::dataType)
            .anyMatch(type -> type instanceof DoubleType || type instanceof FloatType);
  }

  private static boolean matters(Expression expression) {
    if (expression instanceof WindowExpression window) {
      Expression function = window.windowFunction();
      return hasRowFrame(window)
          ? !isRank(function)
          : !isRank(function)
              && !(function instanceof AggregateExpression call && !matters(call));
    } else if (expression instanceof AggregateExpression call) {
      String name = call.aggregateFunction().getClass().getSimpleName();
      return !ORDERLESS.contains(name);
    }
    return PlanParts.list(expression.children()).stream().anyMatch(RowOrder::matters);
  }

  private static boolean isRank(Expression function) {
    return function instanceof Rank
        || function instanceof DenseRank
        || function instanceof PercentRank
        || function instanceof CumeDist;
  }

  private static boolean hasRowFrame(WindowExpression window) {
    return window.windowSpec().frameSpecification() instanceof SpecifiedWindowFrame frame
        && frame.frameType() == RowFrame$.MODULE$
        && !frame.isUnbounded();
  }
}
