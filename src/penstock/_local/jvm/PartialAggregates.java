package penstock.delta;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;

/**
 * A query that groups rows, and whose aggregates of old and new rows can be merged.
 *
 * <p>Sums of floating-point numbers are not merged: their value depends on the order of the rows.
 */
final class PartialAggregates {
  // Sums have ten more digits, up to 38, and become NULL if these are not enough.
  private static final int MOST_DIGITS = 28;

  final List<Attribute> keys = new ArrayList<>();
  final List<String> merges = new ArrayList<>();
  private final LogicalPlan plan;
  private final Aggregate aggregate;

  private PartialAggregates(LogicalPlan plan, Aggregate aggregate) {
    this.plan = plan;
    this.aggregate = aggregate;
  }

  /** The partial aggregates of a query; null if they cannot be merged. */
  static PartialAggregates of(LogicalPlan plan) {
    LogicalPlan node = plan;
    while (QueryChanges.isOrder(node) || node instanceof Project) {
      node = PlanParts.list(node.children()).get(0);
    }
    if (!(node instanceof Aggregate aggregate) || aggregate.groupingExpressions().isEmpty()) {
      return null;
    }
    PartialAggregates partial = new PartialAggregates(plan, aggregate);
    return partial.addColumns() ? partial : null;
  }

  private boolean addColumns() {
    Map<ExprId, Expression> values = new HashMap<>();
    for (NamedExpression column : PlanParts.list(aggregate.aggregateExpressions())) {
      values.put(column.exprId(), PlanParts.unaliased((Expression) column));
    }
    List<Expression> grouping = new ArrayList<>(PlanParts.list(aggregate.groupingExpressions()));
    List<Expression> missing = new ArrayList<>(grouping);
    for (Attribute column : PlanParts.output(plan)) {
      ExprId source = PlanParts.origin(plan, aggregate, column.exprId());
      Expression value = source == null ? null : values.get(source);
      if (value == null) {
        return false;
      }
      String merge = value instanceof AggregateExpression call ? merge(call) : null;
      if (merge != null) {
        merges.add(merge);
      } else if (grouping.stream().anyMatch(value::semanticEquals)) {
        if (!PlanParts.isExact(value.dataType())) {
          return false;
        }
        merges.add("");
        keys.add(column);
        missing.removeIf(value::semanticEquals);
      } else {
        return false;
      }
    }
    return missing.isEmpty();
  }

  private static String merge(AggregateExpression call) {
    AggregateFunction function = call.aggregateFunction();
    if (call.isDistinct()) {
      return null;
    }
    return switch (function.getClass().getSimpleName()) {
      case "Count", "CountIf" -> "sum";
      case "Sum" -> function.prettyName().equals("sum") && isExactSum(function) ? "sum" : null;
      case "Min", "BoolAnd" -> hasOrder(function.dataType()) ? "min" : null;
      case "Max", "BoolOr" -> hasOrder(function.dataType()) ? "max" : null;
      default -> null;
    };
  }

  private static boolean isExactSum(AggregateFunction sum) {
    DataType type = PlanParts.list(sum.children()).get(0).dataType();
    return type instanceof LongType
        || type instanceof IntegerType
        || type instanceof ShortType
        || type instanceof ByteType
        || type instanceof DecimalType decimal && decimal.precision() <= MOST_DIGITS;
  }

  private static boolean hasOrder(DataType type) {
    return PlanParts.isExact(type) || type instanceof DoubleType || type instanceof FloatType;
  }

  /** The aggregates of the new rows alone. */
  LogicalPlan over(LinearChanges appended) {
    return replaced(plan, appended.of(aggregate.child()));
  }

  private LogicalPlan replaced(LogicalPlan node, LogicalPlan rows) {
    LogicalPlan child = PlanParts.list(node.children()).get(0);
    LogicalPlan below = node == aggregate ? rows : replaced(child, rows);
    return node.withNewChildren(PlanParts.seq(List.of(below)));
  }
}
