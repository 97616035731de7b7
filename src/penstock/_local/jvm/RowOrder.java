package penstock.delta;

import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.CumeDist;
import org.apache.spark.sql.catalyst.expressions.DenseRank;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PercentRank;
import org.apache.spark.sql.catalyst.expressions.Rank;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

/**
 * Whether results depend on the order of rows with equal values, as those of {@code row_number}.
 *
 * <p>Such a result may differ when it is recomputed. So the rows that it had at the last
 * refresh are not known, only the groups to which they belong.
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

  private RowOrder() {}

  /** Whether a result of this node depends on it. */
  static boolean matters(LogicalPlan node) {
    return node instanceof Deduplicate
        || PlanParts.list(node.expressions()).stream().anyMatch(RowOrder::matters);
  }

  /** Whether a result of the node or of one below does. */
  static boolean mattersBelow(LogicalPlan node) {
    return matters(node)
        || PlanParts.list(node.children()).stream().anyMatch(RowOrder::mattersBelow);
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
